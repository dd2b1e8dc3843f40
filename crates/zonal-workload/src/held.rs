//! The single frames that a lane holds, which it allocates and frees in runs.
//!
//! Slots are created once and then overwritten. A run of allocations or frees iterates over a slice and keeps no count
//! in memory, so that the harness costs little compared with the measured allocator.

use std::ops::Range;

use zonal::units::Order;

use crate::PageSource;
use crate::lane::{Lane, Operation};

/// Frames held, in the order of allocation: `slots[..count]`.
pub(super) struct Held<P> {
    slots: Vec<P>,
    count: usize,
}

impl<P: Copy + Default> Held<P> {
    /// Creates an empty value without slots.
    pub(super) const fn nothing() -> Self {
        Self { slots: Vec::new(), count: 0 }
    }

    /// Creates `most` slots. The calling thread writes to them, so that their memory is local to its node.
    pub(super) fn reserve(&mut self, most: usize) {
        self.slots.resize(most, P::default());
    }

    /// Returns the number of frames held.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Returns the frames held.
    pub(super) fn frames(&mut self) -> &mut [P] {
        &mut self.slots[..self.count]
    }

    /// Allocates up to `wanted` frames, limited by the free slots. If `TOUCH`, also stores to each frame. Returns the
    /// number of frames allocated.
    pub(super) fn alloc<const TOUCH: bool, S: PageSource<Page = P>>(
        &mut self,
        lane: &mut Lane<'_, S>,
        wanted: usize,
    ) -> usize {
        let slots = &mut self.slots[self.count..];
        let taken = lane.each(wanted.min(slots.len()), AllocTo::<_, TOUCH>(slots.iter_mut()));
        self.count += taken;
        taken
    }

    /// Frees up to `wanted` frames, the last frame first.
    pub(super) fn free_last<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>, wanted: usize) {
        let kept = self.count.saturating_sub(wanted);
        let going: Range<usize> = kept..self.count;
        lane.each(going.len(), FreeEach(self.slots[going].iter().rev().copied()));
        self.count = kept;
    }

    /// Frees all frames, the first frame first.
    pub(super) fn free_all_in_order<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        lane.each(self.count, FreeEach(self.frames().iter().copied()));
        self.count = 0;
    }

    /// Frees all frames in the order of `places`, which contains each place once.
    pub(super) fn free_all_listed<S: PageSource<Page = P>>(
        &mut self,
        lane: &mut Lane<'_, S>,
        places: &[u32],
    ) {
        let frames = self.frames();
        lane.each(frames.len(), FreeEach(places.iter().map(|&place| frames[place as usize])));
        self.count = 0;
    }

    /// Removes the frame at `place`, which has already been freed.
    pub(super) fn forget(&mut self, place: usize) {
        self.count -= 1;
        self.slots.swap(place, self.count);
    }
}

/// Allocates a frame into the next slot.
struct AllocTo<I, const TOUCH: bool>(I);

impl<'a, P: Copy + 'a, I: Iterator<Item = &'a mut P>, const TOUCH: bool> Operation<P> for AllocTo<I, TOUCH> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let Some(slot) = self.0.next() else { return false };
        let Some(page) = source.alloc(Order::PAGE) else { return false };
        if TOUCH {
            source.touch(page);
        }
        *slot = page;
        true
    }
}

/// Frees the frames of an iterator.
struct FreeEach<I>(I);

impl<P, I: Iterator<Item = P>> Operation<P> for FreeEach<I> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        self.0.next().map(|page| source.free(page, Order::PAGE)).is_some()
    }
}
