//! What the CPUs do: they allocate and free, while the timer interrupts them.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use x86_64::instructions::interrupts;
use zonal::units::{Order, SECOND_NS};
use zonal::{Allocator, Platform, Request};

use crate::cpu;
use crate::handlers::Context;
use crate::platform::pinned;

/// Length of the work.
const WORK_NS: u64 = 2 * SECOND_NS;

/// Number of CPUs that have finished.
static FINISHED: AtomicUsize = AtomicUsize::new(0);

/// Works on the current CPU, with interrupts on, and returns the number of blocks.
pub(crate) fn work() -> u64 {
    interrupts::enable();
    let now = || pinned(|allocator| allocator.platform().now());
    let (begin, mut last_tick, mut blocks) = (now(), now(), 0_u64);
    let is_first = pinned(|_| cpu::current_id().index() == 0);
    while now().ns_since(begin) < WORK_NS {
        let order = Order::new((blocks % 10) as u8).expect("a small order");
        let block = pinned(|allocator| allocator.alloc(&Request::new(order))).expect("there is free memory");
        pinned(|allocator| allocator.free(block.first, block.order)).expect("the block was allocated");
        blocks += 1;
        if is_first && blocks % 1000 == 0 {
            pinned(Allocator::drain_pagesets);
        }
        if is_first && now().ns_since(last_tick) >= SECOND_NS {
            pinned(Allocator::tick);
            last_tick = now();
        }
    }
    FINISHED.fetch_add(1, Release); // Release: publishes the CPU's operations; pairs with `wait_for`, `on_tick`.
    blocks
}

/// Waits until `cpus` CPUs have finished.
pub(crate) fn wait_for(cpus: usize) {
    // Acquire: takes the operations of the CPUs; pairs with `work`.
    while FINISHED.load(Acquire) < cpus {
        interrupts::enable_and_hlt();
    }
}

/// Runs on every CPU but the first.
pub(crate) fn idle() -> ! {
    work();
    loop {
        interrupts::enable_and_hlt(); // the CPU still answers requests
    }
}

/// Handles the timer interrupt.
pub(crate) fn on_tick(_: &mut Context) {
    pinned(|allocator| {
        if cpu::current_id().index() == 0 {
            allocator.platform().advance();
        }
        // A handler may allocate, because it never interrupts an allocation. It must not wait for memory. At the end,
        // when the first CPU verifies the allocator, no other CPU may use it.
        // Acquire: takes the operations of the CPUs; pairs with `work`.
        if FINISHED.load(Acquire) == 0
            && let Ok(block) = allocator.alloc(&Request::page().no_wait())
        {
            allocator.free(block.first, block.order).expect("the frame was allocated");
        }
    });
}

/// Switches tasks, of which this kernel has none.
pub(crate) fn switch(_: &mut Context) {}
