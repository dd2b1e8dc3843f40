//! What a trace holds: counts by kind, order, zone, CPU, name, migratetype and flags, lifetimes, and rates over time.
//!
//! A trace is read once. Memory is bounded by the blocks that are allocated at one time, and by the bounds on keys.
//!
//! Related files: `info/lifetimes.rs`, `info/rates.rs` and `info/counters.rs` have the parts that need more than counting,
//! and `runs.rs` the refills and drains. The command line formats the result.

mod counters;
mod lifetimes;
mod rates;

use std::io::Read;
use std::sync::Arc;

use serde::Serialize;
use zonal::units::{Order, Pfn};

use crate::error::TraceError;
use crate::event::{Action, Event, Gfp, Kind, Migratetype};
use crate::file::TraceReader;
use crate::header::Header;
use crate::runs::{Run, RunKind, Runs};
use crate::threads::Threads;
use crate::zones::{ZoneName, Zones};

use counters::Counters;
use lifetimes::Blocks;
pub use lifetimes::{LifetimeClass, Lifetimes};
use rates::Collected;
pub use rates::{HotSpot, Interval, Rates};

/// The number of orders: the kernel's largest is 10, but other page sizes have larger ones.
const ORDERS: usize = 32;

/// What a trace holds.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct Info {
    /// Whether the trace has its trailer. If not, everything here is about what was written before the recorder ended.
    pub is_complete: bool,
    /// The seconds from the start to the end, or to the last event of an incomplete trace.
    pub seconds: f64,
    /// The size of the file.
    pub bytes: u64,
    /// All events.
    pub events: u64,
    /// Lost events: as the kernel counted them if the trace is complete, otherwise those that the events tell of.
    pub lost: u64,
    /// Events that came later than their moment allows; see [`TraceReader::late`].
    pub late: u64,
    /// Records of the kernel that were not understood.
    pub skipped: u64,
    /// Events by kind.
    pub kinds: Vec<KindCount>,
    /// Requests and frees.
    pub requests: Requests,
    /// Counts by order.
    pub orders: Vec<OrderCount>,
    /// Counts by zone. Frames outside all zones of the machine, or all if it is unknown, are counted for no zone.
    pub zones: Vec<ZoneCount>,
    /// Counts by CPU.
    pub cpus: Vec<CpuCount>,
    /// Counts by name of threads, those with the most events first.
    pub names: Vec<NameCount>,
    /// Requests by migratetype.
    pub migratetypes: Vec<MigratetypeCount>,
    /// Requests by flags.
    pub gfp: Vec<GfpCount>,
    /// Blocks taken from another migratetype.
    pub fallbacks: Vec<FallbackCount>,
    /// How long blocks lived.
    pub lifetimes: Lifetimes,
    /// Counts over time.
    pub rates: Rates,
    /// Intervals with more than twice the average of events.
    pub hot_spots: Vec<HotSpot>,
}

/// Events of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct KindCount {
    /// The name of the kind.
    pub kind: &'static str,
    /// Its events.
    pub events: u64,
}

/// Requests and frees.
#[derive(Clone, Copy, PartialEq, Default, Serialize, Debug)]
pub struct Requests {
    /// Requests that were served.
    pub allocations: u64,
    /// Their frames.
    pub allocated_pages: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Requests during which a block was taken from a free area, under its zone's lock.
    pub needed_lock: u64,
    /// The same, as a share of all requests.
    pub lock_share: f64,
    /// Freed blocks.
    pub frees: u64,
    /// Their frames.
    pub freed_pages: u64,
}

/// Refills and drains.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Moved {
    /// Refills.
    pub refills: u64,
    /// Frames that were refilled.
    pub refilled_pages: u64,
    /// Drains.
    pub drains: u64,
    /// Frames that were drained.
    pub drained_pages: u64,
}

/// Counts of an order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct OrderCount {
    /// The order.
    pub order: u8,
    /// Served requests.
    pub allocations: u64,
    /// Freed blocks.
    pub frees: u64,
    /// Blocks taken from free areas.
    pub locked: u64,
    /// Blocks drained from pagesets.
    pub drained: u64,
}

