//! Pushes of blocks under the lock, and drains, which move frames from a full pageset to the buddy.
//!
//! Related files: `pageset/refill.rs` moves frames into a pageset, `rules/pageset_tuning.rs` decides how many frames to
//! drain, and `alloc/free.rs` frees blocks.

use crate::buddy::word_batch::{BATCH_MAX, WordBatch};
use crate::pageset::high::zone_level;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{CachedOrders, PagesetGuard, StackId};
use crate::platform::Platform;
use crate::rules::pageset_tuning::{PagesetTuning, words};
use crate::units::{Order, PageCount};
use crate::zone::counters::ZoneItem;
use crate::zone::{CpuInfo, Shortness, Zone};

/// How often a drain tries to lock a pageset before it skips the pageset.
const DRAIN_TRIES: u32 = 32;

/// Maximum number of frames that a drain moves in one batch, under one lock; a larger block moves alone.
const FRAMES_MAX: u64 = 512;

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Pushes a block onto its stack, and drains the pageset if it has reached `high`.
    ///
    /// Returns `false` if the stack has no free slots and cannot be drained.
    pub(crate) fn add(&self, stack: StackId, frame: u32, order: Order) -> bool {
        if self.free_slots(stack) == 0 && !self.ensure_free_slots(stack) {
            return false;
        }
        self.push(stack, order, frame);
        if stack != StackId::PAGES {
            self.note_block(order.pages().get() as u32);
        }
        match self.state.shared.tuning() {
            PagesetTuning::Depth | PagesetTuning::DepthPublished => {
                self.set_run(self.depth().on_push(order, self));
                self.end_period();
            }
            PagesetTuning::Stepwise => {
                self.stepwise().on_push(order, self.zone_limits().batch, self);
            }
            PagesetTuning::Fixed => {}
        }
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
        let size =
            if self.state.shared.tuning().rounds_to_words() { words::drain_size(batch) } else { batch };
        self.drain(stack, size.min(PageCount::new(half)));
        self.free_slots(stack) > 0
    }

    /// Drains a pageset that has reached `high`; first initializes `high` if this is the pageset's first use.
    #[cold]
    fn drain_surplus(&self, stack: StackId) {
        self.set_first_high();
        let count = self.count();
        if count < self.high_now() {
            return;
        }
        let threshold = self.high_now();
        let batch = self.zone_limits().batch;
        let size = match self.state.shared.tuning() {
            PagesetTuning::Stepwise => {
                let figures = self.figures();
                let resize = self.stepwise().drain(&figures, zone_level(self.zone), self);
                self.set_high(resize.high);
                resize.size.max(count.saturating_minus(self.high_now()))
            }
            // After `high` has fallen, the count approaches it by one batch per drain, unless the zone is being
            // reclaimed.
            PagesetTuning::DepthPublished if !self.zone.is_reclaimed() => batch,
            PagesetTuning::DepthPublished => batch.max(count.saturating_minus(threshold)),
            PagesetTuning::Depth | PagesetTuning::Fixed => {
                let size = words::drain_size(batch);
                let single = stack == StackId::PAGES;
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
    pub(super) fn drain(&self, first: StackId, frames: PageCount) {
        let mut left = frames.get();
        for stack in core::iter::once(first).chain(CachedOrders::stacks_downwards()) {
            if left == 0 {
                break;
            }
            let order = self.state.cached.order(stack);
            while left > 0 && self.len(stack) > 0 {
                let most = (FRAMES_MAX >> order.get()).clamp(1, BATCH_MAX as u64);
                let blocks = (left >> order.get()).clamp(1, most) as u32;
                let gone = self.drain_stack(stack, blocks.min(self.len(stack)));
                left = left.saturating_sub(gone.get());
            }
        }
        self.note_shortness();
        self.state.clear_full_bits_early(self.zone);
    }

    /// Drains the blocks of middle orders, if 2 MiB blocks are scarce.
    pub(super) fn drain_middles(&self) {
        if self.zone.is_short(Shortness::HugeBlocks) {
            for stack in CachedOrders::stacks_downwards().filter(|stack| stack.is_middle()) {
                let len = self.len(stack);
                if len > 0 {
                    self.drain_stack(stack, len);
                }
            }
        }
    }

    /// Drains one batch of blocks from the top of `stack`; returns how many frames left the pageset.
    fn drain_stack(&self, stack: StackId, blocks: u32) -> PageCount {
        let order = self.state.cached.order(stack);
        let refused = if order == Order::PAGE {
            drain_frames(self.zone, self, blocks)
        } else {
            drain_blocks(self.zone, self, stack, order, blocks)
        };
        let moved = u64::from(blocks) << order.get();
        let refused = refused << order.get();
        self.zone.counters().add(&self.zone_diffs, ZoneItem::Free, (moved - refused) as i64, self);
        self.count_retired(refused);
        self.bump(|pageset| &pageset.drains);
        PageCount::new(moved)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Empties the pageset of a CPU.
    ///
    /// The number of tries is limited, because the holder of the lock may be a context that the caller has interrupted.
    pub(crate) fn drain_cpu(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        if self.pagesets_of(zone).of(cpu).count() == PageCount::ZERO {
            return;
        }
        for round in 0..DRAIN_TRIES {
            if let Some(guard) = self.try_pageset(zone, cpu) {
                guard.drain(StackId::PAGES, guard.count());
                if cpu.id != self.platform.current_cpu() {
                    guard.bump(|pageset| &pageset.remote_drains);
                }
                guard.update_limits();
                return;
            }
            self.platform.relax(round);
        }
    }
}

/// Drains the top `count` single frames; returns how many were refused, because their states or the buddy showed an
/// invalid free.
fn drain_frames<P: Platform>(zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, count: u32) -> u64 {
    if count == u64::BITS
        && let Some(word) = guard.whole_word_on_top()
    {
        guard.drop_frames(count);
        let gone = zone.frames.mark_word_free(word, !0);
        return u64::from(gone.count_zeros()) + zone.free_areas.free_word(word, gone);
    }
    let (mut batch, mut strange) = (WordBatch::new(), 0);
    let twice = batch.add(guard.pop_frames(count).filter(mark_free_blocks(zone, Order::PAGE, &mut strange)));
    u64::from(twice) + strange + zone.free_areas.free_batch(&batch)
}

/// Drains the top blocks of a larger order; returns how many were refused, as in [`drain_frames`].
fn drain_blocks<P: Platform>(
    zone: &Zone<'_, P>,
    guard: &PagesetGuard<'_, P>,
    stack: StackId,
    order: Order,
    blocks: u32,
) -> u64 {
    let mut strange = 0;
    let popped = core::iter::from_fn(|| guard.pop(stack, order)).take(blocks as usize);
    let twice =
        zone.free_areas.free_blocks_back(order, popped.filter(mark_free_blocks(zone, order, &mut strange)));
    twice + strange
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
        let lets = zone.frames.mark_free(frame, order);
        *strange += u64::from(!lets);
        lets
    }
}
