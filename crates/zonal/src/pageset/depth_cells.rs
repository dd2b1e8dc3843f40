//! The state of the depth rule, stored in cells of a pageset.
//!
//! Related files: `rules/pageset_tuning/depth.rs` defines the rule, and `pageset/mod.rs` has the cells.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::depth::{DepthState, Depths, WATCH_NS, is_period_over, ns_apart};
use crate::rules::pageset_tuning::{HighLimits, Leeway};
use crate::units::{Moment, PageCount};
use crate::zone::counters::CpuGuard;

/// Number of cells in a [`DepthState`].
pub(super) const DEPTH_CELLS: usize = 4;
const POSITION: usize = 0;
const DEEPEST: usize = 1;
const AVERAGE: usize = 2;
const START: usize = 3;

/// A [`DepthState`] in cells, protected by the pageset's lock. The initial state is all zero.
///
/// Most frees do not exceed the depths recorded so far, and do not check whether the period is over. When a period is
/// nearly over, the next tick makes frees *watched*: each free then checks for the end of the period, until one of them
/// closes it. As in the rule, only a free can close a period.
///
/// With a tick each second, a period ends with a free that is less than a second late. After a late tick, it may last longer
/// than two seconds. The rule then forgets its averages, and `high` returns to its lower limit.
///
/// Every access is relaxed, because the lock that the guard represents orders the accesses of its holders. Other
/// threads only read values, which may be out of date.
pub(super) struct DepthCells<'a, P: Platform>(&'a [P::U64; DEPTH_CELLS]);

impl<'a, P: Platform> DepthCells<'a, P> {
    pub(super) const fn new(cells: &'a [P::U64; DEPTH_CELLS]) -> Self {
        Self(cells)
    }

    /// Accounts for `frames` frames that were popped, or pushed if the number is negative; returns whether they went deeper
    /// than all before in this period ([`Depths::is_deeper`]).
    ///
    /// They must be one block, or have been within an [`Allowance`](crate::rules::pageset_tuning::allowance::Allowance).
    #[inline]
    pub(super) fn moved(&self, frames: i64, _guard: &impl CpuGuard) -> bool {
        let position = self.depths(POSITION).after(frames);
        self.0[POSITION].store(position.word(), Relaxed);
        let before = self.depths(DEEPEST);
        let deepest = before.deepest(position);
        if deepest != before {
            self.0[DEEPEST].store(deepest.word(), Relaxed);
        }
        position.is_deeper(before)
    }

    /// Returns how far the count of allocated frames is above its minimum and below its maximum in the period.
    #[inline]
    pub(super) fn position(&self) -> Depths {
        self.depths(POSITION)
    }

    /// Returns how many frames may be popped or pushed before one of them goes deeper than all before in this period.
    pub(super) fn leeway(&self, _guard: &impl CpuGuard) -> Leeway {
        self.depths(POSITION).leeway(self.depths(DEEPEST))
    }

    /// Closes the period if it is over; returns the new `pageset.high` in that case.
    #[inline]
    pub(super) fn end_period(&self, now: Moment, limits: impl FnOnce() -> HighLimits) -> Option<PageCount> {
        self.is_period_over(now).then(|| self.close_period(now, limits()))
    }

    /// Whether the period is over; the answer may be out of date.
    pub(super) fn is_period_over(&self, now: Moment) -> bool {
        is_period_over(self.start(), now)
    }

    /// Whether the period is over or nearly over; the answer may be out of date.
    pub(super) fn is_period_nearly_over(&self, now: Moment) -> bool {
        ns_apart(self.start(), now) > WATCH_NS
    }

    fn start(&self) -> Moment {
        Moment::from_ns(self.0[START].load(Relaxed))
    }

    #[cold]
    fn close_period(&self, now: Moment, limits: HighLimits) -> PageCount {
        let mut state = self.load();
        let high = state.close_period(now, limits);
        self.store(state);
        high
    }

    /// Resets the state. Called when the pageset's CPU goes online or offline, or the tuning changes.
    pub(super) fn reset(&self, _guard: &impl CpuGuard) {
        self.store(DepthState::default());
    }

    /// Returns a copy of the state, which may be inconsistent if the pageset is in use.
    pub(super) fn load(&self) -> DepthState {
        DepthState {
            position: self.depths(POSITION),
            deepest: self.depths(DEEPEST),
            average: self.depths(AVERAGE),
            start: self.start(),
        }
    }

    fn store(&self, state: DepthState) {
        self.0[POSITION].store(state.position.word(), Relaxed);
        self.0[DEEPEST].store(state.deepest.word(), Relaxed);
        self.0[AVERAGE].store(state.average.word(), Relaxed);
        self.0[START].store(state.start.ns(), Relaxed);
    }

    #[inline]
    fn depths(&self, cell: usize) -> Depths {
        Depths::from_word(self.0[cell].load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::testing::{Native, Random, Unshared};
    use crate::units::{Order, SECOND_NS};

    fn limits() -> HighLimits {
        HighLimits::new(PageCount::new(100), PageCount::new(10_000))
    }

    /// Compares the cells with the plain state on long random runs; both must return the same `high` every time.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn cells_and_plain_state_agree() {
        let cells: [AtomicU64; DEPTH_CELLS] = Default::default();
        let cells = DepthCells::<Native>::new(&cells);
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
                cells.moved(order.pages().get() as i64, &Unshared);
            } else {
                let moment = Moment::from_ns(now);
                cells.moved(-(order.pages().get() as i64), &Unshared);
                let high = plain.on_push(order, moment, limits());
                assert_eq!(cells.end_period(moment, limits), high);
                highs += usize::from(high.is_some_and(|high| high > limits().min()));
            }
            assert_eq!(cells.load(), plain);
        }
        assert!(highs > 50, "the run must tune: {highs}");
        cells.reset(&Unshared);
        assert_eq!(cells.load(), DepthState::default());
    }

    /// Checks that a pop does not access the averages, the start or the limits, and that a push within a period does
    /// not write them.
    #[test]
    fn hot_calls_leave_cold_cells_alone() {
        const BEGUN_NS: u64 = 10 * SECOND_NS;
        let mark = u64::MAX / 3;
        let cells = [0, 0, mark, BEGUN_NS].map(AtomicU64::new);
        let view = DepthCells::<Native>::new(&cells);
        view.moved(1, &Unshared);
        let no_limits = || unreachable!("limits are for the end of a period");
        view.moved(-1, &Unshared);
        assert_eq!(view.end_period(Moment::from_ns(BEGUN_NS + SECOND_NS), no_limits), None);
        assert_eq!(cells[AVERAGE].load(Relaxed), mark);
        assert_eq!(cells[START].load(Relaxed), BEGUN_NS);
    }
}
