//! Tests of the pools' public interface.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use zonal::error::{AllocError, FreeError};
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::rules::fallback_order::NodeLoad;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal_linux::{
    Config, Frames, HugePages, Limit, Pool, PoolError, PoolRequest, Prefault, Topology, TopologyNode,
    ZoneShare,
};
use zonal_testing::skipped;

const MIB: u64 = 1 << 20;

fn pool(bytes: u64) -> Pool {
    Pool::builder().size(bytes).build().unwrap()
}

fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// Checks that everything was freed: the accounting balances, and no frame is allocated.
fn assert_all_free(pool: &Pool) {
    let accounting = pool.verify().unwrap();
    assert_eq!(accounting.allocated, PageCount::ZERO);
    assert_eq!(accounting.managed, accounting.free.plus(accounting.in_pagesets));
}

#[test]
fn eight_threads_read_back_what_they_wrote() {
    let pool = pool(64 * MIB);
    thread::scope(|scope| {
        for thread in 0..8_u8 {
            let pool = &pool;
            scope.spawn(move || {
                let mut held: Vec<(Frames, u8)> = Vec::new();
                let mut random = u64::from(thread) + 1;
                for round in 0..4000_u32 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let size = order((random >> 60) as u8 % 5);
                    if held.len() < 100 {
                        let mark = thread ^ round as u8;
                        if let Ok(mut frames) = pool.alloc(&PoolRequest::new(size)) {
                            frames.fill(mark);
                            held.push((frames, mark));
                        }
                    } else {
                        let (frames, mark) = held.swap_remove((random >> 33) as usize % 100);
                        assert!(frames.iter().all(|&byte| byte == mark));
                    }
                }
                for (frames, mark) in held {
                    assert!(frames.iter().all(|&byte| byte == mark));
                }
            });
        }
    });
    assert_all_free(&pool);
}

#[test]
fn impossible_sizes_are_refused_with_a_valid_one() {
    let build = |bytes| Pool::builder().size(bytes).build();
    let error = build(u64::MAX).unwrap_err();
    assert!(matches!(
        error,
        PoolError::TooLarge { asked: u64::MAX, limited_by: Limit::Machine | Limit::ControlGroup, .. }
    ));
    assert!(error.to_string().contains("or less"));
    let error = build(MIB / 8).unwrap_err();
    assert!(matches!(error, PoolError::TooSmall { nodes: 1.., .. }), "{error}");
    let odd = build(64 * MIB + 4097).unwrap();
    assert_eq!(odd.frames(), PageCount::new(64 * MIB / 4096));
    let tiny = Pool::builder().size(MIB / 4).fake_nodes(2).build().unwrap_err();
    assert!(tiny.to_string().contains("512 KiB or more"), "{tiny}");
}

/// A pool links the past forms, so a configuration need not name them.
#[test]
fn configurations_may_select_past_forms() {
    let config = Config { node_load: NodeLoad::Assign, ..Config::default() };
    let pool = Pool::builder().size(16 * MIB).config(config).build().unwrap();
    assert_eq!(pool.setting("node_load").unwrap().to_string(), "assign");
}

#[test]
fn cpu_ids_beyond_all_machines_are_refused_at_once() {
    for large in [1 << 28, u32::MAX] {
        let zones = vec![ZoneShare { kind: ZoneKind::Normal, weight: 1 }];
        let cpus = vec![CpuId::new(0), CpuId::new(large)];
        let node = TopologyNode { id: node(0), cpus, distances: vec![10], zones };
        let topology = Topology::emulated(vec![node]).unwrap();
        let error = Pool::builder().size(8 * MIB).topology(topology).build().unwrap_err();
        assert_eq!(error.to_string(), format!("CPU id {large} is too large; ids are below 1048576"));
    }
}

#[test]
fn errors_name_unknown_nodes() {
    let error = Pool::builder().size(8 * MIB).nodes([node(77)]).build().unwrap_err();
    assert!(error.to_string().starts_with("node 77 does not exist; this machine has node"), "{error}");
    let none = Pool::builder().size(8 * MIB).nodes([]).build();
    assert!(matches!(none, Err(PoolError::NoNode)), "{none:?}");
}

