//! The pagesets of Linux kernels, by version, as state machines without input or output.
//!
//! [`PagesetKernel`] says how a version works: which blocks pagesets hold, in which order lists are drained, and how
//! refills and drains grow. [`KernelPageset`] is one pageset that follows it. Every step returns how many frames went
//! from the zone to the pageset or back.
//!
//! Sources: the changelogs of Linux 5.14 (higher orders in pagesets, drains that double), 5.18 (drains of whole lists,
//! drains of higher orders), 6.7 (`high` tuned between two limits), 6.10 (two lists of 2 MiB blocks) and 6.16 (the
//! limit after which higher orders are drained), and observed traces.
//!
//! Related files: `lists.rs` has the lists and the order of drains, `growth.rs` what a pageset remembers of the last
//! steps. The sizes are those of `zonal_model::pageset_limits`, and the rule since 6.7 is the core's own
//! `zonal::rules::pageset_tuning`.

mod growth;
mod lists;

use zonal::rules::pageset_tuning::{HighLimits, PagesetFigures, Resize, ZoneLevel, blocks_of};
use zonal::units::{Order, PageCount};
use zonal_model::KernelVersion;
use zonal_model::pageset_limits::HighRule;

use growth::Growth;
pub use lists::{FoundAtStart, Mobility, PagesetList};
use lists::{Lists, Place};

/// How the pagesets of a kernel version work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetKernel {
    /// How `high` is bounded and adjusted.
    pub high: HighRule,
    /// Which blocks pagesets hold.
    pub orders: CachedOrders,
    /// Which lists a drain takes first.
    pub drain_order: DrainOrder,
    /// When freeing blocks with orders 1 to 3 drains the pageset early.
    pub early_drain: EarlyDrain,
}

/// Which blocks pagesets hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CachedOrders {
    /// Single frames. Linux: before 5.14.
    Single,
    /// Blocks of orders 0 to 3, and 2 MiB blocks in one list. Linux: 5.14 to 6.9.
    OneHugeList,
    /// Blocks of orders 0 to 3, and 2 MiB blocks in two lists, movable and other ones. Linux: since 6.10.
    TwoHugeLists,
}

/// Which lists a drain takes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DrainOrder {
    /// All lists in turn; each takes one block more than the one before. Linux: before 5.18.
    Turns,
    /// The list of the freed block until it is empty, then the following ones. Linux: since 5.18.
    WholeLists,
}

/// When freeing blocks with orders 1 to 3 drains the pageset early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EarlyDrain {
    /// Never. Linux: before 5.18.
    Never,
    /// If a drain happened since the last allocation; it takes everything. Linux: 5.18 to 6.6.
    AfterDrain,
    /// At the second block in a row, once a batch was freed; it takes at most 32 batches. Linux: 6.7 to 6.15.
    AfterBatch,
    /// The same, once a batch and half of the lower limit was freed. Linux: since 6.16.
    AfterHalfMin,
}

impl PagesetKernel {
    /// Returns how a version works.
    #[must_use]
    pub fn of(version: KernelVersion) -> Self {
        let since = |major, minor| version >= KernelVersion::new(major, minor);
        Self {
            high: zonal_model::Rules::of(version).high,
            orders: match () {
                () if since(6, 10) => CachedOrders::TwoHugeLists,
                () if since(5, 14) => CachedOrders::OneHugeList,
                () => CachedOrders::Single,
            },
            drain_order: if since(5, 18) { DrainOrder::WholeLists } else { DrainOrder::Turns },
            early_drain: match () {
                () if since(6, 16) => EarlyDrain::AfterHalfMin,
                () if since(6, 7) => EarlyDrain::AfterBatch,
                () if since(5, 18) => EarlyDrain::AfterDrain,
                () => EarlyDrain::Never,
            },
        }
    }

    /// Returns the list of a block, or `None` if pagesets do not hold blocks of this order. A 2 MiB block has order
    /// `huge`.
    #[must_use]
    pub fn list(&self, order: Order, mobility: Mobility, huge: Order) -> Option<PagesetList> {
        let is_cached = match self.orders {
            CachedOrders::Single => order == Order::PAGE,
            CachedOrders::OneHugeList | CachedOrders::TwoHugeLists => {
                order <= lists::LARGEST || order == huge
            }
        };
        let mobility = match self.orders {
            CachedOrders::TwoHugeLists if order == huge && mobility != Mobility::Movable => {
                Mobility::Unmovable
            }
            CachedOrders::OneHugeList if order == huge => Mobility::Movable,
            _ => mobility,
        };
        is_cached.then_some(PagesetList { order, mobility })
    }

    /// Whether pagesets are smaller while their zone is being reclaimed. Linux: since 5.14.
    const fn limits_reclaimed(&self) -> bool {
        !matches!(self.high, HighRule::SixBatches)
    }

    /// Whether a refill of a higher order has at least two blocks.
    const fn refills_two_blocks(&self) -> bool {
        !matches!(self.orders, CachedOrders::Single)
    }
}