/// Counts of a zone, in frames.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct ZoneCount {
    /// The zone's node; `None` for frames of no known zone.
    pub node: Option<u16>,
    /// The zone's kind.
    pub zone: Option<&'static str>,
    /// Allocated frames.
    pub allocated_pages: u64,
    /// Freed frames.
    pub freed_pages: u64,
    /// Frames taken from free areas.
    pub locked_pages: u64,
    /// Frames drained from pagesets.
    pub drained_pages: u64,
}

/// Counts of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct CpuCount {
    /// The CPU.
    pub cpu: u32,
    /// Its events.
    pub events: u64,
    /// Its lost events.
    pub lost: u64,
    /// Served requests.
    pub allocations: u64,
    /// Freed blocks.
    pub frees: u64,
    /// Refills and drains.
    #[serde(flatten)]
    pub moved: Moved,
}

/// Counts of the threads with a name.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct NameCount {
    /// The name.
    pub name: String,
    /// Their events.
    pub events: u64,
    /// Served requests.
    pub allocations: u64,
    /// Allocated frames.
    pub allocated_pages: u64,
    /// Freed frames.
    pub freed_pages: u64,
}

/// Requests of a migratetype.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct MigratetypeCount {
    /// The kernel's number.
    pub migratetype: i32,
    /// Its name, if all kernels agree on it.
    pub name: Option<&'static str>,
    /// Requests.
    pub requests: u64,
}

/// Requests with the same flags.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct GfpCount {
    /// The flags.
    pub gfp: u64,
    /// Their names.
    pub names: String,
    /// Requests.
    pub requests: u64,
}

/// Blocks taken from another migratetype, by what was requested and taken.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
pub struct FallbackCount {
    /// The requested order.
    pub order: u8,
    /// The order of the block that was split.
    pub from_order: u8,
    /// The requested migratetype.
    pub migratetype: i32,
    /// The migratetype of the block that was split.
    pub from_migratetype: i32,
    /// Whether the whole page block changed its migratetype.
    pub changes_owner: bool,
    /// Events.
    pub events: u64,
}

/// Reads a trace to its end and counts. `progress` is called with the bytes read, every few thousand events, and stops
/// reading by returning `false`.
///
/// # Errors
/// The errors of reading, except [`TraceError::Cut`]: what a cut trace holds is counted, and
/// [`Info::is_complete`] is `false`. [`TraceError::Machine`] for a machine in the header that is malformed.
pub fn info<R: Read>(
    reader: &mut TraceReader<R>,
    origin: &str,
    mut progress: impl FnMut(u64) -> bool,
) -> Result<Info, TraceError> {
    let machine = reader.header().machine(origin)?;
    let mut collector = Collector::new(reader.header(), Zones::new(machine.as_ref()));
    let mut is_complete = true;
    let mut since_progress = 0;
    while let Some(event) = reader.next() {
        match event {
            Ok(event) => collector.take(&event),
            Err(TraceError::Cut { .. }) => is_complete = false,
            Err(error) => return Err(error),
        }
        since_progress += 1;
        if since_progress == PROGRESS_EVERY {
            since_progress = 0;
            if !progress(reader.bytes()) {
                is_complete = false;
                break;
            }
        }
    }
    Ok(collector.finish(reader, is_complete))
}

/// Events between two calls of `progress`.
const PROGRESS_EVERY: u32 = 1 << 14;

/// Counts of the threads with a name, while a trace is read.
#[derive(Clone, Copy, Default, Debug)]
struct OfName {
    events: u64,
    allocations: u64,
    allocated_pages: u64,
    freed_pages: u64,
}

/// Requested and taken order and migratetype, and whether the block changes.
type Fallback = (Order, Order, Migratetype, Migratetype, bool);

/// Counts events.
#[derive(Debug)]
struct Collector {
    header: Header,
    zones: Zones,
    runs: Runs,
    threads: Threads,
    kinds: [u64; Kind::COUNT],
    requests: Requests,
    orders: [OrderCount; ORDERS],
    by_zone: Vec<ZoneCount>,
    cpus: Vec<CpuCount>,
    names: Counters<Arc<str>, OfName>,
    migratetypes: Counters<i32, u64>,
    gfp: Counters<Gfp, u64>,
    fallbacks: Counters<Fallback, u64>,
    blocks: Blocks,
    rates: Collected,
    last_ns: u64,
}

