//! An out-of-memory error's details: why each zone did not serve the request, and how many frames the zone
//! lacked.
//!
//! A [`ZoneShortage`] contains the figures of one zone and a [`Verdict`], the reason why the zone does not serve the
//! request. A [`Shortage`] sums up the zones and is small enough to be part of an error.
//!
//! Related files: `alloc/slow.rs` creates both types.

use core::fmt;

use crate::units::{NodeId, Order, PageCount, ZoneKind};

/// A summary of the zones that were eligible for a failed request; `Allocator::shortage` lists these zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Order requested.
    pub order: Order,
    /// Node whose zonelist was scanned.
    pub node: NodeId,
    /// Number of zones that are eligible for the request.
    pub zones: u32,
    /// Number of zones for each reason not to serve the request.
    pub verdicts: VerdictCounts,
    /// Order of the largest free block in these zones, or `None` if no block is free.
    pub largest: Option<Order>,
    /// Free frames in these zones.
    pub free: PageCount,
    /// Sum of the zones' `watermarks.min`.
    pub min: PageCount,
    /// Sum of the zones' `watermarks.low`.
    pub low: PageCount,
    /// Sum of the zones' `watermarks.high`.
    pub high: PageCount,
    /// Frames in the zones' pagesets.
    pub in_pagesets: PageCount,
    /// Whether reclaimers, which were called for the frames of a range, freed other frames instead. The request then
    /// fails after few calls, because frames that are freed anywhere rarely form a large block.
    pub ranges_ignored: bool,
}

/// The figures of one zone that is eligible for a request, for an out-of-memory report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneShortage {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// Reason why the zone does not serve the request.
    pub verdict: Verdict,
    /// Order of the zone's largest free block, or `None` if no block is free.
    pub largest: Option<Order>,
    /// Free frames.
    pub free: PageCount,
    /// `watermarks.min`.
    pub min: PageCount,
    /// `watermarks.low`.
    pub low: PageCount,
    /// `watermarks.high`.
    pub high: PageCount,
    /// Lowmem reserve that applies to this request.
    pub reserve: PageCount,
    /// Frames in the pagesets of all CPUs.
    pub in_pagesets: PageCount,
    /// Managed frames.
    pub managed: PageCount,
}

messages! {
    /// Reason why an eligible zone does not serve a request.
    pub enum Verdict {
        /// No memory of the zone is online.
        NoMemory => "has no memory online",
        /// The block would leave the zone at or below `watermarks.min`, as lowered by the request's urgency.
        BelowMin {
            /// Number of free frames that the zone lacks to satisfy the lowered `min` plus the lowmem reserve. It is computed from the free
            /// count that the watermark check uses, which excludes per-CPU differences that have not been folded.
            short_by: PageCount,
        } => ("is below min, short by {}", Frames(short_by)),
        /// Only the zone's lowmem reserve, which protects frames for requests with lower zone limits, prevents the
        /// allocation.
        Reserved {
            /// Number of free frames that the zone lacks, computed as for [`Verdict::BelowMin`].
            short_by: PageCount,
        } => ("is limited by its lowmem reserve, short by {}", Frames(short_by)),
        /// The zone has enough free frames, but no free block of the requested order or larger.
        NoBlock => "has no free block of the order",
        /// The zone could serve the request now. Either frames became free after the failure, or fault injection caused the
        /// failure.
        WouldServe => "can serve now",
    }
}

/// Number of zones with each [`Verdict`], and of zones that were not eligible.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerdictCounts {
    /// Zones excluded by the request's zone limit, policy or allowed nodes.
    pub not_allowed: u32,
    /// Zones with [`Verdict::NoMemory`].
    pub no_memory: u32,
    /// Zones with [`Verdict::BelowMin`].
    pub below_min: u32,
    /// Zones with [`Verdict::Reserved`].
    pub reserved: u32,
    /// Zones with [`Verdict::NoBlock`].
    pub no_block: u32,
    /// Zones with [`Verdict::WouldServe`].
    pub would_serve: u32,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no block of order {} for node {}; zones: ", self.order, self.node)?;
        self.verdicts.fmt(f)?;
        write!(
            f,
            "; {} free (min {}, low {}, high {}), {}, {} in pagesets{}",
            Frames(self.free),
            self.min,
            self.low,
            self.high,
            Largest(self.largest),
            Frames(self.in_pagesets),
            ignored(self.ranges_ignored)
        )
    }
}

/// Returns what an error adds if reclaimers ignored a range.
pub(super) const fn ignored(ranges: bool) -> &'static str {
    if ranges {
        "; the reclaimers ignore ranges: they freed other frames than those of the range that they were asked for"
    } else {
        ""
    }
}

impl fmt::Display for VerdictCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.below_min, "below min"),
            (self.reserved, "limited by the lowmem reserve"),
            (self.no_block, "without a free block of the order"),
            (self.no_memory, "without memory online"),
            (self.would_serve, "able to serve now"),
            (self.not_allowed, "not allowed by zone limit, policy or allowed nodes"),
        ];
        let mut between = "";
        for (count, what) in parts.into_iter().filter(|&(count, _)| count != 0) {
            write!(f, "{between}{count} {what}")?;
            between = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for ZoneShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "node {} {} {}: free {} ({}) min {} low {} high {} reserve {} in pagesets {} managed {}",
            self.node,
            self.kind,
            self.verdict,
            self.free,
            Largest(self.largest),
            self.min,
            self.low,
            self.high,
            self.reserve,
            self.in_pagesets,
            self.managed
        )
    }
}

/// Displays a count of frames with its unit.
struct Frames(PageCount);

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frame{}", self.0, if self.0.get() == 1 { "" } else { "s" })
    }
}

/// Displays the order of the largest free block.
struct Largest(Option<Order>);

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(order) => write!(f, "largest free block of order {order}"),
            None => write!(f, "no free block"),
        }
    }
}
