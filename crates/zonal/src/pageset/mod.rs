//! Pagesets: a pageset holds the free frames of one zone that one CPU caches, as stacks of frame numbers.
//!
//! There is a stack for each cached order. A CPU pops and pushes single frames through the [`Head`] alone
//! (`platform/cpu_local.rs`). All other operations lock the head, and a [`PagesetGuard`] proves that it is locked.
//! Related files: `pageset/session.rs` locks pagesets and sets limits. `pageset/stacks.rs` moves many single frames at
//! once. `pageset/refill.rs` and `pageset/drain.rs` move frames between the stacks and the buddy.
//! `rules/pageset_tuning.rs` decides how deep the stacks may grow. Linux: `struct per_cpu_pages`.

mod block_steps;
pub(crate) mod deferred;
mod depth_cells;
mod drain;
mod full_zones;
mod guard;
mod refill;
mod served;
pub(crate) mod session;
mod slot;
mod stacks;
pub(crate) mod state;
mod steps;
mod upkeep;

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::pageset_slot::Head;
use crate::platform::pageset_word::{PUSH_NONE, PagesetWord};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::DepthState;
use crate::units::{Moment, Order, PageCount, PageKind};
use crate::zone::CpuInfo;
pub(crate) use guard::PagesetGuard;

/// Maximum number of frames that move between a pageset and the buddy, or its caller, under one hold of the pageset's
/// lock. Free area locks are held only for parts of such a move. No cached block is larger.
pub(crate) const HOLD_MAX: u32 = 512;

/// Number of stacks: orders 0 to 8, and 2 MiB.
pub(crate) const STACKS: usize = 10;
/// The stack of 2 MiB blocks.
const HUGE: usize = STACKS - 1;
const _: () = assert!(1 << (HUGE - 1) <= HOLD_MAX);

/// Number of orders for single frames and small blocks, which are cached whatever the order of 2 MiB blocks.
const SMALL_ORDERS: u8 = 4;

/// The stack that holds blocks of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StackId(usize);

/// The position of each stack in a pageset's slots, and its maximum depth.
///
/// Invariant: `starts[i + 1] = starts[i] + depth of stack i`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackShape {
    starts: [u32; STACKS + 1],
}

impl StackId {
    /// The stack of single frames.
    pub(crate) const PAGES: Self = Self(0);
    /// The stack of the largest small blocks. The stacks between it and [`Self::LARGE`] have *middle* orders. A pageset
    /// caches a block of a middle order only if its CPU allocated no other one since, so that blocks in temporary use are
    /// fast. All other blocks are placed by the buddy, so that 2 MiB blocks remain whole.
    const SMALL: Self = Self(SMALL_ORDERS as usize - 1);
    /// The stack of 2 MiB blocks.
    const LARGE: Self = Self(HUGE);

    /// Whether the stack holds single frames or small blocks.
    pub(crate) const fn is_small(self) -> bool {
        self.0 <= Self::SMALL.0
    }

    /// Whether the stack has a middle order.
    pub(crate) const fn is_middle(self) -> bool {
        !self.is_small() && self.0 < HUGE
    }
}

impl StackShape {
    pub(crate) fn new(depths: [u32; STACKS]) -> Self {
        let mut starts = [0; STACKS + 1];
        for (at, depth) in depths.into_iter().enumerate() {
            starts[at + 1] = starts[at] + depth;
        }
        Self { starts }
    }

    /// Returns the largest value that `high` can have: the depth of the single-frame stack.
    pub(crate) const fn capacity(&self) -> PageCount {
        PageCount::new((self.starts[1] - self.starts[0]) as u64)
    }

    /// Returns the number of slots in all stacks.
    pub(crate) const fn slots(&self) -> usize {
        self.starts[STACKS] as usize
    }

    /// Returns the maximum number of blocks on `stack`.
    const fn depth(&self, stack: StackId) -> u32 {
        self.starts[stack.0 + 1] - self.starts[stack.0]
    }

