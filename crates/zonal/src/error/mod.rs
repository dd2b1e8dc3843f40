//! Errors, which name the frame, node or setting at fault.
//!
//! Neighbours: `machine.rs` has the errors in a machine's description, `error/shortage.rs` the details of an
//! out-of-memory error.

mod shortage;

use core::fmt;

use crate::machine::{FrameRange, TopologyError};
use crate::rules::stat_threshold::MAX_STAT_THRESHOLD;
use crate::units::{CpuId, MAX_ORDER_LIMIT, NodeId, Order, PageCount, Pfn, ZoneKind};
pub use shortage::{Shortage, Verdict, VerdictCounts, ZoneShortage};

/// Why an allocation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocError {
    /// No eligible zone could serve the request.
    OutOfMemory(Shortage),
    /// An order larger than the allocator's largest.
    OrderTooLarge {
        /// Order requested.
        order: Order,
        /// Largest order.
        max: Order,
    },
    /// A policy none of whose nodes, within the allowed nodes, has memory (any more).
    NoNodeInPolicy,
    /// A request for zeroed frames on a platform without access to frame contents.
    NoContents,
    /// A bulk request for blocks of this order instead of single frames.
    NotSingle(Order),
    /// A request from a handler that interrupted its own thread inside the allocator, and that could not be served
    /// without waiting for that thread: see [`Platform::is_reentered`](crate::Platform::is_reentered).
    Reentered,
}

/// Why a free was refused. The accounting remains correct after a refused free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// A frame that belongs to no zone, or to a hole of one.
    NotManaged(Pfn),
    /// A frame that is in no allocated block: it was freed before, or never allocated.
    NotAllocated(Pfn),
    /// A frame inside an allocated block, which must be freed by its first frame.
    InsideBlock {
        /// The frame.
        frame: Pfn,
        /// First frame of the block.
        block: Pfn,
        /// Order of the block.
        order: Order,
    },
    /// A block that was allocated with another order.
    WrongOrder {
        /// First frame of the block.
        frame: Pfn,
        /// Order that it was allocated with.
        allocated: Order,
        /// Order passed to the free.
        given: Order,
    },
    /// A frame that is in quarantine, or whose block is in quarantine or retired because its poison was
    /// overwritten: it was freed before.
    Quarantined(Pfn),
    /// A free from a handler that interrupted its own thread inside the allocator, and that could not complete
    /// without waiting for that thread. The frame is still allocated and must be freed later.
    Reentered(Pfn),
}

/// Why a bulk free stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeBulkError {
    /// Number of frames freed before the one that was refused: the index of that frame in the list.
    pub freed: usize,
    /// Why that frame was refused.
    pub error: FreeError,
}

impl fmt::Display for FreeBulkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} frames were freed: {}", self.freed, self.error)
    }
}

impl core::error::Error for FreeBulkError {}

/// Why a configuration, or a machine with that configuration, cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigError {
    /// An error in the machine's description.
    Topology(TopologyError),
    /// A frame size that is not a power of two of at least 4096 bytes.
    PageBytes(u32),
    /// A largest order outside 10..=18.
    MaxOrder(Order),
    /// A metadata buffer that was not supplied, or was too small or misaligned.
    Buffer {
        /// Bytes needed.
        needed: usize,
        /// Bytes supplied, after alignment to 64.
        supplied: usize,
    },
    /// Poisoning, or zeroing of every allocation, on a platform without access to frame contents.
    NoContents,
    /// A machine with this many CPUs on a platform that cannot interrupt other CPUs
    /// ([`OneCpu`](crate::platform::cpu_local::OneCpu)).
    UnreachableCpus(usize),
    /// A quarantine of more than 2^20 frames per zone.
    Quarantine(PageCount),
    /// A percentage outside 0..=100.
    Percent(u8),
    /// A mode of node reclaim outside 0..=7.
    NodeReclaimMode(u32),
    /// A fixed counter threshold outside 1..=125.
    CounterThreshold(u8),
    /// Pagesets with too few slots for `PagesetTuning::DepthPublished`, because the allocator was created with
    /// another rule.
    PagesetSlots {
        /// Node of the zone.
        node: NodeId,
        /// Kind of the zone.
        kind: ZoneKind,
        /// Slots for single frames in the zone's smallest pageset.
        slots: PageCount,
        /// Slots needed.
        needed: PageCount,
    },
    /// A minimum of free frames that exceeds the managed frames of all zones.
    MinFree {
        /// Minimum requested.
        min_free: PageCount,
        /// Frames managed.
        managed: PageCount,
    },
}

