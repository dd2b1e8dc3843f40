//! Compares the buddy with a simple model made of sets, in random histories and in every state of small zones.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::{BTreeSet, HashSet};
use std::vec::Vec;

use crate::buddy::shape::BuddyShape;
use crate::buddy::verify::BuddyFault;
use crate::buddy::{Buddy, BuddyCounts};
use crate::machine::ZONE_FRAMES_MAX;
use crate::platform::cells::AllZero;
use crate::platform::lock::Held;
use crate::platform::{RawLock, SpinLock};
use crate::testing::{Native, Random, cells};
use crate::units::Order;

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// A textbook buddy: one set of free blocks per order.
#[derive(Clone)]
struct Naive {
    frames: u64,
    blocks: Vec<BTreeSet<u64>>,
}

impl Naive {
    fn new(frames: u64, max_order: u8) -> Self {
        Self { frames, blocks: (0..=max_order).map(|_| BTreeSet::new()).collect() }
    }

    fn give(&mut self, frame: u64, order: usize) {
        let buddy = frame ^ (1 << order);
        if order + 1 < self.blocks.len() && self.blocks[order].remove(&buddy) {
            self.give(frame.min(buddy), order + 1);
        } else {
            self.blocks[order].insert(frame);
        }
    }

    /// Splits `block` and adds all parts to the sets except the block of `order` at `frame`.
    fn split_block(&mut self, block: u64, mut from: usize, frame: u64, order: usize) {
        let mut start = block;
        assert!(self.blocks[from].remove(&start));
        while from > order {
            from -= 1;
            let upper = start + (1 << from);
            if frame >= upper {
                self.blocks[from].insert(start);
                start = upper;
            } else {
                self.blocks[from].insert(upper);
            }
        }
    }

    fn covering(&self, frame: u64) -> Option<(u64, usize)> {
        let at = |k: usize| (frame >> k << k, k);
        (0..self.blocks.len()).map(at).find(|&(start, k)| self.blocks[k].contains(&start))
    }

    fn smallest(&self, order: usize) -> Option<(u64, usize)> {
        (order..self.blocks.len()).find_map(|k| self.blocks[k].first().map(|&start| (start, k)))
    }

    fn take(&mut self, order: usize) -> Option<u64> {
        let (start, from) = self.smallest(order)?;
        self.split_block(start, from, start, order);
        Some(start)
    }

    fn is_free(&self, frame: u64) -> bool {
        self.covering(frame).is_some()
    }

    fn remove(&mut self, frame: u64) {
        let (start, from) = self.covering(frame).unwrap();
        self.split_block(start, from, frame, 0);
    }

    fn pages(&self) -> u64 {
        self.blocks.iter().enumerate().map(|(k, set)| (set.len() as u64) << k).sum()
    }

    /// Returns the word that the next bulk allocation uses, and its free frames.
    fn next_word(&self) -> Option<(u64, u64)> {
        let word = self.smallest(0)?.0 / 64 * 64;
        let free = (0..64).filter(|&bit| word + bit < self.frames && self.is_free(word + bit));
        Some((word, free.map(|bit| 1 << bit).sum()))
    }

    /// Returns `count` frames of `mask` at `word`. Frames in smaller blocks are chosen first, and lower frames first
    /// among equal blocks.
    fn choose(&self, word: u64, mask: u64, count: u32) -> u64 {
        let mut frames: Vec<u64> = (0..64).filter(|&bit| mask >> bit & 1 == 1).collect();
        frames.sort_by_key(|&bit| (self.covering(word + bit).unwrap().1, bit));
        frames.iter().take(count as usize).map(|&bit| 1 << bit).sum()
    }
}

struct Zone {
    shape: BuddyShape,
    counts: BuddyCounts<Native>,
    cells: Vec<AtomicU64>,
    lock: SpinLock,
}

impl Zone {
    fn new(frames: u64, max_order: u8) -> Self {
        let shape = BuddyShape::new(frames, order(max_order));
        Self { counts: BuddyCounts::all_zero(), cells: cells(shape.cells()), shape, lock: SpinLock::new() }
    }

    fn buddy(&self) -> Buddy<'_, Native> {
        Buddy::new(&self.counts, &self.cells, &self.shape)
    }
}

