//! Somebody who is at other CPUs' pagesets all the time: drains them, folds their counters, locks them for
//! many frames at once, and goes from CPU to CPU meanwhile.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use fastrand::Rng;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};

use super::Faults;
use super::ground::{Ground, pick};

/// Visits on one CPU.
const STAY: u32 = 64;
/// Frames taken at once: several refills and drains under one hold of a pageset.
const BULK: usize = 500;

pub(super) struct Visitor {
    pool: Pool,
    /// CPUs that pagesets are of.
    cpus: Vec<CpuId>,
    random: Rng,
    faults: Faults,
}

impl Visitor {
    pub(super) fn new(ground: &Ground, seed: u64) -> Self {
        let nodes = ground.pool.topology().nodes();
        Self {
            pool: ground.pool.clone(),
            cpus: nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect(),
            random: Rng::with_seed(seed ^ 0x5157),
            faults: Faults::default(),
        }
    }

    /// Visits until told otherwise, in half of the bouts.
    pub(super) fn work_until(&mut self, over: &AtomicBool) {
        if self.random.bool() {
            return;
        }
        let everywhere = sched_getaffinity(None).expect("a thread may ask where it may run");
        // Relaxed: nothing is read on account of it.
        while !over.load(Relaxed) {
            self.move_within(&everywhere);
            (0..STAY).for_each(|_| self.visit());
            self.faults.visits += u64::from(STAY);
        }
        stay_within(&everywhere);
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    fn visit(&mut self) {
        match self.random.u8(..8) {
            0..3 => self.pool.drain_pagesets(),
            // SAFETY: ticks give no block to anybody and take none from anybody.
            3..6 => unsafe { self.pool.allocator() }.tick_cpu(pick(&mut self.random, &self.cpus)),
            6 => self.use_many(),
            _ => self.use_one(),
        }
    }

    fn use_many(&self) {
        let mut frames = [Pfn::new(0); BULK];
        let came = self.pool.alloc_bulk_raw(&PoolRequest::page().no_wait(), &mut frames).unwrap_or(0);
        // SAFETY: raw frames of this function, freed once.
        unsafe { self.pool.free_bulk_raw(&frames[..came]) }.expect("they were allocated");
    }

    fn use_one(&self) {
        if let Ok(block) = self.pool.alloc_raw(&PoolRequest::page().no_wait()) {
            // SAFETY: a raw block of this function, freed once.
            unsafe { self.pool.free_raw(block.first, Order::PAGE) }.expect("it was allocated");
        }
    }

    /// Goes to one of the CPUs where the thread may run, if that can be chosen.
    fn move_within(&mut self, cpus: &CpuSet) {
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).collect();
        let mut one = CpuSet::new();
        one.set(pick(&mut self.random, &all));
        stay_within(&one);
    }
}

/// Keeps the calling thread on some CPUs; where that is not allowed, it stays where it is.
fn stay_within(cpus: &CpuSet) {
    sched_setaffinity(None, cpus).ok();
}