impl Collector {
    fn new(header: &Header, zones: Zones) -> Self {
        let count = |name: Option<&ZoneName>| ZoneCount {
            node: name.map(|name| name.node.get()),
            zone: name.map(|name| name.kind.name()),
            allocated_pages: 0,
            freed_pages: 0,
            locked_pages: 0,
            drained_pages: 0,
        };
        let by_zone = zones.names().iter().map(Some).chain([None]).map(count).collect();
        let other = Migratetype(i32::MAX);
        Self {
            header: header.clone(),
            zones,
            runs: Runs::new(header.cpus.len()),
            threads: Threads::new(header),
            kinds: [0; Kind::COUNT],
            requests: Requests::default(),
            orders: std::array::from_fn(|order| OrderCount { order: order as u8, ..OrderCount::default() }),
            by_zone,
            cpus: header.cpus.iter().map(|&cpu| CpuCount { cpu, ..CpuCount::default() }).collect(),
            names: Counters::new("(others)".into()),
            migratetypes: Counters::new(i32::MAX),
            gfp: Counters::new(Gfp(u64::MAX)),
            fallbacks: Counters::new((Order::PAGE, Order::PAGE, other, other, false)),
            blocks: Blocks::new(),
            rates: Collected::new(header.started()),
            last_ns: header.started_ns,
        }
    }

    fn zone(&mut self, page: Pfn) -> &mut ZoneCount {
        let unknown = self.by_zone.len() - 1;
        let place = self.zones.find(page).unwrap_or(unknown);
        &mut self.by_zone[place]
    }

    fn take(&mut self, event: &Event) {
        let Some(place) = self.header.place(event.cpu) else { return };
        self.last_ns = self.last_ns.max(event.at.ns());
        self.threads.take(event);
        let noticed = self.runs.take(place, event);
        noticed.run.inspect(|run| self.moved(place, run));
        self.requests.needed_lock += u64::from(noticed.needed_lock);
        self.kinds[event.action.kind().index()] += 1;
        self.cpus[place].events += 1;
        let name = self.names.place(self.threads.name(event.thread));
        self.names.at(name).events += 1;
        let interval = self.rates.at(event.at);
        interval.events += 1;
        interval.lead(name);
        self.count(event, place, name);
    }

    fn count(&mut self, event: &Event, cpu: usize, name: usize) {
        let order = event.action.order().unwrap_or_default();
        let pages = order.pages().get();
        let of_order = &mut self.orders[usize::from(order.get()) % ORDERS];
        match &event.action {
            Action::Alloc { page, gfp, migratetype, .. } => {
                *self.gfp.get(gfp) += 1;
                *self.migratetypes.get(&migratetype.0) += 1;
                let Some(page) = *page else {
                    self.requests.failed += 1;
                    return;
                };
                of_order.allocations += 1;
                self.requests.allocations += 1;
                self.requests.allocated_pages += pages;
                self.cpus[cpu].allocations += 1;
                self.names.at(name).allocations += 1;
                self.names.at(name).allocated_pages += pages;
                self.zone(page).allocated_pages += pages;
                self.rates.at(event.at).allocations += 1;
                self.blocks.alloc(event.at, page, order);
            }
            Action::Free { page, .. } => {
                of_order.frees += 1;
                self.requests.frees += 1;
                self.requests.freed_pages += pages;
                self.cpus[cpu].frees += 1;
                self.names.at(name).freed_pages += pages;
                self.zone(*page).freed_pages += pages;
                self.rates.at(event.at).frees += 1;
                self.blocks.free(event.at, *page, order);
            }
            Action::Drain { page, .. } => {
                of_order.drained += 1;
                self.zone(*page).drained_pages += pages;
                self.rates.at(event.at).drained_pages += pages;
            }
            Action::ZoneLocked { page: Some(page), is_refill, .. } => {
                of_order.locked += 1;
                self.zone(*page).locked_pages += pages;
                self.rates.at(event.at).refilled_pages += if *is_refill { pages } else { 0 };
            }
            Action::Fallback { order, from_order, migratetype, from_migratetype, changes_owner, .. } => {
                let key = (*order, *from_order, *migratetype, *from_migratetype, *changes_owner);
                *self.fallbacks.get(&key) += 1;
                self.rates.at(event.at).fallbacks += 1;
            }
            Action::Lost { events } => {
                let lost = &mut self.cpus[cpu].lost;
                *lost = lost.saturating_add(events.unwrap_or(1));
            }
            _ => {}
        }
    }

