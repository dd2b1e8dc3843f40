//! CPU and memory hotplug errors.
//!
//! Related files: `admin/hotplug.rs` and `ranges/fences.rs` make these changes, `error/used.rs` describes frames that are in use.

use core::fmt;

use crate::error::used::UsedFrames;
use crate::machine::FrameRange;
use crate::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};

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

messages! {
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
}

impl fmt::Display for ZoneSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} of node {} ({})", self.kind, self.node, self.span)
    }
}
