//! Changes that programs make to ranges of frames: fences, ranges, runs of any length, and bad frames.
//!
//! A fence stays for some time, while other threads allocate and free. A refusal is not a fault if its error is one of
//! the expected ones.
//!
//! Related files: `unused.rs` records the frames that are out of use, `worker.rs` calls `change_frames`.

use fastrand::Rng;
use zonal::error::{AllocError, FenceError, RangeError, RetireError};
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{NodeId, Order, PageCount, ZoneKind};
use zonal::{Block, Fence, FrameRun, Request};
use zonal_lab::sim::Lab;

use super::round::one_of;
use super::world::{Held, HeldRun, World};

/// Maximum number of fences in a round at a time.
const FENCES_MAX: usize = 4;
/// Maximum number of bad frames in a round.
const BAD_MAX: usize = 48;
/// Maximum frame count of a fence or range, so that threads can fill some of them.
const FRAMES_MAX: u64 = 4000;
/// Maximum number of runs that wait for a thread to free them.
const RUNS_MAX: usize = 8;

impl<'s, 'm> World<'_, '_, 's, 'm> {
    /// Makes one random change.
    pub(super) fn change_frames(&self, random: &mut Rng) {
        let kind = one_of(random, &PageKind::ALL);
        match random.u8(..10) {
            0 | 1 if self.unused.fences() < FENCES_MAX => self.begin_fence(random),
            0..4 if self.unused.fences() > 0 => {
                if let Some(fence) = self.unused.remove_fence(random.usize(..self.unused.fences())) {
                    self.end_fence(fence, kind, random);
                }
            }
            4 | 5 => self.retire(random),
            6 => self.alloc_range(self.small_range(random), kind),
            7 => self.alloc_run(kind, random),
            _ => self.free_run(random),
        }
    }

    fn small_range(&self, random: &mut Rng) -> FrameRange {
        let range = self.some_range(random);
        let count = range.count.get().min(random.u64(1..=FRAMES_MAX));
        FrameRange { count: PageCount::new(count), ..range }
    }

