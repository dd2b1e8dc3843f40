//! Reclaim in a shared pool: each process has reclaimers of its own, and another may be short.

use std::sync::{Arc, Mutex};

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal_linux::{Frames, PageCount, PageKind, Pool, PoolRequest};
use zonal_testing::eventually;

use crate::other::{Other, Place};

#[derive(Default)]
struct Cache(Mutex<Vec<Frames>>);

impl Cache {
    /// Fills the cache until `left` frames are free.
    fn fill(&self, pool: &Pool, left: u64) {
        while pool.accounting().free.get() > left {
            let frames = pool.alloc(&PoolRequest::page().kind(PageKind::Cache)).unwrap();
            self.0.lock().unwrap().push(frames);
        }
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Reclaimer for Cache {
    fn count(&self, _: &ReclaimRequest) -> PageCount {
        PageCount::new(self.len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut frames = self.0.lock().unwrap();
        let left = frames.len().saturating_sub(request.target.get() as usize);
        PageCount::new(frames.drain(left..).count() as u64)
    }
}

#[test]
fn the_cache_of_a_process_shrinks_for_another() {
    let place = Place::new("reclaim");
    let pool = place.pool();
    let cache = Arc::new(Cache::default());
    let _registration = pool.register_reclaimer(&cache);
    cache.fill(&pool, 2000);
    let before = cache.len();
    let mut other = Other::start(&place);
    eventually("the other process gets what the cache has given up", || {
        other.ask("more 100").parse::<usize>().unwrap() >= 6000
    });
    assert!(cache.len() + 3500 < before, "{before} frames before, {} now", cache.len());
}

/// A process may be stopped while it reclaims, or its reclaimer may never return.
#[test]
fn a_process_that_is_stopped_in_reclaim_keeps_no_other_from_it() {
    let place = Place::new("stopped-reclaim");
    let pool = place.pool();
    let cache = Arc::new(Cache::default());
    cache.fill(&pool, 1000);
    let mut stopped = Other::start(&place);
    stopped.ask("stay");
    stopped.pass("more 2000");
    assert_eq!(stopped.answer(), "reclaiming");
    let _registration = pool.register_reclaimer(&cache);
    let mut other = Other::start(&place);
    eventually("the other process gets what the cache has given up", || {
        other.ask("more 100").parse::<usize>().unwrap() >= 2000
    });
}
