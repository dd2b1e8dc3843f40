//! The system that simulated programs call. It combines the allocator and the simulated world, and
//! checks every operation.
//!
//! Related files: `workload/` contains the programs, `checks.rs` the checks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use zonal::error::{AllocError, SplitError};
use zonal::machine::FrameRange;
use zonal::units::{CpuId, NodeId, Order, PageCount, PageKind};
use zonal::{Block, FrameRun, Request};
use zonal_machine::state::Sample;

use crate::checks::{Fault, Operation, Owners};
use crate::sim::{Simulation, Time};

/// The system that all threads of a run call.
pub struct System<'s, 'm> {
    /// The simulated machine.
    pub sim: &'s Simulation<'s, 'm>,
    owners: Rc<Owners>,
    /// Number of all page operations, including set-ups.
    operations: Rc<Cell<u64>>,
    /// What set-ups counted.
    set_ups: Rc<RefCell<Counts>>,
    /// Time that all threads spent in allocations and frees of blocks.
    spent: Rc<Cell<Time>>,
    /// Time of each CPU's last tick, indexed by CPU id. Ticks maintain pagesets and counters; the allocator decides at which
    /// of them it folds counters (`stat_interval`).
    last_tick: Rc<RefCell<Vec<Time>>>,
}

/// Counts of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of page operations (allocations and frees).
    pub operations: u64,
    /// Counts of allocator events, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Requests that got memory of the node that they preferred.
    pub hit: u64,
    /// Requests that got memory of another node.
    pub miss: u64,
}

impl Counts {
    /// Returns what was counted since `before`.
    fn since(mut self, before: &Self) -> Self {
        self.operations -= before.operations;
        self.hit -= before.hit;
        self.miss -= before.miss;
        for (name, count) in &mut self.events {
            *count -= before.events.get(name).copied().unwrap_or(0);
        }
        self
    }

    /// Adds `more`.
    fn add(&mut self, more: &Self) {
        self.operations += more.operations;
        self.hit += more.hit;
        self.miss += more.miss;
        for (name, count) in &more.events {
            *self.events.entry(name).or_default() += count;
        }
    }
}

impl<'s, 'm> System<'s, 'm> {
    /// Creates the system of a machine on which nothing has been allocated yet.
    #[must_use]
    pub fn new(sim: &'s Simulation<'s, 'm>) -> Self {
        let cpus = sim.machine.model.nodes.iter().flat_map(|node| &node.cpus);
        let ids = cpus.map(|cpu| cpu.index() + 1).max().unwrap_or(0);
        let owners = Rc::new(Owners::new(&sim.machine.model));
        let last_tick = Rc::new(RefCell::new(vec![Time::ZERO; ids]));
        let spent = Rc::new(Cell::new(Time::ZERO));
        Self { sim, owners, operations: Rc::default(), set_ups: Rc::default(), spent, last_tick }
    }

