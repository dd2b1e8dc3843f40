//! Tests of fences: frames that are freed into a fenced range stay out of use.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, ScopedJoinHandle};

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::{all_free, pages};
use crate::common::{Plan, Random, World, order, range, reenter_on_this_thread, run_on, stress_rounds};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::{FenceError, FreeError, OnlineError, RangeError, UsedFrames, UsedState};
use zonal::machine::FrameRange;
use zonal::request::{PageKind, Urgency};
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::{Config, Request};

const FRAMES: u64 = 1 << 14;
/// First frame of node 0's memory.
const START: u64 = FRAMES;

in_every_way! {
    frames_freed_into_a_fence_are_not_allocated_until_it_ends,
    pagesets_work_again_after_the_last_fence,
    every_kind_of_allocation_can_be_freed_into_a_fence,
    a_fence_that_is_not_whole_is_returned,
    wrong_ranges_are_refused_with_what_is_wrong,
    hardened_frames_are_fenced_too,
    blocks_with_fenced_frames_do_not_wait_in_quarantine,
    no_frame_of_a_fence_is_allocated_while_threads_allocate,
}

fn world(way: Way) -> World {
    Plan::even(1, 2, FRAMES).accessed(way).build(&Config::default())
}

/// Allocates every frame that is left.
fn all_pages(world: &World) -> Vec<Pfn> {
    let request = Request::page().urgency(Urgency::Reserve);
    std::iter::from_fn(|| world.allocator.alloc(&request).ok()).map(|block| block.first).collect()
}

fn contains(range: &FrameRange, frame: Pfn) -> bool {
    range.start <= frame && frame < range.end()
}

fn frames_freed_into_a_fence_are_not_allocated_until_it_ends(way: Way) {
    let mut random = Random(3);
    for _ in 0..60 {
        let world = world(way);
        let a = &world.allocator;
        run_on(random.below(2) as u32);
        let fenced = {
            let start = random.below(FRAMES - 1);
            range(START + start, 1 + random.below(FRAMES - start).min(3000))
        };
        let mut held = BTreeSet::new();
        for _ in 0..random.below(6000) {
            held.insert(a.alloc(&Request::page()).unwrap().first);
        }
        let in_use = held.iter().filter(|&&frame| contains(&fenced, frame)).count() as u64;
        let fence = a.fence(fenced).unwrap();
        assert_eq!((fence.range(), fence.in_use()), (fenced, pages(in_use)));
        assert_eq!(fence.held(), pages(fenced.count.get() - in_use));
        assert_eq!(world.zone(0).fenced, fence.held());
        let mut listed = Vec::new();
        fence.for_each_in_use(|used| listed.push(used));
        assert_eq!(listed.len() as u64, in_use);
        for &frame in &held {
            a.free(frame, Order::PAGE).unwrap();
        }
        assert!(fence.is_whole());
        let elsewhere = all_pages(&world);
        assert_eq!(elsewhere.len() as u64, FRAMES - fenced.count.get());
        assert!(elsewhere.iter().all(|&frame| !contains(&fenced, frame)));
        assert_eq!(a.verify().unwrap().allocated, pages(FRAMES));
        drop(fence);
        assert_eq!(a.verify().unwrap().free, fenced.count);
        a.free_bulk(&elsewhere).unwrap();
        all_free(&world);
        assert_eq!(world.zone(0).fenced, pages(0));
    }
}

fn pagesets_work_again_after_the_last_fence(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let first = a.fence(range(START, 64)).unwrap();
    let second = a.fence(range(START + 64, 64)).unwrap();
    let block = a.alloc(&Request::page()).unwrap();
    a.free(block.first, Order::PAGE).unwrap();
    assert_eq!(a.accounting().in_pagesets, pages(0), "pagesets are closed");
    first.release();
    a.offline_cpu(CpuId::new(1)).unwrap();
    a.online_cpu(CpuId::new(1)).unwrap();
    for cpu in [0, 1] {
        run_on(cpu);
        let block = a.alloc(&Request::page()).unwrap();
        a.free(block.first, Order::PAGE).unwrap();
        assert_eq!(a.accounting().in_pagesets, pages(0), "CPU {cpu}: they still are");
    }
    second.release();
    for cpu in [0, 1] {
        run_on(cpu);
        let before = a.accounting().in_pagesets;
        let block = a.alloc(&Request::page()).unwrap();
        a.free(block.first, Order::PAGE).unwrap();
        assert!(a.accounting().in_pagesets > before, "CPU {cpu}");
    }
    all_free(&world);
}