/// A zone and its model, to which the same operations are applied.
struct Pair {
    zone: Zone,
    naive: Naive,
    /// Allocated blocks: first frame and order.
    taken: Vec<(u64, u8)>,
    random: Random,
    max_order: u8,
}

impl Pair {
    fn new(frames: u64, max_order: u8, seed: u64) -> Self {
        let (zone, naive) = (Zone::new(frames, max_order), Naive::new(frames, max_order));
        Self { zone, naive, taken: Vec::new(), random: Random::new(seed), max_order }
    }

    fn frames(&self) -> u64 {
        self.naive.frames
    }

    fn a_frame(&mut self) -> u64 {
        self.random.below(self.naive.frames)
    }

    /// Returns a random range, which may be short, long or aligned.
    fn a_range(&mut self) -> (u64, u64) {
        let start = self.a_frame();
        let bits = self.random.below(1 + u64::from(self.frames().ilog2()));
        let start = if self.random.below(2) == 0 { start } else { start >> bits << bits };
        (start, (1 + self.random.below(1 << bits)).min(self.frames() - start))
    }

    fn add_range(&mut self, start: u64, count: u64) {
        let held = Held::wait(&self.zone.lock);
        let clear = (start..start + count).all(|frame| !self.naive.is_free(frame));
        assert_eq!(self.zone.buddy().add_range(&held, start as u32, count), clear);
        if clear {
            (start..start + count).for_each(|frame| self.naive.give(frame, 0));
        }
    }

    fn take(&mut self) {
        let order_wanted = self.random.below(u64::from(self.max_order) + 1) as u8;
        let held = Held::wait(&self.zone.lock);
        assert_eq!(
            self.zone.counts.has_block(order(order_wanted)),
            self.naive.smallest(order_wanted.into()).is_some()
        );
        let frame = self.zone.buddy().alloc(&held, order(order_wanted)).map(u64::from);
        assert_eq!(frame, self.naive.take(order_wanted.into()));
        self.taken.extend(frame.map(|frame| (frame, order_wanted)));
    }

    fn give(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let at = self.random.below(self.taken.len() as u64) as usize;
        let (frame, block_order) = self.taken.swap_remove(at);
        let held = Held::wait(&self.zone.lock);
        assert!(self.zone.buddy().free(&held, frame as u32, order(block_order)));
        assert!(!self.zone.buddy().free(&held, frame as u32, order(block_order)), "given twice");
        self.naive.give(frame, block_order.into());
    }

    /// Attempts to free a random block that overlaps free frames or the end of the zone, which must fail.
    fn give_anything(&mut self) {
        let block_order = self.random.below(u64::from(self.max_order) + 1) as u8;
        let frame = self.a_frame() >> block_order << block_order;
        let end = frame + (1 << block_order);
        let clear = end <= self.frames() && (frame..end).all(|frame| !self.naive.is_free(frame));
        if !clear {
            let held = Held::wait(&self.zone.lock);
            assert!(!self.zone.buddy().free(&held, frame as u32, order(block_order)));
        }
    }

    fn take_pages(&mut self) {
        let (want, more) = (1 + self.random.below(200) as u32, self.random.below(70) as u32);
        let most = (want + more).saturating_sub(20).max(1);
        let mut words = Vec::new();
        let held = Held::wait(&self.zone.lock);
        let taken = self.zone.buddy().take_pages(&held, want, most, &mut |first, mask| {
            words.push((u64::from(first), mask));
        });
        drop(held);
        let mut expected = 0;
        let mut left = words.iter();
        while expected < want.min(most) {
            let Some((word, mask)) = self.naive.next_word() else { break };
            let mut next = (word, self.naive.choose(word, mask, most - expected));
            if mask == !0 {
                // If the word is entirely free, the buddy may use a word of the active block instead.
                let &(word, _) = left.clone().next().unwrap();
                assert!((0..64).all(|bit| self.naive.is_free(word + bit)), "{word} is not whole");
                next.0 = word;
            }
            assert_eq!(left.next(), Some(&next));
            let (word, mask) = next;
            for frame in (0..64).filter(|bit| mask >> bit & 1 == 1).map(|bit| word + bit) {
                self.naive.remove(frame);
                self.taken.push((frame, 0));
            }
            expected += mask.count_ones();
        }
        assert_eq!((taken, left.next()), (expected, None));
    }

