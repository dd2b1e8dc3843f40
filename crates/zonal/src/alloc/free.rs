//! Frees: a freed block is pushed onto the current CPU's pageset of the block's zone.
//!
//! [`Allocator::push_current`] pushes a frame of the slot's zone onto the current CPU's pageset slot and commits with
//! one store. All other frees lock the pageset or go directly to the buddy. An invalid free is refused before anything
//! changes. Related files: `zone/frame_states.rs` records which frames are allocated, `pageset/drain.rs` drains a full
//! pageset, and `alloc/free_refusal.rs` explains a refusal.

use crate::Allocator;
use crate::alloc::request::PageKind;
use crate::error::FreeError;
use crate::pageset::StackId;
use crate::pageset::deferred::DeferredBlock;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::{PagesetSlot, Push};
use crate::platform::pageset_word::{PUSH_STEPS, Step};
use crate::platform::tracepoint::RetireCause;
use crate::units::{Order, PageCount, Pfn};
use crate::zone::frame_state::FrameState;
use crate::zone::frame_states::{CACHED_PAGE, allocated_page, mark_freed, mark_page_freed};
use crate::zone::quarantine::{Entry, Quarantined};
use crate::zone::{CpuInfo, Shortness, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    // Call tree of a free, fast path first:
    //
    // free
    //   push_current                  fast path, for one frame of the slot's zone
    //     CpuLocal::push_current      pushes onto the CPU's pageset slot with one committing store;
    //                                 on Linux a restartable sequence (`zonal-linux/src/sequences`)
    //       mark_page_freed           marks the frame as cached, before it is pushed (`zone/frame_states.rs`)
    //       mark_other_kind_freed     marks a frame that was allocated as another kind than `User`
    //       free_slow                 pushes under the lock if the sequence did not complete
    //         push_and_fold           pushes onto the slot and folds counters (`pageset/steps.rs`)
    //         push_beyond             pushes and drains a full pageset: `push`
    //         free_to_buddy           frees to the buddy if the pageset is not available
    //         defer_free              leaves the push to a later operation if it would wait for its own thread
    //   free_larger                   blocks of more than one frame in the slot's zone (`blocks.rs`): `free_block`
    //   free_beyond                   all other frees: other zones, invalid frees
    //     push_nearest                pushes one frame of the zone that serves the cpuset of the CPU
    //     push_elsewhere              pushes one frame of another zone as `push_current` does
    //     free_watched                frees a block with a frame to retire (`retire.rs`)
    //     refusal                     explains an invalid free (`free_refusal.rs`)
    //     free_hardened               poisons the block and puts it into quarantine, if enabled
    //     free_block                  frees a block that is marked as cached
    //       push_block                pushes a larger block, if no limit is reached (`pageset/block_steps.rs`)
    //       push                      pushes it onto a stack of the pageset
    //         add                     drains the pageset if it is full (`pageset/drain.rs`)
    //       free_to_buddy             merges it into the buddy (`zone/free_areas.rs`)
    //
    /// Frees the block of `order` that starts at `first`.
    ///
    /// # Errors
    /// Returns an error that names the frame and its actual state if no allocated block of this order starts at
    /// `first`. Returns [`FreeError::Reentered`] if the free would have to wait for the caller's own thread and cannot
    /// be [deferred](Platform::is_reentered). The block and its accounting are unchanged in both cases.
    #[inline(always)]
    pub fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        if order != Order::PAGE {
            self.free_larger(first, order)
        } else if self.push_current(first) {
            Ok(())
        } else {
            self.free_beyond(first, order)
        }
    }

    /// Pushes a frame onto the current CPU's pageset slot.
    ///
    /// Returns `false` if the frame is not an allocated frame of the slot's zone, or if the free would have to wait for
    /// the caller's own thread.
    #[inline(always)]
    fn push_current(&self, first: Pfn) -> bool {
        let prepare = move |slot: &PagesetSlot<'m, P>| self.prepare_push(slot, first);
        let refused =
            move |slot: &PagesetSlot<'m, P>, push: Push| self.state.free_slow(slot.zone.index(), push);
        self.state.platform.cpu_local().push_current(
            &self.state.platform,
            &self.state.slots,
            prepare,
            refused,
        )
    }

    /// Pushes a frame of `zone`, which is not the zone of the current CPU's pageset slot, onto the CPU's pageset of `zone`.
    ///
    /// The result is that of [`Self::push_current`].
    fn push_elsewhere(&self, zone: &Zone<'m, P>, first: Pfn) -> bool {
        let Some(cpu) = self.state.current_cpu_info() else { return false };
        self.state.slot_beside(zone, cpu).is_some_and(|slot| self.push_to(slot, cpu, first))
    }

    /// Pushes a frame onto the CPU's pageset of the zone that serves its cpuset, if the frame is of that zone.
    ///
    /// The result is that of [`Self::push_current`].
    #[inline(always)]
    fn push_nearest(&self, first: Pfn) -> bool {
        let Some(cpu) = self.state.current_cpu_info() else { return false };
        let zone =
            self.state.nearest.last_zone(cpu.index).and_then(|zone| self.state.zones.get(zone.index()));
        zone.and_then(|zone| self.state.slot_beside(zone, cpu))
            .is_some_and(|slot| self.push_to(slot, cpu, first))
    }

    #[inline(always)]
    fn push_to(&self, slot: &PagesetSlot<'m, P>, cpu: CpuInfo, first: Pfn) -> bool {
        let Some(push) = self.prepare_push(slot, first) else { return false };
        self.state.platform.cpu_local().push_to(cpu.id, slot, push)
            || self.state.free_slow(slot.zone.index(), push)
    }

    /// Marks a frame as cached, before it is pushed onto `slot`; returns what to push, or `None` if the frame is not an
    /// allocated frame of the slot's zone.
    #[inline(always)]
    fn prepare_push(&self, slot: &PagesetSlot<'m, P>, first: Pfn) -> Option<Push> {
        let offset = first.get().wrapping_sub(slot.base.get());
        let state = slot.states.get(usize::try_from(offset).ok()?)?;
        let step = match mark_page_freed(state, self.invalid_free) {
            Ok(()) => PUSH_STEPS[PageKind::User as usize],
            Err(found) => self.mark_other_kind_freed(state, found)?,
        };
        Some(Push { step, frame: offset as u32 }) // a zone spans at most 2^32 frames
    }

    /// Marks a frame of a kind other than `User`, whose state was `byte`, as cached.
    ///
    /// Returns the step by which the push changes the pageset's word, or `None` if the frame is not allocated. The
    /// function is inlined, because a call would use up registers in every loop that frees frames.
    #[inline(always)]
    fn mark_other_kind_freed(&self, state: &P::U8, byte: u8) -> Option<Step> {
        let kind = PageKind::ALL.into_iter().find(|&kind| allocated_page(kind) == byte)?;
        mark_freed(state, byte, CACHED_PAGE, self.invalid_free).ok()?;
        Some(PUSH_STEPS[kind as usize])
    }

    /// Frees every block that the short paths cannot.
    #[inline(never)]
    pub(super) fn free_beyond(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        if order == Order::PAGE && self.push_nearest(first) {
            return Ok(());
        }
        let Some(zone) = self.zone_of(first) else { return Err(FreeError::NotManaged(first)) };
        if order == Order::PAGE && self.push_elsewhere(zone, first) {
            return Ok(());
        }
        let (frame, is_reentered) = (zone.offset(first), self.state.platform.is_reentered());
        match zone.frames.release(frame, order, self.invalid_free) {
            Ok(kind) if is_reentered => {
                let is_deferred = self.state.defer_free(zone, frame, order, kind);
                if is_deferred { Ok(()) } else { Err(FreeError::Reentered(first)) }
            }
            Ok(kind) => {
                self.state.finish_own_frees();
                self.state.free_released(zone, frame, order, kind);
                Ok(())
            }
            Err(FrameState::Watched) if !is_reentered => self.free_watched(zone, first, order),
            Err(state) => Err(self.refusal(zone, first, order, state)),
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Frees a frame that is already marked as cached, but that the fast path could not push.
    ///
    /// Returns `false` if the push would have to wait for the caller's own thread and cannot be deferred. The frame is
    /// then marked as allocated again.
    #[inline(never)]
    fn free_slow(&self, zone: usize, Push { step, frame }: Push) -> bool {
        let kind = PageKind::ALL.into_iter().find(|&kind| PUSH_STEPS[kind as usize] == step);
        let kind = kind.expect("every step belongs to a page kind");
        if self.platform.is_reentered() {
            return self.defer_free(&self.zones[zone], frame, Order::PAGE, kind);
        }
        let zone = &self.zones[zone];
        let mut session = None;
        if let Some(cpu) = self.current_cpu_info() {
            self.finish_frees(cpu);
            let slot = self.slot_of(zone, cpu).or_else(|| self.slot_beside(zone, cpu));
            session = match slot.map(|slot| self.lock_slot(slot, cpu)) {
                Some(Some(locked)) => match locked.push_and_fold(frame, kind) {
                    Ok(()) => return true,
                    Err(session) => Some(session),
                },
                Some(None) => None,
                None => self.own_pageset(zone, cpu),
            };
        }
        let pushed = self.push_beyond(session.as_ref(), zone, frame, kind);
        if let Some(session) = session {
            session.end();
        }
        if !pushed {
            self.free_to_buddy(zone, frame, Order::PAGE);
        }
        true
    }

    /// Defers the free of a block that is marked as cached, because it would have to wait for the caller's own thread.
    ///
    /// Returns `false` if the CPU has deferred too many frees already. The block is then marked as allocated again.
    #[cold]
    #[inline(never)]
    fn defer_free(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) -> bool {
        let block = DeferredBlock { zone: zone.id, frame, order, kind };
        let added = self.current_cpu_info().is_some_and(|cpu| self.deferred[cpu.index as usize].add(block));
        if !added {
            zone.frames.mark_allocated_again(frame, order, kind);
        }
        added
    }

    /// Finishes the deferred frees of a CPU. The caller may wait, and has not locked a pageset.
    ///
    /// A free is deferred only by a handler that interrupted an operation with a lock. Every request and free that goes on
    /// to such operations calls this first, so a CPU normally has room for the frees of all handlers that interrupt one
    /// operation. Pops and pushes without a platform lock need not call it, because no handler finds them reentered. The
    /// tick finishes what is left while a CPU does nothing else.
    #[inline]
    pub(crate) fn finish_frees(&self, cpu: CpuInfo) {
        if self.deferred[cpu.index as usize].has_blocks() {
            self.finish_frees_now(cpu);
        }
    }

    /// Finishes the deferred frees of the current CPU. Not inlined, so that its callers need no more registers.
    #[inline(never)]
    pub(super) fn finish_own_frees(&self) {
        if let Some(cpu) = self.current_cpu_info() {
            self.finish_frees(cpu);
        }
    }

    /// Finishes the deferred frees of all CPUs, including those that another thread has begun to finish but not yet reached.
    pub(crate) fn finish_all_frees(&self) {
        self.cpus.iter().filter(|cpu| cpu.exists()).for_each(|&cpu| self.finish_frees_now(cpu));
    }

    #[cold]
    #[inline(never)]
    fn finish_frees_now(&self, cpu: CpuInfo) {
        for block in self.deferred[cpu.index as usize].take_all() {
            let zone = &self.zones[block.zone.index()];
            self.free_released(zone, block.frame, block.order, block.kind);
        }
    }

    /// Frees a block that is marked as cached.
    #[inline]
    pub(super) fn free_released(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) {
        if self.hardening.poison.is_some() || self.hardening.quarantine != PageCount::ZERO {
            self.free_hardened(zone, frame, order, kind);
        } else {
            self.free_block(zone, frame, order, kind);
        }
    }

    /// Poisons the block and puts it into quarantine, depending on which of the two is enabled.
    #[cold]
    fn free_hardened(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) {
        if let Some(poison) = self.hardening.poison
            && let Some(contents) = self.platform.contents()
        {
            contents.fill(zone.pfn(frame), order.pages(), poison);
        }
        // Each round frees the oldest block to make space for this one. The number of rounds is limited by the number
        // of entries.
        for _ in 0..=zone.quarantine.len() {
            match zone.enter_quarantine(frame, order, kind) {
                Entry::Done => return,
                Entry::TooLarge => break,
                Entry::Oldest(oldest) => self.release(zone, &oldest),
                // Two racing frees of this block passed the `Checked` test, which is not atomic. The quarantine already
                // holds the block.
                Entry::Retired => return self.note_invalid(zone, frame, order),
            }
        }
        self.free_block(zone, frame, order, kind);
    }

    /// Frees a block that is marked as cached, to the pageset or to the buddy.
    fn free_block(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) {
        let cpu = self.current_cpu_info();
        let stack = cpu.and_then(|cpu| self.stack_for(zone, cpu, frame, order));
        if let (Some(cpu), Some(stack)) = (cpu, stack)
            && order != Order::PAGE
            && self.push_block(zone, cpu, stack, frame, order, kind)
        {
            return;
        }
        self.free_block_beyond(zone, stack, frame, order, kind);
    }

    /// Returns the stack that caches the block at `frame` when it is freed by `cpu`; `None` if none does.
    #[inline]
    pub(super) fn stack_for(
        &self,
        zone: &Zone<'m, P>,
        cpu: CpuInfo,
        frame: u32,
        order: Order,
    ) -> Option<StackId> {
        let is_kept = |stack: &StackId| {
            !stack.is_middle()
                || self.pagesets_of(zone).of(cpu).is_last_middle(frame)
                    && !zone.is_short(Shortness::HugeBlocks)
        };
        self.cached.stack(order).filter(is_kept)
    }

    /// Frees a block that [`Self::push_block`] did not push onto `stack`.
    #[inline(never)]
    pub(super) fn free_block_beyond(
        &self,
        zone: &Zone<'m, P>,
        stack: Option<StackId>,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) {
        let cpu = self.current_cpu_info();
        if let (Some(cpu), None) = (cpu, stack)
            && self.count_merge(zone, cpu, order, kind)
        {
            return self.free_to_buddy(zone, frame, order);
        }
        let session = stack.and_then(|_| self.own_pageset(zone, cpu?));
        let stack = stack.unwrap_or(StackId::PAGES);
        let pushed = self.push(session.as_ref(), zone, stack, frame, order, kind);
        if let Some(session) = session {
            session.end();
        }
        if !pushed {
            self.free_to_buddy(zone, frame, order);
        }
    }

    /// Pushes a block that is marked as cached onto a stack of the pageset.
    ///
    /// Returns `false` if `session` is `None`, or if the stack has no free slots and cannot be drained.
    #[inline]
    fn push(
        &self,
        session: Option<&PagesetSession<'_, 'm, P>>,
        zone: &Zone<'m, P>,
        stack: StackId,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) -> bool {
        let pages = -(order.pages().get() as i64);
        let counters = &self.nodes[zone.node].counters;
        let Some(session) = session else {
            counters.add_total(kind.item(), pages);
            return false;
        };
        session.count_kind(kind, pages, counters);
        let pushed = session.add(stack, frame, order);
        session.update_limits();
        pushed
    }

    /// Pushes a single frame through the session, when changing the pageset's word alone was not enough.
    #[cold]
    #[inline(never)]
    fn push_beyond(
        &self,
        session: Option<&PagesetSession<'_, 'm, P>>,
        zone: &Zone<'m, P>,
        frame: u32,
        kind: PageKind,
    ) -> bool {
        self.push(session, zone, StackId::PAGES, frame, Order::PAGE, kind)
    }

    /// Frees a block directly to the buddy.
    #[cold]
    pub(super) fn free_to_buddy(&self, zone: &Zone<'m, P>, frame: u32, order: Order) {
        let pages = order.pages().get();
        let freed = zone.frames.mark_free(frame, order).then(|| zone.free_to_area(frame, order)).flatten();
        if let Some(kept) = freed {
            self.count_fenced(zone, kept);
            self.clear_full_bits_early(zone);
        } else {
            // Two racing frees of this block passed the `Checked` test, which is not atomic. Count the block as
            // allocated again.
            self.nodes[zone.node].counters.add_total(PageKind::User.item(), pages as i64);
            self.note_invalid(zone, frame, order);
        }
    }

    /// Frees all blocks in a zone's quarantine.
    pub(super) fn flush_quarantine(&self, zone: &Zone<'m, P>) {
        // The loop is bounded by the capacity, because other threads may add blocks concurrently.
        for _ in 0..zone.quarantine.len() {
            let Some(oldest) = zone.leave_quarantine() else { return };
            self.release(zone, &oldest);
        }
    }

    #[cold]
    fn release(&self, zone: &Zone<'m, P>, block: &Quarantined) {
        match block.kind {
            Some(kind) => self.free_block(zone, block.frame, block.order, kind),
            None => self.note_invalid(zone, block.frame, block.order),
        }
    }

    /// Counts and reports a block of `zone` that is out of use because of an invalid free.
    #[cold]
    pub(super) fn note_invalid(&self, zone: &Zone<'_, P>, frame: u32, order: Order) {
        self.note_retired(zone.node, RetireCause::InvalidFree, Some(zone.pfn(frame)), order.pages());
    }
}
