//! Scenarios of reclaim: no wake-up of background reclaim is lost when a zone falls below its watermark, and a request
//! that empties a range loses no frame to others that use the range.
//!
//! The hosts in the scenarios have the worker's state, which is a flag that a wake-up sets, and a cache whose frames
//! can be reclaimed.
//!
//! Related files: `world.rs` is the machine, `memory.rs` has scenarios of fences and retirements.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use zonal::machine::FrameRange;
use zonal::platform::Atomic;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::Urgency;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{Block, Request};

use crate::interleavings::cells::Handle;
use crate::interleavings::checker::Checker;
use crate::interleavings::memory::{check_others, retire};
use crate::interleavings::model::Host;
use crate::interleavings::world::{World, config, on, start};

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

/// The zone's frame count.
const FRAMES: u64 = 32;
/// Number of frames in use when the jobs begin. The zone is then far above its watermarks.
const IN_USE: usize = 6;
/// Number of the frames in use that are in the cache.
const CACHED: usize = 3;
/// Order of a block whose allocation lowers the zone's free frames from that state to `low`.
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

/// The range that a request empties: all its frames are free except one, which is in the cache.
const WANTED: FrameRange = FrameRange { start: Pfn::new(start(0) + 16), count: PageCount::new(16) };
const CACHED_FRAME: Pfn = Pfn::new(start(0) + 19);

/// A cache that evicts its frame for a range that contains it.
struct Evicting<C: Checker>(Arc<Worker<C>>);

impl<C: Checker> Host for Evicting<C> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let wanted =
            request.range.is_some_and(|range| range.start <= CACHED_FRAME && CACHED_FRAME < range.end());
        let cached = self.0.cache.lock().expect("no thread failed").len() as u64;
        PageCount::new(if wanted { cached } else { 0 })
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if self.count(request) == PageCount::ZERO {
            return PageCount::ZERO;
        }
        Requester(Arc::clone(&self.0)).reclaim(request)
    }
}

/// Creates a world in which only a request for [`WANTED`] can reclaim. All frames outside it are in use.
fn with_a_range<C: Checker>() -> Arc<World<C>> {
    let worker = Arc::new(Worker { world: OnceLock::new(), cache: Mutex::default(), flag: OnceLock::new() });
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(1), Box::new(Evicting(Arc::clone(&worker))));
    worker.world.set(Arc::downgrade(&world)).ok();
    while world.alloc(&Request::page().urgency(Urgency::Reserve)).is_ok() {}
    let is_free = |frame: &Pfn| *frame >= WANTED.start && *frame != CACHED_FRAME;
    world.owned().into_iter().filter(is_free).for_each(|frame| world.free(frame));
    world.allocator().drain_pagesets();
    worker.cache.lock().expect("no thread failed").push(CACHED_FRAME);
    world
}

fn large<C: Checker>(world: &World<C>) -> Option<Block> {
    let large = Request::new(Order::new(4).expect("it is small")).urgency(Urgency::Reserve);
    world.alloc(&large).ok().inspect(|block| assert_eq!(block.first, WANTED.start))
}

/// A request empties the range while another CPU retires one of its free frames.
pub(crate) fn range_against_retire<C: Checker>() {
    let world = with_a_range::<C>();
    let frame = Pfn::new(start(0) + 30);
    world.at_once(
        on(0, |world| {
            if let Some(block) = large(world) {
                world.free_block(block);
            }
        }),
        on(1, move |world| retire(world, frame)),
    );
    world.allocator().drain_pagesets();
    check_others(&world, frame);
}

/// A request empties the range while another CPU allocates and frees a frame of it.
pub(crate) fn range_against_page<C: Checker>() {
    with_a_range_against::<C>(|world| {
        if let Ok(page) = world.alloc(&Request::page().urgency(Urgency::Reserve).no_wait()) {
            world.free(page.first);
        }
    });
}

/// Two requests empty the range. They must not take each other's frames, so that one of them at least gets the block.
pub(crate) fn range_against_range<C: Checker>() {
    let world = with_a_range::<C>();
    // Not part of the model: one operating-system thread runs all threads, so relaxed accesses are in order.
    let served = Arc::new(AtomicBool::new(false));
    let job = |served: Arc<AtomicBool>| {
        move |world: &World<C>| {
            if let Some(block) = large(world) {
                served.store(true, Relaxed);
                world.free_block(block);
            }
        }
    };
    world.at_once(on(0, job(Arc::clone(&served))), on(1, job(Arc::clone(&served))));
    assert!(served.load(Relaxed), "both requests failed");
    world.allocator().drain_pagesets();
    world.check_to_the_last_frame();
}

/// A request empties the range while another CPU fences a part of it. No frame of the fence may be allocated.
pub(crate) fn range_against_fence<C: Checker>() {
    with_a_range_against::<C>(|world| {
        let part = FrameRange { start: CACHED_FRAME, count: PageCount::new(2) };
        let fence = world.allocator().fence(part).expect("there is no other fence");
        let held = fence.held();
        assert!(held <= part.count && fence.held() >= held, "a frame left the fence");
        drop(fence);
    });
}

/// Runs a request that empties the range beside `other`. No frame may be lost or allocated twice.
fn with_a_range_against<C: Checker>(other: impl FnOnce(&World<C>) + Send + 'static) {
    let world = with_a_range::<C>();
    world.at_once(
        on(0, |world| {
            if let Some(block) = large(world) {
                world.free_block(block);
            }
        }),
        on(1, other),
    );
    world.allocator().drain_pagesets();
    world.check_to_the_last_frame();
}
