//! Tests of platforms that number CPUs as their interrupt controllers do: with gaps, and up to the largest id.
//!
//! A machine with such ids behaves exactly as one whose ids have no gaps.

use crate::common::scenarios::TestAllocator;
use crate::common::{Plan, Random, node, order, run_on};
use zonal::request::Block;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, MAX_CPUS, PageCount, ZoneKind};
use zonal::{Config, Policy, Request};

/// Ids of interrupt controllers: two threads of each core, with a gap after each package, and the largest id of all.
const IDS: [u32; 8] = [0, 2, 16, 18, 32, 34, 48, MAX_CPUS as u32 - 1];

/// Builds three nodes, the last of them without CPUs. The ids of each node ascend, and a thread that runs on CPU `n`
/// runs on the one with id `ids[n]`.
fn build(ids: [u32; 8], frames: u64, config: &Config) -> TestAllocator {
    run_on(0);
    let mut plan = Plan::even(3, 0, frames);
    plan.nodes[0].1 = ids[..4].to_vec();
    plan.nodes[1].1 = ids[4..].to_vec();
    plan.zones[0].1 = ZoneKind::Dma32;
    plan.build_in(config, |controls| controls.change_cpu(move |number| ids[number as usize])).allocator
}

const DENSE: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Runs a history of requests on all CPUs, with CPUs that go offline and online, and returns its blocks.
fn history(allocator: &TestAllocator, ids: [u32; 8]) -> Vec<Option<Block>> {
    let (mut random, mut held, mut all) = (Random(7), Vec::<Block>::new(), Vec::new());
    // The allocator spreads CPUs that are offline by their ids, so this history has requests of online CPUs only.
    let mut online = [true; 8];
    let remote = Policy::preferred(allocator, node(2)).unwrap();
    for at in 0..30_000 {
        if at % 1000 == 999 {
            let changed = 1 + random.below(7) as usize;
            online[changed] ^= true;
            let cpu = CpuId::new(ids[changed]);
            if online[changed] { allocator.online_cpu(cpu) } else { allocator.offline_cpu(cpu) }.unwrap();
            allocator.tick();
        }
        let cpu = random.below(8) as u32;
        run_on(if online[cpu as usize] { cpu } else { 0 });
        if random.below(100) < 52 || held.is_empty() {
            let request = Request::new(order(random.pick(&[0, 0, 0, 0, 1, 3, 5, 9])));
            // No CPU is on node 2, so that each CPU begins its search in another part of it.
            let request = if random.once_in(3) { request.policy(&remote) } else { request };
            let block = allocator.alloc(&request).ok();
            held.extend(block);
            all.push(block);
        } else {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            allocator.free(block.first, block.order).unwrap();
        }
    }
    all
}

#[test]
fn gaps_change_nothing() {
    for tuning in [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise] {
        let config = Config { tuning, free_area_min: PageCount::ZERO, ..Config::default() };
        let [sparse, dense] = [IDS, DENSE].map(|ids| (build(ids, 1 << 15, &config), ids));
        assert!(history(&sparse.0, sparse.1) == history(&dense.0, dense.1), "{tuning:?}: other blocks");
        assert!(sparse.0.zones().eq(dense.0.zones()), "{tuning:?}: other limits or figures");
        assert_eq!(sparse.0.events(), dense.0.events());
        let renumbered = dense.0.pagesets().map(|mut pageset| {
            pageset.cpu = CpuId::new(IDS[pageset.cpu.index()]);
            pageset
        });
        assert!(sparse.0.pagesets().eq(renumbered), "{tuning:?}: other pagesets");
        assert!(sparse.0.verify().unwrap().balance());
        for (id, cpus) in [(0, &IDS[..4]), (1, &IDS[4..])] {
            let node_of = |&cpu: &u32| sparse.0.node_of_cpu(CpuId::new(cpu)).unwrap().get();
            assert!(cpus.iter().all(|cpu| node_of(cpu) == id));
        }
        assert_eq!(sparse.0.node_of_cpu(CpuId::new(1)), None);
    }
}

#[test]
fn gaps_leave_the_limits_of_all_cpus() {
    let limits = |ids| {
        let allocator = build(ids, 1 << 18, &Config::default());
        allocator.pagesets().map(|pageset| pageset.limits).collect::<Vec<_>>()
    };
    let sparse = limits(IDS);
    assert_eq!(sparse, limits(DENSE));
    // Of a node's zone on CPUs that belong to another node: four batches.
    assert!(sparse.iter().any(|limits| limits.batch.get() == 63 && limits.high_max.get() == 252));
}

#[test]
fn gaps_cost_a_few_bytes_for_each_id() {
    let bytes = |ids| build(ids, 1 << 15, &Config::default()).metadata_bytes();
    let (sparse, dense) = (bytes(IDS), bytes(DENSE));
    let gaps = (MAX_CPUS - IDS.len()) as u64;
    assert!((27 * gaps..=28 * gaps + 4096).contains(&(sparse - dense)), "{}", sparse - dense);
}
