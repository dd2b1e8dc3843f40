//! Blocks owned by CPUs (M6): a CPU takes whole blocks of 2 MiB from its zone, and splits them itself.
//!
//! They serve the CPU's requests for middle orders, and its refills once the free areas have no split block left. A free returns
//! to the owner, whichever CPU frees, and buddies merge there. A block whose frames are all free goes back to the zone, so
//! the zone counts 512 free frames at once. Frames in owned blocks count as frames in pagesets. Any
//! CPU may *disown* blocks: their free frames then return to the free areas.
//!
//! Every CPU has a lock for its blocks, acquired after a pageset's lock and before a free area's. Related files:
//! `buddy/owned_words.rs` has the frames of one block, `zone/free_areas.rs` the areas.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::owned_words::{BLOCK, BLOCK_CELLS, BLOCK_FRAMES, BLOCK_WORDS, OwnedWords};
use crate::buddy::word_batch::BATCH_MAX;
use crate::platform::cells::{all_zero, copy_view};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::zone::counters::ZoneItem;
use crate::zone::merges::Merged;
use crate::zone::{CpuInfo, Zone};

/// Maximum number of a CPU's blocks that have free frames.
const OWNED_MAX: usize = u32::BITS as usize;
/// A CPU with fewer entries has none.
const OWNED_MIN: usize = 2;
/// A zone has one entry for this many of its blocks.
const BLOCKS_OF_ENTRY: usize = 4;
/// Frames for each block of a zone that may be free in owned blocks before one more begins to have free frames: 1/8.
const FREE_OF_BLOCK: u32 = BLOCK_FRAMES / 8;
/// Ticks without use after which a CPU's blocks are disowned.
const IDLE_TICKS: u32 = 3;
/// CPUs with a higher rank own nothing, so that a rank fits into a byte.
const RANK_MAX: u32 = u8::MAX as u32 - 1;

all_zero! {
    /// What a CPU owns of a zone on its node. A block with free frames has an entry.
    #[repr(C, align(64))]
    pub(crate) struct OwnedCells<P> {
        lock: lock,
        /// Free frames in the CPU's blocks, which is also read without the lock.
        pages: u32,
        /// Entries in use, one bit each.
        used: u32,
        /// The entries whose largest free run has this order, one bit each.
        classes: [u32; BLOCK as usize],
        /// 1 while the CPU may own no blocks: it is offline, or the zone has a fence.
        closed: u32,
        /// Changes of entries; their number at the last tick, and the ticks for which it has not changed.
        changes: u32,
        seen: u32,
        idle_ticks: u32,
    }
}

/// A view of the blocks that CPUs own in a zone; empty if CPUs own none.
///
/// Invariants while a CPU's lock is free: each of its blocks names it as owner, and the entry if the block has free frames. No
/// free frame of an owned block is in a free area.
pub(crate) struct Owned<'m, P: Platform> {
    /// By rank of the CPU on the zone's node.
    pub(crate) cpus: &'m [OwnedCells<P>],
    /// The free frames of all CPUs' entries.
    pub(crate) words: &'m [P::U64],
    /// The blocks of all CPUs' entries.
    pub(crate) blocks: &'m [P::U32],
    /// For each block, one more than the rank of its owner, or 0. A free reads it without a lock.
    pub(crate) owners: &'m [P::U8],
    /// For each block, one more than its entry, or 0.
    pub(crate) entry_of: &'m [P::U8],
}

copy_view!(Owned);

/// The number of CPUs, entries and blocks in a view.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnedShape {
    pub(crate) cpus: usize,
    pub(crate) entries: usize,
    pub(crate) blocks: usize,
}

