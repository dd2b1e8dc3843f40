//! Frees of blocks that are marked as cached: hardening, quarantine, deferred frees, and the buddy.
//!
//! Related files: `alloc/mod.rs` pushes blocks onto pagesets, `pageset/drain.rs` drains a full pageset, and
//! `pageset/deferred.rs` holds the blocks whose free is deferred.

use crate::pageset::deferred::FreedBlock;
use crate::pageset::state::MachineState;
use crate::pageset::{Pageset, StackId};
use crate::platform::Platform;
use crate::platform::pageset_slot::Push;
use crate::platform::pageset_word::PUSH_STEPS;
use crate::platform::tracepoint::RetireCause;
use crate::request::PageKind;
use crate::units::{Order, PageCount, ZoneId};
use crate::zone::bad_frames::BadFrames;
use crate::zone::frame_state::FrameState;
use crate::zone::quarantine::Entry;
use crate::zone::runs::Run;
use crate::zone::{CpuInfo, Shortness, Zone};

impl FreedBlock {
    /// Returns what to push onto the slot for this single frame.
    #[inline(always)]
    pub(super) fn push(self) -> Push {
        Push { step: PUSH_STEPS[self.kind as usize], frame: self.frame }
    }

    /// Returns the number of frames.
    #[inline]
    pub(super) fn pages(self) -> i64 {
        self.order.pages().get() as i64
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Frees a frame of `zone` that is already marked as cached, but that the CPU's slot did not accept.
    ///
    /// Returns `false` in the case of [`Self::put_or_defer`].
    #[inline(never)]
    pub(super) fn put_refused(&self, zone: ZoneId, push: Push) -> bool {
        let kind = PageKind::ALL.into_iter().find(|&kind| PUSH_STEPS[kind as usize] == push.step);
        let kind = kind.expect("every step belongs to a page kind");
        let (block, zone) =
            (FreedBlock { zone, frame: push.frame, order: Order::PAGE, kind }, &self.zones[zone.index()]);
        if let Some(cpu) = self.current_cpu_info()
            && let Some(slot) = self.slot_of(zone, cpu)
            && self.fold_and_push(cpu, slot, block)
        {
            return true;
        }
        self.put_or_defer(zone, block)
    }

    /// Defers the free of a block that is marked as cached, because it would have to wait for the caller's own thread.
    ///
    /// Returns `false` if the CPU has deferred too many frees already. The block is then marked as allocated again.
    #[cold]
    #[inline(never)]
    pub(super) fn defer_free(&self, zone: &Zone<'m, P>, block: FreedBlock) -> bool {
        let added = self.current_cpu_info().is_some_and(|cpu| self.deferred[cpu.index as usize].add(block));
        if !added {
            zone.frames.mark_allocated_again(block.frame, block.order, block.kind);
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
        self.local_cpus().for_each(|&cpu| self.finish_frees_now(cpu));
    }

    #[cold]
    #[inline(never)]
    fn finish_frees_now(&self, cpu: CpuInfo) {
        for block in self.deferred[cpu.index as usize].take_all() {
            self.put_cached(&self.zones[block.zone.index()], block);
        }
    }

    /// Frees a block that is marked as cached, or puts it into quarantine.
    #[inline]
    pub(super) fn put_cached(&self, zone: &Zone<'m, P>, block: FreedBlock) {
        if self.config().hardening.poison.is_some() || self.config().hardening.quarantine != PageCount::ZERO {
            self.put_hardened(zone, block);
        } else {
            self.put(zone, block);
        }
    }

    /// Poisons the block and puts it into quarantine, depending on which of the two is enabled.
    #[cold]
    fn put_hardened(&self, zone: &Zone<'m, P>, block: FreedBlock) {
        let FreedBlock { frame, order, kind, .. } = block;
        if let Some(poison) = self.config().hardening.poison
            && let Some(contents) = self.platform.contents()
        {
            contents.fill(zone.pfn(frame), order.pages(), poison);
        }
        // Each round frees the oldest block to make space for this one. The number of entries limits the rounds.
        for _ in 0..=zone.quarantine.len() {
            match zone.enter_quarantine(frame, order, kind) {
                Entry::Done => return,
                Entry::Refused => break,
                Entry::Oldest(oldest) => self.release(zone, oldest),
                // Two racing frees of this block passed the `Checked` test, which is not atomic. The quarantine already
                // holds the block.
                Entry::Retired => return self.note_invalid(zone, frame, order),
            }
        }
        self.put(zone, block);
    }

    /// Returns the stack of the CPU's pageset that caches the block at `frame` when it is freed; `None` if none does.
    #[inline]
    pub(super) fn stack_for(
        &self,
        zone: &Zone<'m, P>,
        pageset: &Pageset<P>,
        frame: u32,
        order: Order,
    ) -> Option<StackId> {
        let is_kept = |stack: &StackId| {
            !stack.is_middle() || pageset.is_last_middle(frame) && !zone.is_short(Shortness::HugeBlocks)
        };
        self.cached.stack(order).filter(is_kept)
    }

    /// Frees a block directly to the buddy.
    #[cold]
    pub(super) fn merge(&self, zone: &Zone<'m, P>, frame: u32, order: Order) {
        let pages = order.pages().get();
        let is_marked = zone.frames.step(frame, FrameState::Cached(order), FrameState::Free);
        let freed = is_marked.then(|| zone.merge_into_area(frame, order)).flatten();
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
    pub(crate) fn flush_quarantine(&self, zone: &Zone<'m, P>) {
        if self.config().hardening.quarantine == PageCount::ZERO {
            return;
        }
        // The number of blocks is bounded by the capacity, because other threads may add blocks concurrently.
        let blocks = core::iter::from_fn(|| zone.leave_quarantine()).take(zone.quarantine.len());
        blocks.for_each(|oldest| self.release(zone, oldest));
    }

    #[cold]
    fn release(&self, zone: &Zone<'m, P>, (frame, order, kind): (u32, Order, Option<PageKind>)) {
        match kind {
            Some(kind) => self.put(zone, FreedBlock { zone: zone.id, frame, order, kind }),
            None => self.note_invalid(zone, frame, order),
        }
    }

    /// Counts and reports a block in `zone` that an invalid free put out of use.
    #[cold]
    pub(super) fn note_invalid(&self, zone: &Zone<'_, P>, frame: u32, order: Order) {
        self.note_retired(zone.node, RetireCause::InvalidFree, Some(zone.pfn(frame)), order.pages());
    }

    /// Frees a run or block that was taken from its owner, and retires its bad frames.
    pub(crate) fn put_back(&self, zone: &Zone<'m, P>, run: Run, kind: PageKind, bad: &BadFrames) {
        for &frame in bad.frames() {
            zone.frames.set(frame, FrameState::Retired(kind));
            self.count_bad(zone, frame, Order::PAGE, RetireCause::BadFrame);
        }
        // No part is freed before the states of all parts are set, because a free may merge frames with the next part.
        for part in parts_between(run, bad.frames()) {
            let blocks = part.blocks(self.config().max_order);
            blocks.for_each(|(frame, order)| zone.frames.set(frame, FrameState::Cached(order)));
        }
        for part in parts_between(run, bad.frames()) {
            for (frame, order) in part.blocks(self.config().max_order) {
                self.put_cached(zone, FreedBlock { zone: zone.id, frame, order, kind });
            }
        }
    }

    /// Counts and reports a block in `zone` whose frames are now retired.
    pub(crate) fn count_bad(&self, zone: &Zone<'_, P>, frame: u32, order: Order, cause: RetireCause) {
        zone.count_retired(order.pages().get() as i64);
        self.note_retired(zone.node, cause, Some(zone.pfn(frame)), order.pages());
    }
}

/// Returns the parts of a run between some frames in it, which ascend.
fn parts_between(run: Run, without: &[u32]) -> impl Iterator<Item = Run> {
    let end = u64::from(run.first) + run.count;
    let starts = core::iter::once(run.first.into()).chain(without.iter().map(|&frame| u64::from(frame) + 1));
    let ends = without.iter().map(|&frame| u64::from(frame)).chain(core::iter::once(end));
    starts.zip(ends).filter(|(start, end)| start < end).map(|(start, end)| Run {
        first: start as u32, // below the run's end, which is an offset of the zone
        count: end - start,
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::config::Config;
    use crate::testing::small;

    #[test]
    fn an_undone_free_leaves_a_block_alone_that_was_freed_meanwhile() {
        let a = small(&Config::default(), |_| {});
        let zone = &a.state.zones[1];
        let frame = zone.offset(zone.span.start);
        assert_eq!(zone.frames.state(frame), FrameState::Free);
        zone.frames.mark_allocated_again(frame, Order::PAGE, PageKind::User);
        assert_eq!(zone.frames.state(frame), FrameState::Free);
    }

    #[test]
    fn parts_have_all_other_frames() {
        let run = Run { first: 8, count: 8 };
        let parts =
            |bad: &[u32]| parts_between(run, bad).map(|part| (part.first, part.count)).collect::<Vec<_>>();
        assert_eq!(parts(&[]), [(8, 8)]);
        assert_eq!(parts(&[8]), [(9, 7)]);
        assert_eq!(parts(&[15]), [(8, 7)]);
        assert_eq!(parts(&[9, 10, 13]), [(8, 1), (11, 2), (14, 2)]);
    }
}
