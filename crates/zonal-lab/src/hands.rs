//! The interface between simulated programs and the machine: allocator and world together, with every operation
//! checked.
//!
//! Neighbours: `workload/` has the programs, `checks.rs` the checks.

use std::cell::{Cell, RefCell};

use zonal::error::AllocError;
use zonal::units::{CpuId, NodeId};
use zonal::{Block, Request};

use crate::checks::{Fault, Operation, Owners};
use crate::sim::{Simulation, Time};

/// Period of the per-CPU maintenance tick for pagesets and counters. The allocator decides at which ticks it
/// folds counters (`stat_interval`).
const TICK: Time = Time::from_ps(1_000_000_000_000);

/// The interface used by all threads of a run.
pub struct Hands<'s, 'm> {
    /// The simulated machine.
    pub sim: &'s Simulation<'s, 'm>,
    owners: Owners,
    operations: Cell<u64>,
    /// Time of each CPU's next tick, indexed by CPU id.
    next_tick: RefCell<Vec<Time>>,
}

impl<'s, 'm> Hands<'s, 'm> {
    /// Creates the interface for a machine on which nothing has been allocated yet.
    #[must_use]
    pub fn new(sim: &'s Simulation<'s, 'm>) -> Self {
        let cpus = sim.machine.model.nodes.iter().flat_map(|node| &node.cpus);
        let ids = cpus.map(|cpu| cpu.index() + 1).max().unwrap_or(0);
        let owners = Owners::new(&sim.machine.model);
        Self { sim, owners, operations: Cell::new(0), next_tick: RefCell::new(vec![TICK; ids]) }
    }

    /// Returns the index of a node of the machine.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> usize {
        self.sim.world.place_of(node)
    }

    /// Returns the number of page operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// Returns the number of frames that programs hold.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.owners.held()
    }

    /// Allocates a block on the running CPU.
    ///
    /// # Errors
    /// When the allocator cannot satisfy the request.
    ///
    /// # Panics
    /// With a [`Fault`] when a frame of the block is already allocated.
    #[inline]
    pub fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.operations.set(self.operations.get() + 1);
        let block = self.sim.allocator.alloc(request)?;
        if let Err(frame) = self.owners.take(&block) {
            self.fault(format!("frame {frame} was allocated, but it is allocated already"));
        }
        Ok(block)
    }

    /// Frees a block on the running CPU.
    ///
    /// # Panics
    /// With a [`Fault`] when the allocator refuses the block.
    #[inline]
    pub fn free(&self, block: &Block) {
        self.operations.set(self.operations.get() + 1);
        if let Err(frame) = self.owners.give(block) {
            self.fault(format!("frame {frame} was freed, but it is not allocated"));
        }
        if let Err(error) = self.sim.allocator.free(block.first, block.order) {
            self.fault(error.to_string());
        }
    }

    /// Runs the maintenance tick when it is due and lets other threads run; programs call this between
    /// operations.
    #[inline]
    pub fn checkpoint(&self) {
        let world = self.sim.world;
        if self.next_tick.borrow()[world.cpu()] <= world.now() {
            self.tick();
        }
        world.checkpoint();
    }

    #[cold]
    fn tick(&self) {
        let world = self.sim.world;
        let cpu = world.cpu();
        self.next_tick.borrow_mut()[cpu] = world.now() + TICK;
        self.sim.allocator.tick_cpu(CpuId::new(cpu as u32));
    }

    /// Checks that the accounting balances. Nothing else may be running.
    ///
    /// # Panics
    /// With a [`Fault`] when it does not.
    pub fn check_accounting(&self) {
        let world = self.sim.world;
        world.free_of_charge(|| match self.sim.allocator.verify() {
            Err(error) => self.fault(error.to_string()),
            Ok(accounting) if !accounting.balance() => {
                self.fault(format!("the accounting does not balance: {accounting:?}"))
            }
            Ok(accounting) if accounting.allocated.get() != self.owners.held() => self.fault(format!(
                "programs hold {} frames, but the allocator counts {}",
                self.owners.held(),
                accounting.allocated
            )),
            Ok(_) => {}
        });
    }

    /// Stops the run.
    ///
    /// # Panics
    /// Always, with a [`Fault`].
    #[cold]
    pub fn fault(&self, what: String) -> ! {
        std::panic::panic_any(Fault { operation: self.operation(), what })
    }

    /// Returns what the run is doing: the latest page operation and the running thread.
    #[must_use]
    pub fn operation(&self) -> Operation {
        let world = self.sim.world;
        Operation {
            number: self.operations.get(),
            thread: world.thread().index(),
            cpu: world.cpu(),
            at: world.now(),
        }
    }
}
