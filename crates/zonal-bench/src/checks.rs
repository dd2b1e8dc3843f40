//! Tests: runs every contender on every workload and checks that no frame has two owners.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use zonal::units::{Order, PageCount, Pfn};
use zonal_testing::skipped;
use zonal_workload::{Latencies, PageSource, Plan, Workload, run};

use crate::contender::Ready;
use crate::{Bench, Entry, exchange, floors, harness, kernel_pages, peers, zonal, zonal_locked};

/// Number of frames in each pool: 32 MiB.
const FRAMES: PageCount = PageCount::new(1 << 13);
/// Number of requests after which a watched run ends.
const REQUESTS: usize = 6_000;

/// All allocated frames, each with the first frame of its block.
#[derive(Default)]
struct Accounting {
    out: Mutex<HashMap<Pfn, Pfn>>,
    requests: AtomicUsize,
    over: AtomicBool,
}

/// A source of blocks that checks every allocation and every free.
struct Watched<'a> {
    source: Box<dyn PageSource<Page = Pfn> + 'a>,
    accounting: &'a Accounting,
}

impl Accounting {
    fn request(&self) {
        // Relaxed: a rough count is enough.
        if self.requests.fetch_add(1, Ordering::Relaxed) == REQUESTS {
            self.over.store(true, Ordering::Relaxed); // relaxed: only the flag itself is read
        }
    }
}

fn frames_of(first: Pfn, order: Order) -> impl Iterator<Item = Pfn> {
    (0..order.pages().get()).map(move |at| first.plus(PageCount::new(at)))
}

impl PageSource for Watched<'_> {
    type Page = Pfn;

    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.accounting.request();
        let first = self.source.alloc(order)?;
        let mut out = self.accounting.out.lock().unwrap();
        for frame in frames_of(first, order) {
            assert_eq!(
                out.insert(frame, first),
                None,
                "frame {frame} of a block of {order} was allocated twice"
            );
        }
        Some(first)
    }

    fn free(&mut self, first: Pfn, order: Order) {
        self.accounting.request();
        let mut out = self.accounting.out.lock().unwrap();
        for frame in frames_of(first, order) {
            assert_eq!(out.remove(&frame), Some(first));
        }
        drop(out);
        self.source.free(first, order);
    }
}

/// Runs `workload` with checks, and returns the number of pairs done.
fn watch(ready: &dyn Ready, workload: Workload, threads: usize) -> u64 {
    let accounting = Accounting::default();
    let threads = NonZeroUsize::new(threads).unwrap();
    let (duration, warm_up) = (Duration::from_secs(3600), Duration::ZERO);
    let plan =
        Plan { workload, threads, duration, warm_up, seed: 5, pages: FRAMES, latencies: Latencies::Off };
    let source = |_| Watched { source: ready.open(), accounting: &accounting };
    let measured = run(&plan, source, &accounting.over, |_| ()).unwrap();
    assert!(accounting.out.into_inner().unwrap().is_empty(), "the workload gave all back");
    measured.pairs
}

/// Returns the workloads that a bench can run.
fn workloads() -> impl Iterator<Item = Workload> {
    Workload::ALL.into_iter().filter(|workload| *workload != Workload::Touch)
}

fn survives(entry: &Entry) {
    let name = entry.name();
    let ready = match entry.make(FRAMES) {
        Ok(ready) => ready,
        Err(why) => return skipped!("{name}: {why}"),
    };
    for workload in workloads().filter(|workload| entry.admits(*workload, FRAMES, 3).is_ok()) {
        for threads in [1, 2, 3] {
            let pairs = watch(&*ready, workload, threads);
            assert!(pairs > 0, "{name} did nothing of {} on {threads} threads", workload.name());
        }
    }
}

#[test]
fn zonal_and_the_floors_pass_checks_on_every_workload() {
    survives(&zonal());
    survives(&zonal_locked());
    floors().iter().for_each(survives);
}

#[test]
fn pages_of_the_kernel_pass_checks_on_every_workload_they_run() {
    kernel_pages().iter().for_each(survives);
}

#[test]
fn peers_pass_checks_on_every_workload() {
    peers().iter().for_each(survives);
}

#[test]
#[should_panic(expected = "was allocated twice")]
fn the_checks_detect_a_frame_allocated_twice() {
    watch(&*harness().make(FRAMES).unwrap(), Workload::Batch, 1);
}

