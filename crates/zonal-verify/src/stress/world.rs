//! The state that all threads of a round share.
//!
//! Reclaim may free the blocks that programs store as *cache*.
//!
//! Related files: `worker.rs` has a thread's work, and `course.rs` runs the threads.

use std::cell::{Cell, RefCell};

use fastrand::Rng;
use zonal::error::AllocError;
use zonal::machine::FrameRange;
use zonal::mempolicy::WeightTable;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::PageKind;
use zonal::units::{CpuId, NodeId, Order, PageCount};
use zonal::{Allocator, Block, FrameRun, NodeMask, Policy, Request};
use zonal_lab::sim::{Lab, ProgramReclaimer, World as Machine};
use zonal_lab::system::System;

use super::accounting::Accounting;
use super::round::Round;
use super::unused::UnusedFrames;

/// A block that a program has allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) block: Block,
    pub(super) kind: PageKind,
}

impl Held {
    pub(super) fn pages(&self) -> u64 {
        self.block.order.pages().get()
    }
}

/// Frames that a program allocated together.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRun {
    pub(super) frames: FrameRun,
    pub(super) kind: PageKind,
}

/// A CPU of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    pub(super) id: CpuId,
    pub(super) node: NodeId,
}

/// The state that threads share.
pub(super) struct World<'g, 'h, 's, 'm> {
    pub(super) round: &'g Round,
    pub(super) system: &'h System<'s, 'm>,
    pub(super) accounting: Accounting,
    pub(super) unused: UnusedFrames<'s, 'm>,
    /// Frames that were allocated together, for any thread to free.
    pub(super) runs: RefCell<Vec<HeldRun>>,
    pub(super) cpus: Vec<Cpu>,
    /// Nodes that had memory at the start.
    pub(super) memory: NodeMask,
    /// Blocks that a thread left for other threads to free.
    pub(super) left: RefCell<Vec<Held>>,
    /// Blocks that can be reclaimed, by the index of their node.
    caches: RefCell<Vec<Vec<Held>>>,
    /// Frames that are offline.
    pub(super) offline: RefCell<Vec<FrameRange>>,
    pub(super) cpus_offline: RefCell<Vec<CpuId>>,
    /// Number of background workers that are reclaiming.
    pub(super) reclaiming: Cell<usize>,
    random: RefCell<Rng>,
}

/// Policies that store the next node, so all threads share one instance of each.
pub(super) struct Policies<'w> {
    pub(super) interleave: Policy<'w, Lab>,
    pub(super) weighted: Policy<'w, Lab>,
}

impl<'w> Policies<'w> {
    pub(super) fn new(world: &World<'_, '_, '_, '_>, weights: &'w WeightTable<Lab>) -> Self {
        world.memory.iter().for_each(|node| weights.set(node, world.random.borrow_mut().u8(1..4)));
        let has_memory = "the first node has memory";
        Self {
            interleave: Policy::interleave(world.allocator(), world.memory).expect(has_memory),
            weighted: Policy::weighted_interleave(world.allocator(), world.memory, weights)
                .expect(has_memory),
        }
    }
}

impl<'g, 'h, 's, 'm> World<'g, 'h, 's, 'm> {
    pub(super) fn new(round: &'g Round, system: &'h System<'s, 'm>) -> Self {
        let model = &round.machine.model;
        let cpus = model.nodes.iter().flat_map(|node| node.cpus.iter().map(|&id| Cpu { id, node: node.id }));
        Self {
            round,
            system,
            accounting: Accounting::new(system.sim),
            unused: UnusedFrames::new(),
            runs: RefCell::default(),
            cpus: cpus.collect(),
            memory: model.zones.iter().map(|zone| zone.node).collect(),
            left: RefCell::default(),
            caches: RefCell::new(vec![Vec::new(); model.nodes.len()]),
            offline: RefCell::default(),
            cpus_offline: RefCell::default(),
            reclaiming: Cell::new(0),
            random: RefCell::new(Rng::with_seed(system.sim.world.seed() ^ 0x5eed)),
        }
    }

