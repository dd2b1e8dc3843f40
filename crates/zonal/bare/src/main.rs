//! zonal with nothing underneath: no std, no heap, no C library, not even start files.
//!
//! What a kernel brings is here in its smallest form: an entry point, a panic handler, a platform,
//! memory for the metadata. The program takes frames and gives them back, and ends with 0 when the
//! books balance. Neighbours: `memory.rs` has the copy routines the compiler calls, `exit.rs` how
//! to start and end.
#![no_std]
#![no_main]
#![no_builtins]

mod exit;
mod memory;

use core::mem::MaybeUninit;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use zonal::layout::BufferRequest;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::SpinLock;
use zonal::platform::cpu_local::{OneCpu, Pinned};
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform, Request};

/// Bytes for the metadata of [`FRAMES`] frames: more than enough.
const BOOT_BYTES: usize = 1 << 20;
/// Frames of the machine: 128 MiB.
const FRAMES: u64 = 1 << 15;

/// A machine of one CPU where no time passes.
struct Bare;

impl Platform for Bare {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &Pinned {
        &Pinned(OneCpu)
    }

    fn now(&self) -> Moment {
        Moment::from_ns(0)
    }
}

/// Metadata memory, on lines of its own.
#[repr(align(64))]
struct Boot([MaybeUninit<u8>; BOOT_BYTES]);

/// Takes blocks of several sizes, gives them back, and checks the books; `None` when anything is not
/// as it should be.
fn run(boot: &mut [MaybeUninit<u8>]) -> Option<()> {
    let node = NodeId::new(0)?;
    let frames = FrameRange { start: Pfn::new(256), count: PageCount::new(FRAMES) };
    let (nodes, managed) =
        ([NodeDescription { id: node, cpus: &[CpuId::new(0)], distances: &[10] }], [frames]);
    let zones = [ZoneDescription { node, kind: ZoneKind::Normal, span: frames, managed: &managed }];
    let machine = Machine::new(&nodes, &zones).ok()?;
    let mut rest = boot;
    let supply = |request: BufferRequest| {
        let (taken, after) = core::mem::take(&mut rest).split_at_mut_checked(request.bytes)?;
        rest = after;
        Some(Buffer::uninit(taken))
    };
    let allocator = Allocator::new(Bare, &machine, &Config::default(), supply).ok()?;
    let orders = [0, 9, 3, 0, 5];
    let mut held = [(Pfn::new(0), Order::PAGE); 64];
    for (slot, order) in held.iter_mut().zip(orders.into_iter().cycle()) {
        let block = allocator.alloc(&Request::new(Order::new(order)?)).ok()?;
        *slot = (block.first, block.order);
    }
    for (first, order) in held {
        allocator.free(first, order).ok()?;
    }
    allocator.free(held[0].0, held[0].1).err()?;
    let accounting = allocator.verify().ok()?;
    (accounting.managed == frames.count && accounting.allocated == PageCount::ZERO && accounting.balance())
        .then_some(())
}

/// Called by the entry point; the program's status.
fn main() -> u8 {
    let mut boot = Boot([MaybeUninit::uninit(); BOOT_BYTES]);
    u8::from(run(&mut boot.0).is_none())
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit::with(101)
}

/// Referred to by the tables of the ready-built `core`, which can unwind; nothing here does.
// SAFETY: the name is that of Rust's unwinding helper, which no code of an aborting program calls.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
