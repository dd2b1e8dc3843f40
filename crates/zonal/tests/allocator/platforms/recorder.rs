//! Tests of platforms that record requests in the slow path: which requests they receive, with which facts and steps.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::common::scenarios::{TestAllocator, one_cpu, order, pages, with_min};
use crate::common::{World, node, run_on};
use zonal::config::Faults;
use zonal::explain::{Outcome, Step};
use zonal::platform::recorder::{Recorder, ServeObserved, SlowRequest};
use zonal::request::{Block, PageKind, Urgency};
use zonal::units::{CpuId, PageCount, Pfn, ZoneId, ZoneKind};
use zonal::{Config, NodeMask, Policy, Request};

/// A request that was recorded, the zone that served it, and its steps.
type Record = (SlowRequest, Option<ZoneId>, Vec<Step>);

/// A recorder that calls the allocator as often as the test says.
#[derive(Default)]
struct Log {
    calls: AtomicU32,
    records: Mutex<Vec<Record>>,
}

impl Recorder for Log {
    fn record(&self, request: &SlowRequest, serve: &mut ServeObserved<'_>) {
        let steps = Mutex::new(Vec::new());
        let served: Vec<_> =
            (0..self.calls.load(Relaxed)).map(|_| serve(&|step| steps.lock().unwrap().push(step))).collect();
        assert!(served.iter().skip(1).all(Option::is_none), "a request is served once");
        let served = served.first().copied().flatten();
        self.records.lock().unwrap().push((*request, served, steps.into_inner().unwrap()));
    }
}

/// Builds an allocator of two nodes with 4096 frames each, whose recorder calls it so often.
fn build(config: &Config, calls: u32) -> (TestAllocator, Arc<Log>) {
    run_on(0);
    let log = Arc::new(Log::default());
    log.calls.store(calls, Relaxed);
    let plan = one_cpu(&[4096, 4096], ZoneKind::Normal);
    let World { allocator, .. } =
        plan.build_of(config, |controls| controls.set_recorder(Arc::clone(&log) as _));
    (allocator, log)
}

fn take(log: &Log) -> Vec<Record> {
    std::mem::take(&mut log.records.lock().unwrap())
}

fn fill(allocator: &TestAllocator, request: &Request<'_>) -> Vec<Block> {
    core::iter::from_fn(|| allocator.alloc(request).ok()).collect()
}

fn free(allocator: &TestAllocator, blocks: impl IntoIterator<Item = Block>) {
    blocks.into_iter().for_each(|block| allocator.free(block.first, block.order).unwrap());
}

