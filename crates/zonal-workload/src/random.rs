//! The `random` routine, which holds half the pool and repeatedly frees a random frame and allocates another.

use fastrand::Rng;
use zonal::units::Order;

use crate::held::Held;
use crate::lane::{Lane, Operation, Routine};
use crate::{PageSource, Plan};

/// Steps between two checks of whether the run is over.
const STEPS: usize = 4096;

/// Frees a random held frame and allocates another in its place. If none can be allocated, the lane holds one frame
/// less.
struct Exchange<'a, P> {
    held: &'a mut Held<P>,
    random: &'a mut Rng,
}

impl<P: Copy + Default> Operation<P> for Exchange<'_, P> {
    const MOVES: u64 = 2;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let frames = self.held.frames();
        let place = self.random.usize(..frames.len());
        source.free(frames[place], Order::PAGE);
        if let Some(page) = source.alloc(Order::PAGE) {
            frames[place] = page;
            return true;
        }
        self.held.forget(place);
        false
    }
}

/// The `random` routine.
pub(super) struct Random<P> {
    held: Held<P>,
    target: usize,
    random: Rng,
}

impl<P: Copy + Default> Random<P> {
    pub(super) fn new(plan: &Plan, lane: usize) -> Self {
        let target = (plan.share() / 2).max(1);
        Self { held: Held::nothing(), target, random: plan.random(lane) }
    }

    /// Allocates some of the frames that are missing to half the pool. Returns whether all of these allocations
    /// succeeded.
    fn alloc_missing<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) -> bool {
        let missing = (self.target - self.held.count()).min(STEPS);
        self.held.alloc::<false, _>(lane, missing) == missing
    }
}

impl<P: Copy + Default + Send> Routine<P> for Random<P> {
    fn prepare<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.held.reserve(self.target);
        while self.held.count() < self.target && !lane.is_over() {
            if !self.alloc_missing(lane) {
                break; // the pool is exhausted, so the lane works with the frames it holds
            }
        }
        // The frames are shuffled, because the frames of a pool in use are in no particular order.
        self.random.shuffle(self.held.frames());
    }

    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.alloc_missing(lane);
        if self.held.count() == 0 {
            std::thread::yield_now(); // other threads hold all frames
        } else {
            lane.each(STEPS, Exchange { held: &mut self.held, random: &mut self.random });
        }
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.held.free_last(lane, self.held.count());
    }
}
