//! What each virtual CPU does: the workloads of `zonal run`, one allocation or free at a time.
//!
//! They follow the rules of the ones in `zonal-linux`, which run on threads of their own; here a
//! step is one call of the allocator, so that the CPUs can take turns. Neighbours: `measure.rs`
//! lets them take turns.

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
/// Frames of a round of `repeat`, at most.
const REPEAT: usize = 32768;
/// Frames that a ring between two CPUs holds.
const RING: usize = 1024;
/// The largest order asked for.
const ORDER_MAX: u8 = 9;

/// The kinds of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// One out, one back.
    Pair,
    /// 512 out, 512 back, the last first.
    Batch,
    /// 32768 out (or three quarters of the CPU's share), all back.
    Repeat,
    /// Half the pool is held; one at random goes back, one comes out.
    Random,
    /// One CPU takes, another gives back.
    Handoff,
    /// Blocks of random orders 0..=9 at 50 to 70 % occupancy.
    Orders,
    /// The whole pool out, then back.
    Fill,
    /// As `pair`, while all nodes but the last are full.
    Elsewhere,
}

type Block = (Pfn, Order);
type Ring = Rc<RefCell<VecDeque<Block>>>;

/// One CPU at work.
pub(crate) struct Worker {
    work: Work,
    held: Vec<Block>,
    random: Rng,
    /// Whether it takes at the moment, rather than gives.
    taking: bool,
}

