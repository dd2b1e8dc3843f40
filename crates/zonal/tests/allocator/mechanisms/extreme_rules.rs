//! Tests of rule objects that return extreme values, and of a scan that takes its steps in any order. The allocator stays
//! right, whatever they return.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{all_free, order};
use crate::common::{Plan, Random, World, run_on};
use zonal::config::{NodeReclaim, Past, ZonelistCache};
use zonal::rules::fallback_order::{LoadRule, NodeLoad};
use zonal::rules::pageset_tuning::{PagesetTuning, TuningForm};
use zonal::rules::stat_threshold::{CounterRules, FoldRule, ThresholdForm, ThresholdRule};
use zonal::rules::zonelist_cache::{ScanForm, ZonelistScan};
use zonal::units::{CpuId, PageCount};
use zonal::{Block, Config, Request};

const NUMBERS: [u64; 5] = [0, 1, 2, u64::MAX - 1, u64::MAX];
const BYTES: [u8; 5] = [0, 1, 2, u8::MAX - 1, u8::MAX];

/// Allocates and frees blocks of many orders on two CPUs, with ticks, reclaim and a CPU that leaves.
fn live(world: &World) {
    let (mut random, mut held) = (Random(7), Vec::<Block>::new());
    for round in 0..4000 {
        run_on(random.below(2) as u32);
        if random.once_in(2) && !held.is_empty() {
            let at = random.below(held.len() as u64) as usize;
            world.free([held.swap_remove(at)]);
        } else {
            let request = Request::new(order(random.pick(&[0, 0, 0, 0, 1, 3, 9])));
            held.extend(world.allocator.alloc(&request));
        }
        if round % 400 == 0 {
            world.controls.advance_ms(600);
            world.allocator.tick();
            for node in world.controls.take_woken() {
                world.allocator.background_reclaim(node);
            }
        }
    }
    run_on(0);
    world.allocator.offline_cpu(CpuId::new(1)).unwrap();
    world.allocator.online_cpu(CpuId::new(1)).unwrap();
    held.extend(world.alloc_all(&Request::page().no_wait()));
    world.check();
    world.free(held);
    all_free(world);
}

/// Returns a machine with three nodes of two CPUs.
fn plan() -> Plan {
    Plan::with_distances(2, 4096, |_, _| u8::MAX, 3)
}

#[derive(Clone, Copy, Debug)]
struct Load {
    after: u64,
    scale: u64,
}

impl LoadRule for Load {
    fn node_load(&self) -> NodeLoad {
        NodeLoad::Assign
    }

    fn after(&self, _load: u64, _left: u64) -> u64 {
        self.after
    }

    fn scale(&self, _online: u64) -> u64 {
        self.scale
    }
}

#[test]
fn node_loads() {
    for (after, scale) in NUMBERS.iter().flat_map(|&after| NUMBERS.map(|scale| (after, scale))) {
        let rule: &'static Load = Box::leak(Box::new(Load { after, scale }));
        let past = Past { node_loads: Box::leak(Box::new([rule as &dyn LoadRule])), ..Past::default() };
        let world = plan().build(&Config { past, node_load: NodeLoad::Assign, ..Config::default() });
        for node in world.allocator.nodes() {
            let mut list = Vec::new();
            world.allocator.fallback_order(node.id, |other| list.push(other));
            assert_eq!(list[0], node.id, "{rule:?}");
            list.sort();
            assert!(list.iter().map(|node| node.get()).eq(0..3), "{rule:?}: {list:?}");
        }
        live(&world);
    }
}

#[derive(Clone, Copy, Debug)]
struct Threshold {
    frames: u64,
    threshold: u8,
}

impl ThresholdForm for Threshold {
    fn name(&self) -> &'static str {
        "extreme"
    }

    fn frames(&self, _managed: PageCount, _present: PageCount) -> PageCount {
        PageCount::new(self.frames)
    }

    fn threshold(&self, _online_cpus: u32, _frames: PageCount, _page_bytes: u32) -> u8 {
        self.threshold
    }
}

#[test]
fn counter_thresholds() {
    for (frames, threshold) in NUMBERS.iter().flat_map(|&frames| BYTES.map(|byte| (frames, byte))) {
        let form: &'static Threshold = Box::leak(Box::new(Threshold { frames, threshold }));
        for fold in [FoldRule::Overstep, FoldRule::ToZero] {
            let counters =
                CounterRules { threshold: ThresholdRule::Form(form), fold, ..CounterRules::default() };
            let world = plan().build(&Config { counters, ..Config::default() });
            let expected = threshold.clamp(1, 125);
            assert!(world.allocator.zones().all(|zone| zone.stat_threshold == expected), "{form:?}");
            live(&world);
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Tuning {
    orders: u8,
    drain: u64,
}

impl TuningForm for Tuning {
    fn tuning(&self) -> PagesetTuning {
        PagesetTuning::DepthPublished
    }

    fn smaller_orders(&self) -> u8 {
        self.orders
    }

    fn drain_size(&self, _batch: PageCount, _excess: Option<PageCount>) -> PageCount {
        PageCount::new(self.drain)
    }
}

#[test]
fn drains_and_cached_orders() {
    for (drain, orders) in NUMBERS.iter().flat_map(|&drain| BYTES.map(|orders| (drain, orders))) {
        let past = Past { tuning: Some(Box::leak(Box::new(Tuning { orders, drain }))), ..Past::default() };
        let tuning = PagesetTuning::DepthPublished;
        live(&plan().build(&Config { past, tuning, ..Config::default() }));
    }
}

/// A form whose scans take random steps, whatever they return.
#[derive(Debug)]
struct Scan {
    seed: AtomicU64,
    answers: bool,
}

impl ScanForm for Scan {
    fn zonelist_cache(&self) -> ZonelistCache {
        ZonelistCache::Original
    }

    fn walk(&self, scan: &mut dyn ZonelistScan) {
        let mut random = Random(self.seed.fetch_add(1, Relaxed));
        for _ in 0..random.below(40) {
            match random.below(9) {
                0 | 1 => _ = scan.advance(),
                2 | 3 => _ = scan.try_zone(),
                4 => scan.set_up_cache(),
                5 => _ = scan.reclaim_zone(),
                6 => _ = scan.try_reclaimed(),
                7 => scan.mark_full(),
                _ if random.once_in(2) => _ = scan.restart_without_cache(),
                _ => _ = scan.begins_outside_cpuset(),
            }
        }
    }

    fn reconsiders(&self) -> bool {
        self.answers
    }

    fn tries_nearest(&self) -> bool {
        self.answers
    }

    fn serves_bound(&self) -> bool {
        self.answers
    }

    fn serves_one_node(&self) -> bool {
        !self.answers
    }

    fn separates_limits(&self) -> bool {
        self.answers
    }

    fn trusts_reclaim(&self) -> bool {
        self.answers
    }
}

#[test]
fn scans_in_any_order() {
    for answers in [false, true] {
        let form: &'static Scan = Box::leak(Box::new(Scan { seed: AtomicU64::new(1), answers }));
        let past = Past { scans: Box::leak(Box::new([form as &dyn ScanForm])), ..Past::default() };
        let (zonelist_cache, node_reclaim) = (ZonelistCache::Original, NodeReclaim::ON);
        live(&plan().build(&Config { past, zonelist_cache, node_reclaim, ..Config::default() }));
    }
}
