//! Tests of clocks that count other units than nanoseconds: interrupts of a timer, cycles, or steps of a program.
//!
//! The rules that speak of a second follow the clock, whatever its unit and its start.

use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use crate::common::scenarios::{TestAllocator, one_cpu, with_min};
use crate::common::{Plan, node, run_on};
use zonal::config::{StatInterval, ZonelistCache};
use zonal::units::{Moment, PageCount, Pfn, SECOND_NS, ZoneKind};
use zonal::{Block, Config, Platform, Policy, Request};

/// Ticks a second, and the tick at which an allocator starts.
const CLOCKS: [(u64, u64); 6] = [
    (100, 0),
    (250, u32::MAX as u64 - 300 * 250), // wraps at 32 bits, as jiffies do after five minutes
    (1_193_182, 77),
    (24_000_000, 1 << 40),
    (3_100_000_000, 1 << 60), // cycles after eleven years
    (1_000_000_000_000, 5),
];

/// An allocator and its clock, which counts ticks and advances only when the test says so.
struct Clocked {
    allocator: TestAllocator,
    ticks: Arc<AtomicU64>,
    per_second: u64,
}

impl Clocked {
    fn build(plan: &Plan, config: &Config, (per_second, start): (u64, u64)) -> Self {
        run_on(0);
        let ticks = Arc::new(AtomicU64::new(start));
        let world = plan.build_in(config, |controls| {
            let (ticks, rate) = (Arc::clone(&ticks), NonZeroU64::new(per_second).unwrap());
            controls.change_time(move |_| Moment::from_ticks(ticks.load(Relaxed), rate));
        });
        Self { allocator: world.allocator, ticks, per_second }
    }

    /// Lets hundredths of a second pass.
    fn pass(&self, hundredths: u64) {
        self.ticks.fetch_add(self.per_second * hundredths / 100, Relaxed);
    }

    fn page(&self) -> Block {
        self.allocator.alloc(&Request::page()).unwrap()
    }

    fn free(&self, blocks: impl IntoIterator<Item = Block>) {
        blocks.into_iter().for_each(|block| self.allocator.free(block.first, block.order).unwrap());
    }
}

#[test]
fn ticks_convert_exactly() {
    let moment = |ticks, per_second| Moment::from_ticks(ticks, NonZeroU64::new(per_second).unwrap()).ns();
    assert_eq!([0, 1, 250, 251].map(|ticks| moment(ticks, 250)), [0, 4_000_000, SECOND_NS, 1_004_000_000]);
    assert_eq!(moment(10, 3), 3_333_333_333);
    assert_eq!([moment(77, SECOND_NS), moment(u64::MAX, SECOND_NS)], [77, u64::MAX]);
    assert_eq!([moment(u64::MAX, u64::MAX), moment(u64::MAX - 1, u64::MAX)], [SECOND_NS, SECOND_NS - 1]);
    assert_eq!([moment(u64::MAX, 1), moment(u64::MAX / SECOND_NS + 1, 1)], [u64::MAX; 2]);
    assert_eq!(moment(1_999_999_999_999, 1_000_000_000_000), 1_999_999_999);
}

#[test]
fn a_clock_may_reach_the_end_of_its_range() {
    run_on(0);
    let ns = AtomicU64::new(u64::MAX - 100);
    let world = one_cpu(&[4096], ZoneKind::Normal).build_in(&Config::default(), |controls| {
        // Each reading is a nanosecond later, except at the end.
        controls.change_time(move |_| {
            let now = ns.load(Relaxed);
            ns.store(now.saturating_add(1), Relaxed);
            Moment::from_ns(now)
        });
    });
    for _ in 0..20 {
        let held = world.alloc_all(&Request::page());
        assert!(world.allocator.events().direct_stalls > 0);
        world.free(held);
        world.allocator.tick();
    }
    assert_eq!(world.allocator.platform().now(), Moment::from_ns(u64::MAX));
    assert!(world.allocator.stall_shares(node(0)).is_some());
}

#[test]
fn full_bits_last_a_second_of_the_clock() {
    for clock in CLOCKS {
        let past = zonal_history::PAST;
        let config = Config { zonelist_cache: ZonelistCache::Published, past, ..with_min(64) };
        let world = Clocked::build(&one_cpu(&[4096, 4096, 4096], ZoneKind::Normal), &config, clock);
        let mut held = Vec::new();
        while held.last().is_none_or(|block: &Block| block.node != node(2)) {
            held.push(world.page());
        }
        world.free(held.into_iter().filter(|block| block.node == node(1)));
        world.allocator.drain_pagesets();
        world.pass(90);
        assert_eq!(world.page().node, node(2), "the full bit of node 1 is still set: {clock:?}");
        world.pass(20);
        assert_eq!(world.page().node, node(1), "{clock:?}");
        assert!(world.allocator.verify().unwrap().balance());
    }
}

#[test]
fn tuning_periods_last_a_second_of_the_clock() {
    for clock in CLOCKS {
        let world = Clocked::build(&one_cpu(&[1 << 18], ZoneKind::Normal), &Config::default(), clock);
        let high = || world.allocator.pagesets().next().unwrap().high;
        let wave = |hundredths| {
            let held: Vec<Block> = (0..6000).map(|_| world.page()).collect();
            world.pass(hundredths);
            world.free(held);
            world.pass(hundredths);
        };
        let least = world.allocator.zones().next().unwrap().pageset_limits.high_min;
        (0..4).for_each(|_| wave(10));
        assert_eq!(high(), least, "no period is over: {clock:?}");
        (0..5).for_each(|_| wave(55));
        assert!(high() > least, "{clock:?}");
        world.pass(201);
        world.free([world.page()]);
        assert_eq!(high(), least, "two periods without a free end tuning: {clock:?}");
        assert!(world.allocator.verify().unwrap().balance());
    }
}

#[test]
fn counters_are_folded_after_the_interval_by_the_clock() {
    for clock in CLOCKS {
        let config = Config { stat_interval: StatInterval::from_seconds(3).unwrap(), ..Config::default() };
        let world = Clocked::build(&one_cpu(&[1 << 16], ZoneKind::Normal), &config, clock);
        world.allocator.stat_refresh();
        world.page();
        // The page is in a difference of its CPU, which a fold adds to the total.
        let allocated = || world.allocator.allocated_approximate().into_iter().sum::<PageCount>();
        let mut seen = Vec::new();
        for _ in 0..4 {
            world.allocator.tick();
            seen.push(allocated().get());
            world.pass(100);
        }
        // The first tick finds a pageset that was never folded at a clock that has run for long.
        let first = u64::from(clock.1 / clock.0 >= 3);
        assert_eq!(seen, [first, first, first, 1], "{clock:?}");
    }
}

#[test]
fn policies_and_ranges_do_not_depend_on_the_clock() {
    let world = Clocked::build(&Plan::even(2, 1, 4096), &Config::default(), CLOCKS[1]);
    let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
    world.ticks.store(0, Relaxed);
    let block = world.allocator.alloc(&Request::page().policy(&policy)).unwrap();
    assert_eq!(block.node, node(1));
    world.ticks.store(u64::MAX, Relaxed);
    world.allocator.tick();
    world.free([block]);
    assert_eq!(world.allocator.span_of(Pfn::new(4096)).unwrap().count, PageCount::new(4096));
    world.allocator.drain_pagesets();
    assert_eq!(world.allocator.verify().unwrap().allocated, PageCount::ZERO);
}
