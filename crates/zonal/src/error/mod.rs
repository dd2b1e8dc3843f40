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
                write!(f, "no node of the request's policy and allowed nodes has memory online")
            }
            Self::NotSingle(order) => {
                write!(f, "blocks of order {order} do not come in bulk: ask for single frames (order 0)")
            }
            Self::Reentered => write!(
                f,
                "the request comes from a handler that interrupted its own thread inside the allocator, and would \
                 wait for it: request from outside handlers, or again later"
            ),
            Self::NoContents => {
                write!(f, "zeroed frames need a platform that gives access to frame contents")
            }
        }
    }
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotManaged(frame) => write!(f, "frame {frame} belongs to no zone"),
            Self::NotAllocated(frame) => {
                write!(f, "frame {frame} starts no allocated block (freed before, or never allocated)")
            }
            Self::InsideBlock { frame, block, order } => {
                write!(
                    f,
                    "frame {frame} lies inside the block of order {order} at frame {block}; free that one"
                )
            }
            Self::WrongOrder { frame, allocated, given } => {
                write!(f, "frame {frame} was allocated with order {allocated}, not {given}")
            }
            Self::Quarantined(frame) => write!(f, "frame {frame} was freed before (in quarantine)"),
            Self::Reentered(frame) => write!(
                f,
                "frame {frame} is freed by a handler that interrupted its own thread inside the allocator, and would \
                 wait for it; it is still allocated: free it later"
            ),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topology(error) => error.fmt(f),
            Self::PageBytes(bytes) => {
                write!(f, "page size {bytes} is not a power of two of at least 4096 bytes")
            }
            Self::MaxOrder(order) => {
                write!(f, "largest order {order} is outside 10..={MAX_ORDER_LIMIT}")
            }
            Self::Buffer { needed, supplied } => {
                write!(f, "metadata buffer of {supplied} bytes supplied, {needed} needed")
            }
            Self::NoContents => {
                write!(f, "poisoning and zeroing need a platform with access to frame contents")
            }
            Self::UnreachableCpus(cpus) => {
                write!(
                    f,
                    "the machine has {cpus} CPUs, but the platform cannot reach other CPUs (OneCpu); give \
                     Pinned a Quiesce that interrupts them, use TryLock, or describe one CPU"
                )
            }
            Self::Quarantine(frames) => {
                write!(f, "quarantine of {frames} frames a zone; at most 1048576 are possible")
            }
            Self::Percent(percent) => write!(f, "{percent} % is outside 0..=100"),
            Self::NodeReclaimMode(mode) => {
                write!(f, "zone_reclaim_mode is {mode}; allowed values are 0 to 7")
            }
            Self::CounterThreshold(threshold) => {
                write!(f, "counter threshold {threshold} is outside 1..={MAX_STAT_THRESHOLD}")
            }
            Self::PagesetSlots { node, kind, slots, needed } => write!(
                f,
                "pagesets of zone {kind} of node {node} have {slots} slots; the depth-published rule needs \
                 {needed}, which an allocator has that starts with it"
            ),
            Self::MinFree { min_free, managed } => {
                write!(f, "min_free of {min_free} frames exceeds the {managed} frames managed")
            }
        }
    }
}

/// A range as errors show it: its first and last frame.
struct Frames<'a>(&'a FrameRange);

impl fmt::Display for Frames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrameRange { start, count } = *self.0;
        // Refused ranges may end beyond `u64::MAX`.
        match start.get().checked_add(count.get().saturating_sub(1)) {
            Some(last) => write!(f, "frames {start}-{last}"),
            None => write!(f, "{count} frames from frame {start}"),
        }
    }
}

impl fmt::Display for ZoneSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {} ({})", self.node, self.kind, Frames(&self.span))
    }
}

impl fmt::Display for OnlineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownCpu(cpu) => write!(f, "the machine has no CPU {cpu}"),
            Self::CpuUnchanged(cpu) => write!(f, "CPU {cpu} is already in that state"),
            Self::LastCpu(cpu) => write!(f, "CPU {cpu} is the last one online"),
            Self::EmptyRange(start) => write!(f, "the range at frame {start} is empty"),
            Self::NotInOneZone { range, below, above } => {
                write!(f, "{} do not lie within one zone; ", Frames(range))?;
                match (below, above) {
                    (Some(below), Some(above)) => write!(f, "the nearest are {below} and {above}"),
                    (Some(zone), None) | (None, Some(zone)) => write!(f, "the nearest is {zone}"),
                    (None, None) => write!(f, "there is no zone"),
                }
            }
            Self::NeverDescribed { frame, range, zone } => write!(
                f,
                "frame {frame} of {} was never described as memory: it is in a hole of {zone}; memory that \
                 comes later is described by Machine::with_hotplug",
                Frames(range)
            ),
            Self::AlreadyOnline(frame) => write!(f, "frame {frame} is already online"),
            Self::NotOnline(frame) => write!(f, "frame {frame} is not online"),
            Self::InUse { start, in_use } => {
                write!(f, "the range at frame {start} has {in_use} frames in use")
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
