//! Runs every workload with a pool that detects invalid requests.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use zonal::units::{Order, PageCount};

use super::*;

/// A pool of frames that records the allocated blocks, and the first requests in order.
struct Pool(Mutex<State>);

/// Number of requests recorded.
const LOG: usize = 8192;

struct State {
    free: u64,
    free_least: u64,
    /// Number of the block that was allocated last. Blocks are numbered from 1.
    taken: u64,
    out: HashMap<u64, Order>,
    touched: u64,
    log: Vec<Request>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Take(Order),
    /// Frees the block that was allocated this many blocks before the last one.
    Give(u64),
}

impl Pool {
    fn new(pages: u64) -> Self {
        let (out, log) = (HashMap::new(), Vec::new());
        Self(Mutex::new(State { free: pages, free_least: pages, taken: 0, out, touched: 0, log }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn note(&mut self, request: Request) {
        if self.log.len() < LOG {
            self.log.push(request);
        }
    }
}

impl PageSource for &Pool {
    type Page = u64;

    fn alloc(&mut self, order: Order) -> Option<u64> {
        let mut state = self.state();
        state.note(Request::Take(order));
        state.free = state.free.checked_sub(order.pages().get())?;
        state.free_least = state.free_least.min(state.free);
        state.taken += 1;
        let page = state.taken;
        state.out.insert(page, order);
        Some(page)
    }

    fn free(&mut self, page: u64, order: Order) {
        let mut state = self.state();
        assert_eq!(state.out.remove(&page), Some(order), "block {page} was not out with this order");
        state.free += order.pages().get();
        let ago = state.taken - page;
        state.note(Request::Give(ago));
    }

    fn touch(&mut self, page: u64) {
        let mut state = self.state();
        assert!(state.out.contains_key(&page));
        state.touched += 1;
    }
}

fn plan(workload: Workload, threads: usize, pages: u64) -> Plan {
    let threads = NonZeroUsize::new(threads).unwrap();
    let (duration, pages) = (Duration::from_secs(3600), PageCount::new(pages));
    let warm_up = Duration::ZERO;
    Plan { workload, threads, duration, warm_up, seed: 7, pages, latencies: Latencies::Sampled }
}

/// Runs the plan until the pool has received [`LOG`] requests.
fn measure(plan: &Plan, pool: &Pool) -> Measurement {
    let stop = AtomicBool::new(false);
    let watch = |_| stop.store(pool.state().log.len() == LOG, Ordering::Relaxed); // relaxed: only the flag is read
    run(plan, |_| pool, &stop, watch).unwrap()
}

#[test]
fn every_workload_gives_everything_back() {
    for workload in Workload::ALL {
        for (threads, pages) in [(2, 65536), (2, 4), (8, 300), (8, 3)] {
            let pool = Pool::new(pages);
            let measured = measure(&plan(workload, threads, pages), &pool);
            let state = pool.0.into_inner().unwrap();
            let case = format!("{} with {threads} threads on {pages} frames", workload.name());
            assert_eq!((state.free, state.out.len()), (pages, 0), "{case}");
            assert!(measured.pairs > 0, "{case}");
            // A lane times its 62nd step at the latest, and each step is at most one pair.
            assert!(measured.latency.samples > 0 || measured.pairs < 62 * threads as u64, "{case}");
            assert_eq!(state.touched > 0, workload == Workload::Touch, "{case}");
            assert!(state.taken >= measured.pairs, "{case}: {} of {}", measured.pairs, state.taken);
        }
    }
}

#[test]
fn a_pool_without_frames_ends_too() {
    for workload in Workload::ALL {
        let measured = measure(&plan(workload, 2, 0), &Pool::new(0));
        assert_eq!((measured.pairs, measured.ns_per_pair()), (0, None), "{}", workload.name());
        assert!(measured.failed > 0, "{}", workload.name());
    }
}

#[test]
fn the_seed_decides_what_is_asked_for() {
    for workload in [Workload::BatchRandom, Workload::Random, Workload::Orders] {
        let log = |seed| {
            let pool = Pool::new(4096);
            measure(&Plan { seed, ..plan(workload, 1, 4096) }, &pool);
            pool.0.into_inner().unwrap().log
        };
        assert!(log(1) == log(1), "{}", workload.name());
        assert!(log(1) != log(2), "{}", workload.name());
    }
}

#[test]
fn lanes_of_one_run_ask_for_different_blocks() {
    let plan = plan(Workload::Random, 3, 1);
    let mut first: Vec<u64> = (0..3).map(|lane| plan.random(lane).u64(..)).collect();
    first.dedup();
    assert_eq!(first.len(), 3);
}

#[test]
fn orders_keeps_its_occupancy_and_asks_for_every_order() {
    let pages = 1 << 15;
    let pool = Pool::new(pages);
    measure(&plan(Workload::Orders, 1, pages), &pool);
    let state = pool.0.into_inner().unwrap();
    let most_out = pages - state.free_least;
    assert!((pages / 2..pages * 7 / 10 + 512).contains(&most_out), "{most_out} of {pages} frames were out");
    let asked = |order: u8| state.log.contains(&Request::Take(Order::new(order).unwrap()));
    assert!((0..10).all(asked) && !asked(10));
}

#[test]
fn a_run_ends_when_its_time_is_over() {
    let plan = Plan { duration: Duration::from_millis(1), ..plan(Workload::Pair, 2, 64) };
    let pool = Pool::new(64);
    let measured = run(&plan, |_| &pool, &AtomicBool::new(false), |_| ()).unwrap();
    assert!(measured.elapsed > Duration::ZERO);
}

#[test]
fn nothing_is_timed_where_latencies_are_off() {
    let pool = Pool::new(64);
    let plan = Plan { latencies: Latencies::Off, ..plan(Workload::Batch, 1, 64) };
    let measured = measure(&plan, &pool);
    assert_eq!((measured.latency.samples, measured.pairs > 0), (0, true));
}

#[test]
fn a_filled_pool_is_back_before_the_run_ends() {
    for threads in [1, 3] {
        let pool = Pool::new(30_000);
        let plan = Plan { duration: Duration::from_nanos(1), ..plan(Workload::Fill, threads, 30_000) };
        let measured = run(&plan, |_| &pool, &AtomicBool::new(false), |_| ()).unwrap();
        let taken = pool.0.into_inner().unwrap().taken;
        assert_eq!(measured.pairs, taken, "{threads} threads");
        assert!(taken >= 10_000, "{threads} threads took {taken}");
    }
}

#[test]
fn what_warms_up_is_not_counted() {
    let pool = Pool::new(3000);
    let short = Duration::from_millis(1);
    let plan = Plan { duration: short, warm_up: 20 * short, ..plan(Workload::Fill, 1, 3000) };
    let measured = run(&plan, |_| &pool, &AtomicBool::new(false), |_| ()).unwrap();
    let taken = pool.0.into_inner().unwrap().taken;
    assert!(taken > measured.pairs, "{taken} pairs, {} of them measured", measured.pairs);
    assert_eq!(measured.pairs % 3000, 0, "both parts end with the pool back");
}

#[test]
fn a_source_learns_where_the_measured_part_is() {
    struct RecordsCalls<'a>(&'a Pool, &'a Mutex<Vec<usize>>);
    impl PageSource for RecordsCalls<'_> {
        type Page = u64;
        fn alloc(&mut self, order: Order) -> Option<u64> {
            self.0.alloc(order)
        }
        fn free(&mut self, page: u64, order: Order) {
            self.0.free(page, order);
        }
        fn measuring_begins(&mut self) {
            self.1.lock().unwrap().push(self.0.state().out.len());
        }
        fn measuring_ends(&mut self) {
            self.measuring_begins();
        }
    }
    let (pool, held) = (Pool::new(100), Mutex::new(Vec::new()));
    let plan = Plan { duration: Duration::from_millis(1), ..plan(Workload::Random, 1, 100) };
    run(&plan, |_| RecordsCalls(&pool, &held), &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!(held.into_inner().unwrap(), [50, 50]);
}

#[test]
fn a_stopped_run_ends_at_once_and_leaves_nothing_out() {
    for workload in Workload::ALL {
        let pool = Pool::new(65536);
        let plan = plan(workload, 2, 65536);
        let stop = AtomicBool::new(false);
        let reports = AtomicU64::new(0);
        let watch = |_| {
            reports.fetch_add(1, Ordering::Relaxed); // relaxed: one thread reports
            stop.store(true, Ordering::Relaxed); // relaxed: only the flag is read
        };
        run(&plan, |_| &pool, &stop, watch).unwrap();
        assert_eq!(reports.into_inner(), 1, "{}", workload.name());
        assert!(pool.0.into_inner().unwrap().out.is_empty(), "{}", workload.name());
    }
}

#[test]
fn a_panic_in_a_source_ends_the_run() {
    struct Broken<'a>(&'a Pool);
    impl PageSource for Broken<'_> {
        type Page = u64;
        fn alloc(&mut self, order: Order) -> Option<u64> {
            let taken = self.0.state().taken;
            assert!(taken < 100, "the pool broke");
            self.0.alloc(order)
        }
        fn free(&mut self, page: u64, order: Order) {
            self.0.free(page, order);
        }
        fn touch(&mut self, page: u64) {
            self.0.touch(page);
        }
    }
    for workload in Workload::ALL {
        let pool = Pool::new(4096);
        let plan = plan(workload, 2, 4096);
        let ended =
            std::panic::catch_unwind(|| run(&plan, |_| Broken(&pool), &AtomicBool::new(false), |_| ()));
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&"the pool broke"), "{}", workload.name());
    }
}

#[test]
fn times_add_up() {
    let measured = Measurement {
        elapsed: Duration::from_secs(2),
        thread_time: Duration::from_secs(8),
        cpu_time: Duration::from_secs(4),
        pairs: 4_000_000,
        failed: 0,
        latency: Latency::default(),
        threads: 4,
        teams: 2,
    };
    assert_eq!(measured.ns_per_pair(), Some(1000.0));
    assert_eq!(measured.cpu_ns_per_pair(), Some(500.0));
    assert!((measured.pairs_per_second() - 2e6).abs() < 1e-6);
}

#[test]
fn names_are_found_again() {
    for workload in Workload::ALL {
        assert_eq!(Workload::from_name(workload.name()), Some(workload));
    }
    assert_eq!(Workload::from_name("paint"), None);
    assert_eq!(Workload::ALL[0], Workload::default());
}
