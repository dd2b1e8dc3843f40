//! One pageset: the frames that one CPU keeps of one zone, as stacks of frame numbers.
//!
//! There is a stack for each cached order. Single frames are taken and given by their CPU through
//! the [`Head`] alone (`cpu_local.rs`); for all else the head is locked, which a [`PagesetGuard`]
//! stands for. Neighbours: `pageset_access.rs` locks and sets limits, `pageset_frames.rs` moves
//! many single frames at once, `refill.rs` those between stacks and buddy, `pageset_tuning.rs` says
//! how deep the stacks may grow. Linux: `struct per_cpu_pages`.

pub(crate) mod depth_cells;
mod drain;
pub(crate) mod full_zones;
mod high;
mod refill;
mod served;
pub(crate) mod session;
pub(crate) mod slot;
mod stacks;
pub(crate) mod state;
mod steps;
pub(crate) mod stepwise_cell;
mod upkeep;

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::metadata::arena::Fresh;
use crate::platform::cpu_local::{Head, VIRGIN};
use crate::platform::pageset_word::{HOME_LANE, Limits, Word};
use crate::platform::{Atomic, Platform, copy_view};
use crate::units::PageKind;
use crate::units::{Moment, Order, PageCount};
use crate::zone::Seat;
use crate::zone::counters::{CpuGuard, NodeItem, ZonedCounters};
use depth_cells::{DEPTH_CELLS, DepthCells, Run};
use stepwise_cell::StepwiseCell;

/// Number of stacks: orders 0..=3 and 2 MiB.
pub(crate) const STACKS: usize = 5;
/// The stack of 2 MiB blocks.
pub(crate) const HUGE: usize = STACKS - 1;

/// Which stack holds blocks of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StackId(usize);

/// Where the stacks lie in a pageset's slots, and how deep each can be.
/// Invariant: `starts[i + 1] = starts[i] + depth of stack i`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackShape {
    starts: [u32; STACKS + 1],
}

impl StackId {
    /// The stack of single frames.
    pub(crate) const PAGES: Self = Self(0);
    /// The stack of the largest blocks below 2 MiB that are cached.
    pub(crate) const SMALL: Self = Self(HUGE - 1);
    /// The stack of 2 MiB blocks.
    pub(crate) const LARGE: Self = Self(HUGE);
}

impl StackShape {
    pub(crate) fn new(depths: [u32; STACKS]) -> Self {
        let mut starts = [0; STACKS + 1];
        for (at, depth) in depths.into_iter().enumerate() {
            starts[at + 1] = starts[at] + depth;
        }
        Self { starts }
    }

    /// Frames that `high` can rise to: the stack of single frames, full.
    pub(crate) const fn capacity(&self) -> PageCount {
        PageCount::new((self.starts[1] - self.starts[0]) as u64)
    }

    /// Slots of all stacks together.
    pub(crate) const fn slots(&self) -> usize {
        self.starts[STACKS] as usize
    }

    /// Blocks that `stack` can hold.
    pub(crate) const fn depth(&self, stack: StackId) -> u32 {
        self.starts[stack.0 + 1] - self.starts[stack.0]
    }

    const fn slot(&self, stack: StackId, at: u32) -> usize {
        (self.starts[stack.0] + at) as usize
    }
}

/// Which orders are cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CachedOrders {
    huge: Order,
}

impl CachedOrders {
    pub(crate) const fn new(huge: Order) -> Self {
        Self { huge }
    }

    /// The stack for blocks of `order`, or `None` when they are not cached.
    #[inline]
    pub(crate) fn stack(&self, order: Order) -> Option<StackId> {
        if usize::from(order.get()) < HUGE {
            Some(StackId(usize::from(order.get())))
        } else {
            (order == self.huge).then_some(StackId(HUGE))
        }
    }

    /// Order of the blocks on `stack`.
    pub(crate) fn order(&self, stack: StackId) -> Order {
        if stack.0 == HUGE { self.huge } else { Order::new(stack.0 as u8).expect("below 4") }
    }

