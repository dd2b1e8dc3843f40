//! Runs zonal without std, heap, C library or start files.
//!
//! The program supplies the parts of a kernel in their smallest form: an entry point, a panic handler and memory for
//! the metadata. It allocates and frees blocks, and exits with 0 if the accounting balances. Related files: `memory.rs`
//! has the copy routines that the compiler calls, and `exit.rs` the start and the end.
#![no_std]
#![no_main]
#![no_builtins]

mod exit;
mod memory;

use core::mem::MaybeUninit;

use zonal::layout::BufferRequest;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::OneThread;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Request};

/// Bytes for the metadata of [`FRAMES`] frames, which is more than enough.
const BOOT_BYTES: usize = 1 << 20;
/// Frame count of the machine: 128 MiB.
const FRAMES: u64 = 1 << 15;

/// Memory for the metadata, aligned to a cache line.
#[repr(align(64))]
struct Boot([MaybeUninit<u8>; BOOT_BYTES]);

/// Allocates blocks of several orders, frees them and verifies the accounting. Returns `None` if any step fails.
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
    let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), supply).ok()?;
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

/// Runs the program for the entry point. Returns the exit status.
fn main() -> u8 {
    let mut boot = Boot([MaybeUninit::uninit(); BOOT_BYTES]);
    u8::from(run(&mut boot.0).is_none())
}