/// A zone and the frames that it spans, as shown in errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpan {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// Frames that the zone spans.
    pub span: FrameRange,
}

/// Why a change of CPUs or memory at run time was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnlineError {
    /// A CPU that the machine does not have.
    UnknownCpu(CpuId),
    /// A CPU that is already in the requested state.
    CpuUnchanged(CpuId),
    /// The last CPU online, which cannot go offline.
    LastCpu(CpuId),
    /// An empty range.
    EmptyRange(Pfn),
    /// A range that does not lie within the span of one zone.
    NotInOneZone {
        /// The range.
        range: FrameRange,
        /// Last zone that begins at or before the first frame of the range, if there is one.
        below: Option<ZoneSpan>,
        /// First zone that begins after the first frame of the range, if there is one.
        above: Option<ZoneSpan>,
    },
    /// A frame of the range that was never described as memory: it lies in a hole of the zone.
    NeverDescribed {
        /// First such frame.
        frame: Pfn,
        /// The range.
        range: FrameRange,
        /// The zone.
        zone: ZoneSpan,
    },
    /// A frame of the range that is already online.
    AlreadyOnline(Pfn),
    /// A frame of the range that is not online.
    NotOnline(Pfn),
    /// Frames of the range that are still in use.
    InUse {
        /// First frame of the range.
        start: Pfn,
        /// Number of frames in use.
        in_use: PageCount,
    },
}

/// Why a policy was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyError {
    /// A policy none of whose nodes has memory.
    NoMemory,
    /// A node that the machine does not have.
    UnknownNode(NodeId),
    /// Weights that are all zero.
    NoWeight,
}

impl From<TopologyError> for ConfigError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(shortage) => write!(f, "out of memory: {shortage}"),
            Self::OrderTooLarge { order, max } => {
                write!(f, "order {order} is too large; the largest is {max}")
            }
            Self::NoNodeInPolicy => {
                write!(
                    f,
                    "none of the nodes that the request's policy and allowed nodes have in common has memory online"
                )
            }
            Self::NotSingle(order) => {
                write!(
                    f,
                    "a bulk request is for blocks of order {order}; only single frames (order 0) are allocated in bulk"
                )
            }
            Self::Reentered => write!(
                f,
                "the request comes from a signal or interrupt handler that interrupted its own thread inside the \
                 allocator, and would have to wait for that thread; request outside the handler"
            ),
            Self::NoContents => {
                write!(f, "zeroed frames were requested, but the platform has no access to frame contents")
            }
        }
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotManaged(frame) => write!(
                f,
                "frame {frame} is not managed by the allocator: it is in no zone, in a hole or offline"
            ),
            Self::NotAllocated(frame) => {
                write!(f, "frame {frame} is not allocated (freed before, or never allocated)")
            }
            Self::InsideBlock { frame, block, order } => {
                write!(
                    f,
                    "frame {frame} is inside the block of order {order} at frame {block}; free that block"
                )
            }
            Self::WrongOrder { frame, allocated, given } => {
                write!(f, "frame {frame} was freed with order {given}, but allocated with order {allocated}")
            }
            Self::Quarantined(frame) => {
                write!(f, "frame {frame} was freed before (it is in quarantine or retired)")
            }
            Self::Reentered(frame) => write!(
                f,
                "frame {frame} is freed by a signal or interrupt handler that interrupted its own thread inside the \
                 allocator, and would have to wait for that thread; it is still allocated: free it later"
            ),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::PageBytes(bytes) => {
                write!(f, "the page size is {bytes} bytes; it must be a power of two of at least 4096")
            }
            Self::MaxOrder(order) => {
                write!(f, "the largest order is {order}; allowed values are 10 to {MAX_ORDER_LIMIT}")
            }
            Self::Buffer { needed, supplied } => {
                write!(f, "a metadata buffer has {supplied} bytes; {needed} are needed")
            }
            Self::NoContents => {
                write!(
                    f,
                    "poisoning or zeroing is configured, but the platform has no access to frame contents"
                )
            }
            Self::UnreachableCpus(cpus) => {
                write!(
                    f,
                    "the machine has {cpus} CPUs, but the platform cannot reach other CPUs (OneCpu); use Pinned \
                     with a Quiesce that interrupts them, use TryLock, or describe one CPU"
                )
            }
            Self::Quarantine(frames) => {
                write!(f, "the quarantine is {frames} frames per zone; at most 1048576 are allowed")
            }
            Self::Percent(percent) => {
                write!(f, "the minimum unmapped share is {percent} %; allowed values are 0 to 100")
            }
            Self::NodeReclaimMode(mode) => {
                write!(f, "zone_reclaim_mode is {mode}; allowed values are 0 to 7")
            }
            Self::CounterThreshold(threshold) => {
                write!(
                    f,
                    "the counter threshold is {threshold}; allowed values are 1 to {MAX_STAT_THRESHOLD}"
                )
            }
            Self::PagesetSlots { node, kind, slots, needed } => write!(
                f,
                "the pagesets of zone {kind} of node {node} have {slots} slots, but the depth-published rule needs \
                 {needed}; create the allocator with this rule"
            ),
            Self::MinFree { min_free, managed } => {
                write!(
                    f,
                    "min_free is {min_free} frames; allowed values are up to the {managed} managed frames"
                )
            }
        }
    }
}

