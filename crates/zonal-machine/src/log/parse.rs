//! Builds reports from lines of a kernel log.
//!
//! A report begins with the line that names the request and ends with the line of the kill, or where the next report
//! begins. Lines in between that are not part of a report are ignored, so other messages may be interleaved. Related
//! files: `report.rs` has the result, and `words.rs` reads single lines.

use zonal::units::NodeId;

use super::figures::{BlockList, Figure, Figures, Kib, number};
use super::gfp::Gfp;
use super::lines::Line;
use super::report::{LogReport, LoggedKind, LoggedNode, LoggedZone, NodeList, ReportKind};
use super::words::{
    Header, cgroup_counter, constraint_line, cpu_of, name_of, node_list, release_of, short, value_of,
};

/// Zones and nodes of a report that are kept: more than Linux supports.
const ZONES_MAX: usize = 6 * 1024;

/// What the next lines of the log continue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Within {
    #[default]
    Nothing,
    /// The totals after `Mem-Info:`.
    Totals,
    /// A zone's line, which mail programs wrap.
    Zone,
    /// The task table.
    Tasks,
}

/// Reads lines, and returns reports when they are complete.
#[derive(Debug, Default)]
pub(super) struct Parser {
    open: Option<LogReport>,
    within: Within,
    header: Option<Header>,
    /// The release in the last `Linux version` line.
    booted: Option<String>,
    /// Whether the next `Mem-Info` belongs to no failed request.
    is_requested: bool,
    /// A report that is complete, after another one.
    next: Option<LogReport>,
    /// Whether a cgroup is being killed as a whole.
    is_group: bool,
}

impl Parser {
    /// Reads the line with this number. Returns a report that the line completes.
    pub(super) fn line(&mut self, number: u64, line: Line<'_>) -> Option<LogReport> {
        let Line { text, at } = line;
        if let Some(begun) = first_line(text) {
            let before = self.begin(LogReport { line: number, at, ..begun });
            (self.is_requested, self.is_group) = (false, false);
            return before;
        }
        if describes_no_failure(text) {
            self.is_requested = true;
            return self.finish();
        }
        if text.contains("are going to be killed due to memory.oom.group set") {
            self.is_group = true;
            return self.finish();
        }
        if let Some(release) = text.strip_prefix("Linux version ") {
            self.booted = release.split_whitespace().next().map(short);
            return self.finish();
        }
        if text == "Mem-Info:" || text == "Mem-info:" {
            return self.memory_begins(number);
        }
        if self.is_other_than_kill() && cgroup_counter(text).is_some() {
            let begun = LogReport { line: number, at, is_cut_at_top: true, ..LogReport::default() };
            let before = self.begin(begun);
            self.detail(line);
            return before;
        }
        self.kill(number, text).unwrap_or_else(|| {
            self.detail(line);
            None
        })
    }

    /// Returns the last report, at the end of the log.
    pub(super) fn finish(&mut self) -> Option<LogReport> {
        (self.within, self.header) = (Within::Nothing, None);
        let mut report = self.open.take()?;
        if report.release.is_none() {
            report.release.clone_from(&self.booted);
        }
        report.kernel = report.release.as_deref().and_then(|release| release.parse().ok());
        if let (Some(gfp), Some(kernel)) = (&mut report.request.gfp, report.kernel) {
            gfp.decode_bits(kernel);
        }
        Some(report)
    }

    fn begin(&mut self, report: LogReport) -> Option<LogReport> {
        let before = self.finish();
        self.open = Some(report);
        before
    }

    fn memory_begins(&mut self, number: u64) -> Option<LogReport> {
        let is_first = self.open.as_ref().is_some_and(|report| report.totals.is_none());
        let before = if is_first || self.is_requested {
            None
        } else {
            self.begin(LogReport { line: number, is_cut_at_top: true, ..LogReport::default() })
        };
        self.is_requested = false;
        if let Some(report) = &mut self.open {
            report.totals = Some(Figures::default());
            self.within = Within::Totals;
        }
        before
    }

