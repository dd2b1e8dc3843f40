//! The allocator's errors. They name the frame, node or setting that caused the error.
//!
//! Related files: `machine/error.rs` defines the errors in a machine's description, and `error/shortage.rs` defines an
//! out-of-memory error's details.

mod ranges;
mod shortage;

use core::fmt;

use crate::machine::TopologyError;
use crate::rules::stat_threshold::MAX_STAT_THRESHOLD;
use crate::units::{MAX_ORDER_LIMIT, NodeId, Order, PROCESSES_MAX, PageCount, Pfn, ZoneKind};
pub use ranges::{
    FenceError, OnlineError, RangeError, RetireError, SplitError, UsedFrames, UsedState, ZoneSpan,
};
use shortage::ignored;
pub use shortage::{Shortage, Verdict, VerdictCounts, ZoneShortage};

messages! {
    /// Reason for a failed allocation.
    pub enum AllocError: core::error::Error {
        /// No eligible zone could serve the request.
        OutOfMemory(shortage: Shortage) => "out of memory: {shortage}",
        /// The requested order exceeds the largest order of the allocator.
        OrderTooLarge {
            /// Order requested.
            order: Order,
            /// Largest order.
            max: Order,
        } => "order {order} is too large; the largest is {max}",
        /// None of the nodes in both the policy and the allowed nodes has memory online.
        NoNodeInPolicy => "no node in both the request's policy and its allowed nodes has memory online",
        /// The request is for zeroed frames, but the platform has no access to frame contents.
        NoContents => "zeroed frames were requested, but the platform has no access to frame contents",
        /// A bulk request is for blocks of this order and not for single frames.
        NotSingle(order: Order) =>
            "a bulk request is for blocks of order {order}; only single frames (order 0) are allocated in bulk",
        /// The request is for no frames, or for more frames than the largest block has.
        Count {
            /// Number of frames requested.
            count: PageCount,
            /// Largest number.
            max: PageCount,
        } => "the request is for {count} frames; allowed values are 1 to {max}",
        /// No eligible zone has so many adjacent frames that are free or can be reclaimed, or allocating them would leave less
        /// than the watermark `min`.
        NotContiguous {
            /// Number of frames requested.
            count: PageCount,
            /// Length of the longest free range in these zones.
            longest: PageCount,
            /// Whether reclaimers, which were called for a range, freed other frames instead.
            ranges_ignored: bool,
        } =>
            ("no zone can allocate {count} adjacent frames; the longest free range has {longest}{}", ignored(ranges_ignored)),
        /// The request comes from a handler that interrupted its own thread inside the allocator. It could not be served
        /// without waiting for that thread. See [`Platform::is_reentered`](crate::Platform::is_reentered).
        Reentered =>
            "the request comes from a signal or interrupt handler that interrupted its own thread inside the \
             allocator, and would have to wait for that thread; request outside the handler",
    }

    /// Reason for a refused free.
    ///
    /// A refused free leaves the accounting correct.
    pub enum FreeError: core::error::Error {
        /// The frame is in no zone, or it is in a hole or offline.
        NotManaged(frame: Pfn) =>
            "frame {frame} is not managed by the allocator: it is in no zone, in a hole or offline",
        /// The frame is in no allocated block, because it was freed before or never allocated.
        NotAllocated(frame: Pfn) => "frame {frame} is not allocated (freed before, or never allocated)",
        /// The frame is inside an allocated block but is not its first frame. A block must be freed by its first frame.
        InsideBlock {
            /// The frame.
            frame: Pfn,
            /// First frame of the block.
            block: Pfn,
            /// Order of the block.
            order: Order,
        } => "frame {frame} is inside the block of order {order} at frame {block}; free that block",
        /// The block was allocated with another order.
        WrongOrder {
            /// First frame of the block.
            frame: Pfn,
            /// Order with which the block was allocated.
            allocated: Order,
            /// Order passed to the free.
            given: Order,
        } => "frame {frame} was freed with order {given}, but allocated with order {allocated}",
        /// The frame is the first of allocated frames, but not of so many.
        WrongCount {
            /// The frame.
            frame: Pfn,
            /// Number of frames that were allocated together.
            allocated: PageCount,
            /// Number of frames passed to the free.
            given: PageCount,
        } => "{given} frames were freed at frame {frame}, where {allocated} were allocated together",
        /// The frame was allocated together with others and is not the first of them.
        InsideRun {
            /// The frame.
            frame: Pfn,
            /// First of the frames that were allocated together.
            first: Pfn,
            /// Number of these frames.
            count: PageCount,
        } => "frame {frame} was allocated as one of {count} frames that start at frame {first}; free all of them",
        /// The free is for 0 frames, starting at this one.
        NoFrames(frame: Pfn) => "0 frames were freed at frame {frame}; the count must be at least 1",
        /// Another thread is splitting the block that starts at the frame.
        BeingSplit(frame: Pfn) => "the block at frame {frame} is being split by another thread",
        /// The frame was freed before, and its block is in quarantine.
        Quarantined(frame: Pfn) => "frame {frame} was freed before (it is in quarantine)",
        /// The frame is retired and stays out of use: it is bad ([`Allocator::retire`](crate::Allocator::retire)), or its
        /// poison had changed.
        Retired(frame: Pfn) => "frame {frame} is retired, and stays out of use",
        /// The free comes from a handler that interrupted its own thread inside the allocator. It could neither complete
        /// without waiting for that thread, nor be [deferred](crate::Platform::is_reentered). The frame is still allocated
        /// and must be freed later.
        Reentered(frame: Pfn) =>
            "frame {frame} is freed by a signal or interrupt handler that interrupted its own thread inside the \
             allocator, and would have to wait for that thread; it is still allocated: free it later",
    }
}

