//! Tests of reclaimers that put their caller to sleep, so that the caller may wake up on another CPU. From then on, the
//! first CPU runs other threads, and a kernel changes the pagesets of that CPU with plain loads and stores.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use crate::common::Plan;
use zonal::config::NodeReclaim;
use zonal::platform::SpinLock;
use zonal::platform::cpu_local::{CpuLocal, Head, Popped, Push, Step, TryLock};
use zonal::platform::pageset_slot::{PagesetSlot, PagesetSlots};
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::{CpuId, Moment, Order, PageCount, Pfn};
use zonal::{Allocator, Config, Platform, Request};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static RECLAIMING: Cell<bool> = const { Cell::new(false) };
}

/// CPU-local access that is allowed only on the CPU itself.
struct OnItsCpu;

impl CpuLocal<Sleepy> for OnItsCpu {
    fn pop_current<'m>(
        &self,
        platform: &Sleepy,
        slots: &PagesetSlots<'m, Sleepy>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, Sleepy>, Popped) {
        TryLock.pop_current(platform, slots, step)
    }

    fn pop_current_if<'m>(
        &self,
        platform: &Sleepy,
        slots: &PagesetSlots<'m, Sleepy>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, Sleepy>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, Sleepy>, Popped)> {
        TryLock.pop_current_if(platform, slots, step, accepts)
    }

    fn push_current<'m>(
        &self,
        platform: &Sleepy,
        slots: &PagesetSlots<'m, Sleepy>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Sleepy>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Sleepy>, Push) -> bool,
    ) -> bool {
        TryLock.push_current(platform, slots, prepare, refused)
    }

    fn lock(&self, cpu: CpuId, head: &Head<Sleepy>) -> bool {
        assert_eq!(cpu.get(), CPU.get(), "a pageset is locked as its CPU's own from another one");
        TryLock.lock(cpu, head)
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Sleepy>) -> bool {
        assert_ne!(cpu.get(), CPU.get());
        TryLock.lock(cpu, head)
    }
}

/// A page cache that fills the memory.
#[derive(Default)]
struct Cache {
    frames: Mutex<Vec<Pfn>>,
    allocator: OnceLock<&'static Allocator<'static, Sleepy>>,
    calls: AtomicU64,
}

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.frames.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        CPU.set(1 - CPU.get()); // the caller slept, and woke up on the other CPU
        self.calls.fetch_add(1, Relaxed); // relaxed: only one thread runs
        let mut frames = self.frames.lock().unwrap();
        let from = frames.len().saturating_sub(request.target.get() as usize);
        let freed = frames.split_off(from);
        self.allocator.get().unwrap().free_bulk(&freed).unwrap();
        PageCount::new(freed.len() as u64)
    }
}

struct Sleepy(Arc<Cache>);

impl Platform for Sleepy {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = OnItsCpu;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn cpu_local(&self) -> &OnItsCpu {
        &OnItsCpu
    }

    fn now(&self) -> Moment {
        Moment::from_ns(0)
    }

    fn is_reclaiming(&self) -> bool {
        RECLAIMING.get()
    }

    fn begin_reclaiming(&self) {
        RECLAIMING.set(true);
    }

    fn end_reclaiming(&self) {
        RECLAIMING.set(false);
    }

    fn reclaimer(&self) -> &dyn Reclaimer {
        &*self.0
    }
}

/// Builds an allocator for two CPUs, of one node or two, whose memory is filled by a cache.
fn filled(plan: &Plan, node_reclaim: NodeReclaim) -> (&'static Allocator<'static, Sleepy>, Arc<Cache>) {
    CPU.set(0);
    let cache = Arc::new(Cache::default());
    let config = Config { node_reclaim, ..Config::default() };
    let allocator = plan.try_build(&config, Sleepy(Arc::clone(&cache))).unwrap();
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