    #[inline]
    const fn slot(&self, stack: StackId, at: u32) -> usize {
        (self.starts[stack.0] + at) as usize
    }
}

/// The orders of blocks that pagesets cache: the order of 2 MiB blocks, and those below a limit.
///
/// Invariant: a block of a cached order has at most [`HOLD_MAX`] frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedOrders {
    huge: Order,
    /// Number of smaller orders that are cached, from order 0.
    smaller: u8,
}

impl CachedOrders {
    /// Returns the cached orders: that of 2 MiB, and at most `smaller` below it. By default all are cached.
    pub(crate) fn new(huge: Order, smaller: u8) -> Self {
        // A refill would never move a larger block, and a drain would never end.
        let pages = huge.pages().get();
        assert!(pages <= HOLD_MAX.into(), "blocks of order {huge} have more than {HOLD_MAX} frames");
        Self { huge, smaller: huge.get().min(smaller).clamp(SMALL_ORDERS, HUGE as u8) }
    }

    /// Returns the stack for blocks of `order`, or `None` if they are not cached.
    #[inline]
    pub(crate) fn stack(&self, order: Order) -> Option<StackId> {
        if order.get() < self.smaller {
            Some(StackId(usize::from(order.get())))
        } else {
            (order == self.huge).then_some(StackId(HUGE))
        }
    }

    /// Returns the order of the blocks on `stack`.
    pub(crate) fn order(&self, stack: StackId) -> Order {
        if stack.0 == HUGE { self.huge } else { Order::new(stack.0 as u8).expect("below 9") }
    }

    /// Returns all stacks in the order in which a pageset is emptied, with the largest blocks first.
    pub(crate) fn stacks_downwards() -> impl Iterator<Item = StackId> {
        (0..STACKS).rev().map(StackId)
    }
}

/// The pagesets of one zone.
pub(crate) struct ZonePagesets<'m, P: Platform> {
    /// Pagesets by CPU id.
    pub(crate) pagesets: &'m [Pageset<P>],
    /// Slots of all pagesets: first the slots for CPUs on the zone's node, by rank, then the slots for CPUs of other
    /// nodes, by CPU id.
    pub(crate) slots: &'m [P::U32],
    /// Index of the zone's node.
    pub(crate) zone_node: usize,
    /// Number of CPUs on the zone's node.
    pub(crate) own_cpus: usize,
    pub(crate) own_stacks: &'m StackShape,
    pub(crate) foreign_stacks: &'m StackShape,
}

copy_view!(ZonePagesets);

impl<'m, P: Platform> ZonePagesets<'m, P> {
    /// Returns the pageset of a CPU.
    #[inline]
    pub(crate) fn of(&self, cpu: CpuInfo) -> &'m Pageset<P> {
        &self.pagesets[cpu.index as usize]
    }

    /// Returns the slots of a CPU's pageset, and the shape that divides them among its stacks.
    #[inline]
    pub(crate) fn stacks(&self, cpu: CpuInfo) -> (&'m [P::U32], &'m StackShape) {
        let (start, shape) = self.start(cpu);
        (&self.slots[start..][..shape.slots()], shape)
    }

    /// Whether a CPU is on the zone's node.
    #[inline]
    const fn is_own(&self, cpu: CpuInfo) -> bool {
        cpu.node as usize == self.zone_node
    }

    /// Returns the index of the first slot in a CPU's pageset, and the shape of its stacks.
    #[inline]
    fn start(&self, cpu: CpuInfo) -> (usize, &'m StackShape) {
        let own = self.own_stacks.slots();
        if self.is_own(cpu) {
            (cpu.rank as usize * own, self.own_stacks)
        } else {
            let foreign = self.foreign_stacks.slots();
            (self.own_cpus * own + cpu.index as usize * foreign, self.foreign_stacks)
        }
    }

    /// Makes the next push onto every used pageset of the zone bail out and recompute the pageset's limits.
    ///
    /// This is a hint. It is lost if the holder of the lock sets limits at the same time.
    pub(crate) fn let_next_pushes_bail_out(&self) {
        // Pagesets with few frames are included, because their current limits may allow them to grow deep.
        for pageset in self.pagesets.iter().filter(|pageset| pageset.was_used()) {
            pageset.head.push_limit.store(PUSH_NONE, Relaxed); // relaxed: a hint
        }
    }
}

