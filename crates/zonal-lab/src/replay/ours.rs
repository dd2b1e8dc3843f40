//! Runs a trace on the allocator of this project, on a simulated machine.
//!
//! A thread on every CPU repeats what the CPU did, at the moments of the trace. The machine is filled before: its zones
//! have as few free frames as the recorded zones had, and where the trace frees an older frame, one such frame is freed.
//!
//! Related files: `held.rs` has the frames of programs, `script.rs` hands the events to the threads.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use zonal::config::ZonelistCache;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::settings::NamedRule;
use zonal::units::{Order, PageCount, PageKind};
use zonal::{NodeMask, Request};
use zonal_machine::MachineModel;
use zonal_machine::state::Sample;
use zonal_trace::{Action, Event, TraceReader};

use super::ReplayError;
use super::held::{Held, Spread};
use super::script::{self, Script};
use super::start;
use crate::sim::{Hardware, Role, SimulatedMachine, Simulation, Threads, Time};
use crate::system::System;

/// The time between two samples of the pagesets: 50 ms.
const SAMPLE_STEP: Time = Time::from_ps(50_000_000_000);

/// What to replay on.
#[derive(Clone, Debug)]
pub struct OwnOptions<'a> {
    /// The rules that adjust pagesets, one run each.
    pub tunings: &'a [PagesetTuning],
    /// The cache of full zones.
    pub zonelist_cache: ZonelistCache,
    /// The machine; `None` for that of the trace.
    pub machine: Option<&'a MachineModel>,
    /// What is in use on the machine before; `None` for as much as when the trace was recorded.
    pub before: Option<&'a Sample>,
    /// The seed. Runs with the same seed are identical.
    pub seed: u64,
}

/// What a run did.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct OwnRow {
    /// The rule that adjusted pagesets.
    pub tuning: String,
    /// Requests that were served.
    pub served: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Refills of pagesets.
    pub refills: u64,
    /// Drains of pagesets.
    pub drains: u64,
    /// How often a CPU waited for a lock of the allocator.
    pub lock_waits: u64,
    /// How long CPUs waited for locks, in milliseconds.
    pub lock_wait_ms: f64,
    /// Most frames in pagesets, of regular samples.
    pub pageset_frames_most: u64,
    /// Frames in pagesets at the end.
    pub pageset_frames_end: u64,
    /// Requests that got memory of the node that they preferred.
    pub hit: u64,
    /// Requests that got memory of another node.
    pub miss: u64,
    /// Free 2 MiB blocks before the trace.
    pub free_huge_start: u64,
    /// Free 2 MiB blocks at the end, as they are.
    pub free_huge_end: u64,
    /// Free 2 MiB blocks at the end, once the pagesets are drained.
    pub free_huge_drained: u64,
}

/// The runs of a trace.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct OwnReplay {
    /// The machine's name.
    pub machine: String,
    /// The recorded kernel, if known.
    pub kernel: Option<String>,
    /// The seed.
    pub seed: u64,
    /// The trace's length, in seconds.
    pub seconds: f64,
    /// Events that were read.
    pub events: u64,
    /// Events that are missing in the trace.
    pub lost: u64,
    /// Whether each CPU repeats what the CPU with its id did. Otherwise, the nth recorded CPU is the machine's nth.
    pub has_recorded_cpus: bool,
    /// Whether the trace is whole.
    pub is_complete: bool,
    /// Frames allocated before the trace.
    pub filled: u64,
    /// Frees of frames that nothing held, which were left out.
    pub unknown_frees: u64,
    /// A row for each rule.
    pub rows: Vec<OwnRow>,
}

/// A trace and the machine on which it runs.
#[derive(Debug)]
pub struct OwnTrace<'a> {
    file: &'a Path,
    model: MachineModel,
    kernel: Option<String>,
    spread: Spread,
    before: Option<&'a Sample>,
    /// Whether the machine has all of the recorded CPUs.
    pub(crate) has_recorded_cpus: bool,
}

/// A run with what does not depend on the configuration.
pub(crate) struct Run {
    pub(crate) row: OwnRow,
    /// Time in the allocator, by operation in nanoseconds.
    pub(crate) operation_ns: f64,
    /// Full bits that were set.
    pub(crate) marks: u64,
    filled: u64,
    unknown_frees: u64,
    /// The length of what was replayed, in seconds.
    pub(crate) seconds: f64,
    is_complete: bool,
    /// Events that were read.
    pub(crate) events: u64,
    lost: u64,
}

impl<'a> OwnTrace<'a> {
    /// Opens a trace, to run it on `machine` and from what is in use there in the state `before`; by default on its own
    /// machine, as full as it was.
    ///
    /// # Errors
    /// [`ReplayError`] if the trace cannot be read or has no machine.
    pub fn open(
        file: &'a Path,
        machine: Option<&MachineModel>,
        before: Option<&'a Sample>,
    ) -> Result<Self, ReplayError> {
        let origin = file.display().to_string();
        let header = TraceReader::open(file)?.header().clone();
        let recorded = header.machine(&origin)?;
        let spread = match &header.before.zoneinfo {
            Some(text) => {
                let zones = start::parse(text)
                    .map_err(|problem| ReplayError::Zoneinfo { origin: origin.clone(), problem })?;
                if machine.is_none() { Spread::by_zone(&zones) } else { Spread::evenly(&zones) }
            }
            None => Spread::default(),
        };
        let model = machine.cloned().or(recorded).ok_or(ReplayError::NoMachine { origin })?;
        let has_recorded_cpus = script::has_all(&model, &header.cpus);
        Ok(Self { file, model, kernel: header.kernel, spread, before, has_recorded_cpus })
    }

