//! What all threads of a round share.
//!
//! Blocks that programs keep as *cache* can be reclaimed. Neighbours: `worker.rs` is a thread's work,
//! `course.rs` brings threads together.

use std::cell::{Cell, RefCell};

use fastrand::Rng;
use zonal::error::AllocError;
use zonal::machine::FrameRange;
use zonal::mempolicy::WeightTable;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::PageKind;
use zonal::units::{CpuId, NodeId, PageCount};
use zonal::{Allocator, Block, NodeMask, Policy, Request};
use zonal_lab::hands::Hands;
use zonal_lab::sim::{Lab, ProgramReclaimer, World as Machine};

use super::accounting::Accounting;
use super::round::Round;

/// A block that a program has.
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

/// A CPU of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    pub(super) id: CpuId,
    pub(super) node: NodeId,
}

/// What threads share.
pub(super) struct World<'g, 'h, 's, 'm> {
    pub(super) round: &'g Round,
    pub(super) hands: &'h Hands<'s, 'm>,
    pub(super) accounting: Accounting,
    pub(super) cpus: Vec<Cpu>,
    /// Nodes that had memory at the start.
    pub(super) memory: NodeMask,
    /// Blocks left for other threads to free.
    pub(super) left: RefCell<Vec<Held>>,
    /// By place of the node: what can be reclaimed.
    caches: RefCell<Vec<Vec<Held>>>,
    /// Frames that are offline.
    pub(super) offline: RefCell<Vec<FrameRange>>,
    pub(super) cpus_offline: RefCell<Vec<CpuId>>,
    /// Background workers at work.
    pub(super) reclaiming: Cell<usize>,
    random: RefCell<Rng>,
}

/// Policies that remember whose turn it is.
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
    pub(super) fn new(round: &'g Round, hands: &'h Hands<'s, 'm>) -> Self {
        let model = &round.machine.model;
        let cpus = model.nodes.iter().flat_map(|node| node.cpus.iter().map(|&id| Cpu { id, node: node.id }));
        Self {
            round,
            hands,
            accounting: Accounting::new(hands.sim),
            cpus: cpus.collect(),
            memory: model.zones.iter().map(|zone| zone.node).collect(),
            left: RefCell::default(),
            caches: RefCell::new(vec![Vec::new(); model.nodes.len()]),
            offline: RefCell::default(),
            cpus_offline: RefCell::default(),
            reclaiming: Cell::new(0),
            random: RefCell::new(Rng::with_seed(hands.sim.world.seed() ^ 0x5eed)),
        }
    }

    pub(super) fn machine(&self) -> &'s Machine {
        self.hands.sim.world
    }

    pub(super) fn allocator(&self) -> &'s Allocator<'m, Lab> {
        self.hands.sim.allocator
    }

    /// Returns the number of frames of the machine.
    pub(super) fn managed(&self) -> u64 {
        self.round.machine.model.zones.iter().map(|zone| zone.managed.get()).sum()
    }

    /// Allocates a block on the running CPU, if there is one.
    pub(super) fn alloc(&self, request: &Request<'_>, kind: PageKind) -> Option<Held> {
        match self.hands.alloc(&request.kind(kind)) {
            Ok(block) => {
                let place = self.hands.place_of(block.node);
                self.accounting.alloc(&block, kind, place, self.node_of(self.machine().cpu()));
                if !block.first.is_aligned_to(block.order) {
                    self.hands.fault(format!("a block of order {} begins at {}", block.order, block.first));
                }
                Some(Held { block, kind })
            }
            Err(AllocError::OutOfMemory(_) | AllocError::NoNodeInPolicy) => None,
            Err(error) => self.hands.fault(error.to_string()),
        }
    }

    /// Frees a block on the running CPU.
    pub(super) fn free(&self, held: Held) {
        self.accounting.free(&held.block, held.kind, self.hands.place_of(held.block.node));
        self.hands.free(&held.block);
    }

    fn node_of(&self, cpu: usize) -> NodeId {
        let there = self.cpus.iter().find(|there| there.id.index() == cpu);
        there.expect("threads run on CPUs of the machine").node
    }

    /// Keeps a block as cache.
    pub(super) fn keep(&self, held: Held) {
        self.caches.borrow_mut()[self.hands.place_of(held.block.node)].push(held);
    }

    /// Frees what is cache and what was left for others to free.
    pub(super) fn free_shared(&self) {
        let caches = || self.caches.borrow_mut().iter_mut().find_map(Vec::pop);
        while let Some(held) = self.left.borrow_mut().pop().or_else(caches) {
            self.free(held);
            self.hands.checkpoint();
        }
    }

    /// Removes a block from the cache of the node at a place.
    fn pop_cache(&self, place: usize) -> Option<Held> {
        self.caches.borrow_mut()[place].pop()
    }
}

impl ProgramReclaimer for World<'_, '_, '_, '_> {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let caches = self.caches.borrow();
        caches[self.hands.place_of(request.node)].iter().map(|held| held.block.order.pages()).sum()
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let place = self.hands.place_of(request.node);
        // A reclaimer can need a frame itself.
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
