//! Searches all histories of small worlds, up to a length, and compares the answers with the naive model. Each state is
//! visited once.
//!
//! `ZONAL_DEEPER` is the number of moves by which histories are longer than in a normal run. A search fails if it finds
//! fewer states than expected.

use std::time::Instant;

use zonal::Config;
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{PageCount, ZoneKind};
use zonal_verify::history::{
    FenceEnd, Found, FrameSpec, Model, Move, Operation, Plan, RequestSpec, Scope, Search, StateKey,
};

/// Returns a configuration with watermarks of one, two and three frames over the whole machine. They differ because the
/// watermarks of real machines do.
fn config(tuning: PagesetTuning) -> Config {
    let min_free = Some(PageCount::new(1));
    let watermarks = WatermarkSettings { min_free, scale_factor: 1000, ..WatermarkSettings::default() };
    Config { watermarks, tuning, ..Config::default() }
}

/// Adds all requests of `specs` and all possible frees, on both CPUs.
fn requests_and_frees(model: &Model, specs: &[RequestSpec], moves: &mut Vec<Move>) {
    for cpu in 0..2 {
        let requests = specs.iter().map(|&spec| Operation::Alloc(spec));
        let frees = (0..model.blocks() as u16).map(|nth| Operation::Free { nth });
        moves.extend(requests.chain(frees).map(|operation| Move { cpu, operation }));
    }
}

/// Adds drains of pagesets, hotplug of CPU 1 and frames 3..=5 of a zone, and an invalid free.
fn changes(zone: u8, moves: &mut Vec<Move>) {
    let changes = [
        Operation::Drain,
        Operation::CpuOffline { cpu: 1 },
        Operation::CpuOnline { cpu: 1 },
        Operation::MemoryOffline(FrameSpec::InZone { zone, first: 3, count: 3 }),
        Operation::MemoryBack { nth: 0 },
        Operation::FreeStrange { nth: 0, offset: 33, order: Some(0) },
    ];
    moves.extend(changes.map(|operation| Move { cpu: 0, operation }));
}

/// Runs a search of `depth` moves, or more with `ZONAL_DEEPER`. The search must find at least `states` states.
fn search(name: &str, states: u64, search: Search<'_>) -> Found {
    let deeper = std::env::var("ZONAL_DEEPER").ok().and_then(|value| value.parse::<u32>().ok());
    let began = Instant::now();
    let found = Search { depth: search.depth + deeper.unwrap_or(0), ..search }.run();
    println!("{name}: {found:?} in {:?}", began.elapsed());
    assert!(found.states >= states, "{name}: {} states, at least {states} expected", found.states);
    assert!(found.in_pagesets_max > 0 && found.short_of_memory > 0);
    found
}

/// Searches a zone of 16 frames, first with all frames free, then with half of them allocated as scattered single
/// frames.
#[test]
fn one_zone() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let specs = [RequestSpec::plain(0), RequestSpec::plain(1), RequestSpec::plain(2), RequestSpec::plain(4)];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &specs, moves);
        changes(0, moves);
    };
    let taken = [Operation::Alloc(RequestSpec::plain(0)); 14];
    let scattered: Vec<Operation> =
        taken.into_iter().chain((0..7).map(|nth| Operation::Free { nth })).collect();
    for tuning in [PagesetTuning::Depth, PagesetTuning::Stepwise] {
        for (name, start, depth, states) in
            [("free", &[][..], 5, 120_000), ("scattered", &scattered, 4, 120_000)]
        {
            let config = &config(tuning);
            let key = StateKey::Answers;
            let it = Search { plan: &plan, config, start, moves: &moves, depth, key };
            search(&format!("one zone, {tuning:?}, {name}"), states, it);
        }
    }
}

/// Searches a zone of 16 frames, with requests for single frames and for blocks of 8 frames, while time passes.
#[test]
fn one_zone_and_time() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[RequestSpec::plain(0), RequestSpec::plain(3)], moves);
        changes(0, moves);
        for operation in [Operation::Tick, Operation::Advance { ms: 1100 }] {
            moves.push(Move { cpu: 0, operation });
        }
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, key };
    search("one zone and time", 36_000, it);
}

