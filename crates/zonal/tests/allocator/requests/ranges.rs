//! Tests of ranges: exactly the given frames, and adjacent frames beyond the largest order.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::scenarios::{all_free, pages};
use crate::common::{Plan, Random, World, order, range, run_on};
use zonal::config::Hardening;
use zonal::error::{AllocError, FreeError, OnlineError, RangeError, UsedFrames, UsedState};
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::request::{PageKind, Urgency};
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

const FRAMES: u64 = 1 << 14;
/// First frame of node 0's memory.
const START: u64 = FRAMES;

fn used(world: &World, start: u64, count: u64) -> Vec<UsedFrames> {
    let mut found = Vec::new();
    world.allocator.for_each_used(range(start, count), |used| found.push(used));
    found
}

#[test]
fn any_free_range_of_a_zone_can_be_allocated_and_freed() {
    run_on(0);
    let world = Plan::even(2, 2, FRAMES).build(&Config::default());
    let (a, mut random) = (&world.allocator, Random(5));
    for round in 0..400 {
        run_on(random.below(4) as u32);
        // Leaves frames in pagesets.
        let singles: Vec<Pfn> = (0..50).map(|_| a.alloc(&Request::page()).unwrap().first).collect();
        a.free_bulk(&singles).unwrap();
        let start = random.below(FRAMES);
        let count = 1 + random.below(if round % 4 == 0 { FRAMES - start } else { 300.min(FRAMES - start) });
        let frames = range(START + start, count);
        assert_eq!(a.alloc_range(frames, PageKind::Kernel).unwrap().range, frames);
        assert_eq!(a.verify().unwrap().allocated, pages(count));
        // Parts of it cannot be had again, and each block of it is listed.
        let error = a.alloc_range(range(START + start + count / 2, 1), PageKind::User).unwrap_err();
        assert!(matches!(error, RangeError::InUse { used, .. } if used == pages(1)), "{error}");
        let listed: u64 = used(&world, START + start, count).iter().map(|used| used.block.count.get()).sum();
        assert_eq!(listed, count);
        if random.once_in(3) {
            a.split_frames(frames.start, frames.count, Order::PAGE).map_or_else(
                |_| a.free_frames(frames.start, frames.count).unwrap(),
                |()| (0..count).for_each(|at| a.free(Pfn::new(START + start + at), Order::PAGE).unwrap()),
            );
        } else {
            a.free_frames(frames.start, frames.count).unwrap();
        }
    }
    all_free(&world);
}

#[test]
fn a_range_in_use_is_refused_with_its_first_block() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let below = a.alloc(&Request::new(order(10))).unwrap();
    let block = a.alloc(&Request::new(order(4)).kind(PageKind::Cache)).unwrap();
    a.free(below.first, below.order).unwrap();
    let around = range(block.first.get() - 5, 40);
    let state = UsedState::Allocated(PageKind::Cache);
    let first = UsedFrames { block: range(block.first.get(), 16), state };
    let error = a.alloc_range(around, PageKind::User).unwrap_err();
    assert_eq!(error, RangeError::InUse { range: around, first, used: pages(16) });
    let text = error.to_string();
    assert!(text.contains(&block.first.to_string()) && text.contains("allocated (cache)"), "{text}");
    // From inside the block.
    assert_eq!(used(&world, block.first.get() + 9, 2), [first]);
    let empty = RangeError::NotInZone(OnlineError::EmptyRange(Pfn::new(START)));
    assert_eq!(a.alloc_range(range(START, 0), PageKind::User), Err(empty));
    let error = a.alloc_range(range(START + FRAMES - 1, 2), PageKind::User).unwrap_err();
    assert!(matches!(error, RangeError::NotInZone(OnlineError::NotInOneZone { .. })), "{error}");
    a.offline_memory(range(START, 1024)).unwrap_or_else(|error| panic!("{error}"));
    let error = a.alloc_range(range(START + 1000, 100), PageKind::User).unwrap_err();
    assert!(
        matches!(error, RangeError::InUse { first, .. } if first.state == UsedState::NotManaged),
        "{error}"
    );
    a.online_memory(range(START, 1024)).unwrap();
    a.free(block.first, block.order).unwrap();
    all_free(&world);
}