    /// Returns the same system for a program that may use only the CPUs in `sim`, which is the same simulation otherwise.
    #[must_use]
    pub fn within<'n>(&self, sim: &'n Simulation<'n, 'm>) -> System<'n, 'm> {
        System {
            sim,
            owners: Rc::clone(&self.owners),
            operations: Rc::clone(&self.operations),
            set_ups: Rc::clone(&self.set_ups),
            spent: Rc::clone(&self.spent),
            last_tick: Rc::clone(&self.last_tick),
        }
    }

    /// Returns the machine's index of a node.
    #[must_use]
    pub fn place_of(&self, node: NodeId) -> usize {
        self.sim.world.place_of(node)
    }

    /// Returns the number of page operations so far, without set-ups.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.get() - self.set_ups.borrow().operations
    }

    /// Returns what was counted so far, without set-ups.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.all_counts().since(&self.set_ups.borrow())
    }

    /// Runs `work`, which prepares a run: it takes no time, and its operations do not count.
    pub fn set_up<R>(&self, work: impl FnOnce() -> R) -> R {
        self.sim.world.free_of_charge(|| {
            let before = self.all_counts();
            let result = work();
            self.set_ups.borrow_mut().add(&self.all_counts().since(&before));
            result
        })
    }

    fn all_counts(&self) -> Counts {
        let (events, locality) = (self.sim.allocator.events(), self.sim.allocator.locality());
        let events = BTreeMap::from([
            ("probes", events.probes),
            ("marks", events.marks),
            ("wipes", events.wipes),
            ("early_clears", events.early_clears),
            ("node_reclaim_no_scan", events.node_reclaim_no_scan),
            ("node_reclaim_full", events.node_reclaim_full),
            ("node_reclaim_some", events.node_reclaim_some),
            ("node_reclaim_success", events.node_reclaim_success),
            ("background_wakes", events.background_wakes),
            ("background_reclaimed", events.background_reclaimed),
            ("direct_stalls", events.direct_stalls),
            ("direct_reclaimed", events.direct_reclaimed),
            ("refills", events.refills),
            ("drains", events.drains),
            ("failures", events.failures),
        ]);
        Counts { operations: self.operations.get(), events, hit: locality.hit, miss: locality.miss }
    }

    /// Returns the time that all threads together spent in allocations and frees of blocks.
    #[must_use]
    pub fn spent(&self) -> Time {
        self.spent.get()
    }

    /// Returns the number of frames that programs hold.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.owners.held()
    }

    /// Returns how many frames of a range programs hold.
    #[must_use]
    pub fn held_in(&self, frames: &FrameRange) -> u64 {
        self.owners.held_in(frames)
    }

    /// Records that a program allocated frames, which [`System::alloc`] does for blocks.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if a frame is already allocated.
    #[inline]
    pub fn take(&self, frames: &FrameRange) {
        if let Err(frame) = self.owners.take(frames) {
            self.fault(format!("frame {frame} was allocated, but it is allocated already"));
        }
    }

    /// Frees frames that were allocated together, on the running CPU.
    ///
    /// # Panics
    /// Panics in the same cases as [`System::free`].
    pub fn free_frames(&self, frames: &FrameRange) {
        self.operations.set(self.operations.get() + 1);
        if let Err(frame) = self.owners.give(frames) {
            self.fault(format!("frame {frame} was freed, but it is not allocated"));
        }
        let freed = self.sim.allocator.free_frames(frames.start, frames.count);
        self.sim.world.end_operation();
        if let Err(error) = freed {
            self.fault(error.to_string());
        }
    }

    /// Allocates what is in use in a state of this machine, in no time. Returns it as blocks of at most `order`.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if some of it is allocated already.
    pub fn occupy(&self, state: &Sample, order: Order) -> Vec<Block> {
        self.set_up(|| self.occupy_all(state, order))
    }

    fn occupy_all(&self, state: &Sample, order: Order) -> Vec<Block> {
        let mut blocks = Vec::new();
        for zone in &self.sim.machine.model.zones {
            let managed = FrameRange { start: zone.start, count: zone.managed };
            let used =
                state.zone(zone.node, zone.kind).map(|known| known.used_in(managed)).unwrap_or_default();
            // The allocator may have several zones for one that is too large.
            for part in self.sim.allocator.zones().flat_map(|zone| {
                used.iter().filter_map(move |used| used.intersection(&zone.span)).collect::<Vec<_>>()
            }) {
                blocks.append(&mut self.occupy_range(part, order));
            }
        }
        blocks
    }

    fn occupy_range(&self, range: FrameRange, order: Order) -> Vec<Block> {
        let allocator = &self.sim.allocator;
        let FrameRun { range, zone, node } = match allocator.alloc_range(range, PageKind::User) {
            Ok(run) => run,
            Err(error) => self.fault(error.to_string()),
        };
        self.take(&range);
        match allocator.split_frames(range.start, range.count, order) {
            Ok(()) | Err(SplitError::NotLower { .. }) => {}
            Err(error) => self.fault(error.to_string()),
        }
        range.blocks(order).map(|(first, order)| Block { first, order, zone, node }).collect()
    }

    /// Allocates a block on the running CPU.
    ///
    /// # Errors
    /// Returns an error if the allocator cannot satisfy the request.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if a frame of the block is already allocated.
    #[inline]
    pub fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        self.operations.set(self.operations.get() + 1);
        self.sim.world.note_alloc();
        let block = self.timed(|| self.sim.allocator.alloc(request))?;
        self.take(&block.range());
        Ok(block)
    }

    /// Frees a block on the running CPU.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if no program holds a frame of the block, or if the allocator refuses to free the
    /// block.
    #[inline]
    pub fn free(&self, block: &Block) {
        self.operations.set(self.operations.get() + 1);
        if let Err(frame) = self.owners.give(&block.range()) {
            self.fault(format!("frame {frame} was freed, but it is not allocated"));
        }
        if let Err(error) = self.timed(|| self.sim.allocator.free(block.first, block.order)) {
            self.fault(error.to_string());
        }
    }

    #[inline]
    fn timed<R>(&self, work: impl FnOnce() -> R) -> R {
        let begin = self.sim.world.now();
        let done = work();
        self.sim.world.end_operation();
        self.spent.set(self.spent.get() + (self.sim.world.now() - begin));
        done
    }

    /// Allocates `count` adjacent frames on the running CPU, and splits them into blocks of at most `order`; returns the
    /// blocks.
    ///
    /// # Errors
    /// As [`System::alloc`].
    ///
    /// # Panics
    /// Panics with a [`Fault`] if one of the frames is already allocated, or if the allocator refuses to split them.
    pub fn alloc_in_parts(
        &self,
        request: &Request<'_>,
        count: PageCount,
        order: Order,
    ) -> Result<Vec<Block>, AllocError> {
        self.operations.set(self.operations.get() + 1);
        self.sim.world.note_alloc();
        let run = self.sim.allocator.alloc_frames(request, count);
        self.sim.world.end_operation();
        let FrameRun { range, zone, node } = run?;
        self.take(&range);
        match self.sim.allocator.split_frames(range.start, count, order) {
            Err(SplitError::NotLower { order, .. }) => {
                return Ok(vec![Block { first: range.start, order, zone, node }]);
            }
            Err(error) => self.fault(error.to_string()),
            Ok(()) => {}
        }
        Ok(range.blocks(order).map(|(first, order)| Block { first, order, zone, node }).collect())
    }

    /// Runs the maintenance tick if it is due, and then allows other threads to run. Programs call this between
    /// operations.
    #[inline]
    pub fn checkpoint(&self) {
        let world = self.sim.world;
        if self.last_tick.borrow()[world.cpu()] + world.second() <= world.now() {
            self.tick();
        }
        world.checkpoint();
    }

    #[cold]
    fn tick(&self) {
        let world = self.sim.world;
        let cpu = world.cpu();
        self.last_tick.borrow_mut()[cpu] = world.now();
        self.sim.allocator.tick_cpu(CpuId::new(cpu as u32));
        world.end_operation();
    }

    /// Checks that the accounting balances. No other thread may be running.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if the accounting does not balance.
    pub fn check_accounting(&self) {
        self.check_allocated(PageCount::ZERO);
    }

    /// Checks that the accounting balances if `unused` frames are fenced or retired, which count as allocated. No other
    /// thread may be running.
    ///
    /// # Panics
    /// Panics with a [`Fault`] if the accounting does not balance.
    pub fn check_allocated(&self, unused: PageCount) {
        let world = self.sim.world;
        world.free_of_charge(|| match self.sim.allocator.verify() {
            Err(error) => self.fault(error.to_string()),
            Ok(accounting) if !accounting.balance() => {
                self.fault(format!("the accounting does not balance: {accounting:?}"))
            }
            Ok(accounting) if accounting.allocated.get() != self.owners.held() + unused.get() => {
                self.fault(format!(
                    "programs hold {} frames and {unused} are out of use, but the allocator counts {}",
                    self.owners.held(),
                    accounting.allocated
                ))
            }
            Ok(_) => {}
        });
    }

    /// Stops the run with a [`Fault`].
    ///
    /// # Panics
    /// Always panics.
    #[cold]
    pub fn fault(&self, what: String) -> ! {
        std::panic::panic_any(Fault { operation: self.operation(), what })
    }

    /// Returns the current state of the run: the number of the latest page operation, the running thread and its CPU,
    /// and the virtual time.
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
