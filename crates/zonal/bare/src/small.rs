//! The smallest kernel, whose size `cargo xtask kernel --size` measures: it allocates, frees and calls `tick`, and nothing
//! else.
//!
//! The platform is that of a kernel with several CPUs that calls the allocator with interrupts off. Its constants say that it
//! uses nothing else. The program runs on Linux with one CPU, so no call waits. Related files: `main.rs` checks more and has
//! no size.
#![no_std]
#![no_main]
#![no_builtins]

mod exit;
mod memory;

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use zonal::layout::BufferRequest;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::{Pinned, Quiesce};
use zonal::platform::{SpinLock, ZeroedCells};
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform, Request};

/// Bytes for the metadata of [`FRAMES`] frames, which is more than enough.
const BOOT_BYTES: usize = 1 << 20;
/// Frame count of the machine: 128 MiB.
const FRAMES: u64 = 1 << 15;

/// Memory for the metadata, aligned to a cache line.
#[repr(align(64))]
struct Boot([MaybeUninit<u8>; BOOT_BYTES]);

/// What the allocator needs from this kernel.
struct Kernel {
    now: AtomicU64,
    access: Pinned<Interrupts>,
}

/// Interrupts between CPUs. The other CPUs of this kernel never start.
struct Interrupts;

impl Quiesce for Interrupts {
    fn quiesce(&self, _cpu: CpuId) {}
}

impl Platform for Kernel {
    const CONFIG: Option<&'static Config> = Some(&Config::DEFAULT);
    const OWNS_BLOCKS: bool = false;
    const IS_SHARED: bool = false;
    const ONLY_BLOCKS: bool = true;
    const RESTRICTS: bool = false;
    const RECLAIMS: bool = false;
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned<Interrupts>;

    // SAFETY: the atomics of `core` are plain integers, and `SpinLock` consists of one. New ones with value 0 consist of
    // zero bytes. None of these types needs dropping.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &Pinned<Interrupts> {
        &self.access
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.now.fetch_add(1 << 20, Relaxed))
    }
}

/// Allocates blocks, frees them, and ticks. Returns `None` if any step fails.
fn run(boot: &mut [MaybeUninit<u8>]) -> Option<()> {
    let node = NodeId::new(0)?;
    let frames = FrameRange { start: Pfn::new(256), count: PageCount::new(FRAMES) };
    let cpus = [CpuId::new(0), CpuId::new(1)];
    let nodes = [NodeDescription { id: node, cpus: &cpus, distances: &[10] }];
    let managed = [frames];
    let zones = [ZoneDescription { node, kind: ZoneKind::Normal, span: frames, managed: &managed }];
    let machine = Machine::new(&nodes, &zones).ok()?;
    let mut rest = boot;
    let supply = |request: BufferRequest| {
        let (taken, after) = core::mem::take(&mut rest).split_at_mut_checked(request.bytes)?;
        rest = after;
        Some(Buffer::uninit(taken))
    };
    let kernel = Kernel { now: AtomicU64::new(0), access: Pinned(Interrupts) };
    let allocator = Allocator::new(kernel, &machine, &Config::default(), supply).ok()?;
    let mut held = [(Pfn::new(0), Order::PAGE); 64];
    for (slot, order) in held.iter_mut().zip([0, 9, 3, 0, 5].into_iter().cycle()) {
        let block = allocator.alloc(&Request::new(Order::new(order)?)).ok()?;
        *slot = (block.first, block.order);
    }
    allocator.tick();
    held.into_iter().try_for_each(|(first, order)| allocator.free(first, order).ok())
}

/// Runs the program for the entry point. Returns the exit status.
fn main() -> u8 {
    let mut boot = Boot([MaybeUninit::uninit(); BOOT_BYTES]);
    u8::from(run(&mut boot.0).is_none())
}
