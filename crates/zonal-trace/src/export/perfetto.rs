//! A trace for Perfetto with tracks of our own, because its importer draws nothing for events of the page allocator.
//!
//! Tracks: free frames of each zone as counters, refills and drains of each CPU as slices, blocks taken from another
//! migratetype and losses as instants, and the frames allocated by threads of each name as counters. Free frames begin
//! with what `/proc/zoneinfo` said at the start; what traces do not show, such as frames isolated for compaction, is
//! missing in them.
//!
//! Source of the field numbers: `protos/perfetto/trace/` of <https://github.com/google/perfetto>. Related files:
//! `export/protobuf.rs` encodes the messages.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use zonal::units::{CpuId, Moment, Order};
use zonal_machine::output::PERFETTO_MARK;
use zonal_machine::{KernelVersion, MachineModel};

use super::Exporter;
use super::protobuf::{Field, Message};
use crate::event::{Action, Event, Migratetype};
use crate::header::Header;
use crate::runs::{Run, RunKind, Runs};
use crate::threads::Threads;
use crate::zones::Zones;

/// `Trace`.
const PACKET: Field = Field(1);
/// `TracePacket`.
const TIMESTAMP: Field = Field(8);
const SEQUENCE: Field = Field(10);
const TRACK_EVENT: Field = Field(11);
const TRACK_DESCRIPTOR: Field = Field(60);
/// `TrackDescriptor`.
const UUID: Field = Field(1);
const TRACK_NAME: Field = Field(2);
const PARENT: Field = Field(5);
const COUNTER: Field = Field(8);
/// `CounterDescriptor`.
const UNIT_NAME: Field = Field(6);
/// `TrackEvent`.
const ANNOTATION: Field = Field(4);
const TYPE: Field = Field(9);
const TRACK: Field = Field(11);
const EVENT_NAME: Field = Field(23);
const COUNTER_VALUE: Field = Field(30);
/// `DebugAnnotation`.
const NUMBER_VALUE: Field = Field(3);
const TEXT_VALUE: Field = Field(6);
const ANNOTATION_NAME: Field = Field(10);

/// Values of `TrackEvent.Type`.
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const INSTANT: u64 = 3;
const COUNTER_CHANGE: u64 = 4;

/// The number of our packet sequence, which may be anything except zero.
const OUR_SEQUENCE: u64 = 1;
/// Time between two values of a counter.
const COUNTER_EVERY_NS: u64 = 1_000_000;
/// The most names that have their own counter.
const NAMES_MAX: usize = 256;

/// A track by its number.
#[derive(Clone, Copy, Debug)]
struct Track(u64);

/// A counter and when its value was last written.
#[derive(Clone, Copy, Debug)]
struct Counter {
    track: Track,
    value: i64,
    written: Option<(Moment, i64)>,
}

/// The tracks of a CPU.
#[derive(Clone, Copy, Debug)]
struct CpuTracks {
    refills: Track,
    drains: Track,
    losses: Track,
}

/// Writes tracks.
pub(super) struct Tracks<W> {
    to: W,
    next: u64,
    header: Header,
    zones: Zones,
    runs: Runs,
    threads: Threads,
    free: Vec<Counter>,
    cpus: Vec<CpuTracks>,
    fallbacks: Track,
    by_name: Track,
    names: HashMap<Arc<str>, Counter>,
    /// Larger blocks go to free areas directly, except those of [`HUGE`].
    cached_order: u8,
    latest: Moment,
}

/// The order of a 2 MiB huge page, which pagesets have too.
const HUGE: u8 = 9;

impl<W: Write> Tracks<W> {
    pub(super) fn new(to: W, header: &Header, machine: Option<&MachineModel>) -> io::Result<Self> {
        let version: Option<KernelVersion> = header.kernel.as_ref().and_then(|kernel| kernel.parse().ok());
        let only_frames = version.is_some_and(|version| version < KernelVersion::new(5, 14));
        let zones = Zones::new(machine);
        let mut tracks = Self {
            to,
            next: 1,
            header: header.clone(),
            runs: Runs::new(header.cpus.len()),
            threads: Threads::new(header),
            free: Vec::new(),
            cpus: Vec::new(),
            fallbacks: Track(0),
            by_name: Track(0),
            names: HashMap::new(),
            cached_order: if only_frames { 0 } else { 3 },
            latest: header.started(),
            zones,
        };
        tracks.describe(machine)?;
        Ok(tracks)
    }

