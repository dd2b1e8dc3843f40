//! Long random histories over random machines, against the naive model.
//!
//! A history that fails is cut down to the operations that matter and kept in
//! `proptest-regressions/histories.txt`, to be played first from then on. `PROPTEST_CASES` says how many
//! histories there are, `ZONAL_STRESS_SECONDS` for how long new ones are tried.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config as Cases, FileFailurePersistence, TestRunner};
use zonal::Config;
use zonal::config::{Hardening, Misuse, NodeReclaim, ZonelistCache};
use zonal::pageset_tuning::PagesetTuning;
use zonal::request::{PageKind, Urgency};
use zonal::threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{Order, PageCount, ZoneKind};
use zonal_verify::play::{Ask, Operation, Plain, Plan, Player, Scope, Setting, Wait, ZonePlan};

/// Histories of a plain run.
const CASES: u32 = 24;
/// Operations of a history.
const LENGTH: std::ops::Range<usize> = 300..1500;

const CACHES: [ZonelistCache; 5] = [
    ZonelistCache::On,
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Off,
];
const TUNINGS: [PagesetTuning; 3] = [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed];
const RECLAIMS: [NodeReclaim; 2] = [NodeReclaim::OFF, NodeReclaim::ON];

/// A zone before it has a place: the gap below it, and runs of managed frames, each with the hole after
/// it.
type Runs = (u64, Vec<(u64, u64)>);
/// CPUs of a node, and its zones by kind.
type NodeParts = (u32, Vec<Option<Runs>>);

fn runs() -> impl Strategy<Value = Option<Runs>> {
    let run = (prop_oneof![3 => 1..300_u64, 3 => 1..3000_u64, 1 => 1..9000_u64], 1..200_u64);
    prop_oneof![1 => Just(None), 2 => (0..9000_u64, vec(run, 1..4)).prop_map(Some)]
}

fn plan_of(nodes: &[NodeParts], distances: &[Vec<u8>]) -> Plan {
    let mut plan = Plan::default();
    let (mut cpu, mut at) = (0, 1);
    for (id, (cpus, zones)) in nodes.iter().enumerate() {
        plan.nodes.push((id as u16, (cpu..cpu + cpus).collect()));
        cpu += cpus;
        let mut row = distances[id][..nodes.len()].to_vec();
        row[id] = 10;
        plan.distances.push(row);
        for (kind, runs) in ZoneKind::ALL.into_iter().zip(zones) {
            let Some((gap, runs)) = runs else { continue };
            at += gap;
            let (start, mut managed) = (at, Vec::new());
            for &(count, hole) in runs {
                managed.push((at, count));
                at += count + hole;
            }
            plan.zones.push(ZonePlan { node: id as u16, kind, start, spanned: at - start, managed });
        }
    }
    plan
}

/// One to three nodes with up to three CPUs, each with up to four zones, with holes between and in them.
fn plans() -> impl Strategy<Value = Plan> {
    let node = (0..4_u32, vec(runs(), 4));
    let distances = vec(vec(11..60_u8, 3), 3);
    let plan = (vec(node, 1..=3), distances).prop_map(|(nodes, distances)| plan_of(&nodes, &distances));
    let frames = |plan: &Plan| plan.zones.iter().flat_map(|zone| &zone.managed).map(|run| run.1).sum::<u64>();
    let has_cpus = |plan: &Plan| plan.nodes.iter().any(|(_, cpus)| !cpus.is_empty());
    plan.prop_filter("a machine has a CPU and memory", move |plan| frames(plan) > 200 && has_cpus(plan))
}

fn counter_rules() -> impl Strategy<Value = CounterRules> {
    (
        select(&[ThresholdRule::Scaled, ThresholdRule::Fixed(1), ThresholdRule::Fixed(125)][..]),
        select(&[FoldRule::Overstep, FoldRule::ToZero][..]),
        select(&[TotalsRule::PerNode, TotalsRule::AndMachine][..]),
        select(&[PressureRule::Lowered, PressureRule::Unchanged][..]),
    )
        .prop_map(|(threshold, fold, totals, pressure)| CounterRules {
            threshold,
            fold,
            totals,
            pressure,
        })
}

fn configs() -> impl Strategy<Value = Config> {
    let choices = (
        select(&TUNINGS[..]),
        select(&[Misuse::Checked, Misuse::Exact][..]),
        select(&CACHES[..]),
        select(&RECLAIMS[..]),
        select(&[0_u64, 1 << 14][..]),
        select(&[10_u8, 10, 11, 13, 18][..]),
        select(&[0_u64, 0, 0, 1, 50][..]),
    );
    (choices, counter_rules()).prop_map(|(choices, counters)| {
        let (tuning, misuse, zonelist_cache, node_reclaim, region_min, max_order, quarantine) = choices;
        Config {
            tuning,
            misuse,
            zonelist_cache,
            node_reclaim,
            counters,
            region_min: PageCount::new(region_min),
            max_order: Order::new(max_order).unwrap(),
            hardening: Hardening { quarantine: PageCount::new(quarantine), ..Hardening::default() },
            ..Config::default()
        }
    })
}