/// Value of [`Head::serves_for`] if the pageset serves for its own zone.
const OWN_ZONE: u32 = 0;

const CLOSED: u32 = 1;
const WATCHED: u32 = 2;
const USED: u32 = 4;

all_zero! {
    /// State of one pageset. If all fields but those of the head are zero, the pageset is empty, open and has never been
    /// used. If it has a slot, its head is then prepared ([`Head::prepare`]), or else zero.
    ///
    /// Invariants while the pageset is not locked and has been used: the stack of single frames is `slots[free_slots..capacity]`, and the
    /// first of these frames is popped next. Each larger order's stack is the first `len` of its slots, and the
    /// last of these blocks is popped next. `large` = frames on the larger stacks. `high` is 0 before first use, and
    /// otherwise within the zone's limits. `settled` = the number of free slots for which the depth rule has accounted.
    /// A closed pageset accepts no blocks, and has no leeway of blocks.
    #[repr(C, align(64))]
    pub(crate) struct Pageset<P> {
        pub(crate) head: {Head<P>},
        settled: u64,
        high: u64,
        large: u64,
        lens: [u32; STACKS],
        /// Number of slots in the single-frame stack; 0 before the first session.
        capacity: u32,
        /// Number of frames in the last larger block that a session popped or pushed; 0 if there was none since the
        /// last tick.
        block_pages: u32,
        /// Leeway of blocks (`pageset/block_steps.rs`) now, and when the depth rule last accounted for their steps.
        block_leeway: u64,
        block_leeway_settled: u64,
        /// Differences of the zone's counters.
        pub(crate) zone_diffs: u64,
        /// State of the depth rule (`pageset/depth_cells.rs`).
        position: u64,
        deepest: u64,
        average: u64,
        period_start: u64,
        stepwise: u64,
        /// Frames allocated minus frames freed by steps of blocks above the small orders, by kind; 0 unless the CPU is on the
        /// zone's node.
        block_frames: [u64; PageKind::COUNT],
        /// [`CLOSED`] while the CPU is offline; [`WATCHED`] while each free checks whether the period of the depth rule
        /// is over; [`USED`] from the first session on.
        flags: u32,
        /// 1 + offset of the middle-order block that the CPU allocated last, or 0.
        last_middle: u32,
        /// Hash of the state at the last tick, and the number of ticks for which the hash has not changed.
        seen: u64,
        idle_ticks: u64,
        /// Batches refilled from the zone, batches drained to the zone, and times that another CPU emptied the pageset.
        pub(crate) refills: u64,
        pub(crate) drains: u64,
        pub(crate) remote_drains: u64,
        /// Most frames that moved under one hold of the lock.
        pub(crate) longest_hold: u64,
        /// Zones checked by scans that found a block in this pageset.
        pub(crate) probes: u64,
        /// Time at which differences were last folded, in clock nanoseconds.
        folded_at: u64,
    }
}

// Accesses are relaxed unless they say otherwise, because the values returned may be out of date.
impl<P: Platform> Pageset<P> {
    /// Returns the packed word, which may be out of date.
    pub(crate) fn word(&self) -> PagesetWord {
        match self.head.word.load(Relaxed) {
            0 => PagesetWord::empty(0), // the pageset has no slot and has never been used
            bits => PagesetWord(bits),
        }
    }

    /// Returns how many frames the pageset holds; the number may be out of date.
    pub(crate) fn count(&self) -> PageCount {
        // Acquire: takes a word that is not older than the capacity; pairs with `PagesetGuard::begin`.
        let singles = self.capacity.load(Acquire).saturating_sub(self.word().free_slots());
        PageCount::new(u64::from(singles) + self.large.load(Relaxed))
    }

