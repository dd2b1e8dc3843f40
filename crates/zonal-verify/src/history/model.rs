//! What a naive allocator would know: a list of blocks, which frames there are, and which CPUs are online.
//!
//! The ledger says of each frame whether it is free, held or offline. Neighbours: `answers.rs` judges
//! answers by this.

use std::collections::BTreeMap;
use std::rc::Rc;

use zonal::error::{FreeError, OnlineError};
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal_testing::Ledger;

use super::plan::{Plan, node_id, range};

/// The owner of all frames that are handed out.
const HOLDER: u32 = 1;

/// A block handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its order.
    pub order: Order,
    /// What it was allocated as.
    pub kind: PageKind,
}

/// The machine as it was planned.
struct Planned {
    plan: Plan,
    /// Node of each CPU.
    cpu_nodes: BTreeMap<u32, NodeId>,
}

/// The model. Its machine is shared between copies.
///
/// Invariant: the frames of blocks in `held` are those that the ledger says are held; `managed` counts,
/// by zone, those that are not offline.
#[derive(Clone)]
pub struct Model {
    planned: Rc<Planned>,
    ledger: Ledger,
    /// Blocks handed out, by first frame, ascending.
    held: Vec<(u64, Held)>,
    managed: Vec<u64>,
    /// Ranges of memory that went and did not come back as they went.
    offline: Vec<FrameRange>,
    /// CPUs that went.
    cpus_gone: Vec<u32>,
    /// Blocks handed out so far.
    pub served: u64,
    /// Of these, to a CPU of the serving node.
    pub local: u64,
    /// Wrong frees refused so far.
    pub refused: u64,
    /// The block freed last.
    pub freed_last: Option<(u64, Order)>,
}