    /// Describes the tracks that are known at the start.
    fn describe(&mut self, machine: Option<&MachineModel>) -> io::Result<()> {
        let root = self.track(None, PERFETTO_MARK)?;
        let free = self.track(Some(root), "free frames by zone")?;
        let known = machine.zip(self.header.before.zoneinfo.as_ref());
        let at_start = known.map(|(_, text)| free_frames(text)).unwrap_or_default();
        for zone in self.zones.names().to_vec() {
            let name = format!("free frames of node {} {}", zone.node, zone.kind.name());
            let track = self.counter_track(free, &name)?;
            let key = (zone.node.get(), zone.kind.name().to_owned());
            let value = at_start.get(&key).copied().unwrap_or(0);
            self.free.push(Counter { track, value, written: None });
        }
        for cpu in self.header.cpus.clone() {
            let cpu = CpuId::new(cpu);
            let tracks = CpuTracks {
                refills: self.track(Some(root), &format!("refills of CPU {cpu}"))?,
                drains: self.track(Some(root), &format!("drains of CPU {cpu}"))?,
                losses: self.track(Some(root), &format!("lost events of CPU {cpu}"))?,
            };
            self.cpus.push(tracks);
        }
        self.fallbacks = self.track(Some(root), "blocks of another migratetype")?;
        self.by_name = self.track(Some(root), "allocated frames by name")?;
        for place in 0..self.free.len() {
            self.change(self.latest, place, 0)?;
        }
        Ok(())
    }

    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(SEQUENCE, OUR_SEQUENCE);
        self.to.write_all(Message::default().message(PACKET, &packet).encoded())
    }

    fn describe_track(&mut self, descriptor: Message) -> io::Result<Track> {
        let track = Track(self.next);
        self.next += 1;
        let descriptor = descriptor.number(UUID, track.0);
        self.packet(Message::default().message(TRACK_DESCRIPTOR, &descriptor))?;
        Ok(track)
    }

    fn track(&mut self, parent: Option<Track>, name: &str) -> io::Result<Track> {
        let descriptor = Message::default().text(TRACK_NAME, name);
        self.describe_track(match parent {
            Some(parent) => descriptor.number(PARENT, parent.0),
            None => descriptor,
        })
    }

    fn counter_track(&mut self, parent: Track, name: &str) -> io::Result<Track> {
        let counter = Message::default().text(UNIT_NAME, "frames");
        let descriptor = Message::default().text(TRACK_NAME, name).number(PARENT, parent.0);
        self.describe_track(descriptor.message(COUNTER, &counter))
    }

    fn track_event(&mut self, at: Moment, track: Track, kind: u64, event: Message) -> io::Result<()> {
        let event = event.number(TYPE, kind).number(TRACK, track.0);
        self.packet(Message::default().number(TIMESTAMP, at.ns()).message(TRACK_EVENT, &event))
    }

    /// Writes a counter's value, unless it was written shortly before.
    fn write_counter(&mut self, at: Moment, counter: &mut Counter) -> io::Result<()> {
        if counter.written.is_some_and(|(written, _)| at.ns_since(written) < COUNTER_EVERY_NS) {
            return Ok(());
        }
        counter.written = Some((at, counter.value));
        let value = Message::default().signed(COUNTER_VALUE, counter.value);
        self.track_event(at, counter.track, COUNTER_CHANGE, value)
    }

    /// Changes the free frames of a zone.
    fn change(&mut self, at: Moment, place: usize, frames: i64) -> io::Result<()> {
        let mut counter = self.free[place];
        counter.value += frames;
        self.write_counter(at, &mut counter)?;
        self.free[place] = counter;
        Ok(())
    }

    fn run(&mut self, run: &Run) -> io::Result<()> {
        let Some(place) = self.header.place(run.cpu) else { return Ok(()) };
        let (track, name) = match run.kind {
            RunKind::Refill => (self.cpus[place].refills, "refill"),
            RunKind::Drain => (self.cpus[place].drains, "drain"),
        };
        let begin = Message::default()
            .text(EVENT_NAME, name)
            .message(ANNOTATION, &number("frames", run.pages.get()))
            .message(ANNOTATION, &number("blocks", run.blocks))
            .message(ANNOTATION, &text("thread", self.threads.name(run.thread)));
        self.track_event(run.first, track, SLICE_BEGIN, begin)?;
        self.track_event(run.last, track, SLICE_END, Message::default())
    }

    /// Counts allocated frames for the name of a thread.
    fn allocated(&mut self, event: &Event, order: Order) -> io::Result<()> {
        let mut name = Arc::clone(self.threads.name(event.thread));
        if !self.names.contains_key(&name) && self.names.len() >= NAMES_MAX {
            name = "(others)".into();
        }
        let mut counter = match self.names.get(&name) {
            Some(counter) => *counter,
            None => Counter { track: self.counter_track(self.by_name, &name)?, value: 0, written: None },
        };
        counter.value += order.pages().get() as i64;
        self.write_counter(event.at, &mut counter)?;
        self.names.insert(name, counter);
        Ok(())
    }
}

