//! Tests of exhausted memory: how many frames of each zone are used, that every request ends with a report, and that
//! everything can be freed again.

use std::sync::Mutex;

use crate::common::scenarios::{Scripted, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, run_on};
use zonal::error::{AllocError, Shortage};
use zonal::request::Urgency;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::ZoneKind;
use zonal::{Config, Request};

fn shortage(world: &World, request: &Request<'_>) -> Shortage {
    match world.allocator.alloc(request) {
        Err(AllocError::OutOfMemory(shortage)) => shortage,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_request_ends_with_a_report() {
    for nodes in [1, 4] {
        let world = Plan::even(nodes, 1, 2048).build(&with_min(100 * u64::from(nodes)));
        run_on(0);
        let barren = Scripted::new(1000, |_, _| 0); // reports reclaimable frames, but frees none
        world.controls.set_reclaimer(barren);
        let held = world.alloc_all(&Request::page());
        assert!(held.len() > usize::from(nodes) * 1900);
        for at in 0..300_u16 {
            let of = (at % 11) as u8;
            let request = Request::new(order(of));
            let (found, events) = world.during(|| shortage(&world, &request));
            // Reclaim makes no progress, so it is tried 16 times, for a large block after up to four attempts in each zone
            // to empty a range. There is a scan at low, up to three at min, one scan for each round, and a last scan. Each
            // of these scans may count twice.
            assert_eq!(events.failures, 1);
            let for_ranges = if of > 3 { 4 * u64::from(nodes) } else { 0 };
            assert!((16..=16 + for_ranges).contains(&events.direct_stalls), "{}", events.direct_stalls);
            assert!(events.probes <= (4 + 16 + 1) * 2 * u64::from(nodes), "{} probes", events.probes);
            let sum =
                |figure: fn(&ZoneSnapshot) -> u64| world.allocator.zones().map(|z| figure(&z)).sum::<u64>();
            assert_eq!(found.order.get(), of);
            assert_eq!((found.node, found.zones), (node(0), u32::from(nodes)));
            assert_eq!(found.free.get(), sum(|zone| zone.free.get()));
            assert_eq!(found.min.get(), sum(|zone| zone.watermarks.min.get()));
            assert_eq!(found.low.get(), sum(|zone| zone.watermarks.low.get()));
            assert_eq!(found.high.get(), sum(|zone| zone.watermarks.high.get()));
            assert_eq!(found.in_pagesets.get(), sum(|zone| zone.in_pagesets.get()));
            let text = AllocError::OutOfMemory(found).to_string();
            for figure in [found.free, found.min, found.low, found.high, found.in_pagesets] {
                assert!(text.contains(&figure.get().to_string()), "{text}");
            }
            let mut zones = Vec::new();
            world.allocator.shortage(&request, |zone| zones.push(zone)).unwrap();
            assert_eq!(zones.len(), usize::from(nodes));
            assert_eq!(zones.iter().map(|zone| zone.free).sum::<zonal::units::PageCount>(), found.free);
            world.controls.advance_ms(u64::from(at));
        }
        world.free(held);
        world.allocator.drain_pagesets();
        let accounting = world.allocator.verify().unwrap();
        assert_eq!((accounting.free, accounting.allocated), (accounting.managed, pages(0)));
        assert!(world.alloc_all(&Request::page()).len() > usize::from(nodes) * 1900, "and once more");
    }
}

#[test]
fn a_request_fails_after_one_round_without_reclaimable_frames() {
    let world = one_cpu(&[2048], ZoneKind::Normal).build(&with_min(100));
    run_on(0);
    world.alloc_all(&Request::page());
    world.controls.set_reclaimer(Scripted::new(0, |_, _| 0));
    let (_, events) = world.during(|| shortage(&world, &Request::page()));
    assert_eq!((events.direct_stalls, events.failures), (1, 1));
}

#[test]
fn requests_that_must_not_wait_or_retry_fail_sooner() {
    let world = one_cpu(&[2048], ZoneKind::Normal).build(&with_min(100));
    run_on(0);
    world.alloc_all(&Request::page().no_wait());
    for (request, rounds) in [(Request::page().no_wait(), 0), (Request::page().no_retry(), 1)] {
        let (_, events) = world.during(|| shortage(&world, &request));
        assert_eq!(events.direct_stalls, rounds);
    }
}

#[test]
fn large_orders_give_up_after_sixteen_rounds() {
    let world = one_cpu(&[4096], ZoneKind::Normal).build(&with_min(100));
    run_on(0);
    let held = world.leave_free(0, 0);
    world.free(held.into_iter().filter(|block| block.first.get() % 16 == 0));
    world.allocator.drain_pagesets();
    // Reclaim frees frames, but never contiguous ones.
    for (of, rounds) in [(4, 17), (9, 17), (10, 17)] {
        world.controls.set_reclaimer(Scripted::new(1000, |_, _| 1));
        let (_, events) = world.during(|| shortage(&world, &Request::new(order(of))));
        assert_eq!(events.direct_stalls, rounds, "order {of}");
    }
}

#[test]
fn frames_cached_by_other_cpus_are_found_before_failing() {
    let world = Plan::even(1, 4, 1 << 16).build(&with_min(100));
    run_on(0);
    let mut held = world.alloc_all(&Request::page().no_wait());
    for cpu in 1..4 {
        run_on(cpu);
        world.free(held.drain(..60));
    }
    run_on(0);
    let (got, events) = world.during(|| world.alloc_all(&Request::page().no_wait()));
    assert_eq!(got.len(), 180);
    assert!(events.remote_drains >= 3);
}

#[test]
fn pagesets_are_swept_once_not_every_round() {
    let world = Plan::even(1, 2, 1 << 16).build(&with_min(100)).leak();
    run_on(0);
    let held = Mutex::new(world.alloc_all(&Request::page().no_wait()));
    // Reclaim frees frames, but each of them goes into another CPU's pageset. In the end these are more than the drift
    // of the counters.
    world.controls.set_reclaimer(Scripted::new(1000, move |_, _| {
        run_on(1);
        world.free(held.lock().unwrap().drain(..2));
        run_on(0);
        0
    }));
    let (block, events) = world.during(|| world.allocator.alloc(&Request::page()));
    assert!(block.is_ok());
    assert_eq!((events.direct_stalls, events.remote_drains), (16, 1));
}

#[test]
fn urgent_requests_go_deeper() {
    let world = one_cpu(&[1 << 15], ZoneKind::Normal).build(&with_min(1000));
    run_on(0);
    let min = world.zone(0).watermarks.min.get();
    let half = min - min / 2;
    for (urgency, floor) in
        [(Urgency::Normal, min), (Urgency::High, half), (Urgency::Atomic, half - half / 4)]
    {
        world.alloc_all(&Request::page().urgency(urgency).no_wait());
        let off = world.zone(0).free.get().abs_diff(floor);
        assert!(off <= u64::from(world.zone(0).stat_threshold), "{urgency:?} is off by {off}");
    }
}

/// Builds a node with one CPU and with DMA, DMA32 and Normal zones, like a real machine.
fn three_zones() -> World {
    let mut plan = one_cpu(&[4096], ZoneKind::Dma);
    plan.zones = vec![
        (0, ZoneKind::Dma, 0, 4096, vec![(1, 3840)]),
        (0, ZoneKind::Dma32, 4096, 1 << 17, vec![(4096, 1 << 17)]),
        (0, ZoneKind::Normal, 1 << 20, 1 << 16, vec![(1 << 20, 1 << 16)]),
    ];
    plan.build(&Config::default())
}

#[test]
fn zones_plateau_at_low_and_their_reserve_then_fall_to_min() {
    let world = three_zones();
    run_on(0);
    let of = |kind| world.allocator.zones().find(|zone| zone.kind == kind).unwrap();
    let kinds = [ZoneKind::Normal, ZoneKind::Dma32, ZoneKind::Dma];
    let floor = |zone: &ZoneSnapshot, mark: zonal::units::PageCount| {
        mark.get() + zone.reserve[ZoneKind::Movable.index()].get()
    };
    // These are the frames that a request that could use Normal must leave in each zone.
    let reserves = kinds.map(|kind| of(kind).reserve[ZoneKind::Movable.index()].get());
    assert_eq!(reserves, [0, (1 << 16) / 256, ((1 << 17) + (1 << 16)) / 256]);
    let (mut held, mut serving) = (Vec::new(), 0);
    let error = loop {
        let block = match world.allocator.alloc(&Request::page()) {
            Ok(block) => block,
            Err(error) => break error,
        };
        held.push(block);
        let from = world.allocator.zones().find(|zone| zone.id == block.zone).unwrap().kind;
        if serving < 3 && from != kinds[serving] {
            // The next zone serves for the first time, so the previous zone has fallen to `low` plus its reserve.
            let zone = of(kinds[serving]);
            let off = zone.free.get().abs_diff(floor(&zone, zone.watermarks.low));
            assert!(off <= u64::from(zone.stat_threshold), "{:?}: {} free", zone.kind, zone.free);
            serving += 1;
            assert!(serving == 3 || from == kinds[serving]);
        }
    };
    assert!(matches!(error, AllocError::OutOfMemory(_)));
    assert_eq!(serving, 3, "below low, Normal serves again");
    for zone in world.allocator.zones() {
        let off = zone.free.get().abs_diff(floor(&zone, zone.watermarks.min));
        assert!(off <= u64::from(zone.stat_threshold), "{:?}: {} free", zone.kind, zone.free);
        assert_eq!(zone.in_pagesets, pages(0));
    }
    // The reserve of a zone is for requests that can use no higher zone.
    for kind in [ZoneKind::Dma, ZoneKind::Dma32] {
        let more = world.alloc_all(&Request::page().zone_limit(kind).no_wait());
        let zone = of(kind);
        assert!(zone.free.get().abs_diff(zone.watermarks.min.get()) <= u64::from(zone.stat_threshold) + 512);
        assert!(!more.is_empty(), "{kind}");
        held.extend(more);
    }
    world.free(held);
    world.allocator.drain_pagesets();
    let accounting = world.allocator.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
}
