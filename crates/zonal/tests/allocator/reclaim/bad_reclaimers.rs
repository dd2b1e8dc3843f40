//! Tests of incorrect reclaimers in every reclaim kind. The accounting stays exact, and other requests succeed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};

use crate::common::scenarios::{Cache, Scripted, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, range, run_on};
use zonal::config::NodeReclaim;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Config, Request};

const FRAMES: u64 = 4096;
const PLENTY: u64 = 1 << 20;

/// Builds one node with 100 free frames, which is below `min`. All other frames are in the cache.
fn short_world(node_reclaim: NodeReclaim) -> (&'static World, Arc<Cache>) {
    let config = Config { node_reclaim, ..with_min(400) };
    let world = one_cpu(&[FRAMES], ZoneKind::Normal).build(&config).leak();
    run_on(0);
    let cache = Arc::new(Cache::default());
    cache.keep(world.leave_free(0, 100));
    (world, cache)
}

/// Runs `test` for direct, background and node reclaim, with a function that causes this kind of reclaim.
fn for_all_kinds(mut test: impl FnMut(&'static World, Arc<Cache>, &dyn Fn())) {
    let (world, cache) = short_world(NodeReclaim::OFF);
    test(world, cache, &|| world.free(world.allocator.alloc(&Request::page())));
    let (world, cache) = short_world(NodeReclaim::OFF);
    test(world, cache, &|| _ = world.allocator.background_reclaim(node(0)));
    let (world, cache) = short_world(NodeReclaim::ON);
    test(world, cache, &|| world.free(world.allocator.alloc(&Request::page().no_retry())));
}

/// Frees everything and checks that no frame was lost or allocated twice.
fn check_whole(world: &World, cache: &Cache) {
    world.controls.set_reclaimer(Arc::new(zonal::platform::reclaimer::NoReclaimer));
    world.check();
    assert!(!zonal::Platform::is_reclaiming(world.allocator.platform()));
    cache.reclaim(&world.allocator, node(0), pages(u64::MAX));
    world.allocator.drain_pagesets();
    assert_eq!(world.allocator.verify().unwrap().free, pages(FRAMES));
    let all = world.leave_free(0, 0);
    assert_eq!(all.len() as u64, FRAMES);
    world.free(all);
    world.check();
}

/// Creates a reclaimer that frees up to `freed` frames and always reports `claimed`.
fn overstating(world: &'static World, cache: &Arc<Cache>, freed: u64, claimed: u64) -> Arc<Scripted> {
    let cache = Arc::clone(cache);
    Scripted::new(PLENTY, move |node, _| {
        cache.reclaim(&world.allocator, node, pages(freed));
        claimed
    })
}

#[test]
fn frames_that_a_reclaimer_only_reports_do_not_count() {
    let figures = [0, 1, 31, 32, 33, 1000, FRAMES + 1, 1 << 32, u64::MAX - 1, u64::MAX];
    for freed in [0, 1, 32, 500] {
        for claimed in figures {
            for_all_kinds(|world, cache, work| {
                let reclaimer = overstating(world, &cache, freed, claimed);
                world.controls.set_reclaimer(reclaimer.clone());
                work();
                assert!(reclaimer.calls() > 0);
                let counted: u64 =
                    world.allocator.nodes().flat_map(|node| node.reclaimed).map(PageCount::get).sum();
                let possible = claimed.min(FRAMES) * reclaimer.calls() as u64;
                assert!(counted <= possible, "{counted} counted, {claimed} claimed of {freed}");
                check_whole(world, &cache);
            });
        }
    }
}

/// If reclaim only reports progress, or other requests use the frames that it frees, requests are retried. A request up
/// to order 3 is retried for 1024 rounds, and a larger one for 16, after at most four calls for a range.
#[test]
fn large_blocks_are_worth_a_few_rounds_whatever_the_progress() {
    for (of, rounds) in [(0, 1024), (3, 1024), (4, 16), (9, 16)] {
        let (world, cache) = short_world(NodeReclaim::OFF);
        let reclaimer = overstating(world, &cache, 0, 1);
        world.controls.set_reclaimer(reclaimer.clone());
        assert!(world.allocator.alloc(&Request::new(order(of))).is_err());
        let for_ranges = if of > 3 { 4 } else { 0 };
        assert!((rounds..=rounds + for_ranges).contains(&reclaimer.calls()), "order {of}");
        check_whole(world, &cache);
    }
}

/// If a reclaimer reports no reclaimable frames, it is called again only after a call that freed frames.
#[test]
fn progress_matters_more_than_the_count_of_reclaimable_frames() {
    for (claimed, rounds) in [(0, 1), (1, 1024)] {
        let (world, cache) = short_world(NodeReclaim::OFF);
        let reclaimer = Scripted::new(0, move |_, _| claimed);
        world.controls.set_reclaimer(reclaimer.clone());
        assert!(world.allocator.alloc(&Request::new(order(3))).is_err());
        assert_eq!(reclaimer.calls(), rounds, "{claimed} claimed");
        check_whole(world, &cache);
    }
}

/// A reclaimer that reports this number of reclaimable frames for every request.
struct CountsOnly(u64);

impl Reclaimer for CountsOnly {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        pages(self.0)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

#[test]
fn counts_of_frames_that_are_not_freed_change_nothing() {
    for count in [0, 1, FRAMES, u64::MAX] {
        for_all_kinds(|world, cache, work| {
            world.controls.set_reclaimer(Arc::new(CountsOnly(count)));
            work();
            assert_eq!(world.zone(0).free, pages(100));
            check_whole(world, &cache);
        });
    }
}

/// A reclaimer that panics while it counts, or during its work.
struct Panics {
    world: &'static World,
    cache: Arc<Cache>,
    amid_work: bool,
}

impl Reclaimer for Panics {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        assert!(self.amid_work, "on purpose, while counting");
        pages(PLENTY)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if !self.amid_work {
            return PageCount::ZERO;
        }
        let held = self.world.allocator.alloc(&Request::page()).expect("the reserve");
        self.cache.reclaim(&self.world.allocator, request.node, pages(request.target.get() / 2));
        self.world.free([held]);
        panic!("on purpose, amid the work");
    }
}

#[test]
fn panics_end_one_request_and_nothing_else() {
    for amid_work in [false, true] {
        for_all_kinds(|world, cache, work| {
            world.controls.set_reclaimer(Arc::new(Panics { world, cache: Arc::clone(&cache), amid_work }));
            for _ in 0..20 {
                let ended = catch_unwind(AssertUnwindSafe(work));
                world.check();
                // Frames that were freed before the panic may suffice for the next request.
                assert!(ended.is_err() || amid_work || world.allocator.events().background_rounds > 0);
                world.controls.advance_ms(1001);
            }
            check_whole(world, &cache);
        });
    }
}

/// Calls the allocator from within its reclaimer, in all allowed ways.
fn re_enter(world: &World, cache: &Cache) {
    let a = &world.allocator;
    let held: Vec<_> = (0..=3).filter_map(|at| a.alloc(&Request::new(order(at))).ok()).collect();
    assert!(held.len() >= 3, "the reserve is there for reclaimers");
    let mut bulk = [zonal::units::Pfn::new(0); 10];
    let came = a.alloc_bulk(&Request::page(), &mut bulk).expect("the reserve");
    a.drain_pagesets();
    a.free_bulk(&bulk[..came]).unwrap();
    world.free(held);
    a.tick();
    assert_eq!(a.background_reclaim(node(0)), PageCount::ZERO, "no reclaim within reclaim");
    a.set_high_fraction(8);
    a.set_high_fraction(0);
    a.set_watermarks(with_min(400).watermarks).unwrap();
    a.offline_cpu(CpuId::new(0)).expect_err("it is the last");
    a.offline_memory(range(4096, FRAMES)).expect_err("most is in use");
    cache.reclaim(a, node(0), pages(5));
    world.check();
}

#[test]
fn re_entering_is_allowed() {
    for_all_kinds(|world, cache, work| {
        let (keeper, deep) = (Arc::clone(&cache), AtomicBool::new(false));
        let reclaimer = Scripted::new(PLENTY, move |_, _| {
            // Direct reclaim may begin background reclaim from within this call, which calls the reclaimer again. The
            // nested call does nothing.
            if !deep.swap(true, Relaxed) {
                re_enter(world, &keeper);
                deep.store(false, Relaxed);
            }
            0
        });
        world.controls.set_reclaimer(reclaimer.clone());
        work();
        assert!(reclaimer.calls() > 0);
        check_whole(world, &cache);
    });
}

#[test]
fn other_threads_continue_while_one_blocks_in_reclaim() {
    for background in [false, true] {
        let world = Plan::even(2, 2, FRAMES).build(&with_min(800)).leak();
        run_on(0);
        let mut held = world.leave_free(0, 100);
        held.extend(world.leave_free(1, 2000));
        let (blocked, is_blocked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let (blocked, released) = (Mutex::new(blocked), Mutex::new(released));
        let calls = AtomicU64::new(0);
        let reclaimer = Scripted::new(PLENTY, move |_, _| {
            if calls.fetch_add(1, Relaxed) == 0 {
                blocked.lock().unwrap().send(()).unwrap();
                released.lock().unwrap().recv().unwrap();
            }
            0
        });
        world.controls.set_reclaimer(reclaimer);
        std::thread::scope(|scope| {
            let stuck = scope.spawn(move || {
                run_on(0);
                let one = world.allocator.alloc(&Request::page().this_node().no_retry());
                if background {
                    world.allocator.background_reclaim(node(0)).get()
                } else {
                    one.iter().len() as u64
                }
            });
            is_blocked.recv().unwrap();
            others_go_on(world, &mut held);
            release.send(()).unwrap();
            assert_eq!(stuck.join().unwrap(), 0, "nothing came of it");
        });
        world.free(held);
        world.allocator.drain_pagesets();
        assert_eq!(world.allocator.verify().unwrap().free, pages(2 * FRAMES));
    }
}

/// Runs operations on every CPU, including the one that is stuck in reclaim.
fn others_go_on(world: &World, held: &mut Vec<zonal::request::Block>) {
    let a = &world.allocator;
    for round in 0..400 {
        run_on(round % 4);
        held.extend(a.alloc(&Request::page()));
        if round % 7 == 0 {
            held.extend(a.alloc(&Request::new(order(2)).no_wait()));
        }
        world.free(held.pop());
        if round % 50 == 0 {
            a.drain_pagesets();
            a.tick();
            world.controls.advance_ms(1001);
        }
    }
    assert_eq!(a.background_reclaim(node(1)), PageCount::ZERO);
    a.offline_cpu(CpuId::new(0)).unwrap();
    a.online_cpu(CpuId::new(0)).unwrap();
    a.set_watermarks(with_min(700).watermarks).unwrap();
    assert!(a.accounting().balance());
}
