//! Tests that compare free areas with a list of free frames, over random operations on zones with several areas.
//!
//! The test platform's locks count how many of them a thread holds. A thread must never hold two locks, and must
//! hold one whenever it moves frames.

use core::cell::Cell;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::boxed::Box;
use std::vec::Vec;

use crate::buddy::word_batch::{BATCH_MAX, WordBatch};
use crate::config::Config;
use crate::machine::ZONE_FRAMES_MAX;
use crate::platform::cells::AllZero;
use crate::platform::cpu_local::TryLock;
use crate::platform::{Platform, RawLock, SpinLock};
use crate::testing::{Random, cells};
use crate::units::{CpuId, Moment, Order, PageCount};
use crate::zone::free_areas::{FreeAreaCells, FreeAreas, FreeAreasShape};
use crate::zone::processes::Holders;
use crate::zone::runs::Run;

std::thread_local! {
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A lock that checks that its holder holds no other lock.
struct Alone(SpinLock);

impl RawLock for Alone {
    fn new() -> Self {
        Self(SpinLock::new())
    }

    fn lock(&self) {
        assert_eq!(HELD.replace(1), 0, "two locks at once");
        self.0.lock();
    }

    fn try_lock(&self) -> bool {
        unreachable!("free areas wait for their locks");
    }

    fn unlock(&self) {
        assert_eq!(HELD.replace(0), 1);
        self.0.unlock();
    }
}

struct Watched;

impl Platform for Watched {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = Alone;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::default()
    }
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn shape(frames: u64, max_order: u8, cpus: usize) -> FreeAreasShape {
    shape_with(frames, max_order, cpus, 0)
}

fn shape_with(frames: u64, max_order: u8, cpus: usize, frames_min: u64) -> FreeAreasShape {
    let free_area_min = PageCount::new(frames_min);
    let config = Config { max_order: order(max_order), free_area_min, ..Config::default() };
    FreeAreasShape::new(frames, cpus, &config)
}

/// Creates free areas with their own metadata, which is leaked because tests are short.
fn areas(shape: FreeAreasShape) -> FreeAreas<'static, Watched> {
    let shape = Box::leak(Box::new(shape));
    let heads: Vec<FreeAreaCells<Watched>> = (0..shape.count).map(|_| FreeAreaCells::all_zero()).collect();
    FreeAreas::new(Vec::leak(heads), Vec::leak(cells(shape.cells())), shape, Holders::new(&[], &[], 0))
}

/// Free areas, and a record for each frame of whether it is free.
struct Pair {
    areas: FreeAreas<'static, Watched>,
    free: Vec<bool>,
    taken: Vec<(u32, u8)>,
    max_order: u8,
    random: Random,
}

impl Pair {
    fn new(frames: u64, max_order: u8, cpus: usize, seed: u64) -> Self {
        let shape = shape(frames, max_order, cpus);
        let pair = Self {
            areas: areas(shape),
            free: std::vec![false; frames as usize],
            taken: Vec::new(),
            max_order,
            random: Random::new(seed),
        };
        assert!(shape.count > 1, "several regions are the point");
        pair
    }

    fn set(&mut self, first: u32, count: u64, free: bool) {
        for frame in &mut self.free[first as usize..][..count as usize] {
            assert_ne!(*frame, free);
            *frame = free;
        }
    }

    fn is_free(&self, first: u32, count: u64) -> bool {
        self.free[first as usize..][..count as usize].iter().all(|&free| free)
    }

    /// Returns the maximal free blocks of each order.
    fn blocks(&self) -> Vec<u64> {
        let mut counts = std::vec![0; usize::from(self.max_order) + 1];
        let mut at = 0;
        while at < self.free.len() {
            let is_block = |k: &u8| {
                let end = at + (1 << k);
                at.is_multiple_of(1 << k)
                    && end <= self.free.len()
                    && self.free[at..end].iter().all(|&free| free)
            };
            let largest = (0..=self.max_order).rev().find(is_block);
            largest.iter().for_each(|&k| counts[usize::from(k)] += 1);
            at += 1 << largest.unwrap_or(0);
        }
        counts
    }

