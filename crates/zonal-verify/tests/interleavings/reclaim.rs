//! Scenario of wake-ups of background reclaim: none may be lost when a zone falls below its watermark.
//!
//! The scenario's host has the state of the worker: a flag that a wake-up sets, and a cache whose frames can be
//! reclaimed.
//!
//! Related files: `world.rs` is the machine.

use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use zonal::Request;
use zonal::platform::Atomic;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::units::{NodeId, Order, PageCount, Pfn};

use crate::interleavings::cells::{Handle, Host};
use crate::interleavings::checker::Checker;
use crate::interleavings::world::{World, config, on};

/// State shared by a worker and the threads that allocate.
struct Worker<C: Checker> {
    world: OnceLock<Weak<World<C>>>,
    cache: Mutex<Vec<Pfn>>,
    flag: OnceLock<Handle<C, u32>>,
}

struct Requester<C: Checker>(Arc<Worker<C>>);

impl<C: Checker> Host for Requester<C> {
    fn wake(&self, _node: NodeId) {
        // This is the operation of the Linux host. Release: pairs with the acquire in `Worker::reclaim_if_woken`.
        self.0.flag().swap(1, AcqRel);
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

    /// Checks the flag once, and reclaims if it is set.
    fn reclaim_if_woken(&self, world: &World<C>) -> bool {
        let is_up = self.flag().swap(0, AcqRel) != 0; // acquire: pairs with the release of the waker
        if is_up {
            world.allocator().background_reclaim(NodeId::new(0).expect("it is small"));
        }
        is_up
    }
}

/// Number of frames of the zone.
const FRAMES: u64 = 32;
/// Number of frames in use when the jobs begin. The zone is then far above its watermarks.
const IN_USE: usize = 6;
/// Number of the frames in use that are in the cache.
const CACHED: usize = 3;
/// Order of a block whose allocation lowers the free frames of the zone from that state to `low`.
const SINKING: u8 = 4;

/// A woken worker checks the zone while a request lowers its free frames. The next request must wake the worker again.
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
            job.reclaim_if_woken(world);
        }),
    );
    while worker.reclaim_if_woken(&world) {}
    let (free, cached) = (zone().free, worker.cache.lock().expect("no thread failed").len());
    assert!(
        free > low || cached == 0,
        "{free} frames are free, {cached} are reclaimable, and no worker is awake"
    );
    world.check();
}
