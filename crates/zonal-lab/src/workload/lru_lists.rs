//! The locking cost of the kernel's LRU lists. Each node has one lock, which a CPU acquires once for each batch of
//! pages that it has collected.
//!
//! The contents of the lists are modelled in `page_cache/`. Programs that never reclaim need only the cost of the
//! locks. Linux: `lruvec`, `folio_batch`.

use std::cell::RefCell;

use crate::sim::{ProgramLock, Simulation, Time};

/// Locks of all nodes' lists, and the number of pages that each CPU has collected for them.
pub(super) struct LruLists {
    locks: Vec<ProgramLock>,
    /// Number of collected pages, indexed by CPU.
    collected: RefCell<Vec<u32>>,
    batch: u32,
    /// Work under the lock for each page.
    work: Time,
}

impl LruLists {
    /// Creates the lists, with `batch` pages per batch and `work` under the lock for each page.
    pub(super) fn new(sim: &Simulation<'_, '_>, batch: u32, work: Time) -> Self {
        let nodes = sim.machine.model.nodes.len();
        let cpus = sim.machine.model.nodes.iter().flat_map(|node| &node.cpus);
        let ids = cpus.map(|cpu| cpu.index() + 1).max().unwrap_or(0);
        Self {
            locks: (0..nodes).map(|node| ProgramLock::new(sim.world, node)).collect(),
            collected: RefCell::new(vec![0; ids]),
            batch,
            work,
        }
    }

    /// Adds a page of the node with index `node` to the CPU's batch, and adds a full batch to the node's list.
    pub(super) fn add(&self, sim: &Simulation<'_, '_>, node: usize) {
        let full = {
            let collected = &mut self.collected.borrow_mut()[sim.world.cpu()];
            *collected += 1;
            *collected >= self.batch && std::mem::take(collected) != 0
        };
        if full {
            self.change(sim, node, self.batch);
        }
    }

    /// Adds or removes `pages` pages of the node with index `node`.
    pub(super) fn change(&self, sim: &Simulation<'_, '_>, node: usize, pages: u32) {
        let world = sim.world;
        self.locks[node].hold(world, || world.spend(self.work.times(u64::from(pages))));
    }
}
