//! Runs the pageset rule of the recorded kernel over a trace.
//!
//! During the first second, the pagesets take the refills and drains that the trace has, because their contents at the
//! start are known only as a count. After it, the rule alone refills and drains, and the trace has only the requests and
//! frees.
//!
//! Related files: `start.rs` reads the state at the start, and `environment.rs` follows zones and page blocks.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;

use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal_machine::pagesets::{KernelPageset, Mobility, Moved, PagesetKernel, PagesetList};
use zonal_machine::{KernelVersion, MachineModel, Rules};
use zonal_trace::{Action, Event, Gfp, Header, KernelTexts, Migratetype, TraceError, TraceReader, Zones};

use super::ReplayError;
use super::environment::{PageBlocks, ZoneState};
use super::huge::HugePages;
use super::results::{CpuPages, KernelReplay};
use super::start;
use super::ticks::{self, Drains, Ticks};

/// The length of the first phase, in nanoseconds.
const FOLLOWED_NS: u64 = 1_000_000_000;
/// Events between two calls of `progress`.
const EVENTS_BETWEEN_CALLS: u64 = 1 << 6;

/// The most adjustments of a CPU without events that are made up for: after them, `high` is at its lower limit.
const TICKS_MAX: u64 = 64;

/// The most frees that wait: more than lists of the kernel have.
const WAITING_MAX: usize = 64;

/// The most pagesets: more than machines have.
const PAGESETS_MAX: usize = 1 << 20;

/// The largest order of small requests. Linux: `PAGE_ALLOC_COSTLY_ORDER`.
const SMALL: Order = match Order::new(3) {
    Some(order) => order,
    None => Order::PAGE,
};

/// The replay while it runs.
struct Replay {
    kernel: PagesetKernel,
    header: Header,
    zones: Zones,
    /// Request flags that exclude zone Normal.
    low_zones: u64,
    /// The nodes of the CPUs.
    nodes: Vec<Option<NodeId>>,
    states: Vec<Option<ZoneState>>,
    /// By zone and CPU.
    pagesets: Vec<Option<Box<KernelPageset>>>,
    blocks: PageBlocks,
    /// The blocks in pagesets as far as they were seen, by their first frame.
    cached: HashMap<Pfn, (usize, PagesetList)>,
    huge: Order,
    cpus: Vec<Cpu>,
    start: Moment,
    /// How long the trace's own refills and drains are taken, from the start.
    followed_ns: u64,
}

/// Returns the flags of requests that may use only zones for old devices.
fn low_zones(header: &Header) -> u64 {
    let names = ["__GFP_DMA", "GFP_DMA", "__GFP_DMA32", "GFP_DMA32"];
    let bits = header.gfp_names.iter().filter(|(_, name)| names.contains(&name.as_str()));
    // Names for several flags stand for no zone alone.
    bits.filter(|(bits, _)| bits.is_power_of_two()).fold(0, |all, (bits, _)| all | bits)
}

fn node_of(machine: &MachineModel, cpu: CpuId) -> Option<NodeId> {
    machine.nodes.iter().find(|node| node.cpus.contains(&cpu)).map(|node| node.id)
}

/// What is known of a CPU.
#[derive(Clone, Debug)]
struct Cpu {
    pages: CpuPages,
    /// A recorded refill whose request follows.
    refill: Option<(usize, PagesetList, Moved)>,
    /// When the pagesets are adjusted.
    ticks: Ticks,
    drains: Drains,
    /// Frees whose blocks are not in the pageset yet. The kernel reports the frees of a list first, and then adds the
    /// blocks one by one.
    waiting: VecDeque<(Pfn, Order)>,
    /// Whether the last free was part of a list.
    in_list: bool,
    /// The zone of a free after which a drain is expected.
    expected: Option<usize>,
    /// A frame that was taken from a block of another type.
    fallback: Option<Pfn>,
}

