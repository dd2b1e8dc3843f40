//! Drains of pagesets that double, as in Linux 5.14 to 6.6: a form of tuning for replays of these kernels.
//!
//! A drain moves twice as many frames as the one before, up to all frames but a batch; each allocation halves this again.
//! The rule object of the core has no state, so the world stores how often each CPU has doubled, in one number for all of
//! its pagesets. Related files: `zonal_machine::pagesets` has the same rule for pagesets without an allocator, and
//! `sim/machine.rs` selects this form.

use std::cell::Cell;

use zonal::rules::pageset_limits::PagesetLimits;
use zonal::rules::pageset_tuning::{PagesetTuning, TuningForm};
use zonal::units::PageCount;
use zonal_history::DepthPublished;

use super::world::{self, World};

/// The depth rule as published, with drains that double as in its base kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DoublingDrains;

impl TuningForm for DoublingDrains {
    fn tuning(&self) -> PagesetTuning {
        DepthPublished.tuning()
    }

    fn smaller_orders(&self) -> u8 {
        DepthPublished.smaller_orders()
    }

    fn drain_size(&self, batch: PageCount, excess: Option<PageCount>) -> PageCount {
        let grown = world::with(|world| world.drains.next(world.cpu(), batch)).unwrap_or(batch);
        grown.max(excess.unwrap_or_default())
    }
}

/// How often each CPU has doubled its drains since its last allocations, indexed by CPU.
#[derive(Debug)]
pub(super) struct KernelDrains {
    doublings: Vec<Cell<u32>>,
    /// The largest drain.
    most: Cell<PageCount>,
}

impl KernelDrains {
    pub(super) fn new(cpus: usize) -> Self {
        Self { doublings: vec![Cell::new(0); cpus], most: Cell::new(PageCount::ZERO) }
    }

    /// Sets the largest drain for pagesets with these limits.
    pub(super) fn limit(&self, limits: &PagesetLimits) {
        self.most.set(self.most.get().max(limits.high_max.saturating_minus(limits.batch)));
    }

    /// Returns how many frames the next drain on `cpu` moves, at most all of a pageset's frames.
    fn next(&self, cpu: usize, batch: PageCount) -> PageCount {
        let doublings = &self.doublings[cpu];
        let wanted = PageCount::new(batch.get().checked_shl(doublings.get()).unwrap_or(u64::MAX));
        let most = self.most.get().max(batch);
        if wanted < most {
            doublings.set(doublings.get() + 1);
        }
        wanted.min(most)
    }
}

impl World {
    /// Records that the running CPU allocates.
    #[inline]
    pub fn note_alloc(&self) {
        let doublings = &self.drains.doublings[self.cpu()];
        doublings.set(doublings.get() / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drains_double_until_an_allocation() {
        let pages = PageCount::new;
        let drains = KernelDrains::new(2);
        drains.limit(&PagesetLimits { batch: pages(63), high_min: pages(702), high_max: pages(702) });
        let next = |cpu| drains.next(cpu, pages(63)).get();
        assert_eq!([0; 6].map(next), [63, 126, 252, 504, 639, 639]);
        assert_eq!(next(1), 63);
        let factor = &drains.doublings[0];
        factor.set(factor.get() / 2);
        assert_eq!([0; 3].map(next), [252, 504, 639]);
    }
}
