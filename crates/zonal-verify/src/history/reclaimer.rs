//! The reclaimer of histories. Depending on its mode, it frees blocks that were allocated as page cache, keeps them, or
//! reports too much.
//!
//! It runs within calls of the allocator, during which the model cannot be updated. It therefore records its effects,
//! and the executor reads them after the call.
//!
//! Related files: `platform.rs` calls the reclaimer, and `answers.rs` updates the model.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed}; // relaxed accesses: one thread
use std::sync::{Mutex, MutexGuard, OnceLock};

use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::Urgency;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{Allocator, Request};

use super::platform::{Cells, ControlledPlatform};

/// The behaviour of the reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ReclaimMode {
    /// Has no blocks.
    Empty,
    /// Frees cached blocks, and allocates a frame for itself meanwhile.
    Honest,
    /// Has cached blocks, and frees none.
    Refusing,
    /// Has cached blocks, and reports that it freed the requested number of frames, but frees none.
    Overreporting,
}

impl ReclaimMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Empty, Self::Honest, Self::Refusing, Self::Overreporting];
}

/// The reclaimer's effects during one call of the allocator.
#[derive(Default)]
pub(super) struct Effects {
    /// Blocks that it freed: first frames and orders.
    pub(super) freed: Vec<(u64, Order)>,
    /// Nodes of the frames that it allocated for itself, and freed again.
    pub(super) own: Vec<NodeId>,
}

impl Effects {
    /// Whether the reclaimer neither allocated nor freed anything.
    pub(super) fn are_none(&self) -> bool {
        self.freed.is_empty() && self.own.is_empty()
    }
}

/// The reclaimer.
pub(super) struct TestReclaimer<'m, C: Cells> {
    mode: AtomicU8,
    promised: AtomicU64,
    /// Blocks that hold page cache, by first frame.
    blocks: Mutex<BTreeMap<u64, (Order, NodeId)>>,
    effects: Mutex<Effects>,
    allocator: OnceLock<&'m Allocator<'m, ControlledPlatform<'m, C>>>,
}

impl<'m, C: Cells> TestReclaimer<'m, C> {
    pub(super) fn new() -> Self {
        Self {
            mode: AtomicU8::new(ReclaimMode::Empty as u8),
            promised: AtomicU64::new(0),
            blocks: Mutex::default(),
            effects: Mutex::default(),
            allocator: OnceLock::new(),
        }
    }

    /// Sets the allocator to which the reclaimer frees blocks.
    pub(super) fn attach(&self, allocator: &'m Allocator<'m, ControlledPlatform<'m, C>>) {
        assert!(self.allocator.set(allocator).is_ok(), "a reclaimer has one allocator");
    }

    pub(super) fn set_mode(&self, mode: ReclaimMode) {
        self.mode.store(mode as u8, Relaxed);
    }

    pub(super) fn mode(&self) -> ReclaimMode {
        ReclaimMode::ALL[usize::from(self.mode.load(Relaxed))]
    }

    /// Sets the number of pages that the reclaimer reports on each node in addition to those that it has.
    pub(super) fn promise(&self, pages: u64) {
        self.promised.store(pages, Relaxed);
    }

    /// Adds a block.
    pub(super) fn add(&self, first: u64, order: Order, node: NodeId) {
        self.blocks().insert(first, (order, node));
    }

    /// Removes the block that starts at a frame, if the reclaimer has it.
    pub(super) fn remove(&self, first: u64) {
        self.blocks().remove(&first);
    }

    /// Returns the effects since the previous call of this function.
    pub(super) fn take_effects(&self) -> Effects {
        std::mem::take(&mut self.effects.try_lock().expect("one thread"))
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, (Order, NodeId)>> {
        self.blocks.try_lock().expect("blocks are not held across calls of the allocator")
    }

    pub(super) fn count(&self, request: &ReclaimRequest) -> PageCount {
        let promised = PageCount::new(self.promised.load(Relaxed));
        if self.mode() == ReclaimMode::Empty {
            return promised;
        }
        let blocks = self.blocks();
        let of_node = blocks.values().filter(|(_, node)| *node == request.node);
        of_node.map(|(order, _)| order.pages()).fold(promised, PageCount::plus)
    }

    pub(super) fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        match self.mode() {
            ReclaimMode::Honest => self.free_some(request.node, request.target),
            ReclaimMode::Empty | ReclaimMode::Refusing => PageCount::ZERO,
            ReclaimMode::Overreporting => request.target,
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