impl OwnedShape {
    /// Returns the shape for a zone with `frames` frames and `cpus` CPUs on its node. A quarter of the
    /// zone's blocks have entries. The shape is empty if `huge`, the order of 2 MiB, is not that of owned blocks.
    pub(crate) fn new(frames: u64, cpus: usize, huge: Order) -> Self {
        let (blocks, cpus) = (frames.div_ceil(BLOCK_FRAMES.into()) as usize, cpus.min(RANK_MAX as usize + 1));
        let each = blocks.checked_div(BLOCKS_OF_ENTRY * cpus).unwrap_or(0).min(OWNED_MAX);
        if each < OWNED_MIN || u32::from(huge.get()) != BLOCK {
            return Self::default();
        }
        Self { cpus, entries: cpus * each, blocks }
    }
}

/// The blocks of one CPU, whose lock is held. All accesses are relaxed, because the lock orders them.
struct Locked<'m, P: Platform> {
    owned: Owned<'m, P>,
    own: &'m OwnedCells<P>,
    words: &'m [P::U64],
    blocks: &'m [P::U32],
    rank: u32,
    _held: Held<'m, P::Lock>,
}

#[inline(always)]
fn change<P: Platform>(cell: &P::U32, to: impl FnOnce(u32) -> u32) {
    cell.store(to(cell.load(Relaxed)), Relaxed);
}

impl<'m, P: Platform> Locked<'m, P> {
    #[inline]
    fn new(owned: &Owned<'m, P>, rank: u32) -> Self {
        let (own, each) = (&owned.cpus[rank as usize], owned.blocks.len() / owned.cpus.len());
        let blocks = &owned.blocks[rank as usize * each..][..each];
        let words = &owned.words[rank as usize * each * BLOCK_CELLS..][..each * BLOCK_CELLS];
        Self { owned: *owned, own, words, blocks, rank, _held: Held::wait(&own.lock) }
    }

