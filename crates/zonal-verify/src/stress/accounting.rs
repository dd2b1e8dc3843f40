//! What programs allocated and freed, counted beside the allocator: what its own counters must say.
//!
//! Frames by node and kind, and blocks by where they came from (NUMA events, counted once a block).
//! Exact whenever nothing is under way. Neighbours: `zonal_lab::checks` knows the owner of each frame.

use std::cell::{Cell, RefCell};

use zonal::request::PageKind;
use zonal::snapshot::Locality;
use zonal::units::{NodeId, PageCount};
use zonal::{Allocator, Block};
use zonal_lab::sim::{Lab, Simulation};

/// What one node has served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct NodeEntry {
    /// Frames held, by kind.
    held: [u64; PageKind::COUNT],
    /// Blocks it ever served to CPUs of the node, and to others.
    local: u64,
    other: u64,
}

/// The accounting of all programs of a round.
pub(super) struct Accounting {
    nodes: RefCell<Vec<(NodeId, NodeEntry)>>,
    blocks: Cell<u64>,
}

impl Accounting {
    /// Creates the accounting of a machine without allocations.
    pub(super) fn new(sim: &Simulation<'_, '_>) -> Self {
        let nodes = sim.machine.model.nodes.iter().map(|node| (node.id, NodeEntry::default()));
        Self { nodes: RefCell::new(nodes.collect()), blocks: Cell::new(0) }
    }

    /// Records that a program on a CPU of node `from` allocated a block of the node at a place.
    pub(super) fn alloc(&self, block: &Block, kind: PageKind, place: usize, from: NodeId) {
        let entry = &mut self.nodes.borrow_mut()[place].1;
        entry.held[kind as usize] += block.order.pages().get();
        *(if block.node == from { &mut entry.local } else { &mut entry.other }) += 1;
        self.blocks.set(self.blocks.get() + 1);
    }

    /// Records that a program frees a block of the node at a place.
    pub(super) fn free(&self, block: &Block, kind: PageKind, place: usize) {
        self.nodes.borrow_mut()[place].1.held[kind as usize] -= block.order.pages().get();
    }

    /// Compares the allocator's counters with this; returns the first that differs.
    pub(super) fn check(&self, allocator: &Allocator<'_, Lab>) -> Result<(), String> {
        let mut sum = Locality::default();
        for ((id, entry), node) in self.nodes.borrow().iter().zip(allocator.nodes()) {
            let counted = node.allocated.map(PageCount::get);
            if counted != entry.held || node.id != *id {
                return Err(format!(
                    "node {id} says that {counted:?} frames (user, cache, kernel) are allocated, but programs have {:?}",
                    entry.held
                ));
            }
            let mut of_node = Locality::default();
            allocator.zones().filter(|zone| zone.node == *id).for_each(|zone| of_node.add(&zone.locality));
            let NodeEntry { local, other, .. } = *entry;
            if [of_node.local, of_node.other] != [local, other] || of_node.hit + of_node.miss != local + other
            {
                return Err(format!(
                    "node {id} counts {of_node:?}, but served {local} blocks to its own CPUs and {other} to others"
                ));
            }
            sum.add(&of_node);
        }
        if sum.hit + sum.miss != self.blocks.get() || sum.miss != sum.foreign {
            return Err(format!("{} blocks were allocated, but counted were {sum:?}", self.blocks.get()));
        }
        Ok(())
    }

    /// Compares totals, to which all CPUs have just folded their differences.
    pub(super) fn check_totals(&self, allocator: &Allocator<'_, Lab>) -> Result<(), String> {
        let mut held = [0; PageKind::COUNT];
        for (_, entry) in self.nodes.borrow().iter() {
            held.iter_mut().zip(entry.held).for_each(|(sum, frames)| *sum += frames);
        }
        let totals = allocator.allocated_approximate().map(PageCount::get);
        if totals != held {
            return Err(format!(
                "after all CPUs folded their differences, totals say {totals:?} frames (user, cache, kernel), but programs have {held:?}"
            ));
        }
        let (total, free) = (allocator.free_approximate(), allocator.accounting().free);
        if total != free {
            return Err(format!(
                "after all CPUs folded their differences, a total says {total} free frames, but there are {free}"
            ));
        }
        Ok(())
    }
}
