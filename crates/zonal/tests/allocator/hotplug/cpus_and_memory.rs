//! Tests of CPUs and memory that go online and offline, of the frames that they hold, and of all settings that depend
//! on them.

use crate::common::access::{Way, in_every_way};
use crate::common::{Plan, TestPlatform, World, node, order, range, run_on};
use zonal::error::{ConfigError, OnlineError, UsedFrames, UsedState};
use zonal::machine::TopologyError;
use zonal::mempolicy::Policy;
use zonal::request::{PageKind, Urgency};
use zonal::rules::stat_threshold::stat_threshold;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::{Accounting, ZoneSnapshot};
use zonal::units::{CpuId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, NodeMask, Request};

const FRAMES: u64 = 1 << 15;
/// First frame of the second zone.
const SECOND: u64 = 2 * FRAMES;

in_every_way! {
    a_range_over_several_free_areas_goes_offline_and_online,
    a_cpu_that_goes_offline_leaves_no_frames_behind,
    cpus_that_cannot_change_are_refused,
    limits_and_thresholds_follow_cpus,
    memory_in_use_stays_and_the_error_says_how_much,
    the_last_frame_of_many_steps_is_found,
    ranges_that_make_no_sense_are_refused,
    frames_never_described_as_memory_cannot_come_online,
    a_node_whose_memory_comes_late_gets_its_place_in_all_lists,
    a_node_whose_memory_goes_leaves_all_lists,
    part_of_a_node_is_enough_to_stay_listed,
    watermarks_reserves_and_limits_follow_memory,
    watermarks_that_no_memory_can_keep_are_refused,
}

fn cpu(id: u32) -> CpuId {
    CpuId::new(id)
}

fn zone(world: &World, at: usize) -> ZoneSnapshot {
    world.allocator.zones().nth(at).unwrap()
}

fn lists(world: &World, nodes: u16) -> Vec<Vec<u16>> {
    let list = |id| {
        let mut order = Vec::new();
        world.allocator.fallback_order(node(id), |node| order.push(node.get()));
        order
    };
    (0..nodes).map(list).collect()
}

/// Returns the number of frames in a CPU's pagesets.
fn held_by(world: &World, of: u32) -> u64 {
    let pagesets = world.allocator.pagesets().filter(|pageset| pageset.cpu == cpu(of));
    pagesets.map(|pageset| pageset.count.get()).sum()
}

fn a_range_over_several_free_areas_goes_offline_and_online(way: Way) {
    let config = Config { free_area_min: PageCount::ZERO, ..Config::default() };
    let world = Plan::even(1, 2, FRAMES).accessed(way).build(&config);
    let a = &world.allocator;
    run_on(0);
    let before = a.verify().unwrap();
    let start = zone(&world, 0).span.start.get();
    // The range begins inside the second free area of 4096 frames and ends inside the last area.
    let gone = range(start + 5000, 20_000);
    a.offline_memory(gone).unwrap();
    assert_eq!(a.verify().unwrap().managed.get(), FRAMES - 20_000);
    let mut held = Vec::new();
    while let Ok(block) = a.alloc(&Request::page().urgency(Urgency::Reserve)) {
        assert!(!(gone.start..gone.end()).contains(&block.first), "{} is offline", block.first);
        held.push(block.first);
    }
    assert_eq!(held.len() as u64, FRAMES - 20_000);
    a.online_memory(gone).unwrap();
    let block = a.alloc(&Request::new(order(10))).unwrap();
    held.into_iter().for_each(|frame| a.free(frame, Order::PAGE).unwrap());
    // A block in a free area in the middle of the range keeps it from going offline, and nothing changes.
    let all = range(start, FRAMES);
    let state = UsedState::Allocated(PageKind::User);
    let first = Some(UsedFrames { block: range(block.first.get(), 1024), state });
    let refused = OnlineError::InUse { start: all.start, in_use: PageCount::new(1024), first };
    assert_eq!(a.offline_memory(all), Err(refused));
    a.free(block.first, block.order).unwrap();
    assert_eq!(a.verify().unwrap().managed, before.managed);
    a.offline_memory(all).unwrap();
    assert_eq!(a.verify().unwrap(), Accounting::default());
    a.online_memory(all).unwrap();
    assert_eq!(a.verify().unwrap(), before);
}