    /// Whether the block at `frame` is the block of a middle order that the CPU allocated last; the answer may be out of
    /// date.
    #[inline]
    pub(crate) fn is_last_middle(&self, frame: u32) -> bool {
        self.last_middle.load(Relaxed) == frame + 1 // the block is aligned, so there is no overflow
    }

    /// Records the block of a middle order that the CPU allocated last; the caller has locked the pageset.
    #[inline]
    pub(crate) fn note_last_middle(&self, frame: u32) {
        self.last_middle.store(frame + 1, Relaxed);
    }

    /// Whether `stack` holds a block; the answer may be out of date.
    #[inline]
    pub(crate) fn has(&self, stack: StackId) -> bool {
        match stack {
            StackId::PAGES => {
                // Acquire: takes a word that is not older than the capacity; pairs with `PagesetGuard::begin`.
                let capacity = self.capacity.load(Acquire);
                self.word().free_slots() < capacity
            }
            StackId(at) => self.lens[at].load(Relaxed) != 0,
        }
    }

    /// Whether the pageset has ever had a session.
    pub(crate) fn was_used(&self) -> bool {
        self.flags.load(Relaxed) & USED != 0
    }

    /// Whether each free should now check for the end of the period; the answer may be out of date.
    fn is_watch_due(&self, now: Moment) -> bool {
        !self.is_watched() && DepthState::is_period_nearly_over(self.period_start(), now)
    }

    /// Whether each free checks whether the period of the depth rule is over.
    fn is_watched(&self) -> bool {
        self.flags.load(Relaxed) & WATCHED != 0
    }

    /// Returns `pageset.high`, or zero before first use; the value may be out of date.
    pub(crate) fn high(&self) -> PageCount {
        PageCount::new(self.high.load(Relaxed))
    }

    /// Makes the pageset as it was at first, with `slots` slots: its process has died, and its frames are free.
    ///
    /// The counts of refills and drains stay.
    pub(crate) fn reset(&self, slots: u32) {
        let words = [&self.settled, &self.high, &self.large, &self.block_leeway, &self.block_leeway_settled];
        let others = [&self.zone_diffs, &self.stepwise, &self.seen, &self.idle_ticks, &self.folded_at];
        let words = words.into_iter().chain(others).chain(self.depth_cells()).chain(&self.block_frames);
        words.for_each(|cell| cell.store(0, Relaxed));
        let halves = [&self.capacity, &self.block_pages, &self.flags, &self.last_middle];
        halves.into_iter().chain(&self.lens).for_each(|cell| cell.store(0, Relaxed));
        self.head.reset(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::cells::AllZero;
    use crate::platform::pageset_slot::LockWord;
    use crate::testing::Native;

    /// Refills and drains move whole blocks under one hold of the lock, so a larger block would never move.
    #[test]
    #[should_panic(expected = "order 10")]
    fn a_cached_block_is_not_larger_than_what_moves_under_one_hold() {
        for huge in 0..10 {
            for smaller in [SMALL_ORDERS, u8::MAX] {
                CachedOrders::new(Order::new(huge).unwrap(), smaller);
            }
        }
        CachedOrders::new(Order::new(10).unwrap(), u8::MAX);
    }

    /// Another CPU may read the pageset between its first session's lock and that session's first write.
    #[test]
    fn pageset_without_a_session_has_neither_frames_nor_differences() {
        let prepared = Pageset::<Native>::all_zero();
        prepared.head.prepare(100);
        for pageset in [prepared, Pageset::all_zero()] {
            for lock_word in [LockWord::OPEN, LockWord::LOCKED, LockWord::LOCKED_REMOTELY] {
                pageset.head.lock_word.store(lock_word.bits(), Relaxed);
                assert!(pageset.word().is_clean() && !pageset.has(StackId::PAGES) && !pageset.was_used());
                assert_eq!(pageset.count(), PageCount::ZERO);
            }
        }
    }
}
