//! The state of the stepwise tuning rule, stored in a cell of a pageset.
//!
//! Related files: `rules/pageset_tuning/stepwise.rs` defines the rule, and `pageset/mod.rs` has the cell.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::stepwise::{PagesetFigures, Resize, StepwiseState, ZoneLevel};
use crate::units::Order;
use crate::zone::counters::CpuGuard;

/// A [`StepwiseState`] in a cell, protected by the pageset's lock. Zero is the initial state.
///
/// Only one tuning rule applies at a time, and a change of the rule resets the cell.
///
/// Every access is relaxed, because the lock that the guard represents orders the accesses of its holders.
pub(super) struct StepwiseCell<'a, P: Platform>(&'a P::U64);

impl<'a, P: Platform> StepwiseCell<'a, P> {
    pub(super) const fn new(cell: &'a P::U64) -> Self {
        Self(cell)
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

    /// Returns a copy of the state.
    #[inline]
    pub(super) fn load(&self) -> StepwiseState {
        StepwiseState::from_word(self.0.load(Relaxed))
    }

    /// Changes the state, and returns what `change` returns.
    #[inline]
    pub(super) fn update<R>(
        &self,
        _guard: &impl CpuGuard,
        change: impl FnOnce(&mut StepwiseState) -> R,
    ) -> R {
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
    use crate::units::PageCount;

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
                    cell.update(&Unshared, |state| state.on_step(1, Order::PAGE, || pageset.batch));
                    plain.on_pop();
                }
                1 => {
                    cell.update(&Unshared, |state| state.on_step(-1, Order::PAGE, || pageset.batch));
                    plain.on_push(Order::PAGE, pageset.batch);
                }
                2 => {
                    let frames = random.index(21) as i64 - 10;
                    cell.update(&Unshared, |state| state.moved(frames, || pageset.batch));
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
        cell.update(&Unshared, |state| *state = StepwiseState::default());
        assert_eq!(cell.load(), StepwiseState::default());
    }
}