fn every_kind_of_allocation_can_be_freed_into_a_fence(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let page = a.alloc(&Request::page().kind(PageKind::Cache)).unwrap();
    let block = a.alloc(&Request::new(order(9))).unwrap();
    let run = a.alloc_frames(&Request::page(), pages(77)).unwrap();
    let large = a.alloc_range(range(START + 5000, 3000), PageKind::Kernel).unwrap();
    let fence = a.fence(range(START, FRAMES)).unwrap();
    assert_eq!(fence.in_use(), pages(1 + 512 + 77 + 3000));
    let mut listed = Vec::new();
    fence.for_each_in_use(|used| listed.push(used));
    let state = UsedState::Allocated;
    let used = |start: Pfn, count, kind| UsedFrames { block: range(start.get(), count), state: state(kind) };
    let mut expected = [
        used(page.first, 1, PageKind::Cache),
        used(block.first, 512, PageKind::User),
        used(run.range.start, 77, PageKind::User),
        used(large.range.start, 3000, PageKind::Kernel),
    ];
    expected.sort_by_key(|used| used.block.start);
    assert_eq!(listed, expected);
    a.free(page.first, Order::PAGE).unwrap();
    a.split(block.first, order(9), order(4)).unwrap();
    (0..32).for_each(|part| a.free(block.first.plus(pages(16 * part)), order(4)).unwrap());
    a.free_frames(run.range.start, run.range.count).unwrap();
    a.free_frames(large.range.start, large.range.count).unwrap();
    assert!(fence.is_whole());
    assert!(a.alloc(&Request::page()).is_err(), "nothing is left outside");
    let run = fence.alloc(PageKind::User).unwrap();
    assert_eq!((run.range, a.verify().unwrap().allocated), (range(START, FRAMES), pages(FRAMES)));
    a.free_frames(run.range.start, run.range.count).unwrap();
    all_free(&world);
}

fn a_fence_that_is_not_whole_is_returned(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let block = a.alloc(&Request::page()).unwrap();
    let around = range(block.first.get(), 10);
    let fence = a.fence(around).unwrap().alloc(PageKind::User).unwrap_err();
    let fence = fence.offline().unwrap_err();
    assert_eq!((fence.range(), fence.held()), (around, pages(9)));
    // Its frames cannot be had otherwise.
    let error = a.alloc_range(range(block.first.get() + 1, 3), PageKind::User).unwrap_err();
    assert!(matches!(error, RangeError::InUse { first, .. } if first.state == UsedState::Fenced), "{error}");
    assert_eq!(
        a.free(around.start.plus(pages(1)), Order::PAGE),
        Err(FreeError::NotAllocated(around.start.plus(pages(1))))
    );
    a.free(block.first, Order::PAGE).unwrap();
    fence.offline().unwrap();
    assert_eq!(a.verify().unwrap().managed, pages(FRAMES - 10));
    a.online_memory(around).unwrap();
    all_free(&world);
}