    /// All stacks, largest blocks first: the sequence in which a pageset is emptied.
    pub(crate) fn stacks_downwards() -> impl Iterator<Item = StackId> {
        (0..STACKS).rev().map(StackId)
    }
}

/// The pagesets of one zone.
pub(crate) struct ZonePagesets<'m, P: Platform> {
    /// By CPU id.
    pub(crate) pagesets: &'m [Pageset<P>],
    /// Of all pagesets: those of CPUs on the zone's node come first, by rank.
    pub(crate) slots: &'m [P::U32],
    /// Index of the zone's node.
    pub(crate) zone_node: usize,
    /// CPUs of that node.
    pub(crate) own_cpus: usize,
    pub(crate) own_stacks: &'m StackShape,
    pub(crate) foreign_stacks: &'m StackShape,
}

copy_view!(ZonePagesets);

impl<'m, P: Platform> ZonePagesets<'m, P> {
    /// The pageset of the CPU at `seat`.
    #[inline]
    pub(crate) fn of(&self, seat: Seat) -> &'m Pageset<P> {
        &self.pagesets[seat.cpu.index()]
    }

    /// Slots of the pageset of the CPU at `seat`, and how its stacks share them.
    #[inline]
    pub(crate) fn stacks(&self, seat: Seat) -> (&'m [P::U32], &'m StackShape) {
        let own = self.own_stacks.slots();
        if usize::from(seat.node) == self.zone_node {
            (&self.slots[seat.rank as usize * own..][..own], self.own_stacks)
        } else {
            let foreign = self.foreign_stacks.slots();
            let start = self.own_cpus * own + seat.cpu.index() * foreign;
            (&self.slots[start..][..foreign], self.foreign_stacks)
        }
    }

    /// Frames in them.
    pub(crate) fn frames(&self) -> PageCount {
        self.pagesets.iter().map(Pageset::count).sum()
    }

    /// Has the next free on every CPU look at the limits anew.
    pub(crate) fn let_next_gives_trip(&self) {
        // All of them: one that holds little now may be free to grow deep.
        let used = self.pagesets.iter().filter(|pageset| pageset.was_used());
        used.for_each(Pageset::let_next_give_trip);
    }
}

const CLOSED: u64 = 1;
const WATCHED: u64 = 2;

/// State of one pageset. All zero is an empty pageset, open and never used.
///
/// Invariants, while nobody has it locked: the stack of single frames is `slots[room..]` of the
/// first `depth` slots, the one to take next first, and that of each larger order is the first `len`
/// of its slots, the one to take next last; `large` = frames on the latter; `high` is 0 before first
/// use, or within the zone's limits; `settled` = room when the depth rule was last told of it. A closed
/// pageset takes nothing.
#[repr(C, align(64))]
pub(crate) struct Pageset<P: Platform> {
    pub(crate) head: Head<P>,
    settled: P::U64,
    high: P::U64,
    large: P::U64,
    lens: [P::U32; STACKS],
    /// Slots of the stack of single frames; 0 before first use.
    capacity: P::U32,
    /// Differences of the zone's counters.
    pub(crate) zone_diffs: P::U64,
    depth: [P::U64; DEPTH_CELLS],
    stepwise: P::U64,
    /// 1 + the zone that this one stands for (`served.rs`); 0 = its own.
    pub(crate) stands_for: P::U64,
    /// [`CLOSED`] while the CPU is offline, [`WATCHED`] while each free looks whether the period is over.
    flags: P::U64,
    /// What the last tick saw, and for how many ticks nothing changed.
    pub(crate) seen: P::U64,
    pub(crate) idle_ticks: P::U64,
    /// Batches taken from the zone, batches given back, and those given back for another CPU.
    pub(crate) refills: P::U64,
    pub(crate) drains: P::U64,
    pub(crate) remote_drains: P::U64,
    /// Zones looked at by scans that found a block here.
    pub(crate) probes: P::U64,
    /// When differences were last folded, in clock nanoseconds.
    pub(crate) folded_at: P::U64,
}

