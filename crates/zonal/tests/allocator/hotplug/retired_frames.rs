//! Tests of bad frames, which are retired at once or when their blocks are freed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Barrier, mpsc};
use std::thread;

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::pages;
use crate::common::{Plan, Random, World, order, range, run_on, stress_rounds};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::{FreeError, RangeError, RetireError, SplitError, UsedState};
use zonal::machine::FrameRange;
use zonal::request::{PageKind, Urgency};
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request, Retirement};

const FRAMES: u64 = 1 << 13;
/// First frame of node 0's memory.
const START: u64 = FRAMES;

in_every_way! {
    a_free_frame_is_retired_at_once,
    frames_in_use_are_retired_when_they_are_freed,
    errors_for_a_block_with_a_bad_frame_name_the_block,
    a_zone_has_a_limit_of_frames_that_wait,
    memory_with_retired_frames_can_leave,
    hardened_frees_retire_frames_too,
    frames_are_retired_once_while_threads_use_them,
    retired_frames_wait_for_a_free_by_another_thread,
}

fn world(way: Way) -> World {
    Plan::even(1, 2, FRAMES).accessed(way).build(&Config::default())
}

/// Checks that the only frames in use are the `bad` ones, and that all others can be allocated.
fn only_bad(world: &World, bad: &BTreeSet<Pfn>) {
    let (a, count) = (&world.allocator, bad.len() as u64);
    a.drain_pagesets();
    assert_eq!(a.verify().unwrap().allocated, pages(count));
    assert_eq!((world.zone(0).retired, world.zone(0).retiring), (pages(count), pages(0)));
    assert_eq!(a.events().bad_frames, count);
    let mut listed = BTreeSet::new();
    a.for_each_used(range(START, FRAMES), |used| {
        assert_eq!((used.state, used.block.count), (UsedState::Retired, pages(1)));
        listed.insert(used.block.start);
    });
    assert_eq!(&listed, bad);
    let request = Request::page().urgency(Urgency::Reserve);
    let all: Vec<Pfn> = std::iter::from_fn(|| a.alloc(&request).ok()).map(|block| block.first).collect();
    assert_eq!(all.len() as u64, FRAMES - count);
    assert!(all.iter().all(|frame| !bad.contains(frame)));
    a.free_bulk(&all).unwrap();
}

fn a_free_frame_is_retired_at_once(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let frame = Pfn::new(START + 1234);
    assert_eq!(a.retire(frame), Ok(Retirement::Done));
    assert_eq!(a.retire(frame), Ok(Retirement::Done), "a second report changes nothing");
    assert_eq!(a.free(frame, Order::PAGE), Err(FreeError::Retired(frame)));
    let error = a.alloc_range(range(frame.get() - 1, 2), PageKind::User).unwrap_err();
    assert!(matches!(error, RangeError::InUse { first, .. } if first.state == UsedState::Retired), "{error}");
    // In the pageset of another CPU.
    run_on(1);
    let cached = a.alloc(&Request::page()).unwrap().first;
    a.free(cached, Order::PAGE).unwrap();
    run_on(0);
    assert_eq!(a.retire(cached), Ok(Retirement::Done));
    only_bad(&world, &BTreeSet::from([frame, cached]));
    assert_eq!(a.retire(Pfn::new(3)), Err(RetireError::NotManaged(Pfn::new(3))));
    a.offline_memory(range(START + 4096, 64)).unwrap();
    let offline = Pfn::new(START + 4100);
    assert_eq!(a.retire(offline), Err(RetireError::NotManaged(offline)));
}

fn frames_in_use_are_retired_when_they_are_freed(way: Way) {
    run_on(0);
    let mut random = Random(11);
    for round in 0..200 {
        let world = world(way);
        let a = &world.allocator;
        let mut bad = BTreeSet::new();
        let kind = random.pick(&PageKind::ALL);
        let count = 1 + random.below(if round % 2 == 0 { 16 } else { 900 });
        let run = a.alloc_frames(&Request::page().kind(kind), PageCount::new(count)).unwrap().range;
        for _ in 0..1 + random.below(5) {
            let frame = run.start.plus(pages(random.below(count)));
            assert_eq!(a.retire(frame), Ok(Retirement::WhenFreed));
            bad.insert(frame);
        }
        assert_eq!(world.zone(0).retiring, pages(bad.len() as u64));
        assert_eq!(a.verify().unwrap().allocated, pages(count));
        // Wrong frees are refused as before, and name the block.
        let wrong = a.free_frames(run.start, pages(count + 1)).unwrap_err();
        assert!(wrong.to_string().contains(&run.start.to_string()), "{wrong}");
        if count > 1 {
            a.free(run.start, Order::PAGE).unwrap_err();
            a.free(run.start.plus(pages(count - 1)), Order::PAGE).unwrap_err();
        }
        if round % 3 == 0 && count > 1 {
            let to = order(random.below(3) as u8);
            if a.split_frames(run.start, run.count, to).is_ok() {
                for (frame, order) in run.blocks(to) {
                    a.free(frame, order).unwrap();
                }
            } else {
                a.free_frames(run.start, run.count).unwrap();
            }
        } else {
            a.free_frames(run.start, run.count).unwrap();
        }
        assert_eq!(a.free_frames(run.start, run.count).map_err(|_| ()), Err(()), "freed twice");
        only_bad(&world, &bad);
    }
}

