//! How far the drains of each CPU's pagesets have grown, for kernels whose drains double.
//!
//! Related files: `sim/kernel_drains.rs` uses this state.

use std::cell::Cell;

use zonal::rules::pageset_limits::PagesetLimits;
use zonal::units::PageCount;

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
    pub(super) fn next(&self, cpu: usize, batch: PageCount) -> PageCount {
        let doublings = &self.doublings[cpu];
        let wanted = PageCount::new(batch.get().checked_shl(doublings.get()).unwrap_or(u64::MAX));
        let most = self.most.get().max(batch);
        if wanted < most {
            doublings.set(doublings.get() + 1);
        }
        wanted.min(most)
    }

    /// Records an allocation on `cpu`.
    #[inline]
    pub(super) fn halve(&self, cpu: usize) {
        self.doublings[cpu].set(self.doublings[cpu].get() / 2);
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
        drains.halve(0);
        assert_eq!([0; 3].map(next), [252, 504, 639]);
    }
}