    /// Reads a line about a kill. The outer `None` means that the line is not about one.
    fn kill(&mut self, number: u64, text: &str) -> Option<Option<LogReport>> {
        let of_kill = LogReport {
            line: number,
            kind: Some(ReportKind::Oom),
            is_cut_at_top: true,
            ..LogReport::default()
        };
        if text.starts_with("oom-kill:") {
            let before = if self.is_other_than_kill() { self.begin(of_kill) } else { None };
            let report = self.open.get_or_insert_default();
            report.kind = Some(ReportKind::Oom);
            constraint_line(text, report);
            self.within = Within::Nothing;
            return Some(before);
        }
        let is_of_cgroup = text.starts_with("Memory cgroup out of memory");
        if !is_of_cgroup && !text.starts_with("Out of memory") {
            return None;
        }
        if self.open.is_none() && self.is_group {
            // One more process of a cgroup that is killed as a whole.
            return Some(None);
        }
        // A kernel that prints many reports leaves out the beginning of some.
        let before = if self.is_other_than_kill() { self.begin(of_kill) } else { None };
        let report = self.open.get_or_insert_default();
        report.kind = Some(ReportKind::Oom);
        let kill = report.kill.get_or_insert_default();
        let name =
            text.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| short(name));
        kill.task = kill.task.take().or(name);
        if is_of_cgroup {
            kill.constraint = Some(super::report::Constraint::Memcg);
        }
        let this = self.finish();
        if before.is_none() {
            return Some(this);
        }
        self.next = this;
        Some(before)
    }

    /// Whether a line about a kill does not belong to the open report.
    fn is_other_than_kill(&self) -> bool {
        self.open.as_ref().is_none_or(|report| report.kind == Some(ReportKind::Failure))
    }

    /// Returns a report that was completed by the same line as the one before it.
    pub(super) const fn next(&mut self) -> Option<LogReport> {
        self.next.take()
    }

    /// Reads a line within a report.
    fn detail(&mut self, Line { text, at }: Line<'_>) {
        let Some(report) = &mut self.open else { return };
        if self.within == Within::Totals && !text.starts_with("Node ") {
            let totals = report.totals.get_or_insert_default();
            if totals.read(text) > 0 && !text.contains("kB") {
                return;
            }
        }
        if self.within == Within::Tasks {
            if let Some(header) = &self.header
                && header.read_row(text, report.tasks.get_or_insert_default())
            {
                return;
            }
        } else if let Some(header) = Header::parse(text) {
            (self.within, self.header) = (Within::Tasks, Some(header));
            report.tasks.get_or_insert_default();
            return;
        }
        if zone_line(text, at, report) || (self.within == Within::Zone && continues_zone(text, report)) {
            self.within = Within::Zone;
            return;
        }
        request_line(text, report);
        about_machine(text, report);
    }
}

/// Words after the name of the process whose request failed.
const FAILURES: [&str; 3] =
    [": page allocation failure: ", ": page allocation failure. ", ": vmalloc error: "];

/// Reads the line with which a report begins.
fn first_line(text: &str) -> Option<LogReport> {
    let mut report = LogReport::default();
    let rest = if let Some((name, rest)) = text.split_once(" invoked oom-killer: ") {
        report.kind = Some(ReportKind::Oom);
        report.request.process = name_of(name);
        report.request.gfp = value_of(rest, "gfp_mask=").and_then(Gfp::parse);
        report.request.order = value_of(rest, "order=").and_then(order);
        rest
    } else {
        let (name, rest) = FAILURES.iter().find_map(|words| text.split_once(words))?;
        // Virtual memory of several pages needs blocks too.
        let key = if rest.contains("failed to allocate pages") { "page order " } else { "order:" };
        report.kind = Some(ReportKind::Failure);
        report.request.process = name_of(name);
        report.request.gfp = value_of(rest, "mode:").and_then(Gfp::parse);
        report.request.order = value_of(rest, key).and_then(order).filter(|&order| order >= 0);
        if key == "order:" && text.contains(": vmalloc error: ") {
            return None;
        }
        rest
    };
    request_line(rest, &mut report);
    Some(report)
}

fn order(text: &str) -> Option<i8> {
    if text.starts_with("-1") { Some(-1) } else { number(text)?.try_into().ok().filter(|&order| order <= 30) }
}

/// Whether the next `Mem-Info` is not about a failed request: a user requested it, a request only took long, or no
/// page was refused but an address range.
fn describes_no_failure(text: &str) -> bool {
    let is_wish =
        (text.starts_with("sysrq: ") || text.starts_with("SysRq : ")) && text.contains("Show Memory");
    is_wish || text.contains("page allocation stalls for ") || text.contains(": vmalloc error: ")
}

/// Reads the nodes and the cpuset's name, which are in the first line or in one of their own.
fn request_line(text: &str, report: &mut LogReport) {
    let request = &mut report.request;
    // Mail programs wrap the first line.
    let is_kill = report.kind == Some(ReportKind::Oom);
    let order = || value_of(text, "order=").and_then(order).filter(|&order| order >= 0 || is_kill);
    request.order = request.order.or_else(order);
    if let Some(list) = value_of(text, "nodemask=") {
        request.nodemask = request.nodemask.take().or_else(|| node_list(list));
    }
    if let Some((before, list)) = text.split_once("mems_allowed=") {
        let nodes = match node_list(list) {
            Some(NodeList::Only(nodes)) => Some(nodes),
            _ => None,
        };
        request.mems_allowed = request.mems_allowed.take().or(nodes);
        if let Some((_, name)) = before.split_once("cpuset=") {
            request.cpuset.get_or_insert_with(|| short(name.trim_end_matches([',', ' '])));
        }
    }
}