enum Work {
    /// Up to `most` out, then all back.
    Waves {
        most: usize,
        way_back: WayBack,
    },
    Random {
        target: usize,
    },
    Take(Ring),
    Give(Ring),
    TakeAndGive(Ring),
    /// `pages` are held, in blocks.
    Orders {
        share: u64,
        pages: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WayBack {
    LastFirst,
    FirstFirst,
}

/// The workers of `cpus` CPUs, each with `share` frames.
pub(crate) fn workers(workload: Workload, cpus: usize, share: u64, seed: u64) -> Vec<Worker> {
    let rings: Vec<Ring> = (0..cpus.div_ceil(2)).map(|_| Ring::default()).collect();
    let mut seeds = Rng::with_seed(seed);
    let most = |wanted: usize| Work::Waves { most: wanted, way_back: WayBack::LastFirst };
    let work = |cpu: usize| match workload {
        Workload::Pair | Workload::Elsewhere => most(1),
        Workload::Batch => most(BATCH),
        Workload::Repeat => {
            Work::Waves { most: REPEAT.min(share as usize / 4 * 3), way_back: WayBack::FirstFirst }
        }
        Workload::Random => Work::Random { target: share as usize / 2 },
        Workload::Handoff => {
            let ring = Rc::clone(&rings[cpu / 2]);
            match cpu % 2 {
                0 if cpu + 1 == cpus => Work::TakeAndGive(ring),
                0 => Work::Take(ring),
                _ => Work::Give(ring),
            }
        }
        Workload::Orders => Work::Orders { share, pages: 0 },
        Workload::Fill => most(share as usize),
    };
    (0..cpus)
        .map(|cpu| Worker { work: work(cpu), held: Vec::new(), random: seeds.fork(), taking: true })
        .collect()
}

/// Takes what the node of the current CPU gives above its watermark, and keeps it.
pub(crate) fn fill_node(allocator: &Allocator<'_, Virtual>) {
    for order in (0..=Order::DEFAULT_MAX.get()).rev().filter_map(Order::new) {
        let request = Request::new(order).this_node().no_wait();
        while allocator.alloc(&request).is_ok() {}
    }
}

impl Worker {
    /// Steps until the work goes on as it will.
    pub(crate) fn start(&self) -> usize {
        match &self.work {
            Work::Waves { most, .. } => *most,
            Work::Random { target } => 2 * target,
            Work::Take(_) | Work::Give(_) | Work::TakeAndGive(_) => 2 * RING,
            // 102 frames a block on average.
            Work::Orders { share, .. } => (share / 64) as usize,
        }
    }

    /// Steps that show all there is to the work from then on.
    pub(crate) fn cycle(&self) -> usize {
        match &self.work {
            Work::Waves { most, .. } => 2 * most,
            _ => 0,
        }
    }

    /// One call of the allocator; gives how many blocks moved.
    pub(crate) fn step(&mut self, allocator: &Allocator<'_, Virtual>) -> u64 {
        match &mut self.work {
            Work::Waves { most, way_back } => {
                let (most, way_back) = (*most, *way_back);
                self.wave(allocator, most, way_back)
            }
            Work::Random { target } => {
                let target = *target;
                self.exchange(allocator, target)
            }
            Work::Take(ring) => hand_over(allocator, ring),
            Work::Give(ring) => receive(allocator, ring),
            Work::TakeAndGive(ring) => {
                self.taking = !self.taking;
                if self.taking { receive(allocator, ring) } else { hand_over(allocator, ring) }
            }
            Work::Orders { share, pages } => {
                let (share, pages) = (*share, *pages);
                self.come_and_go(allocator, share, pages)
            }
        }
    }

    fn wave(&mut self, allocator: &Allocator<'_, Virtual>, most: usize, way_back: WayBack) -> u64 {
        if self.taking {
            let block = take(allocator, Order::PAGE);
            self.taking = block.is_some() && self.held.len() + 1 < most;
            self.held.extend(block);
            if way_back == WayBack::FirstFirst && !self.taking {
                self.held.reverse();
            }
            return block.is_some().into();
        }
        let block = self.held.pop();
        self.taking = self.held.is_empty();
        block.map_or(0, |block| give(allocator, block))
    }

    fn exchange(&mut self, allocator: &Allocator<'_, Virtual>, target: usize) -> u64 {
        if self.held.len() < target {
            let block = take(allocator, Order::PAGE);
            self.held.extend(block);
            return block.is_some().into();
        }
        let at = self.random.usize(..self.held.len());
        give(allocator, self.held.swap_remove(at))
    }

    /// Takes below the lower bound, gives above the upper one, tosses a coin between them.
    fn come_and_go(&mut self, allocator: &Allocator<'_, Virtual>, share: u64, held: u64) -> u64 {
        let (least, most) = (share / 2, share * 7 / 10);
        let gives = held >= most || (held > least && self.random.bool());
        let order = Order::new(self.random.u8(..=ORDER_MAX)).expect("a small order");
        let block = if gives { None } else { take(allocator, order) };
        let Work::Orders { pages, .. } = &mut self.work else { unreachable!("asked by this work") };
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
        give(allocator, block)
    }

    /// Gives back all that is held.
    pub(crate) fn finish(&mut self, allocator: &Allocator<'_, Virtual>) {
        self.held.drain(..).for_each(|block| _ = give(allocator, block));
        if let Work::Take(ring) | Work::TakeAndGive(ring) = &self.work {
            ring.take().into_iter().for_each(|block| _ = give(allocator, block));
        }
    }
}

fn take(allocator: &Allocator<'_, Virtual>, order: Order) -> Option<Block> {
    allocator.alloc(&Request::new(order)).ok().map(|block| (block.first, block.order))
}

fn give(allocator: &Allocator<'_, Virtual>, (first, order): Block) -> u64 {
    allocator.free(first, order).expect("the allocator takes back what it gave out");
    1
}

fn hand_over(allocator: &Allocator<'_, Virtual>, ring: &Ring) -> u64 {
    if ring.borrow().len() == RING {
        return 0;
    }
    let block = take(allocator, Order::PAGE);
    ring.borrow_mut().extend(block);
    block.is_some().into()
}

fn receive(allocator: &Allocator<'_, Virtual>, ring: &Ring) -> u64 {
    let block = ring.borrow_mut().pop_front();
    block.map_or(0, |block| give(allocator, block))
}
