//! Claims of frees: a free claims its block by one exchange of the block's state, or learns why it may not.
//!
//! An invalid free is refused before anything changes. Only the first frame of a block records the block's state. To find the
//! block that contains a frame, a refusal checks every frame at which such a block could start. A valid free never runs that
//! code. Related files: `zone/frame_states.rs` holds the states, `alloc/freed.rs` frees claimed blocks.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::InvalidFree;
use crate::error::FreeError;
use crate::pageset::state::MachineState;
use crate::platform::pageset_slot::{PagesetSlot, Push};
use crate::platform::pageset_word::PUSH_STEPS;
use crate::platform::{Atomic, Platform};
use crate::request::PageKind;
use crate::units::{Order, PageCount, Pfn, ZoneId};
use crate::zone::Zone;
use crate::zone::frame_state::FrameState;
use crate::zone::frame_states::{CACHED_PAGE, allocated_page, mark_freed, mark_page_freed};
use crate::zone::runs::Run;

impl<'m, P: Platform> MachineState<'m, P> {
    /// Marks a frame as cached, before it is pushed onto `slot`; returns what to push, or `None` if the frame is not an
    /// allocated frame of the slot's zone.
    #[inline(always)]
    pub(super) fn release_page(
        &self,
        slot: &PagesetSlot<'m, P>,
        first: Pfn,
        invalid_free: InvalidFree,
    ) -> Option<Push> {
        let offset = first.get().wrapping_sub(slot.base.get());
        let state = slot.states.get(usize::try_from(offset).ok()?)?;
        let step = match mark_page_freed(state, invalid_free) {
            Ok(()) => PUSH_STEPS[PageKind::User as usize],
            Err(found) => PUSH_STEPS[self.release_page_of_other_kind(state, found)? as usize],
        };
        Some(Push { step, frame: offset as u32 }) // a zone spans at most 2^32 frames
    }

    /// Marks a frame as cached like [`Self::release_page`], but not by an exchange alone: without one, or only if this process
    /// holds the frame before and after.
    #[inline(always)]
    pub(super) fn release_page_otherwise(&self, slot: &PagesetSlot<'m, P>, first: Pfn) -> Option<Push> {
        if !P::IS_SHARED || self.process == 0 {
            return self.release_page(slot, first, InvalidFree::Checked);
        }
        let offset = usize::try_from(first.get().wrapping_sub(slot.base.get())).ok()?;
        let holder = slot.states.get(offset.checked_add(slot.states.len() / 2)?)?; // holders follow the states
        let is_here = || holder.load(Relaxed) == self.process; // relaxed: as `Holders::of`
        if !is_here() {
            return None;
        }
        let push = self.release_page(slot, first, InvalidFree::Exact)?;
        if is_here() { Some(push) } else { self.undo_release(slot.zone, push) }
    }

    /// Reverts the claim of a frame that another process has taken over meanwhile; returns `None`, as the caller does.
    #[cold]
    #[inline(never)]
    fn undo_release(&self, zone: ZoneId, push: Push) -> Option<Push> {
        let kind = PageKind::ALL.into_iter().find(|&kind| PUSH_STEPS[kind as usize] == push.step)?;
        self.zones[zone.index()].frames.mark_allocated_again(push.frame, Order::PAGE, kind);
        None
    }

    /// Marks a block as cached after this process has become its holder. Returns the block's kind, or `None` if the block is
    /// not allocated with this order. Not inlined, so that frees in other allocators stay small.
    #[inline(never)]
    pub(super) fn claim_held_block(&self, zone: &Zone<'m, P>, frame: u32, order: Order) -> Option<PageKind> {
        let release =
            || zone.frames.release(frame, order, self.config().invalid_free).ok_or(FrameState::Claimed); // any state
        let undo = |kind| zone.frames.mark_allocated_again(frame, order, kind);
        self.claim_here(zone, Run { first: frame, count: order.pages().get() }, release, undo).ok()
    }

    /// Marks a frame of a kind other than `User`, whose state was `byte`, as cached.
    ///
    /// Returns the kind, or `None` if the frame is not allocated. The function is inlined, because a call would use up registers in every loop that frees frames.
    #[inline(always)]
    fn release_page_of_other_kind(&self, state: &P::U8, byte: u8) -> Option<PageKind> {
        let kind = PageKind::ALL.into_iter().find(|&kind| allocated_page(kind) == byte)?;
        mark_freed(state, byte, CACHED_PAGE, self.config().invalid_free).ok()?;
        Some(kind)
    }

    /// Frees a block that could not be claimed because of its state, if it has a frame to retire.
    ///
    /// # Errors
    /// Returns the reason if no allocated block of this order starts at `first`.
    #[cold]
    #[inline(never)]
    pub(super) fn refuse_free(&self, zone: &Zone<'m, P>, first: Pfn, order: Order) -> Result<(), FreeError> {
        let state = zone.frames.state(zone.offset(first));
        if !P::ONLY_BLOCKS && state == FrameState::Watched && !self.platform.is_reentered() {
            let run = Run { first: zone.offset(first), count: order.pages().get() };
            let released = zone.release_watched(run.first, order);
            let freed = released.map(|(kind, bad)| self.put_back(zone, run, kind, &bad));
            return freed.map_err(|found| self.refusal(zone, first, order, found));
        }
        Err(self.refusal(zone, first, order, state))
    }

