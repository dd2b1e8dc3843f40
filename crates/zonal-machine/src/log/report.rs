//! A report as a kernel printed it: the request that failed, and what memory looked like.
//!
//! A value that the log does not have is `None`; nothing is computed here. Related files: `parse.rs` reads reports, and
//! `decide.rs` explains them.

use std::fmt;

use zonal::units::NodeId;
use zonal_model::KernelVersion;

use super::figures::{BlockList, Figures, Kib};
use super::gfp::Gfp;

/// A kind of zone. Kernels for 32 bits have HighMem too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LoggedKind {
    /// Memory that the oldest devices can address.
    Dma,
    /// Memory below 4 GiB.
    Dma32,
    /// Ordinary memory.
    Normal,
    /// Memory that 32-bit kernels do not map.
    HighMem,
    /// Memory whose contents can move.
    Movable,
    /// Memory of devices.
    Device,
}

impl LoggedKind {
    /// All kinds, from the most constrained.
    pub const ALL: [Self; 6] =
        [Self::Dma, Self::Dma32, Self::Normal, Self::HighMem, Self::Movable, Self::Device];

    /// Returns the name that kernels print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::HighMem => "HighMem",
            Self::Movable => "Movable",
            Self::Device => "Device",
        }
    }
}

impl fmt::Display for LoggedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a report is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportKind {
    /// The OOM killer was invoked.
    Oom,
    /// The request failed.
    Failure,
}

/// The nodes of a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NodeList {
    /// `(null)`: no policy limits the request.
    Any,
    /// Only these nodes.
    Only(Vec<NodeId>),
}

/// The request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoggedRequest {
    /// Name of the process, of which the kernel prints at most 15 characters.
    pub process: Option<String>,
    /// Flags.
    pub gfp: Option<Gfp>,
    /// The order; -1 is a kill that a user requested by `sysrq`.
    pub order: Option<i8>,
    /// Nodes that the memory policy allows.
    pub nodemask: Option<NodeList>,
    /// Name of the cpuset.
    pub cpuset: Option<String>,
    /// Nodes that the cpuset allows.
    pub mems_allowed: Option<Vec<NodeId>>,
}

/// A zone's lines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoggedZone {
    /// The zone's node; 0 if the kernel has no nodes.
    pub node: NodeId,
    /// The zone's kind.
    pub kind: LoggedKind,
    /// The amounts in its line, in kB.
    pub figures: Figures,
    /// `lowmem_reserve[]`, in pages.
    pub reserve: Vec<u64>,
    /// Free blocks.
    pub blocks: Option<BlockList>,
    /// When the amounts were printed, in microseconds.
    pub at: Option<u64>,
    /// When the free blocks were printed, in microseconds.
    pub blocks_at: Option<u64>,
}

/// A node's lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoggedNode {
    /// The node.
    pub id: NodeId,
    /// The amounts in its line, in kB.
    pub figures: Figures,
    /// Memory in reserved huge pages.
    pub huge_pages: Kib,
}

/// Pages in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageTotals {
    /// `pages RAM`
    pub ram: Option<u64>,
    /// `pages HighMem/MovableOnly`
    pub highmem: Option<u64>,
    /// `pages reserved`
    pub reserved: Option<u64>,
    /// `pages cma reserved`
    pub cma: Option<u64>,
}

/// Swap space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Swap {
    /// `Free swap`
    pub free: Option<Kib>,
    /// `Total swap`
    pub total: Option<Kib>,
}

/// A process in the task table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Resident pages.
    pub rss: u64,
    /// Resident pages on the node that ran out, if the kernel prints them.
    pub rss_of_node: Option<u64>,
}

/// The task table: its sums and its largest processes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TaskTable {
    /// Number of processes.
    pub count: u64,
    /// Their resident pages.
    pub rss: u64,
    /// Their resident pages on the node that ran out, if the kernel prints them.
    pub rss_of_node: Option<u64>,
    /// The largest processes, in descending order.
    pub largest: Vec<Task>,
}

/// Why the OOM killer was limited to some processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Constraint {
    /// Nothing limited the request.
    None,
    /// A cpuset limited the nodes.
    Cpuset,
    /// A memory policy limited the nodes.
    MemoryPolicy,
    /// The limit of a cgroup was reached: no failure of a zone.
    Memcg,
}

