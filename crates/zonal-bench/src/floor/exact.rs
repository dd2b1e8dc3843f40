//! The contender `floor-exact`: `floor-rseq` with a state byte for each frame, and nothing else.
//!
//! An allocation stores the state, and a free exchanges it, so a free of a frame that is not allocated is refused by its
//! own call, whatever other threads do. This is the least that a per-CPU stack can cost that recognises every invalid
//! free. Related files: `floor/stock.rs` has the stacks, and `harness.rs` measures one exchange alone.

use std::sync::atomic::{AtomicU8, Ordering};

use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use super::InSequences;
use super::sequences::Sequences;
use super::stock;
use crate::contender::Contender;

/// State of a frame in an array or in the stack.
const FREE: u8 = 0;
/// State of an allocated frame.
const ALLOCATED: u8 = 1;

/// A contender with a state for each frame.
///
/// Invariant: `states[frame] == ALLOCATED` while a caller owns `frame`. There is a state for each frame in `stacks`.
pub(super) struct Exact {
    stacks: InSequences,
    states: Box<[AtomicU8]>,
}

impl Exact {
    /// Adds states to the stacks of `frames` free frames.
    pub(super) fn new(stacks: InSequences, frames: PageCount) -> Self {
        Self { stacks, states: (0..frames.get()).map(|_| AtomicU8::new(FREE)).collect() }
    }
}

/// One thread's interface.
pub(super) struct Source<'a> {
    stacks: stock::Source<'a, Sequences<'a>>,
    states: &'a [AtomicU8],
}

impl Source<'_> {
    /// Frees a frame. Returns `false` and changes nothing if the frame is not allocated.
    #[inline]
    fn free_if_allocated(&mut self, frame: Pfn) -> bool {
        let state = usize::try_from(frame.get()).ok().and_then(|frame| self.states.get(frame));
        // AcqRel: takes the mark of the allocation, publishes the owner's writes; pairs with `alloc`.
        if state.is_none_or(|state| state.swap(FREE, Ordering::AcqRel) != ALLOCATED) {
            return false;
        }
        self.stacks.free(frame, Order::PAGE);
        true
    }
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let frame = self.stacks.alloc(order)?;
        // SAFETY: the stacks contain only frames that have a state. A floor does without the bounds check.
        let state = unsafe { self.states.get_unchecked(frame.get() as usize) };
        // Release: publishes the mark to the free; pairs with `free_if_allocated`.
        state.store(ALLOCATED, Ordering::Release);
        Some(frame)
    }

    #[inline]
    fn free(&mut self, frame: Pfn, _order: Order) {
        if !self.free_if_allocated(frame) {
            refuse(frame);
        }
    }
}

/// Panics. It is a function of its own, because a message in `free` would store the frame in memory first.
#[cold]
#[inline(never)]
fn refuse(frame: Pfn) -> ! {
    panic!("frame {frame} is freed, but not allocated")
}

impl Contender for Exact {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source { stacks: self.stacks.source(), states: &self.states }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;

    use zonal_testing::skipped;

    use super::*;
    use crate::floor::in_sequences;

    const FRAMES: PageCount = PageCount::new(2048);

    fn exact() -> Option<Exact> {
        match in_sequences(FRAMES, FRAMES.get() as usize) {
            Ok(stacks) => Some(Exact::new(stacks, FRAMES)),
            Err(why) => {
                skipped!("restartable sequences: {why}");
                None
            }
        }
    }

    #[test]
    fn frames_that_are_not_allocated_are_refused_and_stay_single() {
        let Some(exact) = exact() else { return };
        let mut source = exact.source();
        let frame = source.alloc(Order::PAGE).unwrap();
        let other = (0..FRAMES.get()).map(Pfn::new).find(|other| *other != frame).unwrap();
        let beyond = [Pfn::new(FRAMES.get()), Pfn::new(u64::MAX), Pfn::new(1 << 32)];
        for invalid in [&[other], &beyond[..]].concat() {
            assert!(!source.free_if_allocated(invalid), "{invalid}");
        }
        assert!(source.free_if_allocated(frame));
        assert!(!source.free_if_allocated(frame), "freed twice");
        let mut all: Vec<Pfn> = std::iter::from_fn(|| source.alloc(Order::PAGE)).collect();
        all.sort_unstable();
        assert!(all.into_iter().map(Pfn::get).eq(0..FRAMES.get()));
    }

    #[test]
    fn an_invalid_free_of_a_workload_is_noticed() {
        let Some(exact) = exact() else { return };
        let mut source = exact.source();
        let free = AssertUnwindSafe(|| source.free(Pfn::new(3), Order::PAGE));
        let why = catch_unwind(free).unwrap_err();
        assert_eq!(why.downcast_ref::<String>().unwrap(), "frame 3 is freed, but not allocated");
    }

    #[test]
    fn of_two_frees_at_once_one_is_refused() {
        let Some(exact) = exact() else { return };
        let turn = Barrier::new(2);
        let frames: Vec<Pfn> = {
            let mut source = exact.source();
            std::iter::from_fn(|| source.alloc(Order::PAGE)).collect()
        };
        let free_all = || {
            let mut source = exact.source();
            let free = |frame: &Pfn| {
                if frame.get().is_multiple_of(64) {
                    turn.wait();
                }
                u64::from(source.free_if_allocated(*frame))
            };
            frames.iter().map(free).sum::<u64>()
        };
        let freed = std::thread::scope(|scope| {
            [scope.spawn(free_all), scope.spawn(free_all)].map(|thread| thread.join().unwrap())
        });
        assert_eq!(freed.iter().sum::<u64>(), FRAMES.get(), "{freed:?}");
    }
}
