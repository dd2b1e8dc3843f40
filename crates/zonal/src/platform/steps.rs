//! The steps of a request, as plain data: which zones it tries, why each of them does not serve, and what comes next.
//!
//! Related files: `alloc/slow.rs` and `alloc/scan.rs` produce the steps, from a real request or without allocating, and
//! `platform/recorder.rs` passes them to the embedder.

use core::fmt;

use crate::rules::watermarks::Watermark;
pub use crate::rules::zonelist_cache::ReclaimStep;
use crate::units::{NodeId, PageCount, ZoneId, ZoneKind};

messages! {
    /// One step of a request.
    pub enum Step {
        /// The current CPU's pageset serves the request, or is refilled for it, without a scan.
        Near(zone: ZoneName) => "{zone}: serves from the pageset of the CPU",
        /// A scan of the zonelist comes to a zone.
        Zone {
            /// The zone.
            zone: ZoneName,
            /// The watermark that the scan checks.
            watermark: Watermark,
            /// What becomes of the zone.
            outcome: Outcome,
        } =>
            { |f| {
                let mark = if watermark == Watermark::Low { "low" } else { "min" };
                match outcome {
                    Outcome::Below { short_by, is_reserved: false } => {
                        write!(f, "{zone}: {short_by} frames below `{mark}`")
                    }
                    Outcome::Serves => write!(f, "{zone}: serves, above `{mark}`"),
                    outcome => write!(f, "{zone}: {outcome}"),
                }
            } },
        /// Background reclaim of the nodes is woken.
        BackgroundWoken => "background reclaim is woken",
        /// A round of direct reclaim freed frames.
        DirectReclaim {
            /// Frames that were freed.
            freed: PageCount,
        } => "direct reclaim freed {freed} frames",
        /// Direct reclaim would be run if reclaimers have frames to free. It ends an explanation that found no zone.
        WouldReclaim {
            /// Whether the reclaimers have frames to free for the request.
            has_reclaimable: bool,
        } => ("direct reclaim would be run{}", if has_reclaimable { "" } else { ", but has nothing to free" }),
        /// The pagesets of the zones that the request may use are drained.
        PagesetsDrained {
            /// Frames in these pagesets.
            frames: PageCount,
        } => "pagesets with {frames} frames are drained",
        /// The reclaimers were called for the frames of the range with the fewest used frames.
        RangeReclaimed {
            /// Frames that were freed, which may be outside the range.
            freed: PageCount,
            /// Whether the range is now free as a whole.
            is_empty: bool,
        } =>
            ("reclaim of a range freed {freed} frames; the range is {}", if is_empty { "free" } else { "not free" }),
    }
}

/// Names a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneName {
    /// Id of the zone.
    pub id: ZoneId,
    /// Its node.
    pub node: NodeId,
    /// Its kind.
    pub kind: ZoneKind,
}

messages! {
    /// What a scan does with a zone.
    pub enum Outcome {
        /// The request may not use the zone.
        NotAllowed(exclusion: Exclusion) => "{exclusion}",
        /// The zonelist cache says that the zone was full recently, so it is not tried.
        MarkedFull {
            /// Time in nanoseconds since all marks of the list were last cleared; the mark is at most as old.
            within_ns: u64,
        } => ("marked as full within the last {} ms", within_ns.div_ceil(1_000_000)),
        /// The zone has too few free frames.
        Below {
            /// Number of free frames that the zone lacks.
            short_by: PageCount,
            /// Whether the zone is above the watermark, but keeps the frames for requests with a lower zone limit.
            is_reserved: bool,
        } =>
            ("{short_by} frames {}", if is_reserved { "short of the lowmem reserve" } else { "below the watermark" }),
        /// The zone has enough free frames, but no free block of the order.
        NoBlock => "has no free block of the order",
        /// The zone had a block when it was checked, but another CPU was faster.
        Lost => "another CPU took the last block",
        /// Node reclaim is on, and this became of it in the zone, which had too few frames.
        Reclaim(step: ReclaimStep) => "node reclaim {step}",
        /// The zone serves the request.
        Serves => "serves",
    }

    /// Why a request may not use a zone.
    pub enum Exclusion {
        /// The zone's kind is above the request's zone limit.
        ZoneLimit => "above the zone limit of the request",
        /// The policy or the allowed nodes of the request exclude the node.
        Node => "excluded by the policy or the allowed nodes",
        /// No block of the zone ends below the address limit.
        AddressLimit => "above the address limit",
    }
}

impl fmt::Display for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} of node {}", self.kind, self.node)
    }
}