#[test]
fn wrong_frees_of_ranges_are_refused() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let frames = range(START + 1001, 5000);
    a.alloc_range(frames, PageKind::User).unwrap();
    for (start, count) in [(1001, 4999), (1001, 5001), (1001, 1), (1001, 7), (1001, 15000)] {
        let (frame, allocated, given) = (Pfn::new(START + start), pages(5000), pages(count));
        let error = FreeError::WrongCount { frame, allocated, given };
        assert_eq!(a.free_frames(frame, given), Err(error), "{count}");
    }
    for inside in [1002, 1003, 1024, 2048, 6000] {
        let frame = Pfn::new(START + inside);
        let error = FreeError::InsideRun { frame, first: frames.start, count: frames.count };
        assert_eq!(a.free(frame, Order::PAGE), Err(error));
        assert_eq!(a.free_frames(frame, pages(3)), Err(error));
    }
    a.free_frames(frames.start, frames.count).unwrap();
    all_free(&world);
}

#[test]
fn contiguous_frames_beyond_the_largest_order_are_found() {
    run_on(0);
    let world = Plan::even(2, 2, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let page = a.alloc_range(range(START + 5000, 1), PageKind::User).unwrap();
    for (count, align) in [(9000, 0), (8192, 10), (1025, 0), (3, 0), (5000, 10)] {
        let request = Request::new(order(align));
        let frames = a.alloc_contiguous(&request, pages(count)).unwrap().range;
        assert!(frames.count == pages(count) && frames.start.is_aligned_to(order(align)), "{frames}");
        assert!(frames.intersection(&page.range).is_none());
        a.verify().unwrap();
        a.free_frames(frames.start, frames.count).unwrap();
    }
    let error = a.alloc_contiguous(&Request::page(), pages(FRAMES)).unwrap_err();
    let expected =
        AllocError::NotContiguous { count: pages(FRAMES), longest: pages(FRAMES), ranges_ignored: false };
    assert_eq!(error, expected, "node 1 is free, but the watermark would not hold");
    let urgent = Request::page().urgency(Urgency::Reserve);
    let all = a.alloc_contiguous(&urgent, pages(FRAMES)).unwrap();
    assert_eq!(all.range, range(2 * FRAMES, FRAMES), "node 0 has a frame in use");
    assert!(a.alloc_contiguous(&urgent, pages(FRAMES)).is_err());
    assert!(matches!(a.alloc_contiguous(&urgent, pages(0)), Err(AllocError::Count { .. })));
    for frames in [all, page] {
        a.free_frames(frames.range.start, frames.range.count).unwrap();
    }
    all_free(&world);
}

/// A cache of single frames that frees only those in the wanted range.
#[derive(Default)]
struct Cache {
    frames: Mutex<Vec<Pfn>>,
    ranges: AtomicU64,
    world: std::sync::OnceLock<&'static World>,
}

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        pages(self.frames.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let Some(wanted) = request.range.filter(|_| request.reason == ReclaimReason::Range) else {
            return PageCount::ZERO;
        };
        self.ranges.fetch_add(1, Relaxed); // relaxed: one thread
        let mut frames = self.frames.lock().unwrap();
        let (freed, rest) = frames.drain(..).partition(|&frame| wanted.contains(&range(frame.get(), 1)));
        *frames = rest;
        let freed: Vec<Pfn> = freed;
        self.world.get().unwrap().allocator.free_bulk(&freed).unwrap();
        pages(freed.len() as u64)
    }
}

