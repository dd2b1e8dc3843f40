//! Tests of pools that shrink and grow while they are in use.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use zonal_linux::{
    FrameRange, Frames, GrowError, HugePages, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest,
    Reclaimer, ShrinkError,
};

const MIB: u64 = 1 << 20;

fn pool(mib: u64) -> Pool {
    Pool::builder().size(mib * MIB).fake_nodes(2).build().unwrap()
}

/// A cache of pages, which frees those that a request wants.
#[derive(Default)]
struct Cache(Mutex<HashMap<u64, Frames>>);

impl Cache {
    fn fill(&self, pool: &Pool, count: u64) {
        for key in 0..count {
            let mut page = pool.alloc(&PoolRequest::page().kind(PageKind::Cache)).unwrap();
            page[0] = key as u8;
            self.0.lock().unwrap().insert(key, page);
        }
    }
}

fn wants(request: &ReclaimRequest, page: &Frames) -> bool {
    let within = |range: FrameRange| range.start <= page.first() && page.first() < range.end();
    page.node() == request.node && request.range.is_none_or(within)
}

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.0.lock().unwrap().values().filter(|page| wants(request, page)).count() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let (mut left, mut freed) = (request.target.get(), Vec::new());
        self.0.lock().unwrap().retain(|_, page| {
            let goes = left > 0 && wants(request, page);
            if goes {
                left -= 1;
                freed.push(page.first());
            }
            !goes
        });
        PageCount::new(freed.len() as u64)
    }
}

/// Returns how many bytes of the pool are resident.
fn resident(pool: &Pool) -> u64 {
    let mut total = 0;
    for zone in pool.ranges() {
        let mut pages = vec![0_u8; zone.frames.count.get() as usize];
        let start = pool.ptr_of(zone.frames.start).unwrap().as_ptr();
        // SAFETY: the buffer has one byte for each page of the mapped range.
        assert_eq!(unsafe { libc::mincore(start.cast(), 4096 * pages.len(), pages.as_mut_ptr()) }, 0);
        total += pages.iter().filter(|page| **page & 1 == 1).count() as u64 * 4096;
    }
    total
}

#[test]
fn a_free_pool_shrinks_to_nothing_and_grows_again() {
    let pool = pool(64);
    let returned = pool.shrink(20 * MIB + 1).unwrap();
    assert_eq!(returned, 22 * MIB, "whole parts of 2 MiB");
    assert_eq!(pool.accounting().managed.get() * 4096, 42 * MIB);
    let error = pool.grow(23 * MIB).unwrap_err();
    let GrowError::TooLarge { asked, available, max } = error else { panic!("{error}") };
    assert_eq!((asked, available, max), (23 * MIB, 22 * MIB, 64 * MIB));
    assert_eq!(pool.accounting().managed.get() * 4096, 42 * MIB, "it has not grown");
    assert_eq!(pool.shrink(42 * MIB).unwrap(), 42 * MIB);
    assert!(pool.alloc(&PoolRequest::page()).is_err());
    assert!(matches!(pool.shrink(1), Err(ShrinkError::InUse { done: 0, .. })), "nothing is left");
    assert_eq!(pool.grow(32 * MIB).unwrap(), 32 * MIB);
    // Both nodes have got about half of it.
    let managed: Vec<u64> = pool.zones().map(|zone| zone.managed.get() * 4096 / MIB).collect();
    assert_eq!(managed.iter().sum::<u64>(), 32);
    assert!(managed.iter().all(|&mib| (14..=18).contains(&mib)), "{managed:?}");
    assert_eq!(pool.grow(32 * MIB).unwrap(), 32 * MIB);
    assert_eq!(pool.shrink(0).unwrap(), 0);
    pool.verify().unwrap();
}

#[test]
fn a_pool_full_of_cached_pages_shrinks_by_half() {
    let pool = pool(256);
    let cache = Arc::new(Cache::default());
    let _registered = pool.register_reclaimer(&cache);
    cache.fill(&pool, 60_000);
    let before = resident(&pool);
    assert!(before >= 60_000 * 4096);
    assert!(pool.shrink(128 * MIB).unwrap() >= 128 * MIB);
    assert_eq!(pool.accounting().managed.get() * 4096, 128 * MIB);
    assert!(resident(&pool) <= 128 * MIB, "{} bytes are resident", resident(&pool));
    let left = cache.0.lock().unwrap().len() as u64;
    assert!(left * 4096 > 100 * MIB, "the other half is still cached: {left} pages");
    assert!(cache.0.lock().unwrap().iter().all(|(key, page)| page[0] == *key as u8));
    pool.grow(128 * MIB).unwrap();
    cache.fill(&pool, 60_000);
    cache.0.lock().unwrap().clear();
    pool.drain_pagesets();
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn threads_that_grow_a_pool_at_once_get_what_they_ask_for_or_an_error() {
    let pool = pool(512);
    for _ in 0..30 {
        pool.shrink(256 * MIB).unwrap();
        let start = Barrier::new(2);
        let grow = || {
            start.wait();
            pool.grow(256 * MIB)
        };
        let grown =
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(grow)).map(|thread| thread.join().unwrap()));
        let mut grown: Vec<_> = grown.into_iter().map(Result::ok).collect();
        grown.sort_unstable();
        assert_eq!(grown, [None, Some(256 * MIB)]);
    }
}

