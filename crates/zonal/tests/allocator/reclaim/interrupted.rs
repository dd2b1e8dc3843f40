//! Operations that a handler of the same thread interrupts before each access to shared state, once or twice.
//!
//! The handler frees blocks, frees them a second time, and allocates. It waits for no lock, which the locks of this platform
//! would detect, and no block is lost or allocated twice.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::common::watched::Access;
use crate::common::watching::{WatchedAllocator, Watcher, holds_lock, watch};
use crate::common::{Plan, order, range, reenter_on_this_thread, run_on};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::{AllocError, FreeError};
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

const FRAMES: u64 = 1024;
const START: u64 = 4096;
/// Orders of the blocks that handlers free.
const STOCK: [u8; 8] = [0, 1, 3, 0, 2, 4, 0, 9];

thread_local! {
    /// Accesses until the next interrupt, or 0, and from there to the one after it.
    static NEXT: Cell<[u64; 2]> = const { Cell::new([0; 2]) };
    static ALLOCATOR: Cell<Option<&'static WatchedAllocator>> = const { Cell::new(None) };
    /// Blocks that handlers may free, and those that they have allocated.
    static STOCKED: RefCell<BTreeMap<u64, Order>> = const { RefCell::new(BTreeMap::new()) };
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { calls: 0, reentered: 0, deferred: 0, refused: 0 }) };
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    calls: u64,
    /// Calls that interrupted an operation with a lock.
    reentered: u64,
    /// Frees by such calls that succeeded.
    deferred: u64,
    /// Frees that were refused.
    refused: u64,
}

/// Runs the handler when it is due.
struct Interrupts;

impl Watcher for Interrupts {
    fn before(&self, _: Access) {
        let [next, after] = NEXT.get();
        NEXT.set(if next == 1 { [0; 2] } else { [next.saturating_sub(1), after] });
        if next == 1 {
            handle(ALLOCATOR.get().expect("an allocator is in use"));
            NEXT.set([after, 0]);
        }
    }

    fn took_lock(&self, _: usize) {
        reenter_on_this_thread(true);
    }

    fn freed_lock(&self, _: usize) {
        reenter_on_this_thread(holds_lock());
    }
}