fn asks() -> impl Strategy<Value = Ask> {
    (
        prop_oneof![6 => Just(0_u8), 6 => 0..4_u8, 3 => 0..11_u8, 1 => 0..19_u8],
        select(&PageKind::ALL[..]),
        select(&[Urgency::Normal, Urgency::High, Urgency::Atomic, Urgency::Reserve][..]),
        prop_oneof![3 => Just(ZoneKind::Movable), 1 => select(&ZoneKind::ALL[..])],
        prop_oneof![2 => Just(0_u8), 1 => any::<u8>()],
        prop_oneof![4 => Just(0_u8), 1 => 1..16_u8],
        prop_oneof![5 => Just(Scope::AnyNode), 1 => Just(Scope::ThisNode)],
        select(&[Wait::May, Wait::May, Wait::Once, Wait::Never][..]),
    )
        .prop_map(|(order, kind, urgency, limit, policy, allowed, scope, wait)| Ask {
            order,
            kind,
            urgency,
            limit,
            policy,
            allowed,
            scope,
            wait,
        })
}

fn settings() -> impl Strategy<Value = Setting> {
    prop_oneof![
        select(&TUNINGS[..]).prop_map(Setting::Tuning),
        select(&CACHES[..]).prop_map(Setting::Cache),
        select(&RECLAIMS[..]).prop_map(Setting::NodeReclaim),
        prop_oneof![Just(0_u8), any::<u8>()].prop_map(Setting::HighFraction),
        prop_oneof![Just(None), (0..400_u16).prop_map(Some), any::<u16>().prop_map(Some)]
            .prop_map(Setting::MinFree),
    ]
}

fn operations() -> impl Strategy<Value = Operation> {
    let memory = (
        any::<u8>(),
        prop_oneof![Just(0), any::<u16>()],
        prop_oneof![0..20_u16, any::<u16>(), Just(u16::MAX)],
    )
        .prop_map(|(zone, first, count)| Operation::MemoryOffline { zone, first, count });
    let strange = (any::<u16>(), 0..70_u8, 0..11_u8)
        .prop_map(|(nth, offset, order)| Operation::FreeStrange { nth, offset, order });
    let cpus = prop_oneof![
        any::<u8>().prop_map(|cpu| Operation::CpuOffline { cpu }),
        any::<u8>().prop_map(|cpu| Operation::CpuOnline { cpu }),
    ];
    prop_oneof![
        40 => asks().prop_map(Operation::Alloc),
        4 => (asks(), any::<u8>()).prop_map(|(ask, count)| Operation::AllocBulk { ask, count }),
        30 => any::<u16>().prop_map(|nth| Operation::Free { nth }),
        4 => (any::<u16>(), any::<u8>()).prop_map(|(nth, count)| Operation::FreeBulk { nth, count }),
        2 => Just(Operation::FreeAgain),
        4 => strange,
        5 => any::<u8>().prop_map(|cpu| Operation::RunOn { cpu }),
        3 => (0..3000_u16).prop_map(|ms| Operation::Advance { ms }),
        1 => (0..5000_u16).prop_map(|ms| Operation::SetClock { ms }),
        1 => Just(Operation::Tick),
        1 => Just(Operation::Drain),
        1 => any::<u8>().prop_map(|node| Operation::Background { node }),
        2 => cpus,
        2 => memory,
        2 => any::<u8>().prop_map(|nth| Operation::MemoryOnline { nth }),
        1 => prop_oneof![Just(0_u8), any::<u8>()].prop_map(|pages| Operation::Promise { pages }),
        1 => settings().prop_map(Operation::Change),
    ]
}

/// Plays a history; debug builds look at everything after each step.
fn play(mut player: Player<'_, '_, Plain>, history: &[Operation]) -> (u64, u64) {
    for &operation in history {
        player.apply(operation);
        if cfg!(debug_assertions) {
            player.check();
        }
    }
    let sums = (player.model.served, player.model.refused);
    player.finish();
    sums
}

/// What all histories of a run did together.
#[derive(Default)]
struct Sums {
    operations: u64,
    served: u64,
    refused: u64,
}

fn round(cases: u32, sums: &RefCell<Sums>) {
    let file = FileFailurePersistence::Direct("proptest-regressions/histories.txt");
    let cases = Cases {
        cases,
        failure_persistence: Some(Box::new(file)),
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        ..Cases::default()
    };
    let inputs = (plans(), configs(), vec(operations(), LENGTH));
    let outcome = TestRunner::new(cases).run(&inputs, |(plan, config, history)| {
        let (served, refused) = plan.played_by(&config, |player| play(player, &history)).unwrap();
        let mut sums = sums.borrow_mut();
        sums.operations += history.len() as u64;
        sums.served += served;
        sums.refused += refused;
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn histories() {
    let set = |name| std::env::var(name).ok().and_then(|value: String| value.parse::<u64>().ok());
    let cases = set("PROPTEST_CASES").map_or(CASES, |cases| cases as u32);
    let until = Instant::now() + Duration::from_secs(set("ZONAL_STRESS_SECONDS").unwrap_or(0));
    let sums = RefCell::new(Sums::default());
    round(cases, &sums);
    while Instant::now() < until {
        round(cases, &sums);
    }
    let Sums { operations, served, refused } = sums.into_inner();
    println!("{operations} operations: {served} blocks served, {refused} wrong frees refused");
    assert!(served > operations / 5 && refused > operations / 100, "histories became dull");
}
