//! The metadata that a machine needs, and how it is laid out in the caller's buffers.
//!
//! Each node's metadata has its own buffer, which can be placed on that node. One buffer is shared by all CPUs. One
//! buffer holds views with pointers, which are valid in one process only. The functions that measure a buffer and the
//! functions that fill it list the same items in the same order. Related files: `metadata/arena.rs` builds cells in a
//! buffer, and `allocator.rs` calls the measuring and the building functions.

use crate::config::{Config, OwnedBlocks};
use crate::error::ConfigError;
use crate::machine::{Machine, NodeDescription, TopologyError, ZONE_FRAMES_MAX, ZoneDescription};
use crate::metadata::arena::{Arena, Measure};
use crate::pageset::deferred::DeferredFrees;
use crate::pageset::state::MachineState;
use crate::pageset::{CachedOrders, HOLD_MAX, Pageset, STACKS, StackShape, ZonePagesets};
use crate::platform::Platform;
use crate::platform::pageset_word::SLOTS_MAX;
use crate::rules::pageset_limits::{batch, largest_high_max};
use crate::rules::pageset_tuning::{TuningForm, words::THRESHOLD_MIN};
use crate::rules::stat_threshold::{MAX_STAT_THRESHOLD, ThresholdRule};
use crate::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId};
use crate::zone::cells::ZoneCells;
use crate::zone::counters::{ProcessTotals, TOTAL_CELLS};
use crate::zone::events::EventCells;
use crate::zone::frame_states::{FrameTable, SECTION};
use crate::zone::free_areas::{FreeAreaCells, FreeAreas, FreeAreasShape};
use crate::zone::node::{Node, NodeCells, NodeUse};
use crate::zone::owned_blocks::{Owned, OwnedShape};
use crate::zone::processes::{HandoverCells, Holders};
use crate::zone::shared::SharedCells;
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::Zonelist;
use crate::zonelist::nearest_zones::NearestZones;

/// The place in which a metadata buffer should be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Shared by all CPUs: written rarely, read often.
    Shared,
    /// In the memory of this node.
    Node(NodeId),
    /// Private to the process; the only buffer that holds pointers.
    Local,
}

/// A buffer that the allocator needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BufferRequest {
    /// Place in which the buffer should be allocated.
    pub place: Place,
    /// Bytes needed, including padding for any alignment of the buffer.
    pub bytes: usize,
}

/// The metadata needs of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    pub(super) machine: Machine<'a>,
    config: Config,
}

/// A zone's pagesets for local CPUs together have slots for 1/13 of the zone. `high_max` may be 1/8
/// of the zone, but slots for 1/13 limit all metadata of large zones to less than 1.5 bytes per frame.
const SLOTS_SHARE: u64 = 13;
/// Number of slots in addition to the largest `high`, because a refill moves whole words and may exceed `high`.
const SLOTS_SPARE: u64 = 64;
/// A zone's pagesets for other nodes' CPUs together have slots for 1/64 of the zone, but each holds at least a batch.
const FOREIGN_SHARE: u64 = 64;
/// Depths of the stacks for larger blocks, by order, and of 2 MiB blocks.
const OWN_LARGE_SLOTS: [u32; STACKS - 1] = [32, 16, 8, 1, 1, 1, 1, 1, 2];
const FOREIGN_LARGE_SLOTS: [u32; STACKS - 1] = [8, 4, 2, 0, 0, 0, 0, 0, 0];