/// Returns a bench with short rounds.
fn short(workloads: Vec<Workload>) -> Bench {
    let (rounds, threads) = (NonZeroUsize::new(2).unwrap(), vec![NonZeroUsize::MIN]);
    let (round_time, warm_up) = (Duration::from_nanos(1), Duration::ZERO);
    Bench { workloads, threads, rounds, round_time, warm_up, frames: FRAMES, seed: 1 }
}

#[test]
fn every_contender_gets_a_row_on_every_workload_or_a_reason() {
    let bench = Bench {
        threads: [1, 2].map(|n| NonZeroUsize::new(n).unwrap()).to_vec(),
        ..short(workloads().collect())
    };
    let entries: Vec<Entry> = [harness(), exchange(), zonal(), zonal_locked()]
        .into_iter()
        .chain(floors())
        .chain(peers())
        .chain(kernel_pages())
        .collect();
    let report = bench.run(&entries, &AtomicBool::new(false), |_| ()).unwrap();
    for (entry, workload) in
        entries.iter().flat_map(|entry| workloads().map(move |workload| (entry, workload)))
    {
        let case = format!("{} on {}", entry.name(), workload.name());
        let rows: Vec<_> = report
            .rows
            .iter()
            .filter(|row| (row.workload, &*row.contender) == (workload, entry.name()))
            .collect();
        let left_out =
            report.skipped.iter().any(|skip| (skip.workload, &*skip.contender) == (workload, entry.name()));
        assert_eq!(rows.len(), if left_out { 0 } else { 2 }, "{case}");
        assert_eq!(left_out, entry.admits(workload, FRAMES, 2).is_err(), "{case}");
        for row in rows {
            assert_eq!(row.rounds, 2, "{case}");
            assert!(row.cpu_ns.min <= row.cpu_ns.median && row.cpu_ns.median <= row.cpu_ns.max, "{case}");
            assert!(row.cpu_ns.min > 0.0 && row.wall_ns.min > 0.0, "{case}");
            assert_eq!(row.instructions.is_some(), report.instructions_missing.is_none(), "{case}");
            assert!(row.ratio_to_zonal.unwrap() > 0.0, "{case}");
            assert_eq!(row.ratio_to_floor.is_some(), workload != Workload::Orders, "{case}");
            let has_exact = report.rows.iter().any(|row| row.contender == "floor-exact");
            let is_compared = has_exact && workload != Workload::Orders && entry.name() != "zonal-locked";
            assert_eq!(row.ratio_to_exact.is_some(), is_compared, "{case}");
            if entry.name() == "zonal" {
                assert_eq!(row.ratio_to_zonal, Some(1.0));
            }
        }
    }
}

#[test]
fn rounds_warm_up_for_as_long_as_they_should() {
    let mut first_kept = None;
    let bench = Bench { warm_up: Duration::from_millis(50), ..short(vec![Workload::Pair]) };
    let start = std::time::Instant::now();
    let report = bench
        .run(&[harness()], &AtomicBool::new(false), |now| {
            if now.done == 1 {
                first_kept.get_or_insert(start.elapsed());
            }
        })
        .unwrap();
    assert!(first_kept.unwrap() >= bench.warm_up);
    assert_eq!(report.rows[0].rounds, 2);
}

#[test]
fn a_stopped_bench_reports_the_rounds_it_finished() {
    let entries = [harness(), zonal()];
    let stop = AtomicBool::new(false);
    let mut order = Vec::new();
    let bench = short(vec![Workload::Pair, Workload::Batch]);
    let report = bench
        .run(&entries, &stop, |now| {
            order.push((now.done, now.total, now.workload, now.contender.to_owned()));
            stop.store(order.len() == 6, Ordering::Relaxed); // relaxed: only the flag itself is read
        })
        .unwrap();
    let names: Vec<&str> = order.iter().map(|(.., name)| name.as_str()).collect();
    assert_eq!(
        names,
        ["harness", "zonal", "zonal", "harness", "harness", "zonal"],
        "each round begins with another"
    );
    let kept: Vec<usize> = order.iter().map(|run| run.0).collect();
    assert_eq!(kept, [0, 0, 0, 1, 2, 3], "the first round warms up");
    assert!(order.iter().all(|run| (run.1, run.2) == (8, Workload::Pair)));
    let rounds: Vec<(&str, usize)> = report.rows.iter().map(|row| (&*row.contender, row.rounds)).collect();
    assert_eq!(rounds, [("harness", 2), ("zonal", 1)]);
}