/// Searches a zone of 16 frames, with runs of three frames, a range, splits, and frees with wrong numbers of frames.
#[test]
fn one_zone_and_runs() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[RequestSpec::plain(0), RequestSpec::plain(2)], moves);
        changes(0, moves);
        let aligned = RequestSpec::plain(3);
        let range = FrameSpec::InZone { zone: 0, first: 5, count: 6 };
        let requests = [
            Operation::AllocFrames { spec: RequestSpec::plain(0), count: 3 },
            Operation::AllocFrames { spec: aligned, count: 2 },
            Operation::AllocRange { span: range, kind: PageKind::Kernel },
        ];
        let of_held = (0..model.blocks() as u16).flat_map(|nth| {
            [
                Operation::FreeFrames { nth, more: 1 },
                Operation::FreeFrames { nth, more: -1 },
                Operation::Split { nth, to: 0 },
                Operation::Split { nth, to: 1 },
            ]
        });
        moves.extend(requests.into_iter().chain(of_held).map(|operation| Move { cpu: 0, operation }));
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, key };
    search("one zone and runs", 80_000, it);
}

/// Searches a zone of 16 frames in which frames are retired, and ranges are fenced and taken offline.
#[test]
fn one_zone_with_fences_and_bad_frames() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[RequestSpec::plain(0), RequestSpec::plain(2)], moves);
        changes(0, moves);
        let range = FrameSpec::InZone { zone: 0, first: 2, count: 7 };
        let fence = |end| Operation::Fence { span: range, nth: 0, end };
        let several = [
            Operation::AllocFrames { spec: RequestSpec::plain(0), count: 3 },
            Operation::Split { nth: 0, to: 0 },
            Operation::Retire { nth: 0, at: 1 },
            Operation::Retire { nth: 0, at: 4 },
            Operation::Retire { nth: 1, at: 0 },
            Operation::MemoryMoved(range),
            fence(FenceEnd::Release),
            fence(FenceEnd::Alloc(PageKind::User)),
            fence(FenceEnd::Offline),
        ];
        moves.extend(several.map(|operation| Move { cpu: 0, operation }));
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, key };
    search("one zone with fences and bad frames", 100_000, it);
}

/// Searches two nodes of 8 frames. A part of the second node's memory, or all of it, goes offline and online, and the
/// cpuset of one request has only that node.
#[test]
fn two_nodes() {
    let plan = Plan::nodes(2, 1).zone(0, ZoneKind::Normal, 16, 8).zone(1, ZoneKind::Normal, 32, 8);
    let specs = [
        RequestSpec::plain(0),
        RequestSpec::plain(3),
        RequestSpec { allowed: Some(2), scope: Scope::ThisNode, ..RequestSpec::plain(0) },
    ];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &specs, moves);
        changes(1, moves);
        let all = Operation::MemoryOffline(FrameSpec::InZone { zone: 1, first: 0, count: 8 });
        moves.push(Move { cpu: 0, operation: all });
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 6, key };
    search("two nodes", 160_000, it);
}

/// Searches one node with 8 frames in zone DMA and 8 in zone Normal.
#[test]
fn two_kinds() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Dma, 16, 8).zone(0, ZoneKind::Normal, 24, 8);
    let specs = [
        RequestSpec::plain(0),
        RequestSpec::plain(2),
        RequestSpec { limit: ZoneKind::Dma, ..RequestSpec::plain(0) },
    ];
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &specs, moves);
        changes(0, moves);
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Answers;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 5, key };
    search("two kinds", 60_000, it);
}

/// Searches 16 frames to a greater depth, by the positions of frames, with requests for single frames and for all 16.
#[test]
fn positions_of_sixteen_frames() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 16);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[RequestSpec::plain(0), RequestSpec::plain(4)], moves);
        changes(0, moves);
    };
    let config = &config(PagesetTuning::Depth);
    let key = StateKey::Places;
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth: 7, key };
    search("positions of 16 frames", 24_000, it);
}

/// Searches all histories of any length, by the positions of frames, for single frames in a zone of three.
#[test]
fn positions_of_three_frames_to_the_end() {
    let plan = Plan::nodes(1, 2).zone(0, ZoneKind::Normal, 16, 3);
    let moves = |model: &Model, moves: &mut Vec<Move>| {
        requests_and_frees(model, &[RequestSpec::plain(0)], moves);
        changes(0, moves);
        moves.push(Move {
            cpu: 0,
            operation: Operation::MemoryOffline(FrameSpec::InZone { zone: 0, first: 1, count: 2 }),
        });
    };
    let config = &config(PagesetTuning::Depth);
    let (depth, key) = (100, StateKey::Places);
    let it = Search { plan: &plan, config, start: &[], moves: &moves, depth, key };
    let found = search("positions of three frames", 7300, it);
    assert!(found.depth < depth, "the search did not end");
}