/// Runs the rule over a trace. `progress` gets the bytes read, of twice the file's size, and returns whether to go on.
///
/// The trace is read twice. The first pass follows the kernel to the end, which shows in which lists the frames were that
/// pagesets had at the start.
///
/// # Errors
/// [`ReplayError`] for a trace without what the rule needs, and for one that cannot be read. A trace that is cut off is
/// replayed up to the cut.
pub fn replay_kernel(
    file: &Path,
    mut progress: impl FnMut(u64) -> bool,
) -> Result<KernelReplay, ReplayError> {
    let origin = file.display().to_string();
    let mut reader = TraceReader::open(file)?;
    let mut first = Replay::new(reader.header(), &origin, u64::MAX)?;
    let read = first.run(&mut reader, &mut progress)?;
    let bytes = reader.bytes();
    let mut reader = TraceReader::open(file)?;
    let mut replay = Replay::new(reader.header(), &origin, FOLLOWED_NS)?;
    replay.learn(first);
    if read.is_stopped {
        return Ok(replay.finish(&read));
    }
    let read = replay.run(&mut reader, &mut |more| progress(bytes.saturating_add(more)))?;
    Ok(replay.finish(&read))
}

/// How a pass ended.
struct Read {
    events: u64,
    lost: u64,
    last: Moment,
    is_complete: bool,
    is_stopped: bool,
    /// The kernel's texts at the end.
    after: Option<KernelTexts>,
}

