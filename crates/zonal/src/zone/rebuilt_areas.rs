//! Areas after the death of a process: their bitmaps are built anew, and what it held is freed.
//!
//! Related files: `zone/processes.rs` says which process holds a frame, `processes/recover.rs` recovers from a death.

use core::ops::Range;

use crate::platform::Platform;
use crate::zone::free_areas::{Entered, FreeAreas};
use crate::zone::processes::Holders;
use crate::zone::runs::Run;

impl<'m, P: Platform> FreeAreas<'m, P> {
    /// Builds the bitmaps of an area anew from the holders, because a process died while it held the area's lock.
    #[cold]
    pub(super) fn rebuild(&self, area: &Entered<'m, P>) {
        area.buddy.clear(&area.held);
        for run in self.holders.runs(area.frames(), Holders::<P>::NO_HOLDER) {
            let is_added = area.buddy.add_range(&area.held, run.first - area.first, run.count);
            assert!(is_added, "an empty buddy has none of the frames");
        }
    }

    /// Frees the frames of an area that `process` holds; calls `giving` with each run of them before.
    pub(crate) fn add_held(&self, at: usize, process: u8, mut giving: impl FnMut(Run)) {
        let area = self.enter(at);
        for run in self.holders.runs(area.frames(), process) {
            giving(run);
            self.holders.give(run.first, run.count);
            let is_added = area.buddy.add_range(&area.held, run.first - area.first, run.count);
            assert!(is_added, "frames that a process holds are not free");
        }
    }
}

impl<P: Platform> Entered<'_, P> {
    /// Returns the frames of the area, as offsets in the zone.
    fn frames(&self) -> Range<u64> {
        let first = u64::from(self.first);
        first..first + self.buddy.frames()
    }
}
