//! Parses the values of arguments, such as sizes, times, node lists and policies.
//!
//! Each parser returns a checked value, or a one-line error that names the error and the allowed values. Related
//! files: `run.rs` checks the values against a machine; `values/rules.rs` parses the names of rules.

pub(crate) mod rules;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use zonal::settings::Setting;
use zonal::units::{MAX_NODES, NodeId};
use zonal_machine::ids;
use zonal_machine::output::Replace;

/// Longest duration of a run: one year.
const SECONDS_MAX: f64 = 31_536_000.0;

/// Size units and their powers of two.
const SIZE_UNITS: [(&str, u32); 14] = [
    ("", 0),
    ("b", 0),
    ("k", 10),
    ("ki", 10),
    ("kib", 10),
    ("m", 20),
    ("mi", 20),
    ("mib", 20),
    ("g", 30),
    ("gi", 30),
    ("gib", 30),
    ("t", 40),
    ("ti", 40),
    ("tib", 40),
];

/// Whether files that zonal did not write may be replaced.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ForceArg {
    /// Replace existing files, even if zonal did not write them
    #[arg(long)]
    force: bool,
}

impl ForceArg {
    pub(crate) const fn replace(&self) -> Replace {
        if self.force { Replace::Any } else { Replace::Own }
    }
}

/// A size in bytes, greater than zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = (&text[..digits], text[digits..].trim().to_lowercase());
        let unknown =
            || format!("`{text}` is not a size; write a whole number and a unit, as in 64MiB, 1GiB or 2M");
        if number.is_empty() {
            return Err(unknown());
        }
        if let Some(letter @ ("k" | "m" | "g" | "t")) = unit.strip_suffix('b') {
            let letter = letter.to_uppercase();
            let right = format!("{number}{letter}iB or {number}{letter}");
            return Err(format!("`{text}` is not a size: sizes are binary; write {right}"));
        }
        let (_, shift) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(unknown)?;
        let too_large =
            || format!("`{text}` is more memory than any machine has; sizes are below 16777216TiB");
        let number: u64 = number.parse().map_err(|_| too_large())?;
        let bytes = number.checked_mul(1 << shift).ok_or_else(too_large)?;
        if bytes == 0 {
            return Err("a pool of 0 bytes is empty; use 64MiB or more".into());
        }
        Ok(Self(bytes))
    }
}

/// Parses the duration of a run: greater than zero, at most a year.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write seconds above 0, as in 5 or 0.5");
    let seconds: f64 = text.trim().parse().map_err(|_| wrong())?;
    if !(seconds > 0.0 && seconds.is_finite()) {
        return Err(wrong());
    }
    if seconds > SECONDS_MAX {
        return Err(format!("{text} seconds are more than a year, the longest run"));
    }
    Ok(Duration::from_secs_f64(seconds).max(Duration::from_nanos(1)))
}

/// A percentage, 0 to 100.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Percent(pub(crate) u8);

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let percent = text.trim().parse().ok().filter(|percent| *percent <= 100);
        percent.map(Self).ok_or_else(|| format!("`{text}` is not a percentage from 0 to 100"))
    }
}

/// A list of nodes such as `0,2-3`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Nodes(pub(crate) Vec<NodeId>);

impl FromStr for Nodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut nodes = Vec::new();
        for part in ids::parts(text) {
            let (first, last) = part.map_err(not_a_node)?;
            if first > last {
                return Err(format!("`{first}-{last}` is a descending range; write {last}-{first}"));
            }
            for id in first..=last {
                let node = u16::try_from(id).ok().and_then(NodeId::new);
                nodes.push(node.ok_or_else(|| not_a_node(&id.to_string()))?);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Self(nodes))
    }
}

/// Formats as `node 3` or `nodes 0,2-3`.
impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.len() == 1 { "node " } else { "nodes " })?;
        f.write_str(&ids::format(self.0.iter().map(|node| node.get())))
    }
}

/// Words for values of `zone_reclaim_mode`.
const MODES: [(&str, &str); 2] = [("on", "1"), ("off", "0")];

/// Parses a node reclaim mode: `on`, `off`, or the number that Linux uses for the mode.
pub(crate) fn node_reclaim_mode(text: &str) -> Result<String, String> {
    let word = MODES.iter().find(|(word, _)| *word == text.trim());
    let value = Setting::ZoneReclaimMode.parse(word.map_or(text, |(_, number)| number));
    value.map(|value| value.to_string()).map_err(|error| format!("{error}, on or off"))
}

/// Reads one node.
pub(crate) fn one_node(text: &str) -> Result<NodeId, String> {
    let id = text.trim().parse().ok().and_then(NodeId::new);
    id.ok_or_else(|| not_a_node(text))
}