/// The position and the reason at which a bulk free stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeBulkError {
    /// Number of frames that were freed, which is the index of the refused frame in the list.
    pub freed: usize,
    /// Reason why that frame was refused.
    pub error: FreeError,
}

impl fmt::Display for FreeBulkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "after {} frames were freed: {}", self.freed, self.error)
    }
}

impl core::error::Error for FreeBulkError {}

messages! {
    /// Reason why a configuration, or a machine with that configuration, was refused.
    pub enum ConfigError: core::error::Error {
        /// The machine's description has an error.
        Topology(error: TopologyError) => "{error}",
        /// The frame size is not a power of two or is below 4096 bytes.
        PageBytes(bytes: u32) => "the page size is {bytes} bytes; it must be a power of two of at least 4096",
        /// The largest order is not within 10..=18.
        MaxOrder(order: Order) => "the largest order is {order}; allowed values are 10 to {MAX_ORDER_LIMIT}",
        /// A metadata buffer is missing or too small.
        Buffer {
            /// Number of bytes needed.
            needed: usize,
            /// Number of bytes supplied, or 0 if no buffer was supplied.
            supplied: usize,
        } => "a metadata buffer has {supplied} bytes; {needed} are needed",
        /// The configuration enables poisoning or zeroing of every allocation, but the platform has no access to frame
        /// contents.
        NoContents => "poisoning or zeroing is configured, but the platform has no access to frame contents",
        /// The machine has this many CPUs, but the platform cannot interrupt other CPUs
        /// ([`OneCpu`](crate::platform::cpu_local::OneCpu)).
        UnreachableCpus(cpus: usize) =>
            "the machine has {cpus} CPUs, but the platform cannot reach other CPUs (OneCpu); use Pinned with a \
             Quiesce that interrupts them, use TryLock, or describe one CPU",
        /// The quarantine has more than 2^20 frames per zone.
        Quarantine(frames: PageCount) => "the quarantine is {frames} frames per zone; at most 1048576 are allowed",
        /// A percentage is not within 0..=100.
        Percent(percent: u8) => "the minimum unmapped share is {percent} %; allowed values are 0 to 100",
        /// The scale factor of watermarks is not within 1..=3000.
        ScaleFactor(factor: u32) => "watermark_scale_factor is {factor}; allowed values are 1 to 3000",
        /// The mode of node reclaim is not within 0..=7.
        NodeReclaimMode(mode: u32) => "zone_reclaim_mode is {mode}; allowed values are 0 to 7",
        /// A fixed counter threshold is not within 1..=125.
        CounterThreshold(threshold: u8) =>
            "the counter threshold is {threshold}; allowed values are 1 to {MAX_STAT_THRESHOLD}",
        /// The pagesets have too few slots for `PagesetTuning::DepthPublished`, because the allocator was created with
        /// another rule.
        PagesetSlots {
            /// Node of the zone.
            node: NodeId,
            /// Kind of the zone.
            kind: ZoneKind,
            /// Number of slots for single frames in the zone's smallest pageset.
            slots: PageCount,
            /// Number of slots needed.
            needed: PageCount,
        } =>
            "the pagesets of zone {kind} of node {node} have {slots} slots, but the depth-published rule needs \
             {needed}; create the allocator with this rule",
        /// CPUs can own no blocks, because the allocator was created with [`OwnedBlocks::Off`](crate::config::OwnedBlocks::Off).
        NoOwnedBlocks =>
            "owned_blocks cannot be `on`: the allocator has no room for them, because it was created with `off`",
        /// The number of processes or the platform's process is not within its range.
        Processes {
            /// The platform's process.
            process: u8,
            /// Number of processes in the configuration.
            processes: u8,
        } =>
            "process {process} of {processes} cannot exist: processes have the numbers from 1 to at most \
             {PROCESSES_MAX}, and the platform's number is 0 only if the configuration has no processes",
        /// An allocator that processes share cannot have this setting.
        NotForProcesses(setting: &'static str) =>
            "{setting} must have its default in an allocator that processes share, whose state must survive the \
             death of each",
        /// A setting selects a past form that is not linked: see [`Past`](crate::config::Past).
        NotLinked {
            /// The setting's name.
            setting: &'static str,
            /// The form.
            name: &'static str,
        } =>
            "{setting} cannot be `{name}`: that is a past form, which this program does not link (crate \
             zonal-history)",
        /// The minimum of free frames exceeds the managed frames in all zones, including, when an allocator is created,
        /// those that may come online later.
        MinFree {
            /// Requested minimum.
            min_free: PageCount,
            /// Number of managed frames.
            managed: PageCount,
        } => "min_free is {min_free} frames; allowed values are up to the {managed} managed frames",
    }

    /// Reason why a policy was refused.
    pub enum PolicyError: core::error::Error {
        /// None of the policy's nodes has memory.
        NoMemory => "none of the policy's nodes has memory",
        /// The machine has no such node.
        UnknownNode(node: NodeId) => "the machine has no node {node}",
        /// All weights are zero.
        NoWeight => "all weights are 0; at least one node needs a weight",
    }
}

impl From<TopologyError> for ConfigError {
    fn from(error: TopologyError) -> Self {
        Self::Topology(error)
    }
}