/// Frees blocks of the stock, and allocates one.
fn handle(a: &WatchedAllocator) {
    let mut counts = COUNTS.get();
    let is_reentered = holds_lock();
    counts.calls += 1;
    counts.reentered += u64::from(is_reentered);
    STOCKED.with_borrow_mut(|stocked| {
        let blocks: Vec<(u64, Order)> = stocked.iter().map(|(&frame, &order)| (frame, order)).collect();
        for (frame, order) in blocks.into_iter().step_by(2) {
            let first = Pfn::new(frame);
            match a.free(first, order) {
                Ok(()) => {
                    stocked.remove(&frame);
                    counts.deferred += u64::from(is_reentered);
                    let again = a.free(first, order);
                    assert!(
                        matches!(again, Err(FreeError::NotAllocated(_) | FreeError::Quarantined(_))),
                        "{again:?}"
                    );
                }
                Err(FreeError::Reentered(_)) => counts.refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        match a.alloc(&Request::page().no_wait()) {
            Ok(block) => assert!(stocked.insert(block.first.get(), block.order).is_none(), "allocated twice"),
            Err(AllocError::Reentered | AllocError::OutOfMemory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    });
    COUNTS.set(counts);
}

type Operation = fn(&WatchedAllocator);

/// The operations that are interrupted. Each leaves nothing allocated.
const OPERATIONS: [(&str, Operation); 7] = [
    ("refill and drain", |a| {
        let mut frames = [Pfn::new(0); 90];
        let came = a.alloc_bulk(&Request::page().no_wait(), &mut frames).unwrap();
        frames[..came].iter().for_each(|&frame| a.free(frame, Order::PAGE).unwrap());
        a.drain_pagesets();
    }),
    ("large blocks", |a| {
        for of_order in [9, 6, 1] {
            if let Ok(block) = a.alloc(&Request::new(order(of_order)).no_wait()) {
                a.free(block.first, block.order).unwrap();
            }
        }
    }),
    ("a run", |a| {
        if let Ok(run) = a.alloc_frames(&Request::page().no_wait(), PageCount::new(7)) {
            a.free_frames(run.range.start, run.range.count).unwrap();
        }
    }),
    ("a range", |a| {
        if let Ok(run) = a.alloc_contiguous(&Request::page().no_wait(), PageCount::new(100)) {
            a.split_frames(run.range.start, run.range.count, order(2)).unwrap();
            for first in (run.range.start.get()..run.range.end().get()).map(Pfn::new) {
                let part = (0..=2).rev().find_map(|of| a.free(first, order(of)).ok());
                assert!(part.is_some() || !first.is_aligned_to(order(2)), "{first}");
            }
        }
    }),
    ("a fence", |a| {
        let fence = a.fence(range(START, 8)).unwrap();
        drop(fence);
    }),
    ("memory that leaves", |a| {
        let leaves = range(START + FRAMES - 64, 64);
        if a.offline_memory(leaves).is_ok() {
            a.online_memory(leaves).unwrap();
        }
    }),
    ("a tick", WatchedAllocator::tick),
];

/// Interrupts an operation at each of its accesses, and again some accesses later.
fn interrupt_everywhere(
    a: &WatchedAllocator,
    what: &str,
    operate: Operation,
    again_after: u64,
    has_quarantine: bool,
) {
    for at in 1.. {
        let stock = STOCK.map(|of| a.alloc(&Request::new(order(of))).unwrap());
        STOCKED.set(stock.iter().map(|block| (block.first.get(), block.order)).collect());
        let before = COUNTS.get().calls;
        NEXT.set([at, again_after]);
        operate(a);
        NEXT.set([0; 2]);
        let held = STOCKED.take();
        let pages: PageCount = held.values().map(|order| order.pages()).sum();
        a.tick(); // finishes the deferred frees of which it knows; a drain looks for all
        if !has_quarantine {
            assert_eq!(a.accounting().allocated, pages, "{what}, access {at}: a deferred free is hidden");
        }
        a.verify().unwrap_or_else(|fault| panic!("{what}, access {at}: {fault}"));
        a.drain_pagesets(); // blocks in quarantine count as allocated
        let allocated = a.verify().unwrap().allocated;
        assert_eq!(allocated, pages, "{what}, access {at}");
        held.iter().for_each(|(&frame, &order)| a.free(Pfn::new(frame), order).unwrap());
        a.drain_pagesets();
        assert_eq!(a.verify().unwrap().free.get(), FRAMES, "{what}, access {at}");
        assert_eq!(a.events().retired, 0, "{what}, access {at}");
        if COUNTS.get().calls == before {
            return; // the operation ended before the access
        }
    }
}

fn interrupt_all(config: &Config, again_after: u64) -> Counts {
    COUNTS.set(Counts { calls: 0, reentered: 0, deferred: 0, refused: 0 });
    run_on(0);
    watch(&Interrupts);
    let world = Plan::even(1, 1, FRAMES).build_of(config, |controls| controls.set_ms(1));
    ALLOCATOR.set(Some(Box::leak(Box::new(world.allocator))));
    let a = ALLOCATOR.get().unwrap();
    for (what, operate) in OPERATIONS {
        let has_quarantine = config.hardening.quarantine != PageCount::ZERO;
        interrupt_everywhere(a, what, operate, again_after, has_quarantine);
    }
    COUNTS.get()
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn no_block_is_lost_wherever_a_handler_interrupts_its_own_thread() {
    let hardening = Hardening { quarantine: PageCount::new(16), ..Hardening::default() };
    for (config, again_after) in [
        (Config::default(), 0),
        (Config::default(), 5),
        (Config { invalid_free: InvalidFree::Checked, ..Config::default() }, 60),
        (Config { hardening, ..Config::default() }, 5),
    ] {
        let counts = interrupt_all(&config, again_after);
        assert!(counts.reentered > 0 && counts.deferred > 0, "{counts:?}");
        assert_eq!(counts.refused, 0, "the list was full, or a block was not deferred");
    }
}
