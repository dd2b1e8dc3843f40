//! Scenarios of counters while CPUs fold their differences: readings stay within their bounds, and no count is lost.
//!
//! Related files: `world.rs` is the machine.

use zonal::rules::stat_threshold::{CounterRules, ThresholdRule};
use zonal::units::{CpuId, NodeId};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::world::{World, config, on};

const CPUS: u64 = 2;
const THRESHOLD: u8 = 1;
/// Maximum number of frames that all jobs together hold.
const ALLOCATED_MAX: u64 = 3;

/// Two CPUs count and fold their differences, and one of them reads the counters before and after its fold.
pub(crate) fn folds_against_readings<C: Checker>() {
    let mut config = config(8);
    config.counters = CounterRules { threshold: ThresholdRule::Fixed(THRESHOLD), ..CounterRules::default() };
    let world = World::<C>::new(&[(&[0, 1], 32)], &config, Box::new(NoReclaimer));
    for cpu in 0..CPUS as u32 {
        C::set_cpu(cpu);
        let warm = world.page();
        world.free(warm);
    }
    let hits = || world.allocator().locality().hit;
    let before = hits();
    world.at_once(
        on(0, |world| {
            let frame = world.page();
            world.page();
            world.free(frame);
            world.allocator().tick_cpu(CpuId::new(0));
        }),
        on(1, |world| {
            world.page();
            readings_are_within_bounds(world);
            world.allocator().tick();
            readings_are_within_bounds(world);
        }),
    );
    assert_eq!(hits() - before, ALLOCATED_MAX);
    world.allocator().tick();
    assert_eq!(world.allocator().allocated_approximate()[0].get(), ALLOCATED_MAX - 1, "all is folded");
    world.check_to_the_last_frame();
}

fn readings_are_within_bounds<C: Checker>(world: &World<C>) {
    let drift = CPUS * u64::from(THRESHOLD);
    let approximate = world.allocator().allocated_approximate()[0].get();
    assert!(approximate <= ALLOCATED_MAX + drift, "{approximate} allocated");
    // During a fold, a reading may include the folded amount twice, or not at all.
    let snapshot = world.allocator().nodes().next().expect("there is a node").allocated[0].get();
    assert!(snapshot <= ALLOCATED_MAX + drift, "{snapshot} allocated");
    let free = world.allocator().free_approximate().get();
    assert!(free <= 32 + drift, "{free} free");
}

/// Background reclaim starts and ends while a CPU goes offline. The final thresholds must be the normal ones for the
/// remaining CPUs.
pub(crate) fn pressure_against_changes<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &config(8), Box::new(NoReclaimer));
    let threshold = |world: &World<C>| {
        let zone = world.allocator().zones().next().expect("there is a zone");
        zone.stat_threshold
    };
    assert_eq!(threshold(&world), 4, "2 * fls(2 CPUs)");
    world.at_once(
        on(0, |world| {
            let node = NodeId::new(0).expect("it is small");
            world.allocator().background_reclaim(node);
        }),
        on(1, move |world| {
            world.allocator().offline_cpu(CpuId::new(1)).expect("it is online");
            assert_eq!(threshold(world), 2, "2 * fls(1 CPU), which drifts too little to matter");
        }),
    );
    assert_eq!(threshold(&world), 2, "at rest as well");
    world.allocator().online_cpu(CpuId::new(1)).expect("it is offline");
    assert_eq!(threshold(&world), 4, "as at first");
    world.check_to_the_last_frame();
}
