//! Reclaimers that wait, panic, or fail while they are dropped. None may block a caller or stop the pool's work.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::{NodeId, PageCount};
use zonal_linux::{Frames, Order, Pool, PoolRequest};
use zonal_testing::{eventually, within_patience};

#[path = "common/maps.rs"]
mod maps;

use maps::is_mapped;

/// Builds a pool with one node, which has one worker.
fn pool() -> Pool {
    Pool::builder().size(16 << 20).nodes([NodeId::default()]).build().unwrap()
}

/// Allocates frames until none is free, which wakes background reclaim.
fn exhaust(pool: &Pool) -> Vec<Frames> {
    std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect()
}

/// A cache as real programs have: every change holds its lock, including changes by the reclaimer.
#[derive(Default)]
struct Cache {
    frames: Mutex<Vec<Frames>>,
    asked: AtomicU32,
}

impl Cache {
    /// Waits until a worker has entered the reclaimer and is about to take the lock.
    fn wait_until_asked(&self) {
        eventually("a worker that asks the cache", || self.asked.load(Ordering::Acquire) > 0);
    }
}

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason == ReclaimReason::Background {
            self.asked.fetch_add(1, Ordering::Release); // pairs with the acquire above
        }
        PageCount::new(u64::from(self.frames.lock().unwrap().pop().is_some()))
    }
}

#[test]
fn last_handle_can_be_dropped_under_the_reclaimers_lock() {
    within_patience("dropping a pool under the lock of its cache", || {
        let (pool, cache) = (pool(), Arc::new(Cache::default()));
        let registration = pool.register_reclaimer(&cache);
        let mut frames = cache.frames.lock().unwrap();
        *frames = exhaust(&pool);
        cache.wait_until_asked();
        let address = frames[0].as_ptr() as usize;
        drop(pool);
        assert!(frames.len() > 1000 && is_mapped(address), "frames outlive the pool");
        frames.clear();
        drop(frames);
        // The worker drops the pool's core when the reclaimer returns, and calls no other reclaimer.
        eventually("the end of the pool's memory", || !is_mapped(address));
        drop(registration);
    });
}

#[test]
fn pool_can_be_paused_under_the_reclaimers_lock() {
    within_patience("resting under the lock of a cache", || {
        let (pool, cache) = (pool(), Arc::new(Cache::default()));
        let _registration = pool.register_reclaimer(&cache);
        let mut frames = cache.frames.lock().unwrap();
        *frames = exhaust(&pool);
        cache.wait_until_asked();
        let in_reclaimers = pool.with_threads_paused(|in_reclaimers| {
            // While the pool is paused, it can still be used, and can be paused a second time.
            let kept = frames.len() - 100;
            frames.truncate(kept);
            drop(pool.alloc(&PoolRequest::page()).unwrap());
            assert_eq!(pool.with_threads_paused(|in_reclaimers| in_reclaimers), in_reclaimers);
            in_reclaimers
        });
        assert_eq!(in_reclaimers, 1);
        drop(frames);
        eventually("the end of reclaim", || pool.with_threads_paused(|in_reclaimers| in_reclaimers) == 0);
        pool.verify().unwrap();
    });
}

thread_local! {
    static LAST_WORDS: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

/// A thread-local value whose destructor takes the lock of the cache.
struct LastWords(Arc<Cache>);

impl Drop for LastWords {
    fn drop(&mut self) {
        drop(self.0.frames.lock());
    }
}

struct Leaves(Arc<Cache>);

impl Reclaimer for Leaves {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason == ReclaimReason::Background {
            LAST_WORDS.set(Some(LastWords(Arc::clone(&self.0))));
            self.0.asked.fetch_add(1, Ordering::Release); // pairs with the acquire above
        }
        PageCount::ZERO
    }
}

#[test]
fn drop_does_not_wait_for_destructors_of_a_reclaimer_thread() {
    within_patience("dropping a pool under a lock that a thread's end takes", || {
        let (pool, cache) = (pool(), Arc::new(Cache::default()));
        let _registration = pool.register_reclaimer(&Arc::new(Leaves(Arc::clone(&cache))));
        let frames = exhaust(&pool);
        cache.wait_until_asked();
        let locked = cache.frames.lock().unwrap();
        drop(pool);
        drop(locked);
        drop(frames);
    });
}

/// A panic payload that itself panics when it is dropped, as often as its number says.
struct Payload(u32);

impl Drop for Payload {
    fn drop(&mut self) {
        if let Some(left) = self.0.checked_sub(1) {
            panic_any(Self(left));
        }
    }
}