// SAFETY: every field is a cell made with `new(0)`.
#[allow(unsafe_code)]
unsafe impl<P: Platform> Fresh<P> for Pageset<P> {
    fn fresh() -> Self {
        let zero = || P::U64::new(0);
        Self {
            head: Head::virgin(),
            settled: zero(),
            high: zero(),
            large: zero(),
            lens: core::array::from_fn(|_| P::U32::new(0)),
            capacity: P::U32::new(0),
            zone_diffs: zero(),
            depth: core::array::from_fn(|_| zero()),
            stepwise: zero(),
            stands_for: zero(),
            flags: zero(),
            seen: zero(),
            idle_ticks: zero(),
            refills: zero(),
            drains: zero(),
            remote_drains: zero(),
            probes: zero(),
            folded_at: zero(),
        }
    }
}

// Every access is relaxed: looks at figures that may be out of date.
impl<P: Platform> Pageset<P> {
    /// The word, as of some moment.
    pub(crate) fn word(&self) -> Word {
        if self.was_used() { Word::from_bits(self.head.word.load(Relaxed)) } else { Word::empty(0) }
    }

    /// Frames held, as of some moment.
    pub(crate) fn count(&self) -> PageCount {
        let singles = self.capacity.load(Relaxed).saturating_sub(self.word().room());
        PageCount::new(u64::from(singles) + self.large.load(Relaxed))
    }

    /// Whether there is a block on `stack`.
    #[inline]
    pub(crate) fn has(&self, stack: StackId) -> bool {
        match stack {
            StackId::PAGES => self.word().room() < self.capacity.load(Relaxed),
            StackId(at) => self.lens[at].load(Relaxed) != 0,
        }
    }

    /// Whether it was ever locked.
    pub(crate) fn was_used(&self) -> bool {
        self.head.gate.load(Relaxed) != VIRGIN
    }

    /// The tuning state of the depth rule.
    #[inline]
    pub(crate) fn depth(&self) -> DepthCells<'_, P> {
        DepthCells::new(&self.depth)
    }

    /// Whether frees are to be watched from now on, as of some moment.
    pub(crate) fn is_watch_due(&self, now: Moment) -> bool {
        !self.is_watched() && self.depth().is_period_nearly_over(now)
    }

    /// Whether each free looks whether the period of the depth rule is over.
    pub(crate) fn is_watched(&self) -> bool {
        self.flags.load(Relaxed) & WATCHED != 0
    }

    /// `pageset.high`, as of some moment; zero before first use.
    pub(crate) fn high(&self) -> PageCount {
        PageCount::new(self.high.load(Relaxed))
    }
}

impl<P: Platform> Pageset<P> {
    /// Lets the next give look at the limits anew. A hint: it is lost when the pageset's holder is just
    /// setting limits.
    pub(crate) fn let_next_give_trip(&self) {
        self.head.give_limit.store(Limits::GIVE_NONE, Relaxed); // relaxed: a hint
    }
}

/// Proof that the holder alone may change a pageset and the counter differences in it.
pub(crate) struct PagesetGuard<'a, P: Platform> {
    pageset: &'a Pageset<P>,
    slots: &'a [P::U32],
    shape: &'a StackShape,
    /// What the holder's last step was part of.
    run: Cell<Run>,
}

impl<P: Platform> CpuGuard for PagesetGuard<'_, P> {}

impl<P: Platform> Drop for PagesetGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.pageset.settled.store(u64::from(self.word().room()), Relaxed);
        self.pageset.head.open();
    }
}

impl<P: Platform> core::ops::Deref for PagesetGuard<'_, P> {
    type Target = Pageset<P>;

    #[inline]
    fn deref(&self) -> &Pageset<P> {
        self.pageset
    }
}

