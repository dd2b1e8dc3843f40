//! Tests of large requests that reclaim by range: how many frames they evict, how many of them succeed, and what they
//! leave to others meanwhile.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::access::{Way, in_every_way};
use crate::common::scenarios::{Random, Scripted, TestAllocator, pages};
use crate::common::{Plan, World, order, range, run_on};
use zonal::error::UsedState;
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::request::PageKind;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{Config, Request, Retirement};

/// Frames of the machine: 128 MiB, 64 blocks of 2 MiB.
const FRAMES: u64 = 1 << 15;
/// First frame of the memory.
const START: u64 = FRAMES;
/// Frames in a 2 MiB block.
const BLOCK: u64 = 512;

in_every_way! {
    large_blocks_evict_little,
    reclaimers_that_ignore_ranges_lose_little,
    blocks_of_a_cache_serve_requests,
    pinned_frames_are_left_alone,
    ranges_that_stay_in_use_cost_little,
    ranges_behind_many_pinned_ones_are_found,
    a_node_without_reclaimable_frames_does_not_end_the_search,
    requests_for_any_number_of_frames_fail,
    other_requests_go_on_while_a_range_is_emptied,
    a_fence_of_the_range_gets_its_frames,
    a_frame_that_a_request_holds_can_be_retired,
    no_request_waits_for_run_time_changes,
}

/// Whether a cache frees only the frames of the range that is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ranges {
    Honoured,
    Ignored,
}

/// A cache of single frames, some of which are in use. It evicts the others in random order.
struct Cache {
    world: &'static World,
    ranges: Ranges,
    spans: Vec<(NodeId, FrameRange)>,
    frames: Mutex<(Vec<Pfn>, Random)>,
    evicted: AtomicU64,
    /// Called in each call for a range, before frames are freed.
    before: Mutex<Box<dyn Fn(FrameRange) + Send>>,
}

impl Cache {
    fn new(world: &'static World, ranges: Ranges) -> Arc<Self> {
        let cache = Arc::new(Self {
            world,
            ranges,
            spans: world.allocator.zones().map(|zone| (zone.node, zone.span)).collect(),
            frames: Mutex::new((Vec::new(), Random(7))),
            evicted: AtomicU64::new(0),
            before: Mutex::new(Box::new(|_| {})),
        });
        world.controls.set_reclaimer(cache.clone());
        cache
    }

    fn keep(&self, frame: Pfn) {
        self.frames.lock().unwrap().0.push(frame);
    }

    fn is_wanted(&self, request: &ReclaimRequest, frame: Pfn) -> bool {
        let within = |wanted: FrameRange| wanted.contains(&range(frame.get(), 1));
        self.ranges == Ranges::Ignored
            || request.range.is_none_or(within)
                && self.spans.iter().any(|&(node, span)| node == request.node && within(span))
    }

    /// Fills the memory that is free with frames of the cache, as a busy cache does.
    fn refill(&self) {
        while let Ok(block) = self.world.allocator.alloc(&Request::page().kind(PageKind::Cache).no_wait()) {
            self.keep(block.first);
        }
    }

    fn take_evicted(&self) -> u64 {
        self.evicted.swap(0, Relaxed)
    }
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let frames = &self.frames.lock().unwrap().0;
        pages(frames.iter().filter(|&&frame| self.is_wanted(request, frame)).count() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if let Some(wanted) = request.range {
            (self.before.lock().unwrap())(wanted);
        }
        let (frames, random) = &mut *self.frames.lock().unwrap();
        for at in (1..frames.len()).rev() {
            frames.swap(at, random.below(at as u64 + 1) as usize);
        }
        let (wanted, rest) = frames.drain(..).partition::<Vec<_>, _>(|&frame| self.is_wanted(request, frame));
        let (freed, kept) = wanted.split_at(wanted.len().min(request.target.get() as usize));
        self.world.allocator.free_bulk(freed).unwrap();
        *frames = [kept, &rest[..]].concat();
        self.evicted.fetch_add(freed.len() as u64, Relaxed);
        pages(freed.len() as u64)
    }
}

fn world(way: Way) -> &'static World {
    world_of(way, 1, FRAMES)
}