    fn preferred(&mut self) -> usize {
        let rank = self.random.index(7);
        self.areas.preferred_area(rank, 7)
    }

    fn alloc(&mut self) {
        let wanted = order(self.random.below(u64::from(self.max_order) + 1) as u8);
        let preferred = self.preferred();
        let some = self.blocks()[usize::from(wanted.get())..].iter().any(|&count| count > 0);
        assert_eq!(self.areas.has_block(wanted, preferred), some);
        let mut left = 0;
        let taken = self.areas.alloc(wanted, preferred, || {
            assert_eq!(HELD.get(), 1);
            left += 1;
        });
        assert_eq!((taken.is_some(), left), (some, u32::from(some)));
        if let Some(frame) = taken {
            self.note_taken(frame, wanted.get());
        }
    }

    fn note_taken(&mut self, frame: u32, k: u8) {
        assert!(frame.is_multiple_of(1 << k));
        self.set(frame, 1 << k, false);
        self.taken.push((frame, k));
    }

    fn take_blocks(&mut self) {
        let wanted = order(self.random.below(5) as u8);
        let (preferred, want) = (self.preferred(), 1 + self.random.below(40) as u32);
        let mut found = Vec::new();
        let mut left = 0;
        let came = self.areas.take_blocks(
            wanted,
            preferred,
            want,
            &mut |frame| {
                assert_eq!(HELD.get(), 1);
                found.push(frame);
            },
            &mut |count| {
                assert_eq!(HELD.get(), 1);
                left += count;
            },
        );
        found.iter().for_each(|&frame| self.note_taken(frame, wanted.get()));
        assert_eq!((found.len(), left), (came as usize, came));
        let more = self.blocks()[usize::from(wanted.get())..].iter().any(|&count| count > 0);
        assert!(came == want || (came < want && !more));
    }

    fn take_pages(&mut self) {
        let (preferred, want) = (self.preferred(), 1 + self.random.below(BATCH_MAX as u64) as u32);
        let most = (want + self.random.below(70) as u32).saturating_sub(6).max(1);
        let mut found = Vec::new();
        let mut left = 0;
        let mut leaving = |count| {
            assert_eq!(HELD.get(), 1);
            left += count;
        };
        let came = self.areas.take_pages(
            preferred,
            want..=most,
            &mut |first, frames| found.push((first, frames)),
            &mut leaving,
        );
        assert_eq!(came, left);
        for (first, frames) in found {
            assert!(first.is_multiple_of(64));
            bits(frames).for_each(|bit| self.note_taken(first + bit, 0));
        }
        assert!(came <= most && (came >= want.min(most) || !self.free.contains(&true)));
    }

    fn give(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let at = self.random.index(self.taken.len());
        let (frame, k) = self.taken.swap_remove(at);
        self.set(frame, 1 << k, true);
        assert!(self.areas.free(frame, order(k), |_| {}));
        assert!(!self.areas.free(frame, order(k), |_| {}), "freed twice");
    }

    /// Frees some blocks of one order in any areas, and frees the first of these blocks twice.
    fn merge_blocks_back(&mut self) {
        let k = self.random.below(4) as u8;
        let given: Vec<u32> =
            self.taken.iter().filter(|block| block.1 == k).map(|block| block.0).take(20).collect();
        self.taken.retain(|block| block.1 != k || !given.contains(&block.0));
        given.iter().for_each(|&frame| self.set(frame, 1 << k, true));
        let twice = given.iter().chain(given.first()).copied();
        assert_eq!(
            self.areas.merge_blocks_back(order(k), &twice.collect::<Vec<_>>()),
            u64::from(!given.is_empty())
        );
    }

