//! Checks that a worker whose reclaimers free nothing pauses between its rounds of reclaim, and continues afterwards.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::PageCount;
use zonal_linux::{Pool, PoolRequest, Topology};
use zonal_testing::eventually;

/// Number of rounds observed. After more rounds than this, the allocator no longer wakes the worker.
const ROUNDS: usize = 8;
/// Slightly less than the worker's pause of 4 ms, because waits and [`Instant`] may have different clocks.
const REST_MIN: Duration = Duration::from_micros(3900);

/// A reclaimer that frees nothing, and records when background reclaim calls it.
#[derive(Default)]
struct Empty(Mutex<Vec<Instant>>);

impl Reclaimer for Empty {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason == ReclaimReason::Background {
            self.0.lock().unwrap().push(Instant::now());
        }
        PageCount::ZERO
    }
}

/// The test checks only a minimum for the pause, so a slow machine does not make it fail.
#[test]
fn futile_reclaim_does_not_busy_loop() {
    let pool = Pool::builder().topology(Topology::fake(1).unwrap()).size(16 << 20).build().unwrap();
    let empty = Arc::new(Empty::default());
    let _registered = pool.register_reclaimer(&empty);
    let page = PoolRequest::page().no_wait();
    let mut held: Vec<_> = std::iter::from_fn(|| pool.alloc(&page).ok()).collect();
    // Every failed request wakes the worker.
    eventually("the worker calls the reclaimer repeatedly", || {
        for _ in 0..1000 {
            held.extend(pool.alloc(&page).ok());
        }
        empty.0.lock().unwrap().len() >= ROUNDS
    });
    let times = empty.0.lock().unwrap().clone();
    let rests: Vec<Duration> = times[..ROUNDS].windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(rests.iter().all(|rest| *rest >= REST_MIN), "{rests:?}");
}