impl Constraint {
    /// All constraints.
    pub const ALL: [Self; 4] = [Self::None, Self::Cpuset, Self::MemoryPolicy, Self::Memcg];

    /// Returns the name that kernels print.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "CONSTRAINT_NONE",
            Self::Cpuset => "CONSTRAINT_CPUSET",
            Self::MemoryPolicy => "CONSTRAINT_MEMORY_POLICY",
            Self::Memcg => "CONSTRAINT_MEMCG",
        }
    }
}

/// The process that was killed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kill {
    /// The constraint, which kernels print from 5.0 on.
    pub constraint: Option<Constraint>,
    /// The cgroup whose limit was reached.
    pub oom_memcg: Option<String>,
    /// The process.
    pub task: Option<String>,
}

/// A counter of a cgroup and its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CgroupCounter {
    /// What is counted: `memory`, `memory+swap`, `kmem` or `swap`.
    pub name: &'static str,
    /// Memory in use.
    pub usage: Kib,
    /// The limit.
    pub limit: Kib,
}

/// A report of a failed request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogReport {
    /// Number of the first line, from 1.
    pub line: u64,
    /// What it is about; `None` if the log does not have the line that says so.
    pub kind: Option<ReportKind>,
    /// When the first line was printed, in microseconds since the kernel started.
    pub at: Option<u64>,
    /// Whether the line with the request is missing, because the log begins within the report.
    pub is_cut_at_top: bool,
    /// The request.
    pub request: LoggedRequest,
    /// The kernel's release, such as `6.1.0-13-amd64`.
    pub release: Option<String>,
    /// The version in the release.
    pub kernel: Option<KernelVersion>,
    /// The CPU that printed the report.
    pub cpu: Option<u32>,
    /// `Mem-Info`, in pages.
    pub totals: Option<Figures>,
    /// Nodes, as printed.
    pub nodes: Vec<LoggedNode>,
    /// Zones, as printed.
    pub zones: Vec<LoggedZone>,
    /// Pages in the machine.
    pub pages: PageTotals,
    /// Swap space.
    pub swap: Swap,
    /// The task table.
    pub tasks: Option<TaskTable>,
    /// The kill.
    pub kill: Option<Kill>,
    /// Counters of the cgroup whose limit was reached.
    pub cgroup: Vec<CgroupCounter>,
}

impl LogReport {
    /// Whether a limit of a cgroup was reached, and no zone refused anything.
    #[must_use]
    pub fn is_of_cgroup(&self) -> bool {
        let constraint = self.kill.as_ref().and_then(|kill| kill.constraint);
        constraint == Some(Constraint::Memcg)
            || self.kill.as_ref().is_some_and(|kill| kill.oom_memcg.is_some())
            || (!self.cgroup.is_empty() && self.zones.is_empty())
    }

    /// Returns what the line with the request does not show because it is cut or garbled, as in "its order is"; `None` if
    /// it is complete, or not in the log.
    #[must_use]
    pub const fn unreadable(&self) -> Option<&'static str> {
        match (&self.request.order, &self.request.gfp) {
            _ if self.kind.is_none() || self.is_cut_at_top => None,
            (None, None) => Some("its order and its flags are"),
            (None, Some(_)) => Some("its order is"),
            (Some(_), None) => Some("its flags are"),
            (Some(_), Some(_)) => None,
        }
    }

    /// Returns the constraint. Kernels before 5.0 do not print it, and the lists of nodes say as much.
    #[must_use]
    pub fn constraint(&self) -> Option<Constraint> {
        if self.is_of_cgroup() {
            return Some(Constraint::Memcg);
        }
        let printed = self.kill.as_ref().and_then(|kill| kill.constraint);
        printed.or(match self.request.nodemask {
            Some(NodeList::Only(_)) => Some(Constraint::MemoryPolicy),
            _ => None,
        })
    }

    /// Returns the size of a page, from the first list of free blocks.
    #[must_use]
    pub fn page(&self) -> Option<Kib> {
        self.zones.iter().find_map(|zone| zone.blocks.as_ref().and_then(BlockList::page))
    }
}