/// Each of the first 80 parts keeps one page in use; the rest of these parts is free, and all other parts are cache.
#[test]
fn parts_with_a_page_in_use_do_not_keep_the_others_from_leaving() {
    const PINNED: u64 = 80;
    let pool = Pool::builder().size(256 * MIB).fake_nodes(1).huge_pages(HugePages::Never).build().unwrap();
    let start = pool.ranges().next().unwrap().frames.start.get();
    let pages: Vec<Frames> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
    let part = |page: &Frames| (page.first().get() - start) / 512;
    let (mut pinned, cache) = (HashMap::new(), Arc::new(Cache::default()));
    for page in pages {
        if part(&page) < PINNED {
            pinned.entry(part(&page)).or_insert(page);
        } else {
            cache.0.lock().unwrap().insert(page.first().get(), page);
        }
    }
    let _registered = pool.register_reclaimer(&cache);
    let parts = pinned.len() as u64; // the watermark `min` keeps the last frames free
    assert!(parts > 64, "{parts}");
    assert_eq!(pool.shrink(32 * MIB).unwrap(), 32 * MIB);
    let error = pool.shrink(256 * MIB).unwrap_err();
    let ShrinkError::InUse { done, in_use, .. } = &error else { panic!("{error}") };
    assert_eq!((*done, in_use.len()), (256 * MIB - 32 * MIB - parts * 2 * MIB, 64));
}

#[test]
fn what_stays_in_use_is_listed() {
    let pool = Pool::builder().size(16 * MIB).fake_nodes(1).build().unwrap();
    let mut held: Vec<Frames> = (0..7)
        .map(|_| pool.alloc(&PoolRequest::new(pool.order_holding(2 << 20).unwrap())).unwrap())
        .collect();
    let order = pool.order_holding(4096).unwrap();
    assert!(held.iter().all(|frames| frames.order() > order));
    let free = held.pop().unwrap();
    let first = free.first();
    drop(free);
    let error = pool.shrink(5 * MIB).unwrap_err();
    let ShrinkError::InUse { asked, done, in_use } = &error else { panic!("{error}") };
    assert_eq!((*asked, *done), (5 * MIB, 4 * MIB));
    assert_eq!(in_use.len(), 6);
    assert!(in_use.iter().all(|used| used.block.start != first));
    assert!(error.to_string().contains("4194304 of 5242880 bytes"), "{error}");
    // With a callback that frees, it shrinks.
    let mut moved = 0;
    let cell = std::cell::RefCell::new(held);
    let returned = pool.shrink_with(2 * MIB, |used| {
        cell.borrow_mut().retain(|frames| frames.first() != used.block.start);
        moved += 1;
    });
    assert_eq!((returned.unwrap(), moved, cell.borrow().len()), (2 * MIB, 1, 5));
}

#[test]
fn a_pool_shrinks_and_grows_while_threads_use_it() {
    let pool = pool(128);
    let cache = Arc::new(Cache::default());
    let _registered = pool.register_reclaimer(&cache);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for worker in 0..2_u64 {
            let (pool, cache, stop, done) = (&pool, &cache, &stop, &done);
            scope.spawn(move || {
                let mut at = worker;
                while !stop.load(Relaxed) {
                    at += 2;
                    // The request may call the reclaimer, so no lock is held here.
                    if let Ok(mut page) = pool.alloc(&PoolRequest::page().kind(PageKind::Cache)) {
                        page[0] = at as u8;
                        let old = cache.0.lock().unwrap().insert(at % 50_000, page);
                        drop(old);
                    }
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        for _ in 0..3 {
            let before = done.load(Relaxed);
            while done.load(Relaxed) < before + 20_000 {
                thread::yield_now();
            }
            let returned = pool.shrink(64 * MIB).unwrap();
            assert!(pool.accounting().managed.get() * 4096 <= 64 * MIB);
            pool.grow(returned).unwrap();
        }
        stop.store(true, Relaxed);
    });
    cache.0.lock().unwrap().clear();
    pool.drain_pagesets();
    let accounting = pool.verify().unwrap();
    assert_eq!((accounting.allocated, accounting.managed.get() * 4096), (PageCount::ZERO, 128 * MIB));
}

/// A 1 TiB pool has parts of 16 MiB. A part of which less is online can leave and come back too.
#[test]
fn parts_that_are_partly_online_shrink_and_grow() {
    let pool = Pool::builder().size(8 * MIB).max_size(1 << 40).fake_nodes(1).build().unwrap();
    assert_eq!(pool.accounting().managed.get() * 4096, 8 * MIB);
    assert_eq!(pool.shrink(2 * MIB).unwrap(), 8 * MIB);
    assert_eq!(pool.accounting().managed, PageCount::ZERO);
    pool.grow(24 * MIB).unwrap();
    let zone = pool.ranges().next().unwrap().frames;
    pool.offline_memory(FrameRange {
        start: zone.start.plus(PageCount::new(512)),
        count: PageCount::new(512),
    })
    .unwrap();
    let managed = pool.accounting().managed.get() * 4096;
    assert_eq!(pool.shrink(managed).unwrap(), managed);
    pool.verify().unwrap();
}
