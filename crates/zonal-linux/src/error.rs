//! Why a pool could not be built, and what about a built one falls short of what was asked.
//!
//! An *error* ends the attempt and says what would be right; a *warning* leaves a working pool.
//! Neighbours: every room of building raises these; front ends print them as they are.

use std::fmt;
use std::io;
use std::path::PathBuf;

use zonal::error::ConfigError;
use zonal::machine::TopologyError;
use zonal::units::{NodeId, ZoneKind};

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// More memory was asked for than there is.
    #[error(
        "a pool of {} was asked for, {limited_by} has {} available; ask for {} or less",
        Bytes(*asked), Bytes(*available), Bytes(sensible(*available))
    )]
    TooLarge {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that could be had.
        available: u64,
        /// What sets the limit.
        limited_by: Limit,
    },
    /// Not every node with memory can be given some.
    #[error(
        "a pool of {} is too small for {nodes} nodes with memory; ask for {} or more",
        Bytes(*asked), Bytes(*needed)
    )]
    TooSmall {
        /// Bytes asked for.
        asked: u64,
        /// Least bytes that would do.
        needed: u64,
        /// Nodes that take part.
        nodes: usize,
    },
    /// A node was named that the machine does not have.
    #[error("node {node} does not exist; this machine has {existing}")]
    UnknownNode {
        /// The node named.
        node: NodeId,
        /// The nodes there are, as text.
        existing: String,
    },
    /// A node was named that has no memory.
    #[error("node {node} has no memory; memory is on {existing}")]
    NodeWithoutMemory {
        /// The node named.
        node: NodeId,
        /// The nodes with memory, as text.
        existing: String,
    },
    /// No or too many emulated nodes.
    #[error("{asked} emulated nodes were asked for; 1 to {most} are possible")]
    FakeNodes {
        /// Nodes asked for.
        asked: usize,
        /// Most nodes there can be.
        most: usize,
    },
    /// An emulated machine without any CPU: nobody could allocate.
    #[error("the emulated machine has no CPU; at least one node needs one")]
    NoCpu,
    /// The page size cannot be given by this kernel.
    #[error(
        "pages of {asked} bytes cannot be pooled here; a power of two of at least {smallest} bytes is needed"
    )]
    PageBytes {
        /// Bytes asked for.
        asked: u32,
        /// Bytes of the kernel's page.
        smallest: usize,
    },
    /// What the kernel tells about the machine could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel gave no addresses.
    #[error("the kernel refused to map {} for {purpose}: {source}", Bytes(*bytes))]
    Map {
        /// What for.
        purpose: String,
        /// Bytes asked for.
        bytes: u64,
        /// The reason.
        source: io::Error,
    },
    /// The kernel could not back the pool with memory ahead of use.
    #[error("node {node} could not be backed with memory: {source}; leave prefault off or ask for less")]
    Prefault {
        /// The node.
        node: NodeId,
        /// The reason.
        source: io::Error,
    },
    /// The progress callback asked to stop.
    #[error("building the pool was interrupted")]
    Interrupted,
    /// A background thread could not be started, or not without the signals of the program. On Linux a `SCHED_DEADLINE` thread cannot start threads: build the
    /// pool from another one.
    #[error("cannot start a background thread: {0}")]
    Thread(io::Error),
    /// The machine's description is wrong.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// What limits the memory of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Memory that is free or could be made so.
    Machine,
    /// The memory limit of the process's control group.
    ControlGroup,
    /// Memory of one node.
    Node(NodeId),
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => write!(f, "this machine"),
            Self::ControlGroup => write!(f, "the control group of this process"),
            Self::Node(node) => write!(f, "node {node}"),
        }
    }
}

