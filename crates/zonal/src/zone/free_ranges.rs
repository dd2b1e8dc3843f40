//! The free areas' operations on ranges of frames, which may cross areas, and on frames below a limit.
//!
//! Each area is locked for its own part of a range only, so that a range that crosses areas is not changed in one step.
//! Related files: `zone/free_areas.rs` has the areas, `buddy/ranges.rs` operates on one area.

use core::ops::Range;

use crate::buddy::ranges::Sought;
use crate::platform::Platform;
use crate::units::Order;
use crate::zone::fences::steps;
use crate::zone::free_areas::{Entered, FreeAreas};
use crate::zone::runs::Run;

/// Frames that are searched under one hold of an area's lock.
const SEARCH_STEP: u64 = 1 << 16;

impl<'m, P: Platform> FreeAreas<'m, P> {
    /// Calls `work` under the lock of the area that contains `frame`.
    pub(crate) fn with_lock_of<T>(&self, frame: u32, work: impl FnOnce() -> T) -> T {
        let _area = self.enter(self.area_of(frame));
        work()
    }

    /// Allocates the lowest `order` block within the first `end` frames of the zone; returns its first frame.
    ///
    /// `leaving` is called before the area's lock is released.
    #[must_use]
    pub(crate) fn take_below(&self, order: Order, end: u64, leaving: impl FnOnce()) -> Option<u32> {
        let (frame, area) = self.find_below(order, end)?;
        let taken = area.buddy.take_range(&area.held, frame, order.pages().get());
        assert!(taken, "frames found free under the lock are free");
        self.holders.take(area.first + frame, order.pages().get());
        leaving();
        Some(area.first + frame)
    }

    /// Whether the zone's first `end` frames have a free block of `order`.
    pub(crate) fn has_block_below(&self, order: Order, end: u64) -> bool {
        self.find_below(order, end).is_some()
    }

    /// Finds the lowest free `order` block within the first `end` frames of the zone. Returns the block's offset in its
    /// area, and the locked area.
    ///
    /// Searches in steps, so that no lock is held for long.
    fn find_below(&self, order: Order, end: u64) -> Option<(u32, Entered<'m, P>)> {
        let step = order.pages().get().max(SEARCH_STEP);
        for (at, _, count) in self.pieces(0, end) {
            let mut from = 0;
            while from < count && self.area_has(at, order) {
                let area = self.enter(at);
                if let Some(frame) = area.buddy.find_block(&area.held, order, from..(from + step).min(count))
                {
                    return Some((frame, area));
                }
                from += step;
            }
        }
        None
    }

    /// Returns the first frame, aligned for `align`, of the lowest range with `count` free frames within `within`.
    ///
    /// A hint: other CPUs may allocate some of these frames at any time.
    pub(crate) fn find_range(&self, within: Range<u64>, count: u64, align: Order) -> Option<u32> {
        let align = align.pages().get();
        let mut at = within.start.next_multiple_of(align);
        while at + count <= within.end {
            let free = self.same_until(at, at + count, Sought::Free);
            if free == at + count {
                return Some(at as u32);
            }
            at = self.same_until(free, within.end, Sought::Used).next_multiple_of(align);
        }
        None
    }

    /// Returns the end of the frames from `from` on that are all free, or all used, at most `end`.
    pub(crate) fn same_until(&self, from: u64, end: u64, sought: Sought) -> u64 {
        for (at, first, count) in self.pieces(from, end - from) {
            let until = u64::from(first) + count;
            let same = self.enter(at).same_until(first.into(), until, sought);
            if same < until {
                return same;
            }
        }
        end
    }

    /// Acquires and releases the lock of each area that contains frames in `run`.
    ///
    /// Afterwards every holder of these locks sees the caller's earlier writes.
    pub(super) fn pass_locks_of(&self, run: Run) {
        self.pieces(u64::from(run.first), run.count).for_each(|(at, ..)| drop(self.enter(at)));
    }

    /// Frees a range of frames area by area; returns `false` if one of the frames is already free.
    #[must_use]
    pub(super) fn add_range(&self, first: u32, count: u64) -> bool {
        self.add_pieces(Run { first, count }, &mut |_, _| {})
    }

    /// Frees a range like [`Self::add_range`]; calls `freed` with each area's part before the area's lock is released.
    pub(super) fn add_pieces(&self, run: Run, freed: &mut impl FnMut(&Entered<'m, P>, Run)) -> bool {
        self.pieces(u64::from(run.first), run.count).all(|(at, first, count)| {
            let area = self.enter(at);
            let is_added = area.buddy.add_range(&area.held, first - area.first, count);
            if is_added {
                self.holders.give(first, count);
                freed(&area, Run { first, count });
            }
            is_added
        })
    }

    /// Allocates all frames of a range, which may cross areas; allocates none and returns `false` if one of them is not
    /// free.
    ///
    /// The range is allocated in steps, so that no lock is held for long. Each step is within one area. `left` is
    /// called with the number of frames that are allocated, and `freed` with frames that are returned, both before an
    /// area's lock is released.
    #[must_use]
    pub(super) fn take_steps(
        &self,
        run: Run,
        left: impl Fn(u64),
        mut freed: impl FnMut(&Entered<'m, P>, Run),
    ) -> bool {
        for step in steps(run) {
            let area = self.enter(self.area_of(step.first));
            if area.buddy.take_range(&area.held, step.first - area.first, step.count) {
                self.holders.take(step.first, step.count);
                left(step.count);
                continue;
            }
            drop(area);
            for taken in steps(run).take_while(|taken| taken.first < step.first) {
                let is_added = self.add_pieces(taken, &mut freed);
                assert!(is_added, "frames allocated by an earlier step are free");
            }
            return false;
        }
        true
    }

    /// Returns the number of free frames among `count` frames from `first`.
    pub(crate) fn count_free(&self, first: u32, count: u64) -> u64 {
        let count_piece = |(at, first, count)| {
            let area = self.enter(at);
            area.buddy.count_free(&area.held, first - area.first, count)
        };
        self.pieces(u64::from(first), count).map(count_piece).sum()
    }

    /// Divides a range into pieces at the borders of areas; returns each piece's area, first frame and count.
    fn pieces(&self, first: u64, count: u64) -> impl Iterator<Item = (usize, u32, u64)> + use<P> {
        let (log2, end) = (self.shape.frames_log2, first + count);
        let areas = (first >> log2)..end.div_ceil(1 << log2);
        areas.map(move |at| {
            let (start, stop) = ((at << log2).max(first), ((at + 1) << log2).min(end));
            (at as usize, start as u32, stop - start)
        })
    }
}

impl<P: Platform> Entered<'_, P> {
    /// Returns the end of the frames from `from` on that are all free, or all used, at most `end`. Both are offsets in
    /// the zone.
    pub(super) fn same_until(&self, from: u64, end: u64, sought: Sought) -> u64 {
        let first = u64::from(self.first);
        first + self.buddy.same_until(&self.held, from - first, end - first, sought)
    }
}