    /// Returns the machine.
    #[must_use]
    pub fn model(&self) -> &MachineModel {
        &self.model
    }

    /// Runs about `most` events of the trace.
    pub(crate) fn run(
        &self,
        hardware: &Hardware,
        config: &zonal::Config,
        seed: u64,
        most: u64,
        stop: &AtomicBool,
        progress: &impl Fn(u64),
    ) -> Result<Run, ReplayError> {
        let machine = SimulatedMachine { model: self.model.clone(), hardware: hardware.clone() };
        let script =
            Script::new(TraceReader::open(self.file)?, self.file.display().to_string(), &self.model, most);
        let filling = self.before.map_or(Filling::Spread(&self.spread), Filling::State);
        let run = machine.simulate(config, seed, |sim| run(sim, &script, filling, stop, progress))?;
        let run = run?;
        if let Some(error) = script.take_error() {
            return Err(error);
        }
        Ok(Run {
            seconds: script.seconds(),
            is_complete: script.is_complete(),
            events: script.events(),
            lost: script.lost(),
            ..run
        })
    }
}

/// Runs a trace on the allocator once for each rule. `progress` gets the bytes read, of the file's size for each rule.
///
/// # Errors
/// [`ReplayError`] if the trace cannot be read or has no machine, if the machine cannot be simulated, and if `stop`
/// becomes true.
pub fn replay_ours(
    file: &Path,
    options: &OwnOptions<'_>,
    stop: &AtomicBool,
    progress: impl Fn(u64),
) -> Result<OwnReplay, ReplayError> {
    let trace = OwnTrace::open(file, options.machine, options.before)?;
    let mut replay = OwnReplay {
        machine: trace.model.name.clone(),
        kernel: trace.kernel.clone(),
        seed: options.seed,
        seconds: 0.0,
        events: 0,
        lost: 0,
        has_recorded_cpus: trace.has_recorded_cpus,
        is_complete: true,
        filled: 0,
        unknown_frees: 0,
        rows: Vec::new(),
    };
    for tuning in options.tunings {
        let config =
            zonal::Config { tuning: *tuning, zonelist_cache: options.zonelist_cache, ..trace.model.config() };
        let before = file.metadata().map_or(0, |about| about.len()) * replay.rows.len() as u64;
        let watch = |bytes: u64| progress(before.saturating_add(bytes));
        let run = trace.run(&Hardware::default(), &config, options.seed, u64::MAX, stop, &watch)?;
        replay.seconds = run.seconds;
        replay.is_complete = run.is_complete;
        (replay.events, replay.lost) = (run.events, run.lost);
        (replay.filled, replay.unknown_frees) = (run.filled, run.unknown_frees);
        replay.rows.push(OwnRow { tuning: tuning.name().to_owned(), ..run.row });
    }
    Ok(replay)
}

/// What is allocated before a trace.
#[derive(Clone, Copy)]
enum Filling<'a> {
    Spread(&'a Spread),
    State(&'a Sample),
}

/// What the threads share.
struct Shared<'a, 's, 'm, R> {
    system: &'a System<'s, 'm>,
    script: &'a Script<R>,
    held: RefCell<Held>,
    served: Cell<u64>,
    failed: Cell<u64>,
}