impl<'a> Layout<'a> {
    /// Checks the configuration and measures the machine under it.
    ///
    /// # Errors
    /// Returns an error if a configuration value is out of bounds, or a zone is too large.
    pub fn new(machine: &Machine<'a>, config: &Config) -> Result<Self, ConfigError> {
        if !config.page_bytes.is_power_of_two() || config.page_bytes < 4096 {
            return Err(ConfigError::PageBytes(config.page_bytes));
        }
        if config.max_order < Order::DEFAULT_MAX {
            return Err(ConfigError::MaxOrder(config.max_order));
        }
        config.check()?;
        if let ThresholdRule::Fixed(threshold) = config.counters.threshold
            && !(1..=MAX_STAT_THRESHOLD).contains(&threshold)
        {
            return Err(ConfigError::CounterThreshold(threshold));
        }
        if config.processes > 0 {
            config.check_processes()?;
        }
        if config.hardening.quarantine.get() > 1 << 20 {
            return Err(ConfigError::Quarantine(config.hardening.quarantine));
        }
        let is_too_large = |zone: &_| spanned_from_base(zone, config.max_order).1 > ZONE_FRAMES_MAX;
        match machine.zones().iter().find(|zone| is_too_large(zone)) {
            Some(zone) => Err(TopologyError::ZoneTooLarge(zone.node, zone.kind).into()),
            None => Ok(Self { machine: *machine, config: *config }),
        }
    }

    fn config<P: Platform>(&self) -> &Config {
        P::CONFIG.unwrap_or(&self.config)
    }