// Every access is relaxed: the lock that the guard stands for orders them.
impl<'a, P: Platform> PagesetGuard<'a, P> {
    /// The guard of a head that was just locked and whose gate was `gate` before.
    #[inline]
    pub(crate) fn new(
        pageset: &'a Pageset<P>,
        (slots, shape): (&'a [P::U32], &'a StackShape),
        gate: u64,
    ) -> Self {
        let guard = Self { pageset, slots, shape, run: Cell::new(Run::None) };
        if gate == VIRGIN {
            guard.begin();
        }
        let moved = i64::from(guard.word().room()) - pageset.settled.load(Relaxed) as i64;
        if moved != 0 {
            guard.depth().moved(moved, &guard);
        }
        guard
    }

    /// Sets up a pageset that is used for the first time; takes and gives trip until limits are set.
    #[cold]
    fn begin(&self) {
        let capacity = self.shape.depth(StackId::PAGES);
        self.set_word(Word::empty(capacity));
        self.pageset.capacity.store(capacity, Relaxed);
        self.pageset.settled.store(u64::from(capacity), Relaxed);
        self.trip_always();
    }

    /// The word.
    #[inline]
    pub(crate) fn word(&self) -> Word {
        Word::from_bits(self.pageset.head.word.load(Relaxed))
    }

    /// Sets the word.
    #[inline]
    pub(crate) fn set_word(&self, word: Word) {
        self.pageset.head.word.store(word.bits(), Relaxed);
    }

    /// Sets how far takes and gives may go without the lock.
    #[inline]
    pub(crate) fn set_limits(&self, take_limit: u64, give_limit: u64) {
        self.pageset.head.take_limit.store(take_limit, Relaxed);
        self.pageset.head.give_limit.store(give_limit, Relaxed);
    }

    /// Lets every take and give trip.
    pub(crate) fn trip_always(&self) {
        self.set_limits(Limits::TAKE_NONE, Limits::GIVE_NONE);
    }

    /// What the holder's last step was part of.
    #[inline]
    pub(crate) fn run(&self) -> Run {
        self.run.get()
    }

    /// Notes what the holder's last step was part of.
    #[inline]
    pub(crate) fn set_run(&self, run: Run) {
        self.run.set(run);
    }

    /// Takes the block pushed last onto `stack`.
    #[inline]
    pub(crate) fn pop(&self, stack: StackId, order: Order) -> Option<u32> {
        if stack == StackId::PAGES {
            let word = self.word();
            if word.room() == self.shape.depth(stack) {
                return None;
            }
            self.set_word(word.with_room(word.room() + 1));
            return Some(self.slots[word.room() as usize].load(Relaxed));
        }
        let len = self.pageset.lens[stack.0].load(Relaxed);
        if len == 0 {
            return None;
        }
        self.pageset.lens[stack.0].store(len - 1, Relaxed);
        self.set_large(self.pageset.large.load(Relaxed) - order.pages().get());
        Some(self.slots[self.shape.slot(stack, len - 1)].load(Relaxed))
    }

    /// Puts a block onto `stack`, which has room.
    #[inline]
    pub(crate) fn push(&self, stack: StackId, order: Order, frame: u32) {
        if stack == StackId::PAGES {
            let room = self.word().room() - 1;
            self.slots[room as usize].store(frame, Relaxed);
            self.set_word(self.word().with_room(room));
            return;
        }
        let len = self.pageset.lens[stack.0].load(Relaxed);
        debug_assert!(len < self.shape.depth(stack));
        self.slots[self.shape.slot(stack, len)].store(frame, Relaxed);
        self.pageset.lens[stack.0].store(len + 1, Relaxed);
        self.set_large(self.pageset.large.load(Relaxed) + order.pages().get());
    }

