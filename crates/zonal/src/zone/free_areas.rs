//! Free areas: the free frames of a zone, divided into areas that each have a lock and a buddy.
//!
//! All areas except the last have the same length, a power of two that is a multiple of the largest block, so that no
//! block crosses a border of areas. Every CPU first tries its *preferred* area, and then the others in ascending order.
//! No thread holds the locks of two areas. Related files: `buddy/mod.rs` is the buddy of one area,
//! `buddy/word_batch.rs` holds frames to free, `zone/free_ranges.rs` operates on ranges, and `zone/mod.rs` has the rest
//! of a zone's state.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::shape::BuddyShape;
use crate::buddy::verify::BuddyFault;
use crate::buddy::word_batch::BATCH_MAX;
use crate::buddy::{Buddy, BuddyCounts};
use crate::config::Config;
use crate::machine::ZONE_FRAMES_MAX;
use crate::metadata::regions::{Part, index};
use crate::platform::cells::{all_zero, copy_view};
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_CPUS, Order, ZoneId};
use crate::zone::processes::Holders;

/// Maximum number of areas in a zone. While CPUs that share a zone are at most as many, none shares its preferred area.
const AREAS_MAX: usize = 128;
/// Number of areas for each CPU that shares the zone, if the zone is large enough.
const AREAS_PER_CPU: usize = 4;
/// Largest order that a CPU splits in its preferred area without a check of other areas. The value for single frames is
/// larger, because these are allocated by whole words and soon use up the remainder of the split block.
const SPLIT_FOR_FRAMES: u32 = 8;
const SPLIT_FOR_BLOCKS: u32 = 7;
/// Maximum number of other CPUs' areas that are checked before a large block is split. The number is limited, because
/// each check can transfer a cache line between CPUs.
const LOOKS_MAX: usize = 4;
/// Minimum number of free frames outside large blocks for which a CPU uses other CPUs' areas first. Areas with
/// fewer such frames are usually in use by those CPUs.
const SCATTERED_MIN: u64 = 2048;
/// Minimum number of frames in an area, so that the words and levels of the buddy are aligned.
pub(super) const AREA_FRAMES_MIN: u64 = 4096;

/// The division of a zone into areas, and the shapes of their buddies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeAreasShape {
    pub(super) frames_log2: u32,
    pub(crate) count: usize,
    /// Number of areas that a CPU has: its preferred area and the areas directly after it.
    own: usize,
    /// Number of cells in each area except the last.
    pub(super) stride: usize,
    pub(super) large: Order,
    inner: BuddyShape,
    last: BuddyShape,
}

impl FreeAreasShape {
    /// Computes the areas of a zone: a few for each CPU, each with at least `free_area_min` frames.
    pub(crate) fn new(frames: u64, cpus: usize, config: &Config) -> Self {
        let (max_order, large, least) = (config.max_order, config.huge_order(), config.free_area_min.get());
        let wanted = (cpus.max(1) * AREAS_PER_CPU).min(AREAS_MAX) as u64;
        let least = least.clamp(AREA_FRAMES_MIN, ZONE_FRAMES_MAX).max(max_order.pages().get());
        let length = frames.div_ceil(wanted).max(least).next_power_of_two();
        let count = frames.div_ceil(length).max(1);
        let inner = BuddyShape::new(length.min(frames), max_order);
        let last = BuddyShape::new(frames - (count - 1) * length, max_order);
        let (count, stride) = (count as usize, inner.cells());
        let own = (count / cpus.max(1)).max(1);
        Self { frames_log2: length.trailing_zeros(), count, own, stride, large, inner, last }
    }

    /// Returns the number of cells in all buddies.
    pub(crate) const fn cells(&self) -> usize {
        (self.count - 1) * self.stride + self.last.cells()
    }
}

all_zero! {
    /// The changing state of an area, except its bitmaps. It has its own cache lines; the lock is next to the first
    /// counts.
    #[repr(C, align(64))]
    pub(crate) struct FreeAreaCells<P> {
        lock: lock,
        pub(super) counts: {BuddyCounts<P>},
    }
}

