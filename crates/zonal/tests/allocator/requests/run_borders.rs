//! Tests of runs, ranges and address limits at the borders of their rules.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{Scripted, one_cpu, pages, with_min};
use crate::common::{Plan, World, order, range, run_on};
use zonal::config::{Faults, Hardening, NodeReclaim, ZeroOn};
use zonal::error::{AllocError, FreeError};
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::request::PageKind;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, Request};

const FRAMES: u64 = 1 << 14;
const START: u64 = FRAMES;

#[test]
fn a_split_makes_no_blocks_above_the_largest_order() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    a.alloc_range(range(START, 4096), PageKind::User).unwrap();
    a.split_frames(Pfn::new(START), pages(4096), order(12)).unwrap();
    assert!(a.free(Pfn::new(START), order(12)).is_err());
    a.free(Pfn::new(START + 1024), order(10)).unwrap();
    a.verify().unwrap();
    assert_eq!(a.events().retired, 0);
}

#[test]
fn a_count_beyond_the_zone_is_refused_with_the_frames_that_are_allocated() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let first = a.alloc_frames(&Request::page(), pages(11)).unwrap().range.start;
    let e = a.free_frames(first, pages(u64::MAX)).unwrap_err();
    assert_eq!(
        e,
        FreeError::WrongCount { frame: first, allocated: pages(11), given: pages(u64::MAX) },
        "{e}"
    );
}

#[test]
fn a_run_is_not_reported_as_free_when_it_is_freed_as_a_block() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    a.alloc_range(range(START + 5, 4), PageKind::User).unwrap();
    a.alloc_range(range(START + 2048, 2048), PageKind::User).unwrap();
    for (f, o) in [(START + 5, 2), (START + 2048, 11)] {
        let e = a.free(Pfn::new(f), order(o)).unwrap_err();
        assert_ne!(e, FreeError::NotAllocated(Pfn::new(f)), "the frame is allocated");
    }
}

#[test]
fn ranges_are_zeroed_if_every_allocation_is() {
    run_on(0);
    let hardening = Hardening { zero: ZeroOn::EveryAllocation, ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let world = Plan::even(1, 1, FRAMES).build_in(&config, |c| c.set_contents(START, FRAMES, 0xdead));
    let a = &world.allocator;
    let f = a.alloc_contiguous(&Request::page(), pages(3)).unwrap();
    assert_eq!(world.controls.contents().word(f.range.start.get()).load(Relaxed), 0, "contiguous");
    a.alloc_range(range(START + 5000, 3), PageKind::User).unwrap();
    assert_eq!(world.controls.contents().word(START + 5000).load(Relaxed), 0, "range");
}

#[test]
fn contiguous_requests_count_numa_events_once() {
    run_on(0);
    let world = Plan::even(2, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let sum = |w: &World| w.allocator.zones().map(|z| z.locality.hit + z.locality.miss).sum::<u64>();
    let b = sum(&world);
    a.alloc_frames(&Request::page(), pages(3)).unwrap();
    assert_eq!(sum(&world), b + 1, "alloc_frames");
    a.alloc_contiguous(&Request::page(), pages(3)).unwrap();
    assert_eq!(sum(&world), b + 2, "alloc_contiguous");
}

#[test]
fn a_limit_below_the_start_of_a_zone_excludes_it() {
    run_on(0);
    // Node 0's zone begins at an unaligned frame; node 1 is lower.
    let mut plan = Plan::even(2, 1, FRAMES);
    plan.zones = vec![
        (0, ZoneKind::Normal, 3 * FRAMES + 4000, FRAMES, vec![(3 * FRAMES + 4000, FRAMES)]),
        (1, ZoneKind::Normal, FRAMES, FRAMES, vec![(FRAMES, FRAMES)]),
    ];
    let world = plan.build(&Config::default());
    let a = &world.allocator;
    let limit = Pfn::new(3 * FRAMES + 3000);
    let block = a.alloc(&Request::page().below(limit)).unwrap();
    assert_eq!(block.node.get(), 1);
    let z: Vec<_> = a.zones().map(|z| (z.node.get(), z.locality)).collect();
    let mut listed = 0;
    a.shortage(&Request::page().below(limit), |_| listed += 1).unwrap();
    assert_eq!(listed, 1, "zones that may serve");
    assert!(z.iter().all(|(_, l)| l.miss == 0 && l.foreign == 0), "the only zone in reach served");
}

#[test]
fn failures_do_not_say_that_a_zone_would_serve() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    a.alloc_range(range(START + FRAMES / 2, 1), PageKind::User).unwrap();
    let e = a.alloc_contiguous(&Request::page(), pages(FRAMES / 2 + 10)).unwrap_err();
    assert_eq!(
        e,
        AllocError::NotContiguous {
            count: pages(FRAMES / 2 + 10),
            longest: pages(FRAMES / 2),
            ranges_ignored: false
        }
    );
    a.alloc_range(range(START, 100), PageKind::User).unwrap();
    let e = a.alloc(&Request::page().below(Pfn::new(START + 100))).unwrap_err();
    let AllocError::OutOfMemory(s) = e else { panic!("{e}") };
    assert_eq!(s.verdicts.would_serve, 0);
}

struct Ranged {
    world: std::sync::OnceLock<&'static World>,
    asked: std::sync::Mutex<Vec<ReclaimRequest>>,
    frees: Vec<u64>,
}
impl Reclaimer for Ranged {
    fn count(&self, _r: &ReclaimRequest) -> PageCount {
        pages(self.frees.len() as u64)
    }
    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.asked.lock().unwrap().push(*request);
        let Some(wanted) = request.range.filter(|_| request.reason == ReclaimReason::Range) else {
            return PageCount::ZERO;
        };
        let w = self.world.get().unwrap();
        let mut n = 0;
        for &f in &self.frees {
            if wanted.contains(&range(f, 1)) && w.allocator.free(Pfn::new(f), Order::PAGE).is_ok() {
                n += 1;
            }
        }
        pages(n)
    }
}