#[test]
fn a_request_served_elsewhere_is_recorded_with_its_steps() {
    let (allocator, log) = build(&with_min(600), 1);
    let block = allocator.alloc(&Request::page()).unwrap();
    assert_eq!(take(&log), [], "the preferred zone refills its pageset without the slow path");
    let held = fill(&allocator, &Request::page().this_node());
    take(&log);
    let request = Request::page().kind(PageKind::Cache).urgency(Urgency::Normal).no_wait();
    let other = allocator.alloc(&request).unwrap();
    assert_eq!(other.node, node(1));
    let [(found, served, steps)] = &take(&log)[..] else { panic!("one request") };
    let expected = SlowRequest {
        cpu: CpuId::new(0),
        node: node(0),
        preferred: Some(node(0)),
        order: order(0),
        frames: pages(1),
        kind: PageKind::Cache,
        urgency: Urgency::Normal,
        zone_limit: ZoneKind::Movable,
        may_reclaim: false,
    };
    assert_eq!((found, *served), (&expected, Some(other.zone)));
    let outcome = |step: &Step| match *step {
        Step::Zone { zone, outcome, .. } => (zone.node, outcome),
        step => panic!("{step}"),
    };
    assert!(matches!(outcome(&steps[0]), (of, Outcome::Below { .. }) if of == node(0)), "{steps:?}");
    assert_eq!(steps[1..].iter().map(outcome).collect::<Vec<_>>(), [(node(1), Outcome::Serves)]);

    // What a policy or a cpuset chooses is the preferred node.
    let only: NodeMask = [node(1)].into_iter().collect();
    let policy = Policy::preferred(&allocator, node(1)).unwrap();
    for (chosen, start) in [(request.allowed(&only), 0), (request.policy(&policy), 1)] {
        // An address limit, even one that excludes nothing, keeps pagesets from serving a request.
        let placed = chosen.below(Pfn::new(u64::MAX)).with_order(order(5));
        let block = allocator.alloc(&placed).unwrap();
        let [(found, served, _)] = &take(&log)[..] else { panic!("one request") };
        assert_eq!((found.node, found.preferred), (node(start), Some(node(1))));
        assert_eq!((found.frames, *served), (pages(32), Some(block.zone)));
        free(&allocator, [block]);
    }
    free(&allocator, held.into_iter().chain([block, other]));
    assert_eq!(allocator.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn every_form_of_request_that_fails_is_recorded() {
    let (allocator, log) = build(&with_min(600), 1);
    let held = fill(&allocator, &Request::page());
    let last = take(&log).pop().unwrap();
    assert_eq!(last.1, None);
    assert!(last.2.contains(&Step::BackgroundWoken), "{:?}", last.2);
    let count = PageCount::new(3);
    allocator.alloc_frames(&Request::page(), count).unwrap_err();
    allocator.alloc_contiguous(&Request::page(), PageCount::new(5000)).unwrap_err();
    allocator.alloc_bulk(&Request::page(), &mut [Default::default(); 2]).unwrap_err();
    let mut steps = Vec::new();
    allocator.alloc_explained(&Request::page(), |step| steps.push(step)).unwrap_err();
    let records = take(&log);
    let facts: Vec<_> = records.iter().map(|(found, served, _)| (found.frames.get(), *served)).collect();
    assert_eq!(facts, [(3, None), (5000, None), (1, None), (1, None)]);
    assert_eq!(records[3].2, steps, "both observers see the steps");
    assert_eq!(allocator.events().failures, 5);
    free(&allocator, held);
    take(&log);

    // A request for adjacent frames on another node than the preferred one.
    let held = fill(&allocator, &Request::page().this_node());
    take(&log);
    let run = allocator.alloc_contiguous(&Request::page(), PageCount::new(100)).unwrap();
    let [(found, served, _)] = &take(&log)[..] else { panic!("one request") };
    assert_eq!((found.preferred, *served, run.node), (Some(node(0)), Some(run.zone), node(1)));
    allocator.free_frames(run.range.start, run.range.count).unwrap();
    free(&allocator, held);
    assert_eq!(allocator.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn refusals_of_fault_injection_are_recorded_without_steps() {
    let (allocator, log) =
        build(&Config { faults: Faults::EveryNth(NonZeroU64::new(2).unwrap()), ..with_min(600) }, 1);
    let results: Vec<_> = (0..10).map(|_| allocator.alloc(&Request::page())).collect();
    let refused = results.iter().filter(|result| result.is_err()).count();
    let failed = take(&log).into_iter().filter(|(_, served, steps)| served.is_none() && steps.is_empty());
    assert_eq!((refused, failed.count()), (5, 5));
    free(&allocator, results.into_iter().flatten());
}

/// A recorder that breaks its contract costs no frames and no requests.
#[test]
fn requests_are_served_once_whatever_the_recorder_does() {
    for calls in [0, 2, 3] {
        let (allocator, log) = build(&with_min(600), calls);
        let held = fill(&allocator, &Request::page());
        let records = take(&log);
        assert!(records.iter().all(|(_, served, _)| calls > 0 || served.is_none()));
        assert!(records.len() > 10, "the second node served by the slow path");
        assert_eq!(allocator.accounting().allocated.get(), held.len() as u64);
        free(&allocator, held);
        assert_eq!(allocator.verify().unwrap().allocated, PageCount::ZERO);
    }
}