/// What a pageset depends on in its zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZonePressure {
    /// Whether the zone's free frames are above its `watermarks.high`.
    pub level: ZoneLevel,
    /// Whether the zone is being reclaimed.
    pub reclaim: Reclaim,
}

/// Whether a zone is being reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaim {
    /// It is.
    Active,
    /// It is not.
    Idle,
}

impl ZonePressure {
    /// A zone with many free frames.
    pub const NONE: Self = Self { level: ZoneLevel::Above, reclaim: Reclaim::Idle };
}

/// Blocks that went from a zone to a pageset or back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Moved {
    /// The number of blocks.
    pub blocks: u64,
    /// The number of frames.
    pub pages: PageCount,
}

impl Moved {
    /// Returns the sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { blocks: self.blocks.saturating_add(other.blocks), pages: self.pages.plus(other.pages) }
    }
}

/// What is known of a pageset at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetStart {
    /// Its frames, whose lists are not known.
    pub count: PageCount,
    /// Its `high`.
    pub high: PageCount,
    /// Its batch.
    pub batch: PageCount,
    /// The limits of `high`.
    pub limits: HighLimits,
}

impl PagesetStart {
    /// More frames than a pageset of any machine has.
    pub const MAX: PageCount = PageCount::new(1 << 40);
    /// More frames than any kernel moves at once.
    pub const BATCH_MAX: PageCount = PageCount::new(1 << 16);
}

/// A pageset that follows the rules of a kernel. Invariant: `count` is the number of frames in `lists`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelPageset {
    kernel: PagesetKernel,
    batch: PageCount,
    limits: HighLimits,
    high: PageCount,
    lists: Lists,
    growth: Growth,
}

impl KernelPageset {
    /// Creates a pageset. Figures that no kernel has are lowered to [`PagesetStart::MAX`].
    #[must_use]
    pub fn new(kernel: PagesetKernel, start: &PagesetStart) -> Self {
        let bounded = |figure: PageCount| figure.min(PagesetStart::MAX);
        Self {
            kernel,
            batch: start.batch.clamp(PageCount::new(1), PagesetStart::BATCH_MAX),
            limits: HighLimits::new(bounded(start.limits.min()), bounded(start.limits.max())),
            high: bounded(start.high),
            lists: Lists::of_unknown(bounded(start.count), kernel.orders),
            growth: Growth::of(kernel),
        }
    }

    /// Distributes the frames of the start to the lists in which they were found.
    pub fn know(&mut self, found: &FoundAtStart) {
        self.lists.know(found);
    }

    /// Returns what the lists had at the start, as far as the steps until now showed it.
    #[must_use]
    pub fn found(&self) -> FoundAtStart {
        self.lists.found()
    }

    /// Returns its frames.
    #[must_use]
    pub fn count(&self) -> PageCount {
        self.lists.pages()
    }

    /// Returns its current `high`.
    #[must_use]
    pub const fn high(&self) -> PageCount {
        self.high
    }

    /// Returns its frames in one list. Frames whose list is not known are not counted.
    #[must_use]
    pub fn in_list(&self, list: PagesetList) -> PageCount {
        self.lists.in_list(list)
    }

    fn figures(&self) -> PagesetFigures {
        PagesetFigures { count: self.count(), high: self.high, batch: self.batch, limits: self.limits }
    }

    /// Allocates a block, and returns the refill that was necessary.
    pub fn alloc(&mut self, list: PagesetList, pressure: ZonePressure) -> Option<Moved> {
        self.growth.on_alloc();
        self.alloc_in_bulk(list, pressure)
    }

    /// Allocates a block as one of many, which drains do not notice, and returns the refill that was necessary.
    pub fn alloc_in_bulk(&mut self, list: PagesetList, pressure: ZonePressure) -> Option<Moved> {
        if self.lists.take(list) {
            return None;
        }
        let refilled = self.refill(list, pressure.level);
        self.lists.add(list, refilled.blocks);
        self.lists.take(list);
        Some(refilled)
    }

    /// Takes a request for which a refill found no block, so that another zone served it. It counts as a refill all the same.
    pub fn refill_in_vain(&mut self, list: PagesetList, pressure: ZonePressure) {
        self.growth.on_alloc();
        self.refill(list, pressure.level);
    }

    /// Frees a block, and returns the drain that followed.
    pub fn free(&mut self, list: PagesetList, pressure: ZonePressure) -> Option<Moved> {
        let size = self.push(list, pressure)?;
        let drained = self.lists.drain(size, Some(list), self.kernel.drain_order);
        (drained.blocks > 0).then_some(drained)
    }

    /// Does what kernels do once a second, and returns the drain.
    ///
    /// It takes a batch at a time, each from the first list that has blocks. A batch takes at least one block, so that more
    /// frames than the surplus leave if the blocks are larger than a batch.
    pub fn tick(&mut self) -> Option<Moved> {
        if self.kernel.high != HighRule::Tuned || self.limits.is_disabled() {
            return None;
        }
        // A `high` at the lower limit stays there, and its surplus is drained too.
        let decay = self.figures().decay();
        self.high = decay.high;
        let drained = self.lists.drain_in_batches(decay.surplus, self.batch); // kernels that decay drain whole lists
        (drained.blocks > 0).then_some(drained)
    }

