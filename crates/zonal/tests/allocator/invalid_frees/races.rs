//! Tests of two threads that free the same block at the same moment. The accounting stays exact, and no frame is
//! allocated twice.
//!
//! Threads that access a cell of one byte wait after a load, or before an exchange, until the other thread has reached the same
//! point. After the next change they wait until the other thread has made its change too. A race whose window is a few
//! nanoseconds therefore happens every time.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::watched::{Access, Kind};
use crate::common::watching::{WatchedAllocator, Watcher, watch};
use crate::common::{Plan, Random, order, run_on};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::FreeError;
use zonal::request::{Block, PageKind, Urgency};
use zonal::units::{CpuId, Order, PageCount};
use zonal::{Config, Request};
use zonal_testing::Meeting;

/// One case in this many runs. Miri is a thousand times slower, so it runs fewer cases.
const ONE_IN: usize = if cfg!(miri) { 20 } else { 1 };

thread_local! {
    /// Where the thread waits before its next exchange of a byte or after its next load, whichever comes first.
    /// `STORED` is where it waits after its next store or exchange.
    static LOADED: RefCell<Option<Arc<Meeting>>> = const { RefCell::new(None) };
    static STORED: RefCell<Option<Arc<Meeting>>> = const { RefCell::new(None) };
    /// Point at which the thread waits twice, after its next load of a byte or before its next exchange. Between these
    /// two waits, other threads act after this thread's check and before its change.
    static PAUSED: RefCell<Option<Arc<Meeting>>> = const { RefCell::new(None) };
}

fn meet(meeting: Option<Arc<Meeting>>) {
    if let Some(meeting) = meeting {
        meeting.wait();
    }
}

/// Waits for the other threads at the points set for this thread.
fn pause() {
    meet(LOADED.take());
    let paused = PAUSED.take();
    meet(paused.clone());
    meet(paused);
}

/// Waits after loads, before exchanges and after changes of bytes, which are frame states.
struct SlowBytes;

impl Watcher for SlowBytes {
    fn before(&self, access: Access) {
        if access.bytes == 1 && access.kind == Kind::ReadWrite {
            pause();
        }
    }

    fn after(&self, access: Access) {
        match access.kind {
            _ if access.bytes != 1 => {}
            Kind::Read => pause(),
            Kind::Write | Kind::ReadWrite => meet(STORED.take()),
        }
    }

    fn waits(&self) {
        std::thread::yield_now(); // another thread holds the lock
    }
}

fn build(frames: u64, config: &Config) -> WatchedAllocator {
    Plan::even(1, 2, frames).build_watched(config, &SlowBytes).allocator
}

/// Makes `cpu` the current CPU of a new thread, which waits as the others do.
fn race_on(cpu: u32) {
    run_on(cpu);
    watch(&SlowBytes);
}