#[test]
fn large_pools_use_no_memory_until_touched() {
    match Pool::builder().size(8 << 30).build() {
        Ok(pool) => {
            assert_eq!(pool.frames(), PageCount::new(8 << 18));
            let mut frames = pool.alloc(&PoolRequest::new(order(9))).unwrap();
            frames[4096] = 1;
            assert_eq!(frames.as_ptr().align_offset(2 << 20), 0);
        }
        Err(PoolError::TooLarge { .. }) => skipped!("this machine has less than 8 GiB available"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn frames_convert_to_pointers_and_back() {
    let pool = pool(16 * MIB);
    let frames = pool.alloc(&PoolRequest::new(order(3))).unwrap();
    assert_eq!(frames.len(), 8 * 4096);
    assert_eq!(pool.pfn_of(frames.as_ptr()), Some(frames.first()));
    assert_eq!(pool.pfn_of(&raw const frames[4096]), Some(frames.first().plus(PageCount::new(1))));
    assert_eq!(pool.ptr_of(frames.first()).unwrap().as_ptr().cast_const(), frames.as_ptr());
    assert_eq!(pool.pfn_of(&raw const pool as *const u8), None);
    assert_eq!(pool.ptr_of(Pfn::new(0)), None);
    drop(frames);
    assert_all_free(&pool);
}

#[test]
fn raw_blocks_and_invalid_frees() {
    let pool = pool(16 * MIB);
    let block = pool.alloc_raw(&PoolRequest::new(order(2))).unwrap();
    // SAFETY: no `Frames` owns the block.
    let free = |order| unsafe { pool.free_raw(block.first, order) };
    assert!(matches!(free(order(1)), Err(FreeError::WrongOrder { .. })));
    assert_eq!(free(order(2)), Ok(()));
    assert_eq!(free(order(2)), Err(FreeError::NotAllocated(block.first)));
    let raw = pool.lease(&PoolRequest::page()).unwrap().into_raw();
    assert_eq!(pool.accounting().allocated, PageCount::new(1));
    // SAFETY: the block was just released from its `Frames`, and is not used elsewhere.
    drop(unsafe { pool.from_raw(raw) });
    assert_all_free(&pool);
}

#[test]
fn zeroed_requests_return_zeros() {
    let pool = pool(8 * MIB);
    let mut dirty = pool.lease(&PoolRequest::new(order(4))).unwrap();
    dirty.fill(0xee);
    drop(dirty);
    for _ in 0..64 {
        assert!(pool.lease(&PoolRequest::new(order(4)).zeroed()).unwrap().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn shortage_is_reported_zone_by_zone() {
    let pool = Pool::builder().size(16 * MIB).fake_nodes(2).build().unwrap();
    let mut held = Vec::new();
    let failure = loop {
        match pool.lease(&PoolRequest::page()) {
            Ok(frames) => held.push(frames),
            Err(failure) => break failure,
        }
    };
    assert!(matches!(failure.error(), AllocError::OutOfMemory(_)));
    assert_eq!(failure.zones().len(), 2);
    assert!(failure.to_string().contains("\n  node 1 Normal is below min, short by "), "{failure}");
    assert!(held.len() > 3000);
    drop(held);
    assert_all_free(&pool);
    let too_large = pool.alloc(&PoolRequest::new(order(18))).unwrap_err();
    assert!(too_large.zones().is_empty());
}

/// A cache that owns frames of the pool, and is registered as its reclaimer.
struct Cache {
    pool: Pool,
    frames: std::sync::Mutex<Vec<Frames>>,
}

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.frames.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut frames = self.frames.lock().unwrap();
        let wanted = |frame: Pfn| {
            request.range.is_none_or(|range| (range.start.get()..range.end().get()).contains(&frame.get()))
        };
        let mut left = request.target.get() as usize;
        let given: Vec<_> = frames
            .extract_if(.., |frames| {
                let goes = left > 0 && wanted(frames.first());
                left -= usize::from(goes);
                goes
            })
            .collect();
        PageCount::new(given.len() as u64)
    }
}

impl Cache {
    fn full(pool: &Pool) -> Arc<Self> {
        let cache = Arc::new(Self { pool: pool.clone(), frames: Vec::new().into() });
        while let Ok(frames) = cache.pool.alloc(&PoolRequest::page()) {
            cache.frames.lock().unwrap().push(frames);
        }
        cache
    }
}

/// Frees frames only for `Range` and `Shrink` requests, so background reclaim frees nothing.
struct OnRequest(Arc<Cache>);

impl OnRequest {
    fn is_meant(request: &ReclaimRequest) -> bool {
        matches!(request.reason, ReclaimReason::Range | ReclaimReason::Shrink)
    }
}

impl Reclaimer for OnRequest {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        if Self::is_meant(request) { self.0.count(request) } else { PageCount::ZERO }
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if Self::is_meant(request) { self.0.reclaim(request) } else { PageCount::ZERO }
    }
}

struct Panics(AtomicU64);

impl Reclaimer for Panics {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        self.0.fetch_add(1, Ordering::Relaxed); // relaxed: an independent counter
        panic!("a reclaimer's own mistake, on purpose")
    }
}

#[test]
fn reclaimers_are_called_until_unregistered() {
    let pool = pool(16 * MIB);
    let cache = Cache::full(&pool);
    let request = PoolRequest::page();
    pool.alloc(&request).unwrap_err();
    let registered = pool.register_reclaimer(&cache);
    let held: Vec<_> = (0..1000).map(|_| pool.alloc(&request).unwrap()).collect();
    drop(registered);
    while let Ok(frames) = pool.alloc(&request) {
        cache.frames.lock().unwrap().push(frames);
    }
    let left = cache.frames.lock().unwrap().len();
    pool.alloc(&request).unwrap_err();
    assert_eq!(cache.frames.lock().unwrap().len(), left);
    drop((held, cache));
    assert_all_free(&pool);
}

/// Frees nothing, and counts its calls.
struct Asked(Arc<AtomicU64>);

impl Reclaimer for Asked {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        self.0.fetch_add(1, Ordering::Relaxed); // relaxed: a counter
        PageCount::ZERO
    }
}

/// The caller drops its own handle, so that only the registration keeps the reclaimer alive.
#[test]
fn registration_alone_keeps_a_reclaimer_alive() {
    let pool = pool(16 * MIB);
    let cache = Cache::full(&pool);
    let asked = Arc::new(AtomicU64::new(0));
    let registered = pool.register_reclaimer(&Arc::new(Asked(Arc::clone(&asked))));
    pool.alloc(&PoolRequest::page()).unwrap_err();
    assert!(asked.load(Ordering::Relaxed) > 0, "a count");
    drop(registered);
    assert_eq!(Arc::strong_count(&asked), 1, "the reclaimer is gone");
    drop(cache);
    assert_all_free(&pool);
}

#[test]
fn background_reclaim_lifts_a_node_above_its_low_watermark() {
    let pool = pool(64 * MIB);
    let cache = Cache::full(&pool);
    let _registered = pool.register_reclaimer(&cache);
    // An allocation below `low` wakes the worker. The loop never ends if the worker is not woken or frees nothing.
    while pool.events().background_reclaimed == 0 {
        pool.alloc(&PoolRequest::page().no_wait()).ok();
        thread::yield_now();
    }
    drop(cache);
}

#[test]
fn panicking_reclaimer_does_not_stop_others() {
    let pool = pool(16 * MIB);
    let cache = Cache::full(&pool);
    let bad = Arc::new(Panics(AtomicU64::new(0)));
    let _bad = pool.register_reclaimer(&bad);
    pool.alloc(&PoolRequest::page()).unwrap_err();
    let registered = pool.register_reclaimer(&cache);
    for _ in 0..500 {
        assert!(pool.alloc(&PoolRequest::page()).is_ok());
    }
    assert!(pool.reclaimer_panics() > 0 && bad.0.load(Ordering::Relaxed) > 0); // one count
    drop((registered, cache));
    assert_all_free(&pool);
}

/// A reclaimer that drops its own registration when it is called. This also drops the reclaimer, whose destructor may
/// panic.
struct Leaves {
    own: std::sync::Mutex<Option<zonal_linux::Registration>>,
    panics: bool,
}

impl Reclaimer for Leaves {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1000)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        drop(self.own.lock().unwrap().take());
        PageCount::new(3)
    }
}

