//! Reads values within single lines of a report: names, lists of nodes, task tables, limits of cgroups.

use zonal::units::{MAX_NODES, NodeId};
use zonal_model::{KernelVersion, ids};

use super::figures::{Kib, NUMBER_MAX, number};
use super::report::{CgroupCounter, Constraint, LogReport, NodeList, Task, TaskTable};

/// Characters of a name that are kept.
const NAME_MAX: usize = 120;
/// Processes that are kept.
const TASKS_MAX: usize = 5;

/// Returns the beginning of a name.
pub(super) fn short(name: &str) -> String {
    name.chars().take(NAME_MAX).collect()
}

/// Returns the name of a process, which ends a line's beginning.
pub(super) fn name_of(text: &str) -> Option<String> {
    let name = text.trim();
    (!name.is_empty()).then(|| short(name))
}

/// Returns the text after a key that begins a word.
pub(super) fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut rest = text;
    let mut before = ' ';
    loop {
        let at = rest.find(key)?;
        before = rest[..at].chars().next_back().unwrap_or(before);
        let value = &rest[at + key.len()..];
        if matches!(before, ' ' | ',' | '\t' | ':') {
            return Some(value);
        }
        (before, rest) = (key.chars().next_back().unwrap_or(' '), value);
    }
}

/// Reads `(null)`, or a list of nodes that another field may follow.
pub(super) fn node_list(text: &str) -> Option<NodeList> {
    if text.starts_with("(null)") {
        return Some(NodeList::Any);
    }
    let end = text.find(|letter: char| !matches!(letter, '0'..='9' | ',' | '-')).unwrap_or(text.len());
    let ids = ids::parse(text[..end].trim_end_matches([',', '-']), MAX_NODES as u64)?;
    let nodes = ids.into_iter().filter_map(|id| NodeId::new(u16::try_from(id).ok()?));
    Some(NodeList::Only(nodes.collect()))
}

/// Reads `oom-kill:constraint=..,nodemask=..,cpuset=..,mems_allowed=..,oom_memcg=..,task=..`.
pub(super) fn constraint_line(text: &str, report: &mut LogReport) {
    let field = |key: &str| value_of(text, key).and_then(|value| value.split(',').next());
    let kill = report.kill.get_or_insert_default();
    let constraint = field("constraint=");
    kill.constraint = Constraint::ALL.into_iter().find(|known| Some(known.name()) == constraint);
    kill.oom_memcg = field("oom_memcg=").map(short);
    kill.task = field("task=").map(short);
    let request = &mut report.request;
    if let Some(list) = value_of(text, "nodemask=") {
        request.nodemask = request.nodemask.take().or_else(|| node_list(list));
    }
    if let Some(name) = field("cpuset=") {
        request.cpuset.get_or_insert_with(|| short(name));
    }
    if let Some(NodeList::Only(nodes)) = value_of(text, "mems_allowed=").and_then(node_list) {
        request.mems_allowed.get_or_insert(nodes);
    }
}

/// Returns the release in `CPU: 0 PID: 127 Comm: hog Not tainted 6.1.0-13-amd64 #1`.
pub(super) fn release_of(text: &str) -> Option<String> {
    let at = text.find("tainted").or_else(|| text.find("Tainted"))?;
    let mut words = text[at..].split_whitespace().skip(1);
    let is_release = |word: &&str| {
        word.starts_with(|first: char| first.is_ascii_digit()) && word.parse::<KernelVersion>().is_ok()
    };
    words.find(is_release).map(short)
}

/// Returns the CPU in the same line.
pub(super) fn cpu_of(text: &str) -> Option<u32> {
    number(text.strip_prefix("CPU: ")?)?.try_into().ok()
}

/// Reads `memory: usage 204800kB, limit 204800kB, failcnt 26`.
pub(super) fn cgroup_counter(text: &str) -> Option<CgroupCounter> {
    let (name, rest) = text.split_once(": usage ")?;
    let name = ["memory", "memory+swap", "kmem", "swap"].into_iter().find(|known| *known == name)?;
    let limit = rest.split_once("limit ").map(|(_, limit)| limit)?;
    // "No limit" is the largest number that the kernel has.
    let limit = limit.bytes().take_while(u8::is_ascii_digit).count();
    let digits = rest.split_once("limit ").map_or("", |(_, text)| &text[..limit]);
    let limit = digits.parse::<u64>().map_or(NUMBER_MAX, |limit| limit.min(NUMBER_MAX));
    (!digits.is_empty()).then_some(CgroupCounter { name, usage: Kib(number(rest)?), limit: Kib(limit) })
}

/// The columns of a task table.
#[derive(Debug)]
pub(super) struct Header {
    columns: usize,
    rss: usize,
    rss_of_node: Option<usize>,
}

