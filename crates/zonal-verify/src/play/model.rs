//! What a naive allocator would know: a set of blocks, which frames there are, and who is online.
//!
//! Neighbours: `verdict.rs` judges answers by it.

use std::collections::BTreeMap;
use std::rc::Rc;

use zonal::error::FreeError;
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneKind};

use super::plan::{Plan, range};

/// A block handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its order.
    pub order: Order,
    /// What it was asked for as.
    pub kind: PageKind,
}

/// The machine as it was planned.
struct Ground {
    plan: Plan,
    /// Node of each CPU.
    seats: BTreeMap<u32, NodeId>,
}

/// The model. Its machine is shared between copies.
///
/// Invariant: blocks in `held` lie in managed memory, not in `offline`, and are disjoint, as are the
/// ranges in `offline`.
#[derive(Clone)]
pub struct Model {
    ground: Rc<Ground>,
    /// Blocks handed out, by first frame.
    held: BTreeMap<u64, Held>,
    /// Ranges of memory that went.
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

/// One past the last frame of a block.
fn end_of(first: u64, order: Order) -> u64 {
    first + order.pages().get()
}

impl Model {
    /// The model of a machine all of which is online and free.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let id = |id| NodeId::new(id).expect("ids of nodes are small");
        let seats = (plan.nodes.iter())
            .flat_map(|(node, cpus)| cpus.iter().map(move |&cpu| (cpu, id(*node))))
            .collect();
        Self {
            ground: Rc::new(Ground { plan: plan.clone(), seats }),
            held: BTreeMap::new(),
            offline: Vec::new(),
            cpus_gone: Vec::new(),
            served: 0,
            local: 0,
            refused: 0,
            freed_last: None,
        }
    }

