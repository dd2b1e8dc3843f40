//! The state of the depth rule, stored in cells of a pageset.
//!
//! Related files: `rules/pageset_tuning/depth.rs` defines the rule, `pageset/mod.rs` has the cells, and
//! `pageset/session.rs` sets limits from the leeway.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::HighLimits;
use crate::rules::pageset_tuning::depth::{DepthState, Depths, WATCH_NS, is_period_over, ns_apart, pages};
use crate::units::{Moment, Order, PageCount};
use crate::zone::counters::CpuGuard;

/// How many frames may be popped or pushed before a tuning rule needs more than the sum of these steps; see
/// [`DepthCells::leeway`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leeway {
    pub(super) pops: u32,
    pub(super) pushes: u32,
}

impl Leeway {
    pub(super) const NONE: Self = Self { pops: 0, pushes: 0 };

    /// Returns the leeway after a pop of `pages` frames, or `None` if there is too little.
    #[inline]
    pub(super) fn after_pop(self, pages: u32) -> Option<Self> {
        Some(Self { pops: self.pops.checked_sub(pages)?, pushes: self.pushes + pages })
    }

    /// Returns the leeway after a push of `pages` frames, or `None` if there is too little.
    #[inline]
    pub(super) fn after_push(self, pages: u32) -> Option<Self> {
        Some(Self { pops: self.pops + pages, pushes: self.pushes.checked_sub(pages)? })
    }

    #[inline]
    pub(super) const fn from_word(word: u64) -> Self {
        Self { pops: word as u32, pushes: (word >> 32) as u32 }
    }

    #[inline]
    pub(super) const fn word(self) -> u64 {
        self.pops as u64 | (self.pushes as u64) << 32
    }
}

/// The run to which the last step belongs.
///
/// Under the depth rule, each pop in a *climb* and each push in a *dive* goes deeper than all earlier steps in its
/// direction in the period. Under the stepwise rule, the last step of a climb or a dive left that rule's cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Run {
    Climb,
    Dive,
    None,
}

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
/// Every access is relaxed, because the lock that the guard represents orders the accesses of its holders. Other
/// threads only read values, which may be out of date.
pub(crate) struct DepthCells<'a, P: Platform>(&'a [P::U64; DEPTH_CELLS]);

impl<'a, P: Platform> DepthCells<'a, P> {
    pub(super) const fn new(cells: &'a [P::U64; DEPTH_CELLS]) -> Self {
        Self(cells)
    }

    /// Applies [`DepthState::on_pop`]; returns [`Run::Climb`] if the pop goes deeper than all earlier pops in the
    /// period.
    #[inline]
    pub(crate) fn on_pop(&self, order: Order, _guard: &impl CpuGuard) -> Run {
        let before = self.moved_to(self.depths(POSITION).after_pop(pages(order)));
        if self.depths(DEEPEST).alloc > before.alloc { Run::Climb } else { Run::None }
    }

    /// Accounts for `frames` frames that were popped, or pushed if the number is negative.
    ///
    /// All steps must have been within [`DepthCells::leeway`], except a last run of steps in one direction.
    pub(super) fn moved(&self, frames: i64, _guard: &impl CpuGuard) {
        self.moved_to(self.position_after(frames));
    }

    /// Returns the position after `frames` frames were popped, or pushed if the number is negative.
    #[inline]
    fn position_after(&self, frames: i64) -> Depths {
        let (position, pages) = (self.depths(POSITION), frames.unsigned_abs() as u32);
        if frames > 0 { position.after_pop(pages) } else { position.after_push(pages) }
    }

    /// Returns how far the count of allocated frames is above its minimum and below its maximum in the period.
    #[inline]
    pub(super) fn position(&self) -> Depths {
        self.depths(POSITION)
    }

    /// Returns how many frames may be popped or pushed before one of them goes deeper than all before in this period.
    pub(super) fn leeway(&self, _guard: &impl CpuGuard) -> Leeway {
        let (position, deepest) = (self.depths(POSITION), self.depths(DEEPEST));
        let left = |deepest: u32, position: u32| deepest.saturating_sub(position);
        Leeway { pops: left(deepest.alloc, position.alloc), pushes: left(deepest.free, position.free) }
    }

    /// Applies the first half of [`DepthState::on_push`]; returns [`Run::Dive`] if the push goes deeper than all
    /// earlier pushes in the period.
    ///
    /// [`Self::end_period`] applies the second half.
    #[inline]
    pub(super) fn on_push(&self, order: Order, _guard: &impl CpuGuard) -> Run {
        let before = self.moved_to(self.depths(POSITION).after_push(pages(order)));
        if self.depths(DEEPEST).free > before.free { Run::Dive } else { Run::None }
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

    /// Stores the position; returns the deepest positions that were recorded before.
    #[inline]
    fn moved_to(&self, position: Depths) -> Depths {
        self.0[POSITION].store(position.word(), Relaxed);
        let before = self.depths(DEEPEST);
        let deepest = before.deepest(position);
        if deepest != before {
            self.0[DEEPEST].store(deepest.word(), Relaxed);
        }
        before
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
    use crate::units::SECOND_NS;

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
                cells.on_pop(order, &Unshared);
            } else {
                let moment = Moment::from_ns(now);
                cells.on_push(order, &Unshared);
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
        view.on_pop(Order::PAGE, &Unshared);
        let no_limits = || unreachable!("limits are for the end of a period");
        view.on_push(Order::PAGE, &Unshared);
        assert_eq!(view.end_period(Moment::from_ns(BEGUN_NS + SECOND_NS), no_limits), None);
        assert_eq!(cells[AVERAGE].load(Relaxed), mark);
        assert_eq!(cells[START].load(Relaxed), BEGUN_NS);
    }
}
