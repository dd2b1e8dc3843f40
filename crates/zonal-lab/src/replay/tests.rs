//! Replays of traces that are written by hand, with refills and drains of known size.
//!
//! Related files: `kernel.rs` and `ours.rs` are tested here.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use zonal::config::ZonelistCache;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Moment, Order, Pfn};
use zonal_machine::pageset_limits::HighRule;
use zonal_machine::{KernelVersion, MachineModel, Rules, preset};
use zonal_trace::{Action, Event, Gfp, Header, KernelTexts, Migratetype, Origin, Tid, TraceWriter, Trailer};

use super::*;

/// Frames of the zone, which is Normal and has one CPU.
const START: u64 = 1 << 20;
const FRAMES: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn machine() -> MachineModel {
    let text = format!(
        r#"{{"name": "one", "page_bytes": 4096,
            "nodes": [{{"id": 0, "cpus": [0], "distances": {{"0": 10}}}}],
            "zones": [{{"node": 0, "kind": "Normal", "start": {START}, "spanned": {FRAMES}, "present": {FRAMES}, "managed": {FRAMES}}}]}}"#
    );
    MachineModel::from_json(&text, "test").unwrap()
}

/// `/proc/zoneinfo` of the zone, with a pageset that has `count` frames.
fn zoneinfo(count: u64) -> String {
    format!(
        "Node 0, zone   Normal\n  per-node stats\n      nr_anon 1\n  pages free     900000\n        boost    0\n        min      1000\n        \
         low      1250\n        high     1500\n        spanned  {FRAMES}\n        present  {FRAMES}\n        managed  {FRAMES}\n        \
         protection: (0, 0, 0)\n  pagesets\n    cpu: 0\n              count:    {count}\n              high:     3000\n              \
         batch:    63\n              high_min: 3000\n              high_max: 100000\n  vm stats threshold: 60\n"
    )
}

pub(crate) fn header(kernel: &str, zoneinfo: Option<String>) -> Header {
    Header {
        origin: Origin::Tracefs,
        writer: "test".to_owned(),
        kernel: Some(kernel.to_owned()),
        machine: Some(machine().to_json()),
        command: Vec::new(),
        clock: "mono".to_owned(),
        started_ns: 10 * SECOND,
        started_unix_ns: 1,
        cpus: vec![0],
        buffer_kib: 64,
        recorder: Vec::new(),
        names: BTreeMap::new(),
        gfp_names: Vec::new(),
        formats: Vec::new(),
        absent: Vec::new(),
        before: KernelTexts {
            zoneinfo,
            buddyinfo: Some("Node 0, zone   Normal  100 50 0 0 0 0 0 0 0 17 6\n".to_owned()),
            vmstat: None,
        },
    }
}

/// Events of CPU 0, a microsecond apart.
pub(crate) struct Events(Vec<Event>, u64);

impl Events {
    pub(crate) fn from_second(second: u64) -> Self {
        Self(Vec::new(), (10 + second) * SECOND + SECOND / 5)
    }

    /// Moves all events to another CPU.
    pub(crate) fn on(mut self, cpu: u32) -> Self {
        self.0.iter_mut().for_each(|event| event.cpu = CpuId::new(cpu));
        self
    }

    fn push(&mut self, action: Action) {
        self.1 += 1000;
        self.0.push(Event { at: Moment::from_ns(self.1), cpu: CpuId::new(0), thread: Tid(5), action });
    }

    pub(crate) fn alloc(&mut self, frame: u64) {
        let page = Some(Pfn::new(START + frame));
        self.push(Action::Alloc { page, order: Order::PAGE, gfp: Gfp(0), migratetype: Migratetype(1) });
    }

    fn free(&mut self, frame: u64) {
        self.push(Action::Free { page: Pfn::new(START + frame), order: Order::PAGE });
    }

    fn refill(&mut self, frames: std::ops::Range<u64>) {
        for frame in frames {
            self.push(Action::ZoneLocked {
                page: Some(Pfn::new(START + frame)),
                order: Order::PAGE,
                migratetype: Migratetype(1),
                is_refill: true,
            });
        }
    }

    fn refill_and_alloc(&mut self, frames: std::ops::Range<u64>) {
        self.refill(frames.clone());
        frames.for_each(|frame| self.alloc(frame));
    }

