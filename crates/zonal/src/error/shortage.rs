//! What is told of a request that found no memory: why each zone did not serve it, and by how much.
//!
//! A [`ZoneShortage`] is one zone's figures with a [`Verdict`], a [`Shortage`] is their sum, small enough to be
//! part of an error. Neighbours: `alloc/shortage.rs` makes them.

use core::fmt;

use crate::units::{NodeId, Order, PageCount, ZoneKind};

/// The zones in reach of a failed request, summed up; `Allocator::shortage` lists them one by one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Order asked for.
    pub order: Order,
    /// Node whose zonelist was walked.
    pub node: NodeId,
    /// Zones the request may use.
    pub zones: u32,
    /// Why they did not serve.
    pub verdicts: VerdictCounts,
    /// Order of the largest free block in them; `None` when no block is free.
    pub largest: Option<Order>,
    /// Free frames in them.
    pub free: PageCount,
    /// Sum of their `watermarks.min`.
    pub min: PageCount,
    /// Sum of their `watermarks.low`.
    pub low: PageCount,
    /// Sum of their `watermarks.high`.
    pub high: PageCount,
    /// Frames in their pagesets.
    pub in_pagesets: PageCount,
}

/// One zone in reach of a request, as an out-of-memory report shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneShortage {
    /// Node of the zone.
    pub node: NodeId,
    /// Kind of the zone.
    pub kind: ZoneKind,
    /// Why the zone does not serve the request.
    pub verdict: Verdict,
    /// Order of its largest free block; `None` when no block is free.
    pub largest: Option<Order>,
    /// Free frames.
    pub free: PageCount,
    /// `watermarks.min`.
    pub min: PageCount,
    /// `watermarks.low`.
    pub low: PageCount,
    /// `watermarks.high`.
    pub high: PageCount,
    /// Lowmem reserve against this request.
    pub reserve: PageCount,
    /// Frames in pagesets of all CPUs.
    pub in_pagesets: PageCount,
    /// Managed frames.
    pub managed: PageCount,
}

/// Why a zone in reach does not serve a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// None of its memory is online.
    NoMemory,
    /// The block would leave it at or below `watermarks.min`, as the request's urgency lowers it.
    BelowMin {
        /// Frames that it is short of, the lowmem reserve included, by the count that the check uses: it may be
        /// off by what the counters of CPUs have not folded.
        short_by: PageCount,
    },
    /// Only its lowmem reserve, kept for requests of lower zone limits, is in the way.
    Reserved {
        /// Frames that it is short of, counted as for [`Verdict::BelowMin`].
        short_by: PageCount,
    },
    /// It has frames enough, but no free block of the order.
    NoBlock,
    /// Nothing is in the way any more: frames came free since the request failed, or it was refused on
    /// purpose.
    WouldServe,
}

/// How many zones there are of each [`Verdict`], and how many were not asked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerdictCounts {
    /// Zones that the request's zone limit, policy or allowed nodes leave out.
    pub not_allowed: u32,
    /// [`Verdict::NoMemory`].
    pub no_memory: u32,
    /// [`Verdict::BelowMin`].
    pub below_min: u32,
    /// [`Verdict::Reserved`].
    pub reserved: u32,
    /// [`Verdict::NoBlock`].
    pub no_block: u32,
    /// [`Verdict::WouldServe`].
    pub would_serve: u32,
}

impl VerdictCounts {
    /// Counts a zone.
    pub(crate) const fn add(&mut self, verdict: Verdict) {
        let count = match verdict {
            Verdict::NoMemory => &mut self.no_memory,
            Verdict::BelowMin { .. } => &mut self.below_min,
            Verdict::Reserved { .. } => &mut self.reserved,
            Verdict::NoBlock => &mut self.no_block,
            Verdict::WouldServe => &mut self.would_serve,
        };
        *count += 1;
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no block of order {} for node {}; zones: ", self.order, self.node)?;
        self.verdicts.fmt(f)?;
        write!(
            f,
            "; {} free (min {}, low {}, high {}), {}, {} in pagesets",
            Frames(self.free),
            self.min,
            self.low,
            self.high,
            Largest(self.largest),
            Frames(self.in_pagesets)
        )
    }
}

impl fmt::Display for VerdictCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            (self.below_min, "below min"),
            (self.reserved, "kept by the lowmem reserve"),
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

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory => write!(f, "has no memory online"),
            Self::BelowMin { short_by } => write!(f, "is below min, short by {}", Frames(*short_by)),
            Self::Reserved { short_by } => {
                write!(f, "is kept by its lowmem reserve, short by {}", Frames(*short_by))
            }
            Self::NoBlock => write!(f, "has no free block of the order"),
            Self::WouldServe => write!(f, "can serve now"),
        }
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

/// A count of frames, in words.
struct Frames(PageCount);

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frame{}", self.0, if self.0.get() == 1 { "" } else { "s" })
    }
}

/// The largest free block, in words.
struct Largest(Option<Order>);

impl fmt::Display for Largest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(order) => write!(f, "largest free block of order {order}"),
            None => write!(f, "no free block"),
        }
    }
}