impl<W: Write> Exporter for Tracks<W> {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        let Some(cpu) = self.header.place(event.cpu) else { return Ok(()) };
        self.latest = self.latest.max(event.at);
        self.threads.take(event);
        let noticed = self.runs.take(cpu, event);
        if let Some(run) = noticed.run {
            self.run(&run)?;
        }
        let frames = event.action.order().map_or(0, |order| order.pages().get() as i64);
        let zone = event.action.page().and_then(|page| self.zones.find(page));
        match &event.action {
            Action::ZoneLocked { .. } => zone.map_or(Ok(()), |zone| self.change(event.at, zone, -frames)),
            Action::Drain { .. } => zone.map_or(Ok(()), |zone| self.change(event.at, zone, frames)),
            Action::Free { order, .. } if order.get() > self.cached_order && order.get() != HUGE => {
                zone.map_or(Ok(()), |zone| self.change(event.at, zone, frames))
            }
            Action::Alloc { page: Some(_), order, .. } => self.allocated(event, *order),
            Action::Fallback { order, from_order, migratetype, from_migratetype, .. } => {
                let (wanted, taken) = (named(*migratetype), named(*from_migratetype));
                let name = format!(
                    "order {order} {wanted} from order {from_order} {taken}",
                    order = order.get(),
                    from_order = from_order.get()
                );
                let instant = Message::default().text(EVENT_NAME, &name);
                self.track_event(event.at, self.fallbacks, INSTANT, instant)
            }
            Action::Lost { events } => {
                let name = events.map_or("lost events".to_owned(), |events| format!("{events} lost events"));
                let instant = Message::default().text(EVENT_NAME, &name);
                self.track_event(event.at, self.cpus[cpu].losses, INSTANT, instant)
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        let runs: Vec<Run> = self.runs.finish().collect();
        runs.iter().try_for_each(|run| self.run(run))?;
        let mut last: Vec<Counter> = self.free.clone();
        last.extend(self.names.values());
        last.sort_by_key(|counter| counter.track.0);
        for counter in
            last.iter_mut().filter(|counter| counter.written.map(|(_, value)| value) != Some(counter.value))
        {
            counter.written = None;
            self.write_counter(self.latest, counter)?;
        }
        self.to.flush()
    }
}

fn number(name: &str, value: u64) -> Message {
    Message::default().text(ANNOTATION_NAME, name).number(NUMBER_VALUE, value)
}

fn text(name: &str, value: &str) -> Message {
    Message::default().text(ANNOTATION_NAME, name).text(TEXT_VALUE, value)
}

fn named(migratetype: Migratetype) -> String {
    migratetype.name().map_or_else(|| format!("migratetype {}", migratetype.0), str::to_owned)
}

/// Returns each zone's free frames from a text of `/proc/zoneinfo`, by node and kind.
fn free_frames(zoneinfo: &str) -> HashMap<(u16, String), i64> {
    let mut found = HashMap::new();
    let mut zone = None;
    for line in zoneinfo.lines() {
        if let Some(rest) = line.strip_prefix("Node ") {
            let named = rest.split_once(", zone");
            zone = named.and_then(|(node, name)| Some((node.parse().ok()?, name.trim().to_owned())));
        } else if let Some(frames) = line.trim().strip_prefix("pages free ")
            && let (Some(zone), Ok(frames)) = (zone.take(), frames.trim().parse())
        {
            found.insert(zone, frames);
        }
    }
    found
}
