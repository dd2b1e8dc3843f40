//! The `orders` routine, which allocates and frees blocks of random orders at 50 to 70 % occupancy.

use fastrand::Rng;
use zonal::units::Order;

use crate::lane::{Lane, Operation, Routine};
use crate::{PageSource, Plan};

/// Largest order requested.
const ORDER_MAX: u8 = 9;
/// Steps between two checks of whether the run is over.
const STEPS: usize = 1024;

/// Allocates below the lower bound, frees above the upper bound, and chooses at random between the two.
struct ComeAndGo<'a, P>(&'a mut Orders<P>);

impl<P: Copy> Operation<P> for ComeAndGo<'_, P> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let own = &mut *self.0;
        let frees = own.pages >= own.pages_max || (own.pages > own.pages_min && own.random.bool());
        if frees {
            own.free_one(source);
            return true;
        }
        own.alloc_one(source)
    }
}

/// Allocates a block of a random order.
struct AllocOne<'a, P>(&'a mut Orders<P>);

impl<P: Copy> Operation<P> for AllocOne<'_, P> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        self.0.alloc_one(source)
    }
}

/// Frees a random held block.
struct FreeOne<'a, P>(&'a mut Orders<P>);

impl<P: Copy> Operation<P> for FreeOne<'_, P> {
    const MOVES: u64 = 1;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        self.0.free_one(source);
        true
    }
}

/// The `orders` routine. Invariant: `pages` is the frame count of all blocks in `held`.
pub(super) struct Orders<P> {
    held: Vec<(P, Order)>,
    pages: u64,
    pages_min: u64,
    pages_max: u64,
    orders: Vec<Order>,
    random: Rng,
}

impl<P: Copy> Orders<P> {
    pub(super) fn new(plan: &Plan, lane: usize) -> Self {
        let share = plan.share() as u64;
        let (pages_min, pages_max) = (share / 2, (share * 7 / 10).max(1));
        // A block must fit between the bounds, even if the share of a lane is small.
        let fits = |order: &Order| order.pages().get() <= (pages_max - pages_min).max(1);
        let orders = (0..=ORDER_MAX).filter_map(Order::new).filter(fits).collect();
        Self { held: Vec::new(), pages: 0, pages_min, pages_max, orders, random: plan.random(lane) }
    }

    #[inline]
    fn alloc_one<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let order = self.orders[self.random.usize(..self.orders.len())];
        let Some(page) = source.alloc(order) else { return false };
        self.held.push((page, order));
        self.pages += order.pages().get();
        true
    }

    #[inline]
    fn free_one<S: PageSource<Page = P>>(&mut self, source: &mut S) {
        let at = self.random.usize(..self.held.len());
        let (page, order) = self.held.swap_remove(at);
        source.free(page, order);
        self.pages -= order.pages().get();
    }
}

impl<P: Copy + Send> Routine<P> for Orders<P> {
    fn prepare<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        while self.pages < self.pages_min && !lane.is_over() {
            if lane.each(1, AllocOne(self)) == 0 {
                return; // the pool is exhausted, so the lane works with the blocks it holds
            }
        }
    }

    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        if lane.each(STEPS, ComeAndGo(self)) == STEPS {
            return;
        }
        // The pool has no block of that order, so free another block to make space for one.
        if self.held.is_empty() {
            std::thread::yield_now();
        } else {
            lane.each(1, FreeOne(self));
        }
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        let count = self.held.len();
        lane.each(count, FreeOne(self));
    }
}