fn errors_for_a_block_with_a_bad_frame_name_the_block(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let block = a.alloc(&Request::new(order(4))).unwrap().first;
    a.retire(block.plus(pages(9))).unwrap();
    let wrong = FreeError::WrongOrder { frame: block, allocated: order(4), given: order(2) };
    assert_eq!(a.free(block, order(2)), Err(wrong));
    let inside = block.plus(pages(8));
    assert_eq!(
        a.free(inside, order(3)),
        Err(FreeError::InsideBlock { frame: inside, block, order: order(4) })
    );
    assert_eq!(
        a.split(block, order(2), order(1)),
        Err(SplitError::NotAllocated(FreeError::WrongOrder {
            frame: block,
            allocated: order(4),
            given: order(2)
        }))
    );
    let error = a.alloc_range(range(block.get() + 9, 1), PageKind::User).unwrap_err();
    let state = UsedState::Allocated(PageKind::User);
    assert!(matches!(error, RangeError::InUse { first, .. } if first.state == state), "{error}");
    a.free(block, order(4)).unwrap();
    only_bad(&world, &BTreeSet::from([block.plus(pages(9))]));
}

fn a_zone_has_a_limit_of_frames_that_wait(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let frames: Vec<Pfn> = (0..65).map(|_| a.alloc(&Request::page()).unwrap().first).collect();
    for &frame in &frames[..64] {
        assert_eq!(a.retire(frame), Ok(Retirement::WhenFreed));
        assert_eq!(a.retire(frame), Ok(Retirement::WhenFreed), "a second report uses no entry");
    }
    assert_eq!(a.retire(frames[64]), Err(RetireError::TooMany { frame: frames[64], max: 64 }));
    a.free(frames[0], Order::PAGE).unwrap();
    assert_eq!(a.retire(frames[64]), Ok(Retirement::WhenFreed));
    a.free_bulk(&frames[1..]).unwrap();
    only_bad(&world, &frames.into_iter().collect());
}

fn memory_with_retired_frames_can_leave(way: Way) {
    run_on(0);
    let world = world(way);
    let a = &world.allocator;
    let bad = Pfn::new(START + 100);
    a.retire(bad).unwrap();
    // A fence does not hold a retired frame, and a frame can be retired while a fence holds it.
    let fence = a.fence(range(START + 64, 64)).unwrap();
    assert_eq!((fence.held(), fence.in_use(), fence.is_whole()), (pages(63), pages(0), false));
    assert_eq!(a.retire(Pfn::new(START + 70)), Ok(Retirement::Done));
    assert_eq!((fence.held(), fence.in_use()), (pages(62), pages(0)));
    let fence = fence.alloc(PageKind::User).unwrap_err();
    fence.offline().unwrap();
    let accounting = a.verify().unwrap();
    assert_eq!((accounting.managed, accounting.allocated), (pages(FRAMES - 64), pages(0)));
    assert_eq!(world.zone(0).retired, pages(0));
    a.online_memory(range(START + 64, 64)).unwrap();
    assert_eq!(a.alloc_range(range(bad.get(), 1), PageKind::User).unwrap().range.start, bad, "other memory");
    a.free(bad, Order::PAGE).unwrap();
}

fn hardened_frees_retire_frames_too(way: Way) {
    run_on(0);
    let hardening = Hardening { poison: Some(0x55), quarantine: pages(64), ..Hardening::default() };
    let world = Plan::even(1, 1, FRAMES).accessed(way).build_in(
        &Config { hardening, ..Config::default() },
        |controls| {
            controls.set_contents(START, FRAMES, 0x55);
        },
    );
    let a = &world.allocator;
    let block = a.alloc(&Request::new(order(3))).unwrap().first;
    a.retire(block.plus(pages(5))).unwrap();
    a.free(block, order(3)).unwrap();
    // In quarantine.
    let page = a.alloc(&Request::page()).unwrap().first;
    a.free(page, Order::PAGE).unwrap();
    assert_eq!(a.retire(page), Ok(Retirement::Done));
    only_bad(&world, &BTreeSet::from([page, block.plus(pages(5))]));
}