#[test]
fn a_range_is_reclaimed_if_none_is_free() {
    run_on(0);
    let world: &'static World = Box::leak(Box::new(Plan::even(1, 1, FRAMES).build(&Config::default())));
    let cache = Arc::new(Cache::default());
    assert!(cache.world.set(world).is_ok());
    world.controls.set_reclaimer(cache.clone());
    let a = &world.allocator;
    // Every fourth frame is cached, and the others are free.
    for at in (0..FRAMES).step_by(4) {
        a.alloc_range(range(START + at, 1), PageKind::Cache).unwrap();
        cache.frames.lock().unwrap().push(Pfn::new(START + at));
    }
    assert!(a.alloc_contiguous(&Request::page().no_wait(), pages(2000)).is_err());
    assert_eq!(cache.ranges.load(Relaxed), 0);
    let frames = a.alloc_contiguous(&Request::page(), pages(2000)).unwrap();
    assert_eq!(cache.ranges.load(Relaxed), 1);
    a.verify().unwrap();
    a.free_frames(frames.range.start, frames.range.count).unwrap();
    let rest = std::mem::take(&mut *cache.frames.lock().unwrap());
    a.free_bulk(&rest).unwrap();
    all_free(world);
}

#[test]
fn ranges_with_overwritten_poison_are_not_allocated() {
    run_on(0);
    const POISON: u64 = 0x6b6b;
    let hardening = Hardening { poison: Some(POISON), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let world =
        Plan::even(1, 1, FRAMES).build_in(&config, |controls| controls.set_contents(START, FRAMES, POISON));
    let a = &world.allocator;
    world.controls.contents().word(START + 4097).store(1, Relaxed); // relaxed: one thread
    let frames = range(START + 4000, 500);
    let error = a.alloc_range(frames, PageKind::User).unwrap_err();
    assert!(matches!(error, RangeError::InUse { first, .. } if first.state == UsedState::Retired), "{error}");
    let accounting = a.verify().unwrap();
    assert_eq!(accounting.allocated.get(), a.events().retired.max(a.events().poison_found));
    a.alloc_range(range(START + 4000, 96), PageKind::User).unwrap();
    a.free_frames(Pfn::new(START + 4000), pages(96)).unwrap();
    a.verify().unwrap();
}

#[test]
fn threads_that_take_ranges_and_frames_never_share_one() {
    let world = Plan::even(1, 4, FRAMES).build(&Config::default());
    let (a, ledger) = (&world.allocator, zonal_testing::Ledger::new(START..START + FRAMES));
    std::thread::scope(|scope| {
        for cpu in 0..4 {
            let ledger = &ledger;
            scope.spawn(move || {
                run_on(cpu);
                let mut random = Random(u64::from(cpu) + 40);
                let mut held: Vec<(Pfn, PageCount)> = Vec::new();
                for _ in 0..4000 {
                    if held.len() > 20 || (random.once_in(2) && !held.is_empty()) {
                        let (first, count) = held.swap_remove(random.below(held.len() as u64) as usize);
                        ledger.release(first.get(), count.get(), cpu + 1);
                        a.free_frames(first, count).unwrap();
                        continue;
                    }
                    let count = 1 + random.below(300);
                    let frames = match random.below(3) {
                        0 => a.alloc_frames(&Request::page(), pages(count)).ok(),
                        1 => a.alloc_contiguous(&Request::page(), pages(4 * count)).ok(),
                        _ => {
                            let start = START + random.below(FRAMES - count);
                            a.alloc_range(range(start, count), PageKind::User).ok()
                        }
                    };
                    if let Some(frames) = frames {
                        let (first, count) = (frames.range.start, frames.range.count);
                        ledger.assign(first.get(), count.get(), cpu + 1);
                        held.push((first, count));
                    }
                }
                for (first, count) in held {
                    ledger.release(first.get(), count.get(), cpu + 1);
                    a.free_frames(first, count).unwrap();
                }
            });
        }
    });
    all_free(&world);
}