    /// The slots of the stack of single frames, empty ones first.
    #[inline]
    pub(crate) fn page_slots(&self) -> &'a [P::U32] {
        &self.slots[..self.shape.depth(StackId::PAGES) as usize]
    }

    /// Blocks on `stack`.
    #[inline]
    pub(crate) fn len(&self, stack: StackId) -> u32 {
        if stack == StackId::PAGES {
            self.shape.depth(stack) - self.word().room()
        } else {
            self.pageset.lens[stack.0].load(Relaxed)
        }
    }

    /// The blocks on `stack`, for the consistency walk.
    pub(crate) fn blocks(&self, stack: StackId) -> impl Iterator<Item = u32> + '_ {
        let first = if stack == StackId::PAGES { self.word().room() } else { 0 };
        (0..self.len(stack)).map(move |at| self.slots[self.shape.slot(stack, first + at)].load(Relaxed))
    }

    /// Blocks that `stack` has room for; none when the pageset is not open.
    #[inline]
    pub(crate) fn room(&self, stack: StackId) -> u32 {
        if self.is_closed() { 0 } else { self.shape.depth(stack) - self.len(stack) }
    }

    /// Room of the stack of single frames at which the pageset holds just `count` frames; below
    /// zero when that exceeds the stack.
    pub(crate) fn room_at(&self, count: PageCount) -> i64 {
        let singles = count.get() as i64 - self.pageset.large.load(Relaxed) as i64;
        i64::from(self.shape.depth(StackId::PAGES)) - singles
    }

    /// Counts frames that were allocated, or below zero freed, as `kind`.
    #[inline]
    pub(crate) fn count_kind(&self, kind: PageKind, frames: i64, counters: &ZonedCounters<'_, P, NodeItem>) {
        let lane = kind as usize;
        let difference = self.word().difference(lane);
        let left = counters.leave(kind.item(), difference, frames);
        self.set_word(self.word().with_difference(lane, left));
    }

    /// Changes the difference of the blocks served from home to what `leave` makes of it.
    #[inline]
    pub(crate) fn count_home(&self, leave: impl FnOnce(i64) -> i64) {
        let word = self.word();
        self.set_word(word.with_difference(HOME_LANE, leave(word.difference(HOME_LANE))));
    }

    /// Gives the difference of frames allocated as `kind`, and makes it zero.
    pub(crate) fn clear_kind(&self, kind: PageKind) -> i64 {
        self.clear(kind as usize)
    }

    /// Gives the difference of blocks served from home, and makes it zero.
    pub(crate) fn clear_home(&self) -> i64 {
        self.clear(HOME_LANE)
    }

    fn clear(&self, lane: usize) -> i64 {
        let word = self.word();
        self.set_word(word.with_difference(lane, 0));
        word.difference(lane)
    }

    /// The tuning state of the stepwise rule.
    #[inline]
    pub(crate) fn stepwise(&self) -> StepwiseCell<'_, P> {
        StepwiseCell::new(&self.pageset.stepwise)
    }

    /// Sets `pageset.high`.
    pub(crate) fn set_high(&self, high: PageCount) {
        self.pageset.high.store(high.get(), Relaxed);
    }

    /// Whether the CPU is offline.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.pageset.flags.load(Relaxed) & CLOSED != 0
    }

    /// Opens the pageset: its CPU is online.
    pub(crate) fn open(&self) {
        self.set_flag(CLOSED, false);
    }

    /// Closes the pageset: its CPU is offline.
    pub(crate) fn close(&self) {
        self.set_flag(CLOSED, true);
    }

    /// Has each free look whether the period of the depth rule is over, or no longer.
    pub(crate) fn watch(&self, on: bool) {
        self.set_flag(WATCHED, on);
    }

    fn set_flag(&self, flag: u64, on: bool) {
        let flags = self.pageset.flags.load(Relaxed);
        self.pageset.flags.store(if on { flags | flag } else { flags & !flag }, Relaxed);
    }

    /// Adds one to a figure of the pageset.
    pub(crate) fn bump(&self, figure: impl FnOnce(&Pageset<P>) -> &P::U64) {
        self.add_to(figure, 1);
    }

    /// Adds `amount` to a figure of the pageset.
    pub(crate) fn add_to(&self, figure: impl FnOnce(&Pageset<P>) -> &P::U64, amount: u64) {
        let cell = figure(self.pageset);
        cell.store(cell.load(Relaxed) + amount, Relaxed);
    }

    #[inline]
    fn set_large(&self, frames: u64) {
        self.pageset.large.store(frames, Relaxed);
    }
}
