//! Tests of a pool's callbacks for memory pressure.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use zonal_linux::{Frames, NodeId, PageCount, Pool, PoolRequest, PressureKind, ReclaimRequest, Reclaimer};
use zonal_testing::eventually;

fn pool() -> Pool {
    Pool::builder().size(16 << 20).fake_nodes(1).build().unwrap()
}

#[test]
fn callbacks_receive_events_until_their_registration_is_dropped() {
    let pool = pool();
    let seen: Arc<Mutex<Vec<PressureKind>>> = Arc::default();
    let sink = Arc::clone(&seen);
    let registration = pool.on_pressure(move |event| {
        assert_eq!(event.node, NodeId::default());
        sink.lock().unwrap().push(event.kind);
    });
    let pages: Vec<_> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page()).ok()).collect();
    let has = |kind| seen.lock().unwrap().contains(&kind);
    for kind in [PressureKind::BelowLow, PressureKind::Stalling, PressureKind::Failing] {
        eventually("the event arrives", || has(kind));
    }
    assert!(pool.stall_shares(NodeId::default()).is_some());
    drop(pages);
    pool.drain_pagesets();
    eventually("the tick reports that the pool has recovered", || has(PressureKind::AboveHigh));
    drop(registration);
    assert_eq!(Arc::strong_count(&seen), 1, "the callback is dropped with its registration");
}

/// Frees one of its pages in each call.
struct Cache(Mutex<Vec<Frames>>);

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.0.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(u64::from(self.0.lock().unwrap().pop().is_some()))
    }
}

#[test]
fn callbacks_may_reclaim() {
    let pool = pool();
    let (done, reported) = std::sync::mpsc::channel();
    let (inner, is_ready) = (pool.clone(), Arc::new(AtomicBool::new(false)));
    let has_reclaimer = Arc::clone(&is_ready);
    let registration = pool.on_pressure(move |_| {
        eventually("the reclaimer is registered", || has_reclaimer.load(Relaxed));
        // Leaves no memory to anyone, so the last of these requests reclaims.
        let pages: Vec<_> = std::iter::from_fn(|| inner.alloc(&PoolRequest::page().no_wait()).ok()).collect();
        let reclaimed = inner.alloc(&PoolRequest::page()).is_ok();
        drop(pages);
        done.send((reclaimed, inner.events().direct_reclaimed > 0)).unwrap_or(());
    });
    let mut pages: Vec<_> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
    let cache = Arc::new(Cache(Mutex::new(pages.split_off(pages.len() / 2))));
    let reclaimer = pool.register_reclaimer(&cache);
    is_ready.store(true, Relaxed);
    assert_eq!(reported.recv(), Ok((true, true)), "the callback's request called the reclaimer");
    drop((registration, reclaimer, cache, pages));
    pool.drain_pagesets();
    pool.verify().unwrap();
}

#[test]
fn callbacks_may_use_the_pool_and_panic() {
    let pool = pool();
    let (calls, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let _panics = pool.on_pressure(|_| panic!("a callback's own mistake, on purpose"));
    let (inner, counted, refused) = (pool.clone(), Arc::clone(&calls), Arc::clone(&failed));
    let registration = pool.on_pressure(move |_| {
        refused.store(inner.alloc(&PoolRequest::page().no_wait()).is_err(), Relaxed);
        inner.drain_pagesets();
        counted.fetch_add(1, Relaxed);
    });
    let pages: Vec<_> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page()).ok()).collect();
    eventually("a callback is called after another one panicked", || calls.load(Relaxed) > 0);
    drop(pages);
    drop(registration); // it owns a handle of the pool
    pool.drain_pagesets();
    pool.verify().unwrap();
}
