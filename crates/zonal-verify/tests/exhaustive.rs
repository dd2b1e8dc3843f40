//! Every history of small worlds, up to a length, against the naive model: each state is visited once.
//!
//! `ZONAL_DEEPER` says by how many moves the histories are longer than in a plain run. The number of states
//! found is held against what it should be: a search that no longer gets anywhere fails.

use std::time::Instant;

use zonal::Config;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{PageCount, ZoneKind};
use zonal_verify::play::{Ask, Found, Model, Move, Operation, Plan, Scope, Search, Stretch, Telling};

/// Marks of one, two and three frames over the whole machine: apart, for those of real machines are.
fn config(tuning: PagesetTuning) -> Config {
    let min_free = Some(PageCount::new(1));
    let watermarks = WatermarkSettings { min_free, scale_factor: 1000, ..WatermarkSettings::default() };
    Config { watermarks, tuning, ..Config::default() }
}

/// On both CPUs: requests, and all frees there can be.
fn requests_and_frees(model: &Model, asks: &[Ask], moves: &mut Vec<Move>) {
    for cpu in 0..2 {
        let requests = asks.iter().map(|&ask| Operation::Alloc(ask));
        let frees = (0..model.blocks() as u16).map(|nth| Operation::Free { nth });
        moves.extend(requests.chain(frees).map(|operation| Move { cpu, operation }));
    }
}

/// Pagesets are drained, CPU 1 goes and comes, frames 3..=5 of a zone go and come, something wrong is
/// freed.
fn changes(zone: u8, moves: &mut Vec<Move>) {
    let changes = [
        Operation::Drain,
        Operation::CpuOffline { cpu: 1 },
        Operation::CpuOnline { cpu: 1 },
        Operation::MemoryOffline(Stretch::OfZone { zone, first: 3, count: 3 }),
        Operation::MemoryBack { nth: 0 },
        Operation::FreeStrange { nth: 0, offset: 33, order: Some(0) },
    ];
    moves.extend(changes.map(|operation| Move { cpu: 0, operation }));
}

/// Runs a search, `depth` moves or more as the environment asks; at least `states` must be found.
fn search(name: &str, states: u64, search: Search<'_>) -> Found {
    let deeper = std::env::var("ZONAL_DEEPER").ok().and_then(|value| value.parse::<u32>().ok());
    let began = Instant::now();
    let found = Search { depth: search.depth + deeper.unwrap_or(0), ..search }.run();
    println!("{name}: {found:?} in {:?}", began.elapsed());
    assert!(found.states >= states, "{name}: {} states, at least {states} expected", found.states);
    assert!(found.in_pagesets_max > 0 && found.short_of_memory > 0);
    found
}

/// A zone of 16 frames, from all free and from half of it in single frames here and there.
#[test]
fn one_zone() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let asks = [Ask::plain(0), Ask::plain(1), Ask::plain(2), Ask::plain(4)];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &asks, moves);
        changes(0, moves);
    };
    let taken = [Operation::Alloc(Ask::plain(0)); 14];
    let scattered: Vec<Operation> =
        taken.into_iter().chain((0..7).map(|nth| Operation::Free { nth })).collect();
    for tuning in [PagesetTuning::Depth, PagesetTuning::Stepwise] {
        for (name, start, depth, states) in
            [("free", &[][..], 5, 120_000), ("scattered", &scattered, 4, 120_000)]
        {
            let config = &config(tuning);
            let telling = Telling::Answers;
            let it = Search { plan: &plan, config, start, moves: &moves, depth, telling };
            search(&format!("one zone, {tuning:?}, {name}"), states, it);
        }
    }
}

/// A zone of 16 frames, single frames and all of it, as time passes.
#[test]
fn one_zone_and_time() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[Ask::plain(0), Ask::plain(3)], moves);
        changes(0, moves);
        for operation in [Operation::Tick, Operation::Advance { ms: 1100 }] {
            moves.push(Move { cpu: 0, operation });
        }
    };
    let config = &config(PagesetTuning::Depth);
    let telling = Telling::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, telling };
    search("one zone and time", 36_000, it);
}

/// Two nodes of 8 frames; memory of the second goes and comes, all of it too, and the cpuset of one request
/// has only that node.
#[test]
fn two_nodes() {
    let plan = Plan::nodes(2, 1).zone(0, ZoneKind::Normal, 16, 8).zone(1, ZoneKind::Normal, 32, 8);
    let asks =
        [Ask::plain(0), Ask::plain(3), Ask { allowed: Some(2), scope: Scope::ThisNode, ..Ask::plain(0) }];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &asks, moves);
        changes(1, moves);
        let all = Operation::MemoryOffline(Stretch::OfZone { zone: 1, first: 0, count: 8 });
        moves.push(Move { cpu: 0, operation: all });
    };
    let config = &config(PagesetTuning::Depth);
    let telling = Telling::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 6, telling };
    search("two nodes", 160_000, it);
}

/// One node with 8 frames for devices and 8 others.
#[test]
fn two_kinds() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Dma, 16, 8).zone(0, ZoneKind::Normal, 24, 8);
    let asks = [Ask::plain(0), Ask::plain(2), Ask { limit: ZoneKind::Dma, ..Ask::plain(0) }];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &asks, moves);
        changes(0, moves);
    };
    let config = &config(PagesetTuning::Depth);
    let telling = Telling::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, telling };
    search("two kinds", 60_000, it);
}

/// Deeper, by places: 16 frames, single ones and all of them.
#[test]
fn places_of_sixteen_frames() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[Ask::plain(0), Ask::plain(4)], moves);
        changes(0, moves);
    };
    let config = &config(PagesetTuning::Depth);
    let telling = Telling::Places;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 7, telling };
    search("places of 16 frames", 24_000, it);
}

/// All histories, however long, by places: single frames in a zone of three.
#[test]
fn places_to_the_end() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 3);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[Ask::plain(0)], moves);
        changes(0, moves);
        moves.push(Move {
            cpu: 0,
            operation: Operation::MemoryOffline(Stretch::OfZone { zone: 0, first: 1, count: 2 }),
        });
    };
    let config = &config(PagesetTuning::Depth);
    let (depth, telling) = (100, Telling::Places);
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth, telling };
    let found = search("places of three frames", 7300, it);
    assert!(found.depth < depth, "there is no end to it");
}
