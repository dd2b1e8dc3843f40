//! A complete embedding, as in a kernel with two CPUs: a platform, and metadata in boot memory. Both CPUs allocate and
//! free frames, while one of them drains the other's pagesets, takes it offline and brings it online again.
//!
//! Run it with `cargo run -p zonal --example embed`. A port replaces `kernel.rs`. In this example two threads represent
//! the CPUs.

mod kernel;

use core::error::Error;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Barrier;
use std::thread;

use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, SECOND_NS, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Request};

use kernel::{Cpus, Kernel, RunningCpu, safe_point};

/// An error on any CPU.
type Failure = Box<dyn Error + Send + Sync>;

/// Rounds of the boot CPU's work.
const ROUNDS: usize = 10_000;
/// Number of blocks that a CPU holds at a time.
const HELD: usize = 32;

/// Boot memory, which is allocated from its start. It supplies the metadata before the allocator exists.
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

fn main() -> Result<(), Failure> {
    // The firmware reports two nodes with one CPU and 256 MiB each, with a hole in the second node.
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
    let cpus = Cpus::new(2);
    let kernel = Kernel::new(&cpus);
    let allocator = Allocator::new(kernel, &machine, &Config::default(), |request| boot.take(request.bytes))?;
    println!(
        "{} frames managed with {} bytes of metadata",
        allocator.accounting().managed,
        allocator.metadata_bytes()
    );

    // This thread is the boot CPU.
    let boot_cpu = cpus.start(CpuId::new(0));
    show(&allocator)?;

    let (both_ready, done) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let _second_cpu = cpus.start(CpuId::new(1));
            both_ready.wait();
            alloc_and_free(&allocator, |_| !done.load(Relaxed)) // relaxed: only a request to stop
        });
        // While a CPU is idle, no other CPU waits for its answer.
        boot_cpu.idle(|| both_ready.wait());
        let first = alloc_and_free(&allocator, |round| {
            maintain(&allocator, round);
            round < ROUNDS
        });
        done.store(true, Relaxed);
        first.and(boot_cpu.idle(|| second.join()).expect("the second CPU does not panic"))
    })?;
    finish(&allocator, boot_cpu)
}

/// Allocates blocks of two sizes, and frees one of them twice.
fn show(allocator: &Allocator<'_, Kernel>) -> Result<(), Failure> {
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
    Ok(())
}

/// Runs the work of a CPU, which allocates and frees blocks of changing sizes until `goes_on` returns `false` after a
/// round.
fn alloc_and_free(allocator: &Allocator<'_, Kernel>, goes_on: impl Fn(usize) -> bool) -> Result<(), Failure> {
    let mut held = Vec::with_capacity(HELD);
    for round in 1.. {
        let order = Order::new((round % 4) as u8).expect("a small order");
        held.push(allocator.alloc(&Request::new(order))?);
        let ends = !goes_on(round);
        if held.len() == HELD || ends {
            for block in held.drain(..) {
                allocator.free(block.first, block.order)?;
            }
        }
        safe_point(); // this CPU handles its interrupts here
        if ends {
            break;
        }
    }
    Ok(())
}

/// Does the maintenance of the boot CPU, all of which accesses the other CPU's pagesets.
fn maintain(allocator: &Allocator<'_, Kernel>, round: usize) {
    let second = CpuId::new(1);
    match round % 100 {
        20 => allocator.drain_pagesets(),
        // The timer interrupt happens once a second.
        40 => {
            allocator.platform().advance(SECOND_NS);
            allocator.tick();
        }
        // While CPU 1 is offline, its requests bypass its pagesets.
        60 => allocator.offline_cpu(second).expect("it is online"),
        80 => allocator.online_cpu(second).expect("it is offline"),
        _ => {}
    }
}

/// Checks that both CPUs have freed everything.
fn finish(allocator: &Allocator<'_, Kernel>, boot_cpu: RunningCpu) -> Result<(), Failure> {
    let accounting = allocator.verify()?;
    println!(
        "managed {} = free {} + in pagesets {} + allocated {}",
        accounting.managed, accounting.free, accounting.in_pagesets, accounting.allocated
    );
    let drains: u64 = allocator.pagesets().map(|pageset| pageset.remote_drains).sum();
    println!("pagesets drained from the other CPU: {drains} times");
    assert!(accounting.balance() && accounting.allocated == PageCount::ZERO);
    drop(boot_cpu);
    Ok(())
}