fn run<R: std::io::Read>(
    sim: &Simulation<'_, '_>,
    script: &Script<R>,
    filling: Filling<'_>,
    stop: &AtomicBool,
    progress: &impl Fn(u64),
) -> Result<Run, ReplayError> {
    let system = System::new(sim);
    let mut held = Held::new(sim.world.seed());
    let filled = match filling {
        Filling::Spread(spread) => fill(&system, spread, &mut held),
        Filling::State(state) => {
            let blocks = system.occupy(state, huge_order(sim));
            blocks.into_iter().map(|block| held.keep(block)).sum()
        }
    };
    let begun = system.operations();
    let before = sim.allocator.events();
    let locality = sim.allocator.locality();
    let free_huge_start = free_huge(sim);
    let shared = Shared {
        system: &system,
        script,
        held: RefCell::new(held),
        served: Cell::new(0),
        failed: Cell::new(0),
    };
    let most = Cell::new(0);
    let mut threads = Threads::new();
    for (place, cpu) in script.cpus().iter().enumerate() {
        let shared = &shared;
        threads.add(*cpu, Role::Foreground, Time::ZERO, move || follow(shared, place))?;
    }
    let first = script.cpus().first().copied().unwrap_or_default();
    let watched = &most;
    threads.add(first, Role::Background, Time::ZERO, move || {
        loop {
            let now = sim.world.now();
            let frames = sim.world.free_of_charge(|| pageset_frames(sim));
            watched.set(watched.get().max(frames));
            progress(script.bytes());
            sim.world.sleep_until(now + SAMPLE_STEP);
        }
    })?;
    sim.world.run(threads, stop)?;
    let after = sim.allocator.events();
    let here = sim.allocator.locality();
    let waits: Vec<_> = sim.causes().into_iter().filter(|cause| cause.kind == "lock").collect();
    let pageset_frames_end = pageset_frames(sim);
    let free_huge_end = free_huge(sim);
    sim.world.free_of_charge(|| sim.allocator.drain_pagesets());
    let row = OwnRow {
        tuning: String::new(),
        served: shared.served.get(),
        failed: shared.failed.get(),
        refills: after.refills - before.refills,
        drains: after.drains + after.remote_drains - before.drains - before.remote_drains,
        lock_waits: waits.iter().map(|cause| cause.waits).sum(),
        lock_wait_ms: waits.iter().map(|cause| cause.seconds).fold(0.0, |sum, seconds| sum + seconds) * 1e3,
        pageset_frames_most: most.get().max(pageset_frames_end),
        pageset_frames_end,
        hit: here.hit - locality.hit,
        miss: here.miss - locality.miss,
        free_huge_start,
        free_huge_end,
        free_huge_drained: free_huge(sim),
    };
    let unknown_frees = shared.held.borrow().unknown();
    let operation_ns = system.spent().seconds() * 1e9 / (system.operations() - begun).max(1) as f64;
    let (filled, is_complete) = (filled.get(), true);
    let marks = after.marks - before.marks;
    Ok(Run { row, operation_ns, marks, filled, unknown_frees, seconds: 0.0, is_complete, events: 0, lost: 0 })
}

/// Repeats what a CPU did, on its thread.
fn follow<R: std::io::Read>(shared: &Shared<'_, '_, '_, R>, place: usize) {
    let world = shared.system.sim.world;
    loop {
        match shared.script.next(place) {
            None => return,
            Some(Err(until)) => world.sleep_until(until),
            Some(Ok((at, event))) => {
                world.sleep_until(at);
                repeat(shared, &event);
                shared.system.checkpoint();
            }
        }
    }
}

fn repeat<R>(shared: &Shared<'_, '_, '_, R>, event: &Event) {
    let system = shared.system;
    match event.action {
        Action::Alloc { page: Some(page), order, migratetype, .. } => {
            // The kernel's own data is mostly unmovable, and programs' memory movable.
            let kind = if migratetype.0 == 1 { PageKind::User } else { PageKind::Kernel };
            match system.alloc(&Request::new(order).kind(kind).no_wait()) {
                Ok(block) => {
                    shared.served.set(shared.served.get() + 1);
                    let early = shared.held.borrow_mut().took(page, order, block);
                    if let Some(block) = early {
                        system.free(&block);
                    }
                }
                Err(_) => {
                    shared.failed.set(shared.failed.get() + 1);
                    shared.held.borrow_mut().refused(page);
                }
            }
        }
        Action::Free { page, order } => {
            let blocks = Held::gave(&shared.held, system, page, order);
            blocks.iter().for_each(|block| system.free(block));
        }
        _ => {}
    }
}

/// Allocates what was allocated before the trace.
fn fill(system: &System<'_, '_>, spread: &Spread, held: &mut Held) -> PageCount {
    let sim = system.sim;
    let huge = huge_order(sim);
    let mut filled = PageCount::ZERO;
    sim.world.free_of_charge(|| {
        for zone in &sim.machine.model.zones {
            let wanted = spread.used(zone);
            let mut left = wanted;
            let mut nodes = NodeMask::EMPTY;
            nodes.insert(zone.node);
            for order in [huge, Order::PAGE] {
                let request = Request::new(order).zone_limit(zone.kind).allowed(&nodes).no_wait();
                while left >= order.pages() {
                    let Ok(block) = system.alloc(&request) else { break };
                    left = left.saturating_minus(order.pages());
                    held.keep(block);
                }
            }
            filled = filled.plus(wanted.saturating_minus(left));
        }
    });
    filled
}

fn huge_order(sim: &Simulation<'_, '_>) -> Order {
    let frames = (2 << 20) / u64::from(sim.machine.model.page_bytes).max(1);
    Order::holding(PageCount::new(frames)).unwrap_or_default()
}

fn pageset_frames(sim: &Simulation<'_, '_>) -> u64 {
    sim.allocator.pagesets().map(|pageset| pageset.count.get()).sum()
}

/// Returns the number of free 2 MiB blocks, also inside larger ones.
fn free_huge(sim: &Simulation<'_, '_>) -> u64 {
    let huge = usize::from(huge_order(sim).get());
    let of_zone = |zone: zonal::snapshot::ZoneSnapshot| -> u64 {
        zone.free_blocks.iter().enumerate().skip(huge).map(|(order, blocks)| blocks << (order - huge)).sum()
    };
    sim.allocator.zones().map(of_zone).sum()
}