fn not_a_node(text: &str) -> String {
    format!("`{text}` is not a node; nodes are numbers from 0 to {}", MAX_NODES - 1)
}

/// The placement policy of requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PolicyChoice {
    Local,
    Preferred(NodeId),
    /// Nodes in the order in which they are preferred.
    PreferredMany(Vec<NodeId>),
    Bind(Nodes),
    Interleave(Nodes),
    Weighted(Vec<(NodeId, u8)>),
}

impl PolicyChoice {
    /// Returns the nodes that the policy names.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        match self {
            Self::Local => Vec::new(),
            Self::Preferred(node) => vec![*node],
            Self::PreferredMany(nodes) => nodes.clone(),
            Self::Bind(nodes) | Self::Interleave(nodes) => nodes.0.clone(),
            Self::Weighted(weights) => weights.iter().map(|(node, _)| *node).collect(),
        }
    }
}

impl FromStr for PolicyChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        match (name, rest) {
            ("local", "") => Ok(Self::Local),
            ("preferred", one) if !one.is_empty() => one_node(one).map(Self::Preferred),
            ("preferred-many", list) if !list.is_empty() => {
                list.split(',').map(one_node).collect::<Result<_, _>>().map(Self::PreferredMany)
            }
            ("bind", list) if !list.is_empty() => list.parse().map(Self::Bind),
            ("interleave", list) if !list.is_empty() => list.parse().map(Self::Interleave),
            ("weighted", list) if !list.is_empty() => weights(list).map(Self::Weighted),
            _ => Err(format!(
                "`{text}` is not a policy; policies look like local, preferred:1, preferred-many:2,1, bind:0,2-3, interleave:0-3 and weighted:0=3,1=1"
            )),
        }
    }
}

/// Formats in the form that the option accepts.
impl fmt::Display for PolicyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |nodes: &[NodeId]| nodes.iter().map(NodeId::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Local => f.write_str("local"),
            Self::Preferred(node) => write!(f, "preferred:{node}"),
            Self::PreferredMany(nodes) => write!(f, "preferred-many:{}", joined(nodes)),
            Self::Bind(nodes) => write!(f, "bind:{}", joined(&nodes.0)),
            Self::Interleave(nodes) => write!(f, "interleave:{}", joined(&nodes.0)),
            Self::Weighted(pairs) => {
                let pairs: Vec<String> =
                    pairs.iter().map(|(node, weight)| format!("{node}={weight}")).collect();
                write!(f, "weighted:{}", pairs.join(","))
            }
        }
    }
}

fn weights(list: &str) -> Result<Vec<(NodeId, u8)>, String> {
    let mut weights: Vec<(NodeId, u8)> = Vec::new();
    for part in list.split(',') {
        let (id, weight) =
            part.split_once('=').ok_or_else(|| format!("`{part}` is not NODE=WEIGHT, as in 0=3"))?;
        let id = one_node(id)?;
        let weight = weight.trim().parse();
        let weight = weight.map_err(|_| format!("`{part}`: a weight is a number from 0 to {}", u8::MAX))?;
        if weights.iter().any(|(other, _)| *other == id) {
            return Err(format!("node {id} has two weights; it must have one"));
        }
        weights.push((id, weight));
    }
    if weights.iter().all(|(_, weight)| *weight == 0) {
        return Err("all weights are 0; at least one must be larger".into());
    }
    Ok(weights)
}

/// Returns a parser of a whole number in a range.
pub(crate) fn whole(
    range: std::ops::RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.trim().parse().ok().filter(|number| range.contains(number));
        let (first, last) = (range.start(), range.end());
        number.ok_or_else(|| format!("`{text}` is not a whole number from {first} to {last}"))
    }
}

/// Parses a seed: every number of 64 bits.
pub(crate) fn seed(text: &str) -> Result<u64, String> {
    whole(0..=u64::MAX)(text)
}

/// Parses a number of threads, at least one.
pub(crate) fn threads(text: &str) -> Result<std::num::NonZeroUsize, String> {
    let wrong = || format!("`{text}` is not a number of threads; allowed are 1 to {THREADS_MAX}");
    let threads: usize = text.trim().parse().map_err(|_| wrong())?;
    std::num::NonZeroUsize::new(threads).filter(|threads| threads.get() <= THREADS_MAX).ok_or_else(wrong)
}

/// Maximum number of threads. More threads would not improve the result on any existing machine.
const THREADS_MAX: usize = 8192;

/// Parses a number of processes that share a pool beside the one that makes it.
pub(crate) fn processes(text: &str) -> Result<u8, String> {
    let count = text.trim().parse().ok().filter(|count| (1..=PROCESSES_MAX).contains(count));
    count.ok_or_else(|| format!("`{text}` is not a number of processes; allowed are 1 to {PROCESSES_MAX}"))
}

