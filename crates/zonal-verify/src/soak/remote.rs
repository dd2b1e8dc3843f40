//! Works on other CPUs' pagesets: drains them, folds their counters, and locks them for many frames at once while it
//! moves from CPU to CPU.
//!
//! In some phases it runs beside all other threads. In a *duel*, at a pause, it has one opponent, each on a CPU
//! of its own: an owner that allocates and frees single frames as fast as it can.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};

use super::round::{Round, pick};

/// Visits on one CPU.
const STAY: u32 = 64;
/// Frames taken at once: several refills and drains under one hold of a pageset.
const BULK: usize = 500;
/// Frames that the owner in a duel takes between two looks at the time.
const BURST: usize = 1000;
/// Frames that it holds at most: within the pageset, and past its ends.
const HELD: [usize; 3] = [1, 3, 200];

/// What a visit does.
#[derive(Clone, Copy)]
enum Visit {
    Drain,
    Tick,
    Many,
    One,
}

pub(super) struct RemoteWorker {
    pool: Pool,
    /// CPUs that pagesets are of.
    cpus: Vec<CpuId>,
    random: Rng,
    visits: u64,
}

impl RemoteWorker {
    pub(super) fn new(round: &Round, seed: u64) -> Self {
        let nodes = round.pool.topology().nodes();
        Self {
            pool: round.pool.clone(),
            cpus: nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect(),
            random: Rng::with_seed(seed ^ 0x5157),
            visits: 0,
        }
    }

    pub(super) fn visits(&self) -> u64 {
        self.visits
    }

    /// Visits until `over` is set, in a quarter of the phases.
    pub(super) fn work_until(&mut self, over: &AtomicBool) {
        if self.random.u8(..4) != 0 {
            return;
        }
        let everywhere = allowed_cpus();
        // Relaxed: nothing is read on account of it.
        while !over.load(Relaxed) {
            stay_on(pick(&mut self.random, &everywhere));
            for _ in 0..STAY {
                let what = pick(&mut self.random, &[Visit::Drain, Visit::Tick, Visit::Many, Visit::One]);
                self.visit(what);
            }
        }
    }

    /// Visits the pagesets of an owner that does nothing but take and give frames for a while, where there are
    /// two CPUs.
    pub(super) fn duel(&mut self, time: Duration) {
        let [own, other, ..] = allowed_cpus()[..] else { return };
        let held = pick(&mut self.random, &HELD);
        let what = pick(&mut self.random, &[Visit::Drain, Visit::Tick, Visit::Many]);
        // One that holds a lock is preempted and goes on elsewhere.
        let moves = matches!(what, Visit::Many);
        let (pool, over) = (self.pool.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || {
                stay_on(own);
                use_frames(&pool, time, held);
                over.store(true, Relaxed); // relaxed: it only ends a loop
            });
            // A thread of its own, because it stays where it is put.
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    stay_on(if moves { pick(&mut self.random, &[own, other]) } else { other });
                    (0..STAY).take_while(|_| !over.load(Relaxed)).for_each(|_| self.visit(what));
                }
            });
        });
    }

    fn visit(&mut self, what: Visit) {
        match what {
            Visit::Drain => self.pool.drain_pagesets(),
            // SAFETY: ticks neither allocate nor free a block.
            Visit::Tick => unsafe { self.pool.allocator() }.tick_cpu(pick(&mut self.random, &self.cpus)),
            Visit::Many => use_many(&self.pool),
            Visit::One => use_frame(&self.pool),
        }
        self.visits += 1;
    }
}

/// Takes and gives frames for so long, up to `held` at once.
fn use_frames(pool: &Pool, time: Duration, held: usize) {
    let (begin, mut burst) = (Instant::now(), Vec::with_capacity(held));
    while begin.elapsed() < time {
        for _ in 0..BURST.div_ceil(held) {
            let taken = (0..held).map_while(|_| pool.alloc_raw(&PoolRequest::page()).ok());
            burst.extend(taken.map(|block| block.first));
            burst.drain(..).rev().for_each(|frame| give(pool, frame));
        }
    }
}

fn use_frame(pool: &Pool) {
    if let Ok(block) = pool.alloc_raw(&PoolRequest::page().no_wait()) {
        give(pool, block.first);
    }
}

fn give(pool: &Pool, frame: Pfn) {
    // SAFETY: a raw frame of the caller, freed once.
    unsafe { pool.free_raw(frame, Order::PAGE) }.expect("it was allocated");
}

fn use_many(pool: &Pool) {
    let mut frames = [Pfn::new(0); BULK];
    let came = pool.alloc_bulk_raw(&PoolRequest::page().no_wait(), &mut frames).unwrap_or(0);
    // SAFETY: raw frames of this function, freed once.
    unsafe { pool.free_bulk_raw(&frames[..came]) }.expect("they were allocated");
}

/// Returns CPUs where the calling thread may run.
fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a thread may ask where it may run");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Keeps the calling thread on a CPU; where that is not allowed, it stays where it is.
fn stay_on(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).ok();
}