impl Header {
    /// Reads `[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (first, rest) = text.strip_prefix('[')?.split_once(']')?;
        let columns: Vec<&str> = rest.split_whitespace().take(20).collect();
        if first.trim() != "pid" || columns.last() != Some(&"name") {
            return None;
        }
        let place = |is_it: &dyn Fn(&str) -> bool| columns.iter().position(|column| is_it(column));
        Some(Self {
            columns: columns.len(),
            rss: place(&|column| column == "rss")?,
            rss_of_node: place(&|column| column.ends_with("nrss")),
        })
    }

    /// Adds a row to the table. Returns whether the line is one.
    pub(super) fn read_row(&self, text: &str, table: &mut TaskTable) -> bool {
        let Some((pid, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
            return false;
        };
        let words: Vec<&str> = rest.split_whitespace().take(self.columns + 8).collect();
        if number(pid.trim()).is_none() || words.len() < self.columns {
            return false;
        }
        let Some(rss) = number(words[self.rss]) else { return false };
        let rss_of_node = self.rss_of_node.and_then(|at| number(words[at]));
        let name = short(&words[self.columns - 1..].join(" "));
        table.count += 1;
        table.rss = table.rss.saturating_add(rss);
        if let Some(pages) = rss_of_node {
            table.rss_of_node = Some(table.rss_of_node.unwrap_or(0).saturating_add(pages));
        }
        let key = |task: &Task| task.rss_of_node.unwrap_or(task.rss);
        let task = Task { name, rss, rss_of_node };
        let at = table.largest.partition_point(|other| key(other) >= key(&task));
        table.largest.insert(at, task);
        table.largest.truncate(TASKS_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(list: &[u16]) -> Option<NodeList> {
        Some(NodeList::Only(list.iter().map(|&id| NodeId::new(id).unwrap()).collect()))
    }

    #[test]
    fn lists_end_where_the_next_field_begins() {
        assert_eq!(node_list("(null),cpuset=/"), Some(NodeList::Any));
        assert_eq!(node_list("0,2-3,cpuset=/"), nodes(&[0, 2, 3]));
        assert_eq!(node_list("1"), nodes(&[1]));
        for text in ["", "x", "0-99999", "3-1"] {
            assert_eq!(node_list(text), None, "{text}");
        }
    }

    #[test]
    fn keys_begin_words() {
        let text = "oom-kill:constraint=A,task_memcg=/b,task=hog,pid=1";
        assert_eq!(value_of(text, "task="), Some("hog,pid=1"));
        assert_eq!(value_of(text, "constraint="), Some("A,task_memcg=/b,task=hog,pid=1"));
        assert_eq!(value_of("subtask=1", "task="), None);
    }

    #[test]
    fn releases() {
        for (text, release) in [
            ("CPU: 0 PID: 127 Comm: hog Not tainted 6.1.0-56-cloud-amd64 #1  Debian", "6.1.0-56-cloud-amd64"),
            ("CPU: 8 PID: 1 Comm: runc:[2:INIT] Tainted: G        W I E     5.8.2-0 #1", "5.8.2-0"),
            ("CPU: 1 PID: 9 Comm: a.out Kdump: loaded Not tainted 5.0.0-rc1 #272", "5.0.0-rc1"),
            ("Pid: 31170, comm: splat Tainted: P         C O 3.8.0-1-mainline #1", "3.8.0-1-mainline"),
        ] {
            assert_eq!(release_of(text).as_deref(), Some(release));
        }
        assert_eq!(release_of("CPU: 0 PID: 127 Comm: 6.1 hog"), None);
    }

    #[test]
    fn task_tables_by_column() {
        let header =
            "[  pid  ]   uid  tgid total_vm      rss (01)nrss  pgtables_bytes swapents oom_score_adj name";
        let header = Header::parse(header).unwrap();
        let mut table = TaskTable::default();
        let rows = [
            "[  12399]     0 12399  1311306  1311056   262170 10534912        0             0 a.out",
            "[  13135]     0 13135   787018   674666   674300  5439488        0             0 b c",
            "[  13135]     0 13135",
            "RIP: 0033",
        ];
        let read: Vec<bool> = rows.iter().map(|row| header.read_row(row, &mut table)).collect();
        assert_eq!(read, [true, true, false, false]);
        assert_eq!((table.count, table.rss, table.rss_of_node), (2, 1_985_722, Some(936_470)));
        assert_eq!(table.largest[0].name, "b c");
    }

    #[test]
    fn limits_of_cgroups() {
        let counter = cgroup_counter("memory: usage 204800kB, limit 204800kB, failcnt 26").unwrap();
        assert_eq!((counter.name, counter.usage, counter.limit), ("memory", Kib(204_800), Kib(204_800)));
        let counter = cgroup_counter("swap: usage 0kB, limit 9007199254740988kB, failcnt 0").unwrap();
        assert_eq!(counter.limit, Kib(NUMBER_MAX));
        assert_eq!(cgroup_counter("other: usage 1kB, limit 2kB"), None);
    }
}
