//! Tests of machines that have no memory when their allocator starts, because it arrives later: in pieces, in any order.

use crate::common::scenarios::{all_free, with_min};
use crate::common::{Plan, World, node, order, range, run_on};
use zonal::config::Config;
use zonal::error::{AllocError, ConfigError, FreeError, OnlineError};
use zonal::machine::FrameRange;
use zonal::request::Request;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{NodeMask, Policy};

const FRAMES: u64 = 1 << 14;

/// Returns the memory of a node with a zone for old devices below a normal zone.
fn memory(id: u16) -> [FrameRange; 2] {
    let start = (u64::from(id) + 1) * 4 * FRAMES;
    [range(start, FRAMES), range(start + FRAMES, 2 * FRAMES)]
}

/// Returns three nodes with a CPU each, whose memory arrives later.
fn plan() -> Plan {
    let mut plan = Plan::with_distances(1, FRAMES, |a, b| if a + b == 1 { 12 } else { 32 }, 3);
    plan.zones.clear();
    for id in 0..3 {
        for (kind, part) in [ZoneKind::Dma32, ZoneKind::Normal].into_iter().zip(memory(id)) {
            plan.zones.push((id, kind, part.start.get(), part.count.get(), vec![]));
            plan.hotplug.push((part.start.get(), part.count.get()));
        }
    }
    plan
}

fn lists(world: &World) -> [Vec<u16>; 3] {
    [0, 1, 2].map(|id| {
        let mut list = Vec::new();
        world.allocator.fallback_order(node(id), |node| list.push(node.get()));
        list
    })
}

fn online(world: &World, memory: FrameRange) {
    world.allocator.online_memory(memory).unwrap();
    world.check();
}

#[test]
fn without_memory_requests_fail_with_a_reason() {
    let world = plan().build(&Config::default());
    run_on(0);
    assert!(matches!(world.allocator.alloc(&Request::page()), Err(AllocError::OutOfMemory(_))));
    world.allocator.alloc(&Request::new(order(9)).zone_limit(ZoneKind::Dma32).no_wait()).unwrap_err();
    world.allocator.alloc_frames(&Request::page(), PageCount::new(3)).unwrap_err();
    world.allocator.alloc_contiguous(&Request::page(), PageCount::new(5000)).unwrap_err();
    world.allocator.alloc_range(memory(0)[1], zonal::request::PageKind::User).unwrap_err();
    Policy::bind(&world.allocator, NodeMask::from_iter([node(0)])).err().unwrap();
    let frame = memory(1)[0].start;
    assert_eq!(world.allocator.free(frame, Order::PAGE), Err(FreeError::NotManaged(frame)));
    assert!(lists(&world).iter().all(Vec::is_empty));
    world.allocator.tick();
    world.allocator.background_reclaim(node(0));
    world.allocator.drain_pagesets();
    assert_eq!(world.allocator.verify().unwrap().managed, PageCount::ZERO);
    let pagesets_are_small = world.allocator.zones().all(|zone| zone.pageset_limits.batch.get() == 1);
    assert!(pagesets_are_small && world.allocator.zones().all(|zone| zone.stat_threshold == 0));
}

