//! Single frames onto and off a pageset's stack, many at once.
//!
//! Vocabulary: a *word* is 64 frames, the first a multiple of 64. Words that leave and come back
//! whole cost a few instructions a frame, and the buddy neither a split nor a merge. Neighbours:
//! `pageset.rs` has the stacks, `refill.rs` moves words.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::{PagesetGuard, StackId};
use crate::platform::{Atomic, Platform};

// Every access is relaxed: the lock that the guard stands for orders them.
impl<P: Platform> PagesetGuard<'_, P> {
    /// Puts single frames of the word of 64 that starts at `first` onto their stack, which has room: the
    /// lowest on top.
    #[inline]
    pub(crate) fn push_word(&self, first: u32, frames: u64) {
        let word = self.word();
        let room = word.room() - frames.count_ones();
        let slots = &self.page_slots()[room as usize..word.room() as usize];
        self.set_word(word.with_room(room));
        if frames == !0 {
            // By eights, for a loop without counting: most words are whole.
            for (eight, slots) in slots.as_chunks::<8>().0.iter().enumerate() {
                for (at, slot) in slots.iter().enumerate() {
                    slot.store(first + (8 * eight + at) as u32, Relaxed);
                }
            }
            return;
        }
        let mut left = frames;
        for slot in slots {
            slot.store(first + left.trailing_zeros(), Relaxed);
            left &= left - 1;
        }
    }

    /// The first frame of the word of 64 whose frames, all of them, are the uppermost single frames,
    /// in whatever sequence.
    #[inline]
    pub(crate) fn whole_word_on_top(&self) -> Option<u32> {
        let slots = self.page_slots()[self.word().room() as usize..].get(..64)?;
        let top = slots[0].load(Relaxed);
        if (slots[63].load(Relaxed) ^ top) >= 64 {
            return None; // so it is with most stacks of scattered frames
        }
        let (mut others, mut frames) = (0, 0_u64);
        for slots in slots.as_chunks::<8>().0 {
            for slot in slots {
                let frame = slot.load(Relaxed);
                others |= frame ^ top;
                frames |= 1 << (frame % 64);
            }
        }
        (others < 64 && frames == !0).then_some(top & !63)
    }

    /// Takes the uppermost `count` single frames off their stack, which has so many.
    #[inline]
    pub(crate) fn pop_frames(&self, count: u32) -> impl Iterator<Item = u32> + '_ {
        let word = self.word();
        let (room, after) = (word.room(), word.room() + count);
        let slots = &self.page_slots()[room as usize..after as usize];
        self.set_word(word.with_room(after));
        slots.iter().map(|slot| slot.load(Relaxed))
    }

    /// Takes the uppermost `count` single frames off their stack, which has so many; the caller has seen them.
    #[inline]
    pub(crate) fn drop_frames(&self, count: u32) {
        let word = self.word();
        self.set_word(word.with_room(word.room() + count));
    }

    /// How many single frames to take off the stack, `count` at least, so that the next to take as many
    /// finds a whole word on top if frames go on to be given one after the other, up or down, as the
    /// last two were. `count` if they were not, or are too few.
    pub(crate) fn until_whole_words(&self, count: u64) -> u64 {
        let (room, len) = (self.word().room() as usize, u64::from(self.len(StackId::PAGES)));
        if count <= u64::from(u64::BITS) / 2 || len <= count {
            return count;
        }
        let [last, before] = [0, 1].map(|at| self.page_slots()[room + at].load(Relaxed));
        let phase = match last.wrapping_sub(before) {
            1 => 63 - last % 64,
            u32::MAX => last % 64,
            _ => return count,
        };
        (count + u64::from(phase).wrapping_sub(count) % 64).min(len)
    }
}