    /// Drains everything.
    pub fn drain_all(&mut self) -> Moved {
        self.lists.drain(self.count(), None, self.kernel.drain_order)
    }

    /// Returns how many blocks a refill of `list` has, and adjusts `high`.
    fn refill(&mut self, list: PagesetList, level: ZoneLevel) -> Moved {
        let figures = PagesetFigures { high: self.limits.clamp(self.high), ..self.figures() };
        let size = match self.growth.stepwise() {
            Some(rule) => {
                let Resize { size, high } = rule.refill(&figures, list.order, level);
                self.high = high;
                size
            }
            None => self.batch,
        };
        let least = if self.kernel.refills_two_blocks() && size.get() > 1 { 2 } else { 1 };
        let blocks =
            if list.order == Order::PAGE { size.get() } else { blocks_of(size, list.order).max(least) };
        Moved { blocks, pages: PageCount::new(blocks << list.order.get()) }
    }

    /// Adds a freed block and returns how many frames must be drained, if any. Adjusts `high`.
    fn push(&mut self, list: PagesetList, pressure: ZonePressure) -> Option<PageCount> {
        self.lists.add(list, 1);
        let figures = self.figures();
        let early = self.growth.on_free(self.kernel.early_drain, list.order, &figures);
        self.high = self.limits.clamp(self.high);
        let all = self.count();
        if early {
            let most = PageCount::new(self.batch.get() << growth::SHIFT_MAX);
            return Some(match self.kernel.early_drain {
                EarlyDrain::AfterBatch | EarlyDrain::AfterHalfMin => {
                    self.high = self.high.saturating_minus(most).max(self.limits.min());
                    all.min(most)
                }
                EarlyDrain::AfterDrain | EarlyDrain::Never => all,
            });
        }
        let (threshold, high) = self.threshold(pressure);
        let bounded = PagesetFigures { high: threshold, ..figures };
        self.high = high;
        if all < threshold {
            return None;
        }
        Some(self.growth.drain(&bounded).min(all))
    }

    /// Returns the count at which the pageset drains, and the new `high`.
    fn threshold(&mut self, pressure: ZonePressure) -> (PageCount, PageCount) {
        let figures = self.figures();
        let PagesetFigures { count, high, batch, limits } = figures;
        let small = |high: PageCount| PageCount::new(4 * batch.get()).min(high);
        let Some(rule) = self.growth.stepwise() else {
            let bound = match pressure.reclaim {
                Reclaim::Active if self.kernel.limits_reclaimed() => small(high),
                _ => high,
            };
            return (bound, high);
        };
        let next = rule.drain(&figures, pressure.level).high;
        match (pressure.reclaim, pressure.level) {
            (Reclaim::Active, _) => {
                let lowered = rule.drain(&figures, ZoneLevel::Below).high;
                (small(lowered), lowered)
            }
            (Reclaim::Idle, ZoneLevel::Below) if limits.min() < limits.max() => {
                (count.max(limits.min()), next)
            }
            (Reclaim::Idle, _) => (high, next),
        }
    }
}

/// Steps whose refills and drains are known, because a kernel's trace has them. They bring a pageset into the kernel's
/// state.
impl KernelPageset {
    /// Takes a recorded refill.
    pub fn follow_refill(&mut self, list: PagesetList, refilled: Moved, pressure: ZonePressure) {
        // The list was empty, whatever was assumed.
        self.lists.forget(list);
        self.refill(list, pressure.level);
        self.lists.add(list, refilled.blocks);
    }

    /// Takes an allocation, after its refill if there was one.
    pub fn follow_alloc(&mut self, list: PagesetList) {
        self.growth.on_alloc();
        self.lists.take_or_borrow(list);
    }

    /// Takes an allocation in bulk.
    pub fn follow_bulk(&mut self, list: PagesetList) {
        self.lists.take_or_borrow(list);
    }

    /// Takes a free, whose drain follows by [`KernelPageset::follow_drain`].
    pub fn follow_free(&mut self, list: PagesetList, pressure: ZonePressure) -> Option<PageCount> {
        self.push(list, pressure)
    }

    /// Takes that no drain followed a free for which [`KernelPageset::follow_free`] expected one: `high` is larger.
    pub fn follow_no_drain(&mut self) {
        self.high = self.limits.clamp(self.high.max(self.count().plus(PageCount::new(1))));
    }

    /// Takes a recorded drain of one block.
    pub fn follow_drain(&mut self, list: PagesetList) {
        self.lists.take_or_borrow(list);
    }

    /// Takes the adjustment of a tick, whose drain follows by [`KernelPageset::follow_drain`].
    pub fn follow_tick(&mut self) {
        if self.kernel.high == HighRule::Tuned && !self.limits.is_disabled() {
            self.high = self.figures().decay().high;
        }
    }
}

impl PagesetList {
    fn place(self) -> Place {
        Place::of(self)
    }
}

#[cfg(test)]
mod tests;