fn world_of(way: Way, nodes: u16, frames: u64) -> &'static World {
    run_on(0);
    Plan::even(nodes, 2, frames).accessed(way).build(&Config::default()).leak()
}

/// Allocates each block window's frames: as one block if `is_block`, and as frames of the cache otherwise. Then evicts
/// some, so that the zone is above `min` as after a shortage.
fn fill(cache: &Cache, is_block: impl Fn(u64) -> bool) {
    let a = &cache.world.allocator;
    for window in 0..FRAMES / BLOCK {
        let first = START + window * BLOCK;
        if is_block(window) {
            a.alloc_range(range(first, BLOCK), PageKind::User).unwrap();
        } else {
            for frame in first..first + BLOCK {
                a.alloc_range(range(frame, 1), PageKind::Cache).unwrap();
                cache.keep(Pfn::new(frame));
            }
        }
    }
    evict(cache, a.zones().next().unwrap().watermarks.low.get());
}

fn evict(cache: &Cache, frames: u64) {
    let a = &cache.world.allocator;
    a.shrink_caches(a.zones().next().unwrap().node, pages(frames));
    a.drain_pagesets();
    assert_eq!(cache.take_evicted(), frames);
}

fn huge(a: &TestAllocator) -> Result<zonal::Block, zonal::error::AllocError> {
    a.alloc(&Request::new(order(9)))
}

/// A quarter of the memory is a busy cache; requests for blocks of 2 MiB come and go.
fn large_blocks_evict_little(way: Way) {
    const REQUESTS: u64 = 100;
    for sizes in [pages(BLOCK), pages(BLOCK + BLOCK / 2)] {
        let world = world(way);
        let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
        fill(&cache, |window| window % 4 != 1 && window % 8 != 2);
        let (mut got, mut evicted) = (0, 0);
        for _ in 0..REQUESTS {
            let frames = if sizes == pages(BLOCK) {
                huge(a).map(|block| block.first)
            } else {
                a.alloc_contiguous(&Request::page(), sizes).map(|run| run.range.start)
            };
            let now = cache.take_evicted();
            evicted += now;
            assert!(now <= 2 * sizes.get(), "{now} evicted");
            if let Ok(first) = frames {
                got += 1;
                a.free_frames(first, sizes).unwrap();
            }
            cache.refill();
        }
        assert!(got * 100 >= REQUESTS * 95, "{got} of {REQUESTS}");
        assert!(evicted <= 2 * sizes.get() * got, "{evicted} evicted for {got}");
        a.verify().unwrap();
    }
}

fn reclaimers_that_ignore_ranges_lose_little(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Ignored));
    fill(&cache, |_| false);
    let texts = [
        huge(a).unwrap_err().to_string(),
        a.alloc_contiguous(&Request::page(), pages(BLOCK)).unwrap_err().to_string(),
    ];
    for text in texts {
        assert!(text.contains("the reclaimers ignore ranges"), "{text}");
    }
    let evicted = cache.take_evicted();
    assert!((1..=2 * 2 * BLOCK).contains(&evicted), "{evicted} evicted by two requests");
    a.verify().unwrap();
    // Without reclaim, no reclaimer is to blame.
    let text = a.alloc(&Request::new(order(9)).no_wait()).unwrap_err().to_string();
    assert!(!text.contains("ranges"), "{text}");
    assert_eq!(cache.take_evicted(), 0);
}

/// Each window but one has a frame that is not in the cache.
fn pinned_frames_are_left_alone(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window == 5);
    evict(&cache, 2 * BLOCK);
    let mut pinned = std::collections::BTreeSet::new();
    cache.frames.lock().unwrap().0.retain(|frame| {
        let window = (frame.get() - START) / BLOCK;
        window == 40 || !pinned.insert(window)
    });
    let block = huge(a).unwrap();
    assert_eq!(block.first, Pfn::new(START + 40 * BLOCK));
    assert!(cache.take_evicted() <= BLOCK, "more frames were evicted than the block has");
    assert!(huge(a).is_err());
    a.verify().unwrap();
}