    /// Returns the request for every buffer that the allocator needs, in order.
    pub fn requests<P: Platform>(&self) -> impl Iterator<Item = BufferRequest> + '_ {
        let mut shared = Measure::default();
        shared.add::<SharedCells<P>>(1);
        shared.add::<P::U32>(self.machine.cpu_ids());
        shared.add::<Pageset<P>>(1);
        shared.add::<DeferredFrees<P>>(self.cpus());
        let (nodes, zones) = (self.machine.nodes().len(), self.machine.zones().len());
        let mut local = Measure::default();
        local.add::<FreeAreasShape>(zones);
        local.add::<StackShape>(2 * zones);
        local.add::<CpuInfo>(self.machine.cpu_ids());
        local.add::<u8>(nodes * nodes);
        local.add::<(Pfn, u16)>(zones);
        local.add::<(Pfn, PageCount)>(self.machine.memory().count());
        local.add::<Zone<'_, P>>(zones);
        local.add::<Node<'_, P>>(nodes);
        local.add::<Zonelist<'_, P>>(nodes);
        local.add::<ZonePagesets<'_, P>>(zones);
        NearestZones::<P>::measure(&mut local, self.cpus(), self.node_ids());
        MachineState::<P>::measure_slots(&mut local, self.machine.cpu_ids(), self.cpus(), zones);
        let of_process = [(Place::Shared, shared), (Place::Local, local)]
            .map(|(place, measure)| BufferRequest { place, bytes: measure.total() });
        let of_nodes = self.machine.nodes().iter();
        let of_nodes = of_nodes
            .map(|node| BufferRequest { place: Place::Node(node.id), bytes: self.node_bytes::<P>(node) });
        of_process.into_iter().chain(of_nodes)
    }

    fn node_bytes<P: Platform>(&self, node: &NodeDescription<'_>) -> usize {
        let mut measure = Measure::default();
        let processes = usize::from(self.config::<P>().processes);
        measure.add::<NodeCells<P>>(1);
        measure.add::<EventCells<P>>(1);
        measure.add::<NodeUse<P>>(processes.max(1));
        measure.add::<ProcessTotals<P>>(processes);
        measure.add::<HandoverCells<P>>(processes.min(1));
        Zonelist::<P>::measure(&mut measure, self.machine.zones().len(), self.node_ids());
        for zone in self.zones_of(node.id) {
            let plan = self.plan::<P>(zone);
            measure.add::<ZoneCells<P>>(1);
            measure.add::<P::U64>(self.machine.nodes().len().div_ceil(64));
            measure.add::<ProcessTotals<P>>(processes);
            measure.add::<Pageset<P>>(self.cpus());
            measure.add::<P::U32>(plan.quarantine);
            measure.add::<FreeAreaCells<P>>(plan.free_areas.count);
            measure.add::<P::U64>(plan.free_areas.cells());
            measure.add::<P::U64>(Holders::<P>::regions(self.held_frames::<P>(plan.frames)));
            Owned::<P>::measure(&mut measure, &plan.owned);
            measure.add::<P::U8>(plan.frames as usize + self.held_frames::<P>(plan.frames));
            measure.add::<P::U64>(FrameTable::<P>::present_words(plan.frames));
            measure.add::<P::U32>(plan.slots);
        }
        measure.total()
    }

    /// Returns how many frames of a zone with `frames` have a holder's byte.
    fn held_frames<P: Platform>(&self, frames: u64) -> usize {
        if self.config::<P>().processes == 0 { 0 } else { frames as usize }
    }

    /// Returns one more than the largest node id.
    pub(super) fn node_ids(&self) -> usize {
        self.machine.nodes().last().map_or(0, |node| node.id.index() + 1)
    }

    fn zones_of(&self, node: NodeId) -> impl Iterator<Item = &'a ZoneDescription<'a>> + use<'a> {
        self.machine.zones().iter().filter(move |zone| zone.node == node)
    }

    /// Returns the shape of a zone's metadata.
    pub(super) fn plan<P: Platform>(&self, zone: &ZoneDescription<'_>) -> ZonePlan {
        let config = self.config::<P>();
        let (base, frames) = spanned_from_base(zone, self.config::<P>().max_order);
        let node = self.machine.position(zone.node).expect("a checked machine has the nodes of its zones");
        let own_cpus = self.machine.nodes()[node].cpus.len();
        let batch = batch(zone.span.count, config.page_bytes).get();
        let share = zone.span.count.get() / SLOTS_SHARE / (own_cpus.max(1) as u64);
        // A foreign pageset has at most 4 batches. It has less on machines with so many CPUs that all slots together
        // would exceed their share of the zone.
        let foreign_share = zone.span.count.get() / FOREIGN_SHARE / self.cpus().max(1) as u64;
        let foreign_depth = (foreign_share.clamp(batch, 4 * batch) + SLOTS_SPARE).max(THRESHOLD_MIN.get());
        // Each of several processes has few frames of a small pool, but should keep a block of 2 MiB.
        let for_block = if config.processes > 0 { u64::from(HOLD_MAX) + SLOTS_SPARE } else { 0 };
        let least = for_block.max(4 * batch);
        let own_depth = (share.max(least) + SLOTS_SPARE).clamp(THRESHOLD_MIN.get(), u64::from(SLOTS_MAX));
        let sharing = if own_cpus == 0 { self.cpus() } else { own_cpus };
        let (own, foreign) = if config.tuning.is_past() {
            let high_max = largest_high_max(zone.span.count, sharing, config.page_bytes).get();
            let most = (high_max + SLOTS_SPARE).min(SLOTS_MAX.into());
            // Blocks of any cached order may fill a pageset.
            let orders = [1, 2, 3, 4, 5, 6, 7, 8, config.huge_order().get().into()];
            let full =
                self.stacks::<P>(most, orders.map(|order| most.checked_shr(order).unwrap_or(0) as u32));
            (full, full)
        } else {
            (
                self.stacks::<P>(own_depth, OWN_LARGE_SLOTS),
                self.stacks::<P>(foreign_depth, FOREIGN_LARGE_SLOTS),
            )
        };
        ZonePlan {
            base,
            frames,
            free_areas: FreeAreasShape::new(frames, sharing, config),
            own_cpus,
            slots: own_cpus * own.slots()
                + if own_cpus == self.cpus() { 0 } else { self.cpus() * foreign.slots() },
            own,
            foreign,
            owned: match config.owned_blocks {
                OwnedBlocks::On => OwnedShape::new(frames, own_cpus, config.huge_order()),
                OwnedBlocks::Off => OwnedShape::default(),
            },
            quarantine: 2 * config.hardening.quarantine.get() as usize,
        }
    }

    /// Returns the stack shape with these numbers of slots: for single frames, for larger blocks by order, and for 2
    /// MiB blocks. Orders that are not cached have no slots.
    fn stacks<P: Platform>(&self, pages: u64, larger: [u32; STACKS - 1]) -> StackShape {
        let cached = self.cached_orders::<P>();
        let is_cached = |at: usize| Order::new(at as u8).is_some_and(|order| cached.stack(order).is_some());
        StackShape::new(core::array::from_fn(|at| match at {
            0 => pages as u32,
            _ if at + 1 == STACKS || is_cached(at) => larger[at - 1],
            _ => 0,
        }))
    }

    /// Returns the orders that pagesets cache.
    pub(super) fn cached_orders<P: Platform>(&self) -> CachedOrders {
        let config = self.config::<P>();
        let form = config.past.tuning.filter(|form| form.tuning() == config.tuning);
        CachedOrders::new(config.huge_order(), form.map_or(u8::MAX, TuningForm::smaller_orders))
    }

    /// Returns the number of CPUs in the machine.
    fn cpus(&self) -> usize {
        self.machine.nodes().iter().map(|node| node.cpus.len()).sum()
    }

    pub(super) fn build_local<'m, P: Platform>(&self, arena: &mut Arena<'m>, process: u8) -> LocalParts<'m> {
        let (nodes, zones) = (self.machine.nodes(), self.machine.zones());
        let free_areas = arena.values(zones.len(), |at| self.plan::<P>(&zones[at]).free_areas);
        let stacks = arena.values(2 * zones.len(), |at| {
            let plan = self.plan::<P>(&zones[at / 2]);
            if at % 2 == 0 { plan.own } else { plan.foreign }
        });
        let cpus = arena.values(self.machine.cpu_ids(), |id| CpuInfo::absent(CpuId::new(id as u32)));
        for (node, description) in nodes.iter().enumerate() {
            for (rank, &cpu) in description.cpus.iter().enumerate() {
                cpus[cpu.index()] = CpuInfo { id: cpu, node: node as u16, rank: rank as u32, index: 0 };
            }
        }
        for (index, cpu) in cpus.iter_mut().filter(|cpu| cpu.exists()).enumerate() {
            cpu.index = index as u32;
        }
        let distances =
            arena.values(nodes.len() * nodes.len(), |at| nodes[at / nodes.len()].distances[at % nodes.len()]);
        let starts = arena.sorted(zones.len(), |at| (zones[at].span.start, at as u16));
        let mut memory = self.machine.memory();
        let memory = arena.sorted(self.machine.memory().count(), |_| {
            let range = memory.next().expect("the iterator yields the counted number");
            (range.start, range.count)
        });
        LocalParts { free_areas, stacks, cpus, distances, starts, memory, process }
    }

    /// Builds the metadata of the node with index `at`, and passes each zone's view to `sink`.
    pub(super) fn build_node<'m, P: Platform>(
        &self,
        arena: &mut Arena<'m>,
        at: usize,
        local: &LocalParts<'m>,
        machine_totals: Option<&'m [P::U64; TOTAL_CELLS]>,
        sink: &mut impl FnMut(Zone<'m, P>, ZonePagesets<'m, P>),
    ) -> (Node<'m, P>, Zonelist<'m, P>) {
        let description = &self.machine.nodes()[at];
        let cells = &arena.fresh::<P, NodeCells<P>>(1)[0];
        let events = &arena.fresh::<P, EventCells<P>>(1)[0];
        let processes = usize::from(self.config::<P>().processes);
        let by_process = arena.fresh::<P, ProcessTotals<P>>(processes);
        let process = if P::IS_SHARED { usize::from(local.process).saturating_sub(1) } else { 0 };
        let own = &arena.fresh::<P, NodeUse<P>>(processes.max(1))[process];
        let handover = arena.fresh::<P, HandoverCells<P>>(processes.min(1)).first();
        let list = Zonelist::build(arena, self.machine.zones().len(), self.node_ids());
        let (id, has_cpus) = (description.id, !description.cpus.is_empty());
        // The zones of a node are adjacent.
        let first_zone = self.machine.zones().iter().position(|zone| zone.node == id).unwrap_or(0);
        let zone_count = self.zones_of(id).count();
        for at_zone in first_zone..first_zone + zone_count {
            let (zone, pagesets) = self.build_zone(arena, at_zone, at, local);
            sink(zone, pagesets);
        }
        let counters = cells.counters(machine_totals).of_process(local.process, by_process);
        let node =
            Node { id, first_zone, zone_count, has_cpus, cells, counters, events, own, by_process, handover };
        (node, list)
    }

    fn build_zone<'m, P: Platform>(
        &self,
        arena: &mut Arena<'m>,
        id: usize,
        node: usize,
        local: &LocalParts<'m>,
    ) -> (Zone<'m, P>, ZonePagesets<'m, P>) {
        let zone = &self.machine.zones()[id];
        let plan = self.plan::<P>(zone);
        let held = self.held_frames::<P>(plan.frames);
        let bytes = arena.u8s::<P>(plan.frames as usize + held);
        let cells = &arena.fresh::<P, ZoneCells<P>>(1)[0];
        let full_in = arena.u64s::<P>(self.machine.nodes().len().div_ceil(64));
        let by_process = arena.fresh::<P, ProcessTotals<P>>(self.config::<P>().processes.into());
        let pagesets = arena.fresh::<P, Pageset<P>>(self.cpus());
        let zone = Zone {
            id: ZoneId::from_index(id),
            node,
            node_id: zone.node,
            kind: zone.kind,
            span: zone.span,
            unmanaged: self.machine.unmanaged(id),
            base: plan.base,
            cells,
            full_in,
            by_process,
            quarantine: arena.u32s::<P>(plan.quarantine),
            free_areas: FreeAreas::new(
                arena.fresh::<P, FreeAreaCells<P>>(plan.free_areas.count),
                arena.u64s::<P>(plan.free_areas.cells()),
                &local.free_areas[id],
                Holders::new(
                    &bytes[plan.frames as usize..],
                    arena.u64s::<P>(Holders::<P>::regions(held)),
                    local.process,
                ),
            ),
            owned: Owned::build(arena, &plan.owned),
            frames: FrameTable {
                states: &bytes[..plan.frames as usize],
                states_and_holders: bytes,
                present: arena.u64s::<P>(FrameTable::<P>::present_words(plan.frames)),
            },
            own_cpus: plan.own_cpus,
            cpus: self.cpus(),
        };
        let pagesets = ZonePagesets {
            pagesets,
            slots: arena.u32s::<P>(plan.slots),
            zone_node: node,
            own_cpus: plan.own_cpus,
            own_stacks: &local.stacks[2 * id],
            foreign_stacks: &local.stacks[2 * id + 1],
        };
        (zone, pagesets)
    }
}