impl fmt::Display for ZoneSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} of node {} ({})", self.kind, self.node, self.span)
    }
}

impl fmt::Display for OnlineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCpu(cpu) => write!(f, "the machine has no CPU {cpu}"),
            Self::CpuUnchanged(cpu) => write!(f, "CPU {cpu} is already in the requested state"),
            Self::LastCpu(cpu) => {
                write!(f, "CPU {cpu} is the last one online; at least one must stay online")
            }
            Self::EmptyRange(start) => {
                write!(f, "the range at frame {start} is empty; it must have at least one frame")
            }
            Self::NotInOneZone { range, below, above } => {
                // The range begins in `below` and ends outside, or begins in no zone.
                if let Some(zone) = below.filter(|zone| range.start < zone.span.end()) {
                    return write!(f, "the range ({range}) crosses the end of {zone}");
                }
                write!(f, "the range ({range}) begins in no zone; ")?;
                match (below, above) {
                    (Some(below), Some(above)) => write!(f, "the nearest are {below} and {above}"),
                    (Some(zone), None) | (None, Some(zone)) => write!(f, "the nearest is {zone}"),
                    (None, None) => write!(f, "there are no zones"),
                }
            }
            Self::NeverDescribed { frame, range, zone } => write!(
                f,
                "frame {frame} of the range ({range}) is in a hole of {zone}; only memory of the machine's \
                 description can come online (Machine::with_hotplug)"
            ),
            Self::AlreadyOnline(frame) => write!(f, "frame {frame} is already online"),
            Self::NotOnline(frame) => write!(f, "frame {frame} is not online"),
            Self::InUse { start, in_use } => {
                write!(f, "the range at frame {start} has {in_use} frames in use; free them first")
            }
        }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => write!(f, "none of the policy's nodes has memory"),
            Self::UnknownNode(node) => write!(f, "the machine has no node {node}"),
            Self::NoWeight => write!(f, "all weights are 0; at least one node needs a weight"),
        }
    }
}

impl core::error::Error for AllocError {}
impl core::error::Error for FreeError {}
impl core::error::Error for ConfigError {}
impl core::error::Error for OnlineError {}
impl core::error::Error for PolicyError {}