fn a_cpu_that_goes_offline_leaves_no_frames_behind(way: Way) {
    let world = Plan::even(2, 2, FRAMES).accessed(way).build(&Config::default());
    let a = &world.allocator;
    run_on(1);
    let blocks: Vec<_> = [0, 0, 0, 1, 2, 3, 9].map(|o| a.alloc(&Request::new(order(o))).unwrap()).into();
    run_on(0);
    let far = a.alloc(&Request::page()).unwrap();
    run_on(1);
    blocks.iter().chain([&far]).for_each(|block| a.free(block.first, block.order).unwrap());
    assert!(held_by(&world, 1) > 64, "{}", held_by(&world, 1));
    let locality = a.locality();
    a.offline_cpu(cpu(1)).unwrap();
    assert_eq!((held_by(&world, 1), a.locality()), (0, locality));
    // The counter differences of CPU 1 were folded, so approximate readings lack only the differences of CPU 0.
    run_on(0);
    a.offline_cpu(cpu(2)).unwrap();
    a.offline_cpu(cpu(3)).unwrap();
    a.drain_pagesets();
    let accounting = a.verify().unwrap();
    let drift = u64::from(zone(&world, 0).stat_threshold) * 2;
    assert!(accounting.free.get().abs_diff(a.free_approximate().get()) <= drift);
    // A thread that still runs on the offline CPU is served. It bypasses the pagesets.
    run_on(1);
    for o in 0..=10 {
        let block = a.alloc(&Request::new(order(o))).unwrap();
        assert_eq!(block.node, node(0));
        a.free(block.first, block.order).unwrap();
        assert_eq!(held_by(&world, 1), 0);
    }
    a.verify().unwrap();
    a.online_cpu(cpu(1)).unwrap();
    let block = a.alloc(&Request::page()).unwrap();
    a.free(block.first, block.order).unwrap();
    assert!(held_by(&world, 1) > 0);
    a.verify().unwrap();
}

fn cpus_that_cannot_change_are_refused(way: Way) {
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.nodes = vec![(0, vec![4]), (1, vec![9])];
    let world = plan.accessed(way).build(&Config::default());
    let a = &world.allocator;
    let before = (a.verify().unwrap(), zone(&world, 0));
    for unknown in [0, 3, 5, 8, 10, u32::MAX] {
        assert_eq!(a.offline_cpu(cpu(unknown)), Err(OnlineError::UnknownCpu(cpu(unknown))));
        assert_eq!(a.online_cpu(cpu(unknown)), Err(OnlineError::UnknownCpu(cpu(unknown))));
    }
    assert_eq!(a.online_cpu(cpu(4)), Err(OnlineError::CpuUnchanged(cpu(4))));
    assert_eq!((a.verify().unwrap(), zone(&world, 0)), before);
    a.offline_cpu(cpu(4)).unwrap();
    assert_eq!(a.offline_cpu(cpu(4)), Err(OnlineError::CpuUnchanged(cpu(4))));
    assert_eq!(a.offline_cpu(cpu(9)), Err(OnlineError::LastCpu(cpu(9))));
    a.online_cpu(cpu(4)).unwrap();
    assert_eq!((a.verify().unwrap(), zone(&world, 0)), before);
}

fn limits_and_thresholds_follow_cpus(way: Way) {
    let world = Plan::even(1, 8, 1 << 18).accessed(way).build(&Config::default());
    let threshold = |cpus| stat_threshold(cpus, PageCount::new(1 << 18), 4096);
    for online in (1..=8).rev() {
        let zone = zone(&world, 0);
        assert_eq!(zone.stat_threshold, threshold(online));
        // The slots limit the value. They are laid out once, and all CPUs together have slots for a thirteenth of the
        // zone.
        let high_max = ((1 << 18) / 8 / u64::from(online)).clamp(252, (1 << 18) / 13 / 8 + 64);
        assert_eq!(zone.pageset_limits.high_max, PageCount::new(high_max));
        let high_min = zone.watermarks.low.get() / u64::from(online);
        assert_eq!(zone.pageset_limits.high_min, PageCount::new(high_min.max(252)));
        if online > 1 {
            world.allocator.offline_cpu(cpu(online - 1)).unwrap();
        }
    }
}