    fn moved(&mut self, place: usize, run: &Run) {
        let moved = &mut self.cpus[place].moved;
        let (runs, pages) = match run.kind {
            RunKind::Refill => (&mut moved.refills, &mut moved.refilled_pages),
            RunKind::Drain => (&mut moved.drains, &mut moved.drained_pages),
        };
        *runs += 1;
        *pages += run.pages.get();
    }

    fn finish<R: Read>(mut self, reader: &TraceReader<R>, is_complete: bool) -> Info {
        let rest: Vec<Run> = self.runs.finish().collect();
        for run in &rest {
            if let Some(place) = self.header.place(run.cpu) {
                self.moved(place, run);
            }
        }
        let trailer = reader.trailer().filter(|_| is_complete);
        if let Some(trailer) = trailer {
            self.cpus.iter_mut().zip(&trailer.cpus).for_each(|(cpu, totals)| cpu.lost = totals.lost);
        }
        let ended_ns = trailer.map_or(self.last_ns, |trailer| trailer.ended_ns);
        let asked = self.requests.allocations + self.requests.failed;
        self.requests.lock_share =
            if asked == 0 { 0.0 } else { self.requests.needed_lock as f64 / asked as f64 };
        let keys: Vec<String> = self.names.keys().map(ToString::to_string).collect();
        let (rates, hot_spots) = self.rates.finish(&keys);
        let is_used = |count: &ZoneCount| {
            count.allocated_pages + count.freed_pages + count.locked_pages + count.drained_pages > 0
        };
        let header = self.header;
        Info {
            is_complete,
            seconds: ended_ns.saturating_sub(header.started_ns) as f64 / 1e9,
            bytes: reader.bytes(),
            events: self.kinds.iter().sum(),
            lost: self.cpus.iter().fold(0, |sum, cpu| sum.saturating_add(cpu.lost)),
            late: reader.late(),
            skipped: trailer.map_or(0, |trailer| trailer.skipped),
            kinds: kinds(&self.kinds),
            requests: self.requests,
            orders: self
                .orders
                .into_iter()
                .filter(|one| *one != OrderCount { order: one.order, ..OrderCount::default() })
                .collect(),
            zones: self.by_zone.into_iter().filter(is_used).collect(),
            cpus: self.cpus,
            names: self.names.sorted(|count| count.events).into_iter().map(of_name).collect(),
            migratetypes: self.migratetypes.sorted(|count| *count).into_iter().map(of_migratetype).collect(),
            gfp: self
                .gfp
                .sorted(|count| *count)
                .into_iter()
                .map(|(gfp, requests)| GfpCount { gfp: gfp.0, names: header.gfp_text(gfp), requests })
                .collect(),
            fallbacks: self.fallbacks.sorted(|count| *count).into_iter().map(of_fallback).collect(),
            lifetimes: self.blocks.finish(),
            rates,
            hot_spots,
        }
    }
}

fn kinds(counts: &[u64; Kind::COUNT]) -> Vec<KindCount> {
    let count = |kind: &Kind| KindCount { kind: kind.name(), events: counts[kind.index()] };
    Kind::ALL.iter().map(count).collect()
}

fn of_name((name, count): (Arc<str>, OfName)) -> NameCount {
    let OfName { events, allocations, allocated_pages, freed_pages } = count;
    NameCount { name: name.to_string(), events, allocations, allocated_pages, freed_pages }
}

fn of_migratetype((migratetype, requests): (i32, u64)) -> MigratetypeCount {
    MigratetypeCount { migratetype, name: Migratetype(migratetype).name(), requests }
}

fn of_fallback((key, events): (Fallback, u64)) -> FallbackCount {
    let (order, from_order, migratetype, from_migratetype, changes_owner) = key;
    FallbackCount {
        order: order.get(),
        from_order: from_order.get(),
        migratetype: migratetype.0,
        from_migratetype: from_migratetype.0,
        changes_owner,
        events,
    }
}
