//! Pops and pushes of blocks with more than one frame under the lock, for the usual case.
//!
//! In the usual case, the pageset holds a block or has a free slot for one, and the step is within the *leeway of blocks*:
//! the number of frames that may be popped and pushed as blocks before the depth rule (M2 of the README) must account for
//! them, or the pageset reaches `high`. Sessions divide the whole leeway between single frames, as limits of the fast path,
//! and blocks, so that neither kind of step needs to know about the other. A step changes one stack, the word and the
//! leeway. In all other cases it changes nothing.
//!
//! Blocks above the small orders are larger than the threshold of most counters (M4), so their frames are counted in cells of
//! the pageset, which every reader of the counter adds.
//!
//! Related files: `pageset/steps.rs` does the same for single frames, and `pageset/session.rs` divides the leeway.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::deferred::FreedBlock;
use crate::pageset::state::MachineState;
use crate::pageset::{Pageset, StackId, ZonePagesets};
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_word::{
    POP_NONE, PUSH_NONE, PagesetWord, SERVED_GUARD, SERVED_STEP, kind_guard, kind_step,
};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::Leeway;
use crate::units::{Order, PageKind};
use crate::zone::{CpuInfo, Zone};

// Accesses after the lock are relaxed, because the lock orders them.
impl<'m, P: Platform> MachineState<'m, P> {
    /// Pops a block from one of the stacks that the caller's CPU has for larger blocks, and counts it as allocated from
    /// the preferred zone.
    ///
    /// Returns `None` if more work is necessary, or the stack is empty.
    #[inline]
    pub(crate) fn pop_block(
        &self,
        pagesets: &ZonePagesets<'m, P>,
        cpu: CpuInfo,
        stack: StackId,
        order: Order,
        kind: PageKind,
    ) -> Option<u32> {
        let pageset = pagesets.of(cpu);
        let (head, lens, pages) = (&pageset.head, &pageset.lens[stack.0], order.pages().get() as u32);
        // Readers add the cells only for CPUs on the zone's node.
        let is_counted = stack.is_small() || pagesets.is_own(cpu);
        if !is_counted || !self.platform.cpu_local().lock(cpu.id, head) {
            return None;
        }
        let (len, word) = (lens.load(Relaxed), head.word.load(Relaxed));
        let left = Leeway::from_word(pageset.block_leeway.load(Relaxed)).after_pop(pages);
        let next = word.wrapping_add(SERVED_STEP);
        let served = next.wrapping_add(head.pop_limit.load(Relaxed)) & SERVED_GUARD;
        let Some(left) = left.filter(|_| len != 0 && served == 0 && !pageset.serves_for_another()) else {
            head.open();
            return None;
        };
        let (start, shape) = pagesets.start(cpu);
        let frame = pagesets.slots[start + shape.slot(stack, len - 1)].load(Relaxed);
        if stack.is_middle() {
            pageset.note_last_middle(frame);
        }
        lens.store(len - 1, Relaxed);
        pageset.large.store(pageset.large.load(Relaxed) - u64::from(pages), Relaxed);
        pageset.block_leeway.store(left.word(), Relaxed);
        let mut after = next;
        if stack.is_small() {
            after = next.wrapping_add(kind_step(kind, pages));
            if after.wrapping_add(head.pop_limit.load(Relaxed)) & kind_guard(kind) != 0 {
                after = self.folded(pagesets, PagesetWord(next), kind, i64::from(pages));
            }
        } else {
            pageset.add_block_frames(kind, u64::from(pages));
        }
        head.word.store(after, Relaxed);
        head.open();
        Some(frame)
    }

