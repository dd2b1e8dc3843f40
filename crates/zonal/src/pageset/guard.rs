//! The operations that need a pageset's lock: on the stacks, the packed word and the limits of the fast path.
//!
//! Related files: `pageset/session.rs` locks pagesets and combines the guard with the zone, and `pageset/stacks.rs`
//! moves many single frames at once.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::pageset::{CLOSED, HOLD_MAX, Pageset, StackId, StackShape, USED};
use crate::platform::pageset_word::{POP_NONE, PUSH_NONE, PagesetWord};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{Leeway, StepwiseState};
use crate::units::{Order, PageCount, PageKind};
use crate::zone::counters::{CpuGuard, NodeItem, ZonedCounters};

/// Proof that the holder has locked a pageset and alone may change it and its counter differences.
pub(crate) struct PagesetGuard<'a, P: Platform> {
    pageset: &'a Pageset<P>,
    slots: &'a [P::U32],
    shape: &'a StackShape,
    /// Frames that the holder's last step popped, negative if it pushed, if only steps in its direction may follow without
    /// the lock; otherwise 0.
    pub(super) run: Cell<i64>,
    /// Whether the holder's last step is that of a larger block.
    pub(super) moved_block: Cell<bool>,
    /// Frames that refills, drains and bulk operations have moved under this hold of the lock; at most [`HOLD_MAX`].
    moved: Cell<u32>,
}

/// Number of frames that a refill asks a free area for, and that a drain moves in whole words, under one hold of its lock.
///
/// A refill may get up to a word more, because it takes whole words. A larger block moves alone.
/// Two words at a time take fewer instructions than one. With four, CPUs that all allocate wait for each other longer.
pub(super) const AREA_HOLD_MAX: u32 = 128;

impl<P: Platform> CpuGuard for PagesetGuard<'_, P> {}

impl<P: Platform> Drop for PagesetGuard<'_, P> {
    fn drop(&mut self) {
        self.pageset.settled.store(u64::from(self.word().free_slots()), Relaxed);
        let moved = u64::from(self.moved.get());
        if moved > self.pageset.longest_hold.load(Relaxed) {
            self.pageset.longest_hold.store(moved, Relaxed);
        }
        self.pageset.head.open();
    }
}

impl<P: Platform> core::ops::Deref for PagesetGuard<'_, P> {
    type Target = Pageset<P>;

    fn deref(&self) -> &Pageset<P> {
        self.pageset
    }
}

// Accesses are relaxed unless they say otherwise, because the lock that the guard represents orders them.
impl<'a, P: Platform> PagesetGuard<'a, P> {
    /// Creates the guard of a head that was just locked.
    pub(crate) fn new(pageset: &'a Pageset<P>, (slots, shape): (&'a [P::U32], &'a StackShape)) -> Self {
        let (run, moved_block, moved) = (Cell::new(0), Cell::new(false), Cell::new(0));
        let guard = Self { pageset, slots, shape, run, moved_block, moved };
        if !pageset.was_used() {
            guard.begin();
        }
        guard
    }

    /// Initializes a pageset at its first session; the fast path's pops and pushes bail out until limits are set.
    #[cold]
    fn begin(&self) {
        let capacity = self.shape.depth(StackId::PAGES);
        self.set_word(PagesetWord::empty(capacity));
        // Release: publishes the word; pairs with `Pageset::count`, `Pageset::has`.
        self.pageset.capacity.store(capacity, Release);
        self.pageset.settled.store(u64::from(capacity), Relaxed);
        self.always_bail_out();
        self.set_flag(USED, true);
    }

    /// Returns the word.
    pub(super) fn word(&self) -> PagesetWord {
        PagesetWord(self.pageset.head.word.load(Relaxed))
    }

    /// Sets the word.
    pub(super) fn set_word(&self, word: PagesetWord) {
        self.pageset.head.assert_locked();
        self.pageset.head.word.store(word.0, Relaxed);
    }

    /// Sets the limits of pops and pushes without the lock.
    pub(super) fn set_limits(&self, pop_limit: u64, push_limit: u64) {
        self.pageset.head.assert_locked();
        self.pageset.head.pop_limit.store(pop_limit, Relaxed);
        self.pageset.head.push_limit.store(push_limit, Relaxed);
    }

    /// Makes every pop and push bail out.
    pub(super) fn always_bail_out(&self) {
        self.set_limits(POP_NONE, PUSH_NONE);
        self.set_block_leeway(Leeway::NONE);
    }

    /// Sets how many frames may be popped and pushed as larger blocks without a session.
    pub(super) fn set_block_leeway(&self, leeway: Leeway) {
        self.pageset.block_leeway.store(leeway.word(), Relaxed);
        self.pageset.block_leeway_settled.store(leeway.word(), Relaxed);
    }

    /// Records that blocks of `pages` frames are popped or pushed, so that the next such steps have leeway; 0 ends that.
    pub(super) fn note_block(&self, pages: u32) {
        if self.pageset.block_pages.load(Relaxed) != pages {
            self.pageset.block_pages.store(pages, Relaxed);
        }
    }

    /// Returns how many more frames may move under this hold of the lock.
    pub(crate) fn may_move(&self) -> u32 {
        HOLD_MAX - self.moved.get()
    }

