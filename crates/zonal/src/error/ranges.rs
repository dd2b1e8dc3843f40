//! The errors of ranges: of their allocation, splits, fences and retirement, and of hotplug.
//!
//! Related files: the files of `ranges` and `admin/hotplug.rs` return them.

use core::fmt;

use crate::error::FreeError;
use crate::machine::FrameRange;
use crate::units::{CpuId, NodeId, Order, PageCount, PageKind, Pfn, ZoneKind};

/// A zone and its span, for display in errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpan {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// Frames that the zone spans.
    pub span: FrameRange,
}

/// A part of a range that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UsedFrames {
    /// The frames of the block, which may begin before the range and end after it.
    pub block: FrameRange,
    /// State of the frames.
    pub state: UsedState,
}

/// The kinds of allocated frames, as [`UsedState`] prints them.
const KINDS: [&str; PageKind::COUNT] = ["user", "cache", "kernel"];

messages! {
    /// The states of frames that are not free.
    pub enum UsedState {
        /// Allocated as this kind.
        Allocated(kind: PageKind) => ("allocated ({})", KINDS[kind as usize]),
        /// Allocated as a later block of a run.
        InRun => "allocated with the frames before it",
        /// Free in a pageset, or moving to or from one.
        Cached => "cached in a pageset",
        /// In quarantine.
        Quarantined => "in quarantine",
        /// Kept by a fence ([`Allocator::fence`](crate::Allocator::fence)).
        Fenced => "kept by a fence",
        /// Retired: bad ([`Allocator::retire`](crate::Allocator::retire)), or with changed poison.
        Retired => "retired",
        /// Being split by another thread.
        BeingSplit => "being split",
        /// In a hole or offline.
        NotManaged => "not managed",
    }

    /// Reason why a change of CPUs or memory at run time was refused.
    pub enum OnlineError: core::error::Error {
        /// The machine has no such CPU.
        UnknownCpu(cpu: CpuId) => "the machine has no CPU {cpu}",
        /// The CPU is already in the requested state.
        CpuUnchanged(cpu: CpuId) => "CPU {cpu} is already in the requested state",
        /// The CPU is the last CPU online and cannot go offline.
        LastCpu(cpu: CpuId) => "CPU {cpu} is the last one online; at least one must stay online",
        /// The range is empty and begins at this frame.
        EmptyRange(start: Pfn) => "the range at frame {start} is empty; it must have at least one frame",
        /// The range is not within the span of one zone.
        NotInOneZone {
            /// The range.
            range: FrameRange,
            /// Last zone that begins at or before the first frame of the range, if there is one.
            below: Option<ZoneSpan>,
            /// First zone that begins after the first frame of the range, if there is one.
            above: Option<ZoneSpan>,
        } =>
            { |f| {
                // Either the range begins in `below` and ends outside that zone, or it begins in no zone.
                if let Some(zone) = below.filter(|zone| range.start < zone.span.end()) {
                    return write!(f, "the range ({range}) crosses the end of {zone}");
                }
                write!(f, "the range ({range}) begins in no zone; ")?;
                match (below, above) {
                    (Some(below), Some(above)) => write!(f, "the nearest are {below} and {above}"),
                    (Some(zone), None) | (None, Some(zone)) => write!(f, "the nearest is {zone}"),
                    (None, None) => write!(f, "there are no zones"),
                }
            } },
        /// A frame of the range was never described as memory, so it is in a hole of the zone.
        NeverDescribed {
            /// First such frame.
            frame: Pfn,
            /// The range.
            range: FrameRange,
            /// The zone.
            zone: ZoneSpan,
        } =>
            "frame {frame} of the range ({range}) is in a hole of {zone}; only memory of the machine's description \
             can come online (Machine::with_hotplug)",
        /// This frame of the range is already online.
        AlreadyOnline(frame: Pfn) => "frame {frame} is already online",
        /// This frame of the range is not online.
        NotOnline(frame: Pfn) => "frame {frame} is not online",
        /// Some frames of the range are in use.
        InUse {
            /// First frame of the range.
            start: Pfn,
            /// Number of frames in use.
            in_use: PageCount,
            /// The first block or run of these, unless all have been freed since.
            first: Option<UsedFrames>,
        } =>
            { |f| {
                write!(f, "the range at frame {start} has {in_use} frames in use")?;
                if let Some(UsedFrames { block, state }) = first {
                    write!(f, ", the first in the block ({block}), which is {state}")?;
                }
                write!(f, "; free them first")
            } },
        /// The range overlaps a fence ([`Allocator::fence`](crate::Allocator::fence)).
        Fenced {
            /// The range.
            range: FrameRange,
            /// The range of the fence.
            fenced: FrameRange,
        } =>
            "the range ({range}) overlaps the fenced range ({fenced}); release that fence first, or repeat the call \
             if it belongs to a request for a large block",
        /// The zone of the range has as many fences as it can have, and going offline needs one.
        TooManyFences {
            /// The range.
            range: FrameRange,
            /// Maximum number of fences in a zone.
            max: usize,
        } =>
            "the range ({range}) cannot be fenced, because its zone has {max} fences, the maximum; release one \
             first",
        /// The call comes from a handler that interrupted its own thread inside the allocator. The value is the first frame
        /// of the range.
        Reentered(frame: Pfn) =>
            "the range at frame {frame} is fenced by a signal or interrupt handler that interrupted its own thread \
             inside the allocator, and would have to wait for that thread; fence it later",
        /// Processes share the allocator ([`Config::processes`](crate::Config::processes)), whose CPUs and memory then stay.
        Shared => "processes share the allocator, whose CPUs and memory stay as they were when it was created",
    }

    /// Reason why a range was not allocated; nothing of it is.
    pub enum RangeError: core::error::Error {
        /// The range is empty or does not lie within one zone.
        NotInZone(error: OnlineError) => "{error}",
        /// Some frames of the range are not free.
        InUse {
            /// The range.
            range: FrameRange,
            /// The first block of these.
            first: UsedFrames,
            /// Number of frames in the range that are not free.
            used: PageCount,
        } =>
            ("{used} of the range ({range}) are not free; the first block of these ({}) is {}", first.block, first.state),
        /// Other threads freed frames of the range while it was being allocated.
        Changing(range: FrameRange) =>
            "other threads freed frames of the range ({range}) meanwhile; repeat the call",
        /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
        /// waiting for that thread.
        Reentered(frame: Pfn) =>
            "the range at frame {frame} is requested by a signal or interrupt handler that interrupted its own \
             thread inside the allocator, and would have to wait for that thread; request it later",
    }

    /// Reason for a refused split, which has changed nothing.
    pub enum SplitError: core::error::Error {
        /// The parts would not be smaller than the block.
        NotLower {
            /// First frame of the block.
            frame: Pfn,
            /// Order of the block.
            order: Order,
            /// Order of the parts.
            to: Order,
        } =>
            "the block of order {order} at frame {frame} cannot be split into parts of order {to}; the order of the \
             parts must be lower",
        /// No such block or run is allocated; contains the error that its free would return.
        NotAllocated(error: FreeError) => "{error}",
    }

    /// Reason why a range was not fenced.
    pub enum FenceError: core::error::Error {
        /// The range is empty or does not lie within one zone.
        NotInZone(error: OnlineError) => "{error}",
        /// This frame of the range is not online.
        NotOnline(frame: Pfn) => "frame {frame} is not online; all frames of a fenced range must be online",
        /// The range overlaps another fence.
        Overlaps {
            /// The range.
            range: FrameRange,
            /// The range of the other fence.
            fenced: FrameRange,
        } => ("{}", OnlineError::Fenced { range, fenced }),
        /// The zone has as many fences as it can have.
        TooMany {
            /// The range.
            range: FrameRange,
            /// Maximum number of fences in a zone.
            max: usize,
        } => ("{}", OnlineError::TooManyFences { range, max }),
        /// The call comes from a handler that interrupted its own thread inside the allocator. It could not complete without
        /// waiting for that thread. The value is the first frame of the range.
        Reentered(frame: Pfn) => ("{}", OnlineError::Reentered(frame)),
    }

    /// Reason why a frame was not retired.
    pub enum RetireError: core::error::Error {
        /// The frame is not managed by the allocator, or offline.
        NotManaged(frame: Pfn) => "frame {frame} cannot be retired, because the allocator does not manage it",
        /// The frame is in use, and its zone has as many frames that wait to be freed as it can have.
        TooMany {
            /// The frame.
            frame: Pfn,
            /// Maximum number of these frames.
            max: usize,
        } =>
            "frame {frame} is in use, and {max} frames of its zone, the maximum, already wait to be freed; free the \
             blocks with these frames first",
        /// Other threads allocated and freed the frame at each attempt.
        Changing(frame: Pfn) =>
            "frame {frame} was allocated and freed at each attempt to retire it; repeat the call",
        /// The call comes from a handler that interrupted its own thread inside the allocator.
        Reentered(frame: Pfn) =>
            "frame {frame} is retired by a signal or interrupt handler that interrupted its own thread inside the \
             allocator, and would have to wait for that thread; retire it later",
        /// Processes share the allocator ([`Config::processes`](crate::Config::processes)), which cannot retire frames.
        Shared(frame: Pfn) => "frame {frame} cannot be retired, because processes share the allocator",
    }
}

impl fmt::Display for ZoneSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} of node {} ({})", self.kind, self.node, self.span)
    }
}

impl From<FenceError> for OnlineError {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::NotInZone(error) => error,
            FenceError::NotOnline(frame) => Self::NotOnline(frame),
            FenceError::Overlaps { range, fenced } => Self::Fenced { range, fenced },
            FenceError::TooMany { range, max } => Self::TooManyFences { range, max },
            FenceError::Reentered(frame) => Self::Reentered(frame),
        }
    }
}
