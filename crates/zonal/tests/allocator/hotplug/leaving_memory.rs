//! Tests of memory that is emptied before it goes offline, and of ranges that are emptied for large requests.

use std::sync::Arc;

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::{Cache, Scripted, all_free, pages};
use crate::common::{Plan, order, range, run_on};
use zonal::error::{OnlineError, UsedFrames, UsedState};
use zonal::platform::reclaimer::ReclaimReason;
use zonal::request::PageKind;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

const FRAMES: u64 = 1 << 13;
/// Number of frames that reclaimers say they could free.
const PLENTY: u64 = 10_000;
/// First frame of node 0's memory.
const START: u64 = FRAMES;

in_every_way! {
    what_is_in_use_is_moved_and_the_memory_leaves,
    what_does_not_move_is_named_and_nothing_changes,
    reclaimers_empty_a_range_that_leaves,
    a_large_block_is_reclaimed_as_a_range_if_memory_is_fragmented,
}

fn what_is_in_use_is_moved_and_the_memory_leaves(way: Way) {
    run_on(0);
    let world = Plan::even(1, 2, FRAMES).accessed(way).build(&Config::default());
    let a = &world.allocator;
    // A table of pages with their contents, of which half lie in the range that leaves.
    let leaves = range(START, FRAMES / 2);
    let mut table: Vec<(Pfn, u64, u64)> = (0..600)
        .map(|at| {
            let count = 1 + at % 5;
            (a.alloc_frames(&Request::page(), PageCount::new(count)).unwrap().range.start, count, at)
        })
        .collect();
    let before = a.accounting().allocated;
    let mut moved = 0;
    a.offline_memory_with(leaves, |used| {
        let place = table
            .iter_mut()
            .find(|(start, count, _)| used.block.start == *start && used.block.count.get() == *count);
        let (start, count, _) = place.expect("a whole allocation is passed");
        let new = a.alloc_frames(&Request::page(), PageCount::new(*count)).unwrap().range;
        assert!(new.start >= leaves.end(), "frames are not allocated from the range");
        a.free_frames(*start, PageCount::new(*count)).unwrap();
        *start = new.start;
        moved += 1;
    })
    .unwrap();
    assert!(moved > 0);
    assert_eq!(a.accounting().allocated, before);
    let accounting = a.verify().unwrap();
    assert_eq!((accounting.managed, accounting.allocated), (pages(FRAMES / 2), before));
    for (start, count, _) in table {
        a.free_frames(start, PageCount::new(count)).unwrap();
    }
    a.online_memory(leaves).unwrap();
    all_free(&world);
}

fn what_does_not_move_is_named_and_nothing_changes(way: Way) {
    run_on(0);
    let world = Plan::even(1, 2, FRAMES).accessed(way).build(&Config::default());
    let a = &world.allocator;
    let block = a.alloc(&Request::new(order(3)).kind(PageKind::Kernel)).unwrap();
    let movable = a.alloc(&Request::page()).unwrap();
    let all = range(START, FRAMES);
    let mut calls = 0;
    let result = a.offline_memory_with(all, |used| {
        calls += 1;
        if used.block.start == movable.first {
            a.free(movable.first, Order::PAGE).unwrap();
        }
    });
    let first =
        UsedFrames { block: range(block.first.get(), 8), state: UsedState::Allocated(PageKind::Kernel) };
    let error = OnlineError::InUse { start: all.start, in_use: pages(8), first: Some(first) };
    assert_eq!(result, Err(error));
    assert!(error.to_string().contains("allocated (kernel)"), "{error}");
    assert!((3..10).contains(&calls), "the callback is called again, but not for ever: {calls}");
    assert_eq!(a.verify().unwrap().managed, pages(FRAMES));
    a.free(block.first, block.order).unwrap();
    all_free(&world);
}

fn reclaimers_empty_a_range_that_leaves(way: Way) {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).accessed(way).build(&Config::default()).leak();
    let a = &world.allocator;
    let blocks: Vec<_> = (0..4000).map(|_| a.alloc(&Request::page()).unwrap()).collect();
    let cache = Arc::new(Cache::default());
    cache.keep(blocks);
    let keeper = Arc::clone(&cache);
    // Frees 100 frames of the range at a time, as a cache does that searches its entries.
    let reclaimer = Scripted::by_request(
        |_| PLENTY,
        move |request| {
            assert_eq!(request.reason, ReclaimReason::Range);
            keeper.reclaim_in(&world.allocator, &request.range.unwrap(), pages(100))
        },
    );
    world.controls.set_reclaimer(reclaimer.clone());
    let half = range(START, FRAMES / 2);
    a.offline_memory_with(half, |used| panic!("{used:?} was left")).unwrap();
    let accounting = a.verify().unwrap();
    assert_eq!((accounting.managed, accounting.allocated), (pages(FRAMES / 2), pages(cache.len() as u64)));
    assert!(reclaimer.calls() > 2, "it was called as long as it freed frames");
}

fn a_large_block_is_reclaimed_as_a_range_if_memory_is_fragmented(way: Way) {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).accessed(way).build(&Config::default()).leak();
    let a = &world.allocator;
    let mut blocks = Vec::new();
    while let Ok(block) = a.alloc(&Request::page()) {
        blocks.push(block);
    }
    blocks.sort_by_key(|block| block.first);
    // Every fourth frame is used by a cache, and all others are free.
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.first.get() % 4 == 0);
    world.free(freed);
    let cache = Arc::new(Cache::default());
    let count = kept.len();
    cache.keep(kept);
    let keeper = Arc::clone(&cache);
    let reclaimer = Scripted::by_request(
        |_| PLENTY,
        move |request| match request.range {
            Some(range) => keeper.reclaim_in(&world.allocator, &range, request.target),
            None => 0,
        },
    );
    world.controls.set_reclaimer(reclaimer.clone());
    assert!(a.alloc(&Request::new(order(9)).no_wait()).is_err());
    let block = a.alloc(&Request::new(order(9))).unwrap();
    let reclaimed = count - cache.len();
    assert!((1..=128).contains(&reclaimed), "only frames of one block were reclaimed: {reclaimed}");
    a.verify().unwrap();
    a.free(block.first, block.order).unwrap();
    // A run below a limit is served in the same way.
    let below = Pfn::new(START + 2048);
    let run = a.alloc_frames(&Request::page().below(below), pages(700)).unwrap();
    assert!(run.range.end() <= below);
    a.free_frames(run.range.start, run.range.count).unwrap();
}
