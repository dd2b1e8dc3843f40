//! The work of each CPU: the workloads of `zonal run`, one allocation or free at a time.
//!
//! The rules are those of the workloads in `zonal-workload`, which run on threads. In this file a step is one call of
//! the allocator, so that the CPUs can take turns. Related files: `measure.rs` runs the turns.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use clap::ValueEnum;
use fastrand::Rng;
use serde::Serialize;
use zonal::units::{Order, Pfn};
use zonal::{Allocator, Request};

use crate::world::Virtual;

/// Frames of a batch.
const BATCH: usize = 512;
/// Maximum frame count of a `repeat` round.
const REPEAT: usize = 32768;
/// Number of frames that a ring between CPUs holds.
const RING: usize = 1024;
/// Number of CPUs whose frames one CPU frees.
const PURGED: usize = 8;
/// Number of processes that share as many CPUs.
const PROCESSES: usize = 8;
/// The largest order requested.
const ORDER_MAX: u8 = 9;

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// Allocates one frame and frees it.
    Pair,
    /// Allocates 512 frames and frees them in reverse order.
    Batch,
    /// Allocates 32768 frames, or three quarters of the CPU's share, then frees all of them.
    Repeat,
    /// Holds half the pool, and repeatedly frees a random frame and allocates another.
    Random,
    /// One CPU allocates frames, and another frees them.
    Handoff,
    /// Seven CPUs allocate frames, and an eighth frees them, as a thread does that purges the caches of others.
    Purge,
    /// Eight processes share eight CPUs. Each CPU allocates its share for processes at random; then all processes exit at
    /// once, and each CPU frees the frames of one.
    Exit,
    /// Allocates and frees blocks of random orders 0 to 9 at 50 to 70 % occupancy.
    Orders,
    /// Allocates the whole pool and frees it.
    Fill,
    /// Like `pair`, but all nodes except the last are full.
    Elsewhere,
}

type Block = (Pfn, Order);
type Ring = Rc<RefCell<VecDeque<Block>>>;

/// A CPU and its work.
pub(crate) struct Worker {
    work: Work,
    held: Vec<Block>,
    random: Rng,
    /// Whether the CPU currently allocates, rather than frees.
    allocating: bool,
}

