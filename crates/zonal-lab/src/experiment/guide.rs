//! Texts from which users learn the format of experiment files: an example for each kind of workload, built-in
//! experiments to start from, and the lists of keys.
//!
//! Related files: `experiments/example.toml` is the frame of all examples; `workload/kinds.rs` has the keys.

use std::fmt::Write as _;

use super::built_in::EXAMPLE;
use crate::sim::Hardware;
use crate::workload::{KeyInfo, Keys, Workload, hardware_keys, kinds};

/// Name of the example with several programs.
pub const PROGRAMS: &str = "programs";

/// Width of a line's setting, before its comment.
const SETTING_COLUMNS: usize = 34;

/// The fields of each kind in its example, and an axis of cases.
const EXAMPLES: [(&str, &str, &str); 11] = [
    ("first-touch", "cpus = 16\ngib_each = 0.02\nfault_ns = 200.0\nuser_ns = 50.0", "cpus = [1, 16, 64]"),
    (
        "hog",
        "threads = 16\nmem_gb = 1.0\nrounds = 1.0\nshared_map = 1\nfault_ns = 200.0\nstride = 4096\nstore_ns = 50.0\n\
         unmap_ns = 100.0",
        "threads = [1, 16, 64]",
    ),
    (
        "page-faults",
        "processes = 16\nmib_each = 16.0\nseconds = 0.06\nwarm_up = 0.02\nfault_ns = 500.0\nunmap_ns = 150.0\n\
         lru_batch = 15\nlru_ns = 20.0\nown_lists = 0",
        "processes = [1, 16, 64]",
    ),
    (
        "build",
        "jobs = 64\ncore_gain = 1.3\njob_mib = 8.0\ncompute_ns = 5000.0\nbuild_pages = 1e8\nseconds = 0.2\nwarm_up = 0.1\nfault_ns = 500.0\n\
         unmap_ns = 150.0\nlru_batch = 15\nlru_ns = 20.0",
        "jobs = [1, 64]",
    ),
    (
        "exchange",
        "pairs = 16\nburst = 8\nsend_ns = 3000.0\nreceive_ns = 3000.0\nwake_ns = 20000.0\nmoves_pct = 1.0\n\
         seconds = 0.1\nwarm_up = 0.05",
        "pairs = [1, 16, 32]",
    ),
    ("stream", "cpu_nodes = [2, 3]\nmemory_nodes = [0, 1]\narray_mib = 4.0", "array_mib = [1.0, 4.0]"),
    ("fallback-list", "node = 3\nposition = 2", "node = [0, 1, 2, 3]"),
    (
        "file-writers",
        "threads = 8\nfiles = 32\nfile_kib = 512\nloops = 2\ncreate_ms = 1.0\nmetadata_kib = 8.0\npage_ns = 500.0\n\
         scan_ns = 150.0\ninode_pressure = 0.5",
        "threads = [1, 8]",
    ),
    (
        "copies",
        "files = 4\nfile_mib = 32.0\ncopies = 2\nnetwork_mb_s = 100.0\npage_ns = 500.0\nscan_ns = 150.0\n\
         inode_pressure = 0.5",
        "copies = [1, 2]",
    ),
    (
        "mapped-writer",
        "mapping_gib = 1.0\nsimulated_gib = 0.5\nresident_mib = 0.0\nseconds = 10.0\npage_ns = 500.0\nscan_ns = 150.0",
        "resident_mib = [0.0, 16.0]",
    ),
    (
        "overflow",
        "nodes = 2\nburst_pages = 512\npause_ms = 5.0\nfault_ns = 250.0\nchurn_pages = 0\nchurn_ms = 250.0\n\
         seconds = 0.5\nwarm_up = 0.1",
        "nodes = [2, 4]",
    ),
];

/// Two programs on a machine with 4 nodes of 16 CPUs: one like a web server, and one like a database.
const TWO_PROGRAMS: &str = "\
# Programs that run at the same time, each on CPUs of its own. They share zones, locks and bandwidth. Their keys are
# those of [part.workload], and their figures have the program's name as prefix: web.throughput.
[[part.program]]
name = \"web\"
on_cpus = \"0-7,16-23,32-39,48-55\"
kind = \"exchange\"
pairs = 16
burst = 8
send_ns = 3000.0
receive_ns = 3000.0
wake_ns = 20000.0
moves_pct = 1.0
seconds = 0.06
warm_up = 0.03

[[part.program]]
name = \"database\"
on_cpus = \"8-15,24-31,40-47,56-63\"
kind = \"page-faults\"
processes = 32
mib_each = 4.0
seconds = 0.06
warm_up = 0.03
fault_ns = 500.0
unmap_ns = 150.0
lru_batch = 15
lru_ns = 20.0

";

