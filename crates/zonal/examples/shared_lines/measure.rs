//! Runs one workload on one machine and adds up the counts.
//!
//! CPUs take turns of one to four steps. The measured part follows several periods of tuning, so that pagesets have
//! reached their depth. The clock does not advance during the measured part, because work that is done once a second
//! would distort a few milliseconds. Related files: `work.rs` has the workloads, `coherence.rs` the caches, and
//! `report.rs` the tables.

use std::collections::BTreeMap;
use std::error::Error;
use std::panic::Location;

use fastrand::Rng;
use serde::Serialize;
use zonal::layout::Place;
use zonal::units::PageCount;
use zonal::{Allocator, Config};

use crate::coherence::{Area, Caches, Counts, HoldCounts, Line, Use, with_caches};
use crate::work::{Worker, Workload, fill_node, workers};
use crate::world::{Shape, Virtual, with_world};

/// Maximum number of steps that a CPU takes before it is the next CPU's turn.
const TURN_MAX: usize = 4;
/// Time between two ticks, which is a little more than a period of tuning.
const TICK_NS: u64 = 1_100_000_000;
/// Number of lines that are reported.
const HOT_LINES: usize = 6;
/// Number of places in the code that are reported for a line.
const SITES: usize = 2;

/// The amount of work.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Minimum frame count of a node.
    pub(crate) node_frames: u64,
    /// Minimum number of frames for each CPU.
    pub(crate) cpu_frames: u64,
    /// Steps of each CPU in the measured part, at least one cycle of the work.
    pub(crate) steps: usize,
    /// Periods of tuning before the measured part.
    pub(crate) periods: usize,
}

impl Size {
    pub(crate) const FULL: Self =
        Self { node_frames: 1 << 19, cpu_frames: 1 << 14, steps: 1 << 14, periods: 3 };
    pub(crate) const SHORT: Self =
        Self { node_frames: 1 << 15, cpu_frames: 1 << 12, steps: 1 << 11, periods: 1 };
}

/// Counts for 1000 pairs of an allocation and a free.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Rates {
    /// Accesses to cells.
    pub(crate) accesses: f64,
    /// Accesses to lines that another CPU has written since this CPU last accessed them.
    pub(crate) transfers: f64,
    /// Transfers from a CPU of another node.
    pub(crate) far_transfers: f64,
    /// Writes to lines of which another CPU has a copy.
    pub(crate) invalidations: f64,
    /// Read-modify-writes among transfers and invalidations.
    pub(crate) shared_updates: f64,
}

/// The counts of one structure.
#[derive(Clone, Serialize)]
pub(crate) struct StructureRates {
    pub(crate) structure: String,
    #[serde(flatten)]
    pub(crate) rates: Rates,
}

/// The locks of one structure.
#[derive(Clone, Serialize)]
pub(crate) struct LockRates {
    pub(crate) structure: String,
    /// Acquisitions for 1000 pairs.
    pub(crate) acquisitions: f64,
    /// Accesses to cells per hold, on average.
    pub(crate) accesses_per_hold: f64,
    /// Transfers per hold, on average.
    pub(crate) transfers_per_hold: f64,
    /// Accesses to cells in the longest hold.
    pub(crate) longest_hold: u64,
}

/// A line that is shared often.
#[derive(Clone, Serialize)]
pub(crate) struct HotLine {
    pub(crate) structure: String,
    /// Buffer, and offset in it in bytes.
    pub(crate) place: String,
    pub(crate) transfers: f64,
    pub(crate) invalidations: f64,
    pub(crate) writers: u32,
    pub(crate) users: u32,
    /// Places in the code that write the line, most frequent first.
    pub(crate) written_at: Vec<String>,
    /// Places in the code that only read the line.
    pub(crate) read_at: Vec<String>,
}

/// The counts of a run.
#[derive(Clone, Serialize)]
pub(crate) struct Outcome {
    pub(crate) nodes: u16,
    pub(crate) cpus_per_node: u16,
    pub(crate) workload: Workload,
    pub(crate) pairs: u64,
    #[serde(flatten)]
    pub(crate) rates: Rates,
    pub(crate) structures: Vec<StructureRates>,
    pub(crate) locks: Vec<LockRates>,
    pub(crate) hot_lines: Vec<HotLine>,
}

/// Runs `workload` on a machine of `shape`.
pub(crate) fn measure(
    shape: Shape,
    workload: Workload,
    size: &Size,
    config: &Config,
    seed: u64,
) -> Result<Outcome, Box<dyn Error>> {
    let cpus = u64::from(shape.cpus);
    let frames = size.node_frames.max(size.cpu_frames * cpus);
    let workers = workers(workload, shape.all_cpus(), frames / cpus, seed);
    with_world(shape, PageCount::new(frames), config, |allocator| {
        let mut run = Run { allocator, workers, random: Rng::with_seed(seed) };
        if workload == Workload::Elsewhere {
            run.fill_all_but_last_node(shape);
        }
        run.turns(run.workers[0].start());
        let steps = size.steps.max(run.workers[0].cycle());
        for _ in 0..size.periods {
            allocator.platform().advance(TICK_NS);
            allocator.tick();
            run.turns(steps);
        }
        with_caches(Caches::start_measuring);
        let blocks = run.turns(steps);
        with_caches(Caches::stop_measuring);
        run.workers.iter_mut().for_each(|worker| worker.finish(allocator));
        allocator.verify()?;
        Ok(with_caches(|caches| Tally { caches, allocator, pairs: blocks / 2 }.outcome(shape, workload)))
    })?
}