/// Maximum number of processes that a pool has room for, without the one that makes it.
const PROCESSES_MAX: u8 = 63;

/// Parses a number of emulated nodes.
pub(crate) fn fake_nodes(text: &str) -> Result<usize, String> {
    let count = text.trim().parse().ok().filter(|count| (1..=MAX_NODES).contains(count));
    count.ok_or_else(|| format!("`{text}` is not a number of emulated nodes; allowed are 1 to {MAX_NODES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(node: u16) -> NodeId {
        NodeId::new(node).unwrap()
    }

    fn ids(nodes: &[u16]) -> Nodes {
        Nodes(nodes.iter().map(|&node| id(node)).collect())
    }

    #[test]
    fn percentages() {
        assert_eq!(["0", "100"].map(str::parse), [Ok(Percent(0)), Ok(Percent(100))]);
        for text in ["", "-1", "101", "256", "1%"] {
            assert!(text.parse::<Percent>().unwrap_err().ends_with("from 0 to 100"), "{text}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("1GiB", 1 << 30),
            ("2M", 2 << 20),
            (" 3 g ", 3 << 30),
            ("1TiB", 1 << 40),
            ("512kib", 512 << 10),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in [
            "",
            "GiB",
            "1.5G",
            "-1G",
            "1 GB",
            "one",
            "1G2",
            "0x10",
            "99999999999999999999",
            "17000000T",
            "0",
            "0M",
        ] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(!error.contains('\n') && error.len() < 120, "{error}");
        }
        for (text, right) in
            [("128MB", "write 128MiB or 128M"), ("1 gb", "write 1GiB or 1G"), ("4kB", "write 4KiB or 4K")]
        {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("sizes are binary") && error.ends_with(right), "{error}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("5"), Ok(Duration::from_secs(5)));
        assert_eq!(seconds("1e-300"), Ok(Duration::from_nanos(1)));
        for text in ["0", "-1", "NaN", "inf", "", "five", "1e12", "5s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn node_lists() {
        assert_eq!("0,2-3".parse(), Ok(ids(&[0, 2, 3])));
        assert_eq!("3,0-1,1".parse(), Ok(ids(&[0, 1, 3])));
        for text in ["", "a", "1,", "3-1", "1024", "-1", "1-", "0--1"] {
            assert!(text.parse::<Nodes>().is_err(), "{text}");
        }
        assert_eq!(ids(&[0, 2, 3, 4, 7]).to_string(), "nodes 0,2-4,7");
        assert_eq!(ids(&[5]).to_string(), "node 5");
    }

    #[test]
    fn policies() {
        let all = [
            ("local", PolicyChoice::Local),
            ("preferred:1", PolicyChoice::Preferred(id(1))),
            ("bind:0,2-3", PolicyChoice::Bind(ids(&[0, 2, 3]))),
            ("interleave:0-3", PolicyChoice::Interleave(ids(&[0, 1, 2, 3]))),
            ("weighted:0=3,1=1", PolicyChoice::Weighted(vec![(id(0), 3), (id(1), 1)])),
            ("preferred-many:3,1", PolicyChoice::PreferredMany(vec![id(3), id(1)])),
        ];
        for (text, policy) in all {
            assert_eq!(policy.to_string().parse(), Ok(policy.clone()), "{text}");
            assert_eq!(text.parse(), Ok(policy), "{text}");
        }
        for text in [
            "",
            "Local",
            "local:",
            "local:1",
            "preferred",
            "preferred:",
            "preferred:0,1",
            "preferred-many:",
            "preferred-many:0-1",
            "bind",
            "bind:",
            "bind:x",
            "interleave:3-1",
            "weighted:0",
            "weighted:0=256",
            "weighted:0=1,0=2",
            "weighted:0=0",
            "random",
        ] {
            // `local:` means the same as `local`.
            assert_eq!(text.parse::<PolicyChoice>().is_ok(), text == "local:", "{text}");
        }
        assert_eq!("weighted:4=1,2=0".parse::<PolicyChoice>().unwrap().nodes(), [id(4), id(2)]);
    }

    #[test]
    fn counts() {
        assert_eq!(threads("8").unwrap().get(), 8);
        for text in ["0", "-1", "8193", "many", "1.5"] {
            assert!(threads(text).is_err(), "{text}");
        }
        assert_eq!(fake_nodes("1024"), Ok(1024));
        for text in ["0", "1025", "-4", "x"] {
            assert!(fake_nodes(text).is_err(), "{text}");
        }
    }
}