/// Returns the example for a kind of workload, or for several programs, or `None` if there is no such kind.
#[must_use]
pub fn example(kind: &str) -> Option<String> {
    if kind == PROGRAMS {
        let cases =
            "# The same with other numbers of a program's threads.\n[part.cases]\nweb.pairs = [4, 16]\n\n";
        return Some(framed(&format!("{TWO_PROGRAMS}{cases}"), ""));
    }
    let keys = kinds().iter().find(|keys| keys.name == kind)?;
    let (_, fields, axis) = EXAMPLES.iter().find(|(name, _, _)| *name == kind)?;
    let about = keys.keys.iter().map(|key| (&*key.name, key));
    let mut text = format!("# {}\n[part.workload]\nkind = \"{kind}\"\n", keys.about);
    for (name, key) in about {
        let setting = fields.lines().find(|line| line.split(' ').next() == Some(name));
        let setting = setting.map_or_else(|| format!("# {name} = ..."), str::to_owned);
        let _ = writeln!(text, "{setting:SETTING_COLUMNS$}# {}", key.about);
    }
    let _ = write!(text, "\n# The cases: all combinations of these values.\n[part.cases]\n{axis}\n\n");
    Some(framed(&text, kind))
}

/// Returns the general example with another part, whose figures answer the question by default.
fn framed(part: &str, kind: &str) -> String {
    let (head, rest) = EXAMPLE.split_once("[part.workload]").unwrap_or((EXAMPLE, ""));
    let (_, tail) = rest.split_once("# The variants to compare").unwrap_or(("", rest));
    let about = if kind.is_empty() {
        "two programs at the same time".to_owned()
    } else {
        format!("the workload {kind}")
    };
    let head: String = head
        .lines()
        .filter(|line| !line.starts_with("metrics = "))
        .map(|line| match line.split_once(" = ") {
            Some(("text", _)) => {
                format!("text = \"Do free areas with a lock each make a difference for {about}?\"\n")
            }
            Some(("about", _)) => format!("about = \"What it does to {about}.\"\n"),
            Some(("assumptions", _)) => "assumptions = []\n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect();
    format!("{head}{part}# The variants to compare{tail}")
}

/// Returns an experiment as a file of one's own. What belongs to published figures, which are in another file, is commented
/// out.
#[must_use]
pub fn standalone(text: &str) -> String {
    let mut is_published = false;
    let line = |line: &str| {
        if line.starts_with('[') {
            is_published = ["[published]", "[calibration]", "[[fitted]]", "[[open]]"].contains(&line.trim());
        }
        if is_published && !line.is_empty() { format!("# {line}\n") } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

/// Returns the lists of all keys as Markdown, for the documentation.
#[must_use]
pub fn keys_text() -> String {
    let mut text = String::new();
    let kinds = kinds();
    for (at, kind) in kinds.iter().enumerate() {
        let items = list(kind, &kinds[..at], |_| None);
        let _ = write!(text, "### `{}`\n\n{}\n\n{items}", kind.name, kind.about);
    }
    let defaults = serde_json::to_value(Hardware::default()).unwrap_or_default();
    let value = |key: &KeyInfo| defaults.get(&key.name).map(|value| value.to_string().replace('"', ""));
    let costs = hardware_keys();
    let _ = write!(text, "### `[part.hardware]`\n\n{}\n\n{}", costs.about, list(costs, &[], value));
    text.trim_end().to_owned() + "\n"
}

/// Returns the items for the keys of a table. Only types other than `number` are named. Keys that are the same in one
/// of the tables `before` refer to it.
fn list(keys: &Keys, before: &[Keys], default: impl Fn(&KeyInfo) -> Option<String>) -> String {
    let mut text = String::new();
    let first = |key: &KeyInfo| before.iter().find(|kind| kind.keys.contains(key)).map(|kind| &*kind.name);
    for key in keys.keys.iter().filter(|&key| first(key).is_none()) {
        let value = (key.value != "number").then(|| key.value.clone());
        let presence = default(key).or_else(|| (!key.required).then(|| "optional".to_owned()));
        let notes: Vec<String> = value.into_iter().chain(presence).collect();
        let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
        let _ = writeln!(text, "- `{}`{notes}: {}", key.name, key.about);
    }
    for kind in before {
        let repeated = keys.keys.iter().filter(|&key| first(key) == Some(&*kind.name));
        let names: Vec<String> = repeated.map(|key| format!("`{}`", key.name)).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "- {}: as in `{}`", names.join(", "), kind.name);
        }
    }
    text + "\n"
}

/// Returns the names that [`example`] accepts.
#[must_use]
pub fn example_kinds() -> Vec<&'static str> {
    Workload::KINDS.iter().copied().chain([PROGRAMS]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{BUILT_IN, Source, Texts, load};
    use super::*;

    fn load_text(text: String) -> super::super::Plan {
        let texts = Texts { name: "own.toml".to_owned(), text, ..Texts::default() };
        load(&Source::Texts(texts)).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_kind_has_an_example_with_all_of_its_keys() {
        for kind in example_kinds() {
            let text = example(kind).unwrap();
            let plan = load_text(text.clone());
            assert!(plan.cases() >= 2 && plan.variants.len() == 2, "{text}");
            for key in kinds().iter().filter(|keys| keys.name == kind).flat_map(|keys| &keys.keys) {
                assert!(
                    text.contains(&key.about) && text.contains(&format!("{} = ", key.name)),
                    "{}",
                    key.name
                );
            }
        }
        assert_eq!(example("paint"), None);
    }

    #[test]
    fn built_in_experiments_are_files_to_start_from() {
        for known in BUILT_IN {
            let own = load_text(standalone(known.text));
            let plan = load(&Source::BuiltIn(known)).unwrap();
            assert_eq!((own.runs.len(), own.has_published()), (plan.runs.len(), false));
        }
    }
}