/// Reads a line about the kernel, pages, swap or cgroups.
fn about_machine(text: &str, report: &mut LogReport) {
    if report.release.is_none() && (text.starts_with("CPU: ") || text.starts_with("Pid: ")) {
        (report.release, report.cpu) = (release_of(text), cpu_of(text));
    } else if let Some(swap) = text.strip_prefix("Free swap") {
        report.swap.free = number(swap.trim_start_matches([' ', '='])).map(Kib);
    } else if let Some(swap) = text.strip_prefix("Total swap") {
        report.swap.total = number(swap.trim_start_matches([' ', '='])).map(Kib);
    } else if let Some((count, what)) = text.split_once(" pages ") {
        let count = number(count).filter(|_| count.bytes().all(|byte| byte.is_ascii_digit()));
        match what {
            "RAM" => report.pages.ram = count,
            "reserved" => report.pages.reserved = count,
            "cma reserved" => report.pages.cma = count,
            what if what.starts_with("HighMem") => report.pages.highmem = count,
            _ => {}
        }
    } else if let Some(counter) = cgroup_counter(text)
        && report.cgroup.len() < 4
    {
        report.cgroup.push(counter);
    }
}

/// Reads a line about a zone or a node. Returns whether the next line may continue it.
fn zone_line(text: &str, at: Option<u64>, report: &mut LogReport) -> bool {
    if let Some(list) = text.strip_prefix("lowmem_reserve[]:") {
        if let Some(zone) = report.zones.last_mut().filter(|zone| zone.reserve.is_empty()) {
            zone.reserve = list.split_whitespace().take(8).map_while(number).collect();
        }
        return false;
    }
    let (node, rest) = match text.strip_prefix("Node ").and_then(|rest| rest.split_once(' ')) {
        Some((node, rest)) => (node.parse().ok().and_then(NodeId::new), rest),
        None => (Some(NodeId::default()), text),
    };
    let Some(node) = node else { return false };
    if let Some((name, rest)) = rest.split_once(' ')
        && let Some(kind) = LoggedKind::ALL.into_iter().find(|kind| kind.name() == name.trim_end_matches(':'))
    {
        if name.ends_with(':') {
            let zone = report.zones.iter_mut().find(|zone| (zone.node, zone.kind) == (node, kind));
            if let Some(zone) = zone.filter(|zone| zone.blocks.is_none()) {
                (zone.blocks, zone.blocks_at) = (BlockList::parse(rest), at);
            }
            return false;
        }
        if !rest.starts_with("free:") {
            return false;
        }
        let mut figures = Figures::default();
        figures.read(rest);
        let zone = LoggedZone { node, kind, figures, reserve: Vec::new(), blocks: None, at, blocks_at: None };
        return new_zone(zone, report);
    }
    if rest.starts_with("active_anon:") && text.starts_with("Node ") {
        entry(report, node).is_some_and(|node| node.figures.read(rest) > 0)
    } else {
        huge_pages(rest, node, report);
        false
    }
}

fn new_zone(zone: LoggedZone, report: &mut LogReport) -> bool {
    let is_known = report.zones.iter().any(|known| (known.node, known.kind) == (zone.node, zone.kind));
    if is_known || report.zones.len() == ZONES_MAX {
        return false;
    }
    report.zones.push(zone);
    true
}

/// Reads the rest of a zone's line that a mail program wrapped: words in kB only.
fn continues_zone(text: &str, report: &mut LogReport) -> bool {
    let is_amount = |word: &str| word.contains(':') && (word.ends_with("kB") || word.ends_with("KB"));
    let Some(zone) = report.zones.last_mut() else { return false };
    // A node's line follows the totals, before all zones; its continuation belongs to no zone.
    let is_rest = !text.is_empty() && text.split_whitespace().all(is_amount);
    is_rest && zone.figures.get(Figure::FreeCma).is_none() && zone.figures.read(text) > 0
}

fn entry(report: &mut LogReport, id: NodeId) -> Option<&mut LoggedNode> {
    let at = report.nodes.iter().position(|node| node.id == id);
    if at.is_none() && report.nodes.len() < ZONES_MAX {
        report.nodes.push(LoggedNode { id, figures: Figures::default(), huge_pages: Kib(0) });
    }
    match at {
        Some(at) => report.nodes.get_mut(at),
        None => report.nodes.last_mut(),
    }
}

/// Reads `hugepages_total=0 hugepages_free=0 hugepages_surp=0 hugepages_size=2048kB`.
fn huge_pages(text: &str, node: NodeId, report: &mut LogReport) {
    let counts = value_of(text, "hugepages_total=").and_then(number);
    let size = value_of(text, "hugepages_size=").and_then(number);
    if let (Some(count), Some(size)) = (counts, size)
        && let Some(node) = entry(report, node)
    {
        node.huge_pages = Kib(node.huge_pages.0.saturating_add(count.saturating_mul(size)));
    }
}
