//! One pageset: the frames that one CPU keeps of one zone, as stacks of frame numbers.
//!
//! There is a stack for each cached order. The owner and whoever drains it take the pageset's lock
//! as a [`PagesetGuard`]; the owner never waits for it but goes to the zone instead. What moves
//! frames between stacks and buddy is in `refill.rs`; how deep the stacks may grow is in
//! `pageset_tuning.rs`. Linux: `struct per_cpu_pages`.

use core::sync::atomic::Ordering::Relaxed;

use crate::carve::Fresh;
use crate::counters::CpuGuard;
use crate::pageset_tuning::depth::{DEPTH_CELLS, DepthCells};
use crate::pageset_tuning::stepwise::StepwiseCell;
use crate::platform::{Atomic, Platform, RawLock};
use crate::units::{Order, PageCount};

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

    const fn depth(&self, stack: StackId) -> u32 {
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

/// State of one pageset.
///
/// Invariant, under the lock: `count = sum over stacks of len << order`, `len <= depth` of each
/// stack; `high` is 0 or within the zone's limits. A closed pageset takes nothing. All zero is an empty
/// pageset, open and never used.
#[repr(C, align(64))]
pub(crate) struct Pageset<P: Platform> {
    lock: P::Lock,
    count: P::U64,
    high: P::U64,
    /// 1 while the CPU is offline.
    closed: P::U64,
    lens: [P::U32; STACKS],
    /// Differences of the zone's counters.
    pub(crate) zone_diffs: P::U64,
    /// Differences of the node's counters.
    pub(crate) node_diffs: P::U64,
    depth: [P::U64; DEPTH_CELLS],
    stepwise: P::U64,
    /// What the last tick saw, and for how many ticks nothing changed.
    pub(crate) seen: P::U64,
    pub(crate) idle_ticks: P::U64,
    /// Batches taken from the zone, batches given back, and those given back for another CPU.
    pub(crate) refills: P::U64,
    pub(crate) drains: P::U64,
    pub(crate) remote_drains: P::U64,
}

// SAFETY: every field is a cell made with `new(0)` or the platform's fresh lock.
#[allow(unsafe_code)]
unsafe impl<P: Platform> Fresh<P> for Pageset<P> {
    fn fresh() -> Self {
        let zero = || P::U64::new(0);
        Self {
            lock: P::Lock::new(),
            count: zero(),
            high: zero(),
            closed: zero(),
            lens: core::array::from_fn(|_| P::U32::new(0)),
            zone_diffs: zero(),
            node_diffs: zero(),
            depth: core::array::from_fn(|_| zero()),
            stepwise: zero(),
            seen: zero(),
            idle_ticks: zero(),
            refills: zero(),
            drains: zero(),
            remote_drains: zero(),
        }
    }
}

// Every access is relaxed: the lock orders its holders, and others only look at the figures.
impl<P: Platform> Pageset<P> {
    /// Takes the pageset if nobody has it.
    #[inline(always)]
    pub(crate) fn try_enter<'a>(
        &'a self,
        slots: &'a [P::U32],
        shape: &'a StackShape,
    ) -> Option<PagesetGuard<'a, P>> {
        self.lock.try_lock().then(|| PagesetGuard { pageset: self, slots, shape })
    }

    /// Waits until nobody else has the pageset. Not for its owner, who could be the one waited for.
    pub(crate) fn enter<'a>(&'a self, slots: &'a [P::U32], shape: &'a StackShape) -> PagesetGuard<'a, P> {
        self.lock.lock();
        PagesetGuard { pageset: self, slots, shape }
    }

    /// Frames held, as of some moment.
    pub(crate) fn count(&self) -> PageCount {
        PageCount::new(self.count.load(Relaxed))
    }

    /// Whether a block or a count ever came here, as far as can be seen from what is left of it.
    pub(crate) fn was_used(&self) -> bool {
        let counts = [&self.high, &self.count, &self.refills, &self.zone_diffs, &self.node_diffs];
        counts.iter().any(|cell| cell.load(Relaxed) != 0)
    }

    /// `pageset.high`, as of some moment; zero before the first free, which sets it, so that pagesets
    /// that are never used are never touched.
    #[inline]
    pub(crate) fn high(&self) -> PageCount {
        PageCount::new(self.high.load(Relaxed))
    }
}

