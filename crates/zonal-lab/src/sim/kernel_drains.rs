//! Drains of pagesets that double, as in Linux 5.14 to 6.6: a tuning form for replaying these kernels.
//!
//! A drain moves twice as many frames as the one before, up to all frames but a batch; each allocation halves this again.
//! The rule object of the core has no state, so the world stores how often each CPU has doubled, in one number for all of
//! its pagesets. Related files: `sim/doublings.rs` stores it, `zonal_machine::pagesets` has the same rule for pagesets without an allocator, and
//! `sim/machine.rs` selects this form.

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

impl World {
    /// Records that the running CPU allocates.
    #[inline]
    pub fn note_alloc(&self) {
        self.drains.halve(self.cpu());
    }
}