    /// Frees some or all allocated single frames of one word.
    fn merge_word(&mut self) {
        let Some(&(frame, _)) = self.taken.iter().find(|block| block.1 == 0) else { return };
        let (word, some) = (frame / 64 * 64, self.random.bits() | self.random.bits());
        let given = |&(frame, order): &(u64, u8)| {
            order == 0 && frame / 64 * 64 == word && some >> (frame % 64) & 1 == 1
        };
        let mask = self.taken.iter().filter(|block| given(block)).map(|block| 1 << (block.0 % 64)).sum();
        self.taken.retain(|block| !given(block));
        let held = Held::wait(&self.zone.lock);
        let buddy = self.zone.buddy();
        assert!(buddy.merge_word(&held, word as u32, mask));
        assert!(mask == 0 || !buddy.merge_word(&held, word as u32, mask), "given twice");
        (0..64).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| self.naive.give(word + bit, 0));
    }

    fn look(&mut self) {
        let (start, count) = self.a_range();
        let held = Held::wait(&self.zone.lock);
        let free = (start..start + count).filter(|&frame| self.naive.is_free(frame)).count() as u64;
        assert_eq!(self.zone.buddy().count_free(&held, start as u32, count), free);
        for k in 0..=self.max_order {
            let block = start >> k << k;
            let free = self.naive.covering(block).is_some_and(|(_, from)| from >= k.into());
            let within = (1 << k).min(self.frames() - block);
            let all = self.zone.buddy().count_free(&held, block as u32, within) == 1 << k;
            assert_eq!(all, free, "{block} order {k}");
        }
    }

    fn take_range(&mut self) {
        let (start, count) = self.a_range();
        let held = Held::wait(&self.zone.lock);
        let free = (start..start + count).all(|frame| self.naive.is_free(frame));
        assert_eq!(self.zone.buddy().take_range(&held, start as u32, count), free);
        drop(held);
        if free {
            (start..start + count).for_each(|frame| self.naive.remove(frame));
            self.check();
            self.add_range(start, count);
        }
    }

    fn check(&self) {
        let held = Held::wait(&self.zone.lock);
        let buddy = self.zone.buddy();
        assert_eq!(buddy.verify(&held), Ok(()));
        assert_eq!(buddy.pages(), self.naive.pages());
        for (k, set) in (0..).zip(&self.naive.blocks) {
            assert_eq!(self.zone.counts.free_blocks[k].load(Relaxed), set.len() as u64, "order {k}");
        }
    }

    /// Checks that the model's free blocks are free in the zone. Because the counts are equal, the zone has no
    /// others.
    fn check_blocks(&self) {
        let held = Held::wait(&self.zone.lock);
        for (k, set) in self.naive.blocks.iter().enumerate() {
            let is_free = |&frame: &u64| self.zone.buddy().count_free(&held, frame as u32, 1 << k) == 1 << k;
            assert!(set.iter().all(is_free), "order {k}");
        }
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0..=3 => self.take(),
            4..=7 => self.give(),
            8..=9 => self.take_pages(),
            10..=12 => self.merge_word(),
            13 => self.take_range(),
            14 => self.give_anything(),
            _ => self.look(),
        }
    }
}

