//! The naive model of an allocator: a list of blocks, the frames that exist, and the CPUs that are online.
//!
//! The ledger records for each frame whether it is free, held or offline.
//!
//! Related files: `answers.rs` compares answers with this model.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use zonal::Retirement;
use zonal::error::{FreeError, OnlineError, RetireError};
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal_testing::Ledger;

use super::plan::{Plan, node_id, range};

/// The owner of all allocated frames in the ledger.
const HOLDER: u32 = 1;
/// The owner of all retired frames in the ledger.
const RETIRED: u32 = 2;
/// Maximum number of a zone's frames that wait for their blocks to be freed.
const PENDING_MAX: usize = 64;

/// Frames that were allocated together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A block.
    Block(Order),
    /// So many frames that are not one block.
    Run(u64),
}

impl Shape {
    /// Returns the shape of `count` frames, starting at `first`, if the largest order is `max`.
    #[must_use]
    pub fn of(first: u64, count: u64, max: Order) -> Self {
        let order = Order::holding(PageCount::new(count)).filter(|&order| order <= max);
        let block =
            order.filter(|order| count.is_power_of_two() && first.is_multiple_of(order.pages().get()));
        block.map_or(Self::Run(count), Self::Block)
    }

    /// Returns the number of frames.
    #[must_use]
    pub const fn count(self) -> u64 {
        match self {
            Self::Block(order) => order.pages().get(),
            Self::Run(count) => count,
        }
    }
}

/// An allocated block or run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its frames.
    pub shape: Shape,
    /// Its kind.
    pub kind: PageKind,
}

/// The machine of the plan, which does not change.
struct Planned {
    plan: Plan,
    /// Node of each CPU.
    cpu_nodes: BTreeMap<u32, NodeId>,
}

/// The model. Copies share the machine.
///
/// Invariant: the frames of the blocks in `held` are exactly those that are held in the ledger. `managed` counts, by
/// zone, the frames that are not offline.
#[derive(Clone)]
pub struct Model {
    planned: Rc<Planned>,
    ledger: Ledger,
    /// Allocated blocks, by first frame, ascending.
    held: Vec<(u64, Held)>,
    managed: Vec<u64>,
    /// Frames of held blocks that are retired when their blocks are freed.
    pending: BTreeSet<u64>,
    /// Retired frames, and the kinds as which they are counted.
    retired: BTreeMap<u64, PageKind>,
    /// Ranges of memory that went offline and have not come back as the same range.
    offline: Vec<FrameRange>,
    /// CPUs that are offline.
    cpus_gone: Vec<u32>,
    /// Number of blocks allocated so far.
    pub served: u64,
    /// How many of these blocks served a CPU on the same node.
    pub local: u64,
    /// Number of invalid frees refused so far.
    pub refused: u64,
    /// The block freed last.
    pub freed_last: Option<(u64, Shape)>,
}

impl Model {
    /// Returns the model of a machine whose memory is all online and free.
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
            pending: BTreeSet::new(),
            retired: BTreeMap::new(),
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

    /// Returns the node of a CPU, or `None` if the machine does not have the CPU.
    #[must_use]
    pub fn node_of(&self, cpu: u32) -> Option<NodeId> {
        self.planned.cpu_nodes.get(&cpu).copied()
    }

    /// Returns the exclusive upper bound of CPU ids in histories: the machine's ids and one that it does not have.
    #[must_use]
    pub fn cpu_ids(&self) -> u32 {
        self.planned.cpu_nodes.keys().next_back().map_or(1, |last| last + 2)
    }

