//! Any number of frames: allocation and free of runs, and splits of allocated blocks and runs.
//!
//! A request for `n` frames uses the smallest block that holds them and frees the rest of it at once. What is allocated
//! is a *run* (`zone/runs.rs`), or a block if `n` is a power of two. Related files: `alloc/mod.rs` allocates and frees
//! blocks, `alloc/release.rs` explains refusals.

use crate::Allocator;
use crate::error::{AllocError, FreeError, SplitError};
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::request::{FrameRun, Request};
use crate::units::{Order, PageCount, Pfn};
use crate::zone::Zone;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates `count` adjacent frames, aligned to the order of `request`.
    ///
    /// `count` need not be a power of two: 3 frames cost 3 frames. A larger order of the request asks for alignment
    /// only. All else that the request says applies. Free the frames with [`Allocator::free_frames`] and the same
    /// count, or split them first ([`Allocator::split_frames`]).
    ///
    /// A count that is not a power of two, or less than its alignment, is served by the buddy and not by pagesets, so
    /// it takes longer.
    ///
    /// # Errors
    /// Returns [`AllocError::Count`] for no frames, and for more than a block of the largest order holds. Other errors
    /// are those of [`Allocator::alloc`].
    pub fn alloc_frames(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
        const { assert!(!P::ONLY_BLOCKS) };
        let order = Order::holding(count)
            .filter(|&order| order <= self.state.config().max_order && count != PageCount::ZERO);
        let Some(order) = order else {
            return Err(AllocError::Count { count, max: self.state.config().max_order.pages() });
        };
        let request = request.with_order(order.max(request.flags.order));
        let block = if request.flags.order.pages() == count {
            self.alloc(&request)
        } else {
            self.state.may_begin(&request)?;
            let context = self.state.resolve(&request, Turn::Next)?;
            self.state.serve(&request, &AllocContext { count, ..context })
        }?;
        Ok(FrameRun { range: FrameRange { start: block.first, count }, zone: block.zone, node: block.node })
    }

    /// Frees frames that were allocated together: `count` frames from `first`.
    ///
    /// For a power of two that is naturally aligned this is [`Allocator::free`].
    ///
    /// # Errors
    /// Returns an error if exactly these frames are not allocated together. It names a frame and its state, and nothing
    /// has been freed.
    pub fn free_frames(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        let (zone, run) = self.state.run_of(first, count)?;
        if let Some(order) = run.as_block(self.state.config().max_order) {
            return self.free(first, order);
        }
        if self.state.platform.is_reentered() {
            return Err(FreeError::Reentered(first));
        }
        let begin = || {
            let (order, kind) =
                zone.frames.check_run(run, self.state.config().max_order, self.state.process)?;
            zone.frames.set(run.first, FrameState::Cached(order));
            Ok(kind)
        };
        let free = || zone.free_areas.with_lock_of(run.first, begin);
        let begun = self.state.claim_here(zone, run, free, |_| {});
        let kind = begun.map_err(|state| self.state.run_refusal(zone, first, count, state))?;
        self.state.put_back(zone, run, kind, &zone.bad_of_run(run));
        Ok(())
    }

    /// Splits an allocated block into blocks of the lower order `to`, each of which is then freed on its own.
    ///
    /// Nothing is allocated or freed, and no lock is waited for. Linux: `split_page`. If another thread frees the block at
    /// the same time, either the free or the split is refused. Only under
    /// [`InvalidFree::Checked`](crate::config::InvalidFree::Checked) may both succeed, as two frees of one block may; the
    /// parts are then free although the caller has them.
    ///
    /// # Errors
    /// Returns an error if `to` is not below `order`, or no block of `order` is allocated at `first`; the error names
    /// the frame and its state. Nothing has changed then.
    pub fn split(&self, first: Pfn, order: Order, to: Order) -> Result<(), SplitError> {
        const { assert!(!P::ONLY_BLOCKS) };
        if to >= order {
            return Err(SplitError::NotLower { frame: first, order, to });
        }
        let Some(zone) = self.state.zone_of(first) else {
            return Err(SplitError::NotAllocated(FreeError::NotManaged(first)));
        };
        let frame = zone.offset(first);
        if self.state.must_wait_for_handover(zone, frame) {
            return Err(SplitError::NotAllocated(FreeError::Reentered(first)));
        }
        let run = Run { first: frame, count: order.pages().get() };
        let begin = || {
            let FrameState::Allocated(found, kind) = zone.frames.state(frame) else {
                return Err(zone.frames.state(frame));
            };
            if found != order {
                return Err(FrameState::Allocated(found, kind));
            }
            zone.frames.exchange(frame, FrameState::Allocated(order, kind), FrameState::Splitting(kind))?;
            Ok(kind)
        };
        let undo = |kind| {
            _ = zone.frames.exchange(frame, FrameState::Splitting(kind), FrameState::Allocated(order, kind));
        };
        let begun = self.state.claim_here(zone, run, begin, undo);
        let split = match begun.map(|kind| zone.frames.mark_parts(run, to, kind)) {
            Err(_) if self.state.platform.is_reentered() => {
                return Err(SplitError::NotAllocated(FreeError::Reentered(first)));
            }
            Err(FrameState::Watched) => zone.split_watched(zone.offset(first), order, to),
            split => split,
        };
        split.map_err(|state| SplitError::NotAllocated(self.state.refusal(zone, first, order, state)))
    }

    /// Splits frames that were allocated together into blocks of at most order `to`: of `to` where alignment and
    /// length allow it, smaller ones at the ends. Each is then freed on its own.
    ///
    /// # Errors
    /// Returns an error if exactly these frames are not allocated together; it names a frame and its state. For frames
    /// that are one block, errors are those of [`Allocator::split`]. Nothing has changed then.
    pub fn split_frames(&self, first: Pfn, count: PageCount, to: Order) -> Result<(), SplitError> {
        let (zone, run) = self.state.run_of(first, count).map_err(SplitError::NotAllocated)?;
        if let Some(order) = run.as_block(self.state.config().max_order) {
            return self.split(first, order, to);
        }
        if self.state.platform.is_reentered() {
            return Err(SplitError::NotAllocated(FreeError::Reentered(first)));
        }
        let begin = || {
            let (_, kind) = zone.frames.check_run(run, self.state.config().max_order, self.state.process)?;
            zone.frames.set(run.first, FrameState::Splitting(kind));
            Ok(kind)
        };
        let split = || zone.free_areas.with_lock_of(run.first, begin);
        let begun = self.state.claim_here(zone, run, split, |_| {});
        let kind = begun
            .map_err(|state| SplitError::NotAllocated(self.state.run_refusal(zone, first, count, state)))?;
        zone.mark_parts_of_run(run, to.min(self.state.config().max_order), kind);
        Ok(())
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns a range of frames as a run.
    ///
    /// # Errors
    /// Returns an error if the count is zero or the range is not within one zone, because its frames are then not
    /// allocated together.
    pub(crate) fn run_of(&self, first: Pfn, count: PageCount) -> Result<(&Zone<'m, P>, Run), FreeError> {
        if count == PageCount::ZERO {
            return Err(FreeError::NoFrames(first));
        }
        let zone = self.zone_of(first).ok_or(FreeError::NotManaged(first))?;
        if zone.span.end().offset_from(first).is_none_or(|left| count > left) {
            return Err(self.run_refusal(zone, first, count, zone.frames.state(zone.offset(first))));
        }
        Ok((zone, Run { first: zone.offset(first), count: count.get() }))
    }
}