fn run_history(frames: u64, max_order: u8, seed: u64, steps: u32) {
    let mut pair = Pair::new(frames, max_order, seed);
    // The memory has holes at odd positions, and both long and short pieces.
    let hole = (frames / 3) | 1;
    pair.add_range(0, hole);
    pair.add_range(hole + frames / 50 + 1, frames - hole - frames / 50 - 1);
    pair.add_range(hole, 1);
    let (start, count) = pair.a_range();
    pair.add_range(start, count);
    pair.check();
    for step in 0..steps {
        pair.step();
        // The full check runs only after some steps, because it settles the active block.
        if pair.random.below(4) == 0 {
            pair.check();
        }
        if step % 64 == 0 {
            pair.check_blocks();
        }
    }
    while !pair.taken.is_empty() {
        pair.give();
    }
    pair.check();
    pair.check_blocks();
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn histories_of_small_zones() {
    for seed in 0..4 {
        for (frames, max_order) in [(16, 4), (16, 10), (64, 6), (64, 10), (63, 3), (100, 5), (1000, 7)] {
            run_history(frames, max_order, seed, 1500);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn histories_of_middle_zones() {
    for max_order in [9, 10, 12, 13, 14, 18] {
        run_history(4096, max_order, 5, 700);
        run_history(3 * 4096 + 77, max_order, 6, 700);
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn histories_of_large_zones() {
    for max_order in [10, 12, 14, 18] {
        run_history(1 << 18, max_order, 8, 60);
    }
    run_history((1 << 19) + 4096 + 65, 18, 9, 60);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn bulk_allocations_split_the_largest_blocks() {
    for (max_order, seed) in [10, 12, 13, 14, 18].into_iter().flat_map(|order| [(order, 1), (order, 2)]) {
        let mut pair = Pair::new(1 << 18, max_order, seed);
        pair.add_range(0, 1 << 18);
        for round in 0..40 {
            pair.take_pages();
            pair.merge_word();
            if round % 10 == 0 {
                pair.check();
            }
        }
        while !pair.taken.is_empty() {
            pair.merge_word();
        }
        pair.check();
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn every_state_of_a_16_frame_zone() {
    let zone = Zone::new(16, 4);
    let held = Held::wait(&zone.lock);
    let buddy = zone.buddy();
    let counts = [&zone.counts.orders, &zone.counts.free_pages].into_iter().chain(&zone.counts.free_blocks);
    let all = || zone.cells.iter().chain(counts.clone());
    let load = |state: &[u64]| all().zip(state).for_each(|(cell, &value)| cell.store(value, Relaxed));
    let save = || all().map(|cell| cell.load(Relaxed)).collect::<Vec<u64>>();
    assert!(buddy.add_range(&held, 0, 16));
    // The state of the allocated blocks has 5 bits per frame: order + 1 of the block that begins at the frame, or 0
    // for none.
    let (start, word_at) = (save(), zone.shape.words_at);
    let (mut seen, mut todo) = (HashSet::from([0_u128]), Vec::from([(0_u128, start)]));
    while let Some((taken, cells)) = todo.pop() {
        let free = cells[word_at] as u16;
        let mut context = |taken: u128| {
            if seen.insert(taken) {
                assert_eq!(buddy.verify(&held), Ok(()));
                todo.push((taken, save()));
            }
        };
        for k in 0..=4_u8 {
            load(&cells);
            let expected = lowest_best_fit(free, k);
            assert_eq!(buddy.alloc(&held, order(k)), expected, "order {k} of {free:#b}");
            expected.iter().for_each(|frame| context(taken | u128::from(k + 1) << (frame * 5)));
        }
        for frame in 0..16 {
            let block = (taken >> (frame * 5) & 31) as u8;
            if block > 0 {
                load(&cells);
                assert!(buddy.free(&held, frame, order(block - 1)));
                let now_free = zone.cells[word_at].load(Relaxed) as u16;
                let freed = ((1_u32 << (1 << (block - 1))) - 1) << frame;
                assert_eq!(u32::from(now_free), u32::from(free) | freed);
                context(taken & !(31 << (frame * 5)));
            }
        }
    }
    // A frame has s(0) = 2 states: allocated or free. A block of order k is allocated as a whole or has two halves in
    // any state, so it has s(k) = 1 + s(k - 1)^2 states.
    assert_eq!(seen.len(), 1 + 677 * 677);
}

/// Returns the frame at which a block of order `k` must be allocated if `free` are the free frames among 16. It follows
/// the definition literally.
fn lowest_best_fit(free: u16, k: u8) -> Option<u32> {
    let is_run = |start: u32, order: u8| {
        let mask = (((1_u32 << (1 << order)) - 1) << start) as u16;
        free & mask == mask
    };
    (k..=4).find_map(|order| {
        (0..16).step_by(1 << order).find(|&start| {
            let parent = start >> (order + 1) << (order + 1);
            is_run(start, order) && (order == 4 || !is_run(parent, order + 1))
        })
    })
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn a_terabyte_costs_no_writes_at_level_0() {
    for max_order in [10, 12, 18] {
        let zone = Zone::new(1 << 28, max_order);
        let held = Held::wait(&zone.lock);
        assert!(zone.buddy().add_range(&held, 0, 1 << 28));
        let lines_and_words = &zone.cells[zone.shape.lines_at..];
        assert!(lines_and_words.iter().all(|cell| cell.load(Relaxed) == 0));
        assert_eq!(zone.counts.free_blocks[usize::from(max_order)].load(Relaxed), 1 << (28 - max_order));
        assert_eq!(zone.buddy().pages(), 1 << 28);
        assert_eq!(zone.buddy().verify(&held), Ok(()));
    }
}

#[test]
fn the_largest_zone_reaches_its_last_frame() {
    // There are too many cells to fill in a test, so check only the last words of the layout and their positions.
    let last = (ZONE_FRAMES_MAX - 1) as u32;
    let shape = BuddyShape::new(ZONE_FRAMES_MAX, order(18));
    assert!(shape.has_block(last, order(0)) && !shape.has_block(last, order(1)));
    assert!(shape.has_block(last - (1 << 18) + 1, order(18)));
    assert_eq!(shape.words(0) as u64, ZONE_FRAMES_MAX / 64);
    assert_eq!(shape.stretches(0, ZONE_FRAMES_MAX).count() as u64, ZONE_FRAMES_MAX >> 18);
}

#[test]
fn refusals_change_nothing() {
    let mut pair = Pair::new(200, 10, 1);
    pair.add_range(0, 150);
    let held = Held::wait(&pair.zone.lock);
    let buddy = pair.zone.buddy();
    assert!(!buddy.free(&held, 149, order(0)), "free already");
    assert!(!buddy.free(&held, 151, order(1)), "misaligned");
    assert!(!buddy.free(&held, 192, order(4)), "beyond the span");
    assert!(!buddy.free(&held, 128, order(6)), "half free, half beyond");
    assert!(!buddy.merge_word(&held, 192, 1 << 8), "beyond the span");
    assert!(!buddy.merge_word(&held, 64, 1), "free as part of a larger block");
    assert!(!buddy.merge_word(&held, 65, 1), "no word begins there");
    assert!(!buddy.add_range(&held, 149, 2));
    assert!(!buddy.take_range(&held, 149, 2));
    assert_eq!(buddy.alloc(&held, order(11)), None);
    drop(held);
    pair.check();
    pair.check_blocks();
}

#[test]
fn verify_finds_each_kind_of_fault() {
    let fault = |damage: &dyn Fn(&Zone)| {
        let zone = Zone::new(3 * 4096 + 32, 14);
        let held = Held::wait(&zone.lock);
        assert!(zone.buddy().add_range(&held, 1, 3 * 4096));
        assert_eq!(zone.buddy().verify(&held), Ok(()));
        damage(&zone);
        zone.buddy().verify(&held)
    };
    let word = |zone: &Zone, level: usize, word: usize, value: u64| {
        zone.buddy().word(level, word).store(value, Relaxed);
    };
    assert_eq!(fault(&|zone| word(zone, 0, 0, !0)), Err(BuddyFault::Unmerged));
    assert_eq!(fault(&|zone| word(zone, 0, 70, 1)), Err(BuddyFault::FreeTwice));
    assert_eq!(fault(&|zone| word(zone, 0, 192, 1 << 40)), Err(BuddyFault::BeyondEnd));
    let line = fault(&|zone| zone.buddy().line(0, 3).store(0, Relaxed));
    assert_eq!(line, Err(BuddyFault::Index));
    assert_eq!(fault(&|zone| zone.buddy().index(6).clear(0)), Err(BuddyFault::Index));
    let kept = fault(&|zone| zone.buddy().add_free_pages(1));
    assert_eq!(kept, Err(BuddyFault::FreePages));
    let kept = fault(&|zone| _ = zone.counts.free_blocks[3].fetch_add(1, Relaxed));
    assert_eq!(kept, Err(BuddyFault::FreeBlocks));
    let line = fault(&|zone| zone.buddy().line(1, 4).store(2, Relaxed));
    assert_eq!(line, Err(BuddyFault::IndexSummary));
    let summary = fault(&|zone| zone.buddy().index(0).clear(0));
    assert_eq!(summary, Err(BuddyFault::IndexSummary));
    let heads = fault(&|zone| zone.buddy().index(12).set(0));
    assert_eq!(heads, Err(BuddyFault::Index));
    assert!(matches!(fault(&|zone| zone.counts.orders.store(0, Relaxed)), Err(BuddyFault::Orders)));
}
