//! Generates histories: machines, configurations and operations, which it reads from bytes.
//!
//! Fuzzing and random histories differ only in the source of the bytes. If bytes are missing, every decision is its
//! first choice.
//!
//! Related files: `operation.rs` defines operations, and `plan.rs` machines.

use zonal::Config;
use zonal::config::{Hardening, InvalidFree, NodeReclaim, OwnedBlocks, ZonelistCache};
use zonal::request::{PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{MAX_ORDER_LIMIT, Order, PageCount, ZoneKind};

use super::operation::{FenceEnd, FrameSpec, Operation, RequestSpec, Scope, Setting, Wait};
use super::plan::{Plan, ZonePlan};
use super::reclaimer::ReclaimMode;
use crate::choices::Choices;

const TUNINGS: [PagesetTuning; 3] = [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed];
const CACHES: [ZonelistCache; 6] = [
    ZonelistCache::On,
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Jackson2006,
    ZonelistCache::Off,
];
const NODE_RECLAIMS: [NodeReclaim; 2] = [NodeReclaim::OFF, NodeReclaim::ON];

/// Reads a machine of one to three nodes with up to three CPUs each. Some nodes may lack CPUs or memory. Each node has
/// up to four zones, with holes between and in them.
#[must_use]
pub fn plan(choices: &mut Choices<'_>) -> Plan {
    let count = 1 + choices.small(3) as u16;
    let (mut plan, mut cpu) = (Plan::default(), 0);
    let mut at = choices.below(5000);
    for id in 0..count {
        let cpus = choices.small(4) as u32;
        // A machine needs at least one CPU.
        let cpus = if id + 1 == count && cpu == 0 { cpus.max(1) } else { cpus };
        plan.nodes.push((id, (cpu..cpu + cpus).collect()));
        cpu += cpus;
        let distances = (0..count).map(|to| if to == id { 10 } else { 10 + choices.byte() % 40 });
        plan.distances.push(distances.collect());
        let kinds = choices.byte();
        for kind in ZoneKind::ALL {
            // A machine needs at least one zone.
            let needed = id + 1 == count && kind == ZoneKind::Movable && plan.zones.is_empty();
            if Choices::has(kinds, kind.index() as u32) || needed {
                let zone = zone(choices, at, id, kind);
                at = zone.start + zone.spanned + u64::from(choices.byte()) * 8;
                plan.zones.push(zone);
            }
        }
    }
    plan
}

/// Reads a zone that starts at frame `at`, with up to four ranges of memory.
fn zone(choices: &mut Choices<'_>, at: u64, node: u16, kind: ZoneKind) -> ZonePlan {
    let most = choices.pick(&[600, 64, 2500, 64, 600, 40_000, 200, 9000]);
    let spanned = 1 + choices.below(most);
    let mut managed = Vec::new();
    let mut next = at + u64::from(choices.byte() % 16);
    while next < at + spanned && managed.len() < 4 {
        let frames = (1 + choices.below(spanned)).min(at + spanned - next);
        managed.push((next, frames));
        next += frames + 1 + u64::from(choices.byte());
    }
    ZonePlan { node, kind, start: at, spanned, managed }
}

/// Reads a configuration.
#[must_use]
pub fn config(choices: &mut Choices<'_>) -> Config {
    let config = Config {
        tuning: choices.pick(&TUNINGS),
        zonelist_cache: choices.pick(&CACHES),
        node_reclaim: choices.pick(&NODE_RECLAIMS),
        invalid_free: choices.pick(&[InvalidFree::Checked, InvalidFree::Exact]),
        counters: CounterRules {
            threshold: choices.pick(&[
                ThresholdRule::Scaled,
                ThresholdRule::Fixed(1),
                ThresholdRule::Fixed(125),
            ]),
            fold: choices.pick(&[FoldRule::Overstep, FoldRule::ToZero]),
            totals: choices.pick(&[TotalsRule::PerNode, TotalsRule::AndMachine]),
            pressure: choices.pick(&[PressureRule::Lowered, PressureRule::Unchanged]),
        },
        free_area_min: PageCount::new(choices.pick(&[1 << 14, 0])),
        max_order: Order::new(choices.pick(&[10, 11, 12, 18])).expect("orders up to 18 exist"),
        past: zonal_history::PAST,
        ..Config::default()
    };
    let (quarantine, owned_blocks) = choices.pick(&[
        (0, OwnedBlocks::Off),
        (0, OwnedBlocks::On),
        (1, OwnedBlocks::Off),
        (50, OwnedBlocks::On),
    ]);
    let hardening = Hardening { quarantine: PageCount::new(quarantine), ..Hardening::default() };
    Config { hardening, owned_blocks, ..config }
}

/// Reads weights and sets of nodes for policies, in addition to the policies that every machine has.
pub fn policies(choices: &mut Choices<'_>, plan: &mut Plan) {
    plan.weights = (0..3).map(|_| choices.byte() % 4).collect();
    plan.masks = vec![1 << (choices.byte() % 4), choices.byte() & 15, choices.byte() & 15];
}

/// Reads one operation, or many of one kind, and passes each to `apply`.
pub fn operations(choices: &mut Choices<'_>, plan: &Plan, mut apply: impl FnMut(Operation)) {
    apply(match choices.small(32) {
        0..8 => Operation::Alloc(spec(choices)),
        8..13 => Operation::Free { nth: choices.word() },
        13 => of_frames(choices, plan),
        14 => {
            let (count, kind) = (choices.byte() % 200, choices.pick(&PageKind::ALL));
            Operation::AllocBulk { spec: RequestSpec { kind, ..RequestSpec::plain(0) }, count }
        }
        15 => {
            let (nth, count) = (choices.word(), choices.byte());
            Operation::FreeBulk { nth, count, repeats_first: count % 2 == 1 }
        }
        16 | 17 => free_wrongly(choices),
        18 => Operation::RunOn { cpu: choices.word() as u8 },
        19 => Operation::Advance { ms: choices.below(3000) as u16 },
        20 => Operation::SetClock { ms: choices.below(5000) as u16 },
        21 => Operation::Tick,
        22 => Operation::Drain,
        23 => {
            let choice = choices.byte();
            let cpu = choice >> 1;
            if Choices::has(choice, 0) { Operation::CpuOnline { cpu } } else { Operation::CpuOffline { cpu } }
        }
        24 => match span(choices, plan) {
            (span, 224..) => Operation::MemoryMoved(span),
            (span, _) => Operation::MemoryOffline(span),
        },
        25 => match span(choices, plan) {
            (_, nth @ 192..) => Operation::MemoryBack { nth: nth - 192 },
            (span, _) => Operation::MemoryOnline(span),
        },
        26 => Operation::Change(setting(choices)),
        27 => {
            let choice = choices.byte();
            if choice < 192 {
                Operation::SetReclaimMode(ReclaimMode::ALL[usize::from(choice) % ReclaimMode::ALL.len()])
            } else {
                Operation::Promise { pages: choice % 64 }
            }
        }
        28 => Operation::Background { node: choices.byte() % 4 },
        29 => {
            let (count, from, step) = (choices.below(400), choices.word(), choices.byte());
            for at in 0..count as u16 {
                apply(Operation::Free { nth: from.wrapping_add(at.wrapping_mul(u16::from(step))) });
            }
            return;
        }
        30 => {
            let (count, kind) = (choices.below(400), choices.pick(&PageKind::ALL));
            let spec = RequestSpec { kind, urgency: Urgency::Reserve, ..RequestSpec::plain(0) };
            (0..count).for_each(|_| apply(Operation::Alloc(spec)));
            return;
        }
        _ => Operation::Check,
    });
}

/// Reads an operation on any number of frames.
fn of_frames(choices: &mut Choices<'_>, plan: &Plan) -> Operation {
    match choices.small(8) {
        0..3 => {
            let spec = RequestSpec { order: choices.byte() % 4, ..spec(choices) };
            Operation::AllocFrames { spec, count: choices.below(1100) as u16 }
        }
        3 => Operation::AllocRange { span: span(choices, plan).0, kind: choices.pick(&PageKind::ALL) },
        4 | 5 => {
            let more = if choices.small(3) == 0 { (choices.byte() % 32) as i8 - 16 } else { 0 };
            Operation::FreeFrames { nth: choices.word(), more }
        }
        6 => Operation::Split { nth: choices.word(), to: choices.byte() % 11 },
        _ => match choices.small(4) {
            0 => Operation::Retire { nth: choices.word(), at: choices.word() },
            end => {
                let kind = choices.pick(&PageKind::ALL);
                let end = [FenceEnd::Release, FenceEnd::Alloc(kind), FenceEnd::Offline][end - 1];
                Operation::Fence { span: span(choices, plan).0, nth: choices.word(), end }
            }
        },
    }
}

fn spec(choices: &mut Choices<'_>) -> RequestSpec {
    let most = choices.pick(&[3, 0, 10, MAX_ORDER_LIMIT]);
    let order = choices.byte() % (most + 1);
    let (flags, kind) = (choices.byte(), choices.pick(&PageKind::ALL));
    let urgency = choices.pick(&[Urgency::Normal, Urgency::Reserve, Urgency::High, Urgency::Atomic]);
    let has = |bit| Choices::has(flags, bit);
    let limit = if has(0) { choices.pick(&ZoneKind::ALL) } else { ZoneKind::Movable };
    let scope = if has(1) { Scope::ThisNode } else { Scope::AnyNode };
    let wait = match (has(2), has(3)) {
        (true, _) => Wait::Never,
        (_, true) => Wait::Once,
        _ => Wait::May,
    };
    let allowed = has(4).then(|| choices.byte() & 15);
    let policy = if has(5) { choices.byte() } else { 0 };
    RequestSpec { order, kind, urgency, limit, policy, allowed, scope, wait }
}

/// Reads a free of any frame with any order, which may happen to be valid.
fn free_wrongly(choices: &mut Choices<'_>) -> Operation {
    let (near, place) = (choices.byte(), choices.word());
    let is_near = near < 128;
    let frame = if is_near { 0 } else { choices.word() };
    let order = match near {
        _ if near.is_multiple_of(3) => Some(choices.byte() % (MAX_ORDER_LIMIT + 1)),
        _ if is_near => None,
        _ => Some(near % (MAX_ORDER_LIMIT + 1)),
    };
    if near % 16 == 15 {
        Operation::FreeAgain
    } else if is_near {
        Operation::FreeStrange { nth: place, offset: 26 + near % 16, order }
    } else {
        Operation::FreeAny { frame, order: order.unwrap_or(0) }
    }
}

/// Reads a range of frames, in a zone or anywhere. Also returns the byte whose lowest bit selects the whole range.
fn span(choices: &mut Choices<'_>, plan: &Plan) -> (FrameSpec, u8) {
    let at = choices.small(plan.zones.len() + 1);
    let Some(zone) = plan.zones.get(at) else {
        let flags = choices.byte();
        let is_whole = Choices::has(flags, 0);
        let [first, count] = if is_whole { [0, u16::MAX] } else { [choices.word(), choices.word()] };
        return (FrameSpec::Anywhere { first, count }, flags);
    };
    let (start, count) = zone
        .managed
        .get(choices.small(zone.managed.len() + 1))
        .copied()
        .unwrap_or((zone.start, zone.spanned));
    let flags = choices.byte();
    let is_whole = Choices::has(flags, 0);
    let skip = if is_whole { 0 } else { choices.below(count) };
    let count = if is_whole { count } else { choices.below(count - skip + 2) };
    let first = (start - zone.start + skip) as u16;
    (FrameSpec::InZone { zone: at as u8, first, count: count as u16 }, flags)
}

fn setting(choices: &mut Choices<'_>) -> Setting {
    match choices.small(5) {
        0 => Setting::Tuning(choices.pick(&TUNINGS)),
        1 => Setting::Cache(choices.pick(&CACHES)),
        2 => Setting::NodeReclaim(choices.pick(&NODE_RECLAIMS)),
        3 => Setting::HighFraction(choices.pick(&[0, 8, 1, 1000, u32::MAX])),
        _ => Setting::Watermarks {
            min_free: Choices::has(choices.byte(), 0).then(|| choices.below(9000) as u16),
            scale_factor: choices.pick(&[10, 1, 100, 1000, 3000]),
            lowmem_reserve_ratio: [(); ZoneKind::COUNT].map(|()| choices.pick(&[256, 0, 1, 32])),
        },
    }
}
