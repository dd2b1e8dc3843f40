//! Tests of fences and retirement at their borders: slots that are used again, handlers, poison, and hopeless requests.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::{Scripted, all_free, caching, pages};
use crate::common::{Plan, Random, World, order, range, reenter_on_this_thread, run_on};
use zonal::config::Hardening;
use zonal::error::{FreeError, SplitError, UsedState};
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::request::{PageKind, Urgency};
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request, Retirement};

const FRAMES: u64 = 1 << 14;
/// First frame of node 0's memory.
const START: u64 = FRAMES;

in_every_way! {
    a_fence_holds_only_its_own_frames,
    a_handler_does_not_wait_for_the_table_of_bad_frames,
    a_failed_alloc_of_a_fence_counts_no_poison_of_frames_in_use,
    a_frame_of_a_block_with_changed_poison_can_be_retired,
    blocks_with_changed_poison_can_go_offline,
    windows_without_retired_frames_are_emptied,
    a_hopeless_request_for_a_range_leaves_memory_to_others,
    a_fence_waits_for_a_request_that_holds_its_frames,
}

fn world(way: Way) -> World {
    Plan::even(1, 2, FRAMES).accessed(way).build(&Config::default())
}

fn poisoned(way: Way) -> World {
    let hardening = Hardening { poison: Some(0x55), ..Hardening::default() };
    Plan::even(1, 1, FRAMES).accessed(way).build_in(&Config { hardening, ..Config::default() }, |controls| {
        controls.set_contents(START, FRAMES, 0x55);
    })
}

/// Two ranges are fenced in turn with the same slot. A free in one of them must not add its frame to the other fence.
fn a_fence_holds_only_its_own_frames(way: Way) {
    const ROUNDS: u32 = 30_000;
    let world = world(way);
    let (a, stop) = (&world.allocator, AtomicBool::new(false));
    let (one, other) = (range(START, 64), range(START + 8192, 64));
    let always = a.fence(range(START + 12288, 1)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(0);
            let mut random = Random(1);
            while !stop.load(Relaxed) {
                let frame = FrameRange { start: one.start.plus(pages(random.below(64))), count: pages(1) };
                if a.alloc_range(frame, PageKind::User).is_ok() {
                    a.free(frame.start, Order::PAGE).unwrap();
                }
            }
        });
        run_on(1);
        let most = (0..ROUNDS).map(|_| {
            drop(a.fence(one).unwrap());
            a.fence(other).unwrap().held()
        });
        let most = most.max();
        stop.store(true, Relaxed);
        assert_eq!(most, Some(other.count));
    });
    drop(always);
    all_free(&world);
}

fn a_handler_does_not_wait_for_the_table_of_bad_frames(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let block = a.alloc(&Request::new(order(3))).unwrap().first;
    let run = a.alloc_frames(&Request::page(), pages(5)).unwrap().range;
    for frame in [block, run.start] {
        assert_eq!(a.retire(frame), Ok(Retirement::WhenFreed));
    }
    reenter_on_this_thread(true);
    let refused = SplitError::NotAllocated(FreeError::Reentered(block));
    assert_eq!(a.split(block, order(3), order(0)), Err(refused));
    let refused = SplitError::NotAllocated(FreeError::Reentered(run.start));
    assert_eq!(a.split_frames(run.start, run.count, order(0)), Err(refused));
    assert_eq!(a.free_frames(run.start, pages(6)), Err(FreeError::Reentered(run.start)));
    assert_eq!(a.free(block, order(3)), Err(FreeError::Reentered(block)));
    let mut listed = Vec::new();
    a.for_each_used(range(START, FRAMES), |used| listed.push(used.block.start));
    assert!(!listed.contains(&block) && listed.contains(&run.start), "{listed:?}");
    reenter_on_this_thread(false);
    a.free(block, order(3)).unwrap();
    a.free_frames(run.start, run.count).unwrap();
    assert_eq!(a.verify().unwrap().allocated, pages(2));
}

fn a_failed_alloc_of_a_fence_counts_no_poison_of_frames_in_use(way: Way) {
    run_on(0);
    let world = poisoned(way);
    let a = &world.allocator;
    let block = a.alloc(&Request::page()).unwrap();
    world.controls.contents().word(block.first.get()).store(1, Relaxed); // the owner writes
    let (fence, events) =
        world.during(|| a.fence(range(block.first.get(), 1)).unwrap().alloc(PageKind::User).unwrap_err());
    drop(fence);
    assert_eq!(events.poison_found, 0);
}

fn a_frame_of_a_block_with_changed_poison_can_be_retired(way: Way) {
    run_on(0);
    let world = poisoned(way);
    let a = &world.allocator;
    let word = |frame| world.controls.contents().word(frame);
    // Every frame but a few has changed poison.
    for frame in START..START + 100 {
        word(frame).store(1, Relaxed);
    }
    while a.alloc(&Request::page()).is_ok() {}
    let retired = (START..START + 100).map(|frame| a.retire(Pfn::new(frame)));
    let failed = retired.filter(Result::is_err).count();
    assert_eq!(failed, 0, "retire fails for ever");
}

