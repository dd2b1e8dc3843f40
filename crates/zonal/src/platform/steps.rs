//! The steps of a request, as plain data: which zones it tries, why each of them does not serve, and what comes next.
//!
//! Related files: `explain/mod.rs` produces the steps, from a real request or without allocating, and
//! `platform/recorder.rs` passes them to the embedder.

use core::fmt;

use crate::rules::watermarks::Watermark;
pub use crate::rules::zonelist_cache::ReclaimStep;
use crate::units::{NodeId, PageCount, ZoneId, ZoneKind};

/// One step of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The current CPU's pageset serves the request, or is refilled for it, without a scan.
    Near(ZoneName),
    /// A scan of the zonelist comes to a zone.
    Zone {
        /// The zone.
        zone: ZoneName,
        /// The watermark that the scan checks.
        watermark: Watermark,
        /// What becomes of the zone.
        outcome: Outcome,
    },
    /// Background reclaim of the nodes is woken.
    BackgroundWoken,
    /// A round of direct reclaim freed frames.
    DirectReclaim {
        /// Frames that were freed.
        freed: PageCount,
    },
    /// Direct reclaim would be run if reclaimers have frames to free. It ends an explanation that found no zone.
    WouldReclaim {
        /// Whether the reclaimers have frames to free for the request.
        has_reclaimable: bool,
    },
    /// The pagesets of the zones that the request may use are drained.
    PagesetsDrained {
        /// Frames in these pagesets.
        frames: PageCount,
    },
    /// The reclaimers were called for the frames of the range with the fewest used frames.
    RangeReclaimed {
        /// Frames that were freed, which may be outside the range.
        freed: PageCount,
        /// Whether the range is now free as a whole.
        is_empty: bool,
    },
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

/// What a scan does with a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request may not use the zone.
    NotAllowed(Exclusion),
    /// The zonelist cache says that the zone was full recently, so it is not tried.
    MarkedFull {
        /// Time in nanoseconds since all marks of the list were last cleared; the mark is at most as old.
        within_ns: u64,
    },
    /// The zone has too few free frames.
    Below {
        /// Number of free frames that the zone lacks.
        short_by: PageCount,
        /// Whether the zone is above the watermark, but keeps the frames for requests with a lower zone limit.
        is_reserved: bool,
    },
    /// The zone has enough free frames, but no free block of the order.
    NoBlock,
    /// The zone had a block when it was checked, but another CPU was faster.
    Lost,
    /// Node reclaim is on, and this became of it in the zone, which had too few frames.
    Reclaim(ReclaimStep),
    /// The zone serves the request.
    Serves,
}

/// Why a request may not use a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusion {
    /// The zone's kind is above the request's zone limit.
    ZoneLimit,
    /// The policy or the allowed nodes of the request exclude the node.
    Node,
    /// No block of the zone ends below the address limit.
    AddressLimit,
}

impl fmt::Display for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zone {} of node {}", self.kind, self.node)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near(zone) => write!(f, "{zone}: serves from the pageset of the CPU"),
            Self::Zone { zone, watermark, outcome } => {
                write!(f, "{zone}: ")?;
                let mark = if *watermark == Watermark::Low { "low" } else { "min" };
                match outcome {
                    Outcome::Below { short_by, is_reserved: false } => {
                        write!(f, "{short_by} frames below `{mark}`")
                    }
                    Outcome::Serves => write!(f, "serves, above `{mark}`"),
                    outcome => outcome.fmt(f),
                }
            }
            Self::BackgroundWoken => f.write_str("background reclaim is woken"),
            Self::DirectReclaim { freed } => write!(f, "direct reclaim freed {freed} frames"),
            Self::WouldReclaim { has_reclaimable: true } => f.write_str("direct reclaim would be run"),
            Self::WouldReclaim { has_reclaimable: false } => {
                f.write_str("direct reclaim would be run, but has nothing to free")
            }
            Self::PagesetsDrained { frames } => write!(f, "pagesets with {frames} frames are drained"),
            Self::RangeReclaimed { freed, is_empty: true } => {
                write!(f, "reclaim of a range freed {freed} frames; the range is free")
            }
            Self::RangeReclaimed { freed, is_empty: false } => {
                write!(f, "reclaim of a range freed {freed} frames; the range is not free")
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAllowed(Exclusion::ZoneLimit) => f.write_str("above the zone limit of the request"),
            Self::NotAllowed(Exclusion::Node) => f.write_str("excluded by the policy or the allowed nodes"),
            Self::NotAllowed(Exclusion::AddressLimit) => f.write_str("above the address limit"),
            Self::MarkedFull { within_ns } => {
                write!(f, "marked as full within the last {} ms", within_ns.div_ceil(1_000_000))
            }
            Self::Below { short_by, is_reserved: false } => {
                write!(f, "{short_by} frames below the watermark")
            }
            Self::Below { short_by, is_reserved: true } => {
                write!(f, "{short_by} frames short of the lowmem reserve")
            }
            Self::NoBlock => f.write_str("has no free block of the order"),
            Self::Lost => f.write_str("another CPU took the last block"),
            Self::Reclaim(step) => write!(f, "node reclaim {step}"),
            Self::Serves => f.write_str("serves"),
        }
    }
}
