//! The `fill` routine, which repeatedly allocates the whole pool and frees it.

use crate::held::Held;
use crate::lane::{Lane, Routine};
use crate::{PageSource, Plan};

/// Frames between two checks of whether the run is over.
const STEPS: usize = 16384;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Out,
    Back,
}

/// The `fill` routine. A lane stops allocating when it holds its whole share, or when a request fails because
/// watermarks keep the last frames of a pool free.
pub(super) struct Fill<P> {
    held: Held<P>,
    share: usize,
    direction: Direction,
}

impl<P: Copy + Default> Fill<P> {
    pub(super) fn new(plan: &Plan) -> Self {
        Self { held: Held::nothing(), share: plan.share().max(1), direction: Direction::Out }
    }
}

impl<P: Copy + Default + Send> Routine<P> for Fill<P> {
    fn prepare<S: PageSource<Page = P>>(&mut self, _lane: &mut Lane<'_, S>) {
        self.held.reserve(self.share);
    }

    fn round<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        if self.direction == Direction::Out {
            let missing = (self.share - self.held.count()).min(STEPS);
            let taken = self.held.alloc::<false, _>(lane, missing);
            if taken < missing || self.held.count() == self.share {
                self.direction = Direction::Back;
            }
        } else {
            self.held.free_last(lane, STEPS);
            if self.held.count() == 0 {
                self.direction = Direction::Out;
            }
        }
        if self.held.count() == 0 {
            std::thread::yield_now(); // other threads may hold all frames
        }
    }

    fn may_end(&self) -> bool {
        self.held.count() == 0 && self.direction == Direction::Out
    }

    fn finish<S: PageSource<Page = P>>(&mut self, lane: &mut Lane<'_, S>) {
        self.held.free_last(lane, self.held.count());
    }
}
