//! The rule `Depth`: computes `pageset.high` from the depths of allocation and freeing in recent periods.
//!
//! `alloc_count` is the number of frames allocated minus those freed since the period began. `alloc_low` and
//! `alloc_high` are its minimum and maximum in the period. The *allocation depth* is the largest rise of the count
//! above its minimum so far, and the *free depth* is the largest fall below its maximum so far. To compute the depths,
//! the state needs only the distances of the count from its extremes (`alloc_count - alloc_low` and `alloc_high -
//! alloc_count`), so an allocation or a free updates only two words.
//!
//! Related files: `rules/pageset_tuning.rs` defines the common types. Source: Huang 2023, RFC "alloc/free depth based
//! PCP high auto-tuning".

use super::HighLimits;
use super::allowance::Leeway;
use crate::units::{Moment, PageCount, SECOND_NS};

/// Length of a period.
const PERIOD_NS: u64 = SECOND_NS;
/// Age of a period from which every free checks the time, so that the first free after the end of the period closes
/// it.
const WATCH_NS: u64 = PERIOD_NS - PERIOD_NS / 16;

/// An allocation depth and a freeing depth, in frames, each of which saturates at 2^32 - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    pub(super) alloc: u32,
    pub(super) free: u32,
}

impl Depths {
    /// Returns the depth of allocation.
    #[must_use]
    pub const fn alloc(self) -> PageCount {
        PageCount::new(self.alloc as u64)
    }

    /// Returns the depth of freeing.
    #[must_use]
    pub const fn free(self) -> PageCount {
        PageCount::new(self.free as u64)
    }

    /// Returns the distances after the count rose by `frames` frames, or fell if the number is negative. This may move its
    /// maximum or minimum.
    #[inline]
    pub(crate) const fn after(self, frames: i64) -> Self {
        let by = frames.unsigned_abs() as u32;
        if frames > 0 {
            Self { alloc: self.alloc.saturating_add(by), free: self.free.saturating_sub(by) }
        } else {
            Self { alloc: self.alloc.saturating_sub(by), free: self.free.saturating_add(by) }
        }
    }

    /// Whether a step to these distances may be the first of a run, while the depths before it were `deepest`.
    ///
    /// It may be if it goes deeper. A saturated distance counts as deeper too: all further steps in its direction leave
    /// it and the depth as they are. Without this, every step of a CPU that only allocates would need a session from then on,
    /// because no free closes its period.
    pub(crate) fn is_deeper(self, deepest: Self) -> bool {
        self.alloc > deepest.alloc || self.free > deepest.free || self.alloc.max(self.free) == u32::MAX
    }

    /// Returns how many frames may be popped or pushed before one of them goes deeper than `deepest`.
    pub(crate) const fn leeway(self, deepest: Self) -> Leeway {
        let [pops, pushes] =
            [deepest.alloc.saturating_sub(self.alloc), deepest.free.saturating_sub(self.free)];
        Leeway { pops, pushes }
    }

    pub(crate) fn deepest(self, other: Self) -> Self {
        Self { alloc: self.alloc.max(other.alloc), free: self.free.max(other.free) }
    }

    const fn midpoint(self, other: Self) -> Self {
        Self { alloc: self.alloc.midpoint(other.alloc), free: self.free.midpoint(other.free) }
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        Self { alloc: word as u32, free: (word >> 32) as u32 }
    }

    pub(crate) const fn word(self) -> u64 {
        self.alloc as u64 | (self.free as u64) << 32
    }
}

/// The state of the rule for one pageset.
///
/// All values are zero before the first period. Invariant: within a period, `deepest >= position` in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DepthState {
    /// Distances of the count from its minimum and maximum: `alloc_count - alloc_low` and `alloc_high - alloc_count`.
    pub(super) position: Depths,
    /// Depths of this period: `alloc_depth` and `free_depth`.
    pub(super) deepest: Depths,
    /// Averages over the previous periods: `avg_alloc` and `avg_free`.
    pub(super) average: Depths,
    /// Start of the period.
    pub(super) start: Moment,
}

impl DepthState {
    pub(crate) fn from_words([position, deepest, average, start]: [u64; 4]) -> Self {
        let [position, deepest, average] = [position, deepest, average].map(Depths::from_word);
        Self { position, deepest, average, start: Moment::from_ns(start) }
    }

    pub(crate) const fn words(self) -> [u64; 4] {
        [self.position.word(), self.deepest.word(), self.average.word(), self.start.ns()]
    }

    /// Whether a period that began at `start` is over.
    pub(crate) const fn is_period_over(start: Moment, now: Moment) -> bool {
        ns_apart(start, now) > PERIOD_NS
    }

    /// Whether a period that began at `start` is over or nearly over.
    pub(crate) const fn is_period_nearly_over(start: Moment, now: Moment) -> bool {
        ns_apart(start, now) > WATCH_NS
    }

    /// Closes the period and returns the new `pageset.high`.
    pub(crate) fn close_period(&mut self, now: Moment, limits: HighLimits) -> PageCount {
        if limits.is_disabled() {
            // The first free after pagesets are enabled again then starts a new period.
            self.start = Moment::default();
            return PageCount::ZERO;
        }
        let average = self.average.midpoint(self.deepest);
        if ns_apart(self.start, now) > 2 * PERIOD_NS {
            // The averages are too old to be used.
            *self = Self { start: now, ..Self::default() };
            return limits.min();
        }
        *self = Self { average, start: now, ..Self::default() };
        limits.clamp(PageCount::new(u64::from(average.alloc.min(average.free))))
    }
}

/// Returns the absolute difference between two moments, in nanoseconds.
///
/// With a signed difference, a clock that was set back by more than a period would hold the period open until the
/// clock reaches `start` again.
const fn ns_apart(start: Moment, now: Moment) -> u64 {
    now.ns().abs_diff(start.ns())
}

#[cfg(test)]
mod tests;
