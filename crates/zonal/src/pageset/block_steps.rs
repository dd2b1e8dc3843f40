//! Pops and pushes of blocks of more than one frame under the lock, for the usual case.
//!
//! In the usual case, the pageset holds a block or has a free slot for one, the step reaches no new depth of the depth
//! rule (M2 of the README), and the pageset stays below `high`. The step then changes one stack, the word, the depths and
//! the limits of the fast path. In all other cases the caller receives a session.
//!
//! A block of `pages` frames changes the number of frames in the pageset without a change of the free slots, so the limits
//! move by `pages`. With `full` = the free slots at which the pageset reaches `high`, and the leeways of
//! `pageset/session.rs`, the limits remain
//!
//! - largest number of free slots = min(capacity, free slots + leeway of pops)
//! - smallest number of free slots >= max(full, free slots - leeway of pushes)
//!
//! because `full` changes by exactly `pages`, and the smallest number was at least `full` before.
//!
//! Related files: `pageset/steps.rs` does the same for single frames, `pageset/session.rs` sets limits from scratch.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{Pageset, StackId};
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_slot::LockWord;
use crate::platform::pageset_word::{Limits, PagesetWord, SERVED_GUARD, SERVED_STEP};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::pageset_tuning::depth::Depths;
use crate::units::{Order, PageKind};
use crate::zone::counters::CpuGuard;
use crate::zone::{CpuInfo, Zone};

/// A pageset that was just locked, and its state after the single frames that the depth rule has not accounted for.
struct Locked<'a, P: Platform> {
    pageset: &'a Pageset<P>,
    word: PagesetWord,
    position: Depths,
    deepest: Depths,
    pop_limit: u64,
    push_limit: u64,
}

impl<P: Platform> CpuGuard for Locked<'_, P> {}

/// A session, or `None` if the pageset could not be locked.
type Session<'a, 'm, P> = Option<PagesetSession<'a, 'm, P>>;

