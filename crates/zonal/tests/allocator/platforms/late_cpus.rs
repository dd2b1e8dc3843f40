//! Tests of machines that start with one CPU, and whose other CPUs appear later.
//!
//! The machine describes all CPUs, and those that do not run yet go offline before the first request.

use crate::common::{Plan, World, run_on};
use zonal::config::Config;
use zonal::error::OnlineError;
use zonal::request::{Block, Request};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::PagesetSnapshot;
use zonal::units::{CpuId, PageCount};

const CPUS: u32 = 8;
const FRAMES: u64 = 1 << 17;

/// Builds a machine of two nodes, whose CPU 0 alone is online.
fn boot(config: &Config) -> World {
    let world = Plan::even(2, CPUS / 2, FRAMES).build(config);
    run_on(0);
    (1..CPUS).for_each(|cpu| world.allocator.offline_cpu(CpuId::new(cpu)).unwrap());
    world
}

fn use_pages(world: &World, count: usize) -> Vec<Block> {
    (0..count).map(|_| world.allocator.alloc(&Request::page()).unwrap()).collect()
}

/// Returns the number of frames in a CPU's pagesets.
fn cached(world: &World, cpu: u32) -> u64 {
    let own = world.allocator.pagesets().filter(|pageset| pageset.cpu == CpuId::new(cpu));
    own.map(|pageset| pageset.count.get()).sum()
}

#[test]
fn limits_and_thresholds_follow_cpus_that_appear() {
    let world = boot(&Config::default());
    // The values of a machine with the CPUs that are online: 1 to 4 of node 0, and then those of node 1.
    let low = world.zone(0).watermarks.low.get();
    for online in 1..=CPUS {
        let [first, second] = [0, 1].map(|id| world.zone(id));
        let threshold = 2 * (32 - online.leading_zeros()) * 4; // 512 MiB are 4 units of 128 MiB
        assert_eq!([first.stat_threshold, second.stat_threshold], [threshold.min(125) as u8; 2]);
        let high_min = |cpus: u32| PageCount::new((low / u64::from(cpus)).max(4 * 31));
        assert_eq!(first.pageset_limits.high_min, high_min(online.min(4)));
        // All CPUs share the zone of a node without CPUs.
        let sharing = if online <= 4 { online } else { online - 4 };
        assert_eq!(second.pageset_limits.high_min, high_min(sharing), "{online} CPUs");
        if online < CPUS {
            world.allocator.online_cpu(CpuId::new(online)).unwrap();
        }
    }
    world.check();
}

#[test]
fn pagesets_serve_a_cpu_only_while_it_is_online() {
    for tuning in [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise] {
        let world = boot(&Config { tuning, ..Config::default() });
        for cpu in [5, 1, 7] {
            // A CPU that runs before it is online bypasses the pagesets.
            run_on(cpu);
            let blocks = use_pages(&world, 100);
            assert!(blocks.iter().all(|block| u32::from(block.node.get()) == cpu / 4), "its own node serves");
            world.free(blocks);
            assert_eq!(cached(&world, cpu), 0);
            world.allocator.online_cpu(CpuId::new(cpu)).unwrap();
            assert_eq!(
                world.allocator.online_cpu(CpuId::new(cpu)),
                Err(OnlineError::CpuUnchanged(CpuId::new(cpu)))
            );
            let (blocks, events) = world.during(|| use_pages(&world, 1000));
            assert!((1..1000).contains(&events.refills), "{events:?}");
            world.free(blocks);
            assert!(cached(&world, cpu) > 0, "{tuning:?}");
        }
        run_on(0);
        world.allocator.offline_cpu(CpuId::new(7)).unwrap();
        assert_eq!(cached(&world, 7), 0);
        world.check();
        world.allocator.drain_pagesets();
        assert_eq!(world.allocator.verify().unwrap().free, PageCount::new(2 * FRAMES));
    }
}

#[test]
fn a_machine_that_has_grown_is_as_one_that_started_whole() {
    let grown = boot(&Config::default());
    (1..CPUS).rev().for_each(|cpu| grown.allocator.online_cpu(CpuId::new(cpu)).unwrap());
    let whole = Plan::even(2, CPUS / 2, FRAMES).build(&Config::default());
    // `high` was larger while one CPU had the zone alone, and falls when it is tuned next. Another tuning makes it fall
    // now, because the size of a refill depends on it.
    for tuning in [PagesetTuning::Fixed, PagesetTuning::Depth] {
        [&grown, &whole].iter().for_each(|world| world.allocator.set_tuning(tuning).unwrap());
    }
    let history = |world: &World| {
        let mut blocks = Vec::new();
        for round in 0..2000 {
            run_on(round % CPUS);
            let mut taken = use_pages(world, 1 + (round % 70) as usize);
            run_on((round + 3) % CPUS);
            world.free(taken.drain(1..));
            blocks.extend(taken);
        }
        blocks
    };
    assert!(history(&grown) == history(&whole));
    assert!(grown.allocator.zones().eq(whole.allocator.zones()));
    let used = |world: &World| {
        let figures =
            |pageset: PagesetSnapshot| (pageset.cpu, pageset.count, pageset.limits, pageset.refills);
        world.allocator.pagesets().map(figures).collect::<Vec<_>>()
    };
    assert!(used(&grown) == used(&whole));
}
