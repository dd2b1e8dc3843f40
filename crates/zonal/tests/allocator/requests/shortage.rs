//! Tests what a failed request reports about each zone: why the zone did not serve, and how many frames it lacked.

use std::num::NonZeroU64;

use crate::common::scenarios::{one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, run_on};
use zonal::config::Faults;
use zonal::error::{AllocError, Shortage, Verdict, VerdictCounts, ZoneShortage};
use zonal::machine::FrameRange;
use zonal::mempolicy::WeightTable;
use zonal::request::Urgency;
use zonal::units::{Order, PageCount, ZoneKind};
use zonal::{Block, Config, NodeMask, Platform, Policy, Request};

/// Folds counters, and returns the error of a request that must fail and its report on each zone.
fn fails(world: &World, request: &Request<'_>) -> (Shortage, Vec<ZoneShortage>) {
    world.allocator.tick();
    let Err(AllocError::OutOfMemory(sum)) = world.allocator.alloc(request) else { panic!("memory was left") };
    let mut zones = Vec::new();
    world.allocator.shortage(request, |zone| zones.push(zone)).unwrap();
    assert_eq!(zones.len(), sum.zones as usize);
    assert_eq!(sum.largest, zones.iter().filter_map(|zone| zone.largest).max());
    (sum, zones)
}

/// Allocates all blocks that `request` can, down to the last frame that the watermarks permit after counters are
/// folded.
fn settle(world: &World, request: &Request<'_>) -> Vec<Block> {
    let mut held = world.alloc_all(request);
    world.allocator.tick();
    held.extend(world.alloc_all(request));
    held
}

fn reclaiming(world: &World, work: impl FnOnce() -> Vec<Block>) -> Vec<Block> {
    world.allocator.platform().begin_reclaiming();
    let result = work();
    world.allocator.platform().end_reclaiming();
    result
}

/// Every amount that a verdict states is exact. After one frame fewer is freed, the request still fails; after that
/// many, it succeeds.
#[test]
fn a_zone_is_short_by_what_is_needed_and_no_more() {
    for urgency in [Urgency::Normal, Urgency::High, Urgency::Atomic] {
        for of in [0, 3] {
            let world = one_cpu(&[1 << 14], ZoneKind::Normal).build(&with_min(1000));
            run_on(0);
            let mut held = world.leave_free(0, 16);
            let request = Request::new(order(of)).urgency(urgency).no_wait();
            let (sum, zones) = fails(&world, &request);
            let Verdict::BelowMin { short_by } = zones[0].verdict else { panic!("{zones:?}") };
            let min = zones[0].min.get();
            let half = min - min / 2;
            let mark = match urgency {
                Urgency::Normal => min,
                Urgency::High => half,
                _ => half - half / 4,
            };
            assert_eq!(short_by.get(), mark + (1 << of) - 16, "{urgency:?}");
            assert_eq!(sum.verdicts, VerdictCounts { below_min: 1, ..VerdictCounts::default() });
            world.free(held.drain(..short_by.get() as usize - 1));
            world.allocator.drain_pagesets();
            world.allocator.tick();
            assert!(world.allocator.alloc(&request).is_err(), "{urgency:?} with a frame fewer");
            world.free(held.pop());
            world.allocator.drain_pagesets();
            world.allocator.tick();
            assert!(world.allocator.alloc(&request).is_ok(), "{urgency:?}, short by {short_by}");
        }
    }
}

/// The machine has DMA memory, but it is reserved for requests that can use no other zone.
#[test]
fn the_lowmem_reserve_is_named() {
    let mut plan = one_cpu(&[4096], ZoneKind::Dma);
    let normal = 1 << 20;
    plan.zones = vec![
        (0, ZoneKind::Dma, 0, 4096, vec![(0, 4096)]),
        (0, ZoneKind::Normal, normal, 1 << 17, vec![(normal, 1 << 17)]),
    ];
    let world = plan.build(&with_min(800));
    run_on(0);
    let request = Request::page().no_wait();
    let _held = settle(&world, &request);
    let (sum, zones) = fails(&world, &request);
    assert_eq!(sum.verdicts, VerdictCounts { below_min: 1, reserved: 1, ..VerdictCounts::default() });
    let dma = zones.iter().find(|zone| zone.kind == ZoneKind::Dma).unwrap();
    let short_by = (dma.min.get() + dma.reserve.get() + 1) - dma.free.get();
    assert_eq!(dma.verdict, Verdict::Reserved { short_by: pages(short_by) });
    assert_eq!(dma.reserve, pages((1 << 17) / 256));
    let text = AllocError::OutOfMemory(sum).to_string();
    assert!(text.contains("zones: 1 below min, 1 limited by the lowmem reserve;"), "{text}");
    let text = dma.to_string();
    assert!(
        text.starts_with(&format!("node 0 DMA is limited by its lowmem reserve, short by {short_by} ")),
        "{text}"
    );
    // The reserve is available to a request that is limited to the lower zone, and the report does not cover the other
    // zone.
    let lower = request.zone_limit(ZoneKind::Dma);
    let _lower = settle(&world, &lower);
    let (sum, _) = fails(&world, &lower);
    assert_eq!(sum.verdicts, VerdictCounts { below_min: 1, not_allowed: 1, ..VerdictCounts::default() });
}

