//! What a program of a simulated machine works with: the allocator and the world at once, every
//! operation checked.
//!
//! Neighbours: `workload/` has the programs, `checks.rs` the checks.

use std::cell::{Cell, RefCell};

use zonal::error::AllocError;
use zonal::units::{CpuId, NodeId};
use zonal::{Block, Request};

use crate::checks::{Fault, Operation, Owners};
use crate::sim::{Simulation, Time};

/// Between two looks after a CPU's pagesets and counters; of those, the allocator chooses the ones at which it
/// folds counters (`stat_interval`).
const TICK: Time = Time::from_ps(1_000_000_000_000);

/// The hands of all threads of a run.
pub struct Hands<'s, 'm> {
    /// The machine.
    pub sim: &'s Simulation<'s, 'm>,
    owners: Owners,
    operations: Cell<u64>,
    /// By CPU id: when its next tick is due.
    next_tick: RefCell<Vec<Time>>,
}

impl<'s, 'm> Hands<'s, 'm> {
    /// Hands for a machine on which nothing was allocated yet.
    #[must_use]
    pub fn new(sim: &'s Simulation<'s, 'm>) -> Self {
        let cpus = sim.machine.model.nodes.iter().flat_map(|node| &node.cpus);
        let ids = cpus.map(|cpu| cpu.index() + 1).max().unwrap_or(0);
        let owners = Owners::new(&sim.machine.model);
        Self { sim, owners, operations: Cell::new(0), next_tick: RefCell::new(vec![TICK; ids]) }
    }

    /// Place of a node that the machine has.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> usize {
        self.sim.world.place_of(node)
    }

    /// Page operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// Frames that programs have.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.owners.held()
    }

    /// Allocates a block on the CPU that runs.
    ///
    /// # Errors
    /// When the allocator has none.
    ///
    /// # Panics
    /// With a [`Fault`] when a frame of it is somebody's.
    #[inline]
    pub fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.operations.set(self.operations.get() + 1);
        let block = self.sim.allocator.alloc(request)?;
        if let Err(frame) = self.owners.take(&block) {
            self.fault(format!("frame {frame} was handed out while somebody has it"));
        }
        Ok(block)
    }

    /// Frees a block on the CPU that runs.
    ///
    /// # Panics
    /// With a [`Fault`] when the allocator refuses it.
    #[inline]
    pub fn free(&self, block: &Block) {
        self.operations.set(self.operations.get() + 1);
        if let Err(frame) = self.owners.give(block) {
            self.fault(format!("frame {frame} was given back although nobody has it"));
        }
        if let Err(error) = self.sim.allocator.free(block.first, block.order) {
            self.fault(error.to_string());
        }
    }

    /// To be called between operations: timers run, and others get their turn.
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

    /// Looks whether the books balance: nothing may be running.
    ///
    /// # Panics
    /// With a [`Fault`] when they do not.
    pub fn check_accounting(&self) {
        let world = self.sim.world;
        world.free_of_charge(|| match self.sim.allocator.verify() {
            Err(error) => self.fault(error.to_string()),
            Ok(accounting) if !accounting.balance() => {
                self.fault(format!("the accounting does not balance: {accounting:?}"))
            }
            Ok(accounting) if accounting.allocated.get() != self.owners.held() => self.fault(format!(
                "programs have {} frames, but the allocator says {}",
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

    /// What the run is doing: the page operation that came last, and who runs.
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
