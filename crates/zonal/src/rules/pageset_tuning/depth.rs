//! `Depth`: `pageset.high` follows how deep allocation and freeing went in the last periods.
//!
//! Vocabulary: `alloc_count` is frames taken minus frames given since the period began, and
//! `alloc_low`, `alloc_high` are its extremes; the *allocation depth* is the most that it rose
//! above its low, the *free depth* the most that it fell below its high. What is kept is only
//! where the count stands between its extremes (`alloc_count - alloc_low` and
//! `alloc_high - alloc_count`): depths need no more, and so a take or a give works on two words.
//! Source: Huang 2023, RFC "alloc/free depth based PCP high auto-tuning".

use super::HighLimits;
use crate::units::{Moment, Order, PageCount, SECOND_NS};

/// Length of a period.
const PERIOD_NS: u64 = SECOND_NS;
/// From when on frees are watched, so that the first after the end of the period closes it.
pub(crate) const WATCH_NS: u64 = PERIOD_NS - PERIOD_NS / 16;

/// A depth, in frames, of allocation and one of freeing; each stops at 2^32 - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    pub(crate) alloc: u32,
    pub(crate) free: u32,
}

impl Depths {
    /// Depth of allocation.
    #[must_use]
    pub const fn alloc(self) -> PageCount {
        PageCount::new(self.alloc as u64)
    }

    /// Depth of freeing.
    #[must_use]
    pub const fn free(self) -> PageCount {
        PageCount::new(self.free as u64)
    }

    /// Where the count stands after it rose by some frames: the same low, the high pushed up.
    pub(crate) const fn after_pop(self, pages: u32) -> Self {
        Self { alloc: self.alloc.saturating_add(pages), free: self.free.saturating_sub(pages) }
    }

    /// Where the count stands after it fell by some frames: the same high, the low pushed down.
    pub(crate) const fn after_push(self, pages: u32) -> Self {
        Self { alloc: self.alloc.saturating_sub(pages), free: self.free.saturating_add(pages) }
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

/// What the rule remembers of one pageset. Zero is the state before the first period.
/// Invariant: within a period `deepest >= position`, direction by direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DepthState {
    /// `alloc_count - alloc_low` and `alloc_high - alloc_count`.
    pub(crate) position: Depths,
    /// `alloc_depth` and `free_depth`, of this period.
    pub(crate) deepest: Depths,
    /// `avg_alloc` and `avg_free`, of the periods before.
    pub(crate) average: Depths,
    /// When the period began.
    pub(crate) start: Moment,
}

impl DepthState {
    /// Counts a block that was taken from the pageset.
    pub fn on_pop(&mut self, order: Order) {
        self.position = self.position.after_pop(pages(order));
        self.deepest = self.deepest.deepest(self.position);
    }

    /// Counts a block that was given to the pageset, and closes a period that is over: then a new
    /// `pageset.high` is returned.
    pub fn on_push(&mut self, order: Order, now: Moment, limits: HighLimits) -> Option<PageCount> {
        self.position = self.position.after_push(pages(order));
        self.deepest = self.deepest.deepest(self.position);
        is_period_over(self.start, now).then(|| self.close_period(now, limits))
    }

    /// Ends the period and says what `pageset.high` is from now on.
    pub(crate) fn close_period(&mut self, now: Moment, limits: HighLimits) -> PageCount {
        if limits.is_disabled() {
            self.start = Moment::default(); // so that the first free once enabled starts afresh
            return PageCount::ZERO;
        }
        let average = self.average.midpoint(self.deepest);
        if ns_apart(self.start, now) > 2 * PERIOD_NS {
            *self = Self { start: now, ..Self::default() }; // what was averaged is too old
            return limits.min();
        }
        *self = Self { average, start: now, ..Self::default() };
        limits.clamp(PageCount::new(u64::from(average.alloc.min(average.free))))
    }

    /// The deepest of this period: `alloc_depth` and `free_depth`.
    #[must_use]
    pub const fn deepest(&self) -> Depths {
        self.deepest
    }

    /// The averages that `high` comes from: `avg_alloc` and `avg_free`.
    #[must_use]
    pub const fn average(&self) -> Depths {
        self.average
    }

    /// When the period began; zero before the first and when disabled.
    #[must_use]
    pub const fn start(&self) -> Moment {
        self.start
    }
}

/// Whether a period that began at `start` is over.
pub(crate) const fn is_period_over(start: Moment, now: Moment) -> bool {
    ns_apart(start, now) > PERIOD_NS
}

/// A clock that went backwards by more than a period must not keep one open until it has caught up.
pub(crate) const fn ns_apart(start: Moment, now: Moment) -> u64 {
    now.ns().abs_diff(start.ns())
}

/// Frames of a block.
pub(crate) const fn pages(order: Order) -> u32 {
    order.pages().get() as u32
}

#[cfg(test)]
mod tests;
