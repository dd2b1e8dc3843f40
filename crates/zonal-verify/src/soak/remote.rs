//! A thread that works on other CPUs' pagesets. It drains them, folds their counters, and allocates many frames at once
//! while it moves from CPU to CPU.
//!
//! In some phases the thread runs concurrently with all other threads. In a *duel*, at a pause, it has one opponent: an
//! owner on another CPU that allocates and frees single frames as fast as it can.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use zonal::units::{CpuId, Order, Pfn};
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::{allowed_cpus, pin_to};

use super::round::Round;
use crate::stress::round::one_of;

/// Number of operations before the thread moves to another CPU.
const STAY: u32 = 64;
/// Number of frames that one bulk request allocates. It needs several refills and drains while it holds a pageset.
const BULK: usize = 500;
/// Frames that the owner in a duel allocates between two readings of the clock.
const BURST: usize = 1000;
/// Maximum numbers of frames that the owner in a duel holds. They fit into the pageset or exceed its capacity.
const HELD: [usize; 3] = [1, 3, 200];

/// The operation on other CPUs' pagesets, called a visit.
#[derive(Clone, Copy)]
enum Visit {
    Drain,
    Tick,
    Many,
    One,
}

pub(super) struct RemoteWorker {
    pool: Pool,
    /// CPUs that have pagesets.
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

    /// Visits pagesets until `over` is set, in a quarter of the phases. In the other phases it does nothing.
    pub(super) fn work_until(&mut self, over: &AtomicBool) {
        if self.random.u8(..4) != 0 {
            return;
        }
        let everywhere = allowed_cpus();
        // Relaxed: the flag only ends the loop and publishes no data.
        while !over.load(Relaxed) {
            pin_to(one_of(&mut self.random, &everywhere));
            for _ in 0..STAY {
                let what = one_of(&mut self.random, &[Visit::Drain, Visit::Tick, Visit::Many, Visit::One]);
                self.visit(what);
            }
        }
    }

    /// Visits the pagesets of an owner that allocates and frees frames for `time`. Does nothing if this process may use
    /// only one CPU.
    pub(super) fn duel(&mut self, time: Duration) {
        let [own, other, ..] = allowed_cpus()[..] else { return };
        let held = one_of(&mut self.random, &HELD);
        let what = one_of(&mut self.random, &[Visit::Drain, Visit::Tick, Visit::Many]);
        // The remote thread moves between the CPUs, so that it may be preempted and moved while it holds a lock.
        let moves = matches!(what, Visit::Many);
        let (pool, over) = (self.pool.clone(), AtomicBool::new(false));
        thread::scope(|scope| {
            let over = &over;
            scope.spawn(move || {
                pin_to(own);
                use_frames(&pool, time, held);
                over.store(true, Relaxed); // relaxed: it only ends a loop
            });
            // This runs on a new thread, because the pinning to a CPU lasts until the thread ends.
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    pin_to(if moves { one_of(&mut self.random, &[own, other]) } else { other });
                    (0..STAY).take_while(|_| !over.load(Relaxed)).for_each(|_| self.visit(what));
                }
            });
        });
    }

    fn visit(&mut self, what: Visit) {
        match what {
            Visit::Drain => self.pool.drain_pagesets(),
            // SAFETY: ticks neither allocate nor free a block.
            Visit::Tick => unsafe { self.pool.allocator() }.tick_cpu(one_of(&mut self.random, &self.cpus)),
            Visit::Many => use_many(&self.pool),
            Visit::One => use_frame(&self.pool),
        }
        self.visits += 1;
    }
}

/// Allocates and frees frames for `time`, and holds up to `held` of them at once.
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
    // SAFETY: the caller allocated the frame without `Frames`, and this is its only free.
    unsafe { pool.free_raw(frame, Order::PAGE) }.expect("it was allocated");
}

fn use_many(pool: &Pool) {
    let mut frames = [Pfn::new(0); BULK];
    let came = pool.alloc_bulk_raw(&PoolRequest::page().no_wait(), &mut frames).unwrap_or(0);
    // SAFETY: this function allocated the frames without `Frames`, and this is their only free.
    unsafe { pool.free_bulk_raw(&frames[..came]) }.expect("they were allocated");
}