    fn begin_fence(&self, random: &mut Rng) {
        match self.allocator().fence(self.small_range(random)) {
            Ok(fence) => self.unused.add_fence(fence),
            Err(FenceError::NotOnline(_) | FenceError::Overlaps { .. } | FenceError::TooMany { .. }) => {}
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    fn end_fence(&self, fence: Fence<'s, 'm, Lab>, kind: PageKind, random: &mut Rng) {
        let range = fence.range();
        if random.u8(..4) == 0 {
            fence.vacate(|_| ());
        }
        match random.u8(..3) {
            0 => fence.release(),
            1 => match fence.alloc(kind) {
                Ok(frames) => self.hold_run(HeldRun { frames, kind }),
                Err(fence) => fence.release(),
            },
            _ => match fence.offline() {
                Ok(()) => {
                    self.unused.forget(&range);
                    self.offline.borrow_mut().push(range);
                }
                Err(fence) => fence.release(),
            },
        }
    }

    /// Ends all fences.
    pub(super) fn end_fences(&self) {
        while let Some(fence) = self.unused.remove_fence(0) {
            fence.release();
        }
    }

    /// Retires a frame of a run, or any frame.
    fn retire(&self, random: &mut Rng) {
        let run = self.runs.borrow().last().map(|run| run.frames.range);
        let range = run.filter(|_| random.bool()).unwrap_or_else(|| self.some_range(random));
        let frame = range.start.plus(PageCount::new(random.u64(..range.count.get())));
        if self.unused.bad() >= BAD_MAX || !self.unused.begin_retire(frame) {
            return;
        }
        let answer = match self.allocator().retire(frame) {
            Ok(answer) => Some(answer),
            Err(RetireError::NotManaged(_) | RetireError::TooMany { .. } | RetireError::Changing(_)) => None,
            Err(error) => self.system.fault(error.to_string()),
        };
        self.unused.end_retire(frame, answer);
    }

    fn alloc_range(&self, range: FrameRange, kind: PageKind) {
        let begun = self.unused.moment();
        match self.allocator().alloc_range(range, kind) {
            Ok(frames) => {
                self.demand(self.unused.check_allocated(&range, begun));
                self.hold_run(HeldRun { frames, kind });
            }
            Err(RangeError::InUse { .. } | RangeError::Changing(_)) => {}
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Allocates adjacent frames, as many as a block has at most, or more.
    fn alloc_run(&self, kind: PageKind, random: &mut Rng) {
        let most = self.allocator().max_order().pages().get();
        let request = Request::new(Order::new(random.u8(..4)).expect("3 is valid")).kind(kind).no_wait();
        let request = request.zone_limit(one_of(random, &[ZoneKind::Movable, ZoneKind::Normal]));
        let begun = self.unused.moment();
        let frames = if random.bool() {
            self.allocator().alloc_frames(&request, PageCount::new(random.u64(1..=most)))
        } else {
            self.allocator().alloc_contiguous(&request, PageCount::new(random.u64(1..=4 * most)))
        };
        match frames {
            Ok(frames) => {
                self.demand(self.unused.check_allocated(&frames.range, begun));
                self.accounting.serve(frames.node, self.system.place_of(frames.node), self.here());
                self.hold_run(HeldRun { frames, kind });
            }
            Err(AllocError::OutOfMemory(_) | AllocError::NotContiguous { .. }) => {}
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Records a run as allocated. Frees others if too many wait.
    fn hold_run(&self, run: HeldRun) {
        self.system.take(&run.frames.range);
        self.accounting.hold(run.frames.range.count, run.kind, self.system.place_of(run.frames.node));
        self.runs.borrow_mut().push(run);
        while self.runs.borrow().len() > RUNS_MAX {
            let first = self.runs.borrow_mut().swap_remove(0);
            self.free_whole(first);
        }
    }

    /// Frees a run, or splits it and leaves its blocks for other threads.
    fn free_run(&self, random: &mut Rng) {
        let Some(run) = self.runs.borrow_mut().pop() else { return };
        if random.bool() {
            return self.free_whole(run);
        }
        let HeldRun { frames: FrameRun { range, zone, node }, kind } = run;
        let to = Order::new(random.u8(..4)).expect("3 is valid");
        match self.allocator().split_frames(range.start, range.count, to) {
            Ok(()) => {
                let held = |(first, order)| Held { block: Block { first, order, zone, node }, kind };
                self.left.borrow_mut().extend(range.blocks(to).map(held));
            }
            Err(zonal::error::SplitError::NotLower { .. }) => self.free_whole(run),
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    fn free_whole(&self, run: HeldRun) {
        let range = run.frames.range;
        self.accounting.release(range.count, run.kind, self.system.place_of(run.frames.node));
        let begun = self.unused.begin_free(&range, run.kind);
        self.system.free_frames(&range);
        self.unused.end_free(&range, begun);
    }

    /// Frees all runs.
    pub(super) fn free_runs(&self) {
        loop {
            let Some(run) = self.runs.borrow_mut().pop() else { return };
            self.free_whole(run);
            self.system.checkpoint();
        }
    }

    /// Splits a block, and returns its parts.
    pub(super) fn split(&self, held: Held, to: Order) -> Vec<Held> {
        let Block { first, order, zone, node } = held.block;
        if let Err(error) = self.allocator().split(first, order, to) {
            self.system.fault(error.to_string());
        }
        let parts = held.block.range().blocks(to);
        parts.map(|(first, order)| Held { block: Block { first, order, zone, node }, ..held }).collect()
    }

    /// Returns the node of the running CPU.
    pub(super) fn here(&self) -> NodeId {
        self.node_of(self.machine().cpu())
    }
}
