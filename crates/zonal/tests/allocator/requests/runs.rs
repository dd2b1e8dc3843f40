//! Tests of allocations with any frame count, of splits, and of address limits.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::common::scenarios::{all_free, pages};
use crate::common::{Plan, Random, World, order, range, run_on};
use zonal::config::{Hardening, InvalidFree, ZeroOn};
use zonal::error::{AllocError, FreeError, SplitError};
use zonal::request::{PageKind, Urgency};
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, FrameRun, Request};
use zonal_testing::Ledger;

const FRAMES: u64 = 1 << 14;

fn alloc(world: &World, count: u64) -> FrameRun {
    world.allocator.alloc_frames(&Request::page(), pages(count)).unwrap()
}

/// Checks that a free of these frames fails with `error` and changes nothing.
fn refused(world: &World, first: Pfn, count: u64, error: FreeError) {
    let before = world.allocator.verify().unwrap();
    assert_eq!(world.allocator.free_frames(first, pages(count)), Err(error), "{count} frames at {first}");
    assert_eq!(world.allocator.verify().unwrap(), before);
    assert!(error.to_string().contains(&first.to_string()), "{error}");
}

#[test]
fn a_request_for_any_number_of_frames_costs_so_many() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    for count in 1..=1024 {
        let frames = alloc(&world, count);
        assert_eq!(frames.range.count, pages(count));
        assert!(frames.range.start.is_aligned_to(Order::holding(pages(count)).unwrap()));
        assert_eq!(world.allocator.verify().unwrap().allocated, pages(count));
        world.allocator.free_frames(frames.range.start, pages(count)).unwrap();
        assert_eq!(world.allocator.verify().unwrap().allocated, PageCount::ZERO);
    }
    for count in [0, 1025, u64::MAX] {
        let error = world.allocator.alloc_frames(&Request::page(), pages(count)).unwrap_err();
        assert_eq!(error, AllocError::Count { count: pages(count), max: pages(1024) });
        assert_eq!(
            error.to_string(),
            format!("the request is for {count} frames; allowed values are 1 to 1024")
        );
    }
    all_free(&world);
}

#[test]
fn three_quarters_of_memory_can_be_allocated_three_frames_at_a_time() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let request = Request::page().urgency(Urgency::Reserve);
    let mut held = Vec::new();
    while let Ok(frames) = world.allocator.alloc_frames(&request, pages(3)) {
        held.push(frames.range.start);
    }
    assert_eq!(held.len() as u64, FRAMES / 4, "each block of four serves one request");
    let accounting = world.allocator.verify().unwrap();
    assert_eq!(accounting.free.plus(accounting.in_pagesets), pages(FRAMES / 4));
    // The fourth frame of each block serves other requests.
    let singles: Vec<Pfn> =
        std::iter::from_fn(|| Some(world.allocator.alloc(&request).ok()?.first)).collect();
    assert_eq!(singles.len() as u64, FRAMES / 4);
    world.allocator.free_bulk(&singles).unwrap();
    held.into_iter().for_each(|first| world.allocator.free_frames(first, pages(3)).unwrap());
    all_free(&world);
}

#[test]
fn random_runs_never_overlap_and_balance() {
    for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
        for (poison, quarantine) in [(None, 0), (Some(0x5a5a), 0), (None, 300), (Some(7), 300)] {
            run_on(0);
            let hardening = Hardening { poison, quarantine: pages(quarantine), zero: ZeroOn::Request };
            let config = Config { invalid_free, hardening, ..Config::default() };
            let plan = Plan::even(2, 2, FRAMES);
            let world = plan
                .build_in(&config, |controls| controls.set_contents(FRAMES, 2 * FRAMES, poison.unwrap_or(0)));
            let (ledger, mut random) = (Ledger::new(FRAMES..3 * FRAMES), Random(17));
            let mut held: Vec<FrameRun> = Vec::new();
            for round in 0..3000 {
                run_on(random.below(4) as u32);
                if random.below(5) < 2 && !held.is_empty() {
                    let frames = held.swap_remove(random.below(held.len() as u64) as usize);
                    let (start, count) = (frames.range.start, frames.range.count);
                    ledger.release(start.get(), count.get(), 1);
                    if random.once_in(3) {
                        free_split(&world, frames, order(random.below(4) as u8));
                    } else {
                        world.allocator.free_frames(start, count).unwrap();
                    }
                } else {
                    let (count, align) = (1 + random.below(200), order(random.below(6) as u8));
                    let request = Request::new(align).kind(random.pick(&PageKind::ALL)).zeroed();
                    let Ok(frames) = world.allocator.alloc_frames(&request, pages(count)) else { continue };
                    assert!(frames.range.start.is_aligned_to(align), "{frames:?}");
                    ledger.assign(frames.range.start.get(), count, 1);
                    let contents = world.controls.contents();
                    for frame in frames.range.start.get()..frames.range.end().get() {
                        assert_eq!(contents.word(frame).load(Relaxed), 0, "frame {frame} of {frames:?}");
                        contents.word(frame).store(round, Relaxed);
                    }
                    held.push(frames);
                }
                if round % 100 == 0 {
                    world.allocator.verify().unwrap();
                }
            }
            held.drain(..).for_each(|frames| {
                world.allocator.free_frames(frames.range.start, frames.range.count).unwrap();
            });
            assert_eq!(world.allocator.events().poison_found, 0);
            all_free(&world);
        }
    }
}

