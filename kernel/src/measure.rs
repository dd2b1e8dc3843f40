//! Calls of the allocator whose instructions a QEMU plugin counts, to compare them with those of Linux.
//!
//! The option `measure=1` on the kernel's command line runs this instead of the race. The workload is that of the
//! program `xtask/src/kernel/guest/pages.c`: blocks of 2 MiB one after another, a burst of them, sets of 16 single
//! frames, and a burst of many.

use zonal::units::{Order, PageCount, Pfn};
use zonal::{Allocator, Request};

use crate::boot::STACK_BYTES;
use crate::platform::{Kernel, pinned};

/// Number of frames in a set, of rounds, and of frames in a burst.
const SET: usize = 16;
const ROUNDS: usize = 200;
const BURST: usize = 200 * SET;
/// The same for blocks of 2 MiB.
const HUGE_ROUNDS: usize = 20;
const HUGE_BURST: usize = 32;
const HUGE: Order = Order::holding(PageCount::new(512)).expect("2 MiB");

/// Allocates a block and returns its first frame.
// SAFETY: no other symbol has this name. The plugin finds the function by it.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn measured_alloc(allocator: &Allocator<'static, Kernel>, order: Order) -> Pfn {
    allocator.alloc(&Request::new(order)).map_or(Pfn::new(u64::MAX), |block| block.first)
}

/// Frees a block.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn measured_free(allocator: &Allocator<'static, Kernel>, first: Pfn, order: Order) -> bool {
    allocator.free(first, order).is_ok()
}

/// Allocates blocks until `held` is full, and frees them in the same order.
fn round(held: &mut [Pfn], order: Order) {
    pinned(|allocator| {
        for first in &mut *held {
            *first = measured_alloc(allocator, order);
        }
        for &first in &*held {
            assert!(measured_free(allocator, first, order), "block {first} of order {order}");
        }
    });
}

/// Begins a section of the plugin's counts, which it finds by the name of this function.
// SAFETY: as above.
#[unsafe(no_mangle)]
#[inline(never)]
extern "Rust" fn measured_section() {
    core::hint::black_box(());
}

/// Runs the workload on the calling CPU. Each part is a section of the counts.
pub(crate) fn run() {
    const { assert!(BURST * size_of::<Pfn>() < STACK_BYTES, "the numbers of the frames fit on the stack") };
    let mut held = [Pfn::default(); BURST];
    for (rounds, set, order) in
        [(HUGE_ROUNDS, 1, HUGE), (1, HUGE_BURST, HUGE), (ROUNDS, SET, Order::PAGE), (1, BURST, Order::PAGE)]
    {
        measured_section();
        (0..rounds).for_each(|_| round(&mut held[..set], order));
        measured_section();
    }
}