    /// The machine.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.ground.plan
    }

    /// The node of a CPU, where the machine has it.
    #[must_use]
    pub fn node_of(&self, cpu: u32) -> Option<NodeId> {
        self.ground.seats.get(&cpu).copied()
    }

    /// CPU ids of the machine and one more.
    #[must_use]
    pub fn cpu_ids(&self) -> u32 {
        self.ground.seats.keys().next_back().map_or(1, |last| last + 2)
    }

    /// CPUs of the machine.
    #[must_use]
    pub fn cpus(&self) -> usize {
        self.ground.seats.len()
    }

    /// CPUs that are online.
    #[must_use]
    pub fn cpus_online(&self) -> usize {
        self.cpus() - self.cpus_gone.len()
    }

    /// CPUs that went.
    pub fn cpus_gone(&mut self) -> &mut Vec<u32> {
        &mut self.cpus_gone
    }

    /// Whether a CPU went.
    #[must_use]
    pub fn is_gone(&self, cpu: u32) -> bool {
        self.cpus_gone.contains(&cpu)
    }

    /// Ranges that went.
    pub fn offline(&mut self) -> &mut Vec<FrameRange> {
        &mut self.offline
    }

    /// Number of blocks held.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.held.len()
    }

    /// The n-th block held, modulo how many there are.
    #[must_use]
    pub fn nth(&self, nth: u16) -> Option<(u64, Held)> {
        let at = usize::from(nth).checked_rem(self.held.len())?;
        self.held.iter().nth(at).map(|(&first, &held)| (first, held))
    }

    /// Single frames held, from the n-th block on.
    #[must_use]
    pub fn singles(&self, nth: u16, most: usize) -> Vec<u64> {
        let Some((from, _)) = self.nth(nth) else { return Vec::new() };
        let singles = self.held.range(from..).filter(|(_, held)| held.order == Order::PAGE);
        singles.map(|(&first, _)| first).take(most).collect()
    }

    /// The block that starts at a frame.
    #[must_use]
    pub fn held_at(&self, first: u64) -> Option<Held> {
        self.held.get(&first).copied()
    }

    /// A block goes back.
    pub fn release(&mut self, first: u64) {
        let held = self.held.remove(&first).expect("only blocks held are freed");
        self.freed_last = Some((first, held.order));
    }

    /// A block was handed out: it must be whole, managed and nobody's. Gives the place of its zone.
    pub fn take(&mut self, first: u64, held: Held) -> usize {
        let end = end_of(first, held.order);
        let inside = |&(start, count): &(u64, u64)| start <= first && end <= start + count;
        let zones = &self.ground.plan.zones;
        let zone = zones.iter().position(|zone| zone.managed.iter().any(inside));
        let zone = zone.unwrap_or_else(|| panic!("frames {first}..{end} are not all managed memory"));
        if let Some((at, other)) = self.held.range(..end).next_back() {
            assert!(end_of(*at, other.order) <= first, "frames {first}..{end} are in the block at {at}");
        }
        for gone in &self.offline {
            let apart = gone.end().get() <= first || end <= gone.start.get();
            assert!(apart, "frames {first}..{end} are offline");
        }
        assert!(first.is_multiple_of(held.order.pages().get()), "the block at {first} is not aligned");
        self.held.insert(first, held);
        zone
    }

    /// What freeing a block is refused with; `None` for a block that is held. What the allocator keeps
    /// in quarantine counts as not allocated.
    #[must_use]
    pub fn refusal(&self, first: u64, given: Order) -> Option<FreeError> {
        let frame = Pfn::new(first);
        match self.held_at(first) {
            Some(held) if held.order == given => None,
            Some(held) => Some(FreeError::WrongOrder { frame, allocated: held.order, given }),
            None if !self.is_managed(first) => Some(FreeError::NotManaged(frame)),
            None => Some(match self.held.range(..first).next_back() {
                Some((&block, held)) if first < end_of(block, held.order) => {
                    FreeError::InsideBlock { frame, block: Pfn::new(block), order: held.order }
                }
                _ => FreeError::NotAllocated(frame),
            }),
        }
    }

    /// Whether a frame is managed now.
    #[must_use]
    pub fn is_managed(&self, frame: u64) -> bool {
        let zones = &self.ground.plan.zones;
        let inside = |&(start, count): &(u64, u64)| (start..start + count).contains(&frame);
        let planned = zones.iter().any(|zone| zone.managed.iter().any(inside));
        planned && !self.offline.iter().any(|gone| gone.contains(&range(frame, 1)))
    }

    /// Frames of a range that are in use.
    #[must_use]
    pub fn in_use(&self, range: &FrameRange) -> u64 {
        let (start, end) = (range.start.get(), range.end().get());
        let overlap = |(&first, held): (&u64, &Held)| {
            end_of(first, held.order).min(end).saturating_sub(first.max(start))
        };
        self.held.range(..end).map(overlap).sum()
    }

    /// Frames that the zone at a place manages now.
    #[must_use]
    pub fn managed_of(&self, zone: usize) -> u64 {
        let zone = &self.ground.plan.zones[zone];
        let planned: u64 = zone.managed.iter().map(|&(_, count)| count).sum();
        let span = range(zone.start, zone.spanned);
        let gone = self.offline.iter().filter(|gone| span.contains(gone));
        planned - gone.map(|gone| gone.count.get()).sum::<u64>()
    }

    /// Frames managed now.
    #[must_use]
    pub fn managed(&self) -> u64 {
        (0..self.ground.plan.zones.len()).map(|zone| self.managed_of(zone)).sum()
    }

    /// Nodes with memory now.
    #[must_use]
    pub fn memory_nodes(&self) -> Vec<NodeId> {
        let zones = self.ground.plan.zones.iter().enumerate();
        let with = zones.filter(|(at, _)| self.managed_of(*at) > 0);
        with.map(|(_, zone)| NodeId::new(zone.node).expect("ids of nodes are small")).collect()
    }

    /// Frames allocated in zones for which `of` holds, by what they hold.
    #[must_use]
    pub fn allocated(&self, of: impl Fn(NodeId, ZoneKind) -> bool) -> [PageCount; 3] {
        let mut sums = [PageCount::ZERO; 3];
        for zone in &self.ground.plan.zones {
            if of(NodeId::new(zone.node).expect("ids of nodes are small"), zone.kind) {
                for (_, held) in self.held.range(zone.start..zone.start + zone.spanned) {
                    let sum = &mut sums[held.kind as usize];
                    *sum = sum.plus(held.order.pages());
                }
            }
        }
        sums
    }
}