enum Work {
    /// Allocates up to `most` blocks, then frees all of them.
    Waves {
        most: usize,
        free_order: FreeOrder,
    },
    Random {
        target: usize,
    },
    Alloc(Ring),
    Free(Ring),
    AllocAndFree(Ring),
    /// Allocates `most` frames for the processes of `rings`, and then frees those of the process `own`.
    Exit {
        rings: Vec<Ring>,
        own: usize,
        most: usize,
        allocated: usize,
    },
    /// Allocates and frees blocks. `pages` is the number of frames in the held blocks.
    Orders {
        share: u64,
        pages: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FreeOrder {
    LastFirst,
    FirstFirst,
}

/// Returns the workers of `cpus` CPUs, each with `share` frames.
pub(crate) fn workers(workload: Workload, cpus: usize, share: u64, seed: u64) -> Vec<Worker> {
    let rings: Vec<Ring> = (0..cpus).map(|_| Ring::default()).collect();
    let mut seeds = Rng::with_seed(seed);
    let most = |wanted: usize| Work::Waves { most: wanted, free_order: FreeOrder::LastFirst };
    let work = |cpu: usize| match workload {
        Workload::Pair | Workload::Elsewhere => most(1),
        Workload::Batch => most(BATCH),
        Workload::Repeat => {
            Work::Waves { most: REPEAT.min(share as usize / 4 * 3), free_order: FreeOrder::FirstFirst }
        }
        Workload::Random => Work::Random { target: share as usize / 2 },
        Workload::Handoff => {
            let ring = Rc::clone(&rings[cpu / 2]);
            match cpu % 2 {
                0 if cpu + 1 == cpus => Work::AllocAndFree(ring),
                0 => Work::Alloc(ring),
                _ => Work::Free(ring),
            }
        }
        Workload::Purge => {
            let ring = Rc::clone(&rings[cpu / PURGED]);
            match cpu % PURGED {
                0 if cpu + 1 == cpus => Work::AllocAndFree(ring),
                0 => Work::Free(ring),
                _ => Work::Alloc(ring),
            }
        }
        Workload::Exit => {
            let group = cpu / PROCESSES * PROCESSES;
            let rings = rings[group..cpus.min(group + PROCESSES)].to_vec();
            Work::Exit { rings, own: cpu - group, most: share as usize / 4 * 3, allocated: 0 }
        }
        Workload::Orders => Work::Orders { share, pages: 0 },
        Workload::Fill => most(share as usize),
    };
    (0..cpus)
        .map(|cpu| Worker { work: work(cpu), held: Vec::new(), random: seeds.fork(), allocating: true })
        .collect()
}

/// Allocates all frames of the current CPU's node above its watermark, and never frees them.
pub(crate) fn fill_node(allocator: &Allocator<'_, Virtual>) {
    for order in (0..=Order::DEFAULT_MAX.get()).rev().filter_map(Order::new) {
        let request = Request::new(order).this_node().no_wait();
        while allocator.alloc(&request).is_ok() {}
    }
}

impl Worker {
    /// Returns the number of steps before the work reaches its steady state.
    pub(crate) fn start(&self) -> usize {
        match &self.work {
            Work::Waves { most, .. } | Work::Exit { most, .. } => *most,
            Work::Random { target } => 2 * target,
            Work::Alloc(_) | Work::Free(_) | Work::AllocAndFree(_) => PURGED * RING,
            // A block has 102 frames on average.
            Work::Orders { share, .. } => (share / 64) as usize,
        }
    }

    /// Returns the minimum number of steps that cover all work phases.
    pub(crate) fn cycle(&self) -> usize {
        match &self.work {
            Work::Waves { most, .. } | Work::Exit { most, .. } => 2 * most,
            _ => 0,
        }
    }

    /// Makes one call of the allocator. Returns the number of blocks allocated or freed.
    pub(crate) fn step(&mut self, allocator: &Allocator<'_, Virtual>) -> u64 {
        match &mut self.work {
            Work::Waves { most, free_order } => {
                let (most, free_order) = (*most, *free_order);
                self.wave(allocator, most, free_order)
            }
            Work::Random { target } => {
                let target = *target;
                self.exchange(allocator, target)
            }
            Work::Alloc(ring) => alloc_to_ring(allocator, ring),
            Work::Free(ring) => free_from_ring(allocator, ring),
            Work::AllocAndFree(ring) => {
                self.allocating = !self.allocating;
                if self.allocating { free_from_ring(allocator, ring) } else { alloc_to_ring(allocator, ring) }
            }
            Work::Exit { .. } => self.alloc_for_processes(allocator),
            Work::Orders { share, pages } => {
                let (share, pages) = (*share, *pages);
                self.alloc_or_free(allocator, share, pages)
            }
        }
    }

    fn wave(&mut self, allocator: &Allocator<'_, Virtual>, most: usize, free_order: FreeOrder) -> u64 {
        if self.allocating {
            let block = alloc(allocator, Order::PAGE);
            self.allocating = block.is_some() && self.held.len() + 1 < most;
            self.held.extend(block);
            if free_order == FreeOrder::FirstFirst && !self.allocating {
                self.held.reverse();
            }
            return block.is_some().into();
        }
        let block = self.held.pop();
        self.allocating = self.held.is_empty();
        block.map_or(0, |block| free(allocator, block))
    }

    fn exchange(&mut self, allocator: &Allocator<'_, Virtual>, target: usize) -> u64 {
        if self.held.len() < target {
            let block = alloc(allocator, Order::PAGE);
            self.held.extend(block);
            return block.is_some().into();
        }
        let at = self.random.usize(..self.held.len());
        free(allocator, self.held.swap_remove(at))
    }

    /// Allocates below the lower bound, frees above the upper bound, and chooses at random between the two.
    fn alloc_or_free(&mut self, allocator: &Allocator<'_, Virtual>, share: u64, held: u64) -> u64 {
        let (least, most) = (share / 2, share * 7 / 10);
        let frees = held >= most || (held > least && self.random.bool());
        let order = Order::new(self.random.u8(..=ORDER_MAX)).expect("a small order");
        let block = if frees { None } else { alloc(allocator, order) };
        let Work::Orders { pages, .. } = &mut self.work else {
            unreachable!("only `Work::Orders` calls this")
        };
        if let Some(block) = block {
            *pages += block.1.pages().get();
            self.held.push(block);
            return 1;
        }
        if self.held.is_empty() {
            return 0;
        }
        let block = self.held.swap_remove(self.random.usize(..self.held.len()));
        *pages -= block.1.pages().get();
        free(allocator, block)
    }

    /// Allocates for a process at random, or frees a frame of the own process.
    fn alloc_for_processes(&mut self, allocator: &Allocator<'_, Virtual>) -> u64 {
        let Work::Exit { rings, own, most, allocated } = &mut self.work else {
            unreachable!("only `Work::Exit` calls this")
        };
        if self.allocating {
            let block = alloc(allocator, Order::PAGE);
            *allocated += 1;
            self.allocating = block.is_some() && *allocated < *most;
            rings[self.random.usize(..rings.len())].borrow_mut().extend(block);
            return block.is_some().into();
        }
        let block = rings[*own].borrow_mut().pop_front();
        (self.allocating, *allocated) = (block.is_none(), 0);
        block.map_or(0, |block| free(allocator, block))
    }

    /// Frees all held blocks.
    pub(crate) fn finish(&mut self, allocator: &Allocator<'_, Virtual>) {
        self.held.drain(..).for_each(|block| _ = free(allocator, block));
        if let Work::Alloc(ring) | Work::AllocAndFree(ring) = &self.work {
            ring.take().into_iter().for_each(|block| _ = free(allocator, block));
        }
        if let Work::Exit { rings, .. } = &self.work {
            rings.iter().flat_map(|ring| ring.take()).for_each(|block| _ = free(allocator, block));
        }
    }
}

fn alloc(allocator: &Allocator<'_, Virtual>, order: Order) -> Option<Block> {
    allocator.alloc(&Request::new(order)).ok().map(|block| (block.first, block.order))
}

fn free(allocator: &Allocator<'_, Virtual>, (first, order): Block) -> u64 {
    allocator.free(first, order).expect("the block was allocated");
    1
}

fn alloc_to_ring(allocator: &Allocator<'_, Virtual>, ring: &Ring) -> u64 {
    if ring.borrow().len() == RING {
        return 0;
    }
    let block = alloc(allocator, Order::PAGE);
    ring.borrow_mut().extend(block);
    block.is_some().into()
}

fn free_from_ring(allocator: &Allocator<'_, Virtual>, ring: &Ring) -> u64 {
    let block = ring.borrow_mut().pop_front();
    block.map_or(0, |block| free(allocator, block))
}