    /// Counts frames that have moved under this hold of the lock.
    pub(crate) fn count_moved(&self, frames: u32) {
        self.moved.set(self.moved.get() + frames);
        debug_assert!(self.moved.get() <= HOLD_MAX, "{} frames moved under one hold", self.moved.get());
    }

    /// Pops the block that was pushed onto `stack` last.
    pub(crate) fn pop(&self, stack: StackId, order: Order) -> Option<u32> {
        if stack == StackId::PAGES {
            let word = self.word();
            if word.free_slots() == self.shape.depth(stack) {
                return None;
            }
            self.set_word(word.with_free_slots(word.free_slots() + 1));
            return Some(self.slots[word.free_slots() as usize].load(Relaxed));
        }
        let len = self.pageset.lens[stack.0].load(Relaxed);
        if len == 0 {
            return None;
        }
        self.pageset.lens[stack.0].store(len - 1, Relaxed);
        self.pageset.large.store(self.pageset.large.load(Relaxed) - order.pages().get(), Relaxed);
        Some(self.slots[self.shape.slot(stack, len - 1)].load(Relaxed))
    }

    /// Pushes a block onto `stack`, which must have free slots.
    pub(crate) fn push(&self, stack: StackId, order: Order, frame: u32) {
        if stack == StackId::PAGES {
            let free_slots = self.word().free_slots() - 1;
            self.slots[free_slots as usize].store(frame, Relaxed);
            self.set_word(self.word().with_free_slots(free_slots));
            return;
        }
        let len = self.pageset.lens[stack.0].load(Relaxed);
        debug_assert!(len < self.shape.depth(stack));
        self.slots[self.shape.slot(stack, len)].store(frame, Relaxed);
        self.pageset.lens[stack.0].store(len + 1, Relaxed);
        self.pageset.large.store(self.pageset.large.load(Relaxed) + order.pages().get(), Relaxed);
    }

    /// Returns the slots of the single-frame stack, with the free slots first.
    pub(super) fn page_slots(&self) -> &'a [P::U32] {
        &self.slots[..self.shape.depth(StackId::PAGES) as usize]
    }

    /// Returns the number of blocks on `stack`.
    pub(crate) fn len(&self, stack: StackId) -> u32 {
        if stack == StackId::PAGES {
            self.shape.depth(stack) - self.word().free_slots()
        } else {
            self.pageset.lens[stack.0].load(Relaxed)
        }
    }

    /// Returns the blocks on `stack`, for the consistency check.
    pub(crate) fn blocks(&self, stack: StackId) -> impl Iterator<Item = u32> + '_ {
        let first = if stack == StackId::PAGES { self.word().free_slots() } else { 0 };
        (0..self.len(stack)).map(move |at| self.slots[self.shape.slot(stack, first + at)].load(Relaxed))
    }

    /// Returns how many more blocks `stack` can hold; the number is 0 if the pageset is closed.
    pub(crate) fn free_slots(&self, stack: StackId) -> u32 {
        if self.is_closed() { 0 } else { self.shape.depth(stack) - self.len(stack) }
    }

    /// Counts frames that were allocated as `kind`, or freed if `frames` is negative.
    pub(crate) fn count_kind(&self, kind: PageKind, frames: i64, counters: &ZonedCounters<'_, P, NodeItem>) {
        let lane = kind as usize;
        let difference = self.word().difference(lane);
        let left = counters.leave(kind.item(), difference, frames);
        self.set_word(self.word().with_difference(lane, left));
    }

    /// Returns the difference in `lane` and sets it to zero.
    pub(super) fn clear(&self, lane: usize) -> i64 {
        let word = self.word();
        self.set_word(word.with_difference(lane, 0));
        word.difference(lane)
    }

    /// Returns the tuning state of the stepwise rule. Zero is the initial state; a change of the rule resets it.
    pub(super) fn stepwise(&self) -> StepwiseState {
        StepwiseState::from_word(self.pageset.stepwise.load(Relaxed))
    }

    /// Changes the tuning state of the stepwise rule, and returns what `change` returns.
    pub(super) fn update_stepwise<R>(&self, change: impl FnOnce(&mut StepwiseState) -> R) -> R {
        let before = self.stepwise();
        let mut state = before;
        let result = change(&mut state);
        if state != before {
            self.pageset.stepwise.store(state.word(), Relaxed);
        }
        result
    }

    /// Sets `pageset.high`.
    pub(super) fn set_high(&self, high: PageCount) {
        self.pageset.high.store(high.get(), Relaxed);
    }

    /// Whether the CPU is offline.
    pub(crate) fn is_closed(&self) -> bool {
        self.pageset.flags.load(Relaxed) & CLOSED != 0
    }

    /// Sets or clears `CLOSED`, `WATCHED` or `USED`.
    pub(super) fn set_flag(&self, flag: u32, is_set: bool) {
        let others = self.pageset.flags.load(Relaxed) & !flag;
        self.pageset.flags.store(if is_set { others | flag } else { others }, Relaxed);
    }

    /// Adds `amount` to a counter of the pageset.
    pub(crate) fn add_to(&self, figure: impl FnOnce(&Pageset<P>) -> &P::U64, amount: u64) {
        let cell = figure(self.pageset);
        cell.store(cell.load(Relaxed) + amount, Relaxed);
    }
}
