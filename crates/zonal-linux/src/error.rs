//! The errors and the warnings of building a pool.
//!
//! An *error* ends the build, and its message contains an allowed value. A *warning* describes a difference between a
//! working pool and the request. All steps of building a pool return these types, and the command-line programs print
//! the messages unchanged. Related file: `error/shared.rs` has the errors of pools that processes share.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use zonal::error::ConfigError;
use zonal::machine::TopologyError;
use zonal::units::{NodeId, ZoneKind};
use zonal_model::Bytes;

pub use self::shared::SharedError;

mod shared;

/// Why a pool could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The requested size exceeds the available memory.
    #[error(
        "a pool of {} was requested, but {limited_by} has {} available; request {} or less",
        Bytes(*asked), Bytes(*available), Bytes(suggested_size(*available))
    )]
    TooLarge {
        /// Bytes requested.
        asked: u64,
        /// Bytes available.
        available: u64,
        /// What sets the limit.
        limited_by: Limit,
    },
    /// The requested size is too small for memory on every node.
    #[error(
        "a pool of {} is too small for {nodes} node{} with memory; request {} or more",
        Bytes(*asked), if *nodes == 1 { "" } else { "s" }, Bytes(*needed)
    )]
    TooSmall {
        /// Bytes requested.
        asked: u64,
        /// Smallest size in bytes that is enough.
        needed: u64,
        /// Number of nodes with memory.
        nodes: usize,
    },
    /// A list of nodes that names none.
    #[error("the list of the pool's nodes is empty; name at least one node, or leave the list out for all")]
    NoNode,
    /// A node that the machine does not have.
    #[error("node {node} does not exist; this machine has {existing}")]
    UnknownNode {
        /// Node requested.
        node: NodeId,
        /// Existing nodes, as text.
        existing: String,
    },
    /// A node that has no memory.
    #[error("node {node} has no memory; memory is on {existing}")]
    NodeWithoutMemory {
        /// Node requested.
        node: NodeId,
        /// Nodes with memory, as text.
        existing: String,
    },
    /// No emulated nodes, or too many.
    #[error("{asked} emulated nodes were requested; allowed values are 1 to {most}")]
    FakeNodes {
        /// Number of nodes requested.
        asked: usize,
        /// Largest number of nodes.
        most: usize,
    },
    /// An emulated machine without a CPU, on which no thread could allocate.
    #[error("the emulated machine has no CPU; at least one node needs one")]
    NoCpu,
    /// A page size that this kernel does not support.
    #[error(
        "the page size is {asked} bytes; on this kernel it must be a power of two of at least {smallest}"
    )]
    PageBytes {
        /// Bytes requested.
        asked: u32,
        /// Size of the kernel's smallest page in bytes.
        smallest: usize,
    },
    /// A file of the kernel that describes the machine could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The kernel refused a mapping.
    #[error("the kernel refused to map {} for {purpose}: {source}", Bytes(*bytes))]
    Map {
        /// Purpose of the mapping.
        purpose: String,
        /// Bytes requested.
        bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel could not provide memory for prefaulting.
    #[error("node {node} could not be backed with memory: {source}; leave prefault off or request less")]
    Prefault {
        /// Node of the memory.
        node: NodeId,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The largest size of the pool is less than its size.
    #[error("the pool's largest size of {} is less than its size of {}", Bytes(*max), Bytes(*asked))]
    MaxSize {
        /// Bytes requested.
        asked: u64,
        /// Largest size in bytes.
        max: u64,
    },
    /// A largest size and explicit huge pages, which are populated for the whole pool when it is built.
    #[error(
        "a pool that can grow cannot have explicit huge pages, because these are reserved at once; \
         use transparent ones, or leave the largest size out"
    )]
    ReservedHugePages,
    /// Something that was required of the pool cannot be had.
    #[error(
        "the pool lacks what was required of it: {0}. A pool that does not require it is built with this warning"
    )]
    Required(Warning),
    /// The progress callback requested a stop.
    #[error("the progress callback stopped the build")]
    Interrupted,
    /// A background thread could not be started, or the program's signals could not be blocked in it.
    ///
    /// On Linux a thread with the policy `SCHED_DEADLINE` cannot start threads. Build the pool on another thread.
    #[error("cannot start a background thread: {0}")]
    Thread(io::Error),
    /// An invalid description of the machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// An invalid setting.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A pool that processes share could not be made or joined.
    #[error("{}{source}", source.place(path.as_deref()))]
    Shared {
        /// Path of the pool's file or socket, if it has one.
        path: Option<PathBuf>,
        /// The reason.
        source: SharedError,
    },
}

impl From<SharedError> for PoolError {
    fn from(source: SharedError) -> Self {
        Self::Shared { path: None, source }
    }
}

impl PoolError {
    /// Adds where the pool is that could not be made or joined.
    pub(crate) fn at(self, path: &Path) -> Self {
        match self {
            Self::Shared { source, .. } => Self::Shared { path: Some(path.into()), source },
            other => other,
        }
    }
}

/// What limits the memory of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Memory of the machine that is free or that the kernel can reclaim.
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

