//! Pushes of blocks under the lock, and drains, which move frames from a full pageset to the buddy.
//!
//! Related files: `pageset/refill.rs` moves frames into a pageset, `rules/pageset_tuning.rs` decides how many frames to
//! drain, and `alloc/freed.rs` frees blocks.

use crate::buddy::word_batch::{BATCH_MAX, WordBatch};
use crate::pageset::guard::AREA_HOLD_MAX;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{CachedOrders, HOLD_MAX, StackId};
use crate::platform::Platform;
use crate::platform::tracepoint::Tracepoint;
use crate::platform::whole_words::WORD_FRAMES;
use crate::rules::pageset_tuning::{Depths, TuningRule, words};
use crate::units::{Order, PageCount};
use crate::zone::counters::ZoneItem;
use crate::zone::frame_state::FrameState;
use crate::zone::free_areas::FreeAreas;
use crate::zone::owned_blocks::Merged;
use crate::zone::{CpuInfo, Zone};

/// How often a drain tries to lock a pageset before it skips the pageset.
const DRAIN_TRIES: u32 = 32;

/// Maximum number of whole words that a drain moves in one batch.
const WORDS_MAX: usize = AREA_HOLD_MAX as usize / WORD_FRAMES;

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Pushes a block onto its stack, and drains the pageset if it has reached `high`.
    ///
    /// Returns `false` if the stack has no free slots and cannot be drained.
    pub(crate) fn add(&self, stack: StackId, frame: u32, order: Order) -> bool {
        if self.free_slots(stack) == 0 && !self.ensure_free_slots(stack) {
            return false;
        }
        self.push(stack, order, frame);
        self.account_step(-(order.pages().get() as i64), order);
        if self.count() >= self.high_now() {
            self.drain_surplus(stack);
        }
        true
    }

    /// Drains a full stack to create free slots; returns `false` if the pageset is closed.
    #[cold]
    fn ensure_free_slots(&self, stack: StackId) -> bool {
        let order = self.state.cached.order(stack);
        let half = u64::from(self.len(stack)).div_ceil(2) << order.get();
        let batch = self.zone_limits().batch;
        let rounds = self.state.shared.tuning().rounds_to_words();
        let size = if rounds { words::drain_size(batch, PageCount::ZERO, PageCount::ZERO) } else { batch };
        self.drain(stack, size.min(PageCount::new(half)));
        self.free_slots(stack) > 0
    }

    /// Drains a pageset that has reached `high`; first initializes `high` if this is the pageset's first use.
    #[cold]
    fn drain_surplus(&self, stack: StackId) {
        self.set_first_high();
        let (count, threshold) = (self.count(), self.high_now());
        if count < threshold {
            return;
        }
        let batch = self.zone_limits().batch;
        let tuning = self.state.shared.tuning();
        let size = match tuning.rule() {
            TuningRule::Stepwise => {
                let figures = self.figures();
                let resize = self.stepwise().drain(&figures, self.zone_level());
                self.set_high(resize.high);
                resize.size.max(count.saturating_minus(self.high_now()))
            }
            _ if tuning.is_past() => {
                let excess = self.zone.is_reclaimed().then(|| count.saturating_minus(threshold));
                self.state.config().past.tuning.map_or(batch, |form| form.drain_size(batch, excess))
            }
            TuningRule::Depth | TuningRule::Fixed => {
                let single = stack == StackId::PAGES;
                // A run of frees that has come far below the period's maximum probably goes on.
                let run = if single { self.run_so_far(Depths::free) } else { PageCount::ZERO };
                let size = words::drain_size(batch, run, count);
                let size = if single { PageCount::new(self.until_whole_words(size.get())) } else { size };
                size.max(words::drain_least(threshold, count))
            }
        };
        self.drain(stack, size.min(count));
        // The limits are lower while large blocks are scarce or after a change of settings. In these cases this line
        // lowers `high` too.
        self.set_high(self.high_limits().clamp(self.high()));
    }

    /// Drains at least `frames` frames to the zone, first from the stack `first`, then from the other stacks in
    /// descending order.
    ///
    /// Frames that may not move under this hold of the lock are left for [`Self::end`].
    pub(super) fn drain(&self, first: StackId, frames: PageCount) {
        let (mut left, batches) = (frames.get(), self.batches());
        for stack in core::iter::once(first).chain(CachedOrders::stacks_downwards()) {
            if left == 0 {
                break;
            }
            let order = self.state.cached.order(stack);
            while left > 0 && self.len(stack) > 0 && self.may_move() >> order.get() > 0 {
                let most = u64::from(self.may_move() >> order.get());
                let blocks = (left >> order.get()).clamp(1, most) as u32;
                let gone = self.drain_stack(stack, blocks.min(self.len(stack)));
                left = left.saturating_sub(gone.get());
            }
        }
        self.undrained.set(left.min(self.count().get()));
        self.note_shortness(batches);
        self.state.clear_full_bits_early(self.zone);
    }

    /// Drains one batch, at most `blocks` blocks from the top of `stack`; returns how many frames left the pageset.
    pub(super) fn drain_stack(&self, stack: StackId, blocks: u32) -> PageCount {
        let order = self.state.cached.order(stack);
        let (blocks, merged) = if order == Order::PAGE {
            self.drain_frames(blocks)
        } else {
            let blocks = blocks.min(BATCH_MAX as u32);
            (blocks, self.drain_blocks(stack, order, blocks))
        };
        self.count_moved(blocks << order.get());
        self.zone.counters().update(&self.zone_diffs, self, [(ZoneItem::Free, merged.free as i64)]);
        self.count_retired(merged.refused);
        self.add_to(|pageset| &pageset.drains, 1);
        let frames = PageCount::new(u64::from(blocks) << order.get());
        self.state.platform.trace(Tracepoint::Drain { zone: self.zone.id, cpu: self.cpu.id, frames });
        frames
    }

    /// Drains a batch, at most `count` frames from the top of the single-frame stack; returns how many left the stack,
    /// and how many of them were refused, because their states or the buddy showed an invalid free.
    ///
    /// The batch has the whole words on top or, if there is none, at most [`BATCH_MAX`] frames.
    fn drain_frames(&self, count: u32) -> (u32, Merged) {
        const WORD: u32 = WORD_FRAMES as u32;
        let zone = self.zone;
        let (mut words, mut len, mut strange) = ([(0, 0); WORDS_MAX], 0, 0);
        while len < words.len().min((count / WORD) as usize)
            && let Some(word) = self.whole_word_on_top()
        {
            _ = self.take_frames(WORD); // they are known
            let gone = zone.frames.step_word(word, !0, FrameState::Cached(Order::PAGE), FrameState::Free);
            strange += u64::from(gone.count_zeros());
            words[len] = (word, gone);
            len += 1;
        }
        if len > 0 {
            let merged = zone.merge_words(&mut words[..len], FreeAreas::merge_words);
            return (WORD * len as u32, merged.plus(Merged { free: 0, refused: strange }));
        }
        let (mut batch, count) = (WordBatch::new(), count.min(BATCH_MAX as u32));
        let twice =
            batch.add(self.take_frames(count).filter(mark_free_blocks(zone, Order::PAGE, &mut strange)));
        let merged = zone.merge_words(batch.words(), FreeAreas::merge_batch);
        (count, merged.plus(Merged { free: 0, refused: u64::from(twice) + strange }))
    }

    /// Drains the top blocks of a larger order; returns how many were refused, as in [`Self::drain_frames`].
    fn drain_blocks(&self, stack: StackId, order: Order, blocks: u32) -> Merged {
        let (zone, mut strange, mut merged) = (self.zone, 0, Merged::default());
        let (mut others, mut len) = ([0; BATCH_MAX], 0);
        let popped = core::iter::from_fn(|| self.pop(stack, order)).take(blocks as usize);
        for frame in popped.filter(mark_free_blocks(zone, order, &mut strange)) {
            match zone.merge_into_owned(frame, order) {
                Some(to_owner) => merged = merged.plus(to_owner),
                None => {
                    others[len] = frame;
                    len += 1;
                }
            }
        }
        let twice = zone.free_areas.merge_blocks_back(order, &others[..len]);
        let (free, refused) = ((len as u64 - twice) << order.get(), (strange + twice) << order.get());
        merged.plus(Merged { free, refused })
    }

    /// Ends the session, and then finishes its drain under further holds of the lock, each followed by `after`.
    pub(super) fn end_with(self, after: impl Fn(&Self)) {
        let (state, zone, cpu) = (self.state, self.zone, self.cpu);
        let mut left = self.undrained.get();
        drop(self);
        while left > 0 {
            let Some(session) = state.pageset_to_drain(zone, cpu) else { return };
            session.drain(StackId::PAGES, PageCount::new(left).min(session.count()));
            after(&session);
            session.update_limits();
            left = session.undrained.get();
        }
    }

    /// Ends the session, and then finishes its drain under further holds of the lock.
    #[inline]
    pub(crate) fn end(self) {
        if self.undrained.get() != 0 {
            self.end_with(|_| {});
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Empties the pageset of a CPU.
    ///
    /// The CPU may push frames between the holds of the lock. The drain ends when it has seen the pageset empty, or
    /// after twice as many holds as the frames needed that were there when it began.
    pub(crate) fn drain_cpu(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        let count = self.pagesets_of(zone).of(cpu).count().get();
        for hold in 0..2 * count.div_ceil(HOLD_MAX.into()) {
            let Some(session) = self.pageset_to_drain(zone, cpu) else { return };
            session.drain(StackId::PAGES, session.count());
            if hold == 0 && cpu.id != self.platform.current_cpu() {
                session.add_to(|pageset| &pageset.remote_drains, 1);
                self.platform.trace(Tracepoint::RemoteDrain { zone: zone.id, cpu: cpu.id });
            }
            session.update_limits();
            if session.undrained.get() == 0 {
                return;
            }
        }
    }

    /// Locks a pageset for a drain.
    ///
    /// The number of tries is limited, because the holder of the lock may be a context that the caller has interrupted.
    fn pageset_to_drain<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        (0..DRAIN_TRIES).find_map(|round| {
            let session = self.try_pageset(zone, cpu);
            if session.is_none() {
                self.platform.relax(round);
            }
            session
        })
    }
}

/// Returns a filter that marks blocks as free.
///
/// The filter excludes blocks that were not marked as cached, and counts them in `strange`.
fn mark_free_blocks<P: Platform>(
    zone: &Zone<'_, P>,
    order: Order,
    strange: &mut u64,
) -> impl FnMut(&u32) -> bool {
    move |&frame| {
        let lets = zone.frames.step(frame, FrameState::Cached(order), FrameState::Free);
        *strange += u64::from(!lets);
        lets
    }
}
