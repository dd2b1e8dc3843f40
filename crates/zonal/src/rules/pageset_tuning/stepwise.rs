//! `Stepwise`: `pageset.high` rises at refills and drains and decays with time, as in Linux 6.7.
//!
//! The *refill shift* scales a batch by the number of consecutive refills, and the *free count* is approximately
//! the number of frames freed in a row. A zone's *level* says whether its free frames are above its
//! `watermarks.high`. The pageset stores `high`; each step returns the new value. Neighbours:
//! `rules/pageset_tuning.rs` has the common types.

use super::HighLimits;
use crate::units::{Order, PageCount};

/// Largest refill shift: 32 batches at once. Linux: `CONFIG_PCP_BATCH_SCALE_MAX`.
const SHIFT_MAX: u32 = 5;
/// Binary logarithm of the decay: a tick lowers `high` by an eighth.
const DECAY_SHIFT: u32 = 3;

/// Whether a zone's free frames are above its `watermarks.high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneLevel {
    /// Above the watermark: pagesets may grow.
    Above,
    /// At the watermark or below: pagesets shrink.
    Below,
}

/// One refill or drain: how many frames it moves, never zero, and the new `pageset.high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// Frames to move; see [`blocks_of`](super::blocks_of) for larger blocks.
    pub size: PageCount,
    /// The new `pageset.high`.
    pub high: PageCount,
}

/// The effect of a tick on a pageset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decay {
    /// The new `pageset.high`.
    pub high: PageCount,
    /// Number of frames above `high`, which must be drained.
    pub surplus: PageCount,
}

/// A pageset's figures at a refill or drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetFigures {
    /// Frames in the pageset.
    pub count: PageCount,
    /// Current `high`.
    pub high: PageCount,
    /// Batch of the pageset.
    pub batch: PageCount,
    /// Limits of `high`.
    pub limits: HighLimits,
}

impl PagesetFigures {
    /// Whether this is what Linux calls a disabled or boot pageset, which moves single frames.
    const fn is_too_small(&self) -> bool {
        self.limits.is_disabled() || self.high.get() < self.batch.get()
    }

    /// Returns the count at which a drain is due.
    ///
    /// While the zone is at or below `watermarks.high`, a pageset already drains at the lower limit.
    #[must_use]
    pub fn drain_threshold(&self, level: ZoneLevel) -> PageCount {
        match level {
            ZoneLevel::Above => self.high,
            ZoneLevel::Below => self.high.min(self.limits.min()),
        }
    }

    /// Returns `high` and the surplus after a tick.
    #[must_use]
    pub fn decay(&self) -> Decay {
        let held = self.count.get().saturating_sub(self.batch.get() << SHIFT_MAX);
        let eased = self.high.get() - (self.high.get() >> DECAY_SHIFT);
        let high = self.limits.clamp(PageCount::new(held.max(eased)));
        Decay { high, surplus: self.count.saturating_minus(high) }
    }
}

/// The state of the rule for one pageset. Invariant: `refill_shift <= 5`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StepwiseState {
    refill_shift: u32,
    free_count: u32,
}

impl StepwiseState {
    /// Records the allocation of a block: halves the free count.
    pub const fn on_pop(&mut self) {
        self.free_count /= 2;
    }

    /// Records the free of a block: halves the refill shift.
    ///
    /// The free count stops growing at 32 batches, so that a few allocations end a long run of frees.
    pub const fn on_push(&mut self, order: Order, batch: PageCount) {
        self.refill_shift /= 2;
        if (self.free_count as u64) < batch.get() << SHIFT_MAX {
            self.free_count += order.pages().get() as u32;
        }
    }

    /// Returns the number of frames to refill for a request of `order`, and the new `high`.
    ///
    /// Only refills of single frames are scaled, and they leave space below `high` for a batch of frees.
    #[must_use]
    pub fn refill(&mut self, pageset: &PagesetFigures, order: Order, level: ZoneLevel) -> Resize {
        let PagesetFigures { count, batch, .. } = *pageset;
        if pageset.is_too_small() {
            return Resize { size: PageCount::new(1), high: pageset.limits.clamp(pageset.high) };
        }
        let shift = if order == Order::PAGE { self.refill_shift } else { 0 };
        let wanted = PageCount::new(batch.get() << shift);
        let high = match level {
            ZoneLevel::Above => pageset.limits.clamp(pageset.high.plus(wanted)),
            ZoneLevel::Below => pageset.limits.clamp(pageset.high),
        };
        let below_high = high.saturating_minus(count).saturating_minus(batch).max(batch);
        if order == Order::PAGE && wanted < below_high {
            self.refill_shift = (self.refill_shift + 1).min(SHIFT_MAX);
        }
        Resize { size: at_least_one(wanted.min(below_high)), high }
    }

    /// Returns the number of frames to move to the zone when [a drain is due](PagesetFigures::drain_threshold), and the
    /// new `high`.
    #[must_use]
    pub fn drain(&self, pageset: &PagesetFigures, level: ZoneLevel) -> Resize {
        let PagesetFigures { count, high, batch, limits } = *pageset;
        let freed = PageCount::new(u64::from(self.free_count));
        let next = match level {
            ZoneLevel::Below => high.saturating_minus(freed.max(batch)),
            ZoneLevel::Above if count >= high => high.max(freed.plus(batch)),
            ZoneLevel::Above => high,
        };
        let size = if pageset.is_too_small() {
            PageCount::new(1)
        } else {
            // A drain below `high` can move only the frames present.
            at_least_one(freed.max(batch).min(high.min(count).saturating_minus(batch)))
        };
        Resize { size, high: limits.clamp(next) }
    }

    pub(crate) const fn from_word(word: u64) -> Self {
        Self { refill_shift: word as u32, free_count: (word >> 32) as u32 }
    }

    pub(crate) const fn word(self) -> u64 {
        self.refill_shift as u64 | (self.free_count as u64) << 32
    }
}

fn at_least_one(size: PageCount) -> PageCount {
    size.max(PageCount::new(1))
}

#[cfg(test)]
mod tests;