    /// Pushes a block onto one of the stacks that the caller's CPU has for larger blocks, and counts it as freed.
    ///
    /// Returns `false` if more work is necessary, for example a drain.
    #[inline(always)]
    pub(crate) fn push_block(
        &self,
        pagesets: &ZonePagesets<'m, P>,
        pageset: &Pageset<P>,
        cpu: CpuInfo,
        stack: StackId,
        FreedBlock { frame, order, kind, .. }: FreedBlock,
    ) -> bool {
        let (head, lens, pages) = (&pageset.head, &pageset.lens[stack.0], order.pages().get() as u32);
        let is_counted = stack.is_small() || pagesets.is_own(cpu);
        if !is_counted || !self.platform.cpu_local().lock(cpu.id, head) {
            return false;
        }
        let (len, word) = (lens.load(Relaxed), head.word.load(Relaxed));
        let push_limit = head.push_limit.load(Relaxed);
        let left = Leeway::from_word(pageset.block_leeway.load(Relaxed)).after_push(pages);
        let (start, shape) = pagesets.start(cpu);
        let Some(left) = left.filter(|_| {
            len != shape.depth(stack)
                && push_limit != PUSH_NONE
                && !pageset.is_period_over(self.platform.now())
        }) else {
            head.open();
            return false;
        };
        pagesets.slots[start + shape.slot(stack, len)].store(frame, Relaxed);
        lens.store(len + 1, Relaxed);
        pageset.large.store(pageset.large.load(Relaxed) + u64::from(pages), Relaxed);
        pageset.block_leeway.store(left.word(), Relaxed);
        if stack.is_small() {
            let after = word.wrapping_sub(kind_step(kind, pages));
            let trips = push_limit.wrapping_sub(after) & kind_guard(kind) != 0;
            let folded = || self.folded(pagesets, PagesetWord(word), kind, -i64::from(pages));
            head.word.store(if trips { folded() } else { after }, Relaxed);
        } else {
            pageset.add_block_frames(kind, u64::from(pages).wrapping_neg());
        }
        head.open();
        true
    }

    /// Counts a block that the buddy of the preferred zone served to the caller's CPU, and that no pageset held.
    ///
    /// Returns `false`, and counts nothing, if more work is necessary.
    pub(crate) fn count_split(
        &self,
        zone: &Zone<'m, P>,
        cpu: CpuInfo,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) -> bool {
        let pageset = self.pagesets_of(zone).of(cpu);
        let head = &pageset.head;
        // Readers add only the cells of CPUs on the node.
        if !zone.is_own(cpu) || !self.platform.cpu_local().lock(cpu.id, head) {
            return false;
        }
        let (next, pop_limit) =
            (head.word.load(Relaxed).wrapping_add(SERVED_STEP), head.pop_limit.load(Relaxed));
        // Without limits of pops, the served blocks have no limit either.
        let trips = pop_limit == POP_NONE || next.wrapping_add(pop_limit) & SERVED_GUARD != 0;
        if !pageset.was_used() || trips || pageset.serves_for_another() {
            head.open();
            return false;
        }
        pageset.note_last_middle(frame);
        pageset.probes.store(pageset.probes.load(Relaxed) + 1, Relaxed);
        pageset.add_block_frames(kind, order.pages().get());
        head.word.store(next, Relaxed);
        head.open();
        true
    }

    /// Counts a block as freed by the caller's CPU; returns `false`, and counts nothing, if more work is necessary.
    pub(crate) fn count_merge(&self, zone: &Zone<'m, P>, cpu: CpuInfo, order: Order, kind: PageKind) -> bool {
        let pageset = self.pagesets_of(zone).of(cpu);
        if !zone.is_own(cpu) || !self.platform.cpu_local().lock(cpu.id, &pageset.head) {
            return false;
        }
        pageset.add_block_frames(kind, order.pages().get().wrapping_neg());
        pageset.head.open();
        true
    }

    /// Returns the word after `frames` frames were allocated as `kind`, or freed if the number is negative. A difference
    /// beyond the threshold moves to the totals.
    #[cold]
    fn folded(&self, pagesets: &ZonePagesets<'m, P>, word: PagesetWord, kind: PageKind, frames: i64) -> u64 {
        let counters = &self.nodes[pagesets.zone_node].counters;
        let left = counters.leave(kind.item(), word.difference(kind as usize), frames);
        word.with_difference(kind as usize, left).0
    }
}

impl<P: Platform> Pageset<P> {
    #[inline]
    fn add_block_frames(&self, kind: PageKind, frames: u64) {
        let cell = &self.block_frames[kind as usize];
        cell.store(cell.load(Relaxed).wrapping_add(frames), Relaxed);
    }

    /// Returns how many frames were allocated as `kind` minus how many were freed by steps of blocks above the small orders;
    /// the number may be out of date.
    pub(crate) fn block_frames(&self, kind: PageKind) -> i64 {
        self.block_frames[kind as usize].load(Relaxed) as i64
    }
}