/// Something about a pool that is not as asked, while the pool works.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// Memory of these nodes may lie elsewhere: the kernel does not let it be bound.
    NotBound {
        /// The nodes.
        nodes: Vec<NodeId>,
        /// The kernel's reason.
        reason: String,
    },
    /// Explicit huge pages were asked for and transparent ones are used.
    NoExplicitHugePages {
        /// The node.
        node: NodeId,
        /// The zone.
        kind: ZoneKind,
        /// Huge pages needed.
        needed: u64,
        /// Huge pages the kernel has free, where it says so.
        free: Option<u64>,
        /// The kernel's reason.
        reason: String,
    },
    /// Transparent huge pages were asked for and ordinary ones are used.
    NoTransparentHugePages {
        /// The reason.
        reason: String,
    },
    /// All pools of this process together may come to use more than there is.
    Overcommitted {
        /// Bytes of all of them, but for those of explicit huge pages.
        promised: u64,
        /// Bytes that this process can have in all, what it has already included.
        available: u64,
        /// What sets the limit.
        limited_by: Limit,
    },
    /// The topology could not be read and is taken to be one node.
    NoTopology {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBound { nodes, reason } => write!(
                f,
                "memory of {} is not bound to its node, so frames may lie elsewhere: {reason}",
                node_list(nodes.iter().copied())
            ),
            Self::NoExplicitHugePages { node, kind, needed, free, reason } => {
                write!(f, "node {node} {kind}: {needed} huge pages of 2 MiB asked for")?;
                if let Some(free) = free {
                    write!(f, ", {free} free")?;
                }
                write!(f, " ({reason}); using transparent huge pages. The reserve is vm.nr_hugepages")
            }
            Self::NoTransparentHugePages { reason } => {
                write!(f, "no transparent huge pages, ordinary pages are used: {reason}")
            }
            Self::Overcommitted { promised, available, limited_by } => write!(
                f,
                "the pools of this process may come to use {} together, but {limited_by} has {} for them: memory can \
                 run out when frames are used; make pools smaller, or prefault them to find out at once",
                Bytes(*promised),
                Bytes(*available)
            ),
            Self::NoTopology { reason } => {
                write!(f, "the topology cannot be read, the machine is taken as one node: {reason}")
            }
        }
    }
}

/// Collects the warnings of a pool; like ones of many nodes become one.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Vec<Warning>);

impl Warnings {
    pub(crate) fn add(&mut self, warning: Warning) {
        if let Warning::NotBound { nodes: more, reason: why } = &warning {
            for known in &mut self.0 {
                if let Warning::NotBound { nodes, reason } = known
                    && reason == why
                {
                    nodes.extend(more);
                    nodes.dedup();
                    return;
                }
            }
        }
        if !self.0.contains(&warning) {
            self.0.push(warning);
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Warning> {
        self.0
    }
}

/// A length for people: binary units, two decimals at most.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        let at = (self.0.ilog2() as usize / 10 - 1).min(UNITS.len() - 1);
        let hundredths = (u128::from(self.0) * 100) >> (10 * (at + 1));
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match part {
            0 => write!(f, "{whole} {}", UNITS[at]),
            _ if part % 10 == 0 => write!(f, "{whole}.{} {}", part / 10, UNITS[at]),
            _ => write!(f, "{whole}.{part:02} {}", UNITS[at]),
        }
    }
}

/// What to ask for when `available` is the limit: seven eighths, in whole MiB, so that the rest of
/// the process and metadata fit too.
const fn sensible(available: u64) -> u64 {
    let share = available / 8 * 7;
    share - share % (1 << 20)
}

/// Nodes for people: `node 0`, `nodes 0-3,8`; ids ascend.
pub(crate) fn node_list(nodes: impl Iterator<Item = NodeId>) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for id in nodes.map(NodeId::get) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == id => *last = id,
            _ => ranges.push((id, id)),
        }
    }
    let texts = ranges.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    let list = texts.collect::<Vec<_>>().join(",");
    match ranges.as_slice() {
        [] => "no node".into(),
        [(first, last)] if first == last => format!("node {list}"),
        _ => format!("nodes {list}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u16]) -> Vec<NodeId> {
        ids.iter().map(|&id| NodeId::new(id).unwrap()).collect()
    }

    #[test]
    fn lengths_read_well() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(1000), "1000 bytes");
        assert_eq!(text(1 << 30), "1 GiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
        assert_eq!(text((1 << 40) + (1 << 35)), "1.03 TiB");
        assert_eq!(text(u64::MAX), "16383.99 PiB");
    }

    #[test]
    fn node_lists_read_well() {
        let text = |ids: &[u16]| node_list(nodes(ids).into_iter());
        assert_eq!(text(&[]), "no node");
        assert_eq!(text(&[3]), "node 3");
        assert_eq!(text(&[0, 1, 2, 5, 8, 9]), "nodes 0-2,5,8-9");
    }

    #[test]
    fn too_large_says_what_would_be_right() {
        let error = PoolError::TooLarge { asked: 64 << 30, available: 16 << 30, limited_by: Limit::Machine };
        let text = error.to_string();
        assert!(
            text.contains("64 GiB") && text.contains("16 GiB available") && text.contains("14 GiB or less")
        );
    }

    #[test]
    fn like_warnings_become_one() {
        let mut warnings = Warnings::default();
        for id in [0, 1, 2] {
            warnings.add(Warning::NotBound { nodes: nodes(&[id]), reason: "no".into() });
        }
        let warnings = warnings.into_vec();
        assert_eq!(warnings, [Warning::NotBound { nodes: nodes(&[0, 1, 2]), reason: "no".into() }]);
        assert!(warnings[0].to_string().contains("nodes 0-2"));
    }
}