/// Proof that the holder alone may change a pageset and the counter differences beside it.
pub(crate) struct PagesetGuard<'a, P: Platform> {
    pageset: &'a Pageset<P>,
    slots: &'a [P::U32],
    shape: &'a StackShape,
}

impl<P: Platform> CpuGuard for PagesetGuard<'_, P> {}

impl<P: Platform> Drop for PagesetGuard<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.pageset.lock.unlock();
    }
}

impl<P: Platform> core::ops::Deref for PagesetGuard<'_, P> {
    type Target = Pageset<P>;

    #[inline]
    fn deref(&self) -> &Pageset<P> {
        self.pageset
    }
}

// Every access is relaxed: the guard's lock orders them.
impl<P: Platform> PagesetGuard<'_, P> {
    /// Takes the block pushed last onto `stack`.
    #[inline]
    pub(crate) fn pop(&self, stack: StackId, order: Order) -> Option<u32> {
        let len = self.pageset.lens[stack.0].load(Relaxed);
        if len == 0 {
            return None;
        }
        self.pageset.lens[stack.0].store(len - 1, Relaxed);
        self.set_count(self.pageset.count.load(Relaxed) - order.pages().get());
        Some(self.slots[self.shape.slot(stack, len - 1)].load(Relaxed))
    }

    /// Puts a block onto `stack`, which has room.
    #[inline]
    pub(crate) fn push(&self, stack: StackId, order: Order, frame: u32) {
        let len = self.pageset.lens[stack.0].load(Relaxed);
        debug_assert!(len < self.shape.depth(stack));
        self.slots[self.shape.slot(stack, len)].store(frame, Relaxed);
        self.pageset.lens[stack.0].store(len + 1, Relaxed);
        self.set_count(self.pageset.count.load(Relaxed) + order.pages().get());
    }

    /// Blocks on `stack`.
    #[inline]
    pub(crate) fn len(&self, stack: StackId) -> u32 {
        self.pageset.lens[stack.0].load(Relaxed)
    }

    /// The blocks on `stack`, for the consistency walk.
    pub(crate) fn blocks(&self, stack: StackId) -> impl Iterator<Item = u32> + '_ {
        (0..self.len(stack)).map(move |at| self.slots[self.shape.slot(stack, at)].load(Relaxed))
    }

    /// Blocks that `stack` has room for; none when the pageset is not open.
    #[inline]
    pub(crate) fn room(&self, stack: StackId) -> u32 {
        if self.pageset.closed.load(Relaxed) != 0 { 0 } else { self.shape.depth(stack) - self.len(stack) }
    }

    /// The tuning state of the depth rule.
    #[inline]
    pub(crate) fn depth(&self) -> DepthCells<'_, P> {
        DepthCells::new(&self.pageset.depth)
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

    /// Opens the pageset: its CPU is online.
    pub(crate) fn open(&self) {
        self.pageset.closed.store(0, Relaxed);
    }

    /// Closes the pageset: its CPU is offline.
    pub(crate) fn close(&self) {
        self.pageset.closed.store(1, Relaxed);
    }

    /// Adds one to a figure of the pageset.
    pub(crate) fn bump(&self, figure: impl FnOnce(&Pageset<P>) -> &P::U64) {
        let cell = figure(self.pageset);
        cell.store(cell.load(Relaxed) + 1, Relaxed);
    }

    #[inline]
    fn set_count(&self, count: u64) {
        self.pageset.count.store(count, Relaxed);
    }
}