/// A view of a zone's areas.
///
/// Invariant: the zone's frame `f` is frame `f mod length` of area `f / length`. It is free if and only if it is in
/// that area's buddy.
pub(crate) struct FreeAreas<'m, P: Platform> {
    pub(super) heads: &'m [FreeAreaCells<P>],
    pub(super) cells: &'m [P::U64],
    pub(crate) shape: &'m FreeAreasShape,
    pub(super) holders: Holders<'m, P>,
}

copy_view!(FreeAreas);

/// An area, whose lock is held until this value is dropped.
pub(super) struct Entered<'m, P: Platform> {
    pub(super) first: u32,
    pub(super) buddy: Buddy<'m, P>,
    pub(super) held: Held<'m, P::Lock>,
}

impl<'m, P: Platform> FreeAreas<'m, P> {
    /// Creates the view of areas with `shape` in `heads` and `cells`.
    pub(crate) fn new(
        heads: &'m [FreeAreaCells<P>],
        cells: &'m [P::U64],
        shape: &'m FreeAreasShape,
        holders: Holders<'m, P>,
    ) -> Self {
        assert!(heads.len() == shape.count && cells.len() == shape.cells());
        Self { heads, cells, shape, holders }
    }

    /// Returns which part of `zone`'s areas contains the byte at `address`.
    pub(super) fn part_at(&self, zone: ZoneId, address: usize) -> Option<Part> {
        let bitmap = || index(self.cells, address).map(|at| Part::FreeBitmap(zone, at / self.shape.stride));
        index(self.heads, address).map(|at| Part::FreeArea(zone, at)).or_else(bitmap)
    }

    /// Returns the preferred area of the CPU with `rank`, from 0, among `cpus`.
    pub(super) fn preferred_area(&self, rank: usize, cpus: usize) -> usize {
        // The division uses 32 bits, because 64-bit division is slow.
        const { assert!(MAX_CPUS as u64 * AREAS_MAX as u64 <= u32::MAX as u64) };
        if self.shape.count == 1 { 0 } else { (rank as u32 * self.shape.count as u32 / cpus as u32) as usize }
    }

    /// Allocates a block of `order`, from the area `preferred` or the areas after it if possible; returns its first
    /// frame.
    ///
    /// Calls `leaving` before the area's lock is released.
    #[must_use]
    pub(crate) fn alloc(&self, order: Order, preferred: usize, leaving: impl FnOnce()) -> Option<u32> {
        let first = self.first_for(order, preferred);
        let area = self.enter(first);
        if let Some(frame) = self.take_in(&area, order) {
            leaving();
            return Some(frame);
        }
        drop(area);
        self.take_anywhere(order, preferred, leaving)
    }

    /// Allocates a block in an area, which this process then holds.
    fn take_in(&self, area: &Entered<'m, P>, order: Order) -> Option<u32> {
        let frame = area.first + area.buddy.alloc(&area.held, order)?;
        self.holders.take(frame, order.pages().get());
        Some(frame)
    }

    /// Allocates a block like [`Self::alloc`], from the first area from `preferred` on that has a suitable block.
    #[cold]
    fn take_anywhere(&self, order: Order, preferred: usize, leaving: impl FnOnce()) -> Option<u32> {
        for at in self.from(preferred).filter(|&at| self.area_has(at, order)) {
            let area = self.enter(at);
            if let Some(frame) = self.take_in(&area, order) {
                leaving();
                return Some(frame);
            }
        }
        None
    }

    /// Allocates up to `want` blocks of `order` like [`Self::alloc`]; returns how many were allocated.
    ///
    /// Calls `sink` with each block. Calls `leaving` with the number of blocks from an area before the area's lock is
    /// released.
    pub(crate) fn take_blocks(
        &self,
        order: Order,
        preferred: usize,
        want: u32,
        sink: &mut impl FnMut(u32),
        leaving: &mut impl FnMut(u32),
    ) -> u32 {
        let (first, mut came) = (self.first_for(order, preferred), 0);
        for at in core::iter::once(first).chain(self.from(preferred).filter(|&at| at != first)) {
            if self.counts(at).has_block(order) {
                let (area, before) = (self.enter(at), came);
                while came < want
                    && let Some(frame) = self.take_in(&area, order)
                {
                    sink(frame);
                    came += 1;
                }
                leaving(came - before);
                if came == want {
                    break;
                }
            }
        }
        came
    }