impl Replay {
    /// Reads a trace to its end.
    fn run<R: io::Read>(
        &mut self,
        reader: &mut TraceReader<R>,
        progress: &mut impl FnMut(u64) -> bool,
    ) -> Result<Read, ReplayError> {
        let mut read =
            Read { events: 0, lost: 0, last: self.start, is_complete: true, is_stopped: false, after: None };
        while let Some(event) = reader.next() {
            let event = match event {
                Ok(event) => event,
                Err(TraceError::Cut { .. }) => {
                    read.is_complete = false;
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            read.events += 1;
            read.last = read.last.max(event.at);
            if let Action::Lost { events } = event.action {
                read.lost = read.lost.saturating_add(events.unwrap_or(1));
            }
            self.take(&event);
            if read.events.is_multiple_of(EVENTS_BETWEEN_CALLS) && !progress(reader.bytes()) {
                read.is_stopped = true;
                break;
            }
        }
        if let Some(trailer) = reader.trailer() {
            read.lost = trailer.lost();
            read.after = Some(trailer.after.clone());
            read.last = read.last.max(Moment::from_ns(trailer.ended_ns));
        }
        Ok(read)
    }

    /// Takes what a pass showed about the start.
    fn learn(&mut self, mut followed: Self) {
        for (pageset, followed) in self.pagesets.iter_mut().zip(&followed.pagesets) {
            if let (Some(pageset), Some(followed)) = (pageset, followed) {
                pageset.know(&followed.found());
            }
        }
        let drains: Vec<&Drains> = followed.cpus.iter().map(|cpu| &cpu.drains).collect();
        for (cpu, phase) in self.cpus.iter_mut().zip(ticks::phases(&drains)) {
            cpu.ticks = Ticks::new(self.start, phase);
        }
        followed.blocks.restart();
        self.blocks = followed.blocks;
    }

    fn new(header: &Header, origin: &str, followed_ns: u64) -> Result<Self, ReplayError> {
        let missing = |what| ReplayError::Missing { origin: origin.to_owned(), what };
        let release = header.kernel.as_ref().ok_or_else(|| missing("the kernel's release"))?;
        let version = release.parse().and_then(KernelVersion::not_too_old);
        let version = version.map_err(|source| ReplayError::Version { origin: origin.to_owned(), source })?;
        let kernel = PagesetKernel::of(version);
        let machine = header.machine(origin)?.ok_or_else(|| missing("the machine"))?;
        let text = header.before.zoneinfo.as_ref().ok_or_else(|| missing("/proc/zoneinfo at the start"))?;
        let mut found = start::parse(text)
            .map_err(|problem| ReplayError::Zoneinfo { origin: origin.to_owned(), problem })?;
        let rules = Rules::of(version);
        found.iter_mut().for_each(|zone| zone.compute_limits(&machine, &rules));
        let zones = Zones::new(Some(&machine));
        let huge = Order::holding(PageCount::new((2 << 20) / u64::from(machine.page_bytes).max(1)))
            .unwrap_or_default();
        let cpus = header.cpus.len();
        let mut states = Vec::new();
        if zones.names().len().saturating_mul(cpus) > PAGESETS_MAX {
            return Err(ReplayError::TooMany { origin: origin.to_owned(), most: PAGESETS_MAX });
        }
        let mut pagesets = vec![None; zones.names().len() * cpus];
        for (place, name) in zones.names().iter().enumerate() {
            let start = found.iter().find(|zone| zone.is(name.node, name.kind));
            states.push(start.map(ZoneState::new));
            for (cpu, id) in header.cpus.iter().enumerate() {
                let start = start.and_then(|zone| zone.pagesets.get(&CpuId::new(*id)));
                pagesets[place * cpus + cpu] = start.map(|start| Box::new(KernelPageset::new(kernel, start)));
            }
        }
        let cpu = |id: &u32| Cpu {
            pages: CpuPages { cpu: *id, ..CpuPages::default() },
            ticks: Ticks::new(header.started(), None),
            drains: Drains::default(),
            refill: None,
            waiting: VecDeque::new(),
            in_list: false,
            expected: None,
            fallback: None,
        };
        Ok(Self {
            kernel,
            low_zones: low_zones(header),
            nodes: header.cpus.iter().map(|cpu| node_of(&machine, CpuId::new(*cpu))).collect(),
            zones,
            states,
            pagesets,
            blocks: PageBlocks::new(huge),
            cached: HashMap::new(),
            huge,
            cpus: header.cpus.iter().map(cpu).collect(),
            start: header.started(),
            followed_ns,
            header: header.clone(),
        })
    }

    fn take(&mut self, event: &Event) {
        let Some(cpu) = self.header.place(event.cpu) else { return };
        let is_followed = event.at.ns_since(self.start) < self.followed_ns;
        self.cpus[cpu].drains.take(event);
        self.tick(cpu, event.at, is_followed);
        self.settle(cpu, &event.action, is_followed);
        match &event.action {
            Action::Alloc { page, order, gfp, migratetype } => {
                let mobility = Mobility::of_number(migratetype.0);
                self.passed_over(cpu, *page, *order, (*gfp, mobility));
                let Some(page) = page else { return };
                self.alloc(cpu, *page, *order, *migratetype, is_followed);
            }
            Action::ZoneLocked { page: Some(page), order, migratetype, is_refill } => {
                // Without a fallback, the block is one of its own type.
                if self.cpus[cpu].fallback.take() != Some(*page) {
                    self.blocks.named(*page, Mobility::of_number(migratetype.0));
                }
                if !is_refill {
                    return;
                }
                self.refilled(cpu, *page, *order, *migratetype, is_followed);
            }
            Action::Free { page, order } => {
                let of = &mut self.cpus[cpu];
                // After all blocks of a list, this one may be freed alone.
                of.in_list &= !of.waiting.is_empty();
                of.waiting.push_back((*page, *order));
            }
            Action::FreeBatched { page } => self.free_until(cpu, *page, is_followed),
            Action::Drain { page, order, migratetype } => {
                self.drained(cpu, *page, *order, *migratetype, is_followed);
            }
            Action::Fallback { page, from_order, migratetype, from_migratetype, changes_owner, .. } => {
                let mobility = if *changes_owner { migratetype } else { from_migratetype };
                self.cpus[cpu].fallback = Some(*page);
                self.blocks.claimed(*page, *from_order, Mobility::of_number(mobility.0));
            }
            _ => {}
        }
    }

    /// Frees what waits, unless the event belongs to the same list of frees.
    fn settle(&mut self, cpu: usize, action: &Action, is_followed: bool) {
        if is_followed
            && let Some(zone) = self.cpus[cpu].expected.take()
            && !matches!(action, Action::Drain { .. })
        {
            self.not_drained(zone, cpu);
        }
        if !matches!(action, Action::ZoneLocked { .. } | Action::Fallback { .. }) {
            self.end_refill(cpu);
        }
        let of = &mut self.cpus[cpu];
        let is_listed = match action {
            Action::Free { .. } => of.waiting.len() < WAITING_MAX,
            Action::FreeBatched { .. } => true,
            Action::Drain { .. } => of.in_list,
            _ => false,
        };
        if is_listed {
            return;
        }
        of.in_list = false;
        while let Some((page, order)) = self.cpus[cpu].waiting.pop_front() {
            self.free(cpu, page, order, is_followed);
        }
    }

    fn not_drained(&mut self, zone: usize, cpu: usize) {
        if let Some(pageset) = &mut self.pagesets[zone * self.header.cpus.len() + cpu] {
            pageset.follow_no_drain();
        }
        if let Some(state) = &mut self.states[zone] {
            state.on_no_drain();
        }
    }

    /// Frees what waits up to a frame, which is freed as a part of a list now.
    fn free_until(&mut self, cpu: usize, page: Pfn, is_followed: bool) {
        self.cpus[cpu].in_list = true;
        if !self.cpus[cpu].waiting.iter().any(|(waiting, _)| *waiting == page) {
            return;
        }
        while let Some((waiting, order)) = self.cpus[cpu].waiting.pop_front() {
            self.free(cpu, waiting, order, is_followed);
            if waiting == page {
                break;
            }
        }
    }

    /// Takes the zones that a request passed over: those above the zone that served it, or all if it failed.
    ///
    /// Large requests found too few free frames or no block. Small ones found no block of their mobility, in a refill that
    /// moved nothing.
    fn passed_over(&mut self, cpu: usize, page: Option<Pfn>, order: Order, of: (Gfp, Mobility)) {
        let (gfp, mobility) = of;
        if self.low_zones & gfp.0 != 0 {
            return;
        }
        let (node, above) = match page.map(|page| self.zones.find(page)) {
            Some(None) => return,
            Some(Some(zone)) => {
                let name = self.zones.names()[zone];
                (Some(name.node), Some(name.kind))
            }
            None => (self.nodes[cpu], None),
        };
        if above >= Some(ZoneKind::Normal) {
            return;
        }
        let cpus = self.header.cpus.len();
        for (zone, name) in self.zones.names().iter().enumerate() {
            let Some(state) = &mut self.states[zone] else { continue };
            if Some(name.node) != node || above.is_some_and(|kind| name.kind <= kind) {
                continue;
            }
            if page.is_none() || order > SMALL {
                state.on_refusal();
            } else if let Some(list) = self.kernel.list(order, mobility, self.huge)
                && let Some(pageset) = &mut self.pagesets[zone * cpus + cpu]
            {
                pageset.refill_in_vain(list, state.pressure());
            }
        }
    }

    /// Does what the kernel does every second.
    fn tick(&mut self, cpu: usize, now: Moment, is_followed: bool) {
        for _ in 0..self.cpus[cpu].ticks.due(now).min(TICKS_MAX) {
            self.tick_once(cpu, is_followed);
        }
    }

    fn tick_once(&mut self, cpu: usize, is_followed: bool) {
        for zone in 0..self.states.len() {
            let Some(pageset) = &mut self.pagesets[zone * self.header.cpus.len() + cpu] else { continue };
            if is_followed {
                pageset.follow_tick();
            } else if let Some(moved) = pageset.tick() {
                self.cpus[cpu].pages.drained.predicted += moved.pages.get();
            }
        }
    }

    fn alloc(&mut self, cpu: usize, page: Pfn, order: Order, migratetype: Migratetype, is_followed: bool) {
        let Some(zone) = self.zones.find(page) else { return };
        let mobility = Mobility::of_number(migratetype.0);
        self.blocks.requested(page, mobility);
        self.cached.remove(&page);
        let Some(state) = &mut self.states[zone] else { return };
        state.on_request();
        let Some(list) = self.kernel.list(order, mobility, self.huge) else {
            state.take(order.pages());
            return;
        };
        let Some(pageset) = &mut self.pagesets[zone * self.header.cpus.len() + cpu] else { return };
        if is_followed {
            pageset.follow_alloc(list);
        } else if let Some(moved) = pageset.alloc(list, state.pressure()) {
            self.cpus[cpu].pages.refilled.predicted += moved.pages.get();
        }
    }

    fn refilled(&mut self, cpu: usize, page: Pfn, order: Order, migratetype: Migratetype, is_followed: bool) {
        let pages = order.pages();
        let Some(zone) = self.zones.find(page) else { return };
        let Some(state) = &mut self.states[zone] else { return };
        state.take(pages);
        let list = self.kernel.list(order, Mobility::of_number(migratetype.0), self.huge);
        if let Some(list) = list {
            self.cached.insert(page, (cpu, list));
        }
        if !is_followed {
            self.cpus[cpu].pages.refilled.traced += pages.get();
            return;
        }
        let Some(list) = list else { return };
        if self.cpus[cpu].refill.is_some_and(|(at, of, _)| (at, of) != (zone, list)) {
            self.end_refill(cpu);
        }
        let before = self.cpus[cpu].refill.map_or(Moved::default(), |(.., moved)| moved);
        self.cpus[cpu].refill = Some((zone, list, before.plus(Moved { blocks: 1, pages })));
    }

    /// Takes a recorded refill as a whole.
    fn end_refill(&mut self, cpu: usize) {
        let Some((zone, list, moved)) = self.cpus[cpu].refill.take() else { return };
        let pressure = self.states[zone].as_ref().map(ZoneState::pressure);
        let pageset = &mut self.pagesets[zone * self.header.cpus.len() + cpu];
        if let (Some(pressure), Some(pageset)) = (pressure, pageset) {
            pageset.follow_refill(list, moved, pressure);
        }
    }

    /// Takes a request that the kernel did not report: the frame was in a pageset, and is freed now. Kernels do not
    /// report requests for many single frames at once, as for the stacks of new threads.
    fn unreported(&mut self, zone: usize, page: Pfn, is_followed: bool) {
        let Some((cpu, list)) = self.cached.remove(&page) else { return };
        let Some(state) = &self.states[zone] else { return };
        let Some(pageset) = &mut self.pagesets[zone * self.header.cpus.len() + cpu] else { return };
        if is_followed {
            pageset.follow_bulk(list);
        } else if let Some(moved) = pageset.alloc_in_bulk(list, state.pressure()) {
            self.cpus[cpu].pages.refilled.predicted += moved.pages.get();
        }
    }

    fn free(&mut self, cpu: usize, page: Pfn, order: Order, is_followed: bool) {
        let Some(zone) = self.zones.find(page) else { return };
        self.unreported(zone, page, is_followed);
        let Some(state) = &mut self.states[zone] else { return };
        let Some(list) = self.kernel.list(order, self.blocks.mobility(page), self.huge) else {
            state.give(order.pages());
            return;
        };
        self.cached.insert(page, (cpu, list));
        let Some(pageset) = &mut self.pagesets[zone * self.header.cpus.len() + cpu] else { return };
        if is_followed {
            let expected = pageset.follow_free(list, state.pressure()).map(|_| zone);
            if let Some(zone) = std::mem::replace(&mut self.cpus[cpu].expected, expected) {
                self.not_drained(zone, cpu);
            }
        } else if let Some(moved) = pageset.free(list, state.pressure()) {
            state.after_drain();
            self.cpus[cpu].pages.drained.predicted += moved.pages.get();
        }
    }

    fn drained(&mut self, cpu: usize, page: Pfn, order: Order, migratetype: Migratetype, is_followed: bool) {
        let pages = order.pages();
        let mobility = Mobility::of_number(migratetype.0);
        self.blocks.named(page, mobility);
        self.cached.remove(&page);
        let Some(zone) = self.zones.find(page) else { return };
        let Some(state) = &mut self.states[zone] else { return };
        state.give(pages);
        if !is_followed {
            self.cpus[cpu].pages.drained.traced += pages.get();
            return;
        }
        state.after_drain();
        let list = self.kernel.list(order, mobility, self.huge);
        let pageset = &mut self.pagesets[zone * self.header.cpus.len() + cpu];
        if let (Some(list), Some(pageset)) = (list, pageset) {
            pageset.follow_drain(list);
        }
    }

    fn finish(mut self, read: &Read) -> KernelReplay {
        let is_followed = read.last.ns_since(self.start) < self.followed_ns;
        (0..self.cpus.len()).for_each(|cpu| self.tick(cpu, read.last, is_followed));
        KernelReplay {
            kernel: self.header.kernel.unwrap_or_default(),
            cpus: self.cpus.iter().map(|cpu| cpu.pages).collect(),
            from_seconds: FOLLOWED_NS as f64 / 1e9,
            seconds: read.last.ns_since(self.start) as f64 / 1e9,
            events: read.events,
            lost: read.lost,
            is_complete: read.is_complete,
            huge_at_start: HugePages::read(&self.header.before, self.huge),
            huge_at_end: read.after.as_ref().and_then(|texts| HugePages::read(texts, self.huge)),
        }
    }
}
