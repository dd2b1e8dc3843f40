//! Tests that no frame is lost or duplicated while threads migrate between CPUs.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{Pid, gettid};
use zonal::units::{Order, Pfn};
use zonal_testing::{Ledger, allowed_cpus, bind, pin_to, skipped, two_cpus};
use zonal_workload::PageSource;

use super::stock::{Access, BULK};
use super::*;

/// Number of frames: more than the model's arrays can hold on a few CPUs.
const FRAMES: PageCount = PageCount::new(1 << 16);

/// Returns one pool for each kind of access. Without restartable sequences, this is only the pool with locks.
fn kinds(depth: usize) -> Vec<(&'static str, Stock)> {
    let mut kinds = vec![(NAMES[1], Stock::new(FRAMES, depth).unwrap())];
    match in_sequences(FRAMES, depth) {
        Ok(floor) => kinds.push((NAMES[0], floor.0)),
        Err(why) => skipped!("restartable sequences: {why}"),
    }
    kinds
}

/// Calls `work` with a source of this kind, on the calling thread.
fn on_source<T>(
    kind: &str,
    stock: &Stock,
    work: impl FnOnce(&mut dyn PageSource<Page = Pfn>, &dyn Access) -> T,
) -> T {
    if kind == NAMES[0] {
        let mut source = Source { access: Sequences::for_this_thread(&stock.lines).unwrap(), stock };
        let access = Sequences::for_this_thread(&stock.lines).unwrap();
        work(&mut source, &access)
    } else {
        let mut source = Source { access: Locked::for_this_thread(&stock.lines), stock };
        work(&mut source, &Locked::for_this_thread(&stock.lines))
    }
}

#[test]
fn arrays_are_stacks_with_bounds() {
    for (kind, stock) in kinds(2 * BULK) {
        // The work runs on a separate thread that is pinned to one CPU, because the test is about one array.
        let work = || {
            pin_to(allowed_cpus()[0]);
            on_source(kind, &stock, |_, array| {
                let mut bulk = [0; BULK];
                assert_eq!((array.pop(), array.pop_many(&mut bulk)), (None, false), "{kind} is empty");
                assert!(array.push(7) && array.push(8));
                assert_eq!((array.pop(), array.pop(), array.pop()), (Some(8), Some(7), None), "{kind}");
                let frames: Vec<u32> = (0..BULK as u32).collect();
                assert!(array.push_many(&frames) && array.push_many(&frames));
                assert!(!array.push(9) && !array.push_many(&[9]), "{kind} is full");
                assert!(array.pop_many(&mut bulk));
                assert_eq!(bulk[..], frames[..], "{kind}");
                assert!(!array.push_many(&vec![9; BULK + 1]), "{kind} has no room for so many");
                assert!(array.pop_many(&mut [0; 3]));
                assert_eq!(array.pop(), Some(BULK as u32 - 4), "{kind}");
            });
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }
}

#[test]
fn frames_cached_on_another_cpu_are_found() {
    let Some(both) = two_cpus() else { return };
    for (kind, stock) in kinds(FRAMES.get() as usize) {
        let work = || {
            let alloc_all = |source: &mut dyn PageSource<Page = Pfn>| {
                let mut taken: Vec<u64> =
                    std::iter::from_fn(|| source.alloc(Order::PAGE)).map(Pfn::get).collect();
                taken.sort_unstable();
                assert!(taken.iter().copied().eq(0..FRAMES.get()), "{kind} gave {} frames", taken.len());
                taken
            };
            on_source(kind, &stock, |source, _| {
                for cpu in [both[0], both[1], both[0]] {
                    // The thread must be allowed to run on both CPUs while it collects frames.
                    bind(0, &both);
                    let frames = alloc_all(source);
                    pin_to(cpu);
                    frames.into_iter().for_each(|frame| source.free(Pfn::new(frame), Order::PAGE));
                }
            });
        };
        std::thread::scope(|scope| scope.spawn(work).join().unwrap());
    }
}

/// Allocates and frees in runs of different lengths until `over`, and finally frees everything.
fn work(who: u32, source: &mut dyn PageSource<Page = Pfn>, owners: &Ledger, over: &AtomicBool) {
    let mut held = Vec::new();
    // Relaxed: only the flag itself is read.
    for round in (1..).take_while(|_| !over.load(Ordering::Relaxed)) {
        for _ in 0..round * 37 % 1500 {
            let Some(frame) = source.alloc(Order::PAGE) else { break };
            owners.assign(frame.get(), 1, who);
            held.push(frame);
        }
        for _ in 0..round * 61 % 1500 {
            let Some(frame) = held.pop() else { break };
            owners.release(frame.get(), 1, who);
            source.free(frame, Order::PAGE);
        }
    }
    for frame in held {
        owners.release(frame.get(), 1, who);
        source.free(frame, Order::PAGE);
    }
}

/// Moves the threads between two CPUs, repeatedly.
fn chase(threads: &[Pid], cpus: [usize; 2]) {
    for turn in 0..600 {
        for (at, thread) in threads.iter().enumerate() {
            bind(thread.as_raw_nonzero().get(), &[cpus[(turn + at) % 2]]);
        }
        if turn % 16 == 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn threads_that_migrate_between_cpus_never_share_frames() {
    let Some(cpus) = two_cpus() else { return };
    for depth in [2 * BULK, FRAMES.get() as usize] {
        for (kind, stock) in kinds(depth) {
            let owners = Ledger::new(0..FRAMES.get());
            let (over, ids) = (AtomicBool::new(false), std::sync::mpsc::channel());
            std::thread::scope(|scope| {
                for who in 1..=3 {
                    let (id, stock, owners, over) = (ids.0.clone(), &stock, &owners, &over);
                    scope.spawn(move || {
                        id.send(gettid()).unwrap();
                        on_source(kind, stock, |source, _| work(who, source, owners, over));
                    });
                }
                let threads: Vec<Pid> = ids.1.iter().take(3).collect();
                let chased = std::panic::catch_unwind(|| chase(&threads, cpus));
                over.store(true, Ordering::Relaxed); // relaxed: only the flag itself is read
                chased.expect("the threads may be moved");
            });
            let whole =
                on_source(kind, &stock, |source, _| std::iter::from_fn(|| source.alloc(Order::PAGE)).count());
            assert_eq!(whole as u64, FRAMES.get(), "{kind}: frames were lost");
        }
    }
}