impl Drop for Leaves {
    fn drop(&mut self) {
        assert!(!self.panics, "the reclaimer's end, on purpose");
    }
}

#[test]
fn reclaimer_may_be_dropped_during_its_own_call_even_with_a_panic() {
    let pool = pool(32 * MIB);
    for panics in [false, true] {
        let before = pool.reclaimer_panics();
        let leaves = Arc::new(Leaves { own: None.into(), panics });
        *leaves.own.lock().unwrap() = Some(pool.register_reclaimer(&leaves));
        drop(leaves);
        let node = pool.ranges().next().unwrap().node;
        assert_eq!(pool.shrink_caches(node, PageCount::new(8)), PageCount::new(3));
        assert_eq!(pool.reclaimer_panics() - before, u64::from(panics));
        assert_eq!(pool.shrink_caches(node, PageCount::new(8)), PageCount::ZERO, "it is gone");
    }
    assert_all_free(&pool);
}

#[test]
fn presets_can_be_emulated() {
    for preset in zonal_machine::PRESETS {
        let model = zonal_machine::preset(preset.name).unwrap();
        if model.nodes.len() > 64 {
            skipped!("{} takes a minute in a test build", preset.name);
            continue;
        }
        let size = 16 * MIB * model.nodes.len() as u64;
        let pool = Pool::builder().machine(&model).unwrap().size(size).build().unwrap();
        for node in model.online_nodes() {
            let Some(&cpu) = node.cpus.first() else { continue };
            let _acting = pool.act_as(cpu).unwrap();
            let mut frames = pool.alloc(&PoolRequest::page()).unwrap();
            frames[0] = 1;
            assert_eq!(frames.node(), pool.fallback_order(node.id)[0], "{} CPU {cpu}", preset.name);
        }
        assert_all_free(&pool);
    }
}