    /// Allocates single frames in bulk like [`Buddy::take_pages`], from `preferred` first if possible.
    ///
    /// Returns how many were allocated: at least the start of `range`, or as many as [`BATCH_MAX`] words have if these
    /// are fewer, and at most its end. Calls `leaving` as [`Self::take_blocks`] does, and `sink` for at most
    /// [`BATCH_MAX`] words.
    pub(crate) fn take_pages(
        &self,
        preferred: usize,
        range: RangeInclusive<u32>,
        sink: &mut impl FnMut(u32, u64),
        leaving: &mut impl FnMut(u32),
    ) -> u32 {
        let (mut want, most) = (*range.start().min(range.end()), *range.end());
        let (first, mut came) = (self.first_for(Order::PAGE, preferred), 0);
        for at in core::iter::once(first).chain(self.from(preferred).filter(|&at| at != first)) {
            if self.counts(at).has_block(Order::PAGE) {
                let area = self.enter(at);
                let mut place = |word, frames| {
                    self.holders.set_in_word(area.first + word, frames, self.holders.process);
                    sink(area.first + word, frames);
                };
                let taken = area.buddy.take_pages(&area.held, want - came, most - came, &mut place);
                leaving(taken);
                came += taken;
            }
            // Other areas are used for one batch only. As each word has a frame at least, all words then fit the batch.
            want = want.min(BATCH_MAX as u32);
            if came >= want {
                break;
            }
        }
        came
    }

