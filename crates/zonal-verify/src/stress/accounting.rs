//! A second count of the programs' allocations and frees, with which the allocator's counters must agree.
//!
//! It counts frames by node and kind, and blocks by the node that served them (each block is one NUMA event). The
//! counts agree exactly whenever no operation is in progress.
//!
//! Related files: `zonal_lab::checks` tracks the owner of each frame.

use std::cell::{Cell, RefCell};

use zonal::request::PageKind;
use zonal::snapshot::Locality;
use zonal::units::{NodeId, PageCount};
use zonal::{Allocator, Block};
use zonal_lab::sim::{Lab, Simulation};

/// The blocks and frames that one node has served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct NodeEntry {
    /// Frames that programs hold, by kind.
    held: [u64; PageKind::COUNT],
    /// Blocks that the node ever served to its own CPUs, and to CPUs of other nodes.
    local: u64,
    other: u64,
}

/// The accounting of all programs in a round.
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

    /// Records that a program on a CPU of node `from` allocated blocks from the node with index `place` by one request.
    pub(super) fn alloc(&self, blocks: &[Block], kind: PageKind, place: usize, from: NodeId) {
        self.hold(blocks.iter().map(|block| block.order.pages()).sum(), kind, place);
        self.serve(blocks[0].node, place, from);
    }

    /// Records that a request on a CPU of node `from` was served by `node`, which has index `place`.
    pub(super) fn serve(&self, node: NodeId, place: usize, from: NodeId) {
        let entry = &mut self.nodes.borrow_mut()[place].1;
        *(if node == from { &mut entry.local } else { &mut entry.other }) += 1;
        self.blocks.set(self.blocks.get() + 1);
    }

    /// Records that a program has frames of the node with index `place`.
    pub(super) fn hold(&self, frames: PageCount, kind: PageKind, place: usize) {
        self.nodes.borrow_mut()[place].1.held[kind as usize] += frames.get();
    }

    /// Records that a program frees frames of the node with index `place`.
    pub(super) fn release(&self, frames: PageCount, kind: PageKind, place: usize) {
        self.nodes.borrow_mut()[place].1.held[kind as usize] -= frames.get();
    }

    /// Compares the allocator's counters with these counts and, for each node, with the frames that are `unused`: fenced
    /// or retired. Returns the first difference as an error.
    pub(super) fn check(
        &self,
        allocator: &Allocator<'_, Lab>,
        unused: impl Fn(NodeId) -> [u64; PageKind::COUNT],
    ) -> Result<(), String> {
        let mut sum = Locality::default();
        for ((id, entry), node) in self.nodes.borrow().iter().zip(allocator.nodes()) {
            let (counted, unused) = (node.allocated.map(PageCount::get), unused(*id));
            let expected: [u64; PageKind::COUNT] =
                std::array::from_fn(|kind| entry.held[kind] + unused[kind]);
            if counted != expected || node.id != *id {
                return Err(format!(
                    "node {id} says that {counted:?} frames (user, cache, kernel) are allocated, but programs have {:?} and {unused:?} are out of use",
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

    /// Compares the allocator's approximate totals, which are exact because all CPUs have just folded their
    /// differences.
    pub(super) fn check_totals(
        &self,
        allocator: &Allocator<'_, Lab>,
        unused: impl Fn(NodeId) -> [u64; PageKind::COUNT],
    ) -> Result<(), String> {
        let mut held = [0; PageKind::COUNT];
        for (id, entry) in self.nodes.borrow().iter() {
            for frames in [entry.held, unused(*id)] {
                held.iter_mut().zip(frames).for_each(|(sum, frames)| *sum += frames);
            }
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
