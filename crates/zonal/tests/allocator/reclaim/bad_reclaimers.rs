//! Reclaimers of every bad character, in every kind of reclaim: the allocator stays exact and all
//! others go on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};

use crate::common::effects::{Cache, Scripted, one_cpu, order, pages, with_min};
use crate::common::{Plan, World, node, range, run_on};
use zonal::config::NodeReclaim;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Config, Request};

const FRAMES: u64 = 4096;
const PLENTY: u64 = 1 << 20;

/// One node with 100 frames free, below `min`; the others are in the cache.
fn short_world(node_reclaim: NodeReclaim) -> (&'static World, Arc<Cache>) {
    let config = Config { node_reclaim, ..with_min(400) };
    let world = one_cpu(&[FRAMES], ZoneKind::Normal).build(&config).leak();
    run_on(0);
    let cache = Arc::new(Cache::default());
    cache.keep(world.leave_free(0, 100));
    (world, cache)
}

/// The three kinds of reclaim, each begun in its own way.
fn for_all_kinds(mut test: impl FnMut(&'static World, Arc<Cache>, &dyn Fn())) {
    let (world, cache) = short_world(NodeReclaim::OFF);
    test(world, cache, &|| world.free(world.allocator.alloc(&Request::page())));
    let (world, cache) = short_world(NodeReclaim::OFF);
    test(world, cache, &|| _ = world.allocator.background_reclaim(node(0)));
    let (world, cache) = short_world(NodeReclaim::ON);
    test(world, cache, &|| world.free(world.allocator.alloc(&Request::page().no_retry())));
}

/// Everything comes back and can be had once more: nothing was lost or doubled.
fn check_whole(world: &World, cache: &Cache) {
    world.controls.set_reclaimer(Arc::new(zonal::platform::reclaimer::NoReclaimer));
    world.check();
    assert!(!zonal::Platform::is_reclaiming(world.allocator.platform()));
    cache.give_up(&world.allocator, node(0), pages(u64::MAX));
    world.allocator.drain_pagesets();
    assert_eq!(world.allocator.verify().unwrap().free, pages(FRAMES));
    let all = world.leave_free(0, 0);
    assert_eq!(all.len() as u64, FRAMES);
    world.free(all);
    world.check();
}

/// Frees `freed` frames, fewer where there are fewer, and says that it was `claimed`.
fn liar(world: &'static World, cache: &Arc<Cache>, freed: u64, claimed: u64) -> Arc<Scripted> {
    let cache = Arc::clone(cache);
    Scripted::new(PLENTY, move |node, _| {
        cache.give_up(&world.allocator, node, pages(freed));
        claimed
    })
}

#[test]
fn claims_are_no_frames() {
    let figures = [0, 1, 31, 32, 33, 1000, FRAMES + 1, 1 << 32, u64::MAX - 1, u64::MAX];
    for freed in [0, 1, 32, 500] {
        for claimed in figures {
            for_all_kinds(|world, cache, work| {
                let reclaimer = liar(world, &cache, freed, claimed);
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

/// Progress that others use up, or that is only claimed, keeps a request for a small block at it for long, and
/// one for a block above order 3 for 16 rounds.
#[test]
fn large_blocks_are_worth_a_few_rounds_whatever_the_progress() {
    for (of, rounds) in [(0, 1024), (3, 1024), (4, 16), (9, 16)] {
        let (world, cache) = short_world(NodeReclaim::OFF);
        let reclaimer = liar(world, &cache, 0, 1);
        world.controls.set_reclaimer(reclaimer.clone());
        assert!(world.allocator.alloc(&Request::new(order(of))).is_err());
        assert_eq!(reclaimer.calls(), rounds, "order {of}");
        check_whole(world, &cache);
    }
}

/// One that says it has nothing is asked no more once it gives nothing, but not while it still gives.
#[test]
fn progress_counts_for_more_than_what_is_said_to_be_left() {
    for (claimed, rounds) in [(0, 1), (1, 1024)] {
        let (world, cache) = short_world(NodeReclaim::OFF);
        let reclaimer = Scripted::new(0, move |_, _| claimed);
        world.controls.set_reclaimer(reclaimer.clone());
        assert!(world.allocator.alloc(&Request::new(order(3))).is_err());
        assert_eq!(reclaimer.calls(), rounds, "{claimed} claimed");
        check_whole(world, &cache);
    }
}

/// Says it has `0` frames to give up, whatever was asked.
struct Boasts(u64);

impl Reclaimer for Boasts {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        pages(self.0)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

#[test]
fn promises_are_no_frames() {
    for count in [0, 1, FRAMES, u64::MAX] {
        for_all_kinds(|world, cache, work| {
            world.controls.set_reclaimer(Arc::new(Boasts(count)));
            work();
            assert_eq!(world.zone(0).free, pages(100));
            check_whole(world, &cache);
        });
    }
}

/// Panics when it is asked what it has, or amid its work.
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
        self.cache.give_up(&self.world.allocator, request.node, pages(request.target.get() / 2));
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
                // What came before the panic may be enough for the next.
                assert!(ended.is_err() || amid_work || world.allocator.events().background_rounds > 0);
                world.controls.advance_ms(1001);
            }
            check_whole(world, &cache);
        });
    }
}

/// What a reclaimer does to the allocator that called it.
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
    cache.give_up(a, node(0), pages(5));
    world.check();
}

#[test]
fn re_entering_is_allowed() {
    for_all_kinds(|world, cache, work| {
        let (keeper, deep) = (Arc::clone(&cache), AtomicBool::new(false));
        let reclaimer = Scripted::new(PLENTY, move |_, _| {
            // Its own background reclaim, begun from direct reclaim, is another context's.
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
fn while_one_blocks_everybody_else_goes_on() {
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

/// On every CPU: the one that is stuck in reclaim too.
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
