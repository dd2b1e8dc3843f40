//! What the buddy's operations cost, printed; asserts nothing about time. Run with
//! `cargo test --release -p zonal buddy_timing -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;
use std::vec::Vec;
use std::{eprintln, format};

use crate::buddy::Buddy;
use crate::buddy_shape::BuddyShape;
use crate::lock::Held;
use crate::platform::{RawLock, SpinLock};
use crate::testing::{Random, TestPlatform, cells};
use crate::units::Order;

const FRAMES: u64 = 1 << 20;

struct Bench<'a> {
    buddy: Buddy<'a, TestPlatform>,
    held: &'a Held<'a, SpinLock>,
    random: Random,
}

fn report(what: &str, count: usize, run: impl FnOnce()) {
    let start = Instant::now();
    run();
    eprintln!("{what:<44} {:8.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}

impl Bench<'_> {
    fn take_words(&self, count: usize, want: u32) -> Vec<(u32, u64)> {
        let mut words = Vec::with_capacity(2 * count);
        for _ in 0..count {
            self.buddy.take_pages(self.held, want, 127, &mut |first, mask| words.push((first, mask)));
        }
        words
    }

    fn give_words(&self, words: &[(u32, u64)]) {
        for &(first, mask) in words {
            assert!(self.buddy.give_word(self.held, first, mask));
        }
    }

    fn bulk(&mut self) {
        let count = FRAMES as usize / 64;
        let mut words = Vec::new();
        report("take_pages(64), all of a fresh zone", count, || words = self.take_words(count, 64));
        report("give_word, whole words ascending", count, || self.give_words(&words));
        let mut words = self.take_words(count, 64);
        shuffle(&mut self.random, &mut words);
        report("give_word, whole words at random", count, || self.give_words(&words));
        report("take_pages(64) + give_word, the same word", 1_000_000, || {
            for _ in 0..1_000_000 {
                let mut word = (0, 0);
                self.buddy.take_pages(self.held, 64, 64, &mut |first, mask| word = (first, mask));
                assert!(self.buddy.give_word(self.held, word.0, word.1));
            }
        });
    }

    /// Every word half handed out, at random.
    fn fragmented(&mut self) {
        let words = self.take_words(FRAMES as usize / 64, 64);
        let halves: Vec<_> = words.iter().map(|&(first, mask)| (first, mask & self.random.bits())).collect();
        report("give_word, random half of each taken word", halves.len(), || self.give_words(&halves));
        let mut again = Vec::new();
        let count = halves.len() / 8;
        report("take_pages(31..), one word of a scattered zone", count, || {
            again = self.take_words(count, 16);
        });
        shuffle(&mut self.random, &mut again);
        report("give_word, the same at random", again.len(), || self.give_words(&again));
        let mut rest: Vec<_> = words.iter().zip(&halves).map(|(w, h)| (w.0, w.1 & !h.1)).collect();
        shuffle(&mut self.random, &mut rest);
        report("give_word, the other halves (merges)", rest.len(), || self.give_words(&rest));
    }

    fn blocks(&mut self, order: u8) {
        let (order, count) = (Order::new(order).unwrap(), (FRAMES >> order) as usize / 2);
        report(&format!("take({order}) + give({order}), the same block"), 1_000_000, || {
            for _ in 0..1_000_000 {
                let frame = self.buddy.take(self.held, order).unwrap();
                assert!(self.buddy.give(self.held, black_box(frame), order));
            }
        });
        let mut blocks = Vec::with_capacity(count);
        report(&format!("take({order}), half a fresh zone"), count, || {
            blocks.extend((0..count).filter_map(|_| self.buddy.take(self.held, order)));
        });
        shuffle(&mut self.random, &mut blocks);
        report(&format!("give({order}), the same at random"), count, || {
            blocks.iter().for_each(|&frame| assert!(self.buddy.give(self.held, frame, order)));
        });
    }
}

#[test]
#[ignore = "prints times"]
fn prints_times() {
    let lock = SpinLock::new();
    let held = Held::wait(&lock);
    for frames in [FRAMES, 1 << 28] {
        let shape = BuddyShape::new(frames, Order::DEFAULT_MAX);
        let cells = cells(shape.cells());
        for part in ["start-up, cold", "start-up again"] {
            let buddy = Buddy::<TestPlatform>::new(&cells, &shape);
            report(&format!("{part}, {frames} frames"), 1, || assert!(buddy.add_range(&held, 0, frames)));
            assert!(buddy.take_range(&held, 0, frames));
        }
    }
    let shape = BuddyShape::new(FRAMES, Order::DEFAULT_MAX);
    let cells = cells(shape.cells());
    let buddy = Buddy::new(&cells, &shape);
    let mut bench = Bench { buddy, held: &held, random: Random::new(3) };
    assert!(buddy.add_range(&held, 0, FRAMES));
    bench.bulk();
    bench.fragmented();
    [0, 3, 6, 9, 10].into_iter().for_each(|order| bench.blocks(order));
    assert_eq!(buddy.verify(&held), Ok(()));
}