    fn drain(&mut self, frames: std::ops::Range<u64>) {
        for frame in frames {
            let page = Pfn::new(START + frame);
            self.push(Action::Drain { page, order: Order::PAGE, migratetype: Migratetype(1) });
        }
    }

    /// Writes a trace to a folder.
    pub(crate) fn write(&self, header: &Header, folder: &Path) -> PathBuf {
        self.write_with(header, folder, 0)
    }

    /// Writes a trace that lost events.
    fn write_with(&self, header: &Header, folder: &Path, lost: u64) -> PathBuf {
        let mut writer = TraceWriter::new(Vec::new(), header).unwrap();
        self.0.iter().for_each(|event| writer.push(event).unwrap());
        let trailer = Trailer {
            ended_ns: self.1 + 1,
            cpus: vec![zonal_trace::CpuTotals { lost, ..Default::default() }],
            kinds: Default::default(),
            skipped: 0,
            command_status: None,
            after: KernelTexts::default(),
        };
        let bytes = writer.finish(trailer).unwrap().0;
        let file = folder.join("t.trace");
        std::fs::File::create(&file).unwrap().write_all(&bytes).unwrap();
        file
    }
}

fn by_kernel(events: &Events, header: &Header) -> KernelReplay {
    let folder = tempfile::tempdir().unwrap();
    replay_kernel(&events.write(header, folder.path()), |_| true).unwrap()
}

fn options(tunings: &[PagesetTuning]) -> OwnOptions<'_> {
    OwnOptions { tunings, zonelist_cache: ZonelistCache::default(), machine: None, before: None, seed: 1 }
}

#[test]
fn refills_of_known_size_are_predicted_and_counted() {
    // The pageset is empty, so a thousand requests need 63 + 126 + 252 + 504 + 1008 frames.
    let mut events = Events::from_second(2);
    let mut frame = 0;
    for size in [63, 126, 252, 504, 1008] {
        events.refill(frame..frame + size);
        (frame..frame + size).take_while(|frame| *frame < 1000).for_each(|frame| events.alloc(frame));
        frame += size;
    }
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(0))));
    let wanted = Pair { predicted: 1953, traced: 1953 };
    assert_eq!(replay.cpus, [CpuPages { cpu: 0, refilled: wanted, drained: Pair::default() }]);
    assert_eq!((replay.from_seconds, replay.is_complete, replay.lost), (1.0, true, 0));
    // The same requests with the rule of another kernel: batches that do not grow.
    let replay = by_kernel(&events, &header("6.1.0-13-amd64", Some(zoneinfo(0))));
    assert_eq!(replay.cpus[0].refilled, Pair { predicted: 63 * 16, traced: 1953 });
}

#[test]
fn frames_at_the_start_are_used_before_refills() {
    // The count of 500 is known, and the first refill shows after 300 requests that only 300 were movable.
    let mut events = Events::from_second(0);
    (0..300).for_each(|frame| events.alloc(frame));
    events.refill_and_alloc(1000..1063);
    let mut later = Events::from_second(1);
    later.refill_and_alloc(2000..2126);
    events.0.extend(later.0);
    events.1 = later.1;
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(500))));
    assert_eq!(replay.cpus[0].refilled, Pair { predicted: 126, traced: 126 });
}

/// Returns the limits of a pageset's `high` with which a replay of a kernel's `/proc/zoneinfo` starts.
fn limits(version: KernelVersion, zoneinfo: &str) -> (u64, u64) {
    let mut zones = start::parse(zoneinfo).unwrap();
    zones[0].compute_limits(&machine(), &Rules::of(version));
    let limits = zones[0].pagesets[&CpuId::new(0)].limits;
    (limits.min().get(), limits.max().get())
}

#[test]
fn limits_that_a_kernel_does_not_print_are_computed() {
    let printed = zoneinfo(0);
    let unprinted: String =
        printed.lines().filter(|line| !line.contains("high_")).map(|line| format!("{line}\n")).collect();
    assert_ne!(printed, unprinted);
    for version in KernelVersion::COMPARED {
        // Only `high` is printed: it is fixed before 6.7, and the momentary value of what is tuned since.
        let tuned = Rules::of(version).high == HighRule::Tuned;
        let wanted = if tuned { (1250, FRAMES / 8) } else { (3000, 3000) };
        assert_eq!(limits(version, &unprinted), wanted, "{version}");
        assert_eq!(limits(version, &printed), (3000, 100_000), "{version}");
    }
    // A boost of the watermarks does not count.
    let boosted = unprinted.replace("boost    0", "boost    50").replace("1250", "1300");
    assert_eq!(limits(KernelVersion::new(6, 12), &boosted), (1250, FRAMES / 8));
}