fn refused_in_use(world: &World, start: u64, count: u64, in_use: u64) {
    let before = (world.allocator.verify().unwrap(), zone(world, 0));
    let error = world.allocator.offline_memory(range(start, count)).unwrap_err();
    let OnlineError::InUse { start: named, in_use: counted, first: Some(first) } = error else {
        panic!("{error}")
    };
    assert_eq!((named, counted), (Pfn::new(start), PageCount::new(in_use)));
    assert!(first.block.end() > named && error.to_string().contains(&first.block.to_string()), "{error}");
    let after = (world.allocator.verify().unwrap(), zone(world, 0));
    assert_eq!(after.0, before.0);
    assert_eq!((after.1.watermarks, after.1.free_blocks), (before.1.watermarks, before.1.free_blocks));
}

fn memory_in_use_stays_and_the_error_says_how_much(way: Way) {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).accessed(way).build(&Config::default());
    let a = &world.allocator;
    let blocks: Vec<_> = (0..3).map(|_| a.alloc(&Request::new(order(10))).unwrap()).collect();
    let page = a.alloc(&Request::page()).unwrap();
    a.drain_pagesets();
    let all = blocks.iter().map(|block| block.first.get());
    assert_eq!(all.clone().collect::<Vec<_>>(), [FRAMES, FRAMES + 1024, FRAMES + 2048]);
    refused_in_use(&world, FRAMES, FRAMES, 3 * 1024 + 1);
    refused_in_use(&world, FRAMES + 1000, 100, 100);
    refused_in_use(&world, FRAMES + 3000, 1000, 72 + 1);
    refused_in_use(&world, page.first.get(), 1, 1);
    // The last frame of a long range is in use. The frames that were already removed from the free lists are returned.
    let last = range(FRAMES + 3073, FRAMES - 3073);
    a.offline_memory(last).unwrap();
    assert_eq!(a.verify().unwrap().managed, PageCount::new(3073));
    a.online_memory(last).unwrap();
    a.free(page.first, page.order).unwrap();
    blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    // Frames in pagesets are free, so they do not keep a range from going offline.
    a.offline_memory(range(FRAMES, FRAMES)).unwrap();
    assert_eq!(a.verify().unwrap(), Accounting::default());
    assert!(a.alloc(&Request::page()).is_err());
    a.online_memory(range(FRAMES, FRAMES)).unwrap();
    let accounting = a.verify().unwrap();
    assert_eq!((accounting.free, accounting.managed), (PageCount::new(FRAMES), PageCount::new(FRAMES)));
    assert_eq!(zone(&world, 0).free_blocks[10], FRAMES / 1024, "all merged again");
}

fn the_last_frame_of_many_steps_is_found(way: Way) {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).accessed(way).build(&Config::default());
    let a = &world.allocator;
    let blocks: Vec<_> = (0..31).map(|_| a.alloc(&Request::new(order(10))).unwrap()).collect();
    let top = blocks.iter().map(|block| block.first).max().unwrap();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block.first == top);
    freed.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    refused_in_use(&world, FRAMES, FRAMES, kept[0].order.pages().get());
}

