//! Tests of the callbacks of a pool for memory pressure.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use zonal_linux::{NodeId, Pool, PoolRequest, PressureKind};
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