    /// Frees single frames of any areas, then frees the same frames again; the second frees must all be refused.
    fn merge_batch(&mut self) {
        let mut batch = WordBatch::new();
        for _ in 0..self.random.below(BATCH_MAX as u64) {
            let Some(at) = self.taken.iter().rposition(|block| block.1 == 0) else { break };
            let at = if self.random.below(2) == 0 { at } else { self.random.index(at + 1) };
            if self.taken[at].1 == 0 {
                let (frame, _) = self.taken.swap_remove(at);
                assert_eq!(batch.add(core::iter::once(frame)), 0);
                self.set(frame, 1, true);
            }
        }
        assert_eq!(self.areas.merge_batch(batch.words()), 0);
        let again: u32 = batch.words().iter().map(|(_, frames)| frames.count_ones()).sum();
        assert_eq!(self.areas.merge_batch(batch.words()), u64::from(again), "freed twice");
    }

    /// Allocates a range if all its frames are free, then frees it if none of them is. The range may span areas.
    fn take_and_add_range(&mut self) {
        let frames = self.free.len();
        let start = self.random.index(frames);
        let bits = self.random.below(1 + u64::from(frames.ilog2()));
        let count = (1 + self.random.index(1 << bits)).min(frames - start);
        let expected = self.free[start..][..count].iter().filter(|&&free| free).count() as u64;
        assert_eq!(self.areas.count_free(start as u32, count as u64), expected);
        let all = self.is_free(start as u32, count as u64);
        let change = Cell::new(0);
        let left = |count| change.set(change.get() - count as i64);
        let freed = |_: &_, run: Run| change.set(change.get() + run.count as i64);
        assert_eq!(self.areas.take_steps(Run { first: start as u32, count: count as u64 }, left, freed), all);
        assert_eq!(change.get(), if all { -(count as i64) } else { 0 });
        if all {
            self.set(start as u32, count as u64, false);
        }
        if self.free[start..][..count].iter().all(|&free| !free) {
            self.taken.retain(|&(first, k)| {
                let apart = first as usize >= start + count || first as usize + (1 << k) <= start;
                apart || {
                    // A block that extends beyond the range is freed completely. This loop frees its frames outside the
                    // range one by one.
                    let (end, length) = (first as usize + (1 << k), 1 << k);
                    for frame in (first as usize..end).filter(|frame| !(start..start + count).contains(frame))
                    {
                        self.free[frame] = true;
                        assert!(self.areas.free(frame as u32, Order::PAGE, |_| {}), "{length}");
                    }
                    false
                }
            });
            self.set(start as u32, count as u64, true);
            assert!(self.areas.add_range(start as u32, count as u64));
        }
    }

    /// Searches for the lowest free range, and allocates the lowest block below a limit.
    fn search(&mut self) {
        let frames = self.free.len();
        let (from, end) = (self.random.index(frames) as u64, self.random.index(frames + 1) as u64);
        let k = self.random.below(1 + u64::from(self.max_order)) as u8;
        let most = if self.random.below(2) == 0 { 20 } else { 5000 };
        let count = 1 + self.random.below(most);
        let places = |from: u64, end: u64, count: u64, align: u64| {
            (from.next_multiple_of(align)..end).step_by(align as usize).filter(move |at| at + count <= end)
        };
        let lowest = places(from, end, count, 4).find(|&at| self.is_free(at as u32, count));
        assert_eq!(self.areas.find_range(from..end, count, order(2)).map(u64::from), lowest);
        let length = 1 << k;
        let lowest = places(0, end, length, length).find(|&at| self.is_free(at as u32, length));
        assert_eq!(
            self.areas.take_below(order(k), end, || ()).map(u64::from),
            lowest,
            "order {k} below {end}"
        );
        if let Some(first) = lowest {
            self.set(first as u32, length, false);
            self.taken.push((first as u32, k));
        }
    }