fn wrong_ranges_are_refused_with_what_is_wrong(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let error = |range| a.fence(range).map(drop).unwrap_err();
    assert_eq!(error(range(START, 0)), FenceError::NotInZone(OnlineError::EmptyRange(Pfn::new(START))));
    assert!(matches!(error(range(START + FRAMES - 1, 2)), FenceError::NotInZone(_)));
    a.offline_memory(range(START + 100, 10)).unwrap();
    assert_eq!(error(range(START + 90, 11)), FenceError::NotOnline(Pfn::new(START + 100)));
    let fences: Vec<_> = (0..8).map(|at| a.fence(range(START + 1000 + 10 * at, 5)).unwrap()).collect();
    let (asked, fenced) = (range(START + 1014, 2), range(START + 1010, 5));
    assert_eq!(error(asked), FenceError::Overlaps { range: asked, fenced });
    assert_eq!(a.offline_memory(asked), Err(OnlineError::Fenced { range: asked, fenced }));
    let ninth = range(START, 1);
    assert_eq!(error(ninth), FenceError::TooMany { range: ninth, max: 8 });
    let text = a.offline_memory(ninth).unwrap_err().to_string();
    assert!(text.contains("8 fences"), "{text}");
    reenter_on_this_thread(true);
    assert_eq!(error(ninth), FenceError::Reentered(Pfn::new(START)));
    reenter_on_this_thread(false);
    drop(fences);
    a.fence(ninth).unwrap().release();
    a.online_memory(range(START + 100, 10)).unwrap();
    all_free(&world);
}

fn hardened_frames_are_fenced_too(way: Way) {
    run_on(0);
    let hardening = Hardening { poison: Some(0x55), quarantine: pages(64), ..Hardening::default() };
    let world = Plan::even(1, 1, FRAMES).accessed(way).build_in(
        &Config { hardening, ..Config::default() },
        |controls| {
            controls.set_contents(START, FRAMES, 0x55);
        },
    );
    let a = &world.allocator;
    let frames: Vec<Pfn> = (0..200).map(|_| a.alloc(&Request::page()).unwrap().first).collect();
    for &frame in &frames {
        a.free(frame, Order::PAGE).unwrap();
    }
    let fence = a.fence(range(START, FRAMES)).unwrap();
    assert!(fence.is_whole(), "quarantine is emptied");
    // A write after the free is found, and the frame is not allocated.
    world.controls.contents().word(START + 77).store(1, Relaxed);
    let fence = fence.alloc(PageKind::User).unwrap_err();
    assert_eq!((fence.held(), fence.in_use()), (pages(FRAMES - 1), pages(0)));
    assert_eq!(world.controls.traced.check(a).poison_found, 1);
    drop(fence);
    assert_eq!(a.verify().unwrap().allocated, pages(1));
    assert_eq!(world.zone(0).retired, pages(1));
}

