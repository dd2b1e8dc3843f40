//! Tests which metadata parts each operation of the allocator accesses.

use std::cell::RefCell;
use std::collections::BTreeSet;

use crate::common::scenarios::Random;
use crate::common::watched::Access;
use crate::common::watching::{WatchedAllocator, Watcher};
use crate::common::{Plan, node, order, run_on};
use zonal::metadata::regions::Part;
use zonal::rules::stat_threshold::{CounterRules, ThresholdRule, TotalsRule};
use zonal::units::{CpuId, ZoneId};
use zonal::{Block, Config, Request};

thread_local! {
    static TOUCHED: RefCell<BTreeSet<usize>> = const { RefCell::new(BTreeSet::new()) };
}

/// Records the addresses that this thread accesses.
struct Remember;

impl Watcher for Remember {
    fn before(&self, access: Access) {
        TOUCHED.with_borrow_mut(|touched| touched.insert(access.address));
    }
}

/// Builds an allocator for two nodes of two CPUs each, and allocates a frame on CPU 0.
fn world(counters: CounterRules) -> (WatchedAllocator, Block) {
    let config = Config { counters, ..Config::default() };
    let world = Plan::even(2, 2, 1 << 15).build_watched(&config, &Remember).allocator;
    let block = world.alloc(&Request::page()).unwrap();
    (world, block)
}

/// Returns the result of `work` and the metadata parts that `work` accesses.
fn touched<R>(world: &WatchedAllocator, work: impl FnOnce() -> R) -> (R, BTreeSet<Part>) {
    TOUCHED.take();
    let result = work();
    let part = |address| world.part_at(address).expect("all cells lie in parts");
    (result, TOUCHED.take().into_iter().map(part).collect())
}

#[test]
fn an_allocation_and_free_touch_four_regions() {
    let (world, warm) = world(CounterRules::default());
    let (zone, cpu) = (ZoneId::new(0).unwrap(), CpuId::new(0));
    let hot =
        [Part::CurrentSlot(cpu), Part::FrameStates(zone), Part::Pageset(zone, cpu), Part::Slots(zone, cpu)];
    // The first operation that reverses a run of allocations or frees leaves the fast path, because pageset tuning (M2)
    // needs it. The measured operations come after it.
    for _ in 0..2 {
        let block = world.alloc(&Request::page()).unwrap();
        world.free(block.first, block.order).unwrap();
    }
    let (block, parts) = touched(&world, || world.alloc(&Request::page()).unwrap());
    assert_eq!(parts, BTreeSet::from(hot));
    let ((), parts) = touched(&world, || world.free(block.first, block.order).unwrap());
    assert_eq!(parts, BTreeSet::from(hot));
    world.free(warm.first, warm.order).unwrap();
}

#[test]
fn machine_totals_are_touched_only_if_configured() {
    for (totals, is_touched) in [(TotalsRule::PerNode, false), (TotalsRule::AndMachine, true)] {
        let counters =
            CounterRules { totals, threshold: ThresholdRule::Fixed(32), ..CounterRules::default() };
        let (world, _) = world(counters);
        // Allocates single frames until the first fold. The totals of the node are not accessed before that fold.
        for count in 2.. {
            let (_, parts) = touched(&world, || world.alloc(&Request::page()).unwrap());
            let folds = parts.contains(&Part::NodeTotals(node(0)));
            assert_eq!(parts.contains(&Part::MachineTotals), folds && is_touched);
            if folds {
                assert_eq!(count, 33);
                break;
            }
        }
        // A block of order 10 bypasses the pagesets. A CPU of its node counts it in its own cell, and a CPU of another
        // node in the totals.
        let (block, parts) = touched(&world, || world.alloc(&Request::new(order(10))).unwrap());
        assert!(!parts.contains(&Part::NodeTotals(node(0))) && !parts.contains(&Part::MachineTotals));
        run_on(2);
        let ((), parts) = touched(&world, || world.free(block.first, block.order).unwrap());
        assert!(parts.contains(&Part::NodeTotals(node(0))));
        assert_eq!(parts.contains(&Part::MachineTotals), is_touched);
    }
}

#[test]
fn every_accessed_address_belongs_to_a_named_part() {
    let (world, _) = world(CounterRules::default());
    let (mut random, mut held, mut names) = (Random(7), Vec::new(), BTreeSet::new());
    for step in 0..5000 {
        run_on(random.below(4) as u32);
        let ((), parts) = touched(&world, || match random.below(10) {
            0..6 => held.extend(world.alloc(&Request::new(order([0, 1, 3, 5, 9][random.below(5) as usize])))),
            6..9 if !held.is_empty() => {
                let block: Block = held.swap_remove(random.below(held.len() as u64) as usize);
                world.free(block.first, block.order).unwrap();
            }
            _ if step % 100 == 0 => world.drain_pagesets(),
            _ => world.tick(),
        });
        names.extend(parts.iter().map(Part::name));
    }
    let expected =
        ["pageset", "free area", "free bitmap", "zone totals", "node totals", "zone rules", "zonelist"];
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    let ((), parts) = touched(&world, || world.set_high_fraction(8));
    assert!(parts.contains(&Part::Settings) && parts.contains(&Part::ChangeLock));
}