impl Model {
    /// Returns the model of a machine all of which is online and free.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let cpu_nodes =
            plan.nodes.iter().flat_map(|(node, cpus)| cpus.iter().map(|&cpu| (cpu, node_id(*node))));
        let spans = || plan.zones.iter().map(|zone| zone.start..zone.start + zone.spanned);
        let first = spans().map(|span| span.start).min().unwrap_or(0);
        let end = spans().map(|span| span.end).max().unwrap_or(0);
        let ledger = Ledger::new(first..end);
        ledger.assign(first, end - first, Ledger::OFFLINE);
        for &(first, count) in plan.zones.iter().flat_map(|zone| &zone.managed) {
            ledger.release(first, count, Ledger::OFFLINE);
        }
        let managed = plan.zones.iter().map(|zone| zone.managed.iter().map(|&(_, count)| count).sum());
        Self {
            managed: managed.collect(),
            planned: Rc::new(Planned { plan: plan.clone(), cpu_nodes: cpu_nodes.collect() }),
            ledger,
            held: Vec::new(),
            offline: Vec::new(),
            cpus_gone: Vec::new(),
            served: 0,
            local: 0,
            refused: 0,
            freed_last: None,
        }
    }

    /// Returns the machine.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.planned.plan
    }

    /// Returns the node of a CPU, where the machine has it.
    #[must_use]
    pub fn node_of(&self, cpu: u32) -> Option<NodeId> {
        self.planned.cpu_nodes.get(&cpu).copied()
    }

    /// Returns one more than the CPU ids of the machine.
    #[must_use]
    pub fn cpu_ids(&self) -> u32 {
        self.planned.cpu_nodes.keys().next_back().map_or(1, |last| last + 2)
    }

    /// Returns the number of CPUs of the machine.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.planned.cpu_nodes.len()
    }

    /// Returns the number of CPUs that are online.
    #[must_use]
    pub fn cpus_online(&self) -> usize {
        self.cpus() - self.cpus_gone.len()
    }

    /// Returns whether a CPU went.
    #[must_use]
    pub fn is_gone(&self, cpu: u32) -> bool {
        self.cpus_gone.contains(&cpu)
    }

    /// Takes a CPU offline.
    ///
    /// # Errors
    /// What the allocator must refuse it with.
    pub fn offline_cpu(&mut self, cpu: u32) -> Result<(), OnlineError> {
        let id = CpuId::new(cpu);
        match self.node_of(cpu) {
            None => Err(OnlineError::UnknownCpu(id)),
            Some(_) if self.is_gone(cpu) => Err(OnlineError::CpuUnchanged(id)),
            Some(_) if self.cpus_online() == 1 => Err(OnlineError::LastCpu(id)),
            Some(_) => {
                self.cpus_gone.push(cpu);
                Ok(())
            }
        }
    }

    /// Brings a CPU online.
    ///
    /// # Errors
    /// What the allocator must refuse it with.
    pub fn online_cpu(&mut self, cpu: u32) -> Result<(), OnlineError> {
        let id = CpuId::new(cpu);
        match self.node_of(cpu) {
            None => Err(OnlineError::UnknownCpu(id)),
            Some(_) if !self.is_gone(cpu) => Err(OnlineError::CpuUnchanged(id)),
            Some(_) => {
                self.cpus_gone.retain(|&gone| gone != cpu);
                Ok(())
            }
        }
    }

    /// Returns the ranges that went and did not come back as they went.
    #[must_use]
    pub fn offline(&self) -> &[FrameRange] {
        &self.offline
    }

    /// Returns the place of the zone in whose span a range lies.
    #[must_use]
    pub fn zone_of(&self, frames: &FrameRange) -> Option<usize> {
        self.plan().zones.iter().position(|zone| range(zone.start, zone.spanned).contains(frames))
    }

    /// Takes a range offline, which must not be empty and is within one zone.
    ///
    /// # Errors
    /// What the allocator must refuse it with.
    pub fn offline_memory(&mut self, gone: &FrameRange, zone: usize) -> Result<(), OnlineError> {
        let owners = || (gone.start.get()..gone.end().get()).map(|frame| (frame, self.ledger.owner(frame)));
        if let Some((absent, _)) = owners().find(|&(_, owner)| owner == Ledger::OFFLINE) {
            return Err(OnlineError::NotOnline(Pfn::new(absent)));
        }
        let in_use = owners().filter(|&(_, owner)| owner == HOLDER).count() as u64;
        if in_use > 0 {
            return Err(OnlineError::InUse { start: gone.start, in_use: PageCount::new(in_use) });
        }
        self.ledger.assign(gone.start.get(), gone.count.get(), Ledger::OFFLINE);
        self.managed[zone] -= gone.count.get();
        self.offline.push(*gone);
        Ok(())
    }

    /// Brings a range online, which must not be empty and is within one zone.
    ///
    /// # Errors
    /// What the allocator must refuse it with.
    pub fn online_memory(&mut self, came: &FrameRange, zone: usize) -> Result<(), OnlineError> {
        let mut frames = came.start.get()..came.end().get();
        if let Some(present) = frames.find(|&frame| self.ledger.owner(frame) != Ledger::OFFLINE) {
            return Err(OnlineError::AlreadyOnline(Pfn::new(present)));
        }
        self.ledger.release(came.start.get(), came.count.get(), Ledger::OFFLINE);
        self.managed[zone] += came.count.get();
        self.offline.retain(|gone| gone != came);
        Ok(())
    }

    /// Returns the number of blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.held.len()
    }

    /// Returns the n-th block held, by address, modulo how many there are.
    #[must_use]
    pub fn nth(&self, nth: u16) -> Option<(u64, Held)> {
        usize::from(nth).checked_rem(self.held.len()).map(|at| self.held[at])
    }

    /// Returns single frames held, from the n-th block on.
    #[must_use]
    pub fn singles(&self, nth: u16, most: usize) -> Vec<u64> {
        let from = usize::from(nth).checked_rem(self.held.len()).unwrap_or(0);
        let singles = self.held[from..].iter().filter(|(_, held)| held.order == Order::PAGE);
        singles.map(|&(first, _)| first).take(most).collect()
    }

    /// Returns the place of the first block that starts at a frame or after it.
    fn place_of(&self, frame: u64) -> usize {
        self.held.partition_point(|&(first, _)| first < frame)
    }

    /// Returns the block that starts at a frame.
    #[must_use]
    pub fn held_at(&self, first: u64) -> Option<Held> {
        self.held.get(self.place_of(first)).filter(|block| block.0 == first).map(|block| block.1)
    }

    /// Frees a block.
    pub fn release(&mut self, first: u64) {
        let (_, held) = self.held.remove(self.place_of(first));
        self.ledger.release(first, held.order.pages().get(), HOLDER);
        self.freed_last = Some((first, held.order));
    }

    /// Records that a block was handed out, which must be aligned, managed and free. Returns the place of its zone.
    pub fn take(&mut self, first: u64, held: Held) -> usize {
        let count = held.order.pages().get();
        assert!(first.is_multiple_of(count), "the block at {first} is not aligned");
        self.ledger.assign(first, count, HOLDER);
        self.held.insert(self.place_of(first), (first, held));
        let zone = self.zone_of(&range(first, count));
        zone.unwrap_or_else(|| panic!("frames {first}..{} are not of one zone", first + count))
    }

    /// Returns what freeing a block is refused with; `None` for a block that is held. What the allocator
    /// keeps in quarantine counts as not allocated.
    #[must_use]
    pub fn refusal(&self, first: u64, given: Order) -> Option<FreeError> {
        let frame = Pfn::new(first);
        match self.held_at(first) {
            Some(held) if held.order == given => return None,
            Some(held) => return Some(FreeError::WrongOrder { frame, allocated: held.order, given }),
            None => {}
        }
        Some(match self.ledger.owner(first) {
            Ledger::OFFLINE => FreeError::NotManaged(frame),
            Ledger::FREE => FreeError::NotAllocated(frame),
            _ => {
                let (block, held) = self.held[self.place_of(first) - 1];
                FreeError::InsideBlock { frame, block: Pfn::new(block), order: held.order }
            }
        })
    }

    /// Returns the number of frames that the zone at a place manages now.
    #[must_use]
    pub fn managed_of(&self, zone: usize) -> u64 {
        self.managed[zone]
    }

    /// Returns the number of frames managed now.
    #[must_use]
    pub fn managed(&self) -> u64 {
        self.managed.iter().sum()
    }

    /// Returns the nodes with memory now.
    #[must_use]
    pub fn memory_nodes(&self) -> Vec<NodeId> {
        let with = self.plan().zones.iter().zip(&self.managed).filter(|&(_, &managed)| managed > 0);
        with.map(|(zone, _)| node_id(zone.node)).collect()
    }

    /// Returns the frames allocated in zones for which `of` holds, by what they hold.
    #[must_use]
    pub fn allocated(&self, of: impl Fn(NodeId, ZoneKind) -> bool) -> [PageCount; 3] {
        let mut sums = [PageCount::ZERO; 3];
        for zone in self.plan().zones.iter().filter(|zone| of(node_id(zone.node), zone.kind)) {
            let blocks = self.place_of(zone.start)..self.place_of(zone.start + zone.spanned);
            for (_, held) in &self.held[blocks] {
                let sum = &mut sums[held.kind as usize];
                *sum = sum.plus(held.order.pages());
            }
        }
        sums
    }

    /// Returns one past the last frame of any zone.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ledger.frames().end
    }
}
