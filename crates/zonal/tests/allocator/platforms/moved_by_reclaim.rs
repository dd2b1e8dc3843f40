//! Tests of reclaimers that put their caller to sleep, so that the caller may wake up on another CPU. From then on, the
//! first CPU runs other threads, and a kernel changes the pagesets of that CPU with plain loads and stores.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use crate::common::access::Disturbance;
use crate::common::scenarios::TestAllocator;
use crate::common::{Plan, World, cpu, run_on};
use zonal::config::NodeReclaim;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::{Config, Request};

/// CPU-local access that is allowed only on the CPU itself.
struct OnItsCpu;

impl Disturbance for OnItsCpu {
    fn may_lock(&self, of: CpuId) -> bool {
        assert_eq!(of.get(), cpu(), "a pageset is locked as its CPU's own from another one");
        true
    }

    fn may_lock_remotely(&self, of: CpuId) -> bool {
        assert_ne!(of.get(), cpu());
        true
    }
}

/// A page cache that fills the memory.
#[derive(Default)]
struct Cache {
    frames: Mutex<Vec<Pfn>>,
    allocator: OnceLock<&'static TestAllocator>,
    calls: AtomicU64,
}

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.frames.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        run_on(1 - cpu()); // the caller slept, and woke up on the other CPU
        self.calls.fetch_add(1, Relaxed); // relaxed: only one thread runs
        let mut frames = self.frames.lock().unwrap();
        let from = frames.len().saturating_sub(request.target.get() as usize);
        let freed = frames.split_off(from);
        self.allocator.get().unwrap().free_bulk(&freed).unwrap();
        PageCount::new(freed.len() as u64)
    }
}

/// Builds an allocator for two CPUs, of one node or two, whose memory is filled by a cache.
fn filled(plan: &Plan, node_reclaim: NodeReclaim) -> (&'static TestAllocator, Arc<Cache>) {
    run_on(0);
    let cache = Arc::new(Cache::default());
    let config = Config { node_reclaim, ..Config::default() };
    let World { allocator, .. } = plan.build_of(&config, |controls| {
        controls.disturb(&OnItsCpu);
        controls.set_reclaimer(Arc::clone(&cache) as _);
    });
    let allocator: &'static _ = Box::leak(Box::new(allocator));
    assert!(cache.allocator.set(allocator).is_ok());
    let mut frames = Vec::new();
    while let Ok(block) = allocator.alloc(&Request::page().no_wait()) {
        frames.push(block.first);
    }
    *cache.frames.lock().unwrap() = frames;
    (allocator, cache)
}

#[test]
fn a_request_that_reclaim_moves_no_longer_uses_its_first_cpu() {
    for plan in [Plan::even(1, 2, 4096), Plan::even(2, 1, 4096)] {
        for node_reclaim in [NodeReclaim::OFF, NodeReclaim::ON] {
            let (allocator, cache) = filled(&plan, node_reclaim);
            let mut held = Vec::new();
            for order in [0, 0, 1, 4, 0, 9].into_iter().cycle().take(600) {
                let request = Request::new(Order::new(order).unwrap());
                held.extend(allocator.alloc(&request).map(|block| (block.first, block.order)));
            }
            assert!(cache.calls.load(Relaxed) > 10, "{node_reclaim:?}");
            allocator.verify().unwrap();
            held.into_iter().for_each(|(first, order)| allocator.free(first, order).unwrap());
            let frames = std::mem::take(&mut *cache.frames.lock().unwrap());
            allocator.free_bulk(&frames).unwrap();
            allocator.drain_pagesets();
            let accounting = allocator.verify().unwrap();
            assert_eq!(accounting.free, accounting.managed);
        }
    }
}
