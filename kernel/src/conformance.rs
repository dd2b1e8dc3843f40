//! The conformance scenarios on this kernel's platform, before its tasks start.
//!
//! The scenarios have allocators of their own over frames that do not exist. A job runs with interrupts on, on the idle
//! loop of its CPU, and makes each call of the allocator with interrupts off. Related files: `platform.rs` has the
//! platform, and `tasks.rs` the idle loop.

use core::mem::{MaybeUninit, transmute};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use arrayvec::ArrayVec;
use x86_64::instructions::interrupts::{self, without_interrupts};
use zonal::units::{CpuId, NodeId, Order, PageCount, PageKind};
use zonal::{Block, Request};
use zonal_conformance::{Harness, Job, Kit, NotSupported, Outcome, SCENARIOS, memory_bytes};

use crate::console::println;
use crate::cpu::{self, CPUS_MAX, Cpu};
use crate::firmware::FRAME_BYTES;
use crate::platform::{Kernel, TICK_MS, pinned};
use crate::smp::wait_a_little;
use crate::sync::Mutex;
use crate::{handlers, local_apic};

/// Work of a job, until the call that runs it returns.
type Work = &'static (dyn Fn() + Sync);

/// The job of each CPU that has not begun.
static JOBS: Mutex<[Option<Work>; CPUS_MAX]> = Mutex::new([None; CPUS_MAX]);
/// Number of jobs that have not ended.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// Nodes whose wake-up was taken from a platform, but not yet from the harness, one bit each.
static WOKEN: AtomicU64 = AtomicU64::new(0);

/// This machine.
struct Machine {
    cpus: ArrayVec<CpuId, CPUS_MAX>,
}

impl Harness for Machine {
    type Platform = Kernel;

    fn platform(&self) -> Kernel {
        Kernel::new()
    }

    fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    fn run(&self, jobs: &[Job<'_>]) {
        RUNNING.store(jobs.len(), Relaxed); // relaxed: the lock of the jobs orders it
        for &(id, work) in jobs {
            // SAFETY: this function returns after all jobs have ended, so no CPU uses the work later.
            let work: Work = unsafe { transmute(work) };
            without_interrupts(|| JOBS.lock()[id.index()] = Some(work));
            if id.index() != 0 {
                // Wakes the idle loop of the CPU.
                local_apic::send(cpu::of(id).controller.load(Relaxed), handlers::REQUEST);
            }
        }
        without_interrupts(|| run_job(cpu::current()));
        // Acquire: takes the jobs' writes; pairs with `run_job`.
        while RUNNING.load(Acquire) > 0 {
            without_interrupts(wait_a_little);
        }
    }

    fn call(&self, call: &mut dyn FnMut()) {
        without_interrupts(call);
    }

    fn rounds(&self) -> u32 {
        20
    }

    fn pass_ms(&self, platform: &Kernel, ms: u64) -> Result<(), NotSupported> {
        if ms > 1000 {
            return Err(NotSupported("the timer ticks in real time"));
        }
        (0..ms.div_ceil(u64::from(TICK_MS))).for_each(|_| platform.advance());
        Ok(())
    }

    fn take_wake_up(&self, platform: &Kernel, node: NodeId) -> Result<bool, NotSupported> {
        let bit = 1 << node.index();
        WOKEN.fetch_or(platform.take_nodes_to_reclaim(), Relaxed); // relaxed, as below: one job takes wake-ups
        Ok(WOKEN.fetch_and(!bit, Relaxed) & bit != 0)
    }
}

/// Runs the job of the calling CPU, if there is one. Interrupts are off, except during the job.
pub(crate) fn run_job(cpu: &Cpu) {
    let Some(work) = JOBS.lock()[cpu.id().index()].take() else { return };
    interrupts::enable();
    work();
    interrupts::disable();
    // Release: publishes the job's writes; pairs with `Machine::run`.
    RUNNING.fetch_sub(1, Release);
}

/// Runs all scenarios on the calling CPU, which is the first. The others are in their idle loops.
pub(crate) fn run(cpus: usize) {
    let machine = Machine { cpus: (0..cpus as u32).map(CpuId::new).collect() };
    let bytes = memory_bytes::<Kernel>(machine.cpus());
    let buffer = buffer_of(bytes);
    let address = (buffer.first.get() * FRAME_BYTES) as *mut MaybeUninit<u8>;
    // SAFETY: the block was allocated for this slice, and physical memory is mapped to the same addresses.
    let memory = unsafe { core::slice::from_raw_parts_mut(address, bytes) };
    let mut kit = Kit::new(&machine, memory);
    for scenario in SCENARIOS {
        let outcome = kit.run(scenario);
        println!("conformance {scenario:?}: {outcome}");
        assert!(!matches!(outcome, Outcome::Failed(_)), "{scenario:?}: {outcome}");
    }
    pinned(|allocator| allocator.free(buffer.first, buffer.order)).expect("the buffer can be freed");
}

fn buffer_of(bytes: usize) -> Block {
    let pages = PageCount::new((bytes as u64).div_ceil(FRAME_BYTES));
    let order = Order::holding(pages).expect("a small buffer");
    let request = Request::new(order).kind(PageKind::Kernel);
    pinned(|allocator| allocator.alloc(&request)).expect("memory for the metadata of the scenarios")
}