fn ranges_that_make_no_sense_are_refused(way: Way) {
    run_on(0);
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.zones[0].4 = vec![(FRAMES, 1000), (FRAMES + 2000, FRAMES - 2000)];
    plan.hotplug = vec![(FRAMES + 1000, 1000)];
    let world = plan.accessed(way).build(&Config::default());
    let a = &world.allocator;
    let before = a.verify().unwrap();
    let outside = [
        (FRAMES - 1, 2),
        (2 * FRAMES - 1, 2),
        (3 * FRAMES, 1),
        (0, 10),
        (FRAMES, u64::MAX),
        (FRAMES + 5, u64::MAX - 5),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
    ];
    for (start, count) in outside {
        let outside = a.offline_memory(range(start, count)).unwrap_err();
        let OnlineError::NotInOneZone { range: found, below, above } = outside else { panic!("{outside}") };
        assert_eq!(found, range(start, count));
        let spans = [below, above].map(|zone| zone.map(|zone| (zone.node.get(), zone.span.start.get())));
        let (first, second) = (Some((0, FRAMES)), Some((1, 2 * FRAMES)));
        let around = match start {
            0..FRAMES => [None, first],
            FRAMES..SECOND => [first, second],
            _ => [second, None],
        };
        assert_eq!(spans, around, "{outside}");
        let zone = if start < SECOND { 0 } else { 1 };
        let crosses = format!(") crosses the end of zone Normal of node {zone} (frames ");
        let begins_outside = !(FRAMES..3 * FRAMES).contains(&start);
        let text = outside.to_string();
        assert!(
            text.contains(if begins_outside { ") begins in no zone; the nearest" } else { &crosses }),
            "{text}"
        );
        assert_eq!(a.online_memory(range(start, count)), Err(outside), "{start} {count}");
    }
    for start in [0, FRAMES, u64::MAX] {
        let empty = Err(OnlineError::EmptyRange(Pfn::new(start)));
        assert_eq!(a.offline_memory(range(start, 0)), empty);
        assert_eq!(a.online_memory(range(start, 0)), empty);
    }
    let first_absent = Err(OnlineError::NotOnline(Pfn::new(FRAMES + 1000)));
    assert_eq!(a.offline_memory(range(FRAMES, 2000)), first_absent);
    assert_eq!(a.offline_memory(range(FRAMES + 1000, 1)), first_absent);
    let there = Err(OnlineError::AlreadyOnline(Pfn::new(FRAMES + 2000)));
    assert_eq!(a.online_memory(range(FRAMES + 1500, 1000)), there);
    assert_eq!(a.verify().unwrap(), before);
    a.online_memory(range(FRAMES + 1000, 1000)).unwrap();
    assert_eq!(a.verify().unwrap().managed, PageCount::new(2 * FRAMES));
}

