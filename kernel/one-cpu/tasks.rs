//! The work of the CPU, and of the timer interrupt.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use x86_64::instructions::interrupts;
use zonal::error::{AllocError, FreeError};
use zonal::units::{Order, Pfn, SECOND_NS};
use zonal::{Allocator, Platform, Request};

use crate::handlers::Context;
use crate::platform::with_allocator;

/// Length of the work.
const WORK_NS: u64 = 2 * SECOND_NS;

/// Blocks that the handler frees; 0 is an empty place.
static SENT: [AtomicU64; 12] = [const { AtomicU64::new(0) }; 12];

/// What the handler did: blocks freed, frees of these that were deferred, frees refused, and blocks allocated.
pub(crate) static FREED: AtomicU64 = AtomicU64::new(0);
pub(crate) static DEFERRED: AtomicU64 = AtomicU64::new(0);
pub(crate) static REFUSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static ALLOCATED: AtomicU64 = AtomicU64::new(0);

fn count(cell: &AtomicU64) {
    cell.fetch_add(1, Relaxed);
}

/// Works with interrupts on, and returns the number of blocks.
pub(crate) fn work() -> u64 {
    interrupts::enable();
    let now = || with_allocator(|allocator| allocator.platform().now());
    let (begin, mut last_tick, mut blocks) = (now(), now(), 0_u64);
    while now().ns_since(begin) < WORK_NS {
        let order = Order::new((blocks % 10) as u8).expect("a small order");
        let block = with_allocator(|allocator| allocator.alloc(&Request::new(order)));
        let block = block.expect("there is free memory");
        let word = block.first.get() << 8 | u64::from(order.get());
        let place = &SENT[blocks as usize % SENT.len()];
        if place.compare_exchange(0, word, Relaxed, Relaxed).is_err() {
            with_allocator(|allocator| allocator.free(block.first, order)).expect("the block was allocated");
        }
        blocks += 1;
        if blocks % 50 == 0 {
            with_allocator(Allocator::drain_pagesets);
        }
        if now().ns_since(last_tick) >= SECOND_NS {
            with_allocator(Allocator::tick);
            last_tick = now();
        }
    }
    interrupts::disable();
    free_sent();
    blocks
}

/// Frees the blocks that were sent.
fn free_sent() {
    for place in &SENT {
        let word = place.swap(0, Relaxed);
        let Some(order) = Order::new(word as u8).filter(|_| word != 0) else { continue };
        with_allocator(|allocator| {
            let is_reentered = allocator.platform().is_reentered();
            match allocator.free(Pfn::new(word >> 8), order) {
                Ok(()) => {
                    count(&FREED);
                    DEFERRED.fetch_add(u64::from(is_reentered), Relaxed);
                }
                // The block is still allocated.
                Err(FreeError::Reentered(_)) => {
                    count(&REFUSED);
                    place.store(word, Relaxed);
                }
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// Handles the timer interrupt.
pub(crate) fn on_tick(_: &mut Context) {
    with_allocator(|allocator| {
        allocator.platform().advance();
        free_sent();
        match allocator.alloc(&Request::page().no_wait()) {
            Ok(block) => {
                count(&ALLOCATED);
                let freed = allocator.free(block.first, block.order);
                assert!(matches!(freed, Ok(()) | Err(FreeError::Reentered(_))), "{freed:?}");
            }
            Err(AllocError::Reentered) => {}
            Err(error) => panic!("{error}"),
        }
    });
}

/// Switches tasks, of which this kernel has none.
pub(crate) fn switch(_: &mut Context) {}

/// Runs on further CPUs, of which there are none.
pub(crate) fn idle() -> ! {
    unreachable!("there is one CPU")
}
