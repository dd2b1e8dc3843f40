//! Tests that a platform receives each tracepoint exactly as often as the allocator counts it.
//!
//! `common/traced.rs` compares. Tests in other files compare too: with racing frees (`invalid_frees/races.rs`), and
//! whenever a test checks its world.

use std::sync::atomic::Ordering::Relaxed;

use crate::common::scenarios::{Scripted, all_free, caching, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, run_on};
use zonal::config::{Hardening, NodeReclaim, ZonelistCache};
use zonal::platform::reclaimer::ReclaimReason;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::Events;
use zonal::units::{Order, Pfn, ZoneKind};
use zonal::{Config, Request, Retirement};

const FRAMES: u64 = 1 << 13;
const TUNINGS: [PagesetTuning; 4] =
    [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];

fn checked(world: &World) -> Events {
    world.controls.traced.check(&world.allocator)
}

#[test]
fn refills_and_drains_of_every_order_are_reported() {
    for tuning in TUNINGS {
        let world = Plan::even(2, 2, 1 << 15).build(&Config { tuning, ..Config::default() });
        for of in 0..=10 {
            let request = Request::new(order(of));
            run_on(u32::from(of) % 4);
            let blocks: Vec<_> = (0..3000 >> of).map(|_| world.allocator.alloc(&request).unwrap()).collect();
            run_on(u32::from(of + 1) % 4);
            world.free(blocks);
            checked(&world);
        }
        all_free(&world);
        let events = checked(&world);
        assert!(
            events.refills > 10 && events.drains > 10 && events.remote_drains > 0,
            "{tuning:?}: {events}"
        );
    }
}

#[test]
fn every_reclaim_begins_and_ends() {
    for cache in [ZonelistCache::On, ZonelistCache::Original] {
        let config = Config { zonelist_cache: cache, node_reclaim: NodeReclaim::ON, ..with_min(600) };
        let world = one_cpu(&[4096, 4096], ZoneKind::Normal).build(&config).leak();
        let (cached, reclaimer) = caching(world, 1 << 20);
        cached.keep(world.alloc_all(&Request::page().no_wait()));
        for at in 0..400 {
            world.controls.advance_ms(500);
            cached.keep(world.allocator.alloc(&Request::page()));
            if at % 50 == 0 {
                world.allocator.background_reclaim(node(0));
            }
        }
        world.allocator.shrink_caches(node(1), pages(10));
        let reasons = reclaimer.take_requests();
        for reason in [ReclaimReason::Node, ReclaimReason::Background, ReclaimReason::Shrink] {
            assert!(reasons.iter().any(|request| request.reason == reason), "{cache:?}: {reason:?}");
        }
        assert_eq!(world.controls.traced.reclaims(), reasons.len() as u64);
        checked(world);
    }
}

/// The tracepoint's frame count is at most that of the zones, as in the counters.
#[test]
fn direct_reclaim_and_failed_requests_are_reported() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default()).leak();
    let held = world.alloc_all(&Request::page().no_wait());
    let barren = Scripted::new(8, |_, _| 0);
    world.controls.set_reclaimer(barren.clone());
    assert!(world.allocator.alloc(&Request::page()).is_err());
    assert!(world.allocator.alloc(&Request::new(order(9))).is_err());
    assert!(world.allocator.alloc_frames(&Request::page(), pages(3)).is_err());
    assert!(world.allocator.alloc_contiguous(&Request::page(), pages(FRAMES / 2)).is_err());
    let mut frames = [Pfn::default(); 3];
    assert!(world.allocator.alloc_bulk(&Request::page(), &mut frames).is_err());
    let events = checked(world);
    assert!(events.failures >= 5 && events.direct_stalls > 0, "{events}");
    world.controls.set_reclaimer(Scripted::new(8, |_, _| u64::MAX / 2)); // a liar
    assert!(world.allocator.alloc(&Request::page()).is_err());
    assert!(checked(world).direct_reclaimed >= FRAMES);
    assert!(barren.calls() > 0);
    world.free(held);
}

#[test]
fn retired_frames_are_reported_by_cause() {
    run_on(0);
    let hardening = Hardening { poison: Some(0x5a5a), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let world =
        Plan::even(1, 1, FRAMES).build_in(&config, |controls| controls.set_contents(FRAMES, FRAMES, 0x5a5a));
    let a = &world.allocator;
    let block = a.alloc(&Request::new(order(3))).unwrap();
    let bad = block.first.plus(pages(2));
    assert_eq!(a.retire(bad), Ok(Retirement::WhenFreed));
    assert_eq!(checked(&world).bad_frames, 0);
    a.free(block.first, block.order).unwrap();
    assert_eq!(a.retire(bad), Ok(Retirement::Done));
    assert_eq!(checked(&world).bad_frames, 1);
    assert_eq!(a.retire(Pfn::new(FRAMES + 4000)), Ok(Retirement::Done));
    let page = a.alloc(&Request::page()).unwrap();
    a.free(page.first, Order::PAGE).unwrap();
    world.controls.contents().word(page.first.get()).store(7, Relaxed);
    let others = world.alloc_all(&Request::page());
    assert!(others.iter().all(|other| other.first != page.first));
    let events = checked(&world);
    assert_eq!((events.bad_frames, events.poison_found), (2, 1));
}