    /// Frees the block of `order` at `frame`; returns `false` when [`Buddy::free`] refuses it.
    ///
    /// Calls `freed` before the area's lock is released, unless the block was refused.
    #[must_use]
    pub(super) fn free(&self, frame: u32, order: Order, freed: impl FnOnce(&Entered<'m, P>)) -> bool {
        let area = self.enter(self.area_of(frame));
        let is_freed = area.buddy.free(&area.held, frame - area.first, order);
        if is_freed {
            self.holders.give(frame, order.pages().get());
            freed(&area);
        }
        is_freed
    }

    /// Frees blocks of `order`; returns how many were refused.
    ///
    /// Consecutive blocks in the same area are freed under one acquisition of its lock.
    pub(crate) fn merge_blocks_back(&self, order: Order, blocks: &[u32]) -> u64 {
        let mut refused = 0;
        for blocks in blocks.chunk_by(|&a, &b| self.area_of(a) == self.area_of(b)) {
            let area = self.enter(self.area_of(blocks[0]));
            for &frame in blocks {
                let is_freed = area.buddy.free(&area.held, frame - area.first, order);
                if is_freed {
                    self.holders.give(frame, order.pages().get());
                }
                refused += u64::from(!is_freed);
            }
        }
        refused
    }

    /// Frees the frames of a batch, area by area; returns how many were refused because they were free already.
    pub(crate) fn merge_batch(&self, words: &[(u32, u64)]) -> u64 {
        const NONE: u8 = u8::MAX;
        // The words of each area form a list, so that the function visits each word only twice.
        let (mut first, mut next) = ([NONE; AREAS_MAX], [NONE; BATCH_MAX]);
        for (slot, word) in words.iter().enumerate().filter(|(_, word)| word.1 != 0) {
            next[slot] = core::mem::replace(&mut first[self.area_of(word.0)], slot as u8);
        }
        let mut refused = 0;
        for at in words.iter().map(|word| self.area_of(word.0)) {
            let mut slot = usize::from(core::mem::replace(&mut first[at], NONE));
            let area = (slot < BATCH_MAX).then(|| self.enter(at));
            while let (Some(area), true) = (&area, slot < BATCH_MAX) {
                let (word, frames) = words[slot];
                refused += area.merge_word(word, frames);
                self.holders.set_in_word(word, frames, Holders::<P>::NO_HOLDER);
                slot = usize::from(next[slot]);
            }
        }
        refused
    }

    /// Frees frames of words (64 frames), each given by its first frame and one bit for each frame to free; returns how
    /// many were refused because they were free already.
    ///
    /// Consecutive words in the same area are freed under one acquisition of its lock.
    pub(crate) fn merge_words(&self, words: &[(u32, u64)]) -> u64 {
        let of_one_area = |a: &(u32, u64), b: &(u32, u64)| self.area_of(a.0) == self.area_of(b.0);
        let mut refused = 0;
        for words in words.chunk_by(of_one_area) {
            let area = self.enter(self.area_of(words[0].0));
            refused += words.iter().map(|&(first, frames)| area.merge_word(first, frames)).sum::<u64>();
            for &(first, frames) in words {
                self.holders.set_in_word(first, frames, Holders::<P>::NO_HOLDER);
            }
        }
        refused
    }

    /// Whether an area has a free block of `order` or larger by its counts; checks `preferred` first.
    ///
    /// A hint: while the holder of an area's lock moves the only such block, the block is counted nowhere.
    pub(crate) fn has_block(&self, order: Order, preferred: usize) -> bool {
        self.from(preferred).any(|at| self.counts(at).has_block(order))
    }

    /// Whether an area has a free block of `order` or larger. Waits for the areas that may be moving one.
    pub(crate) fn has_block_exactly(&self, order: Order) -> bool {
        self.from(0).any(|at| self.area_has(at, order))
    }

    /// Whether an area has a free block of `order` or larger. If the counts say that it has none although enough frames
    /// are free, they are read again under the lock.
    pub(super) fn area_has(&self, at: usize, order: Order) -> bool {
        let counts = self.counts(at);
        // Relaxed: see `Buddy`. A thread that knows of free frames sees them counted.
        let may_have = || counts.free_pages.load(Relaxed) >= order.pages().get();
        counts.has_block(order)
            || may_have() && {
                let _area = self.enter(at);
                counts.has_block(order)
            }
    }

    /// Returns the number of free frames.
    pub(crate) fn pages(&self) -> u64 {
        self.heads.iter().map(|head| head.counts.free_pages.load(Relaxed)).sum() // relaxed: see `Buddy`
    }

    /// Returns the words of active blocks (`buddy/active_block.rs`) to the buddies, so that [`Self::blocks`]
    /// counts them.
    pub(crate) fn settle(&self) {
        for at in 0..self.shape.count {
            // Relaxed: the function may miss a block that becomes active after this load.
            if self.counts(at).open.load(Relaxed) != 0 {
                self.enter(at).buddy.settle();
            }
        }
    }

    /// Returns the number of free `order` blocks that are not inside a larger free block, without active blocks.
    pub(crate) fn blocks(&self, order: Order) -> u64 {
        let of = |head: &FreeAreaCells<P>| head.counts.free_blocks[usize::from(order.get())].load(Relaxed);
        self.heads.iter().map(of).sum() // relaxed: see `Buddy`
    }

    /// Whether at least `frames` free frames are in large blocks.
    ///
    /// Checks the last areas first, because they are used last, and stops as soon as enough frames are found.
    pub(crate) fn has_in_large(&self, frames: u64) -> bool {
        let mut found = 0;
        frames == 0
            || self.heads.iter().rev().any(|head| {
                found += head.counts.in_large(self.shape.large);
                found >= frames
            })
    }

    /// Returns the order of the largest free block.
    pub(crate) fn largest_order(&self) -> Option<Order> {
        self.from(0).filter_map(|at| self.counts(at).largest()).max()
    }

    /// Checks the invariants of all buddies.
    ///
    /// # Errors
    /// Returns the first violation of an invariant that was found.
    pub(crate) fn verify(&self) -> Result<(), BuddyFault> {
        (0..self.shape.count).try_for_each(|at| {
            let area = self.enter(at);
            area.buddy.verify(&area.held)
        })
    }

    /// Returns the area to try first for a block of `order`. This is the preferred area, unless it would split a large
    /// block although other areas have smaller suitable blocks.
    fn first_for(&self, order: Order, preferred: usize) -> usize {
        let few = if order == Order::PAGE { SPLIT_FOR_FRAMES } else { SPLIT_FOR_BLOCKS };
        let is_good = self.counts(preferred).fit(order) <= few.max(order.get().into());
        if is_good { preferred } else { self.best(order, preferred) }
    }

    /// Returns the area to use for a block of `order` when the preferred area would split a much larger block.
    ///
    /// This is the CPU's own area with the smallest suitable block. If that block is large and `order` is not, an area
    /// of other CPUs with many free frames outside large blocks is preferred.
    #[cold]
    fn best(&self, order: Order, preferred: usize) -> usize {
        let large = u32::from(self.shape.large.get());
        let fit = |at: usize| self.counts(at).fit(order);
        // Free frames outside large blocks. Relaxed: see `Buddy`. The two counts may be inconsistent while they change.
        let scattered = |at: usize| {
            let free = self.counts(at).free_pages.load(Relaxed);
            free.saturating_sub(self.counts(at).in_large(self.shape.large))
        };
        let (mut own, mut least) = (preferred, fit(preferred));
        for at in (1..self.shape.own).map(|step| self.after(preferred, step)) {
            let fit = fit(at);
            if fit < least {
                (own, least) = (at, fit);
            }
        }
        let is_small = u32::from(order.get()) < large;
        if least < large || (least < u64::BITS && !is_small) {
            return own;
        }
        let mut any = if least < u64::BITS { Some(own) } else { None };
        for (looks, at) in
            (self.shape.own..self.shape.count).map(|step| self.after(preferred, step)).enumerate()
        {
            let (fit, few_looks) = (fit(at), looks < LOOKS_MAX);
            if few_looks && is_small && fit < large && scattered(at) >= SCATTERED_MIN {
                return at;
            }
            if any.is_none() && fit < u64::BITS {
                any = Some(at);
            }
            if any.is_some() && !few_looks {
                break;
            }
        }
        any.unwrap_or(own)
    }

    /// Returns the area `step` areas after `preferred`.
    fn after(&self, preferred: usize, step: usize) -> usize {
        let at = preferred + step;
        if at < self.shape.count { at } else { at - self.shape.count }
    }

    /// Returns all areas, `preferred` first.
    fn from(&self, preferred: usize) -> impl Iterator<Item = usize> + Clone + use<P> {
        (preferred..self.shape.count).chain(0..preferred)
    }

    pub(super) fn counts(&self, at: usize) -> &'m BuddyCounts<P> {
        &self.heads[at].counts
    }