fn blocks_with_changed_poison_can_go_offline(way: Way) {
    run_on(0);
    let world = poisoned(way);
    let a = &world.allocator;
    for of in [0, 3, 9] {
        let alloc = || a.alloc(&Request::new(order(of))).unwrap();
        let block = alloc();
        let last = block.range().end().get() - 1;
        a.free(block.first, block.order).unwrap();
        world.controls.contents().word(last).store(1, Relaxed);
        let other = alloc();
        assert_ne!(other.first, block.first);
        a.free(other.first, other.order).unwrap();
        assert_eq!(world.zone(0).retired, block.order.pages());
        let mut retired = PageCount::ZERO;
        a.for_each_used(block.range(), |used| {
            assert_eq!(used.state, UsedState::Retired);
            retired = retired.plus(used.block.count);
        });
        assert_eq!(retired, block.order.pages());
        assert_eq!(a.retire(Pfn::new(last)), Ok(Retirement::Done));
        a.verify().unwrap();
        a.offline_memory(block.range()).unwrap();
        assert_eq!(world.zone(0).retired, pages(0));
        a.online_memory(block.range()).unwrap();
    }
    all_free(&world);
}

fn windows_without_retired_frames_are_emptied(way: Way) {
    run_on(0);
    let world = world(way).leak();
    let a = &world.allocator;
    let (cache, _): (Arc<_>, _) = caching(world, u64::MAX >> 40);
    // One bad frame in each of the first eight 1024-frame windows; a cached frame in each other.
    let mut blocks = Vec::new();
    while let Ok(block) = a.alloc(&Request::page().kind(PageKind::Cache)) {
        blocks.push(block);
    }
    let (kept, free): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| {
        let at = block.first.get() - START;
        if at < 8 * 1024 { false } else { at % 1024 < 2 }
    });
    world.free(free);
    for window in 0..8 {
        assert_eq!(a.retire(Pfn::new(START + window * 1024 + 512)).unwrap(), Retirement::Done);
    }
    cache.keep(kept);
    let run = a.alloc_contiguous(&Request::new(order(10)), PageCount::new(1024));
    assert!(run.is_ok(), "{run:?}: eight windows need only two cached frames each");
}

/// A request that the watermarks can never allow must not keep the zone's free frames from other requests.
fn a_hopeless_request_for_a_range_leaves_memory_to_others(way: Way) {
    static FAILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let world = world(way).leak();
    let a = &world.allocator;
    run_on(0);
    let _cached = a.alloc(&Request::page().kind(PageKind::Cache)).unwrap();
    world.controls.set_reclaimer(Scripted::by_request(
        |_| 1,
        move |_| {
            match world.allocator.alloc(&Request::page().urgency(Urgency::Reserve)) {
                Ok(page) => world.allocator.free(page.first, Order::PAGE).unwrap(),
                Err(error) => FAILED.lock().unwrap().push(error.to_string()),
            }
            0
        },
    ));
    assert!(a.alloc_contiguous(&Request::page(), PageCount::new(FRAMES)).is_err());
    let failed = FAILED.lock().unwrap();
    assert!(failed.is_empty(), "{} requests of the reclaimer failed, the first: {}", failed.len(), failed[0]);
}

/// A cache that frees nothing, but returns only after another thread has waited for the request that called it.
struct SlowCache {
    called: mpsc::SyncSender<()>,
    waited: Mutex<mpsc::Receiver<()>>,
}

impl Reclaimer for SlowCache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        pages(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason != ReclaimReason::Range {
            return PageCount::ZERO;
        }
        self.called.send(()).unwrap();
        self.waited.lock().unwrap().recv().unwrap();
        PageCount::ZERO
    }
}

/// All frames of the fence are free, but a request holds them while it calls a reclaimer for another one.
fn a_fence_waits_for_a_request_that_holds_its_frames(way: Way) {
    let world = world(way).leak();
    let a = &world.allocator;
    run_on(0);
    let middle = Pfn::new(START + FRAMES / 2);
    a.alloc_range(range(middle.get(), 1), PageKind::Cache).unwrap();
    let (called, is_called) = mpsc::sync_channel(1);
    let (waits, waited) = mpsc::sync_channel(1);
    world.controls.set_reclaimer(Arc::new(SlowCache { called, waited: Mutex::new(waited) }));
    let request = thread::spawn(move || {
        run_on(1);
        a.alloc_contiguous(&Request::page(), pages(FRAMES / 2 + 1)).is_ok()
    });
    is_called.recv().unwrap();
    let (main, request) = (thread::current().id(), Mutex::new(Some(request)));
    world.controls.on_relax(move || {
        if thread::current().id() == main
            && let Some(request) = request.lock().unwrap().take()
        {
            waits.send(()).unwrap();
            assert!(!request.join().unwrap(), "the range stays in use");
        }
    });
    let free = range(middle.get() - 60, 60);
    let fence = a.fence(free).unwrap();
    assert!(fence.is_whole(), "{} of 60", fence.held());
    drop(fence);
    a.free(middle, Order::PAGE).unwrap();
    all_free(world);
}
