//! Checks that a dropped pool leaves neither threads nor mappings. The test has its own process, because it counts
//! the threads of the process.

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::{NodeId, PageCount};
use zonal_linux::{Frames, Pool, PoolRequest};
use zonal_testing::{eventually, within_patience};

#[path = "common/maps.rs"]
mod maps;
#[path = "common/pool_threads.rs"]
mod pool_threads;

use maps::is_mapped;
use pool_threads::{assert_no_pool_threads, pool_threads};

fn pool() -> Pool {
    Pool::builder().size(32 << 20).fake_nodes(3).build().unwrap()
}

/// A reclaimer that drops the last handle of its pool, on any thread that calls the reclaimer.
struct DropsLastHandle(Mutex<Option<(Pool, Frames)>>);

impl Reclaimer for DropsLastHandle {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        let had = self.0.lock().unwrap().take();
        PageCount::new(u64::from(had.is_some()))
    }
}

fn ends_with_its_last_handle() {
    let first = pool();
    let second = first.clone();
    // A thread names itself shortly after its start.
    eventually("five named threads of a pool", || pool_threads() == 5);
    drop(first);
    assert_eq!(pool_threads(), 5);
    let address = second.alloc(&PoolRequest::page()).unwrap().as_ptr() as usize;
    drop(second);
    assert_no_pool_threads();
    assert!(!is_mapped(address));
}

fn frames_outlive_their_pool() {
    let pool = pool();
    let mut frames = pool.alloc(&PoolRequest::page()).unwrap();
    let address = frames.as_ptr() as usize;
    drop(pool);
    assert_no_pool_threads();
    frames.fill(9);
    assert!(frames.iter().all(|&byte| byte == 9));
    drop(frames);
    assert!(!is_mapped(address));
}

fn threads_that_use_it_keep_it() {
    let pool = pool();
    let address = pool.ptr_of(pool.ranges().next().unwrap().frames.start).unwrap().as_ptr() as usize;
    let users: Vec<_> = (0..4_u8)
        .map(|mark| {
            let pool = pool.clone();
            thread::spawn(move || {
                for _ in 0..20_000 {
                    let mut frames = pool.alloc(&PoolRequest::page()).unwrap();
                    frames[0] = mark;
                    assert_eq!(frames[0], mark);
                }
            })
        })
        .collect();
    drop(pool);
    users.into_iter().for_each(|user| user.join().unwrap());
    assert_no_pool_threads();
    assert!(!is_mapped(address));
}

/// Drops frames on several threads while another thread drops the last handle.
fn frames_race_with_the_last_handle() {
    for round in 0..40 {
        let pool = pool();
        let start = Arc::new(Barrier::new(4));
        let page = || pool.alloc(&PoolRequest::page()).unwrap();
        let address = page().as_ptr() as usize;
        let buffer = pool.alloc_bytes(&PoolRequest::page(), 5 << 12).unwrap();
        let threads = [(); 3].map(|()| {
            let (start, mut held) = (Arc::clone(&start), (0..200).map(|_| page()).collect::<Vec<_>>());
            thread::spawn(move || {
                start.wait();
                held.truncate(round);
                held.pop()
            })
        });
        start.wait();
        drop(pool);
        let last = threads.map(|thread| thread.join().unwrap());
        assert_no_pool_threads();
        let mut pages = buffer.into_pages();
        assert!(is_mapped(address), "round {round}");
        drop(last);
        pages.iter_mut().for_each(|page| page.fill(1));
        assert!(is_mapped(address), "round {round}");
        drop(pages);
        assert!(!is_mapped(address), "round {round}");
    }
}

fn a_reclaimer_may_drop_the_last_handle() {
    let pool = pool();
    let cache = Arc::new(DropsLastHandle(Mutex::new(None)));
    let _registered = pool.register_reclaimer(&cache);
    let mut held = Vec::new();
    while let Ok(frames) = pool.alloc(&PoolRequest::page().no_wait()) {
        held.push(frames);
    }
    let address = held[0].as_ptr() as usize;
    let last = held.pop().unwrap();
    *cache.0.lock().unwrap() = Some((pool.clone(), last));
    // The workers were woken when free memory fell below `low`, or this request wakes them. The first thread that
    // calls the cache receives the handle.
    pool.alloc(&PoolRequest::page()).ok();
    drop(pool);
    // If no other thread has called the cache, this thread does.
    cache.reclaim(&ReclaimRequest::new(ReclaimReason::Direct, NodeId::default(), PageCount::new(1)));
    assert!(cache.0.lock().unwrap().is_none());
    drop(held);
    assert_no_pool_threads();
    assert!(!is_mapped(address));
}

#[test]
fn dropped_pools_leave_no_mappings_or_threads() {
    // These tests would hang if a thread that they wait for did not end.
    within_patience("ends_with_its_last_handle", ends_with_its_last_handle);
    within_patience("frames_outlive_their_pool", frames_outlive_their_pool);
    within_patience("threads_that_use_it_keep_it", threads_that_use_it_keep_it);
    within_patience("frames_race_with_the_last_handle", frames_race_with_the_last_handle);
    within_patience("a_reclaimer_may_drop_the_last_handle", a_reclaimer_may_drop_the_last_handle);
}
