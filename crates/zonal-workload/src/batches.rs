//! Routines that allocate a number of frames and free them all: `pair`, `batch`, `batch-random`, `repeat` and
//! `touch`.

use std::hint::black_box;

use zonal::units::Order;

use crate::held::Held;
use crate::lane::{Lane, Operation, Routine};
use crate::{PageSource, Plan};

/// Frames of a batch.
const BATCH: usize = 512;
/// Frames of a `repeat` or `touch` round: 128 MiB of 4 KiB frames. Workloads that neither fill the pool nor hold half of it hold at
/// most this many on each thread.
pub const REPEAT: usize = 32768;
/// Pairs between two checks of whether the run is over.
const PAIRS: usize = 4096;

/// Allocates one frame and frees it.
struct OutAndBack;

impl<P> Operation<P> for OutAndBack {
    const MOVES: u64 = 2;

    #[inline]
    fn step<S: PageSource<Page = P>>(&mut self, source: &mut S) -> bool {
        let Some(page) = source.alloc(Order::PAGE) else { return false };
        // Without `black_box`, a compiler that inlines the source removes the whole pair.
        source.free(black_box(page), Order::PAGE);
        true
    }
}

/// The `pair` routine.
pub(super) struct Pair;

impl<P> Routine<P> for Pair {
    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        if lane.each(PAIRS, OutAndBack) == 0 {
            std::thread::yield_now(); // other threads hold all frames
        }
    }

    fn finish<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {}
}

/// The `batch` and `batch-random` routines.
pub(super) struct Batch<P> {
    held: Held<P>,
    size: usize,
    /// Places of a full batch in the order in which they are freed. If empty, the last frame is freed first.
    way_back: Vec<u32>,
}

impl<P: Copy + Default> Batch<P> {
    /// Creates a `batch` routine.
    pub(super) fn last_first(plan: &Plan) -> Self {
        Self { held: Held::nothing(), size: plan.batch(BATCH), way_back: Vec::new() }
    }

    /// Creates a `batch-random` routine. Each lane frees in its own random order.
    pub(super) fn shuffled(plan: &Plan, lane: usize) -> Self {
        let mut batch = Self::last_first(plan);
        batch.way_back = (0..batch.size as u32).collect();
        plan.random(lane).shuffle(&mut batch.way_back);
        batch
    }
}

impl<P: Copy + Default + Send> Routine<P> for Batch<P> {
    fn prepare<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {
        self.held.reserve(self.size);
    }

    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        let taken = self.held.alloc::<false, _>(lane, self.size);
        if taken == 0 {
            std::thread::yield_now(); // other threads hold all frames
        } else if taken == self.way_back.len() {
            self.held.free_all_listed(lane, &self.way_back);
        } else {
            self.held.free_last(lane, taken);
        }
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.held.free_last(lane, self.held.count());
    }
}

/// The `repeat` routine, or the `touch` routine if `TOUCH`.
pub(super) struct Repeat<P, const TOUCH: bool> {
    held: Held<P>,
    size: usize,
}

impl<P: Copy + Default, const TOUCH: bool> Repeat<P, TOUCH> {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { held: Held::nothing(), size: plan.batch(REPEAT) }
    }
}

impl<P: Copy + Default + Send, const TOUCH: bool> Routine<P> for Repeat<P, TOUCH> {
    fn prepare<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {
        self.held.reserve(self.size);
    }

    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        if self.held.alloc::<TOUCH, _>(lane, self.size) == 0 {
            std::thread::yield_now(); // other threads hold all frames
        }
        // Frames are freed in the order of allocation, as when a range is unmapped.
        self.held.free_all_in_order(lane);
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.held.free_last(lane, self.held.count());
    }
}