    /// Returns the machine's CPU count.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.planned.cpu_nodes.len()
    }

    /// Returns the number of CPUs that are online.
    #[must_use]
    pub fn cpus_online(&self) -> usize {
        self.cpus() - self.cpus_gone.len()
    }

    /// Whether a CPU is offline.
    #[must_use]
    pub fn is_gone(&self, cpu: u32) -> bool {
        self.cpus_gone.contains(&cpu)
    }

    /// Takes a CPU offline.
    ///
    /// # Errors
    /// Returns the error that the allocator must return.
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
    /// Returns the error that the allocator must return.
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

    /// Returns the ranges that went offline and have not come back as the same range.
    #[must_use]
    pub fn offline(&self) -> &[FrameRange] {
        &self.offline
    }

    /// Returns the index of the zone whose span contains a range.
    #[must_use]
    pub fn zone_of(&self, frames: &FrameRange) -> Option<usize> {
        self.plan().zones.iter().position(|zone| range(zone.start, zone.spanned).contains(frames))
    }

    /// Takes a range offline. The range must not be empty and must be within the zone with index `zone`.
    ///
    /// # Errors
    /// Returns the error that the allocator must return.
    pub fn offline_memory(&mut self, gone: &FrameRange, zone: usize) -> Result<(), OnlineError> {
        let owners = || (gone.start.get()..gone.end().get()).map(|frame| (frame, self.ledger.owner(frame)));
        if let Some((absent, _)) = owners().find(|&(_, owner)| owner == Ledger::OFFLINE) {
            return Err(OnlineError::NotOnline(Pfn::new(absent)));
        }
        let in_use = owners().filter(|&(_, owner)| owner == HOLDER).count() as u64;
        if in_use > 0 {
            // The model does not predict which block is the first one.
            let (start, in_use) = (gone.start, PageCount::new(in_use));
            return Err(OnlineError::InUse { start, in_use, first: None });
        }
        for frame in gone.start.get()..gone.end().get() {
            if self.retired.remove(&frame).is_some() {
                self.ledger.release(frame, 1, RETIRED);
            }
        }
        self.ledger.assign(gone.start.get(), gone.count.get(), Ledger::OFFLINE);
        self.managed[zone] -= gone.count.get();
        self.offline.push(*gone);
        Ok(())
    }

    /// Brings a range online. The range must not be empty and must be within the zone with index `zone`.
    ///
    /// # Errors
    /// Returns the error that the allocator must return.
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

    /// Returns the n-th held block by address, modulo the number of held blocks.
    #[must_use]
    pub fn nth(&self, nth: u16) -> Option<(u64, Held)> {
        usize::from(nth).checked_rem(self.held.len()).map(|at| self.held[at])
    }

    /// Returns at most `most` held single frames, starting with the n-th block.
    #[must_use]
    pub fn singles(&self, nth: u16, most: usize) -> Vec<u64> {
        let from = usize::from(nth).checked_rem(self.held.len()).unwrap_or(0);
        let singles = self.held[from..].iter().filter(|(_, held)| held.shape == Shape::Block(Order::PAGE));
        singles.map(|&(first, _)| first).take(most).collect()
    }

    /// Returns the index of the first block that starts at or after a frame.
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
        self.ledger.release(first, held.shape.count(), HOLDER);
        self.freed_last = Some((first, held.shape));
        for frame in first..first + held.shape.count() {
            if self.pending.remove(&frame) {
                self.retire_free(frame, held.kind);
            }
        }
    }

    fn retire_free(&mut self, frame: u64, kind: PageKind) {
        self.ledger.assign(frame, 1, RETIRED);
        self.retired.insert(frame, kind);
    }

    /// Retires a frame.
    ///
    /// # Errors
    /// Returns the error that the allocator must return.
    pub fn retire(&mut self, frame: u64) -> Result<Retirement, RetireError> {
        match self.ledger.owner(frame) {
            Ledger::OFFLINE => Err(RetireError::NotManaged(Pfn::new(frame))),
            RETIRED => Ok(Retirement::Done),
            HOLDER if self.pending.contains(&frame) => Ok(Retirement::WhenFreed),
            HOLDER => {
                let zone = self.zone_of(&range(frame, 1)).expect("a held frame is in a zone");
                if self.retiring(zone) == PENDING_MAX {
                    return Err(RetireError::TooMany { frame: Pfn::new(frame), max: PENDING_MAX });
                }
                self.pending.insert(frame);
                Ok(Retirement::WhenFreed)
            }
            _ => {
                self.retire_free(frame, PageKind::Kernel);
                Ok(Retirement::Done)
            }
        }
    }

    fn in_zone(&self, zone: usize, frame: u64) -> bool {
        let zone = &self.plan().zones[zone];
        (zone.start..zone.start + zone.spanned).contains(&frame)
    }

    /// Returns how many frames of a zone are retired when their blocks are freed.
    #[must_use]
    pub fn retiring(&self, zone: usize) -> usize {
        self.pending.iter().filter(|&&frame| self.in_zone(zone, frame)).count()
    }

    /// Returns how many frames of a zone are retired.
    #[must_use]
    pub fn retired(&self, zone: usize) -> usize {
        self.retired.keys().filter(|&&frame| self.in_zone(zone, frame)).count()
    }

    /// Returns how many frames of a range are free.
    #[must_use]
    pub fn free_in(&self, frames: &FrameRange) -> u64 {
        let owners = (frames.start.get()..frames.end().get()).map(|frame| self.ledger.owner(frame));
        owners.filter(|&owner| owner == Ledger::FREE).count() as u64
    }

    /// Records that a block was allocated. The block must be aligned, managed and free. Returns the index of its zone.
    pub fn take(&mut self, first: u64, held: Held) -> usize {
        let count = held.shape.count();
        let aligned = matches!(held.shape, Shape::Run(_)) || first.is_multiple_of(count);
        assert!(aligned, "the block at {first} is not aligned");
        self.ledger.assign(first, count, HOLDER);
        self.held.insert(self.place_of(first), (first, held));
        let zone = self.zone_of(&range(first, count));
        zone.unwrap_or_else(|| panic!("frames {first}..{} are not of one zone", first + count))
    }

    /// Returns the error with which a free must be refused, or `None` if the block is held. Blocks in quarantine count
    /// as not allocated.
    #[must_use]
    pub fn refusal(&self, first: u64, given: Order) -> Option<FreeError> {
        let frame = Pfn::new(first);
        match self.held_at(first) {
            Some(Held { shape: Shape::Block(allocated), .. }) if allocated == given => return None,
            Some(Held { shape: Shape::Block(allocated), .. }) => {
                return Some(FreeError::WrongOrder { frame, allocated, given });
            }
            Some(Held { shape: Shape::Run(count), .. }) => {
                let allocated = PageCount::new(count);
                return Some(if allocated == given.pages() {
                    FreeError::InsideRun { frame, first: frame, count: allocated }
                } else {
                    FreeError::WrongCount { frame, allocated, given: given.pages() }
                });
            }
            None => {}
        }
        Some(match self.ledger.owner(first) {
            Ledger::OFFLINE => FreeError::NotManaged(frame),
            Ledger::FREE => FreeError::NotAllocated(frame),
            RETIRED => FreeError::Retired(frame),
            _ => {
                let (block, held) = self.held[self.place_of(first) - 1];
                let first = Pfn::new(block);
                match held.shape {
                    Shape::Block(order) => FreeError::InsideBlock { frame, block: first, order },
                    Shape::Run(count) => FreeError::InsideRun { frame, first, count: PageCount::new(count) },
                }
            }
        })
    }

    /// Returns the error with which a free of `count` frames must be refused, or `None` if they are held together.
    #[must_use]
    pub fn refusal_of_frames(&self, first: u64, count: u64, max: Order) -> Option<FreeError> {
        let (frame, given) = (Pfn::new(first), PageCount::new(count));
        if count == 0 {
            return Some(FreeError::NoFrames(frame));
        }
        if self.zone_of(&range(first, 1)).is_none() {
            return Some(FreeError::NotManaged(frame));
        }
        let within = self.zone_of(&range(first, count)).is_some();
        match (Shape::of(first, count, max), self.held_at(first)) {
            (Shape::Block(order), _) if within => self.refusal(first, order),
            (shape, Some(held)) if held.shape == shape => None,
            (_, Some(held)) => {
                let allocated = PageCount::new(held.shape.count());
                Some(FreeError::WrongCount { frame, allocated, given })
            }
            (_, None) => self.refusal(first, Order::PAGE),
        }
    }

    /// Splits a held block or run into parts of at most `to`; returns the parts.
    pub fn split(&mut self, first: u64, to: Order) -> Vec<(u64, Order)> {
        let at = self.place_of(first);
        let (_, held) = self.held.remove(at);
        let (mut next, end, mut parts) = (first, first + held.shape.count(), Vec::new());
        while next < end {
            let order = next.trailing_zeros().min((end - next).ilog2()).min(u32::from(to.get()));
            let order = Order::new(order as u8).expect("it is at most `to`");
            parts.push((next, order));
            next += order.pages().get();
        }
        let held = parts.iter().map(|&(first, order)| (first, Held { shape: Shape::Block(order), ..held }));
        self.held.splice(at..at, held);
        parts
    }

    /// Returns how many frames of a range are not free.
    #[must_use]
    pub fn used(&self, frames: &FrameRange) -> u64 {
        frames.count.get() - self.free_in(frames)
    }

    /// Returns the number of frames that the zone with index `zone` manages now.
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

    /// Returns the number of frames that are allocated or retired in zones for which `of` holds, by kind.
    #[must_use]
    pub fn allocated(&self, of: impl Fn(NodeId, ZoneKind) -> bool) -> [PageCount; 3] {
        let mut sums = [PageCount::ZERO; 3];
        for zone in self.plan().zones.iter().filter(|zone| of(node_id(zone.node), zone.kind)) {
            let blocks = self.place_of(zone.start)..self.place_of(zone.start + zone.spanned);
            for (_, held) in &self.held[blocks] {
                let sum = &mut sums[held.kind as usize];
                *sum = sum.plus(PageCount::new(held.shape.count()));
            }
            for (_, &kind) in self.retired.range(zone.start..zone.start + zone.spanned) {
                sums[kind as usize] = sums[kind as usize].plus(PageCount::new(1));
            }
        }
        sums
    }

    /// Returns the frame after the last frame of all zones.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.ledger.frames().end
    }
}
