//! Fences: ranges in a zone whose free frames are kept out of use.
//!
//! While a zone has a fence, its pagesets are closed, so that every free reaches a free area. The free then moves the
//! frames of the fence from the buddy to state `Fenced`, under the lock of the free area. No other thread can therefore
//! allocate them. Fenced frames count as allocated. Linux: `start_isolate_page_range` and `zone_pcp_disable`.
//! Related files: `ranges/fences.rs` creates and releases fences, `alloc/freed.rs` frees blocks.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::buddy::ranges::Sought;
use crate::machine::FrameRange;
use crate::platform::{Atomic, Platform};
use crate::units::{Order, PageCount};
use crate::zone::Zone;
use crate::zone::cells::FENCES_MAX;
use crate::zone::counters::ZoneItem;
use crate::zone::frame_state::FrameState;
use crate::zone::free_areas::{AREA_FRAMES_MIN, Entered};
use crate::zone::runs::Run;

/// Frames that are moved under one hold of an area's lock.
const STEP: u64 = AREA_FRAMES_MIN;

/// Word of an unused slot before it is combined with [`encode`]: a range that ends before it begins.
const UNUSED: u64 = 1 << 32;

/// Returns the word of a range: its first and its last frame. The word of an unused slot is 0.
pub(super) fn encode(run: Run) -> u64 {
    (u64::from(run.first) << 32 | (run.end() - 1)) ^ UNUSED
}

pub(super) fn decode(word: u64) -> Option<Run> {
    let (first, last) = ((word ^ UNUSED) >> 32, (word ^ UNUSED) & u64::from(u32::MAX));
    (first <= last).then(|| Run { first: first as u32, count: last - first + 1 })
}

// Accesses to `held` and `fences` are relaxed, because the lock for run-time changes orders writes of fences, and locks
// of areas order them with frees.
impl<'m, P: Platform> Zone<'m, P> {
    /// Whether the zone has a fence.
    pub(crate) fn has_fence(&self) -> bool {
        !P::ONLY_BLOCKS && self.cells.rules.0.fences.load(Relaxed) != 0
    }

    /// Returns the range of the fence in slot `at`.
    fn fence(&self, at: usize) -> Option<Run> {
        // Acquire: takes the reset of `held`; pairs with `Zone::add_fence`.
        decode(self.cells.fences.range[at].load(Acquire))
    }

    /// Returns the parts of a range that fences contain, each with the fence's slot.
    fn fenced_parts(&self, run: Run) -> impl Iterator<Item = (usize, Run)> {
        (0..FENCES_MAX).filter_map(move |at| Some((at, self.fence(at)?.overlap(run)?)))
    }

    /// Returns the first fence that overlaps a range.
    pub(crate) fn fence_over(&self, run: Run) -> Option<FrameRange> {
        let overlaps = |fence: &Run| fence.overlap(run).is_some();
        (0..FENCES_MAX).find_map(|at| self.fence(at).filter(overlaps)).map(|fence| self.range_of(fence))
    }

    /// Returns the number of frames that the fence in slot `at` holds.
    pub(crate) fn fence_held(&self, at: usize) -> PageCount {
        PageCount::new(self.cells.fences.held[at].load(Relaxed))
    }

    /// Returns the number of frames that all fences hold.
    pub(crate) fn fenced(&self) -> PageCount {
        (0..FENCES_MAX).map(|at| self.fence_held(at)).sum()
    }

    /// Returns the number of frames in a range that are free, fenced, claimed or retired.
    pub(crate) fn unused(&self, run: Run) -> PageCount {
        let free = self.free_areas.count_free(run.first, run.count);
        if !self.has_fence() && !self.overlaps_claim(run) && self.retired() == 0 {
            return PageCount::new(free);
        }
        let is_kept = |&frame: &u32| {
            matches!(
                self.frames.state(frame),
                FrameState::Fenced | FrameState::Claimed | FrameState::Retired(_)
            )
        };
        PageCount::new(free + run.frames().filter(is_kept).count() as u64)
    }

    /// Adds a fence, which holds no frames yet; returns its slot, or `None` if all slots are in use.
    ///
    /// The caller holds the lock for run-time changes, and then closes the zone's pagesets and calls
    /// [`Self::fence_free`].
    pub(crate) fn add_fence(&self, run: Run) -> Option<usize> {
        let at = (0..FENCES_MAX).find(|&at| self.fence(at).is_none())?;
        // Release: publishes the reset of `held`; pairs with `Zone::fence`.
        self.cells.fences.range[at].store(encode(run), Release);
        self.cells.rules.0.fences.fetch_add(1, Relaxed);
        self.free_areas.pass_locks_of(run);
        Some(at)
    }

    /// Removes a fence, so that frees no longer move frames to it; returns whether it was the last one.
    ///
    /// The caller holds the lock for run-time changes. The states of the frames do not change.
    pub(crate) fn remove_fence(&self, at: usize) -> bool {
        let run = self.fence(at).expect("a fence ends once");
        self.cells.fences.range[at].store(0, Relaxed);
        self.free_areas.pass_locks_of(run);
        self.cells.fences.held[at].store(0, Relaxed);
        self.cells.rules.0.fences.fetch_add(1_u64.wrapping_neg(), Relaxed) == 1
    }

    /// Moves the free frames of the fence in slot `at` from the buddy to the fence.
    ///
    /// Calls `moved` with their number, which the caller counts as allocated, before the lock of an area is released.
    pub(crate) fn fence_free(&self, at: usize, moved: impl Fn(u64)) {
        let Some(run) = self.fence(at) else { return };
        self.each_free(run, |area, free| moved(self.keep(area, at, free)));
    }