#[test]
fn memory_in_pieces_makes_lists_watermarks_and_large_blocks() {
    let world = plan().build(&Config::default());
    // The last node comes first, and serves all.
    online(&world, memory(2)[1]);
    assert_eq!(lists(&world), [[2], [2], [2]]);
    for cpu in 0..3 {
        run_on(cpu);
        let block = world.allocator.alloc(&Request::page()).unwrap();
        assert_eq!(block.node, node(2));
        world.free([block]);
    }
    // A lower zone of a nearer node comes next: the nearer node serves, but requests for it alone do not use a reserve.
    online(&world, memory(0)[0]);
    assert_eq!(lists(&world), [vec![0, 2], vec![0, 2], vec![2, 0]]);
    run_on(1);
    assert_eq!(world.allocator.alloc(&Request::page()).map(|block| block.node), Ok(node(0)));
    let policy = Policy::bind(&world.allocator, NodeMask::from_iter([node(0)])).unwrap();
    // Pieces of the zone above arrive in any order, the first of them a single frame.
    let upper = memory(0)[1];
    let at = |offset: u64, count: u64| range(upper.start.get() + offset, count);
    for piece in [at(7000, 1), at(9000, 2 * FRAMES - 9000), at(0, 7000), at(7001, 1999)] {
        online(&world, piece);
        let zone = world.allocator.zones().nth(1).unwrap();
        assert_eq!(zone.managed, world.allocator.online_frames(upper));
        assert_eq!(world.allocator.online_memory(piece), Err(OnlineError::AlreadyOnline(piece.start)));
        let sizes = world.allocator.zones().map(|zone| (zone.kind, zone.managed)).collect::<Vec<_>>();
        let basis = WatermarkSettings::default().basis(sizes.into_iter(), 4096);
        assert_eq!(zone.watermarks, basis.watermarks(zone.kind, zone.managed));
    }
    run_on(0);
    // The pieces have merged: every frame of the zone is in a largest-order block.
    let zone = world.allocator.zones().nth(1).unwrap();
    assert_eq!(zone.free_blocks[10], 2 * FRAMES / 1024);
    let block = world.allocator.alloc(&Request::new(order(10)).policy(&policy)).unwrap();
    assert!(upper.contains(&block.range()), "the higher zone is preferred");
    online(&world, memory(1)[0]);
    online(&world, memory(1)[1]);
    assert_eq!(lists(&world), [[0, 1, 2], [1, 0, 2], [2, 0, 1]]);
    // The same machine, with all of its memory at the start, has the same limits.
    let mut whole = plan();
    for zone in &mut whole.zones {
        zone.4 = vec![(zone.2, zone.3)];
    }
    whole.hotplug.clear();
    let whole = whole.build(&Config::default());
    world.allocator.online_memory(memory(2)[0]).unwrap();
    for (late, early) in world.allocator.zones().zip(whole.allocator.zones()) {
        assert_eq!(
            (late.managed, late.watermarks, late.reserve),
            (early.managed, early.watermarks, early.reserve)
        );
        assert_eq!((late.pageset_limits, late.stat_threshold), (early.pageset_limits, early.stat_threshold));
    }
    assert_eq!(lists(&world), lists(&whole));
}

#[test]
fn the_pagesets_of_late_memory_are_used_and_tuned() {
    let world = plan().build(&Config::default());
    run_on(0);
    world.allocator.alloc(&Request::page()).unwrap_err();
    online(&world, memory(0)[1]);
    let pageset = || world.allocator.pagesets().find(|pageset| pageset.zone.index() == 1).unwrap();
    let blocks: Vec<_> = (0..4000).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect();
    assert!(pageset().refills > 0 && pageset().refills < 2000, "{:?}", pageset());
    world.free(blocks);
    assert!(pageset().count > PageCount::ZERO);
    assert_eq!(pageset().high, world.allocator.zones().nth(1).unwrap().pageset_limits.high_min);
    all_free(&world);
    world.allocator.offline_memory(memory(0)[1]).unwrap();
    world.allocator.alloc(&Request::page()).unwrap_err();
    online(&world, memory(0)[1]);
    world.allocator.alloc(&Request::page()).unwrap();
}

#[test]
fn a_reserve_may_exceed_what_is_managed_at_start() {
    let all = 9 * FRAMES;
    let world = plan().build(&with_min(all / 8));
    online(&world, range(memory(0)[1].start.get(), 1024));
    run_on(0);
    world.allocator.alloc(&Request::page()).unwrap_err();
    online(&world, range(memory(0)[1].start.get() + 1024, 2 * FRAMES - 1024));
    world.allocator.alloc(&Request::page()).unwrap();
    assert_eq!(world.allocator.zones().nth(1).unwrap().watermarks.min.get(), all / 8);
    // More than all memory that may arrive is refused.
    let refused = plan().try_build(&with_min(all + 1), zonal::platform::one_thread::OneThread::new());
    let (min_free, managed) = (PageCount::new(all + 1), PageCount::new(all));
    assert_eq!(refused.err(), Some(ConfigError::MinFree { min_free, managed }));
    assert_eq!(Pfn::new(4 * FRAMES), memory(0)[0].start);
}