/// A difference between a working pool and what was requested.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Warning {
    /// The kernel does not allow binding memory to these nodes, so their frames may be on other nodes.
    NotBound {
        /// The nodes.
        nodes: Vec<NodeId>,
        /// The kernel's reason.
        reason: String,
    },
    /// Explicit huge pages of a size were requested, but other pages are used.
    NoExplicitHugePages {
        /// The node.
        node: NodeId,
        /// The zone.
        kind: ZoneKind,
        /// Size of the huge pages in bytes: 2 MiB or 1 GiB.
        bytes: u64,
        /// Huge pages needed.
        needed: u64,
        /// Free huge pages, where the kernel reports them.
        free: Option<u64>,
        /// The kernel's reason.
        reason: String,
    },
    /// Transparent huge pages were requested, but ordinary pages are used.
    NoTransparentHugePages {
        /// The reason.
        reason: String,
    },
    /// The pools of this process can together use more memory than is available.
    Overcommitted {
        /// Bytes of all pools, not counting explicit huge pages.
        committed: u64,
        /// Bytes that the pools can use in total, including memory that they already use.
        available: u64,
        /// What sets the limit.
        limited_by: Limit,
    },
    /// The topology could not be read, so the machine is treated as one node.
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
                "memory of {} is not bound to its node, so frames may be on other nodes: {reason}; allow the \
                 process to call mbind (in a container, add the capability SYS_NICE)",
                node_list(nodes.iter().copied())
            ),
            Self::NoExplicitHugePages { node, kind, bytes, needed, free, reason } => {
                write!(f, "node {node} {kind}: {needed} huge pages of {} requested", Bytes(*bytes))?;
                if let Some(free) = free {
                    write!(f, ", {free} free")?;
                }
                write!(f, " ({reason}); ")?;
                if *bytes < 1 << 30 {
                    write!(f, "transparent huge pages are used instead; raise vm.nr_hugepages")?;
                } else {
                    write!(f, "smaller ones are tried instead; raise ")?;
                    write!(f, "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages")?;
                }
                write!(f, " to {needed} or more")
            }
            Self::NoTransparentHugePages { reason } => {
                write!(f, "transparent huge pages are not available, so ordinary pages are used: {reason}")
            }
            Self::Overcommitted { committed, available, limited_by } => write!(
                f,
                "the pools of this process may use {} in total, but {limited_by} has {} for them, so memory can run \
                 out when frames are first used; make pools smaller, or prefault them to find out at once",
                Bytes(*committed),
                Bytes(*available)
            ),
            Self::NoTopology { reason } => {
                write!(f, "the topology cannot be read, so the machine is treated as one node: {reason}")
            }
        }
    }
}

/// The warnings of a pool. Equal warnings about several nodes are merged into one.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Vec<Warning>);

impl Warning {
    /// Adds `more` huge pages to those that were needed.
    pub(crate) fn with_needed(mut self, more: u64) -> Self {
        if let Self::NoExplicitHugePages { needed, .. } = &mut self {
            *needed += more;
        }
        self
    }
}

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

    pub(crate) fn as_slice(&self) -> &[Warning] {
        &self.0
    }

    pub(crate) fn into_vec(self) -> Vec<Warning> {
        self.0
    }
}

/// Returns the size to suggest if `available` bytes are available: seven eighths of them, rounded down to a whole MiB.
/// The rest is for metadata and for the other memory of the process.
const fn suggested_size(available: u64) -> u64 {
    let share = available / 8 * 7;
    share - share % (1 << 20)
}

/// Formats nodes for output, such as `node 0` or `nodes 0-3,8`. The ids must be in ascending order.
pub(crate) fn node_list(nodes: impl Iterator<Item = NodeId>) -> String {
    let nodes: Vec<u16> = nodes.map(NodeId::get).collect();
    match nodes.as_slice() {
        [] => "no node".into(),
        [node] => format!("node {node}"),
        nodes => format!("nodes {}", zonal_model::ids::format(nodes.iter().copied())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ids: &[u16]) -> Vec<NodeId> {
        ids.iter().map(|&id| NodeId::new(id).unwrap()).collect()
    }

    #[test]
    fn node_lists_combine_ranges() {
        let text = |ids: &[u16]| node_list(nodes(ids).into_iter());
        assert_eq!(text(&[]), "no node");
        assert_eq!(text(&[3]), "node 3");
        assert_eq!(text(&[0, 1, 2, 5, 8, 9]), "nodes 0-2,5,8-9");
    }

    #[test]
    fn too_large_error_names_a_size_that_fits() {
        let error = PoolError::TooLarge { asked: 64 << 30, available: 16 << 30, limited_by: Limit::Machine };
        let text = error.to_string();
        assert!(
            text.contains("64 GiB") && text.contains("16 GiB available") && text.contains("14 GiB or less")
        );
    }

    #[test]
    fn errors_of_requirements_say_what_to_do() {
        let text = |warning| PoolError::Required(warning).to_string();
        let not_bound = text(Warning::NotBound { nodes: nodes(&[1, 2]), reason: "not permitted".into() });
        assert!(not_bound.contains("nodes 1-2") && not_bound.contains("not permitted"), "{not_bound}");
        assert!(not_bound.contains("allow the process to call mbind") && not_bound.contains("SYS_NICE"));
        assert!(not_bound.contains("does not require it"), "{not_bound}");
    }

    #[test]
    fn equal_warnings_of_several_nodes_are_merged() {
        let mut warnings = Warnings::default();
        for id in [0, 1, 2] {
            warnings.add(Warning::NotBound { nodes: nodes(&[id]), reason: "no".into() });
        }
        let warnings = warnings.into_vec();
        assert_eq!(warnings, [Warning::NotBound { nodes: nodes(&[0, 1, 2]), reason: "no".into() }]);
        assert!(warnings[0].to_string().contains("nodes 0-2"));
    }
}