#[test]
fn cpus_without_events_adjust_their_pagesets() {
    // 4500 frames are there, and `high` falls from 3000 to the lower limit in the seconds without events.
    let events = Events::from_second(2);
    let text = zoneinfo(4500).replace("high_min: 3000", "high_min: 1000");
    let replay = by_kernel(&events, &header("6.12.1", Some(text)));
    assert!(replay.cpus[0].drained.predicted > 0, "{:?}", replay.cpus);
}

#[test]
fn drains_follow_the_frees_in_a_row() {
    // 2999 frames are there, so every free drains: 63 frames at least.
    let mut events = Events::from_second(2);
    events.free(0);
    events.drain(500..563);
    (1..63).for_each(|frame| events.free(frame));
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(2999))));
    assert_eq!(replay.cpus[0].drained, Pair { predicted: 63, traced: 63 });
    events.free(63);
    events.drain(600..664);
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(2999))));
    assert_eq!(replay.cpus[0].drained, Pair { predicted: 63 + 64, traced: 63 + 64 });
    assert_eq!(replay.cpus[0].drained.error_percent(), Some(0.0));
    assert_eq!(replay.cpus[0].refilled.error_percent(), None);
}

#[test]
fn lists_of_frees_reach_the_pageset_one_by_one() {
    // The kernel reports all frees of a list first. A request of another thread between them must not come after them.
    let mut events = Events::from_second(2);
    (0..10).for_each(|frame| events.free(frame));
    for frame in 0..10 {
        events.push(Action::FreeBatched { page: Pfn::new(START + frame) });
        if frame == 0 {
            events.drain(500..563);
        }
    }
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(2999))));
    assert_eq!(replay.cpus[0].drained, Pair { predicted: 63, traced: 63 });
}

#[test]
fn blocks_freed_alone_after_a_list_reach_the_pageset_before_their_drain() {
    let huge = Order::new(9).unwrap();
    let mut events = Events::from_second(0);
    (0..10).for_each(|frame| events.free(frame));
    (0..10).for_each(|frame| events.push(Action::FreeBatched { page: Pfn::new(START + frame) }));
    for block in 1..=6 {
        events.push(Action::Free { page: Pfn::new(START + block * 512), order: huge });
    }
    let page = Pfn::new(START + 512);
    events.push(Action::Drain { page, order: huge, migratetype: Migratetype(1) });
    // 10 + 6 * 512 frames were there, and 512 left: one more frame is far from 3000.
    let mut later = Events::from_second(2);
    later.free(20);
    later.alloc(20);
    events.0.extend(later.0);
    events.1 = later.1;
    let replay = by_kernel(&events, &header("6.1.0-13-amd64", Some(zoneinfo(0))));
    assert_eq!(replay.cpus[0].drained, Pair::default());
}

#[test]
fn requests_that_the_kernel_does_not_report_are_known_from_their_frees() {
    // The frames of the second refill were never reported as allocated, but are freed.
    let mut events = Events::from_second(2);
    events.refill_and_alloc(0..63);
    events.refill(100..226);
    (100..226).for_each(|frame| events.free(frame));
    let replay = by_kernel(&events, &header("6.18.1", Some(zoneinfo(0))));
    assert_eq!(replay.cpus[0].refilled, Pair { predicted: 63 + 126, traced: 63 + 126 });
}

#[test]
fn two_mib_pages_before_and_after_a_drain() {
    let replay = by_kernel(&Events::from_second(2), &header("6.18.1", Some(zoneinfo(1000))));
    let huge = replay.huge_at_start.unwrap();
    // 17 order-9 blocks and 6 order-10 blocks.
    assert_eq!((huge.before(2048), huge.before(20)), (29, 20));
    // 1000 frames in pagesets and 200 in smaller blocks form 2 at most.
    assert_eq!((huge.after_at_most(2048), huge.after_at_most(30)), (31, 30));
    assert_eq!(huge.all(), 31);
    assert_eq!(replay.huge_at_end, None);
}

