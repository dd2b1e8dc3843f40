//! Generates the machine and the configuration of a round from a seed.
//!
//! Nodes may lack CPUs or memory, and their ids may have gaps. Their sizes range from a few MiB, where single frames
//! matter, to a GiB, where pagesets work with whole batches.
//!
//! Related files: `worker.rs` has the programs.

use fastrand::Rng;
use zonal::Config;
use zonal::config::{InvalidFree, NodeReclaim, OwnedBlocks, ZonelistCache};
use zonal::rules::fallback_order::{CpuPenalty, NodeLoad};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use zonal_history::{FirstPosting, PAST};
use zonal_lab::sim::{Hardware, SimulatedMachine};
use zonal_machine::{MachineModel, NodeModel, Presence, Settings, ZoneModel};

/// Possible sizes of a node, in frames.
const SIZES: [u64; 5] = [1500, 6000, 20_000, 70_000, 300_000];
/// Possible distances between two nodes.
const DISTANCES: [u8; 6] = [11, 12, 16, 20, 21, 32];

/// The machine, the configuration and the amount of work for one round.
pub(super) struct Round {
    pub(super) machine: SimulatedMachine,
    pub(super) config: Config,
    /// Phases of the round.
    pub(super) phases: usize,
    /// Steps of each thread in a phase.
    pub(super) steps: u32,
    /// Average demand of all programs together, as a share of all memory.
    pub(super) demand: f64,
}

impl Round {
    pub(super) fn new(seed: u64) -> Self {
        let random = &mut Rng::with_seed(seed);
        let model = model(random);
        let managed = model.zones.iter().map(|zone| zone.managed.get()).sum();
        Self {
            machine: SimulatedMachine { model, hardware: Hardware::default() },
            config: config(random, managed),
            phases: 6,
            steps: 250,
            demand: 0.2 + 1.1 * random.f64(),
        }
    }
}

/// Returns a random element of `choices`.
pub(crate) fn one_of<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

fn model(random: &mut Rng) -> MachineModel {
    let count = random.usize(2..=5);
    let (mut id, mut cpu, mut frame) = (0, 0, random.u64(1..100_000));
    let (mut nodes, mut zones) = (Vec::new(), Vec::new());
    let rows = distances(random, count);
    for (place, distances) in rows.into_iter().enumerate() {
        id += if place > 0 { random.u16(1..=2) } else { 0 };
        let node = NodeId::new(id).expect("few nodes");
        // The first node has both CPUs and memory, so every machine has some of each.
        let has_cpus = place == 0 || random.u8(..6) != 0;
        let has_memory = place == 0 || random.u8(..8) != 0;
        let cpus = if has_cpus { random.u32(1..=3) } else { 0 };
        let ids = (cpu..cpu + cpus).map(CpuId::new).collect();
        nodes.push(NodeModel { id: node, presence: Presence::Online, cpus: ids, distances });
        cpu += cpus + random.u32(0..=1);
        if has_memory {
            frame = add_zones(random, node, frame, &mut zones);
        }
    }
    let settings = Settings::default();
    MachineModel { name: "stress".to_owned(), page_bytes: 4096, nodes, zones, settings, observed: None }
}

fn distances(random: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let mut rows = vec![vec![10; count]; count];
    let pairs = (0..count).flat_map(|from| (from + 1..count).map(move |to| (from, to)));
    for (from, to) in pairs {
        rows[from][to] = one_of(random, &DISTANCES);
        let symmetric = random.u8(..8) != 0;
        rows[to][from] = if symmetric { rows[from][to] } else { one_of(random, &DISTANCES) };
    }
    rows
}

/// Adds the zones of a node, starting at `frame`. Returns the frame where the next node starts.
fn add_zones(random: &mut Rng, node: NodeId, mut frame: u64, zones: &mut Vec<ZoneModel>) -> u64 {
    let size = one_of(random, &SIZES);
    let kinds: &[ZoneKind] = match random.u8(..4) {
        0 => &[ZoneKind::Dma32, ZoneKind::Normal],
        1 => &[ZoneKind::Normal, ZoneKind::Movable],
        _ => &[ZoneKind::Normal],
    };
    for &kind in kinds {
        let spanned = size / kinds.len() as u64 + random.u64(..1000);
        let managed = spanned - random.u64(..spanned / 32);
        let [spanned, managed] = [spanned, managed].map(PageCount::new);
        zones.push(ZoneModel { node, kind, start: Pfn::new(frame), spanned, present: spanned, managed });
        frame += spanned.get();
    }
    frame + random.u64(..5000)
}

fn config(random: &mut Rng, managed: u64) -> Config {
    let watermarks = watermarks(random, managed);
    let threshold = match random.u8(..3) {
        0 => ThresholdRule::Fixed(random.u8(1..=125)),
        1 => FirstPosting::RULE,
        _ => ThresholdRule::Scaled,
    };
    let counters = CounterRules {
        threshold,
        fold: one_of(random, &[FoldRule::Overstep, FoldRule::Overstep, FoldRule::ToZero]),
        totals: one_of(random, &[TotalsRule::PerNode, TotalsRule::AndMachine]),
        pressure: one_of(random, &[PressureRule::Lowered, PressureRule::Unchanged]),
    };
    Config {
        free_area_min: PageCount::new(one_of(random, &[1, 1 << 14, 1 << 30])),
        watermarks,
        node_load: one_of(random, &[NodeLoad::Accumulate, NodeLoad::AccumulateRemaining]),
        cpu_penalty: one_of(random, &[CpuPenalty::On, CpuPenalty::Off]),
        tuning: tuning(random),
        high_fraction: high_fraction(random),
        counters,
        zonelist_cache: zonelist_cache(random),
        node_reclaim: one_of(random, &[NodeReclaim::OFF, NodeReclaim::ON]),
        invalid_free: one_of(random, &[InvalidFree::Checked, InvalidFree::Exact]),
        owned_blocks: one_of(random, &[OwnedBlocks::Off, OwnedBlocks::On]),
        past: PAST,
        ..Config::default()
    }
}

pub(super) fn tuning(random: &mut Rng) -> PagesetTuning {
    one_of(
        random,
        &[PagesetTuning::Depth, PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed],
    )
}

pub(super) fn high_fraction(random: &mut Rng) -> u32 {
    one_of(random, &[0, 0, 8, 100])
}

pub(crate) fn zonelist_cache(random: &mut Rng) -> ZonelistCache {
    use ZonelistCache::{CacheFirst, Jackson2006, Off, On, Original, Published};
    one_of(random, &[On, On, Published, Published, CacheFirst, Original, Jackson2006, Off])
}

/// Returns random watermark settings for a machine with `managed` frames.
pub(super) fn watermarks(random: &mut Rng, managed: u64) -> WatermarkSettings {
    WatermarkSettings {
        min_free: (random.u8(..4) != 0).then(|| PageCount::new(managed / random.u64(20..200))),
        scale_factor: one_of(random, &[10, 50, 200]),
        ..WatermarkSettings::default()
    }
}
