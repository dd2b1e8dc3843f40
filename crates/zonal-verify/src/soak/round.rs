//! Builds pools with random settings, each from a seed.

use std::fmt;

use fastrand::Rng;
use zonal::Config;
use zonal::config::{Hardening, InvalidFree, NodeReclaim, OwnedBlocks, ZeroOn};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{CpuId, Order, PageCount};
use zonal_linux::{Pool, PoolError, Topology};

use crate::stress::round::{one_of, zonelist_cache};

/// Sizes of pools, in MiB.
const MIB: [u64; 4] = [16, 32, 64, 128];

/// A pool, with the number of its threads and their CPUs.
pub(super) struct Round {
    pub(super) pool: Pool,
    pub(super) config: Config,
    pub(super) threads: usize,
    /// Emulated CPUs. The list is empty if the pool has the host's CPUs.
    pub(super) cpus: Vec<CpuId>,
    /// Whether the pool shrinks and grows; no single ranges go offline then.
    pub(super) resizes: bool,
    /// Whether the pool's memory is in files that are mapped twice.
    pub(super) is_shared: bool,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.pool.memory_nodes().iter().count();
        let frames = self.pool.frames().get();
        let how = if self.pool.uses_sequences() { "restartable sequences" } else { "locks" };
        write!(
            f,
            "{frames} frames on {nodes} nodes, {} threads, {how}, {:?} {:?}{}{}",
            self.threads,
            self.config.tuning,
            self.config.invalid_free,
            if self.resizes { ", resized" } else { "" },
            if self.is_shared { ", shared memory" } else { "" }
        )
    }
}

impl Round {
    pub(super) fn new(seed: u64) -> Result<Self, PoolError> {
        let mut random = Rng::with_seed(seed);
        let config = config(&mut random);
        let mut builder = Pool::builder().size(MIB[random.usize(..MIB.len())] << 20).config(config);
        // With the host's CPUs, pools of several nodes use restartable sequences, as on a machine with such nodes. With
        // emulated CPUs, they use locks, and threads act as CPUs of all nodes.
        let mut of_cpus = Rng::with_seed(seed ^ 0xc9);
        if random.bool() {
            let topology = Topology::fake(random.usize(1..=4))?;
            let are_real = of_cpus.bool();
            builder = builder.topology(if are_real { topology } else { topology.with_emulated_cpus() });
        }
        if random.u8(..3) == 0 {
            builder = builder.without_sequences();
        }
        let mut of_memory = Rng::with_seed(seed ^ 0x3e3_0e7);
        let (resizes, is_shared) = (of_memory.bool(), of_memory.u8(..3) == 0);
        if is_shared {
            builder = builder.shared_memory();
        }
        let pool = builder.build()?;
        let nodes = pool.topology().nodes();
        let cpus: Vec<CpuId> = nodes.iter().flat_map(|node| node.cpus.iter().copied()).collect();
        let cpus = if pool.topology().has_emulated_cpus() { cpus } else { Vec::new() };
        Ok(Self { threads: random.usize(2..=6), pool, config, cpus, resizes, is_shared })
    }
}

fn config(random: &mut Rng) -> Config {
    let poison = (random.u8(..6) == 0).then_some(0xdead_beef_dead_beef);
    let zero = if random.u8(..6) == 0 { ZeroOn::EveryAllocation } else { ZeroOn::Request };
    let quarantine = PageCount::new(if random.u8(..4) == 0 { random.u64(1..200) } else { 0 });
    Config {
        tuning: one_of(random, &[PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed]),
        invalid_free: one_of(random, &[InvalidFree::Checked, InvalidFree::Exact]),
        max_order: one_of(random, &[Order::DEFAULT_MAX, Order::new(12).unwrap_or(Order::DEFAULT_MAX)]),
        zonelist_cache: zonelist_cache(random),
        node_reclaim: one_of(random, &[NodeReclaim::OFF, NodeReclaim::ON]),
        free_area_min: PageCount::new(one_of(random, &[0, 1 << 14])),
        counters: CounterRules {
            threshold: one_of(random, &[ThresholdRule::Scaled, ThresholdRule::Fixed(1)]),
            fold: one_of(random, &[FoldRule::Overstep, FoldRule::ToZero]),
            totals: one_of(random, &[TotalsRule::PerNode, TotalsRule::AndMachine]),
            pressure: one_of(random, &[PressureRule::Lowered, PressureRule::Unchanged]),
        },
        hardening: Hardening { poison, zero, quarantine },
        owned_blocks: one_of(random, &[OwnedBlocks::Off, OwnedBlocks::On]),
        past: zonal_history::PAST,
        ..Config::default()
    }
}
