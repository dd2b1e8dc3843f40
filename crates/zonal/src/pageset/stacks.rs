//! Operations that pop or push many single frames at once.
//!
//! A *word* of frames is 64 consecutive frames, the first of which has a number divisible by 64. Moving a
//! whole word costs only a few instructions per frame and needs no split or merge in the buddy. Related files:
//! `pageset/guard.rs` pops and pushes one block, and `pageset/refill.rs` and `pageset/drain.rs` move words.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::{PagesetGuard, StackId};
use crate::platform::whole_words::Direction;
use crate::platform::{Atomic, Platform};

// Every access is relaxed, because the lock that the guard represents orders the accesses.
impl<P: Platform> PagesetGuard<'_, P> {
    /// Pushes the frames of the word at `first` whose bits in `frames` are set, with the lowest frame on top.
    ///
    /// The stack must have enough free slots.
    #[inline]
    pub(crate) fn put_word(&self, first: u32, frames: u64) {
        let word = self.word();
        let free_slots = word.free_slots() - frames.count_ones();
        let slots = &self.page_slots()[free_slots as usize..word.free_slots() as usize];
        self.set_word(word.with_free_slots(free_slots));
        // Most words are whole.
        if frames == !0
            && let Some(slots) = slots.first_chunk()
        {
            return P::store_ascending(slots, first);
        }
        let mut left = frames;
        for slot in slots {
            slot.store(first + left.trailing_zeros(), Relaxed);
            left &= left - 1;
        }
    }

    /// Returns a word's first frame if the top 64 entries of the stack are that word's frames, in any order.
    #[inline]
    pub(crate) fn whole_word_on_top(&self) -> Option<u32> {
        let slots = self.page_slots()[self.word().free_slots() as usize..].first_chunk()?;
        let (top, last) = (slots[0].load(Relaxed), slots[63].load(Relaxed));
        if (last ^ top) >= 64 {
            return None; // This is the usual case for scattered frames.
        }
        // The frames were usually freed in ascending or descending order.
        let direction = if top < last { Direction::Ascending } else { Direction::Descending };
        if (last ^ top) == 63 && P::holds_run(slots, direction) {
            return Some(top & !63);
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

    /// Pops the top `count` single frames from their stack, which must hold at least `count` frames.
    #[inline]
    pub(crate) fn take_frames(&self, count: u32) -> impl Iterator<Item = u32> + '_ {
        let word = self.word();
        let (free_slots, after) = (word.free_slots(), word.free_slots() + count);
        let slots = &self.page_slots()[free_slots as usize..after as usize];
        self.set_word(word.with_free_slots(after));
        slots.iter().map(|slot| slot.load(Relaxed))
    }

    /// Returns how many single frames, at least `count`, to drain so that later drains find whole words.
    ///
    /// If the last two frames pushed are consecutive, later frees probably continue in the same direction. With the
    /// returned number, the next drain of the same size then finds a whole word on top. Returns `count` if the last two
    /// frames are not consecutive, `count` is at most 32, or the stack holds no more than `count` frames.
    pub(super) fn until_whole_words(&self, count: u64) -> u64 {
        let (free_slots, len) = (self.word().free_slots() as usize, u64::from(self.len(StackId::PAGES)));
        if count <= u64::from(u64::BITS) / 2 || len <= count {
            return count;
        }
        let [last, before] = [0, 1].map(|at| self.page_slots()[free_slots + at].load(Relaxed));
        let phase = match last.wrapping_sub(before) {
            1 => 63 - last % 64,
            u32::MAX => last % 64,
            _ => return count,
        };
        (count + u64::from(phase).wrapping_sub(count) % 64).min(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pageset::{Pageset, StackShape};
    use crate::platform::cells::AllZero;
    use crate::testing::Native;
    use core::sync::atomic::AtomicU32;
    use std::vec::Vec;

    /// Runs `work` on an empty pageset for 256 single frames.
    fn with_pageset<R>(work: impl FnOnce(&PagesetGuard<'_, Native>) -> R) -> R {
        let pageset = Pageset::<Native>::all_zero();
        let shape = {
            let mut depths = [0; crate::pageset::STACKS];
            depths[0] = 256;
            StackShape::new(depths)
        };
        let slots: Vec<AtomicU32> = (0..shape.slots()).map(|_| AtomicU32::new(0)).collect();
        work(&PagesetGuard::new(&pageset, (&slots, &shape)))
    }

    fn stack_of(guard: &PagesetGuard<'_, Native>) -> Vec<u32> {
        guard.blocks(StackId::PAGES).collect()
    }

    fn give(guard: &PagesetGuard<'_, Native>, frames: impl Iterator<Item = u32>) {
        frames.for_each(|frame| guard.push(StackId::PAGES, crate::units::Order::PAGE, frame));
    }

    #[test]
    fn words_are_pushed_with_the_lowest_frame_on_top() {
        with_pageset(|guard| {
            guard.put_word(128, !0);
            guard.put_word(64, 0b1101);
            let expected: Vec<u32> = [64, 66, 67].into_iter().chain(128..192).collect();
            assert_eq!(stack_of(guard), expected);
        });
    }

    #[test]
    fn whole_words_are_known_in_any_sequence() {
        let word_on_top = |frames: &[u32]| {
            with_pageset(|guard| {
                give(guard, [1, 2, 3].into_iter().chain(frames.iter().copied()));
                guard.whole_word_on_top()
            })
        };
        let mut frames: Vec<u32> = (640..704).collect();
        assert_eq!(word_on_top(&frames), Some(640));
        frames.reverse();
        assert_eq!(word_on_top(&frames), Some(640));
        frames.swap(3, 40);
        assert_eq!(word_on_top(&frames), Some(640));
        frames[40] = 704; // a frame of the next word
        assert_eq!(word_on_top(&frames), None);
        frames[40] = 650; // a frame that is on the stack twice
        assert_eq!(word_on_top(&frames), None);
        assert_eq!(word_on_top(&frames[..40]), None);
    }

    /// Pushes `frames` onto a pageset that drains at 200 frames; returns the number of drains before the first whole
    /// word on top.
    fn first_whole_drain(frames: impl Iterator<Item = u32>) -> Option<usize> {
        with_pageset(|guard| {
            let mut drains = 0;
            for frame in frames {
                give(guard, core::iter::once(frame));
                if guard.len(StackId::PAGES) == 200 {
                    if guard.whole_word_on_top().is_some() {
                        return Some(drains);
                    }
                    let count = guard.until_whole_words(63);
                    assert!((63..63 + 64).contains(&count), "{count}");
                    _ = guard.take_frames(count as u32);
                    drains += 1;
                }
            }
            None
        })
    }

    #[test]
    fn drains_fall_into_step_with_whole_words() {
        for start in 10_000..10_064 {
            for found in [first_whole_drain(start..), first_whole_drain((0..start).rev())] {
                assert!(found.is_some_and(|drains| drains <= 2), "{start}: {found:?}");
            }
        }
        let scattered = (0..4000).map(|at| at * 97 % 4001);
        assert_eq!(first_whole_drain(scattered), None);
    }

    #[test]
    fn rounding_leaves_small_and_large_counts_alone() {
        with_pageset(|guard| {
            give(guard, 1000..1100);
            assert_eq!([15, 32, 100, 500].map(|count| guard.until_whole_words(count)), [15, 32, 100, 500]);
            assert_eq!(guard.until_whole_words(90), 100, "all that is there");
        });
    }
}
