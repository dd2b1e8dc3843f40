//! Blocks owned by CPUs (M6): a CPU takes whole blocks of 2 MiB from its zone, and splits them itself.
//!
//! They serve the CPU's requests for middle orders, and its refills once the free areas have no split block left. A free returns
//! to the owner, whichever CPU frees, and buddies merge there. A block whose frames are all free goes back to the zone, which
//! then counts 512 free frames at once. Frames in owned blocks count as frames in pagesets. Any CPU may *disown* blocks: their
//! free frames then return to the free areas.
//!
//! Every CPU has a lock for its blocks, acquired after a pageset's lock and before a free area's. Related files:
//! `zone/owned_words.rs` has the frames of one block, `zone/owners.rs` takes, gives back and disowns blocks.

use core::sync::atomic::Ordering::Relaxed;

use crate::metadata::arena::{Arena, Measure};
use crate::metadata::regions::holds;
use crate::platform::cells::{all_zero, copy_view};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::zone::owned_words::{BLOCK, BLOCK_CELLS, BLOCK_FRAMES, OwnedWords};

/// Maximum number of a CPU's blocks that have free frames.
pub(super) const OWNED_MAX: usize = u32::BITS as usize;
/// A CPU with fewer entries has none.
const OWNED_MIN: usize = 2;
/// A zone has one entry for this many of its blocks.
const BLOCKS_OF_ENTRY: usize = 4;
/// A CPU gets no further entry while this many frames, for each block in its share of the zone, are free in its blocks: 1/8.
const FREE_OF_BLOCK: u32 = BLOCK_FRAMES / 8;
/// Ticks without use after which a CPU's blocks are disowned.
pub(super) const IDLE_TICKS: u32 = 3;
/// CPUs with a higher rank own nothing, so that a rank fits into a byte.
const RANK_MAX: u32 = u8::MAX as u32 - 1;

all_zero! {
    /// What a CPU owns of a zone on its node. A block with free frames has an entry.
    #[repr(C, align(64))]
    pub(super) struct OwnedCells<P> {
        pub(super) lock: lock,
        /// Free frames in the CPU's blocks, which is also read without the lock.
        pub(super) pages: u32,
        /// Entries in use, one bit each.
        pub(super) used: u32,
        /// The entries whose largest free run has this order, one bit each.
        pub(super) classes: [u32; BLOCK as usize],
        /// 1 while the CPU may own no blocks: it is offline, or the zone has a fence.
        pub(super) closed: u32,
        /// Changes of entries; their number at the last tick, and the ticks for which it has not changed.
        pub(super) changes: u32,
        pub(super) seen: u32,
        pub(super) idle_ticks: u32,
    }
}

/// A view of the blocks that CPUs own in a zone; empty if CPUs own none.
///
/// Invariants while a CPU's lock is free: each of its blocks names it as owner, and the entry if the block has free frames. No
/// free frame of an owned block is in a free area.
pub(crate) struct Owned<'m, P: Platform> {
    /// By rank of the CPU on the zone's node.
    pub(super) cpus: &'m [OwnedCells<P>],
    /// The free frames of all CPUs' entries.
    words: &'m [P::U64],
    /// The blocks of all CPUs' entries.
    blocks: &'m [P::U32],
    /// For each block, one more than the rank of its owner, or 0. A free reads it without a lock.
    pub(super) owners: &'m [P::U8],
    /// For each block, one more than its entry, or 0.
    pub(super) entry_of: &'m [P::U8],
}

copy_view!(Owned);

/// The number of CPUs, entries and blocks in a view.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnedShape {
    cpus: usize,
    entries: usize,
    /// Cells of all entries' frames.
    words: usize,
    blocks: usize,
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
        Self { cpus, entries: cpus * each, words: cpus * each * BLOCK_CELLS, blocks }
    }
}

impl<'m, P: Platform> Owned<'m, P> {
    /// Adds the size of the cells that [`Self::build`] allocates.
    pub(crate) fn measure(measure: &mut Measure, shape: &OwnedShape) {
        measure.add::<OwnedCells<P>>(shape.cpus);
        measure.add::<P::U64>(shape.words);
        measure.add::<P::U32>(shape.entries);
        measure.add::<P::U8>(shape.blocks);
        measure.add::<P::U8>(shape.blocks);
    }

    /// Allocates the cells of a view with `shape`.
    pub(crate) fn build(arena: &mut Arena<'m>, shape: &OwnedShape) -> Self {
        Self {
            cpus: arena.fresh::<P, OwnedCells<P>>(shape.cpus),
            words: arena.u64s::<P>(shape.words),
            blocks: arena.u32s::<P>(shape.entries),
            owners: arena.u8s::<P>(shape.blocks),
            entry_of: arena.u8s::<P>(shape.blocks),
        }
    }

    /// Whether the byte at `address` is one of a cell.
    pub(super) fn holds(&self, address: usize) -> bool {
        let bytes = || holds(self.owners, address) || holds(self.entry_of, address);
        holds(self.cpus, address) || holds(self.words, address) || holds(self.blocks, address) || bytes()
    }
}

/// Frames that came back to a zone.
#[derive(Clone, Copy, Default)]
pub(crate) struct Merged {
    /// Frames that are in free areas now.
    pub(crate) free: u64,
    /// Frames that were free already.
    pub(crate) refused: u64,
}

impl Merged {
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self { free: self.free + other.free, refused: self.refused + other.refused }
    }
}