/// Splits frames into blocks of at most `to`, and frees each of these.
fn free_split(world: &World, frames: FrameRun, to: Order) {
    let (start, count) = (frames.range.start, frames.range.count);
    match world.allocator.split_frames(start, count, to) {
        Ok(()) => {}
        Err(SplitError::NotLower { .. }) => return world.allocator.free_frames(start, count).unwrap(),
        Err(error) => panic!("{error}"),
    }
    for (first, order) in frames.range.blocks(to) {
        world.allocator.free(first, order).unwrap();
    }
}

#[test]
fn wrong_frees_of_runs_are_refused_by_name() {
    for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
        run_on(0);
        let world = Plan::even(1, 1, FRAMES).build(&Config { invalid_free, ..Config::default() });
        let first = alloc(&world, 11).range.start; // blocks of 8, 2 and 1 frames
        let at = |frames| Pfn::new(first.get() + frames);
        let next = alloc(&world, 1).range.start;
        for count in [1, 2, 8, 10, 12, 16] {
            let error = FreeError::WrongCount { frame: first, allocated: pages(11), given: pages(count) };
            refused(&world, first, count, error);
            if count.is_power_of_two() {
                let freed = world.allocator.free(first, Order::holding(pages(count)).unwrap());
                assert_eq!(freed, Err(error));
            }
        }
        for inside in [1, 4, 7, 8, 9, 10] {
            for count in [1, 2, 3] {
                let error = FreeError::InsideRun { frame: at(inside), first, count: pages(11) };
                refused(&world, at(inside), count, error);
            }
        }
        refused(&world, first, 0, FreeError::NoFrames(first));
        refused(&world, next, 3, FreeError::WrongCount { frame: next, allocated: pages(1), given: pages(3) });
        refused(&world, Pfn::new(5 * FRAMES), 3, FreeError::NotManaged(Pfn::new(5 * FRAMES)));
        world.allocator.free_frames(first, pages(11)).unwrap();
        refused(&world, first, 11, FreeError::NotAllocated(first));
        world.allocator.drain_pagesets();
        refused(&world, first, 11, FreeError::NotAllocated(first));
        refused(&world, at(9), 3, FreeError::NotAllocated(at(9)));
        world.allocator.free_frames(next, pages(1)).unwrap();
        all_free(&world);
    }
}

#[test]
fn parts_of_a_split_block_are_freed_one_by_one() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let first = a.alloc(&Request::new(order(9)).kind(PageKind::Kernel)).unwrap().first;
    let part = |index: u64| Pfn::new(first.get() + 8 * index);
    // A part of a block that was not split is not a block.
    assert!(matches!(a.free(part(1), order(3)), Err(FreeError::InsideBlock { .. })));
    for (order_given, to, error) in [
        (9, 9, SplitError::NotLower { frame: first, order: order(9), to: order(9) }),
        (9, 10, SplitError::NotLower { frame: first, order: order(9), to: order(10) }),
        (8, 3, {
            let (allocated, given) = (order(9), order(8));
            SplitError::NotAllocated(FreeError::WrongOrder { frame: first, allocated, given })
        }),
    ] {
        assert_eq!(a.split(first, order(order_given), order(to)), Err(error));
        assert!(error.to_string().contains(&first.to_string()), "{error}");
    }
    a.split(first, order(9), order(3)).unwrap();
    assert_eq!(a.verify().unwrap().allocated, pages(512));
    let wrong = FreeError::WrongOrder { frame: first, allocated: order(3), given: order(9) };
    assert_eq!(a.free(first, order(9)), Err(wrong));
    a.split(part(5), order(3), Order::PAGE).unwrap();
    for index in (0..64).filter(|index| index % 2 == 0) {
        a.free(part(index), order(3)).unwrap();
    }
    for frame in 0..8 {
        a.free(Pfn::new(part(5).get() + frame), Order::PAGE).unwrap();
    }
    assert_eq!(a.verify().unwrap().allocated, pages(31 * 8));
    for index in (0..64).filter(|index| index % 2 == 1 && *index != 5) {
        a.free(part(index), order(3)).unwrap();
    }
    let absent = Pfn::new(1 << 40);
    let error = SplitError::NotAllocated(FreeError::NotManaged(absent));
    assert_eq!(a.split(absent, order(1), Order::PAGE), Err(error));
    assert_eq!(a.split_frames(absent, pages(3), Order::PAGE), Err(error));
    let error = SplitError::NotAllocated(FreeError::NotAllocated(first));
    assert_eq!(a.split(first, order(9), Order::PAGE), Err(error));
    all_free(&world);
}