#[test]
fn traces_without_what_a_replay_needs_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let events = Events::from_second(2);
    let error = |header: &Header| {
        let file = events.write(header, folder.path());
        replay_kernel(&file, |_| true).unwrap_err().to_string()
    };
    let whole = header("6.18.1", Some(zoneinfo(0)));
    let missing = error(&header("6.18.1", None));
    assert!(missing.ends_with("t.trace: the trace does not have /proc/zoneinfo at the start, as traces of `zonal trace record` do"), "{missing}");
    let missing = error(&Header { kernel: None, ..whole.clone() });
    assert!(missing.contains("the kernel's release"), "{missing}");
    let missing = error(&Header { machine: None, ..whole.clone() });
    assert!(missing.contains("does not have the machine"), "{missing}");
    let wrong = error(&header("six", Some(zoneinfo(0))));
    assert!(wrong.contains("t.trace: the kernel's release: \"six\" is not a kernel version"), "{wrong}");
    let empty = error(&header("6.18.1", Some("no zones".to_owned())));
    assert!(empty.contains("it has no zone with pagesets"), "{empty}");
    let options = options(&[PagesetTuning::Fixed]);
    let file = events.write(&Header { machine: None, ..whole }, folder.path());
    let missing = replay_ours(&file, &options, &AtomicBool::new(false), |_| {}).unwrap_err().to_string();
    assert!(missing.contains("name one with --machine"), "{missing}");
    assert!(replay_kernel(&folder.path().join("none"), |_| true).is_err());
}

/// A loop of requests and frees, some of frames from before the trace.
fn swings() -> Events {
    let mut events = Events::from_second(0);
    for round in 0..6 {
        let frames = 4000 * (1 + round % 3);
        (0..frames).for_each(|frame| events.alloc(frame));
        (0..frames).for_each(|frame| events.free(frame));
        (0..100).for_each(|frame| events.free(500_000 + 1000 * round + frame));
    }
    events
}

#[test]
fn rows_of_rules_are_the_same_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let file = swings().write(&header("6.18.1", Some(zoneinfo(0))), folder.path());
    let tunings = [PagesetTuning::Fixed, PagesetTuning::Stepwise];
    let run = |machine: Option<&MachineModel>, seed| {
        let options = OwnOptions { machine, seed, ..options(&tunings) };
        replay_ours(&file, &options, &AtomicBool::new(false), |_| {}).unwrap()
    };
    let first = run(None, 1);
    assert_eq!(first, run(None, 1));
    assert_eq!((first.filled, first.unknown_frees), (FRAMES - 900_000, 0));
    let [fixed, stepwise] = &first.rows[..] else { panic!("two rows") };
    assert_eq!((fixed.served, fixed.failed, stepwise.served), (48_000, 0, 48_000));
    // The swings are larger than a fixed `high`, and a tuned one grows with them.
    assert!(fixed.refills > 2 * stepwise.refills, "{fixed:?} {stepwise:?}");
    assert!(fixed.pageset_frames_most < stepwise.pageset_frames_most, "{fixed:?} {stepwise:?}");
    assert_eq!((fixed.hit, fixed.miss), (48_000, 0));
    assert!(fixed.free_huge_drained >= fixed.free_huge_end);
    // Another machine is filled to the same share.
    let desktop = preset("desktop").unwrap();
    let other = run(Some(&desktop), 1);
    assert!(other.machine == desktop.name && other.rows[0].served == 48_000 && other.filled > 0, "{other:?}");
}

#[test]
fn recorded_cpus_are_the_machines_own_if_it_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let quad = preset("quad-10-12-32").unwrap();
    for (recorded, expected, has_all) in [(vec![3, 40], vec![3, 40], true), (vec![3, 400], vec![0, 1], false)]
    {
        let file = swings().on(3).write(&Header { cpus: recorded, ..header("6.18.1", None) }, folder.path());
        let reader = zonal_trace::TraceReader::open(&file).unwrap();
        let script = script::Script::new(reader, String::new(), &quad, u64::MAX);
        assert_eq!(script.cpus(), expected);
        let trace = OwnTrace::open(&file, Some(&quad), None).unwrap();
        assert_eq!(trace.has_recorded_cpus, has_all);
    }
}

#[test]
fn both_replays_count_lost_events() {
    let folder = tempfile::tempdir().unwrap();
    let file = swings().write_with(&header("6.18.1", Some(zoneinfo(0))), folder.path(), 5);
    assert_eq!(replay_kernel(&file, |_| true).unwrap().lost, 5);
    let ours =
        replay_ours(&file, &options(&[PagesetTuning::Fixed]), &AtomicBool::new(false), |_| {}).unwrap();
    assert_eq!((ours.lost, ours.has_recorded_cpus), (5, true));
}

