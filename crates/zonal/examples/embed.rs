//! The smallest embedding, as a kernel would do it: a platform of its own, metadata carved from
//! memory it has at boot, frames handed out and taken back.
//!
//! Run it with `cargo run -p zonal --example embed`. Nothing here needs the standard library but
//! printing.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use zonal::cpu_local::{OneCpu, Pinned};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::SpinLock;
use zonal::units::{CpuId, Moment, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform, Request};

/// What this kernel tells the allocator about the world.
struct Kernel {
    /// Bumped by the timer interrupt.
    ticks_ns: AtomicU64,
}

impl Platform for Kernel {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0) // a real kernel reads its per-CPU area
    }

    fn cpu_local(&self) -> &Pinned {
        &Pinned(OneCpu)
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.ticks_ns.load(Relaxed))
    }
}

/// Hands out boot memory from its start: where metadata comes from before there is an allocator.
struct BootMemory {
    rest: &'static mut [MaybeUninit<u8>],
}

impl BootMemory {
    fn take(&mut self, bytes: usize) -> Option<Buffer<'static>> {
        let (taken, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(bytes)?;
        self.rest = rest;
        Some(Buffer::uninit(taken))
    }
}

fn main() -> Result<(), Box<dyn core::error::Error>> {
    // What firmware reported: two nodes of one CPU and 256 MiB each, with a hole in the second.
    let node = |id| NodeId::new(id).expect("a small id");
    let frames = |start: u64, count: u64| FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
    let nodes = [
        NodeDescription { id: node(0), cpus: &[CpuId::new(0)], distances: &[10, 21] },
        NodeDescription { id: node(1), cpus: &[CpuId::new(1)], distances: &[21, 10] },
    ];
    let (first, second) = ([frames(0x10000, 0x10000)], [frames(0x20000, 0x4000), frames(0x28000, 0x8000)]);
    let kind = ZoneKind::Normal;
    let zones = [
        ZoneDescription { node: node(0), kind, span: frames(0x10000, 0x10000), managed: &first },
        ZoneDescription { node: node(1), kind, span: frames(0x20000, 0x10000), managed: &second },
    ];
    let machine = Machine::new(&nodes, &zones)?;

    let mut boot = BootMemory { rest: Box::leak(vec![MaybeUninit::uninit(); 4 << 20].into_boxed_slice()) };
    let kernel = Kernel { ticks_ns: AtomicU64::new(0) };
    let allocator = Allocator::new(kernel, &machine, &Config::default(), |request| boot.take(request.bytes))?;
    println!(
        "{} frames managed with {} bytes of metadata",
        allocator.books().managed,
        allocator.metadata_bytes()
    );

    let page = allocator.alloc(&Request::page())?;
    let huge = allocator.alloc(&Request::new(Order::new(9).expect("2 MiB")))?;
    println!("one frame: {} on node {}", page.first, page.node);
    println!("2 MiB:     {} on node {}", huge.first, huge.node);

    allocator.free(huge.first, huge.order)?;
    allocator.free(page.first, page.order)?;
    match allocator.free(page.first, page.order) {
        Ok(()) => unreachable!("a double free is refused"),
        Err(error) => println!("freed twice: {error}"),
    }

    // The timer interrupt, once a second.
    allocator.platform().ticks_ns.fetch_add(1_000_000_000, Relaxed);
    allocator.tick();

    let books = allocator.verify()?;
    println!(
        "managed {} = free {} + in pagesets {} + allocated {}",
        books.managed, books.free, books.in_pagesets, books.allocated
    );
    Ok(())
}
