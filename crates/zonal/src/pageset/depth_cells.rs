//! The state of the depth rule, stored in cells of a pageset.
//!
//! Related files: `rules/pageset_tuning/depth.rs` defines the rule, and `pageset/mod.rs` has the cells.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::{Pageset, PagesetGuard};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{DepthState, Depths, HighLimits};
use crate::units::{Moment, PageCount};

// The cells of a `DepthState` are protected by the pageset's lock. They are zero at first.
//
// Most frees do not exceed the depths recorded so far, and do not check whether the period is over. When a period is
// nearly over, the next tick makes frees *watched*: each free then checks for the end of the period, until one of them
// closes it. As in the rule, only a free can close a period.
//
// With a tick each second, a period ends with a free that is less than a second late. After a late tick, it may last longer
// than two seconds. The rule then forgets its averages, and `high` returns to its lower limit.
//
// Every access is relaxed, because the lock that the guard represents orders the accesses of its holders. Other
// threads only read values, which may be out of date.
impl<P: Platform> Pageset<P> {
    /// Returns the cells of a [`DepthState`], as [`DepthState::words`].
    pub(super) const fn depth_cells(&self) -> [&P::U64; 4] {
        [&self.position, &self.deepest, &self.average, &self.period_start]
    }

    /// Returns how far the count of allocated frames is above its minimum and below its maximum in the period.
    pub(super) fn position(&self) -> Depths {
        Depths::from_word(self.position.load(Relaxed))
    }

    /// Returns the depths of the period, which the position may reach without a session.
    pub(super) fn deepest(&self) -> Depths {
        Depths::from_word(self.deepest.load(Relaxed))
    }

    /// Returns the start of the period, which may be out of date.
    pub(super) fn period_start(&self) -> Moment {
        Moment::from_ns(self.period_start.load(Relaxed))
    }

    /// Whether the period is over; the answer may be out of date.
    pub(super) fn is_period_over(&self, now: Moment) -> bool {
        DepthState::is_period_over(self.period_start(), now)
    }
}

impl<P: Platform> PagesetGuard<'_, P> {
    /// Accounts for `frames` frames that were popped, or pushed if the number is negative; returns whether they went deeper
    /// than all before in this period ([`Depths::is_deeper`]).
    ///
    /// They must be one block, or have been within an [`Allowance`](crate::rules::pageset_tuning::Allowance).
    pub(super) fn depth_moved(&self, frames: i64) -> bool {
        let position = self.position().after(frames);
        self.position.store(position.word(), Relaxed);
        let before = self.deepest();
        let deepest = before.deepest(position);
        if deepest != before {
            self.deepest.store(deepest.word(), Relaxed);
        }
        position.is_deeper(before)
    }

    /// Closes the period, which is over; returns the new `pageset.high`.
    #[cold]
    pub(super) fn close_period(&self, now: Moment, limits: HighLimits) -> PageCount {
        let mut state = self.depth_state();
        let high = state.close_period(now, limits);
        self.set_depth_state(state);
        high
    }

    /// Returns the state in the cells.
    fn depth_state(&self) -> DepthState {
        DepthState::from_words(self.depth_cells().map(|cell| cell.load(Relaxed)))
    }

    /// Stores a state in the cells.
    pub(super) fn set_depth_state(&self, state: DepthState) {
        let cells = self.depth_cells().into_iter().zip(state.words());
        cells.for_each(|(cell, word)| cell.store(word, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pageset::{STACKS, StackShape};
    use crate::platform::cells::AllZero;
    use crate::testing::{Native, Random};
    use crate::units::{Order, SECOND_NS};

    fn limits() -> HighLimits {
        HighLimits::new(PageCount::new(100), PageCount::new(10_000))
    }

    /// Compares the cells with the plain state on long random runs; both must return the same `high` every time.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn cells_and_plain_state_agree() {
        let (pageset, shape) = (Pageset::<Native>::all_zero(), StackShape::new([0; STACKS]));
        let cells = PagesetGuard::new(&pageset, (&[], &shape));
        let (mut plain, mut random) = (DepthState::default(), Random::new(7));
        let (mut now, mut highs) = (0, 0);
        for _ in 0..200_000 {
            let order = Order::new([0, 0, 0, 1, 2, 3, 9][random.index(7)]).unwrap();
            now += [0, SECOND_NS / 900, SECOND_NS / 300][random.index(3)];
            if random.index(5000) == 0 {
                now += SECOND_NS * (1 + random.index(2) as u64);
            }
            // Long runs of mostly pops or mostly pushes make the depths larger than single steps.
            if random.index(100) < if (now / SECOND_NS).is_multiple_of(2) { 70 } else { 30 } {
                plain.on_pop(order);
                cells.depth_moved(order.pages().get() as i64);
            } else {
                let moment = Moment::from_ns(now);
                cells.depth_moved(-(order.pages().get() as i64));
                let high = plain.on_push(order, moment, limits());
                let is_over = cells.is_period_over(moment);
                assert_eq!(is_over.then(|| cells.close_period(moment, limits())), high);
                highs += usize::from(high.is_some_and(|high| high > limits().min()));
            }
            assert_eq!(cells.depth_state(), plain);
        }
        assert!(highs > 50, "the run must tune: {highs}");
        cells.set_depth_state(DepthState::default());
        assert_eq!(cells.depth_state(), DepthState::default());
    }

    /// Checks that a pop does not access the averages, the start or the limits, and that a push within a period does
    /// not write them.
    #[test]
    fn hot_calls_leave_cold_cells_alone() {
        const BEGUN_NS: u64 = 10 * SECOND_NS;
        let mark = u64::MAX / 3;
        let (pageset, shape) = (Pageset::<Native>::all_zero(), StackShape::new([0; STACKS]));
        pageset.average.store(mark, Relaxed);
        pageset.period_start.store(BEGUN_NS, Relaxed);
        let guard = PagesetGuard::new(&pageset, (&[], &shape));
        guard.depth_moved(1);
        guard.depth_moved(-1);
        assert!(!guard.is_period_over(Moment::from_ns(BEGUN_NS + SECOND_NS)));
        assert_eq!(pageset.average.load(Relaxed), mark);
        assert_eq!(pageset.period_start.load(Relaxed), BEGUN_NS);
    }
}
