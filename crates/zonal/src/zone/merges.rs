//! Frees of many frames: to the owners of their blocks, or else to the free areas.
//!
//! Related files: `zone/owned_blocks.rs` has the owners, `zone/free_areas.rs` the areas, `pageset/drain.rs` drains pagesets.

use crate::buddy::owned_words::{BLOCK, BLOCK_FRAMES, BLOCK_WORDS, OwnedWords};
use crate::platform::Platform;
use crate::units::Order;
use crate::zone::Zone;
use crate::zone::free_areas::FreeAreas;
use crate::zone::owned_blocks::Merged;

impl<'m, P: Platform> Zone<'m, P> {
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