/// Frees `block` on both CPUs at the same time. Returns both results.
fn free_twice(a: &WatchedAllocator, block: Block) -> [Result<(), FreeError>; 2] {
    let meeting = Arc::<Meeting>::default();
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|cpu| {
            let meeting = Arc::clone(&meeting);
            scope.spawn(move || {
                race_on(cpu);
                LOADED.set(Some(Arc::clone(&meeting)));
                STORED.set(Some(meeting));
                a.free(block.first, block.order)
            })
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

/// The frames that a caller owns.
#[derive(Default)]
struct OwnedFrames(BTreeSet<u64>);

impl OwnedFrames {
    fn add(&mut self, block: Block) {
        for frame in block.first.get()..block.first.get() + block.order.pages().get() {
            assert!(self.0.insert(frame), "frame {frame} was allocated twice");
        }
    }

    fn remove(&mut self, block: Block) {
        for frame in block.first.get()..block.first.get() + block.order.pages().get() {
            assert!(self.0.remove(&frame));
        }
    }
}

/// Allocates everything from CPUs 0 and 1 alternately in blocks of `orders`, and frees it.
fn alloc_all_and_free(a: &WatchedAllocator, owned: &mut OwnedFrames, orders: &[u8]) {
    let mut blocks = Vec::new();
    for &wanted in orders.iter().chain(&[0]) {
        for turn in 0.. {
            run_on(turn % 2);
            let request = Request::new(order(wanted)).urgency(Urgency::Reserve);
            let Ok(block) = a.alloc(&request) else { break };
            owned.add(block);
            blocks.push(block);
        }
    }
    for block in blocks {
        owned.remove(block);
        a.free(block.first, block.order).unwrap();
    }
}

fn check_all_free(a: &WatchedAllocator) {
    a.drain_pagesets();
    let accounting = a.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
}

#[test]
fn exact_accepts_one_of_two_racing_frees() {
    let a = build(2048, &Config { invalid_free: InvalidFree::Exact, ..Config::default() });
    for order in (0..=10).map(order).flat_map(|order| [order; 20]).step_by(ONE_IN) {
        run_on(0);
        let block = a.alloc(&Request::new(order)).unwrap();
        let results = free_twice(&a, block);
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "order {order}");
        assert!(results.contains(&Err(FreeError::NotAllocated(block.first))));
        a.verify().unwrap();
    }
    check_all_free(&a);
    alloc_all_and_free(&a, &mut OwnedFrames::default(), &[]);
    check_all_free(&a);
    assert_eq!(a.events().retired, 0);
}

/// Races two frees, both of which may succeed, and then calls `then`. No frame may be allocated twice.
fn checked_race(
    order: Order,
    kind: PageKind,
    hardening: Hardening,
    then: impl Fn(&WatchedAllocator, &mut OwnedFrames),
) {
    let a = build(2048, &Config { invalid_free: InvalidFree::Checked, hardening, ..Config::default() });
    let block = a.alloc(&Request::new(order).kind(kind)).unwrap();
    let results = free_twice(&a, block);
    let both = results == [Ok(()), Ok(())];
    let mut owned = OwnedFrames::default();
    then(&a, &mut owned);
    alloc_all_and_free(&a, &mut owned, &[]);
    alloc_all_and_free(&a, &mut owned, &[10, 3, 1]);
    check_all_free(&a);
    let events = a.platform().0.traced.check(&a);
    assert_eq!(events.retired, if both { order.pages().get() } else { 0 }, "order {order}");
    assert!(both, "the race was meant to happen");
}

#[test]
fn checked_never_allocates_a_block_twice_after_a_racing_double_free() {
    for (order, kind) in (0..=10).step_by(ONE_IN).map(order).zip(PageKind::ALL.into_iter().cycle()) {
        let none = Hardening::default();
        checked_race(order, kind, none, |_, _| {});
        checked_race(order, kind, none, |a, _| a.drain_pagesets());
        checked_race(order, kind, none, |a, owned| alloc_all_and_free(a, owned, &[]));
        checked_race(order, kind, Hardening { quarantine: PageCount::new(2048), ..none }, |_, _| {});
    }
}

#[test]
fn checked_retires_the_second_copy_after_the_first_was_allocated_in_another_block() {
    let pairs = (0..=3).flat_map(|whole| (0..=10).map(move |part| (order(whole), part)));
    for (order, part) in pairs.step_by(ONE_IN) {
        // The copy of CPU 0 returns to the buddy allocator and merges. All frames are then allocated in blocks of
        // another order, before the copy of CPU 1 is popped.
        checked_race(order, PageKind::Cache, Hardening::default(), |a, owned| {
            run_on(0);
            a.offline_cpu(CpuId::new(0)).unwrap();
            let mut blocks = Vec::new();
            let wanted = Request::new(crate::common::order(part)).urgency(Urgency::Reserve);
            run_on(50); // a CPU that the machine does not have bypasses the pagesets
            while let Ok(block) = a.alloc(&wanted) {
                owned.add(block);
                blocks.push(block);
                run_on(if blocks.len() == 1 { 1 } else { 50 });
            }
            run_on(1);
            while let Ok(block) = a.alloc(&Request::new(order)) {
                owned.add(block);
                blocks.push(block);
            }
            for block in blocks {
                owned.remove(block);
                a.free(block.first, block.order).unwrap();
            }
            a.online_cpu(CpuId::new(0)).unwrap();
        });
    }
}

/// An invalid free is preempted between its check and its change. Meanwhile the block is validly freed, drained and
/// merged, and its frame is allocated again as part of a larger block.
#[test]
fn a_stale_free_preempted_after_its_check_leaves_the_reallocated_frame_unchanged() {
    for (freed, became) in [(0, 1), (0, 4), (0, 10), (1, 0), (2, 10), (3, 4), (9, 10), (10, 0)] {
        let a = build(2048, &Config::default());
        run_on(0);
        let block = a.alloc(&Request::new(order(freed))).unwrap();
        let (mut owned, meeting) = (OwnedFrames::default(), Arc::<Meeting>::default());
        let mut reallocated = Vec::new();
        let stale = std::thread::scope(|scope| {
            let stale = scope.spawn({
                let meeting = Arc::clone(&meeting);
                let a = &a;
                move || {
                    race_on(1);
                    PAUSED.set(Some(meeting));
                    a.free(block.first, block.order)
                }
            });
            meeting.wait(); // the other thread has found the block allocated, or is about to
            a.free(block.first, block.order).unwrap();
            a.drain_pagesets();
            let all = Request::new(order(became)).urgency(Urgency::Reserve);
            while let Ok(block) = a.alloc(&all) {
                owned.add(block);
                reallocated.push(block);
            }
            meeting.wait();
            stale.join().unwrap()
        });
        let context = format!("freed with order {freed}, now of order {became}");
        assert!(stale.is_err(), "{context}");
        a.verify().unwrap_or_else(|fault| panic!("{context}: {fault}"));
        // No allocated frame is allocated again, and every owner can free its blocks.
        alloc_all_and_free(&a, &mut owned, &[]);
        for block in reallocated {
            owned.remove(block);
            a.free(block.first, block.order).unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        check_all_free(&a);
        assert_eq!(a.events().retired, 0, "{context}");
    }
}

#[test]
fn histories_with_races() {
    for (seed, invalid_free) in
        (0..40).zip([InvalidFree::Checked, InvalidFree::Exact].into_iter().cycle()).step_by(ONE_IN)
    {
        let mut random = Random(seed);
        let a = build(2048, &Config { invalid_free, ..Config::default() });
        let (mut owned, mut held) = (OwnedFrames::default(), Vec::new());
        for _ in 0..400 {
            run_on(random.below(3) as u32);
            match random.below(20) {
                0 => a.drain_pagesets(),
                1 if !held.is_empty() => {
                    let block: Block = held.swap_remove(random.below(held.len() as u64) as usize);
                    owned.remove(block);
                    let succeeded = free_twice(&a, block).iter().filter(|result| result.is_ok()).count();
                    assert!(succeeded == 1 || (succeeded == 2 && invalid_free == InvalidFree::Checked));
                }
                2..8 if !held.is_empty() => {
                    let block = held.swap_remove(random.below(held.len() as u64) as usize);
                    owned.remove(block);
                    a.free(block.first, block.order).unwrap();
                }
                _ => {
                    let request = Request::new(order(random.pick(&[0, 0, 0, 1, 2, 3, 5, 9]))).no_wait();
                    if let Ok(block) = a.alloc(&request) {
                        owned.add(block);
                        held.push(block);
                    }
                }
            }
        }
        for block in held {
            owned.remove(block);
            a.free(block.first, block.order).unwrap();
        }
        a.drain_pagesets();
        assert_eq!(a.events().retired > 0, invalid_free == InvalidFree::Checked);
        check_all_free(&a);
    }
}

#[test]
fn under_checked_a_range_has_no_frame_that_is_allocated_and_listed_as_free() {
    let a = build(2048, &Config { invalid_free: InvalidFree::Checked, ..Config::default() });
    run_on(0);
    let block = a.alloc(&Request::page()).unwrap();
    let meeting = Arc::<Meeting>::default();
    std::thread::scope(|scope| {
        let stale = scope.spawn({
            let (meeting, a) = (Arc::clone(&meeting), &a);
            move || {
                race_on(1);
                PAUSED.set(Some(meeting));
                a.free(block.first, block.order)
            }
        });
        meeting.wait(); // the other thread has found the frame allocated
        a.free(block.first, block.order).unwrap();
        a.drain_pagesets();
        meeting.wait();
        stale.join().unwrap().unwrap();
    });
    run_on(1);
    let owner = a.alloc(&Request::page()).unwrap();
    assert_eq!(owner.first, block.first, "allocated from its entry in the pageset");
    let taken = a.alloc_range(crate::common::range(block.first.get(), 1), PageKind::User);
    assert!(taken.is_err(), "frame {} has two owners", block.first);
    assert_eq!(a.platform().0.traced.check(&a).retired, 1);
}