    /// Calls `each` for each range of free frames within `run`, while the lock of their area is held.
    pub(super) fn each_free(&self, run: Run, mut each: impl FnMut(&Entered<'m, P>, Run)) {
        for step in steps(run) {
            let area = self.free_areas.enter(self.free_areas.area_of(step.first));
            let end = step.end();
            let mut from = u64::from(step.first);
            while from < end {
                let until = area.same_until(from, end, Sought::Free);
                let free = Run { first: from as u32, count: until - from };
                if free.count != 0 {
                    each(&area, free);
                }
                from = area.same_until(until, end, Sought::Used);
            }
        }
    }

    /// Frees a block to its free area, except for the frames that fences keep. Adds the others to the counter of free
    /// frames.
    ///
    /// Returns how many of its frames fences keep now, which the caller counts as allocated, or `None` if the buddy refuses
    /// the block.
    pub(crate) fn merge_into_area(&self, frame: u32, order: Order) -> Option<u64> {
        let (count, mut kept) = (order.pages().get(), 0);
        if let Some(merged) = self.merge_into_owned(frame, order) {
            if merged.free != 0 {
                self.counters().add_total(ZoneItem::Free, merged.free as i64);
            }
            return (merged.refused == 0).then_some(kept);
        }
        let freed = |area: &Entered<'m, P>| kept = self.keep_fenced(area, Run { first: frame, count });
        if !self.free_areas.free(frame, order, freed) {
            return None;
        }
        self.counters().add_total(ZoneItem::Free, (count - kept) as i64);
        Some(kept)
    }

    /// Removes a run's frames from the buddy if all of them are free, and subtracts them from the counter of free
    /// frames.
    ///
    /// # Errors
    /// Returns how many of its frames fences keep now, which the caller counts as allocated, if any frame is not free.
    pub(crate) fn take_exactly(&self, run: Run) -> Result<(), u64> {
        let mut kept = 0;
        let left = |count| self.counters().add_total(ZoneItem::Free, -(count as i64));
        let freed = |area: &Entered<'m, P>, run: Run| {
            let of_run = self.keep_fenced(area, run);
            self.counters().add_total(ZoneItem::Free, (run.count - of_run) as i64);
            kept += of_run;
        };
        if self.free_areas.take_steps(run, left, freed) { Ok(()) } else { Err(kept) }
    }

    /// Moves frames that were just freed from the buddy to the fences that contain them; returns their number.
    ///
    /// The caller holds the lock of the area with these frames, and has not released it since the free.
    fn keep_fenced(&self, area: &Entered<'m, P>, freed: Run) -> u64 {
        if !self.has_fence() {
            return 0;
        }
        self.fenced_parts(freed).map(|(at, part)| self.keep(area, at, part)).sum()
    }

    /// Moves free frames of the fence in slot `at` from the buddy to the fence; returns their number.
    fn keep(&self, area: &Entered<'m, P>, at: usize, run: Run) -> u64 {
        self.take_free(area, run, FrameState::Fenced);
        self.cells.fences.held[at].fetch_add(run.count, Relaxed);
        run.count
    }

    /// Removes free frames from the buddy and gives them state `to`.
    pub(super) fn take_free(&self, area: &Entered<'m, P>, run: Run, to: FrameState) {
        let taken = area.buddy.take_range(&area.held, run.first - area.first, run.count);
        assert!(taken, "frames found free under the lock are free");
        self.holders().take(run.first, run.count);
        run.frames().for_each(|frame| self.frames.set(frame, to));
    }

    /// Returns the frames of a range with state `from`, which a removed fence or a claim held, to the buddy, except for
    /// those that other fences keep. Returns how many are free now.
    pub(crate) fn give_back(&self, run: Run, from: FrameState) -> u64 {
        let mut returned = 0;
        for step in steps(run) {
            let mut next = u64::from(step.first);
            while next < step.end() {
                let leaves =
                    |&frame: &u64| self.frames.exchange(frame as u32, from, FrameState::Free).is_ok();
                let count = (next..step.end()).take_while(leaves).count() as u64;
                if count == 0 {
                    next += 1;
                    continue;
                }
                let left = Run { first: next as u32, count };
                let is_added = self.free_areas.add_pieces(left, &mut |area, part| {
                    let count = part.count - self.keep_fenced(area, part);
                    self.counters().add_total(ZoneItem::Free, count as i64);
                    returned += count;
                });
                assert!(is_added, "frames that were held are not in the buddy");
                next += count;
            }
        }
        returned
    }

    /// Counts a frame that its fence no longer holds. The caller holds the lock for run-time changes.
    pub(crate) fn leave_fence(&self, frame: u32) {
        for (at, _) in self.fenced_parts(Run { first: frame, count: 1 }) {
            self.cells.fences.held[at].fetch_add(1_u64.wrapping_neg(), Relaxed);
        }
    }
}

/// Divides a range at multiples of [`STEP`], so that each step is within one area.
pub(super) fn steps(run: Run) -> impl Iterator<Item = Run> {
    let (first, end) = (u64::from(run.first), run.end());
    (first / STEP..end.div_ceil(STEP)).map(move |step| {
        let start = (step * STEP).max(first);
        Run { first: start as u32, count: ((step + 1) * STEP).min(end) - start }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_their_words() {
        for run in [Run { first: 0, count: 1 }, Run { first: 7, count: 9 }, Run { first: 0, count: 1 << 32 }]
        {
            assert_eq!(decode(encode(run)), Some(run));
            assert_ne!(encode(run), 0);
        }
        assert_eq!(decode(0), None);
    }

    #[test]
    fn steps_do_not_cross_their_multiples() {
        let parts: std::vec::Vec<_> =
            steps(Run { first: 4000, count: 5000 }).map(|step| step.count).collect();
        assert_eq!(parts, [96, 4096, 808]);
    }
}
