//! The rule `Stepwise`: raises `pageset.high` at refills and drains and lowers it over time, as in Linux 6.7.
//!
//! The *refill shift* grows with consecutive refills and scales their size. The *free count* is approximately the
//! number of frames freed in a row. A zone's *level* says whether its free frames are above its `watermarks.high`.
//! The pageset stores `high`; the functions of this file return its new value.
//!
//! Related files: `rules/pageset_tuning.rs` defines the common types.

use super::HighLimits;
use super::allowance::Leeway;
use crate::units::{Order, PageCount};

/// Largest refill shift, which limits a refill to 32 batches. Linux: `CONFIG_PCP_BATCH_SCALE_MAX`.
const SHIFT_MAX: u32 = 5;
/// Shift that determines the decay: each tick lowers `high` by an eighth.
const DECAY_SHIFT: u32 = 3;
/// Largest free count of the cycle; see [`StepwiseState::leeway`].
const CYCLE_MAX: u32 = 2;

/// Whether a zone's free frames are above its `watermarks.high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ZoneLevel {
    /// Free frames are above the watermark, so pagesets may grow.
    Above,
    /// Free frames are at or below the watermark, so pagesets shrink.
    Below,
}

/// The result of the rule at a refill or drain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// Number of frames to move, never zero. [`blocks_of`](super::blocks_of) converts it to blocks of a larger order.
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

/// The state of a pageset on which a refill, a drain or a tick depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetFigures {
    /// Frames in the pageset.
    pub count: PageCount,
    /// Current `high`.
    pub high: PageCount,
    /// Batch of the pageset: the unscaled size of a refill or drain.
    pub batch: PageCount,
    /// Limits of `high`.
    pub limits: HighLimits,
}

impl PagesetFigures {
    /// Whether the pageset moves only single frames, because it is disabled or its `high` is below one batch. Linux
    /// has such pagesets during boot.
    const fn is_too_small(&self) -> bool {
        self.limits.is_disabled() || self.high.get() < self.batch.get()
    }

    /// Returns the count of frames at which the pageset must drain.
    ///
    /// While the zone's free frames are at or below `watermarks.high`, a pageset drains at the lower limit of `high`.
    #[must_use]
    pub fn drain_threshold(&self, level: ZoneLevel) -> PageCount {
        match level {
            ZoneLevel::Above => self.high,
            ZoneLevel::Below => self.high.min(self.limits.min()),
        }
    }

    /// Returns the new `high` and the surplus after a tick.
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
    /// The free count stops growing at 32 batches, so that a few allocations reduce it considerably even after many
    /// frees.
    pub const fn on_push(&mut self, order: Order, batch: PageCount) {
        self.refill_shift /= 2;
        if (self.free_count as u64) < batch.get() << SHIFT_MAX {
            self.free_count += order.pages().get() as u32;
        }
    }

    /// Records the allocation of a block of `order`, or its free if `frames` is negative; returns whether only such steps may
    /// follow without the lock.
    pub(crate) fn on_step(&mut self, frames: i64, order: Order, batch: impl FnOnce() -> PageCount) -> bool {
        if frames > 0 {
            self.on_pop();
        } else {
            self.on_push(order, batch());
        }
        self.leeway().pops == 0
    }

    /// Records the allocation of `frames` single frames in a row, or their free if the number is negative.
    pub(crate) fn moved(&mut self, frames: i64, batch: impl FnOnce() -> PageCount) {
        let steps = frames.unsigned_abs() as u32;
        if frames > 0 {
            self.free_count = self.free_count.checked_shr(steps).unwrap_or(0);
        } else if frames < 0 {
            self.refill_shift = self.refill_shift.checked_shr(steps).unwrap_or(0);
            let most = u32::try_from(batch().get() << SHIFT_MAX).unwrap_or(u32::MAX);
            self.free_count = self.free_count.max(self.free_count.saturating_add(steps).min(most));
        }
    }

    /// Returns how many single frames may be allocated and how many may be freed before the state leaves the *cycle*, in which
    /// the refill shift is 0 and the free count is at most [`CYCLE_MAX`].
    ///
    /// Within the cycle, an allocation lowers the free count by one and a free raises it by one, because 2 / 2 is 1 and
    /// 1 / 2 is 0. The state after any number of steps within the cycle therefore depends only on how many more frames
    /// were allocated than freed.
    pub(crate) const fn leeway(self) -> Leeway {
        if self.refill_shift != 0 || self.free_count > CYCLE_MAX {
            return Leeway::NONE;
        }
        Leeway { pops: self.free_count, pushes: CYCLE_MAX - self.free_count }
    }

    /// Returns how many frames to refill for a request of `order`, and the new `high`.
    ///
    /// Only refills of single frames are scaled by the refill shift. A refill leaves space below `high` for a batch
    /// of frees.
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
        Resize { size: wanted.min(below_high).max(PageCount::new(1)), high }
    }

    /// Returns the number of frames to move to the zone when the count reaches the [drain
    /// threshold](PagesetFigures::drain_threshold), and the new `high`.
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
            // If the count is below `high`, the count bounds the drain instead of `high`.
            freed.max(batch).min(high.min(count).saturating_minus(batch)).max(PageCount::new(1))
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

#[cfg(test)]
mod tests;
