//! Counters while CPUs fold their differences: readings stay within their bounds, nothing is lost.
//!
//! Neighbours: `world.rs`.

use zonal::threshold::{CounterRules, ThresholdRule};
use zonal::units::CpuId;

use crate::interleavings::checker::Checker;
use crate::interleavings::world::{Nobody, World, config, on};

const CPUS: u64 = 2;
const THRESHOLD: u8 = 2;
/// Frames that all jobs together have at most.
const ALLOCATED_MAX: u64 = 3;

/// Two CPUs count and fold; one of them reads before and after.
pub(crate) fn folds_against_readings<C: Checker>() {
    let mut config = config(8);
    config.counters = CounterRules { threshold: ThresholdRule::Fixed(THRESHOLD), ..CounterRules::default() };
    let world = World::<C>::new(&[(&[0, 1], 32)], &config, Box::new(Nobody));
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
    // A fold under way may be seen at both of its ends, or at neither.
    let snapshot = world.allocator().nodes().next().expect("there is a node").allocated[0].get();
    assert!(snapshot <= ALLOCATED_MAX + drift, "{snapshot} allocated");
    let free = world.allocator().free_approximate().get();
    assert!(free <= 32 + drift, "{free} free");
}
