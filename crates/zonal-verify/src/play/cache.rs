//! The reclaimer of plays: it gives up blocks that were allocated as page cache, keeps them, or lies.
//!
//! It acts within calls of the allocator, where nobody can tell the model: what it did is kept for the
//! player to look up after the call. Neighbours: `steered.rs` asks it, `verdict.rs` tells the model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed}; // one thread
use std::sync::{Mutex, MutexGuard, OnceLock};

use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::Urgency;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{Allocator, Request};

use super::steered::{Cells, Steered};

/// What the reclaimer does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Manner {
    /// Has no blocks.
    Empty,
    /// Frees cached blocks, and needs a frame of its own meanwhile.
    Honest,
    /// Has cached blocks, and frees none.
    Stubborn,
    /// Has cached blocks, and says that it freed what was asked for.
    Lying,
}

impl Manner {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Empty, Self::Honest, Self::Stubborn, Self::Lying];
}

/// What the reclaimer did during one call of the allocator.
#[derive(Default)]
pub(super) struct Effects {
    /// Blocks freed: first frames and orders.
    pub(super) freed: Vec<(u64, Order)>,
    /// Nodes of the frames that it allocated, and freed again.
    pub(super) own: Vec<NodeId>,
}

impl Effects {
    /// Whether it did nothing.
    pub(super) fn are_none(&self) -> bool {
        self.freed.is_empty() && self.own.is_empty()
    }
}

/// The reclaimer.
pub(super) struct Cache<'m, C: Cells> {
    manner: AtomicU8,
    promised: AtomicU64,
    /// Blocks that hold page cache, by first frame.
    blocks: Mutex<BTreeMap<u64, (Order, NodeId)>>,
    effects: Mutex<Effects>,
    allocator: OnceLock<&'m Allocator<'m, Steered<'m, C>>>,
}

impl<'m, C: Cells> Cache<'m, C> {
    pub(super) fn new() -> Self {
        Self {
            manner: AtomicU8::new(Manner::Empty as u8),
            promised: AtomicU64::new(0),
            blocks: Mutex::default(),
            effects: Mutex::default(),
            allocator: OnceLock::new(),
        }
    }

    /// Tells it which allocator its blocks are freed to.
    pub(super) fn attach(&self, allocator: &'m Allocator<'m, Steered<'m, C>>) {
        assert!(self.allocator.set(allocator).is_ok(), "a cache has one allocator");
    }

    pub(super) fn behave(&self, manner: Manner) {
        self.manner.store(manner as u8, Relaxed);
    }

    pub(super) fn manner(&self) -> Manner {
        Manner::ALL[usize::from(self.manner.load(Relaxed))]
    }

    /// From now on it says that it has `pages` more on each node than it has.
    pub(super) fn promise(&self, pages: u64) {
        self.promised.store(pages, Relaxed);
    }

    /// Adds a block.
    pub(super) fn add(&self, first: u64, order: Order, node: NodeId) {
        self.blocks().insert(first, (order, node));
    }

    /// Removes the block at a frame, if it has that.
    pub(super) fn remove(&self, first: u64) {
        self.blocks().remove(&first);
    }

    /// Returns what it did since this was last called.
    pub(super) fn take_effects(&self) -> Effects {
        std::mem::take(&mut self.effects.try_lock().expect("one thread"))
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, (Order, NodeId)>> {
        self.blocks.try_lock().expect("blocks are not held across calls of the allocator")
    }

    pub(super) fn count(&self, request: &ReclaimRequest) -> PageCount {
        let promised = PageCount::new(self.promised.load(Relaxed));
        if self.manner() == Manner::Empty {
            return promised;
        }
        let blocks = self.blocks();
        let of_node = blocks.values().filter(|(_, node)| *node == request.node);
        of_node.map(|(order, _)| order.pages()).fold(promised, PageCount::plus)
    }

    pub(super) fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        match self.manner() {
            Manner::Honest => self.free_some(request.node, request.target),
            Manner::Empty | Manner::Stubborn => PageCount::ZERO,
            Manner::Lying => request.target,
        }
    }

    fn free_some(&self, node: NodeId, target: PageCount) -> PageCount {
        let Some(allocator) = self.allocator.get() else { return PageCount::ZERO };
        let own = allocator.alloc(&Request::page().urgency(Urgency::Reserve)).ok();
        let mut effects = Effects { own: own.iter().map(|block| block.node).collect(), ..Effects::default() };
        let mut freed = PageCount::ZERO;
        while freed < target {
            let blocks = self.blocks();
            let next =
                blocks.iter().find(|(_, (_, of))| *of == node).map(|(&first, &(order, _))| (first, order));
            drop(blocks);
            let Some((first, order)) = next else { break };
            self.remove(first);
            allocator.free(Pfn::new(first), order).expect("a cached block can be freed");
            freed = freed.plus(order.pages());
            effects.freed.push((first, order));
        }
        if let Some(block) = own {
            allocator.free(block.first, block.order).expect("the frame can be freed");
        }
        let mut all = self.effects.try_lock().expect("one thread");
        all.own.append(&mut effects.own);
        all.freed.append(&mut effects.freed);
        freed
    }
}