/// A frame of each range comes into use while the range is emptied.
fn ranges_that_stay_in_use_cost_little(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    evict(&cache, 100);
    let uses = cache.clone();
    *cache.before.lock().unwrap() = Box::new(move |wanted| {
        let frames = &mut uses.frames.lock().unwrap().0;
        let at = frames.iter().position(|frame| wanted.contains(&range(frame.get(), 1)));
        at.map(|at| frames.swap_remove(at));
    });
    assert!(huge(a).is_err());
    let evicted = cache.take_evicted();
    assert!((1..=2 * BLOCK).contains(&evicted), "{evicted} evicted");
    a.verify().unwrap();
}

/// A cache of 2 MiB blocks evicts one block for each request, even if it ignores ranges.
fn blocks_of_a_cache_serve_requests(way: Way) {
    let world = world(way);
    let a = &world.allocator;
    let mut blocks = Vec::new();
    while let Ok(block) = a.alloc(&Request::new(order(9)).no_wait()) {
        blocks.push(block.first);
    }
    let held = Mutex::new(blocks);
    let cache = Scripted::by_request(
        |_| 20 * BLOCK,
        move |request| {
            let count = request.target.get().div_ceil(BLOCK) as usize;
            let mut held = held.lock().unwrap();
            let from = held.len().saturating_sub(count);
            let evicted = held.split_off(from);
            evicted.iter().for_each(|&first| a.free(first, order(9)).unwrap());
            evicted.len() as u64 * BLOCK
        },
    );
    world.controls.set_reclaimer(cache);
    for _ in 0..20 {
        let (block, events) = world.during(|| huge(a));
        assert!(block.is_ok(), "{block:?}");
        assert!(events.direct_reclaimed <= 2 * BLOCK, "{} evicted", events.direct_reclaimed);
    }
    a.verify().unwrap();
}

/// All but one of 128 windows have a frame that is in use for good, and are cheaper to empty otherwise.
fn ranges_behind_many_pinned_ones_are_found(way: Way) {
    const WINDOWS: u64 = 128;
    let start = WINDOWS * BLOCK;
    let world = world_of(way, 1, WINDOWS * BLOCK);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    for window in 0..WINDOWS {
        let first = start + window * BLOCK;
        let cached = if window == 99 { 0..BLOCK } else { 1..BLOCK / 2 };
        for frame in cached.map(|at| first + at) {
            a.alloc_range(range(frame, 1), PageKind::Cache).unwrap();
            cache.keep(Pfn::new(frame));
        }
        if window != 99 {
            a.alloc_range(range(first, 1), PageKind::Cache).unwrap();
        }
    }
    assert_eq!(huge(a).unwrap().first, Pfn::new(start + 99 * BLOCK));
    assert_eq!(cache.take_evicted(), BLOCK);
    a.verify().unwrap();
}

/// The near node has a free block, but lacks frames for its watermark and has nothing to reclaim.
fn a_node_without_reclaimable_frames_does_not_end_the_search(way: Way) {
    let world = world_of(way, 2, FRAMES);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    let node = |at: usize| a.zones().nth(at).unwrap();
    let first = node(0).span.start.get();
    a.alloc_range(range(first + BLOCK, FRAMES - BLOCK), PageKind::User).unwrap();
    let first = node(1).span.start.get();
    for frame in first..first + FRAMES {
        a.alloc_range(range(frame, 1), PageKind::Cache).unwrap();
        cache.keep(Pfn::new(frame));
    }
    assert_eq!(huge(a).unwrap().node, node(1).node);
    assert!(cache.take_evicted() <= 2 * BLOCK);
    a.verify().unwrap();
}

fn requests_for_any_number_of_frames_fail(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    for count in [FRAMES, FRAMES + 1, 1 << 32, 1 << 63, u64::MAX] {
        for request in [Request::page(), Request::page().no_wait(), Request::new(order(9))] {
            assert!(a.alloc_contiguous(&request, pages(count)).is_err());
        }
    }
    a.verify().unwrap();
}