    #[inline(always)]
    fn words(&self, at: u32) -> OwnedWords<'m, P> {
        OwnedWords(&self.words[at as usize * BLOCK_CELLS..][..BLOCK_CELLS])
    }

    #[inline(always)]
    fn block(&self, at: u32) -> u32 {
        self.blocks[at as usize].load(Relaxed)
    }

    fn is_used(&self, at: u32) -> bool {
        self.own.used.load(Relaxed) >> at & 1 != 0
    }

    /// Returns the entry of a block that the CPU owns; `None` if it has none, or another CPU owns it.
    fn entry_of(&self, block: u32) -> Option<u32> {
        u32::from(self.owned.entry_of[block as usize].load(Relaxed)).checked_sub(1)
    }

    /// Returns an entry with a run of `order`, of those with the smallest one.
    #[inline(always)]
    fn fit(&self, order: u32) -> Option<u32> {
        (order..BLOCK).find_map(|order| {
            let class = self.own.classes[order as usize].load(Relaxed);
            (class != 0).then(|| class.trailing_zeros())
        })
    }

    /// Whether the CPU may have another entry.
    fn may_begin(&self) -> bool {
        let next = self.own.used.load(Relaxed).trailing_ones() as usize;
        let share = self.owned.owners.len() as u32 * FREE_OF_BLOCK / self.owned.cpus.len() as u32;
        self.own.closed.load(Relaxed) == 0 && next < self.blocks.len() && self.own.pages.load(Relaxed) < share
    }

    /// Returns a new entry for `block`, which the CPU owns from now on; `None` if it may not have another entry.
    fn begin(&self, block: u32) -> Option<u32> {
        let at = self.may_begin().then(|| self.own.used.load(Relaxed).trailing_ones())?;
        self.blocks[at as usize].store(block, Relaxed);
        change::<P>(&self.own.used, |used| used | 1 << at);
        self.owned.entry_of[block as usize].store(at as u8 + 1, Relaxed);
        self.owned.owners[block as usize].store(self.rank as u8 + 1, Relaxed);
        Some(at)
    }

    /// Ends an entry, whose block has no free frames any more.
    fn end(&self, at: u32) {
        change::<P>(&self.own.used, |used| used & !(1 << at));
        self.owned.entry_of[self.block(at) as usize].store(0, Relaxed);
    }

    /// Changes an entry; files it by its largest run, which `from` was before.
    #[inline(always)]
    fn update<T>(
        &self,
        at: u32,
        from: Option<u32>,
        work: impl FnOnce(&OwnedWords<'m, P>) -> T,
    ) -> (T, Option<u32>) {
        let words = self.words(at);
        let done = work(&words);
        let now = words.largest();
        change::<P>(&self.own.changes, |changes| changes.wrapping_add(1));
        if from != now {
            let toggle = |order: Option<u32>| {
                if let Some(class) = order.and_then(|order| self.own.classes.get(order as usize)) {
                    change::<P>(class, |class| class ^ 1 << at);
                }
            };
            toggle(from);
            toggle(now);
        }
        (done, now)
    }

    /// Takes frames from an entry.
    #[inline(always)]
    fn take<T>(
        &self,
        at: u32,
        count: impl FnOnce(&T) -> u32,
        work: impl FnOnce(&OwnedWords<'m, P>) -> T,
    ) -> T {
        let (taken, now) = self.update(at, self.words(at).largest(), work);
        change::<P>(&self.own.pages, |pages| pages - count(&taken));
        if now.is_none() {
            self.end(at);
        }
        taken
    }

    /// Disowns the block of an entry, and passes its free frames to `sink` word by word.
    fn disown(&self, at: u32, mut sink: impl FnMut(u32, u64)) {
        let (block, from) = (self.block(at), self.words(at).largest());
        self.update(at, from, |words| {
            words.clear(|word, bits| {
                change::<P>(&self.own.pages, |pages| pages - bits.count_ones());
                sink((block << BLOCK) + word as u32 * u64::BITS, bits);
            });
        });
        self.end(at);
        self.owned.owners[block as usize].store(0, Relaxed);
    }
}

impl<'m, P: Platform> Zone<'m, P> {
    /// Returns the number of free frames in owned blocks.
    pub(crate) fn owned_pages(&self) -> u64 {
        self.owned.cpus.iter().map(|own| u64::from(own.pages.load(Relaxed))).sum() // relaxed: as `Pageset::count`
    }

    /// Whether the CPU's preferred area has a free block of `order` that is smaller than 2 MiB.
    pub(crate) fn has_split(&self, cpu: CpuInfo, order: Order) -> bool {
        self.free_areas.counts(self.preferred_area(Some(cpu))).fit(order) < BLOCK
    }

    /// Locks the blocks of a CPU, if it can own any in this zone.
    #[inline]
    fn lock_owned(&self, cpu: CpuInfo) -> Option<Locked<'m, P>> {
        self.owned_by(cpu).map(|_| Locked::new(&self.owned, cpu.rank))
    }

    /// Takes another block from the zone for a CPU; returns its entry.
    #[cold]
    fn grow(&self, locked: &Locked<'m, P>, cpu: CpuInfo, may_grow: impl FnOnce() -> bool) -> Option<u32> {
        let (preferred, whole) = (self.preferred_area(Some(cpu)), Order::new(BLOCK as u8)?);
        if !locked.may_begin() || self.holds_pagesets_down() || !may_grow() {
            return None;
        }
        let leaving = || self.counters().add_total(ZoneItem::Free, -i64::from(BLOCK_FRAMES));
        let first = self.free_areas.alloc(whole, preferred, leaving)?;
        let at = locked.begin(first >> BLOCK)?;
        locked.update(at, None, OwnedWords::fill);
        change::<P>(&locked.own.pages, |pages| pages + BLOCK_FRAMES);
        Some(at)
    }

    /// Takes up to `want` blocks of `order` from those that a CPU owns; returns how many.
    #[inline]
    pub(crate) fn take_owned(
        &self,
        cpu: CpuInfo,
        order: Order,
        want: u32,
        may_grow: impl Fn() -> bool,
        mut sink: impl FnMut(u32),
    ) -> u32 {
        if u32::from(order.get()) >= BLOCK {
            return 0;
        }
        let Some(locked) = self.lock_owned(cpu) else { return 0 };
        let order = u32::from(order.get());
        for taken in 0..want {
            let Some(at) = locked.fit(order).or_else(|| self.grow(&locked, cpu, &may_grow)) else {
                return taken;
            };
            let first = locked.block(at) << BLOCK;
            sink(first + locked.take(at, |_| 1 << order, |words| words.take(order)));
        }
        want
    }

    /// Takes single frames from the blocks of a CPU, word by word; otherwise like [`FreeAreas::take_pages`].
    ///
    /// [`FreeAreas::take_pages`]: crate::zone::free_areas::FreeAreas::take_pages
    pub(crate) fn take_owned_pages(
        &self,
        cpu: CpuInfo,
        range: RangeInclusive<u32>,
        may_grow: impl Fn() -> bool,
        sink: &mut impl FnMut(u32, u64),
    ) -> u32 {
        let (want, most, mut taken) = (*range.start().min(range.end()), *range.end(), 0);
        let Some(locked) = self.lock_owned(cpu) else { return 0 };
        for _ in 0..BATCH_MAX {
            if taken >= want {
                break;
            }
            let Some(at) = locked.fit(0).or_else(|| self.grow(&locked, cpu, &may_grow)) else { break };
            let first = locked.block(at) << BLOCK;
            let count = |&(_, frames): &(usize, u64)| frames.count_ones();
            let (word, frames) = locked.take(at, count, |words| words.take_from_word(most - taken));
            taken += frames.count_ones();
            sink(first + word as u32 * u64::BITS, frames);
        }
        taken
    }

    /// Frees frames of the block around `frame` to its owner; returns `None` if it has none.
    #[inline]
    pub(super) fn give_owned(
        &self,
        frame: u32,
        count: u32,
        give: impl FnOnce(&OwnedWords<'m, P>) -> bool,
    ) -> Option<Merged> {
        let block = frame >> BLOCK;
        let owner = || self.owned.owners.get(block as usize)?.load(Relaxed).checked_sub(1);
        let mut rank = owner()?;
        // The owner of a block changes under its lock only. While these frames are not free, no CPU becomes owner.
        let locked = loop {
            let locked = Locked::new(&self.owned, rank.into());
            let now = owner()?;
            if now == rank {
                break locked;
            }
            rank = now;
        };
        let known = locked.entry_of(block);
        let begin = || if self.holds_pagesets_down() { None } else { locked.begin(block) };
        let Some(at) = known.or_else(begin) else {
            self.owned.owners[block as usize].store(0, Relaxed);
            return None;
        };
        let from = known.and_then(|at| locked.words(at).largest());
        let (is_given, now) = locked.update(at, from, give);
        if !is_given {
            if now.is_none() {
                locked.end(at);
            }
            return Some(Merged { free: 0, refused: count.into() });
        }
        change::<P>(&locked.own.pages, |pages| pages + count);
        let free = if now == Some(BLOCK) { self.return_whole(&locked, at) } else { 0 };
        Some(Merged { free, refused: 0 })
    }

    /// Returns a block whose frames are all free to its area; returns the number of its frames.
    #[cold]
    fn return_whole(&self, locked: &Locked<'m, P>, at: u32) -> u64 {
        let (first, order) = (locked.block(at) << BLOCK, Order::new(BLOCK as u8).expect("below the largest"));
        if !self.free_areas.free(first, order, |_| {}) {
            return 0; // a racing invalid free put a frame into the area; the next drain finds it
        }
        locked.disown(at, |_, _| {});
        BLOCK_FRAMES.into()
    }

    /// Returns what a CPU owns; `None` if it is on another node, or CPUs own nothing.
    fn owned_by(&self, cpu: CpuInfo) -> Option<&'m OwnedCells<P>> {
        self.owned.cpus.get(cpu.rank as usize).filter(|_| self.is_own(cpu))
    }

    /// Whether a CPU owns a free block of `order`; the answer may be out of date.
    pub(crate) fn has_owned(&self, cpu: CpuInfo, order: Order) -> bool {
        let from = usize::from(order.get()).min(BLOCK as usize);
        // Relaxed: an observation.
        self.owned_by(cpu).is_some_and(|own| own.classes[from..].iter().any(|class| class.load(Relaxed) != 0))
    }

    /// Whether the blocks of a CPU have free frames and were not used for some ticks; counts this tick.
    pub(crate) fn tick_owned(&self, cpu: CpuInfo) -> bool {
        let Some(own) = self.owned_by(cpu).filter(|own| own.pages.load(Relaxed) != 0) else { return false };
        let _held = Held::wait(&own.lock);
        let changes = own.changes.load(Relaxed);
        let is_idle = own.seen.load(Relaxed) == changes;
        own.seen.store(changes, Relaxed);
        own.idle_ticks.store(if is_idle { own.idle_ticks.load(Relaxed) + 1 } else { 0 }, Relaxed);
        own.idle_ticks.load(Relaxed) >= IDLE_TICKS
    }

    /// Lets a CPU own blocks, or ends that.
    pub(crate) fn close_owned(&self, cpu: CpuInfo, is_closed: bool) {
        if let Some(own) = self.owned_by(cpu) {
            let _held = Held::wait(&own.lock);
            own.closed.store(is_closed.into(), Relaxed);
        }
    }

    /// Disowns the blocks of a CPU that have free frames.
    ///
    /// Waits for the CPU's lock at least once, so that frames which another thread disowns are in free areas afterwards. The
    /// number of rounds is bounded, because other threads may free frames meanwhile.
    pub(crate) fn disown_all_of(&self, cpu: CpuInfo) -> Merged {
        let mut merged = Merged::default();
        if self.owned_by(cpu).is_some() {
            for _ in 0..=OWNED_MAX {
                let locked = Locked::new(&self.owned, cpu.rank);
                let used = locked.own.used.load(Relaxed);
                if used == 0 {
                    break;
                }
                merged = merged.plus(self.disown_entry(&locked, used.trailing_zeros()));
            }
        }
        merged
    }

    /// Passes every free frame of the owned blocks to `each`; returns their number, or `None` if blocks, marks and counts
    /// contradict each other. No thread may allocate or free meanwhile.
    pub(crate) fn check_owned(&self, mut each: impl FnMut(u32)) -> Option<u64> {
        let (mut total, mut entries) = (0, 0);
        for rank in 0..self.owned.cpus.len() as u32 {
            let (locked, mut pages) = (Locked::new(&self.owned, rank), 0);
            for at in 0..locked.blocks.len() as u32 {
                let (words, is_used, block) = (locked.words(at), locked.is_used(at), locked.block(at));
                let in_classes = locked.own.classes.iter().map(|class| class.load(Relaxed) >> at & 1 != 0);
                let expected = (0..BLOCK).map(|order| words.largest() == Some(order));
                let owner = self.owned.owners[block as usize].load(Relaxed);
                let is_named = u32::from(owner) == rank + 1 && locked.entry_of(block) == Some(at);
                if !words.is_noted()
                    || is_used != words.largest().is_some()
                    || !in_classes.eq(expected)
                    || is_used && !is_named
                {
                    return None;
                }
                entries += usize::from(is_used);
                words.each_free(|frame| {
                    pages += 1;
                    each((block << BLOCK) + frame);
                });
            }
            if pages != locked.own.pages.load(Relaxed) {
                return None;
            }
            total += u64::from(pages);
        }
        let named = self.owned.entry_of.iter().filter(|entry| entry.load(Relaxed) != 0).count();
        (named == entries).then_some(total)
    }

    fn disown_entry(&self, locked: &Locked<'m, P>, at: u32) -> Merged {
        let (mut words, mut len, mut count) = ([(0, 0); BLOCK_WORDS], 0, 0);
        locked.disown(at, |first, bits| {
            words[len] = (first, bits);
            len += 1;
            count += u64::from(bits.count_ones());
        });
        let refused = self.free_areas.merge_words(&words[..len]);
        self.counters().add_total(ZoneItem::Free, (count - refused) as i64);
        Merged { free: count - refused, refused }
    }
}