#[test]
fn memory_comes_only_from_requested_nodes() {
    let topology = Topology::fake(3).unwrap();
    let pool = Pool::builder().size(8 * MIB).topology(topology).nodes([node(2)]).build().unwrap();
    assert!(pool.ranges().all(|zone| zone.node == node(2)));
    assert_eq!(pool.frames(), PageCount::new(2048));
    assert_eq!(pool.alloc(&PoolRequest::page()).unwrap().node(), node(2));
}

#[test]
fn memory_goes_offline_and_returns_zeroed() {
    let pool = pool(32 * MIB);
    let mut range = pool.ranges().next().unwrap().frames;
    range.count = PageCount::new(1024);
    let address = pool.ptr_of(range.start).unwrap();
    // SAFETY: the address is mapped, and the frame is not allocated.
    unsafe { address.write(7) };
    pool.offline_memory(range).unwrap();
    assert_eq!(pool.accounting().managed, PageCount::new(7 * 1024));
    assert!(pool.offline_memory(range).is_err());
    // SAFETY: the address is still mapped, and the frame is not allocated.
    assert_eq!(unsafe { address.read() }, 0);
    pool.online_memory(range).unwrap();
    assert!(pool.online_memory(range).is_err());
    assert_all_free(&pool);
}

/// Returns the number of frames in a range that are resident in memory.
fn resident(pool: &Pool, range: FrameRange) -> usize {
    let mut pages = vec![0_u8; range.count.get() as usize];
    let start = pool.ptr_of(range.start).unwrap().as_ptr();
    // SAFETY: the buffer has one byte for each page of the mapped range.
    assert_eq!(unsafe { libc::mincore(start.cast(), 4096 * pages.len(), pages.as_mut_ptr()) }, 0);
    pages.iter().filter(|page| **page & 1 == 1).count()
}

#[test]
fn prefaulted_pool_backs_memory_before_it_comes_online() {
    let builder = Pool::builder().size(32 * MIB).huge_pages(HugePages::Never);
    let pool = builder.prefault(Prefault::AtOnce).build().unwrap();
    let mut range = pool.ranges().next().unwrap().frames;
    range.count = PageCount::new(1000);
    assert_eq!(resident(&pool, range), 1000);
    pool.offline_memory(range).unwrap();
    assert_eq!(resident(&pool, range), 0);
    pool.online_memory(range).unwrap();
    assert_eq!(resident(&pool, range), 1000);
}

#[test]
fn reclaimers_free_a_range_that_goes_offline() {
    // The pool has one node, because the cache frees frames of any node.
    let pool = Pool::builder().size(32 * MIB).nodes([node(0)]).build().unwrap();
    let cache = Cache::full(&pool);
    // The workers may be about to call reclaimers, because the pool is full. This reclaimer frees nothing for them.
    let on_request = Arc::new(OnRequest(Arc::clone(&cache)));
    let _registered = pool.register_reclaimer(&on_request);
    let cached = || cache.frames.lock().unwrap().len();
    let before = cached();
    let mut range = pool.ranges().next().unwrap().frames;
    range.count = PageCount::new(1024);
    // A frame that is allocated but in no cache prevents the range from going offline.
    let inside = |frames: &Frames| (range.start.get()..range.end().get()).contains(&frames.first().get());
    let kept = {
        let mut frames = cache.frames.lock().unwrap();
        let at = frames.iter().position(inside).unwrap();
        frames.swap_remove(at)
    };
    let refused = pool.offline_memory(range).unwrap_err();
    assert!(refused.to_string().contains("1 frames in use"), "{refused}");
    assert!((1..=1024).contains(&(before - cached())), "the range's frames were given up, and no others");
    drop(kept);
    pool.offline_memory(range).unwrap();
    assert_eq!(pool.accounting().managed, PageCount::new(7 * 1024));
    let (of, left) = (pool.ranges().next().unwrap().node, cached() as u64);
    assert_eq!(pool.shrink_caches(of, PageCount::new(100)), PageCount::new(100));
    assert_eq!(pool.shrink_caches(of, PageCount::new(u64::MAX)), PageCount::new(left - 100));
    assert_all_free(&pool);
}

#[test]
fn prefault_reports_progress_and_stops() {
    let most = AtomicU64::new(0);
    let on_progress = |progress: zonal_linux::Progress| {
        most.fetch_max(progress.done, Ordering::Relaxed); // relaxed: a single number
        ControlFlow::Continue(())
    };
    let builder = || Pool::builder().size(96 * MIB).prefault(Prefault::AtOnce);
    builder().on_progress(&on_progress).build().unwrap();
    assert_eq!(most.into_inner(), 96 * MIB);
    let stopped = builder().on_progress(&|_| ControlFlow::Break(())).build();
    assert!(matches!(stopped, Err(PoolError::Interrupted)));
}
