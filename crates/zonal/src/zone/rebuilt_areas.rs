//! Areas after the death of a process: their bitmaps are built anew, and what it held is freed.
//!
//! Related files: `zone/processes.rs` says which process holds a frame, `processes/recover.rs` recovers from a death.

use core::ops::Range;

use crate::platform::Platform;
use crate::zone::free_areas::{Entered, FreeAreas};
use crate::zone::processes::Holders;

impl<'m, P: Platform> FreeAreas<'m, P> {
    /// Builds the bitmaps of an area anew from the holders if a process died while it held the area's lock; returns the area.
    #[inline(never)]
    pub(super) fn rebuild(&self, area: Entered<'m, P>) -> Entered<'m, P> {
        area.held.repair_with(|| {
            let runs = self.holders.runs(area.frames(), Holders::<P>::NO_HOLDER);
            let first = u64::from(area.first);
            area.buddy.rebuild(&area.held, runs.map(|run| u64::from(run.first) - first..run.end() - first));
        });
        area
    }

    /// Frees the frames of an area that `process` holds, ascending, except for blocks that stay: `stays` returns how many
    /// frames the block at a frame has, or 0 if the frame is to be freed. Returns how many were freed.
    pub(crate) fn add_held(&self, at: usize, process: u8, mut stays: impl FnMut(u32) -> u64) -> u64 {
        let area = self.enter(at);
        let (mut freed, mut end) = (0, 0);
        let mut free = |frames: Range<u64>| {
            let count = frames.end.saturating_sub(frames.start);
            if count > 0 {
                self.holders.give(frames.start as u32, count);
                let is_added = area.buddy.add_range(&area.held, frames.start as u32 - area.first, count);
                assert!(is_added, "frames that a process holds are not free");
                freed += count;
            }
        };
        for run in self.holders.held(area.frames(), process) {
            // A block that stays can go on beyond the run in which it begins.
            let mut first = u64::from(run.first).max(end);
            let mut frame = first;
            while frame < run.end() {
                let staying = stays(frame as u32);
                if staying > 0 {
                    free(first..frame);
                    end = frame + staying;
                    first = end;
                }
                frame += staying.max(1);
            }
            free(first..run.end());
        }
        freed
    }
}

impl<P: Platform> Entered<'_, P> {
    /// Returns the frames of the area, as offsets in the zone.
    fn frames(&self) -> Range<u64> {
        let first = u64::from(self.first);
        first..first + self.buddy.frames()
    }
}