    fn check(&self) {
        assert_eq!(HELD.get(), 0);
        assert_eq!(self.areas.verify(), Ok(()));
        let free = self.free.iter().filter(|&&free| free).count() as u64;
        assert_eq!(self.areas.pages(), free);
        self.areas.settle();
        for (k, count) in (0..).zip(self.blocks()) {
            assert_eq!(self.areas.blocks(order(k)), count, "order {k}");
        }
    }

    fn step(&mut self) {
        match self.random.below(13) {
            0..=1 => self.alloc(),
            2..=3 => self.take_pages(),
            4 => self.take_blocks(),
            5..=7 => self.give(),
            8..=9 => self.merge_batch(),
            10 => self.merge_blocks_back(),
            11 => self.search(),
            _ => self.take_and_add_range(),
        }
    }
}

fn bits(frames: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |bit| frames >> bit & 1 == 1)
}

fn run_history(frames: u64, max_order: u8, cpus: usize, seed: u64, steps: u32) {
    let mut pair = Pair::new(frames, max_order, cpus, seed);
    pair.set(0, frames, true);
    assert!(pair.areas.add_range(0, frames));
    pair.check();
    for step in 0..steps {
        pair.step();
        if step % 8 == 0 {
            pair.check();
        }
    }
    while !pair.taken.is_empty() {
        pair.give();
    }
    pair.check();
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn histories() {
    for seed in 0..3 {
        run_history(3 * 4096, 10, 1, seed, 400);
        run_history(8 * 4096 + 77, 10, 2, seed, 400);
        run_history(5 * 4096 - 1, 12, 64, seed, 400);
        run_history((1 << 14) + 4096, 13, 3, seed, 300);
    }
}

#[test]
fn the_last_blocks_of_a_size_are_found_in_any_free_area() {
    let mut pair = Pair::new(16 * 4096, 10, 4, 1);
    for area in 0..16 {
        assert!(pair.areas.add_range(area * 4096 + 1024, 1024));
        pair.set(area * 4096 + 1024, 1024, true);
        let preferred = pair.preferred();
        assert_eq!(pair.areas.alloc(order(10), preferred, || {}), Some(area * 4096 + 1024));
        pair.set(area * 4096 + 1024, 1024, false);
    }
    assert_eq!(pair.areas.alloc(Order::PAGE, 3, || {}), None);
}

#[test]
fn a_cpu_allocates_from_its_preferred_area_and_keeps_large_blocks_whole() {
    let areas = areas(shape(8 * 4096, 10, 2));
    assert!(areas.add_range(0, 8 * 4096));
    let preferred = [0, 1].map(|rank| areas.preferred_area(rank, 2));
    assert_eq!(preferred, [0, 4]);
    let area_of = |frame: Option<u32>| frame.unwrap() / 4096;
    assert_eq!(preferred.map(|preferred| area_of(areas.alloc(order(3), preferred, || {}))), [0, 4]);
    assert_eq!(preferred.map(|preferred| area_of(areas.alloc(order(3), preferred, || {}))), [0, 4]);
    assert_eq!(areas.alloc(order(8), 0, || {}), Some(256), "splits nothing");
    assert_eq!(areas.alloc(order(8), 0, || {}), Some(512), "splits least");
    assert_eq!(areas.alloc(order(8), 0, || {}), Some(768));
    assert_eq!(area_of(areas.alloc(order(10), 0, || {})), 0);
    // The code below leaves many holes as large as the block in area 5. An allocation should use these before it splits
    // a block in area 0.
    let holes: Vec<u32> = (0..16).map(|_| areas.alloc(order(8), 5, || {}).unwrap()).collect();
    assert!(holes.iter().all(|hole| hole / 4096 == 5));
    let free_every_other = |from: usize, count: usize| {
        let freed = holes.iter().skip(from).step_by(2).take(count);
        assert!(freed.copied().all(|hole| areas.free(hole, order(8), |_| {})));
    };
    free_every_other(0, 7);
    let here = areas.alloc(order(8), 0, || {});
    assert_eq!(area_of(here), 0, "too few holes to leave the preferred area");
    assert!(areas.free(here.unwrap(), order(8), |_| {}));
    free_every_other(14, 1);
    assert_eq!(areas.alloc(order(8), 0, || {}), Some(holes[0]));
}

#[test]
fn a_cpu_splits_the_smallest_block_of_its_own_areas() {
    let areas = areas(shape(4 * 4096, 10, 1));
    assert_eq!(areas.shape.count, 4, "all of them the one CPU's own");
    // A block of order 10 is free in the preferred area. One block each of orders 9, 4 and 7 is free in the CPU's other
    // areas.
    for (area, free) in [(0, 10), (1, 9), (2, 4), (3, 7)] {
        assert!(areas.add_range(area * 4096 + (1 << free), 1 << free));
    }
    let alloc = |k: u8| areas.alloc(order(k), 0, || {});
    assert_eq!(alloc(3), Some(2 * 4096 + 16), "a block of order 4 is split");
    assert_eq!(alloc(4), Some(3 * 4096 + 128), "that of order 7 is the least now");
    assert_eq!(alloc(8), Some(4096 + 512), "that of order 9");
    assert_eq!(alloc(9), Some(1024), "the rest is in the preferred area");
    assert_eq!(areas.verify(), Ok(()));
}

#[test]
fn free_areas_for_every_zone() {
    let count = |frames, max_order, cpus, frames_min| shape_with(frames, max_order, cpus, frames_min).count;
    assert_eq!(count(1, 10, 1, 1 << 14), 1);
    assert_eq!(count(1 << 14, 10, 128, 1 << 14), 1);
    assert_eq!(count(1 << 20, 10, 2, 1 << 14), 8);
    assert_eq!(count((1 << 20) + 1, 10, 2, 1 << 14), 5);
    assert_eq!(count(1 << 20, 18, 2, 1 << 14), 4);
    assert_eq!(count(1 << 28, 10, 128, 1 << 14), 128);
    assert_eq!(count(1 << 28, 10, 4096, 1 << 14), 128);
    assert_eq!(count(ZONE_FRAMES_MAX, 10, 1, 1 << 14), 4);
    for frames in [1, 63, 64, 4095, 4096, 4097, 70_000, (1 << 20) + 65, ZONE_FRAMES_MAX] {
        for cpus in [1, 3, 64, 1000] {
            let shape = shape(frames, 10, cpus);
            assert!((1..=128).contains(&shape.count) && shape.cells() as u64 * 8 <= frames / 4 + 4096);
            if shape.count > 1 {
                let areas = 0..shape.count;
                let preferred = (0..cpus).map(|rank| (rank, rank % cpus * shape.count / cpus));
                assert!(preferred.clone().all(|(_, preferred)| areas.contains(&preferred)));
            }
        }
    }
}

#[test]
fn a_held_lock_does_not_block_other_areas() {
    let areas = areas(shape(2 * 4096, 10, 2));
    assert!(areas.add_range(0, 2 * 4096));
    let found = AtomicU64::new(0);
    let taken = areas.alloc(order(0), 0, || {
        // While this thread holds the lock of area 0, another thread allocates and frees all frames of area 1.
        std::thread::scope(|scope| {
            let other = || {
                let all: Vec<u32> =
                    (0..4).map(|_| areas.alloc(order(10), 1, || {}).expect("area 1 is free")).collect();
                assert!(all.iter().all(|&frame| frame >= 4096), "a block of region 0, whose lock is held");
                assert!(all.iter().all(|&frame| areas.free(frame, order(10), |_| {})));
                found.store(all.len() as u64, Relaxed); // relaxed: the thread is joined before the load
            };
            scope.spawn(other).join().unwrap();
        });
    });
    assert_eq!((taken, found.load(Relaxed)), (Some(0), 4));
    assert_eq!(areas.verify(), Ok(()));
}