    /// Returns why `frame` of `zone`, found in `state`, cannot be freed with order `given`.
    ///
    /// The details of a block with a frame to retire are behind a lock, for which a reentered handler must not wait.
    #[cold]
    #[inline(never)]
    pub(crate) fn refusal(
        &self,
        zone: &Zone<'m, P>,
        frame: Pfn,
        given: Order,
        state: FrameState,
    ) -> FreeError {
        match state {
            FrameState::NotManaged => FreeError::NotManaged(frame),
            FrameState::RunHead(..) | FrameState::RunPart(_) | FrameState::Watched if P::ONLY_BLOCKS => {
                FreeError::NotAllocated(frame)
            }
            FrameState::Free => {
                // No block starts here. The error names the block that contains the frame now.
                let start = zone.start_around(zone.offset(frame), self.config().max_order);
                if matches!(start, Some((.., FrameState::Watched))) && self.platform.is_reentered() {
                    return FreeError::Reentered(frame);
                }
                let around = start
                    .filter(|&(first, least, state)| zone.unwatched(first, state).order() >= Some(least));
                match around.map(|(first, _, state)| (first, zone.unwatched(first, state))) {
                    Some((_, FrameState::RunHead(..) | FrameState::RunPart(_))) if P::ONLY_BLOCKS => {
                        FreeError::NotAllocated(frame)
                    }
                    Some((first, FrameState::Allocated(order, _))) => {
                        FreeError::InsideBlock { frame, block: zone.pfn(first), order }
                    }
                    Some((_, FrameState::Quarantined(..))) => FreeError::Quarantined(frame),
                    Some((first, FrameState::RunHead(..))) => self.inside_run(zone, frame, Some(first)),
                    Some((first, FrameState::RunPart(_))) => {
                        self.inside_run(zone, frame, zone.frames.run_around(first, self.config().max_order))
                    }
                    _ => FreeError::NotAllocated(frame),
                }
            }
            FrameState::Cached(_) | FrameState::Fenced | FrameState::Claimed => {
                FreeError::NotAllocated(frame)
            }
            FrameState::Quarantined(..) => FreeError::Quarantined(frame),
            FrameState::RunHead(..) => match zone.frames.run_at(zone.offset(frame)) {
                Some(run) if run.count == given.pages().get() => {
                    self.inside_run(zone, frame, Some(run.first))
                }
                _ => self.run_refusal(zone, frame, given.pages(), state),
            },
            FrameState::RunPart(_) => self.inside_run(
                zone,
                frame,
                zone.frames.run_around(zone.offset(frame), self.config().max_order),
            ),
            FrameState::Splitting(_) => FreeError::BeingSplit(frame),
            FrameState::Retired(_) => FreeError::Retired(frame),
            FrameState::Watched if self.platform.is_reentered() => FreeError::Reentered(frame),
            FrameState::Watched => match zone.unwatched(zone.offset(frame), state) {
                FrameState::Watched => FreeError::NotAllocated(frame), // another thread has freed the block since
                state => self.refusal(zone, frame, given, state),
            },
            // Another thread freed the block first, and a new block has been allocated at this frame since then.
            FrameState::Allocated(allocated, _) if allocated == given => FreeError::NotAllocated(frame),
            FrameState::Allocated(allocated, _) => FreeError::WrongOrder { frame, allocated, given },
        }
    }

    /// Returns why `count` frames from `frame`, found in `state`, cannot be freed together.
    #[cold]
    #[inline(never)]
    pub(crate) fn run_refusal(
        &self,
        zone: &Zone<'m, P>,
        frame: Pfn,
        count: PageCount,
        state: FrameState,
    ) -> FreeError {
        if state == FrameState::Watched && self.platform.is_reentered() {
            return FreeError::Reentered(frame);
        }
        let allocated = match zone.unwatched(zone.offset(frame), state) {
            FrameState::Allocated(order, _) => Some(order.pages()),
            FrameState::RunHead(..) => {
                zone.frames.run_at(zone.offset(frame)).map(|run| PageCount::new(run.count))
            }
            _ => return self.refusal(zone, frame, Order::PAGE, state),
        };
        match allocated {
            Some(allocated) if allocated != count => FreeError::WrongCount { frame, allocated, given: count },
            // Another thread freed the frames first, and they may have been allocated again since then.
            _ => FreeError::NotAllocated(frame),
        }
    }

    /// Returns the error for `frame`, which is in the run that begins at offset `first`, or in one that is gone since.
    fn inside_run(&self, zone: &Zone<'m, P>, frame: Pfn, first: Option<u32>) -> FreeError {
        match first.and_then(|first| zone.frames.run_at(first)) {
            Some(run) => {
                FreeError::InsideRun { frame, first: zone.pfn(run.first), count: PageCount::new(run.count) }
            }
            None => FreeError::NotAllocated(frame), // another thread has freed the run since
        }
    }
}