struct Run<'a, 'm> {
    allocator: &'a Allocator<'m, Virtual>,
    workers: Vec<Worker>,
    random: Rng,
}

impl Run<'_, '_> {
    fn fill_all_but_last_node(&self, shape: Shape) {
        for node in 0..shape.nodes - 1 {
            with_caches(|caches| caches.run_on((node * shape.cpus).into()));
            fill_node(self.allocator);
        }
    }

    /// Runs `steps` steps of each CPU, in turns. Returns the number of allocations and frees.
    fn turns(&mut self, steps: usize) -> u64 {
        let (mut blocks, mut left) = (0, vec![steps; self.workers.len()]);
        while left.iter().any(|&left| left > 0) {
            for (cpu, (worker, left)) in self.workers.iter_mut().zip(&mut left).enumerate() {
                with_caches(|caches| caches.run_on(cpu));
                let turn = self.random.usize(1..=TURN_MAX).min(*left);
                *left -= turn;
                blocks += (0..turn).map(|_| worker.step(self.allocator)).sum::<u64>();
            }
        }
        blocks
    }
}

/// The caches after a run of `pairs` pairs.
struct Tally<'a, 'm> {
    caches: &'a Caches,
    allocator: &'a Allocator<'m, Virtual>,
    pairs: u64,
}

impl Tally<'_, '_> {
    fn outcome(&self, shape: Shape, workload: Workload) -> Outcome {
        let mut total = Counts::default();
        let mut structures: BTreeMap<String, Counts> = BTreeMap::new();
        let lines = self.caches.areas.iter().flat_map(Area::lines);
        for (address, line) in lines.filter(|(_, line)| line.counts.accesses > 0) {
            total.add(&line.counts);
            structures.entry(self.structure(address)).or_default().add(&line.counts);
        }
        let of = |(structure, counts)| StructureRates { structure, rates: self.rates(&counts) };
        Outcome {
            nodes: shape.nodes,
            cpus_per_node: shape.cpus,
            workload,
            pairs: self.pairs,
            rates: self.rates(&total),
            structures: structures.into_iter().map(of).collect(),
            locks: self.locks(),
            hot_lines: self.hot_lines(),
        }
    }

    /// Returns the name of the structure that contains the line at `address`.
    fn structure(&self, address: usize) -> String {
        let part = self.allocator.part_at(address);
        part.map_or("unused", |part| part.name()).to_owned()
    }

    fn per_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.pairs.max(1) as f64
    }

    fn rates(&self, counts: &Counts) -> Rates {
        Rates {
            accesses: self.per_thousand(counts.accesses),
            transfers: self.per_thousand(counts.transfers),
            far_transfers: self.per_thousand(counts.far_transfers),
            invalidations: self.per_thousand(counts.invalidations),
            shared_updates: self.per_thousand(counts.shared_updates),
        }
    }

    fn locks(&self) -> Vec<LockRates> {
        let mut locks: BTreeMap<String, HoldCounts> = BTreeMap::new();
        for (&address, counts) in &self.caches.hold_counts {
            locks.entry(self.structure(address)).or_default().add(counts);
        }
        let of = |(structure, counts): (String, HoldCounts)| LockRates {
            structure,
            acquisitions: self.per_thousand(counts.taken),
            accesses_per_hold: counts.accesses as f64 / counts.taken as f64,
            transfers_per_hold: counts.transfers as f64 / counts.taken as f64,
            longest_hold: counts.longest,
        };
        locks.into_iter().map(of).collect()
    }

    /// Returns the lines with the most transfers and invalidations.
    fn hot_lines(&self) -> Vec<HotLine> {
        let all = self.caches.areas.iter().flat_map(|area| area.lines().map(move |line| (area, line)));
        let mut all: Vec<_> = all.filter(|(_, (_, line))| line.heat() > 0).collect();
        all.sort_by_key(|(_, (_, line))| std::cmp::Reverse(line.heat()));
        let hot = |&(area, (address, line)): &(&Area, (usize, &Line))| HotLine {
            structure: self.structure(address),
            place: format!("{} + {:#x}", place_name(area.place), address - area.address()),
            transfers: self.per_thousand(line.counts.transfers),
            invalidations: self.per_thousand(line.counts.invalidations),
            writers: line.writers.count_ones(),
            users: line.users.count_ones(),
            written_at: self.sites(line, |used| used.writes),
            read_at: self.sites(line, |used| if used.writes == 0 { used.reads } else { 0 }),
        };
        all.iter().take(HOT_LINES).map(hot).collect()
    }

    /// Returns the places in the code for which `count` is not zero, most frequent first.
    fn sites(&self, line: &Line, count: impl Fn(&Use) -> u64) -> Vec<String> {
        let mut uses: Vec<&Use> = line.uses.iter().filter(|used| count(used) > 0).collect();
        uses.sort_by_key(|used| std::cmp::Reverse(count(used)));
        uses.iter().take(SITES).map(|used| place_in_code(self.caches.sites.get(used.site))).collect()
    }
}

/// Returns a site as `file:line` within the core.
fn place_in_code(site: &Location<'_>) -> String {
    let path = site.file();
    format!("{}:{}", path.rsplit_once("src/").map_or(path, |(_, file)| file), site.line())
}

fn place_name(place: Place) -> String {
    match place {
        Place::Shared => "shared".to_owned(),
        Place::Node(node) => format!("node {}", node.get()),
        Place::Local => "local".to_owned(),
    }
}