#[test]
fn a_stop_ends_both_replays() {
    let folder = tempfile::tempdir().unwrap();
    let file = swings().write(&header("6.18.1", Some(zoneinfo(0))), folder.path());
    let options = options(&[PagesetTuning::Fixed]);
    let stopped = replay_ours(&file, &options, &AtomicBool::new(true), |_| {});
    assert!(matches!(stopped, Err(ReplayError::Run(RunError::Interrupted))), "{stopped:?}");
    let mut calls = 0;
    replay_kernel(&file, |_| {
        calls += 1;
        false
    })
    .unwrap();
    assert_eq!(calls, 1);
}

#[test]
fn an_event_long_after_the_start_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = swings();
    events.1 += 32 * 86_400 * SECOND;
    events.free(START);
    let file = events.write(&header("6.18.1", Some(zoneinfo(0))), folder.path());
    let options = options(&[PagesetTuning::Fixed]);
    let error = replay_ours(&file, &options, &AtomicBool::new(false), |_| {}).unwrap_err().to_string();
    assert!(error.contains("t.trace: an event is 27648") && error.contains("at most 2678400"), "{error}");
}

#[test]
fn hostile_figures_end_in_results_or_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut events = swings();
    for order in [0, 3, 9, 12, 18] {
        let order = Order::new(order).unwrap();
        for page in [0, START, u64::MAX - 1] {
            let page = Pfn::new(page);
            events.push(Action::Free { page, order });
            events.push(Action::Alloc {
                page: Some(page),
                order,
                gfp: Gfp(u64::MAX),
                migratetype: Migratetype(-7),
            });
            events.push(Action::Fallback {
                page,
                order,
                from_order: order,
                migratetype: Migratetype(i32::MAX),
                from_migratetype: Migratetype(2),
                changes_owner: true,
            });
            events.push(Action::Drain { page, order, migratetype: Migratetype(i32::MIN) });
        }
    }
    let text = zoneinfo(7).replace("63", &u64::MAX.to_string()).replace("1500", &u64::MAX.to_string());
    for kernel in ["5.10", "6.1", "6.18"] {
        let file = events.write(&header(kernel, Some(text.clone())), folder.path());
        replay_kernel(&file, |_| true).unwrap();
        let options = OwnOptions { seed: 3, ..options(&[PagesetTuning::Depth]) };
        replay_ours(&file, &options, &AtomicBool::new(false), |_| {}).unwrap();
    }
}

#[test]
fn reserves_are_those_of_the_last_kind_with_frames() {
    let text = zoneinfo(0).replace("(0, 0, 0)", "(0, 3019, 24090, 0, 0)");
    assert_eq!(start::parse(&text).unwrap()[0].reserve, 24_090);
}

#[test]
fn kernels_without_managed_frames_have_present_ones() {
    let text = zoneinfo(0).replace(&format!("        managed  {FRAMES}\n"), "");
    assert_eq!(start::parse(&text), start::parse(&zoneinfo(0)));
}

#[test]
fn more_frames_in_a_pageset_than_in_its_zone_are_refused() {
    assert!(start::parse(&zoneinfo(FRAMES)).is_ok());
    let error = start::parse(&zoneinfo(FRAMES + 1)).unwrap_err();
    assert!(error.contains("the pageset of CPU 0 in zone Normal of node 0 has 1048577 frames"), "{error}");
}

#[test]
fn traces_of_kernels_without_known_rules_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = Events::from_second(0).write(&header("2.6.32", Some(zoneinfo(0))), folder.path());
    let error = replay_kernel(&file, |_| true).unwrap_err().to_string();
    assert!(error.contains("the oldest version with known rules is 3.0"), "{error}");
}

/// Events can take long, because a pageset of a malformed trace may be as large as memory.
#[test]
fn a_replay_asks_often_whether_to_go_on() {
    let mut events = Events::from_second(0);
    (0..1000).for_each(|frame| events.alloc(frame));
    let folder = tempfile::tempdir().unwrap();
    let file = events.write(&header("6.18.1", Some(zoneinfo(0))), folder.path());
    let mut calls = 0;
    let stopped = replay_kernel(&file, |_| {
        calls += 1;
        false
    });
    assert_eq!((stopped.unwrap().events < 100, calls), (true, 1));
}