    /// Returns the area that contains `frame`.
    pub(super) fn area_of(&self, frame: u32) -> usize {
        (u64::from(frame) >> self.shape.frames_log2) as usize
    }

    /// Waits for the lock of an area.
    #[inline(always)]
    pub(super) fn enter(&self, at: usize) -> Entered<'m, P> {
        let head = &self.heads[at];
        let shape = if at + 1 == self.shape.count { &self.shape.last } else { &self.shape.inner };
        let buddy = Buddy::new(&head.counts, &self.cells[at * self.shape.stride..], shape);
        let first = ((at as u64) << self.shape.frames_log2) as u32;
        let area = Entered { first, buddy, held: Held::wait(&head.lock) };
        if self.holders.are_kept() { self.rebuild(area) } else { area }
    }
}

impl<P: Platform> Entered<'_, P> {
    /// Frees frames of one word; returns how many were refused because they were free already.
    fn merge_word(&self, first: u32, frames: u64) -> u64 {
        let first = first - self.first;
        if self.buddy.merge_word(&self.held, first, frames) {
            return 0;
        }
        let bits = (0..u64::BITS).filter(|bit| frames & (1 << bit) != 0);
        bits.filter(|&bit| !self.buddy.merge_word(&self.held, first, 1 << bit)).count() as u64
    }
}
