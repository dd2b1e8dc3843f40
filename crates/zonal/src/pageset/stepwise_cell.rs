//! The state of the stepwise tuning rule, stored in a cell of a pageset.
//!
//! Related files: `rules/pageset_tuning/stepwise.rs` defines the rule, and `pageset/mod.rs` has the cell.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::depth_cells::{Leeway, Run};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::stepwise::{PagesetFigures, Resize, StepwiseState, ZoneLevel};
use crate::units::{Order, PageCount};
use crate::zone::counters::CpuGuard;

/// A [`StepwiseState`] in a cell, protected by the pageset's lock. Zero is the initial state.
///
/// Only one tuning rule applies at a time, and a change of the rule resets the cell.
///
/// Every access is relaxed, because the lock that the guard represents orders the accesses of its holders.
pub(crate) struct StepwiseCell<'a, P: Platform>(&'a P::U64);

impl<'a, P: Platform> StepwiseCell<'a, P> {
    pub(super) const fn new(cell: &'a P::U64) -> Self {
        Self(cell)
    }

    /// Calls [`StepwiseState::on_pop`]; returns [`Run::None`] if both pops and pushes may follow without the lock, and
    /// otherwise [`Run::Climb`].
    #[inline]
    pub(crate) fn on_pop(&self, guard: &impl CpuGuard) -> Run {
        self.update(guard, |state| {
            state.on_pop();
            if state.steps_in_cycle().0 > 0 { Run::None } else { Run::Climb }
        })
    }

    /// Calls [`StepwiseState::on_push`]; returns [`Run::None`] if both pops and pushes may follow without the lock, and
    /// otherwise [`Run::Dive`].
    #[inline]
    pub(super) fn on_push(&self, order: Order, batch: PageCount, guard: &impl CpuGuard) -> Run {
        self.update(guard, |state| {
            state.on_push(order, batch);
            if state.steps_in_cycle().0 > 0 { Run::None } else { Run::Dive }
        })
    }

    /// Accounts for `frames` pops of single frames, or for pushes if `frames` is negative.
    ///
    /// The steps must have been a run in one direction, or within [`StepwiseCell::leeway`].
    pub(super) fn moved(&self, frames: i64, batch: impl FnOnce() -> PageCount, guard: &impl CpuGuard) {
        let steps = frames.unsigned_abs() as u32;
        self.update(guard, |state| match frames {
            1.. => state.on_pops(steps),
            0 => {}
            _ => state.on_pushes(steps, batch()),
        });
    }

    /// Returns how many single frames may be popped or pushed before the state depends on the order of these steps.
    pub(super) fn leeway(&self, _guard: &impl CpuGuard) -> Leeway {
        let (pops, pushes) = self.load().steps_in_cycle();
        Leeway { pops, pushes }
    }

    /// Calls [`StepwiseState::refill`].
    pub(super) fn refill(
        &self,
        pageset: &PagesetFigures,
        order: Order,
        level: ZoneLevel,
        guard: &impl CpuGuard,
    ) -> Resize {
        self.update(guard, |state| state.refill(pageset, order, level))
    }

    /// Calls [`StepwiseState::drain`].
    pub(super) fn drain(&self, pageset: &PagesetFigures, level: ZoneLevel, _guard: &impl CpuGuard) -> Resize {
        self.load().drain(pageset, level)
    }

    /// Resets the state.
    pub(super) fn reset(&self, guard: &impl CpuGuard) {
        self.update(guard, |state| *state = StepwiseState::default());
    }

    #[inline]
    fn load(&self) -> StepwiseState {
        StepwiseState::from_word(self.0.load(Relaxed))
    }

    #[inline]
    fn update<R>(&self, _guard: &impl CpuGuard, change: impl FnOnce(&mut StepwiseState) -> R) -> R {
        let before = self.load();
        let mut state = before;
        let result = change(&mut state);
        if state != before {
            self.0.store(state.word(), Relaxed);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicU64;

    use super::*;
    use crate::rules::pageset_tuning::HighLimits;
    use crate::testing::{Native, Random, Unshared};

    fn pageset(count: u64, high: u64) -> PagesetFigures {
        let [count, high, batch, min, max] = [count, high, 63, 4 * 63, 100 * 63].map(PageCount::new);
        PagesetFigures { count, high, batch, limits: HighLimits::new(min, max) }
    }

    #[test]
    fn cell_and_plain_form_agree() {
        let word = AtomicU64::new(0);
        let (cell, mut plain) = (StepwiseCell::<Native>::new(&word), StepwiseState::default());
        let mut random = Random::new(3);
        for _ in 0..10_000 {
            let pageset = pageset(random.index(3000) as u64, 252 + random.index(3000) as u64);
            let level = [ZoneLevel::Above, ZoneLevel::Below][random.index(2)];
            match random.index(5) {
                0 => {
                    cell.on_pop(&Unshared);
                    plain.on_pop();
                }
                1 => {
                    cell.on_push(Order::PAGE, pageset.batch, &Unshared);
                    plain.on_push(Order::PAGE, pageset.batch);
                }
                2 => {
                    let frames = random.index(21) as i64 - 10;
                    cell.moved(frames, || pageset.batch, &Unshared);
                    (0..frames).for_each(|_| plain.on_pop());
                    (frames..0).for_each(|_| plain.on_push(Order::PAGE, pageset.batch));
                }
                3 => assert_eq!(
                    cell.refill(&pageset, Order::PAGE, level, &Unshared),
                    plain.refill(&pageset, Order::PAGE, level)
                ),
                _ => assert_eq!(cell.drain(&pageset, level, &Unshared), plain.drain(&pageset, level)),
            }
            assert_eq!(cell.load(), plain);
        }
        cell.reset(&Unshared);
        assert_eq!(cell.load(), StepwiseState::default());
    }
}