/// The process-local tables to which the views refer.
#[derive(Clone, Copy)]
pub(super) struct LocalParts<'m> {
    free_areas: &'m [FreeAreasShape],
    stacks: &'m [StackShape],
    pub(super) cpus: &'m [CpuInfo],
    pub(super) distances: &'m [u8],
    /// First frame of each zone and the zone's index, in ascending order of frames.
    pub(super) starts: &'m [(Pfn, u16)],
    /// Every range that is or may become memory, in ascending order and disjoint.
    pub(super) memory: &'m [(Pfn, PageCount)],
    process: u8,
}

/// The shape of one zone's metadata.
pub(super) struct ZonePlan {
    pub(super) base: Pfn,
    /// Frames from the base to the end of the span.
    pub(super) frames: u64,
    pub(super) free_areas: FreeAreasShape,
    own_cpus: usize,
    own: StackShape,
    foreign: StackShape,
    slots: usize,
    quarantine: usize,
    owned: OwnedShape,
}

/// Returns the frame where a zone's bitmaps start, and the number of frames from there to the zone's end.
///
/// The start is rounded down, so that every block of the zone is aligned within the bitmaps.
fn spanned_from_base(zone: &ZoneDescription<'_>, max_order: Order) -> (Pfn, u64) {
    let align = max_order.pages().get().max(SECTION);
    let base = Pfn::new(zone.span.start.get() & !(align - 1));
    (base, zone.span.end().get() - base.get())
}
