//! What CPUs do with the blocks that they own: take frames from them, free frames to them, and end ownership.
//!
//! Related files: `zone/owned_blocks.rs` has the blocks and their locks, `zone/free_areas.rs` the free areas.

use core::ops::RangeInclusive;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::word_batch::BATCH_MAX;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::zone::counters::ZoneItem;
use crate::zone::free_areas::FreeAreas;
use crate::zone::owned_blocks::{IDLE_TICKS, Locked, Merged, OWNED_MAX, OwnedCells};
use crate::zone::owned_words::{BLOCK, BLOCK_FRAMES, BLOCK_WORDS, OwnedWords};
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Zone<'m, P> {
    /// Returns the number of free frames in owned blocks.
    pub(crate) fn owned_pages(&self) -> u64 {
        self.owned.cpus.iter().map(|own| u64::from(own.pages.load(Relaxed))).sum()
    }

    /// Whether a refill takes from the CPU's own blocks: only if its preferred area has no split block, so that areas use up their
    /// split blocks first.
    pub(crate) fn refills_from_owned(&self, cpu: CpuInfo, order: Order) -> bool {
        let fit = || self.free_areas.counts(self.preferred_area(cpu)).fit(order);
        self.owned_by(cpu).is_some() && fit() >= BLOCK
    }

    /// Locks the blocks of a CPU, if it can own any in this zone.
    #[inline]
    fn lock_owned(&self, cpu: CpuInfo) -> Option<Locked<'m, P>> {
        self.owned_by(cpu).map(|_| Locked::new(&self.owned, cpu.rank))
    }

    /// Takes another block from the zone for a CPU; returns its entry.
    #[cold]
    fn grow(&self, locked: &Locked<'m, P>, cpu: CpuInfo, may_grow: impl FnOnce() -> bool) -> Option<u32> {
        let (preferred, whole) = (self.preferred_area(cpu), Order::new(BLOCK as u8)?);
        if !locked.may_begin() || self.holds_pagesets_down() || !may_grow() {
            return None;
        }
        let leaving = || self.counters().add_total(ZoneItem::Free, -i64::from(BLOCK_FRAMES));
        let first = self.free_areas.alloc(whole, preferred, leaving)?;
        let at = locked.begin(first >> BLOCK).expect("checked under the lock");
        locked.update(at, None, OwnedWords::fill);
        locked.add_pages(BLOCK_FRAMES);
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
        let order = u32::from(order.get());
        if order >= BLOCK {
            return 0;
        }
        let Some(locked) = self.lock_owned(cpu) else { return 0 };
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

    /// Frees a block to the CPU that owns the frames around it; returns `None` if none does.
    #[inline]
    pub(crate) fn merge_into_owned(&self, frame: u32, order: Order) -> Option<Merged> {
        let order = u32::from(order.get());
        let give = |words: &OwnedWords<'m, P>| words.give(frame % BLOCK_FRAMES, order);
        if order < BLOCK { self.give_owned(frame, 1 << order, give) } else { None }
    }

    /// Frees frames of one word to the CPU that owns them; returns `None` if none does.
    fn merge_word_into_owned(&self, first: u32, frames: u64) -> Option<Merged> {
        let word = first as usize / u64::BITS as usize % BLOCK_WORDS;
        let give = |words: &OwnedWords<'m, P>| words.give_to_word(word, frames);
        let merged = self.give_owned(first, frames.count_ones(), give)?;
        if merged.refused == 0 || frames.is_power_of_two() {
            return Some(merged);
        }
        // One of them is free already. As in a free area, the others are freed.
        let bits = (0..u64::BITS).filter(|bit| frames & (1 << bit) != 0);
        let each = bits.map(|bit| {
            // The block may have no owner any more, because its last frame has completed it.
            self.merge_word_into_owned(first, 1 << bit).unwrap_or_else(|| {
                let refused = self.free_areas.merge_words(&[(first, 1 << bit)]);
                Merged { free: 1 - refused, refused }
            })
        });
        Some(each.fold(Merged::default(), Merged::plus))
    }

    /// Frees words to the owners of their blocks, and the others to the free areas, which `rest` does.
    pub(crate) fn merge_words(
        &self,
        words: &mut [(u32, u64)],
        rest: impl FnOnce(&FreeAreas<'m, P>, &[(u32, u64)]) -> u64,
    ) -> Merged {
        let mut merged = Merged::default();
        if P::OWNS_BLOCKS && !self.owned.cpus.is_empty() {
            for (first, frames) in words.iter_mut() {
                if let Some(to_owner) = self.merge_word_into_owned(*first, *frames) {
                    merged = merged.plus(to_owner);
                    *frames = 0;
                }
            }
        }
        let count: u64 = words.iter().map(|(_, frames)| u64::from(frames.count_ones())).sum();
        let refused = rest(&self.free_areas, words);
        merged.plus(Merged { free: count - refused, refused })
    }

    /// Frees frames of the block around `frame` to its owner; returns `None` if it has none.
    #[inline]
    fn give_owned(
        &self,
        frame: u32,
        count: u32,
        give: impl FnOnce(&OwnedWords<'m, P>) -> bool,
    ) -> Option<Merged> {
        if !P::OWNS_BLOCKS {
            return None;
        }
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
        locked.add_pages(count);
        let free = if now == Some(BLOCK) { self.return_whole(&locked, at) } else { 0 };
        Some(Merged { free, refused: 0 })
    }

    /// Returns a block whose frames are all free to its area; returns the number of its frames.
    #[cold]
    fn return_whole(&self, locked: &Locked<'m, P>, at: u32) -> u64 {
        let (block, order) = (locked.block(at), Order::new(BLOCK as u8).expect("below the largest"));
        // Once the block is in its area, another CPU can take and own it.
        locked.disown(at);
        if !self.free_areas.free(block << BLOCK, order, |_| {}) {
            locked.begin_at(at, block);
            return 0; // a racing invalid free put a frame into the area; the next drain finds it
        }
        locked.clear_entry(at, |_, _| {});
        BLOCK_FRAMES.into()
    }

    /// Returns what a CPU owns; `None` if it is on another node, or CPUs own nothing.
    fn owned_by(&self, cpu: CpuInfo) -> Option<&'m OwnedCells<P>> {
        self.owned.cpus.get(cpu.rank as usize).filter(|_| P::OWNS_BLOCKS && self.is_own(cpu))
    }

    /// Whether a CPU owns a free block of `order`; the answer may be out of date.
    pub(crate) fn has_owned(&self, cpu: CpuInfo, order: Order) -> bool {
        let from = usize::from(order.get()).min(BLOCK as usize);
        self.owned_by(cpu).is_some_and(|own| own.classes[from..].iter().any(|class| class.load(Relaxed) != 0))
    }

    /// Whether the blocks of a CPU have free frames and were not used for some ticks; counts this tick.
    pub(crate) fn tick_owned(&self, cpu: CpuInfo) -> bool {
        let Some(own) = self.owned_by(cpu).filter(|own| own.pages.load(Relaxed) != 0) else { return false };
        let _held = Held::wait(&own.lock);
        let changes = own.changes.load(Relaxed);
        let ticks = if own.seen.load(Relaxed) == changes { own.idle_ticks.load(Relaxed) + 1 } else { 0 };
        own.seen.store(changes, Relaxed);
        own.idle_ticks.store(ticks, Relaxed);
        ticks >= IDLE_TICKS
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
                let (mut words, mut len, mut count) = ([(0, 0); BLOCK_WORDS], 0, 0);
                locked.disown(used.trailing_zeros());
                locked.clear_entry(used.trailing_zeros(), |first, bits| {
                    words[len] = (first, bits);
                    len += 1;
                    count += u64::from(bits.count_ones());
                });
                let refused = self.free_areas.merge_words(&words[..len]);
                self.counters().add_total(ZoneItem::Free, (count - refused) as i64);
                merged = merged.plus(Merged { free: count - refused, refused });
            }
        }
        merged
    }

    /// Passes every free frame of the owned blocks to `each`; returns their number, or `None` if entries, owners and counts
    /// contradict each other. No thread may allocate or free meanwhile.
    pub(crate) fn check_owned(&self, mut each: impl FnMut(u32)) -> Option<u64> {
        let (mut total, mut entries) = (0, 0);
        for rank in 0..self.owned.cpus.len() as u32 {
            let (pages, used) = Locked::new(&self.owned, rank).check(&mut each)?;
            total += u64::from(pages);
            entries += used;
        }
        let named = self.owned.entry_of.iter().filter(|entry| entry.load(Relaxed) != 0).count();
        (named == entries).then_some(total)
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::config::{InvalidFree, OwnedBlocks};
    use crate::testing::small;
    use crate::units::{CpuId, Order};
    use crate::zone::free_areas::FreeAreas;

    /// A word whose last frame is free already, and whose other frames complete the block.
    #[test]
    fn every_frame_of_a_word_is_freed_or_refused() {
        let (owned_blocks, invalid_free) = (OwnedBlocks::On, InvalidFree::Checked);
        let allocator = small(&Config { owned_blocks, invalid_free, ..Config::default() }, |_| {});
        let zone = &allocator.state.zones[1];
        let cpu = allocator.state.cpu_info(CpuId::new(0)).unwrap();
        let mut first = None;
        assert_eq!(zone.take_owned(cpu, Order::new(4).unwrap(), 1, || true, |frame| first = Some(frame)), 1);
        let merged = zone.merge_words(&mut [(first.unwrap(), 0xffff | 1 << 20)], FreeAreas::merge_words);
        assert_eq!((merged.free, merged.refused), (512, 1));
    }
}