impl<'m, P: Platform> MachineState<'m, P> {
    /// Pops a block from a stack of larger blocks of the caller's CPU, and counts it as allocated from the preferred zone.
    ///
    /// # Errors
    /// Returns the session if more work is necessary.
    #[inline]
    pub(crate) fn pop_block<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
        stack: StackId,
        order: Order,
        kind: PageKind,
    ) -> Result<u32, Session<'a, 'm, P>> {
        let pagesets = self.pagesets_of(zone);
        let pageset = pagesets.of(cpu);
        let lock_word = self.platform.cpu_local().lock(cpu.id, &pageset.head).ok_or(None)?;
        let session = || Err(Some(PagesetSession::of_locked(self, zone, cpu, lock_word)));
        let Some(locked) = self.begin_step(pageset, lock_word) else { return session() };
        let pages = order.pages().get() as u32;
        let (len, next) = (pageset.lens[stack.0].load(Relaxed), locked.word.bits() + SERVED_STEP);
        let position = locked.position.after_pop(pages);
        if len == 0
            || position.alloc > locked.deepest.alloc
            || next.wrapping_add(locked.pop_limit) & SERVED_GUARD != 0
            || pageset.serves_for_another()
        {
            return session();
        }
        let frame = pagesets.slot(cpu, stack, len - 1).load(Relaxed);
        if stack.is_middle() {
            pageset.note_last_middle(frame);
        }
        pageset.lens[stack.0].store(len - 1, Relaxed);
        pageset.large.store(pageset.large.load(Relaxed) - u64::from(pages), Relaxed);
        let least = Limits::least_of(locked.push_limit).saturating_sub(pages);
        let word = self.counted(zone, PagesetWord::from_bits(next), kind, i64::from(pages));
        locked.end(word, position, least);
        Ok(frame)
    }

    /// Pushes a block onto a stack of larger blocks of the caller's CPU, and counts it as freed.
    ///
    /// # Errors
    /// Returns the session if more work is necessary, for example a drain.
    #[inline]
    pub(crate) fn push_block<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
        stack: StackId,
        frame: u32,
        order: Order,
        kind: PageKind,
    ) -> Result<(), Session<'a, 'm, P>> {
        let pagesets = self.pagesets_of(zone);
        let pageset = pagesets.of(cpu);
        let lock_word = self.platform.cpu_local().lock(cpu.id, &pageset.head).ok_or(None)?;
        let session = || Err(Some(PagesetSession::of_locked(self, zone, cpu, lock_word)));
        let Some(locked) = self.begin_step(pageset, lock_word) else { return session() };
        let pages = order.pages().get() as u32;
        let len = pageset.lens[stack.0].load(Relaxed);
        let position = locked.position.after_push(pages);
        let least = Limits::least_of(locked.push_limit).saturating_add(pages);
        if len == pagesets.depth(cpu, stack)
            || position.free > locked.deepest.free
            || locked.word.free_slots() < least // the pageset would reach `high`
            || pageset.depth().is_period_over(self.platform.now())
        {
            return session();
        }
        pagesets.slot(cpu, stack, len).store(frame, Relaxed);
        pageset.lens[stack.0].store(len + 1, Relaxed);
        pageset.large.store(pageset.large.load(Relaxed) + u64::from(pages), Relaxed);
        let word = self.counted(zone, locked.word, kind, -i64::from(pages));
        locked.end(word, position, least);
        Ok(())
    }

    /// Reads the state of a pageset that was just locked; returns `None` if its limits do not allow both pops and pushes.
    #[inline]
    fn begin_step<'a>(&self, pageset: &'a Pageset<P>, lock_word: LockWord) -> Option<Locked<'a, P>> {
        // Relaxed throughout: the lock orders the accesses.
        let head = &pageset.head;
        let (pop_limit, push_limit) = (head.pop_limit.load(Relaxed), head.push_limit.load(Relaxed));
        if lock_word != LockWord::OPEN
            || pop_limit == Limits::POP_NONE
            || push_limit == Limits::PUSH_NONE
            || self.shared.tuning() != PagesetTuning::Depth
        {
            return None;
        }
        let word = PagesetWord::from_bits(head.word.load(Relaxed));
        let moved = i64::from(word.free_slots()) - pageset.settled.load(Relaxed) as i64;
        let position = pageset.depth().position_after(moved);
        let deepest = pageset.depth().deepest().deepest(position);
        Some(Locked { pageset, word, position, deepest, pop_limit, push_limit })
    }

    /// Returns the word after `frames` frames were allocated as `kind`, or freed if the number is negative. A difference
    /// beyond the threshold moves to the totals.
    #[inline]
    fn counted(&self, zone: &Zone<'m, P>, word: PagesetWord, kind: PageKind, frames: i64) -> PagesetWord {
        let counters = &self.nodes[zone.node].counters;
        let left = counters.leave(kind.item(), word.difference(kind as usize), frames);
        word.with_difference(kind as usize, left)
    }
}

impl<P: Platform> Locked<'_, P> {
    /// Stores the new word, position and limits, and unlocks the pageset.
    #[inline]
    fn end(self, word: PagesetWord, position: Depths, least: u32) {
        // Relaxed throughout: the lock orders the accesses.
        let (pageset, head, deepest) = (self.pageset, &self.pageset.head, self.deepest);
        pageset.depth().set_within(position, deepest, &self);
        let (capacity, free_slots) = (pageset.capacity.load(Relaxed), word.free_slots());
        pageset.settled.store(u64::from(free_slots), Relaxed);
        let (pops, pushes) = (deepest.alloc - position.alloc, deepest.free - position.free);
        let most = capacity.min(free_slots.saturating_add(pops));
        let least = least.max(free_slots.saturating_sub(pushes)).min(capacity);
        head.pop_limit.store(Limits::with_most(self.pop_limit, most), Relaxed);
        head.push_limit.store(Limits::with_least(self.push_limit, least), Relaxed);
        head.word.store(word.bits(), Relaxed);
        head.open();
    }
}
