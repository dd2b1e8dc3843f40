//! The kernel's lists of pages by use, as far as their locks go: one lock a node, taken for a batch of
//! pages at a time, each CPU with batches of its own.
//!
//! What is on the lists is `page_cache.rs`'s; programs that never reclaim need only the locks. Linux:
//! `lruvec`, `folio_batch`.

use std::cell::RefCell;

use crate::sim::{ProgramLock, Simulation, Time};

/// Locks of the lists of all nodes, and what each CPU has collected for them.
pub(super) struct LruLists {
    locks: Vec<ProgramLock>,
    /// By CPU: pages collected.
    collected: RefCell<Vec<u32>>,
    batch: u32,
    /// Work under the lock for each page.
    work: Time,
}

impl LruLists {
    /// Lists whose batches have so many pages, each of which takes so long under the lock.
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

    /// A page of the node at a place goes onto a list.
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

    /// So many pages of the node at a place go onto a list or leave it.
    pub(super) fn change(&self, sim: &Simulation<'_, '_>, node: usize, pages: u32) {
        let world = sim.world;
        self.locks[node].hold(world, || world.spend(self.work.times(u64::from(pages))));
    }
}