    pub(super) fn machine(&self) -> &'s Machine {
        self.system.sim.world
    }

    pub(super) fn allocator(&self) -> &'s Allocator<'m, Lab> {
        self.system.sim.allocator
    }

    /// Returns the machine's frame count.
    pub(super) fn managed(&self) -> u64 {
        self.round.machine.model.zones.iter().map(|zone| zone.managed.get()).sum()
    }

    /// Allocates a block on the running CPU. Returns `None` if no memory can serve the request.
    pub(super) fn alloc(&self, request: &Request<'_>, kind: PageKind) -> Option<Held> {
        let begun = self.unused.moment();
        match self.system.alloc(&request.kind(kind)) {
            Ok(block) => {
                self.demand(self.unused.check_allocated(&block.range(), begun));
                let place = self.system.place_of(block.node);
                self.accounting.alloc(&[block], kind, place, self.here());
                if !block.first.is_aligned_to(block.order) {
                    self.system.fault(format!("a block of order {} begins at {}", block.order, block.first));
                }
                Some(Held { block, kind })
            }
            Err(AllocError::OutOfMemory(_) | AllocError::NoNodeInPolicy) => None,
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Allocates `count` adjacent frames on the running CPU and splits them; returns the blocks.
    pub(super) fn alloc_in_parts(
        &self,
        request: &Request<'_>,
        count: u64,
        kind: PageKind,
        to: Order,
    ) -> Vec<Held> {
        let begun = self.unused.moment();
        match self.system.alloc_in_parts(&request.kind(kind), PageCount::new(count), to) {
            Ok(blocks) => {
                let check = |block: &Block| self.demand(self.unused.check_allocated(&block.range(), begun));
                blocks.iter().for_each(check);
                let place = self.system.place_of(blocks[0].node);
                self.accounting.alloc(&blocks, kind, place, self.here());
                blocks.into_iter().map(|block| Held { block, kind }).collect()
            }
            Err(AllocError::OutOfMemory(_) | AllocError::NoNodeInPolicy) => Vec::new(),
            Err(error) => self.system.fault(error.to_string()),
        }
    }

    /// Frees a block on the running CPU.
    pub(super) fn free(&self, held: Held) {
        let range = held.block.range();
        self.accounting.release(range.count, held.kind, self.system.place_of(held.block.node));
        let begun = self.unused.begin_free(&range, held.kind);
        self.system.free(&held.block);
        self.unused.end_free(&range, begun);
    }

    pub(super) fn node_of(&self, cpu: usize) -> NodeId {
        let there = self.cpus.iter().find(|there| there.id.index() == cpu);
        there.expect("threads run on CPUs of the machine").node
    }

    /// Adds a block to the cache of its node.
    pub(super) fn keep(&self, held: Held) {
        self.caches.borrow_mut()[self.system.place_of(held.block.node)].push(held);
    }

    /// Frees the runs, the cached blocks and the blocks that were left for other threads.
    pub(super) fn free_shared(&self) {
        self.free_runs();
        let caches = || self.caches.borrow_mut().iter_mut().find_map(Vec::pop);
        while let Some(held) = self.left.borrow_mut().pop().or_else(caches) {
            self.free(held);
            self.system.checkpoint();
        }
    }

    /// Removes a block from the cache of the node with index `place`.
    fn pop_cache(&self, place: usize) -> Option<Held> {
        self.caches.borrow_mut()[place].pop()
    }
}

impl ProgramReclaimer for World<'_, '_, '_, '_> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let caches = self.caches.borrow();
        caches[self.system.place_of(request.node)].iter().map(|held| held.block.order.pages()).sum()
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let place = self.system.place_of(request.node);
        // A reclaimer may itself need a frame while it reclaims.
        let needs = self.random.borrow_mut().u8(..8) == 0;
        let own = if needs { self.alloc(&Request::page(), PageKind::Kernel) } else { None };
        let mut freed = PageCount::ZERO;
        while freed < request.target
            && let Some(held) = self.pop_cache(place)
        {
            freed = freed.plus(held.block.order.pages());
            self.free(held);
        }
        if let Some(own) = own {
            self.free(own);
        }
        freed
    }
}