#[test]
fn ranges_with_holes_are_not_reclaimed() {
    run_on(0);
    let mut plan = Plan::even(1, 1, FRAMES);
    // A hole of one frame in the last quarter.
    plan.zones =
        vec![(0, ZoneKind::Normal, START, FRAMES, vec![(START, 15000), (START + 15001, FRAMES - 15001)])];
    let world: &'static World = Box::leak(Box::new(plan.build(&Config::default())));
    let a = &world.allocator;
    let frees: Vec<u64> = (0..14000).step_by(16).map(|at| START + at).collect();
    for &f in &frees {
        a.alloc_range(range(f, 1), PageKind::Cache).unwrap();
    }
    let r = Arc::new(Ranged { world: std::sync::OnceLock::new(), asked: Default::default(), frees });
    assert!(r.world.set(world).is_ok());
    world.controls.set_reclaimer(r.clone());
    let got = a.alloc_contiguous(&Request::page(), pages(2000));
    assert!(got.is_ok(), "frames 0..14000 can all be reclaimed: {}", got.unwrap_err());
}

#[test]
fn a_limited_request_does_not_stop_node_reclaim_for_others() {
    let mut tried = Vec::new();
    for with_limit in [false, true] {
        let config = Config { node_reclaim: NodeReclaim::ON, ..with_min(6000) };
        let world = one_cpu(&[8192, 1 << 16], ZoneKind::Normal).build(&config).leak();
        run_on(0);
        let marks = world.zone(0).watermarks;
        let cache = std::sync::Mutex::new(world.leave_free(0, 0));
        // Keeps the lowest frames, frees the highest ones: first 32, then so many that `min` but not `low` is passed.
        let calls = AtomicU64::new(0);
        let reclaimer = Scripted::by_request(
            |r: &ReclaimRequest| if r.reason == ReclaimReason::Node { 1 << 20 } else { 0 },
            move |request: &ReclaimRequest| {
                if request.node.get() != 0 || request.reason != ReclaimReason::Node {
                    return 0;
                }
                let call = calls.fetch_add(1, Relaxed);
                let mut cache = cache.lock().unwrap();
                let free = world.zone(0).free.get();
                let n =
                    if call == 0 { 32 } else { marks.min.get() + 5 - free.min(marks.min.get() + 5) } as usize;
                let n = n.max(1);
                let at = cache.len() - n;
                let out: Vec<_> = cache.drain(at..).collect();
                world.free(out);
                world.allocator.drain_pagesets();
                n as u64
            },
        );
        world.controls.set_reclaimer(reclaimer.clone());
        if with_limit {
            let policy = zonal::Policy::preferred(&world.allocator, crate::common::node(0)).unwrap();
            let _limited =
                world.allocator.alloc(&Request::page().policy(&policy).below(Pfn::new(4096 + 3)).no_retry());
        }
        let before = reclaimer.calls();
        world.allocator.alloc(&Request::page()).unwrap();
        tried.push(reclaimer.calls() - before);
    }
    assert!(tried[1] > 0, "{tried:?}: a request with an address limit recorded that node reclaim failed");
}

#[test]
fn node_reclaim_runs_for_the_last_part_below_the_limit() {
    let mut seen = Vec::new();
    for limit in [None, Some(Pfn::new((1 << 20) + 8192))] {
        let config = Config { node_reclaim: NodeReclaim::ON, ..with_min(600) };
        let mut plan = one_cpu(&[8192, 1 << 16], ZoneKind::Normal);
        plan.zones = vec![
            (0, ZoneKind::Normal, 1 << 20, 8192, vec![(1 << 20, 8192)]),
            (0, ZoneKind::Normal, 3 << 20, 8192, vec![(3 << 20, 8192)]),
            (1, ZoneKind::Normal, 4096, 1 << 16, vec![(4096, 1 << 16)]),
        ];
        let world = plan.build(&config).leak();
        run_on(0);
        world.alloc_node(0);
        let reclaimer = Scripted::by_request(|_| 1 << 20, |_| 0);
        world.controls.set_reclaimer(reclaimer.clone());
        let mut request = Request::page();
        if let Some(limit) = limit {
            request = request.below(limit);
        }
        let _ = world.allocator.alloc(&request);
        seen.push(world.allocator.events().node_reclaim_some + world.allocator.events().node_reclaim_success);
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}: node reclaim of node 0");
}

#[test]
fn fault_injection_refuses_runs_and_ranges() {
    run_on(0);
    let faults = Faults::EveryNth(std::num::NonZeroU64::new(1).unwrap());
    let world = Plan::even(1, 1, FRAMES).build(&Config { faults, ..Config::default() });
    let a = &world.allocator;
    assert!(a.alloc_frames(&Request::page(), pages(3)).is_err());
    assert!(a.alloc_contiguous(&Request::page(), pages(3)).is_err(), "contiguous");
}