fn other_requests_go_on_while_a_range_is_emptied(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    let calls = Arc::new(AtomicU64::new(0));
    let called = calls.clone();
    *cache.before.lock().unwrap() = Box::new(move |wanted| {
        called.fetch_add(1, Relaxed);
        run_on(1);
        let page = a.alloc(&Request::page()).unwrap();
        assert!(!wanted.contains(&range(page.first.get(), 1)), "the frames of the range are held");
        a.free(page.first, Order::PAGE).unwrap();
        let cached = a.pagesets().map(|pageset| pageset.count.get()).sum::<u64>();
        assert!(cached > 0, "the pagesets are open");
        run_on(0);
    });
    let block = huge(a).unwrap();
    assert_eq!(calls.load(Relaxed), 1);
    a.free(block.first, block.order).unwrap();
    a.verify().unwrap();
}

/// Another thread fences the range meanwhile. It waits for nothing, and gets each frame of the range.
fn a_fence_of_the_range_gets_its_frames(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    evict(&cache, 12_000);
    let fence = Arc::new(Mutex::new(None));
    let fenced = fence.clone();
    *cache.before.lock().unwrap() = Box::new(move |asked| {
        fenced.lock().unwrap().get_or_insert_with(|| {
            let fence = a.fence(asked).unwrap();
            assert_eq!(fence.held(), pages(0), "the request holds what is free");
            fence
        });
    });
    let block = huge(a).expect("another range is reclaimed");
    let fence = fence.lock().unwrap().take().unwrap();
    assert!(fence.is_whole(), "{} of {BLOCK}", fence.held());
    a.verify().unwrap();
    drop(fence);
    a.free(block.first, block.order).unwrap();
    a.verify().unwrap();
}

fn a_frame_that_a_request_holds_can_be_retired(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    evict(&cache, 12_000);
    *cache.before.lock().unwrap() = Box::new(move |asked| {
        let mut free = (asked.start.get()..asked.end().get()).map(Pfn::new).collect::<Vec<_>>();
        a.for_each_used(asked, |used| {
            free.retain(|frame| {
                used.state == UsedState::Fenced || !used.block.contains(&range(frame.get(), 1))
            });
        });
        assert_eq!(a.retire(free[0]), Ok(Retirement::Done));
    });
    assert!(huge(a).is_err(), "a frame of each range is retired");
    assert_eq!(a.zones().next().unwrap().retired, pages(4));
    a.verify().unwrap();
}

/// While another thread holds the lock for run-time changes, requests of every form are served.
fn no_request_waits_for_run_time_changes(way: Way) {
    let world = world(way);
    let (a, cache) = (&world.allocator, Cache::new(world, Ranges::Honoured));
    fill(&cache, |window| window < 32);
    let page = a.alloc(&Request::page()).unwrap();
    a.free(page.first, Order::PAGE).unwrap();
    // The retirement of a frame holds the lock. It relaxes when the frame moved, as this one does from its pageset.
    let served = Arc::new(Mutex::new(None));
    let result = served.clone();
    world.controls.on_relax(move || {
        if result.lock().unwrap().is_some() {
            return;
        }
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            run_on(1);
            let frames = pages(3);
            let forms: [(&str, &dyn Fn() -> bool); 6] = [
                ("page", &|| a.alloc(&Request::page()).is_ok()),
                ("order 3", &|| a.alloc(&Request::new(order(3))).is_ok()),
                ("order 9", &|| huge(a).is_ok()),
                ("frames", &|| a.alloc_frames(&Request::page(), frames).is_ok()),
                ("contiguous", &|| a.alloc_contiguous(&Request::page(), pages(BLOCK + 1)).is_ok()),
                ("below", &|| a.alloc(&Request::new(order(9)).below(Pfn::new(START + FRAMES))).is_ok()),
            ];
            sender.send(forms.map(|(name, form)| (name, form()))).unwrap();
        });
        *result.lock().unwrap() = Some(receiver.recv_timeout(Duration::from_secs(60)));
    });
    a.retire(page.first).unwrap();
    let forms = served.lock().unwrap().take().expect("the retirement relaxed").expect("a request waits");
    assert!(forms.iter().all(|&(_, is_served)| is_served), "{forms:?}");
    assert!(cache.take_evicted() > 0);
}