/// There are enough free frames, but they are not contiguous.
#[test]
fn fragmentation_is_named_with_the_largest_block() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(100));
    run_on(0);
    let held = world.leave_free(0, 0);
    let (fours, held): (Vec<_>, Vec<_>) = held.into_iter().partition(|block| block.first.get() % 8 < 4);
    world.free(fours);
    world.allocator.drain_pagesets();
    let request = Request::new(order(3)).no_wait();
    let (sum, zones) = fails(&world, &request);
    assert_eq!((zones[0].verdict, zones[0].largest), (Verdict::NoBlock, Some(order(2))));
    let text = AllocError::OutOfMemory(sum).to_string();
    assert!(text.contains("1 without a free block of the order"), "{text}");
    assert!(text.contains("largest free block of order 2"), "{text}");
    world.free(held);
    world.allocator.drain_pagesets();
    assert!(world.allocator.alloc(&request).is_ok());
}

/// The reported largest block is the largest of all zones.
#[test]
fn the_largest_block_is_found_at_every_order() {
    for of in 0..=10 {
        let world = one_cpu(&[1 << 15], ZoneKind::Normal).build(&with_min(100));
        run_on(0);
        let held = reclaiming(&world, || world.alloc_all(&Request::page()));
        let (sum, _) = fails(&world, &Request::page().no_wait());
        assert_eq!(sum.largest, None);
        assert!(sum.to_string().contains("no free block"), "{sum}");
        let size = 1 << of;
        let base = (4096 + 20_000_u64).next_multiple_of(size);
        let inside = |block: &&Block| (base..base + size).contains(&block.first.get());
        world.free(held.iter().filter(inside).copied());
        world.allocator.drain_pagesets();
        let (sum, _) = fails(&world, &Request::new(Order::DEFAULT_MAX).no_wait());
        assert_eq!(sum.largest, Some(order(of)));
    }
}

#[test]
fn zones_without_memory_and_zones_out_of_reach_are_counted() {
    let world = Plan::even(3, 1, 4096).build(&with_min(300));
    run_on(0);
    let gone = world.zone(1);
    let range = FrameRange { start: gone.span.start, count: gone.span.count };
    world.allocator.offline_memory(range).unwrap();
    let request = Request::page().no_wait();
    let _held = settle(&world, &request);
    let (sum, zones) = fails(&world, &request);
    assert_eq!(sum.verdicts, VerdictCounts { below_min: 2, no_memory: 1, ..VerdictCounts::default() });
    assert_eq!(zones[1].verdict, Verdict::NoMemory);
    assert_eq!((zones[1].managed, zones[1].largest), (PageCount::ZERO, None));
    // Nodes are excluded by the cpuset, by the policy, or by both.
    let only: NodeMask = [node(0), node(1)].into_iter().collect();
    let first = Policy::bind(&world.allocator, [node(0)].into_iter().collect()).unwrap();
    let last = Policy::bind(&world.allocator, [node(2)].into_iter().collect()).unwrap();
    for (request, left_out) in
        [(request.allowed(&only), 1), (request.policy(&last), 2), (request.policy(&first).allowed(&only), 2)]
    {
        let (sum, zones) = fails(&world, &request);
        assert_eq!(sum.verdicts.not_allowed, left_out);
        assert_eq!(zones.len() as u32, 3 - left_out);
        assert!(sum.to_string().contains(&format!("{left_out} not allowed by")), "{sum}");
    }
    world.allocator.online_memory(range).unwrap();
    assert!(world.allocator.alloc(&request).is_ok());
}

/// A request that fault injection refuses fails although memory could serve it, and the error says so.
#[test]
fn a_request_refused_on_purpose_says_that_memory_is_there() {
    let faults = Faults::EveryNth(NonZeroU64::MIN);
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&Config { faults, ..with_min(100) });
    run_on(0);
    let (sum, zones) = fails(&world, &Request::page());
    assert_eq!(zones[0].verdict, Verdict::WouldServe);
    assert!(sum.to_string().contains("1 able to serve now"), "{sum}");
}

/// The requests of a reclaimer ignore watermarks, so they fail only if no block is left.
#[test]
fn reserve_requests_fail_for_lack_of_blocks_not_by_watermarks() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(100));
    run_on(0);
    reclaiming(&world, || world.alloc_all(&Request::page()));
    world.allocator.platform().begin_reclaiming();
    let (sum, _) = fails(&world, &Request::page());
    assert_eq!(sum.verdicts, VerdictCounts { no_block: 1, ..VerdictCounts::default() });
    world.allocator.platform().end_reclaiming();
    assert_eq!(fails(&world, &Request::page().no_wait()).0.verdicts.below_min, 1);
}

/// A report describes the request that failed. Making a report does not advance the policy, and the report names the
/// node that was tried.
#[test]
fn a_report_does_not_advance_a_policy() {
    let world = Plan::even(3, 1, 4096).build(&with_min(300));
    run_on(0);
    world.alloc_node(1);
    let weights = WeightTable::new();
    (0..3).for_each(|id| weights.set(node(id), 1));
    let nodes: NodeMask = [node(0), node(1), node(2)].into_iter().collect();
    for policy in [
        Policy::interleave(&world.allocator, nodes).unwrap(),
        Policy::weighted_interleave(&world.allocator, nodes, &weights).unwrap(),
    ] {
        let request = Request::page().policy(&policy).this_node().no_wait();
        let mut served = Vec::new();
        for _ in 0..9 {
            match world.allocator.alloc(&request) {
                Ok(block) => served.push(block.node.get()),
                Err(AllocError::OutOfMemory(sum)) => {
                    let mut listed = Vec::new();
                    world.allocator.shortage(&request, |zone| listed.push(zone.node)).unwrap();
                    assert_eq!((sum.node, listed), (node(1), vec![node(1)]));
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(served, [0, 2, 0, 2, 0, 2], "each node has its turn");
    }
}