/// A reclaimer that panics when it is called and when it is dropped. It keeps itself alive until background reclaim
/// has called it.
struct EndsBadly {
    itself: Mutex<Option<(Arc<EndsBadly>, zonal_linux::Registration)>>,
    ended: Arc<AtomicU32>,
}

impl Reclaimer for EndsBadly {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason == ReclaimReason::Background {
            // From this line on, the caller has the last reference.
            drop(self.itself.lock().unwrap().take());
        }
        panic_any(Payload(2))
    }
}

impl Drop for EndsBadly {
    fn drop(&mut self) {
        self.ended.fetch_add(1, Ordering::Release); // pairs with the acquire below
        panic_any(Payload(3));
    }
}

#[test]
fn reclaimers_whose_destructors_panic_stop_nothing_else() {
    within_patience("reclaim after reclaimers that ended badly", || {
        let (pool, ended) = (pool(), Arc::new(AtomicU32::new(0)));
        for _ in 0..3 {
            let bad = Arc::new(EndsBadly { itself: Mutex::new(None), ended: Arc::clone(&ended) });
            let registration = pool.register_reclaimer(&bad);
            *bad.itself.lock().unwrap() = Some((Arc::clone(&bad), registration));
        }
        // The panics end neither background reclaim nor a request.
        let mut frames = exhaust(&pool);
        eventually("all that end badly have", || {
            frames.extend(pool.alloc(&PoolRequest::page()).ok());
            ended.load(Ordering::Acquire) == 3
        });
        assert!(pool.reclaimer_panics() >= 6);
        let cache = Arc::new(Cache::default());
        cache.frames.lock().unwrap().append(&mut frames);
        let _registration = pool.register_reclaimer(&cache);
        eventually("a good one is asked", || {
            frames.extend(pool.alloc(&PoolRequest::page().no_wait()).ok());
            cache.asked.load(Ordering::Acquire) > 3
        });
    });
}

thread_local! {
    static EARLY: RefCell<Option<Farewell>> = const { RefCell::new(None) };
    static LATE: RefCell<Option<Farewell>> = const { RefCell::new(None) };
    /// Nested calls of the reclaimer on this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Requests a frame when its thread ends. The pool's own thread locals may have been destroyed by then.
struct Farewell(Pool);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.alloc(&PoolRequest::page()).ok();
    }
}

/// A reclaimer that requests a frame itself whenever it is called.
struct Asks(Pool, AtomicU32);

impl Reclaimer for Asks {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(100)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        self.1.fetch_max(DEPTH.replace(DEPTH.get() + 1) + 1, Ordering::Relaxed); // relaxed: read after the joins
        self.0.alloc(&PoolRequest::page()).ok();
        DEPTH.set(DEPTH.get() - 1);
        PageCount::ZERO
    }
}

#[test]
fn reclaim_does_not_nest_at_the_end_of_a_thread() {
    within_patience("requests at the end of a thread", || {
        let pool = pool();
        let asks = Arc::new(Asks(pool.clone(), AtomicU32::new(0)));
        let _registration = pool.register_reclaimer(&asks);
        let frames = exhaust(&pool);
        // A request calls no reclaimer while a worker calls one, so the request is repeated several times.
        for _ in 0..30 {
            let user = pool.clone();
            let asks_late = move || {
                EARLY.set(Some(Farewell(user.clone())));
                user.alloc(&PoolRequest::page()).ok();
                LATE.set(Some(Farewell(user.clone())));
                // One of the two values is dropped after all the pool's thread locals.
            };
            thread::spawn(asks_late).join().unwrap();
        }
        assert_eq!(asks.1.load(Ordering::Relaxed), 1, "calls of the reclaimer on one thread at once");
        drop(frames);
    });
}

/// The callback runs while the request has a block that its caller does not have yet.
#[test]
fn a_request_whose_explanation_panics_keeps_no_block() {
    let pool = pool();
    let explained = |request: &PoolRequest<'_>| {
        let mut calls = 0;
        let panics = catch_unwind(AssertUnwindSafe(|| {
            let each = |_| {
                calls += 1;
                panic_any("of the callback")
            };
            pool.alloc_explained(request, each).map(drop)
        }));
        assert_eq!((panics.unwrap_err().downcast_ref(), calls), (Some(&"of the callback"), 1));
    };
    for order in [0, 3, 10] {
        explained(&PoolRequest::new(Order::new(order).unwrap()));
    }
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
    let held = exhaust(&pool);
    explained(&PoolRequest::page().no_wait()); // refused
    drop(held);
}
