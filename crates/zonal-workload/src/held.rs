//! The single frames that a lane holds, and moving them in runs.
//!
//! Slots are made once and then overwritten, so that a run of takes or gives walks over a slice
//! and keeps no count in memory: the harness should cost little beside what it measures.

use std::ops::Range;

use zonal::units::Order;

use crate::PageSource;
use crate::lane::{Lane, Operation};

/// Frames held, in the order they were taken: `slots[..count]`.
pub(super) struct Held<P> {
    slots: Vec<P>,
    count: usize,
}

impl<P: Copy + Default> Held<P> {
    /// Nothing, with no room for more.
    pub(super) const fn nothing() -> Self {
        Self { slots: Vec::new(), count: 0 }
    }

    /// Room for `most` frames. The caller's thread touches it, so that it lies near.
    pub(super) fn make_room(&mut self, most: usize) {
        self.slots.resize(most, P::default());
    }

    /// Frames held.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The frames held.
    pub(super) fn frames(&mut self) -> &mut [P] {
        &mut self.slots[..self.count]
    }

    /// Takes up to `wanted` frames, no more than there is room for, and stores to each if `TOUCH`;
    /// gives how many came.
    pub(super) fn take<const TOUCH: bool, S: PageSource<Page = P>>(
        &mut self,
        lane: &mut Lane<'_, S>,
        wanted: usize,
    ) -> usize {
        let slots = &mut self.slots[self.count..];
        let taken = lane.each(wanted.min(slots.len()), TakeTo::<_, TOUCH>(slots.iter_mut()));
        self.count += taken;
        taken
    }

    /// Gives up to `wanted` frames back, the last first.
    pub(super) fn give_last<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>, wanted: usize) {
        let kept = self.count.saturating_sub(wanted);
        let going: Range<usize> = kept..self.count;
        lane.each(going.len(), GiveEach(self.slots[going].iter().rev().copied()));
        self.count = kept;
    }

    /// Gives all frames back, the first first.
    pub(super) fn give_all_in_order<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        lane.each(self.count, GiveEach(self.frames().iter().copied()));
        self.count = 0;
    }

    /// Gives all frames back, in the order of `places`, which names each of them once.
    pub(super) fn give_all_listed<S: PageSource<Page = P>>(
        &mut self,
        lane: &mut Lane<'_, S>,
        places: &[u32],
    ) {
        let frames = self.frames();
        lane.each(frames.len(), GiveEach(places.iter().map(|&place| frames[place as usize])));
        self.count = 0;
    }

    /// Forgets the frame at `place`, which is given back already.
    pub(super) fn forget(&mut self, place: usize) {
        self.count -= 1;
        self.slots.swap(place, self.count);
    }
}

/// Takes a frame to the next slot.
struct TakeTo<I, const TOUCH: bool>(I);

impl<'a, P: Copy + 'a, I: Iterator<Item = &'a mut P>, const TOUCH: bool> Operation<P> for TakeTo<I, TOUCH> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let Some(slot) = self.0.next() else { return false };
        let Some(page) = source.take(Order::PAGE) else { return false };
        if TOUCH {
            source.touch(page);
        }
        *slot = page;
        true
    }
}

/// Gives back the frames of an iterator.
struct GiveEach<I>(I);

impl<P, I: Iterator<Item = P>> Operation<P> for GiveEach<I> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        self.0.next().map(|page| source.give(page, Order::PAGE)).is_some()
    }
}