/// Holes are frames within a span that are not memory, but device registers or nothing at all.
fn frames_never_described_as_memory_cannot_come_online(way: Way) {
    run_on(0);
    let mut plan = Plan::even(2, 1, FRAMES);
    let at = |frame| FRAMES + frame;
    // The order of the ranges is: memory, a hole, memory to come online later, memory, memory to come online later, a
    // hole.
    plan.zones[0].4 = vec![(at(0), 1000), (at(3000), 5000)];
    plan.hotplug = vec![(at(2000), 1000), (at(8000), 2000)];
    let world = plan.accessed(way).build(&Config::default());
    let a = &world.allocator;
    let before = a.verify().unwrap();
    let refused = |start, count, frame| {
        let error = a.online_memory(range(at(start), count)).unwrap_err();
        let OnlineError::NeverDescribed { frame: found, range: whole, zone } = error else {
            panic!("{error}")
        };
        assert_eq!((found, whole), (Pfn::new(at(frame)), range(at(start), count)));
        assert_eq!((zone.node, zone.span), (node(0), range(FRAMES, FRAMES)));
        let text = error.to_string();
        let parts = [
            format!("frame {found} of the range ({whole}) "),
            format!("hole of zone Normal of node 0 (frames {FRAMES}-{})", 2 * FRAMES - 1),
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(1000, 1, 1000);
    refused(1500, 500, 1500);
    refused(1999, 2, 1999);
    refused(2000, 9000, 10_000);
    refused(9999, 2, 10_000);
    refused(FRAMES - 1, 1, FRAMES - 1);
    refused(0, FRAMES, 1000);
    assert_eq!(a.verify().unwrap(), before);
    // The range crosses the boundaries between memory that was taken offline and memory that has never been online.
    a.offline_memory(range(at(3000), 5000)).unwrap();
    a.online_memory(range(at(2500), 7000)).unwrap();
    a.online_memory(range(at(2000), 500)).unwrap();
    a.online_memory(range(at(9500), 500)).unwrap();
    assert_eq!(a.verify().unwrap().managed, before.managed.plus(PageCount::new(3000)));
    a.offline_memory(range(at(2000), 8000)).unwrap();
    a.online_memory(range(at(2000), 8000)).unwrap();
}

#[test]
fn a_machine_describes_memory_that_is_still_offline() {
    let refused = |hotplug: &[(u64, u64)], start| {
        let mut plan = Plan::even(2, 1, FRAMES);
        plan.zones[0].4 = vec![(FRAMES, 1000), (FRAMES + 2000, 1000)];
        plan.hotplug = hotplug.to_vec();
        let found = plan.try_build(&Config::default(), TestPlatform::default()).err();
        let error = TopologyError::BadHotplug { start: Pfn::new(start) };
        assert_eq!(found, Some(error.into()), "{hotplug:?}");
        assert!(error.to_string().contains(&start.to_string()));
    };
    for (start, count) in [
        (FRAMES + 999, 1),
        (FRAMES + 1500, 501),
        (FRAMES + 1500, 0),
        (FRAMES - 1, 2),
        (2 * FRAMES - 1, 2),
        (5 * FRAMES, 1),
        (FRAMES + 1500, u64::MAX),
        (u64::MAX, 1),
    ] {
        refused(&[(start, count)], start);
    }
    refused(&[(FRAMES + 1500, 10), (FRAMES + 1400, 10)], FRAMES + 1400);
    refused(&[(FRAMES + 1500, 10), (FRAMES + 1509, 10)], FRAMES + 1509);
}

/// Returns the machine of four nodes in two pairs.
fn quad() -> Plan {
    let near = |a: u16, b: u16| a / 2 == b / 2;
    Plan::with_distances(1, FRAMES, |a, b| if near(a, b) { 12 } else { 32 }, 4)
}

fn a_node_whose_memory_comes_late_gets_its_place_in_all_lists(way: Way) {
    let mut plan = quad();
    let memory = range(4 * FRAMES, FRAMES);
    plan.hotplug = std::mem::take(&mut plan.zones[3].4);
    let world = plan.accessed(way).build(&Config::default());
    let a = &world.allocator;
    assert_eq!(lists(&world, 4)[2..], [vec![2, 0, 1], vec![2, 1, 0]]);
    run_on(3);
    assert_eq!(a.alloc(&Request::page()).unwrap().node, node(2));
    assert!(a.alloc(&Request::page().this_node()).is_err());
    assert!(Policy::preferred(a, node(3)).is_err());
    a.online_memory(memory).unwrap();
    assert_eq!(lists(&world, 4), [vec![0, 1, 2, 3], vec![1, 0, 3, 2], vec![2, 3, 0, 1], vec![3, 2, 1, 0]]);
    assert_eq!(a.alloc(&Request::page()).unwrap().node, node(3));
    let policy = Policy::bind(a, NodeMask::from_iter([node(3)])).unwrap();
    let block = a.alloc(&Request::page().policy(&policy)).unwrap();
    assert_eq!(block.node, node(3));
    assert!(matches!(a.offline_memory(memory), Err(OnlineError::InUse { .. })));
    a.free(block.first, block.order).unwrap();
}

fn a_node_whose_memory_goes_leaves_all_lists(way: Way) {
    let world = quad().accessed(way).build(&Config::default());
    let a = &world.allocator;
    a.offline_memory(range(4 * FRAMES, FRAMES)).unwrap();
    assert_eq!(lists(&world, 4)[2..], [vec![2, 0, 1], vec![2, 1, 0]]);
    for (id, server) in [(3, 2), (2, 2), (1, 1), (0, 0)] {
        run_on(id);
        for o in [0, 3, 5, 9] {
            assert_eq!(a.alloc(&Request::new(order(o))).unwrap().node, node(server));
        }
    }
    a.verify().unwrap();
}

fn part_of_a_node_is_enough_to_stay_listed(way: Way) {
    let world = quad().accessed(way).build(&Config::default());
    let all = lists(&world, 4);
    world.allocator.offline_memory(range(4 * FRAMES, FRAMES - 1)).unwrap();
    assert_eq!(lists(&world, 4), all);
    world.allocator.offline_memory(range(5 * FRAMES - 1, 1)).unwrap();
    assert_ne!(lists(&world, 4), all);
}

fn watermarks_reserves_and_limits_follow_memory(way: Way) {
    run_on(0);
    let mut plan = Plan::even(1, 1, 4 * FRAMES);
    let start = 4 * FRAMES;
    plan.zones = vec![
        (0, ZoneKind::Dma32, start, FRAMES, vec![(start, FRAMES)]),
        (0, ZoneKind::Normal, start + FRAMES, 3 * FRAMES, vec![(start + FRAMES, 3 * FRAMES)]),
    ];
    let world = plan.accessed(way).build(&Config::default());
    let expect = |managed: [u64; 2]| {
        let settings = WatermarkSettings::default();
        let [dma32, normal] = managed.map(PageCount::new);
        let kinds = [(ZoneKind::Dma32, dma32), (ZoneKind::Normal, normal)];
        let basis = settings.basis(kinds.into_iter(), 4096);
        let of_node = [PageCount::ZERO, dma32, normal, PageCount::ZERO];
        for (at, (kind, managed)) in kinds.into_iter().enumerate() {
            let zone = zone(&world, at);
            assert_eq!(zone.managed, managed);
            assert_eq!(zone.watermarks, basis.watermarks(kind, managed));
            assert_eq!(zone.reserve, ZoneKind::ALL.map(|limit| settings.reserve(&of_node, kind, limit)));
            assert_eq!(zone.stat_threshold, stat_threshold(1, managed, 4096));
        }
    };
    expect([FRAMES, 3 * FRAMES]);
    let upper = range(start + 2 * FRAMES, 2 * FRAMES);
    world.allocator.offline_memory(upper).unwrap();
    expect([FRAMES, FRAMES]);
    world.allocator.offline_memory(range(start + FRAMES, FRAMES)).unwrap();
    expect([FRAMES, 0]);
    let block = world.allocator.alloc(&Request::new(Order::PAGE)).unwrap();
    assert_eq!(zone(&world, 0).id, block.zone, "the lower zone is home now");
    world.allocator.online_memory(upper).unwrap();
    expect([FRAMES, 2 * FRAMES]);
    world.allocator.verify().unwrap();
}

fn watermarks_that_no_memory_can_keep_are_refused(way: Way) {
    let world = Plan::even(2, 1, FRAMES).accessed(way).build(&Config::default());
    let before = zone(&world, 0);
    let managed = PageCount::new(2 * FRAMES);
    let with = |frames| WatermarkSettings {
        min_free: Some(PageCount::new(frames)),
        scale_factor: 50,
        ..WatermarkSettings::default()
    };
    let min_free = PageCount::new(2 * FRAMES + 1);
    let refused = Err(ConfigError::MinFree { min_free, managed });
    assert_eq!(world.allocator.set_watermarks(with(2 * FRAMES + 1)), refused);
    assert_eq!(zone(&world, 0), before);
    world.allocator.set_watermarks(with(2000)).unwrap();
    let marks = zone(&world, 1).watermarks;
    assert_eq!([marks.min, marks.low, marks.high].map(PageCount::get), [1000, 1250, 1500]);
    // All memory is reserved now, so only requests that may use the reserve succeed.
    world.allocator.set_watermarks(with(2 * FRAMES)).unwrap();
    run_on(0);
    assert!(world.allocator.alloc(&Request::page()).is_err());
    assert!(world.allocator.alloc(&Request::page().urgency(Urgency::Reserve)).is_ok());
}