#[test]
fn of_a_split_and_frees_at_once_exactly_one_succeeds() {
    for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
        run_on(0);
        let world = Plan::even(1, 4, FRAMES).build(&Config { invalid_free, ..Config::default() });
        let a = &world.allocator;
        for round in 0..400 {
            let count = if round % 2 == 0 { 16 } else { 13 };
            let first = alloc(&world, count).range.start;
            let wins = AtomicU64::new(0);
            let win = |won: bool| wins.fetch_add(u64::from(won), Relaxed);
            let split = std::thread::scope(|scope| {
                for cpu in 1..3 {
                    let win = &win;
                    scope.spawn(move || {
                        run_on(cpu);
                        // Under `Checked`, the free of a block must not race with its split.
                        if count == 13 || invalid_free == InvalidFree::Exact {
                            win(a.free_frames(first, pages(count)).is_ok());
                        }
                    });
                }
                run_on(0);
                let split = a.split_frames(first, pages(count), Order::PAGE).is_ok();
                win(split);
                split
            });
            if split {
                // A free that comes later is of the first part alone, which is another count.
                (0..count).for_each(|at| a.free(Pfn::new(first.get() + at), Order::PAGE).unwrap());
            }
            assert_eq!(wins.load(Relaxed), 1, "round {round}");
            a.verify().unwrap();
        }
        all_free(&world);
    }
}

#[test]
fn requests_below_an_address_limit_get_frames_below_it() {
    run_on(0);
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.zones = vec![
        (0, ZoneKind::Dma32, 0, FRAMES, vec![(0, FRAMES)]),
        (0, ZoneKind::Normal, FRAMES, FRAMES, vec![(FRAMES, FRAMES)]),
        (1, ZoneKind::Normal, 2 * FRAMES, FRAMES, vec![(2 * FRAMES, FRAMES)]),
    ];
    let world = plan.build(&Config::default());
    let a = &world.allocator;
    // Fills pagesets with frames above the limits.
    let warm: Vec<Pfn> = (0..200).map(|_| a.alloc(&Request::page()).unwrap().first).collect();
    a.free_bulk(&warm).unwrap();
    for limit in [FRAMES / 3, FRAMES, FRAMES + 4097, 3 * FRAMES, u64::MAX] {
        let limit = Pfn::new(limit);
        let mut held = Vec::new();
        for (at, count) in [1, 2, 3, 64, 100, 512, 1000].into_iter().cycle().take(60).enumerate() {
            let request = Request::page().below(limit).no_wait();
            if at % 2 == 0 {
                let Ok(frames) = a.alloc_frames(&request, pages(count)) else { continue };
                assert!(frames.range.end() <= limit, "{frames:?}");
                held.push((frames.range.start, count));
            } else {
                let order = Order::holding(pages(count)).unwrap();
                let Ok(block) = a.alloc(&Request::new(order).below(limit).no_wait()) else { continue };
                assert!(block.first.plus(order.pages()) <= limit, "{block:?}");
                held.push((block.first, order.pages().get()));
            }
        }
        assert!(held.len() > 10, "{limit}");
        held.into_iter().for_each(|(first, count)| a.free_frames(first, pages(count)).unwrap());
        a.verify().unwrap();
    }
    // All frames below a limit within the lower zone, and no others.
    let (limit, request) = (Pfn::new(1000), Request::page().below(Pfn::new(1000)).urgency(Urgency::Reserve));
    let mut held: Vec<u64> = std::iter::from_fn(|| Some(a.alloc(&request).ok()?.first.get())).collect();
    held.sort_unstable();
    assert_eq!(held, (0..limit.get()).collect::<Vec<_>>());
    assert!(a.alloc(&Request::page()).is_ok(), "other requests are not affected");
    assert!(a.alloc(&Request::page().below(Pfn::new(0))).is_err());
    assert!(a.online_frames(range(0, 3 * FRAMES)) == pages(3 * FRAMES));
}