fn blocks_with_fenced_frames_do_not_wait_in_quarantine(way: Way) {
    run_on(0);
    let hardening = Hardening { quarantine: pages(64), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let world = Plan::even(1, 1, FRAMES).accessed(way).build(&config);
    let a = &world.allocator;
    let [block, other] = [(); 2].map(|()| a.alloc(&Request::new(order(3))).unwrap());
    let fence = a.fence(range(block.first.get() + 5, 1)).unwrap();
    a.free(block.first, block.order).unwrap();
    assert!(fence.is_whole());
    a.free(other.first, other.order).unwrap();
    assert_eq!(world.zone(0).quarantined, pages(8), "no fence has the other block");
    drop(fence);
    all_free(&world);
}

/// The record of which frames were freed into which fence.
struct Record {
    /// For each frame, the number of the fence into which it was last freed; 0 if none.
    freed_into: Vec<AtomicU64>,
    /// Number, first frame and end of the newest fence.
    fence: [AtomicU64; 3],
    /// Number of the last fence that has ended or is about to end.
    ended: AtomicU64,
}

impl Record {
    fn new() -> Self {
        let freed_into = (0..FRAMES).map(|_| AtomicU64::new(0)).collect();
        Self { freed_into, fence: Default::default(), ended: AtomicU64::new(0) }
    }

    fn of(&self, frame: Pfn) -> &AtomicU64 {
        &self.freed_into[(frame.get() - START) as usize]
    }

    /// Records that a fence over `range` exists.
    fn begin(&self, number: u64, range: &FrameRange) {
        // Relaxed, because the release below orders the range. Earlier fences have ended, and a thread that combines
        // their number with this range records nothing that is checked.
        self.fence[1].store(range.start.get(), Relaxed);
        self.fence[2].store(range.end().get(), Relaxed);
        self.fence[0].store(number, Release); // pairs with the acquire in `note_free`
    }

    /// Records that the caller is about to free frames.
    fn note_free(&self, start: Pfn, count: u64) {
        let number = self.fence[0].load(Acquire);
        let fenced = self.fence[1].load(Relaxed)..self.fence[2].load(Relaxed);
        for frame in (start.get()..start.get() + count).filter(|frame| fenced.contains(frame)) {
            self.of(Pfn::new(frame)).store(number, Relaxed); // relaxed: the free publishes it with the frame
        }
    }

    /// Checks that no fence should have kept frames that were just allocated.
    fn check_allocated(&self, start: Pfn, count: u64) {
        for frame in (start.get()..start.get() + count).map(Pfn::new) {
            let number = self.of(frame).swap(0, Relaxed); // relaxed: the allocation has acquired it with the frame
            // Acquire: the end of a fence stores its number before it frees the frames.
            let ended = self.ended.load(Acquire);
            assert!(
                number <= ended,
                "{frame} was freed into fence {number} and allocated; {ended} fences ended"
            );
        }
    }
}

/// Threads allocate and free in all ways while another thread fences ranges that they use. No thread receives a frame
/// that was freed into a fence before that fence ends.
fn no_frame_of_a_fence_is_allocated_while_threads_allocate(way: Way) {
    const STEPS: u64 = 300;
    for seed in stress_rounds() {
        for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
            let world =
                Plan::even(1, 3, FRAMES).accessed(way).build(&Config { invalid_free, ..Config::default() });
            let (a, stop, begin, record) =
                (&world.allocator, AtomicBool::new(false), Barrier::new(3), Record::new());
            let steps = [0, 1].map(AtomicU64::new);
            thread::scope(|scope| {
                let threads = [0, 1].map(|cpu| {
                    let (stop, begin, record, steps) = (&stop, &begin, &record, &steps[cpu as usize]);
                    scope.spawn(move || {
                        run_on(cpu);
                        let mut random = Random(seed * 7 + u64::from(cpu));
                        let mut held: Vec<(Pfn, u64)> = Vec::new();
                        let free = |(start, count)| {
                            record.note_free(start, count);
                            a.free_frames(start, PageCount::new(count)).unwrap();
                        };
                        begin.wait();
                        while !stop.load(Relaxed) {
                            if held.len() < 300 && random.once_in(2) {
                                let count = if random.once_in(2) { 1 } else { 1 + random.below(40) };
                                if let Ok(run) = a.alloc_frames(&Request::page(), PageCount::new(count)) {
                                    record.check_allocated(run.range.start, count);
                                    held.push((run.range.start, count));
                                }
                            } else if let Some(at) = held.len().checked_sub(1) {
                                free(held.swap_remove(random.below(at as u64 + 1) as usize));
                            }
                            steps.fetch_add(1, Relaxed); // relaxed: nothing depends on it
                        }
                        held.into_iter().for_each(free);
                    })
                });
                run_on(2);
                let mut random = Random(seed);
                begin.wait();
                let mut freed_into_fences = 0;
                for number in 1..=40 {
                    let start = START + random.below(2000);
                    let fence = a.fence(range(start, 1 + random.below(600))).unwrap();
                    record.begin(number, &fence.range());
                    let before = fence.held();
                    let until = steps.each_ref().map(|steps| steps.load(Relaxed) + STEPS);
                    let waits = || {
                        let mut rest = steps.iter().zip(until);
                        rest.any(|(steps, until)| steps.load(Relaxed) < until)
                    };
                    while waits() && !threads.iter().any(ScopedJoinHandle::is_finished) {
                        thread::yield_now();
                    }
                    assert!(fence.held() >= before, "a fenced frame was allocated");
                    freed_into_fences += fence.held().get() - before.get();
                    record.ended.store(number, Release); // pairs with the acquire in `check_allocated`
                    if let Ok(run) = fence.alloc(PageKind::Kernel) {
                        a.free_frames(run.range.start, run.range.count).unwrap();
                    }
                }
                stop.store(true, Relaxed);
                assert!(freed_into_fences > 0, "seed {seed}");
            });
            all_free(&world);
        }
    }
}