/// The blocks of one CPU, whose lock is held. All accesses are relaxed, because the lock orders them.
pub(super) struct Locked<'m, P: Platform> {
    owned: Owned<'m, P>,
    pub(super) own: &'m OwnedCells<P>,
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
    pub(super) fn new(owned: &Owned<'m, P>, rank: u32) -> Self {
        let (own, each) = (&owned.cpus[rank as usize], owned.blocks.len() / owned.cpus.len());
        let blocks = &owned.blocks[rank as usize * each..][..each];
        let words = &owned.words[rank as usize * each * BLOCK_CELLS..][..each * BLOCK_CELLS];
        Self { owned: *owned, own, words, blocks, rank, _held: Held::wait(&own.lock) }
    }

    #[inline(always)]
    pub(super) fn words(&self, at: u32) -> OwnedWords<'m, P> {
        OwnedWords(&self.words[at as usize * BLOCK_CELLS..][..BLOCK_CELLS])
    }

    #[inline(always)]
    pub(super) fn block(&self, at: u32) -> u32 {
        self.blocks[at as usize].load(Relaxed)
    }

    pub(super) fn is_used(&self, at: u32) -> bool {
        self.own.used.load(Relaxed) >> at & 1 != 0
    }

    /// Returns the entry of a block that the CPU owns; `None` if it has none, or another CPU owns it.
    pub(super) fn entry_of(&self, block: u32) -> Option<u32> {
        u32::from(self.owned.entry_of[block as usize].load(Relaxed)).checked_sub(1)
    }

    /// Returns an entry with a run of `order`, of those with the smallest one.
    #[inline(always)]
    pub(super) fn fit(&self, order: u32) -> Option<u32> {
        (order..BLOCK).find_map(|order| {
            let class = self.own.classes[order as usize].load(Relaxed);
            (class != 0).then(|| class.trailing_zeros())
        })
    }

    /// Whether the CPU may have another entry.
    pub(super) fn may_begin(&self) -> bool {
        let next = self.own.used.load(Relaxed).trailing_ones() as usize;
        let share = self.owned.owners.len() as u32 * FREE_OF_BLOCK / self.owned.cpus.len() as u32;
        self.own.closed.load(Relaxed) == 0 && next < self.blocks.len() && self.own.pages.load(Relaxed) < share
    }

    /// Returns a new entry for `block`, which the CPU owns from now on; `None` if it may not have another entry.
    pub(super) fn begin(&self, block: u32) -> Option<u32> {
        let at = self.may_begin().then(|| self.own.used.load(Relaxed).trailing_ones())?;
        self.begin_at(at, block);
        Some(at)
    }

    /// Makes the CPU the owner of `block`, with an entry that is not in use.
    pub(super) fn begin_at(&self, at: u32, block: u32) {
        self.blocks[at as usize].store(block, Relaxed);
        change::<P>(&self.own.used, |used| used | 1 << at);
        self.owned.entry_of[block as usize].store(at as u8 + 1, Relaxed);
        self.owned.owners[block as usize].store(self.rank as u8 + 1, Relaxed);
    }

    /// Ends an entry, whose block has no free frames any more.
    pub(super) fn end(&self, at: u32) {
        change::<P>(&self.own.used, |used| used & !(1 << at));
        self.owned.entry_of[self.block(at) as usize].store(0, Relaxed);
    }

    /// Changes an entry; files it by its largest run, which `from` was before.
    #[inline(always)]
    pub(super) fn update<T>(
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
    pub(super) fn take<T>(
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

    /// Counts frames that are free now.
    pub(super) fn add_pages(&self, count: u32) {
        change::<P>(&self.own.pages, |pages| pages + count);
    }

    /// Passes every free frame to `each`; returns how many there are, and how many entries, or `None` if entries, owners and
    /// counts contradict each other.
    pub(super) fn check(&self, each: &mut impl FnMut(u32)) -> Option<(u32, usize)> {
        let (mut pages, mut entries) = (0, 0);
        for at in 0..self.blocks.len() as u32 {
            let (words, is_used, block) = (self.words(at), self.is_used(at), self.block(at));
            let in_classes = self.own.classes.iter().map(|class| class.load(Relaxed) >> at & 1 != 0);
            let expected = (0..BLOCK).map(|order| words.largest() == Some(order));
            let owner = self.owned.owners[block as usize].load(Relaxed);
            let is_named = u32::from(owner) == self.rank + 1 && self.entry_of(block) == Some(at);
            let is_right = is_used == words.largest().is_some() && (is_named || !is_used);
            if !is_right || !words.is_noted() || !in_classes.eq(expected) {
                return None;
            }
            entries += usize::from(is_used);
            words.each_free(|frame| {
                pages += 1;
                each((block << BLOCK) + frame);
            });
        }
        (pages == self.own.pages.load(Relaxed)).then_some((pages, entries))
    }

    /// Ends an entry and the ownership of its block, whose free frames stay in the entry until it is emptied.
    pub(super) fn disown(&self, at: u32) {
        self.end(at);
        self.owned.owners[self.block(at) as usize].store(0, Relaxed);
    }

    /// Empties the entry of a disowned block, and passes its free frames to `sink` word by word.
    pub(super) fn clear_entry(&self, at: u32, mut sink: impl FnMut(u32, u64)) {
        let first = self.block(at) << BLOCK;
        self.update(at, self.words(at).largest(), |words| {
            words.clear(|word, bits| {
                change::<P>(&self.own.pages, |pages| pages - bits.count_ones());
                sink(first + word as u32 * u64::BITS, bits);
            });
        });
    }
}
