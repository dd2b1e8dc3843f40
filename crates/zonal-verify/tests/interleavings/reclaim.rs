//! Wake-ups of background reclaim: a zone that has sunk below its mark is never forgotten.
//!
//! The scenario's host is the worker's side: a flag that a wake-up raises, and a cache that gives
//! frames up. Neighbours: `world.rs`.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use zonal::Request;
use zonal::platform::Atomic;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::units::{NodeId, Order, PageCount, Pfn};

use crate::interleavings::cells::{Handle, Host};
use crate::interleavings::checker::Checker;
use crate::interleavings::world::{World, config, on};

/// What a worker and its requesters share.
struct Worker<C: Checker> {
    world: OnceLock<Weak<World<C>>>,
    cache: Mutex<Vec<Pfn>>,
    flag: OnceLock<Handle<C, u32>>,
}

struct Requester<C: Checker>(Arc<Worker<C>>);

impl<C: Checker> Host for Requester<C> {
    fn wake(&self, _node: NodeId) {
        self.0.flag().swap(1, AcqRel); // as the Linux host: the release shows what came before
    }

    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.0.cache.lock().expect("no thread failed").len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let world = self.0.world.get().and_then(Weak::upgrade).expect("the world is there");
        let mut freed = 0;
        while freed < request.target.get() {
            let next = self.0.cache.lock().expect("no thread failed").pop();
            let Some(frame) = next else { break };
            world.free(frame);
            freed += 1;
        }
        PageCount::new(freed)
    }
}

impl<C: Checker> Worker<C> {
    fn flag(&self) -> &Handle<C, u32> {
        self.flag.get().expect("set at the start")
    }

    /// One look at the flag, and the work that it asks for.
    fn look(&self, world: &World<C>) -> bool {
        let is_up = self.flag().swap(0, AcqRel) != 0; // acquires what the waker did before
        if is_up {
            world.allocator().background_reclaim(NodeId::new(0).expect("it is small"));
        }
        is_up
    }
}

/// Frames of the zone.
const FRAMES: u64 = 32;
/// Frames that are in use when the jobs begin; the zone is then far above its marks.
const IN_USE: usize = 6;
/// Those of them that are in the cache.
const CACHED: usize = 3;
/// A block of this order takes the zone from there down to `low`.
const SINKING: u8 = 4;

/// A worker that was woken looks at the zone while a request sinks it, and the next one wants the worker.
pub(crate) fn no_wake_up_is_lost<C: Checker>() {
    let worker = Arc::new(Worker { world: OnceLock::new(), cache: Mutex::default(), flag: OnceLock::new() });
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(8), Box::new(Requester(Arc::clone(&worker))));
    worker.world.set(Arc::downgrade(&world)).ok();
    worker.flag.set(Handle::new(0)).ok();
    let zone = || world.allocator().zones().next().expect("there is a zone");
    while worker.flag().load(Relaxed) == 0 {
        world.page();
        world.allocator().drain_pagesets(); // frame by frame
    }
    world.owned().into_iter().skip(IN_USE).for_each(|frame| world.free(frame));
    world.allocator().drain_pagesets();
    let cached = world.owned().into_iter().take(CACHED);
    worker.cache.lock().expect("no thread failed").extend(cached);
    let low = zone().watermarks.low;
    assert_eq!(zone().free, low.plus(PageCount::new(1 << SINKING)));

    let job = Arc::clone(&worker);
    world.at_once(
        on(0, |world| {
            let large = Request::new(Order::new(SINKING).expect("it is small"));
            world.alloc(&large).expect("there is memory");
            world.page();
        }),
        on(1, move |world| {
            job.look(world);
        }),
    );
    while worker.look(&world) {}
    let (free, cached) = (zone().free, worker.cache.lock().expect("no thread failed").len());
    assert!(free > low || cached == 0, "{free} frames are free, {cached} could be, and nobody is awake");
    world.check();
}