/// Threads allocate, split and free while another thread retires frames. No retired frame is allocated again.
fn frames_are_retired_once_while_threads_use_them(way: Way) {
    const BAD: u64 = 60;
    for seed in stress_rounds() {
        for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
            let world =
                Plan::even(1, 3, FRAMES).accessed(way).build(&Config { invalid_free, ..Config::default() });
            let (a, begin) = (&world.allocator, Barrier::new(3));
            let bad: BTreeSet<Pfn> = thread::scope(|scope| {
                for cpu in 0..2 {
                    let begin = &begin;
                    scope.spawn(move || {
                        run_on(cpu);
                        let mut random = Random(seed * 7 + u64::from(cpu));
                        begin.wait();
                        for _ in 0..2000 {
                            let count = if random.once_in(2) { 1 } else { 1 + random.below(70) };
                            let Ok(run) = a.alloc_frames(&Request::page(), PageCount::new(count)) else {
                                continue;
                            };
                            let frames = run.range;
                            if random.once_in(3)
                                && count > 1
                                && a.split_frames(frames.start, frames.count, Order::PAGE).is_ok()
                            {
                                for (frame, order) in frames.blocks(Order::PAGE) {
                                    a.free(frame, order).unwrap();
                                }
                            } else {
                                a.free_frames(frames.start, frames.count).unwrap();
                            }
                        }
                    });
                }
                run_on(2);
                let mut random = Random(seed);
                begin.wait();
                let frame = |random: &mut Random| Pfn::new(START + random.below(400));
                let mut bad = BTreeSet::new();
                while (bad.len() as u64) < BAD {
                    let frame = frame(&mut random);
                    match a.retire(frame) {
                        Ok(_) => {
                            bad.insert(frame);
                        }
                        Err(error) => assert_eq!(error, RetireError::Changing(frame)),
                    }
                    thread::yield_now();
                }
                bad
            });
            a.tick(); // frees under `Checked` can lose a frame until then
            only_bad(&world, &bad);
        }
    }
}

/// Threads pass runs to each other while one frame of each run is retired. The receiver frees the run, and no thread
/// receives the retired frame again.
fn retired_frames_wait_for_a_free_by_another_thread(way: Way) {
    const BAD: u64 = 60;
    for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
        let world =
            Plan::even(1, 3, FRAMES).accessed(way).build(&Config { invalid_free, ..Config::default() });
        let a = &world.allocator;
        let is_bad: Vec<AtomicBool> = (0..FRAMES).map(|_| AtomicBool::new(false)).collect();
        let of = |frame: Pfn| &is_bad[(frame.get() - START) as usize];
        let alloc = |random: &mut Random| {
            let count = if random.once_in(2) { 1 } else { 1 + random.below(70) };
            let run = a.alloc_frames(&Request::page(), PageCount::new(count)).unwrap().range;
            for (frame, _) in run.blocks(Order::PAGE) {
                // Relaxed: the free that retired the frame was before this allocation.
                assert!(!of(frame).load(Relaxed), "{frame} is retired, but was allocated");
            }
            run
        };
        let bad = thread::scope(|scope| {
            // The channels end with this closure, also by a panic, and then the threads end.
            let (to_retire, in_use) = mpsc::sync_channel::<FrameRange>(4);
            let (to_free, retiring) = mpsc::sync_channel::<FrameRange>(4);
            scope.spawn(move || {
                run_on(0);
                let mut random = Random(1);
                (0..BAD).for_each(|_| to_retire.send(alloc(&mut random)).unwrap());
            });
            scope.spawn(move || {
                run_on(1);
                let mut random = Random(2);
                for run in retiring {
                    a.free_frames(run.start, run.count).unwrap();
                    for _ in 0..20 {
                        let run = alloc(&mut random);
                        a.free_frames(run.start, run.count).unwrap();
                    }
                }
            });
            run_on(2);
            let mut random = Random(3);
            let mut bad = BTreeSet::new();
            for run in in_use {
                let frame = run.start.plus(pages(random.below(run.count.get())));
                assert_eq!(a.retire(frame), Ok(Retirement::WhenFreed), "{frame} is in use");
                of(frame).store(true, Relaxed);
                bad.insert(frame);
                to_free.send(run).unwrap();
            }
            bad
        });
        assert_eq!(bad.len() as u64, BAD);
        only_bad(&world, &bad);
    }
}
