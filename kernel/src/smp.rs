//! Several CPUs: starting them, and the requests between them.
//!
//! A CPU that needs to access the pagesets of another CPU sends a request and waits for the answer. The other CPU
//! answers in its interrupt handler, and wherever it waits with interrupts off.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicUsize};

use zonal::platform::cpu_local::Quiesce;
use zonal::units::{CpuId, Order, PageCount, PageKind};
use zonal::{Block, Policy, Request};

use crate::boot::{self, STACK_BYTES};
use crate::cpu::{self, Cpu};
use crate::firmware::{FRAME_BYTES, Firmware, Processor};
use crate::platform::{TICK_MS, pinned};
use crate::sync::Wait;
use crate::{handlers, local_apic, tasks};

/// Number of CPUs that run or are parked.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// Number of the CPU that starts next.
static NEXT_ID: AtomicU32 = AtomicU32::new(0);
/// Period of the timers, in counts of the controllers.
static PERIOD: AtomicU32 = AtomicU32::new(0);

/// Makes the calling CPU the CPU `id` and lets it take requests.
pub(crate) fn start_current(id: CpuId) {
    cpu::start(id, local_apic::id());
    handlers::load_table();
    local_apic::turn_on();
    wake(cpu::of(id));
    STARTED.fetch_add(1, Release); // Release: publishes the data of the CPU; pairs with `start_others`.
}

/// Starts all CPUs but the first, one after another. Their stacks are in the memory of their nodes. The allocator uses
/// the pagesets of a CPU from the time at which the CPU has started. Calls `on_stack` with each stack.
pub(crate) fn start_others(firmware: &Firmware, on_stack: impl Fn(Block)) {
    PERIOD.store(local_apic::timer_counts_per_ms() * TICK_MS, Relaxed); // relaxed: read by CPUs that start later
    boot::copy_trampoline();
    for (id, processor) in firmware.processors.iter().enumerate().skip(1) {
        let stack = stack_of(processor);
        on_stack(stack);
        boot::set_next_stack(stack.range().end().get() * FRAME_BYTES);
        NEXT_ID.store(id as u32, Relaxed); // relaxed: the CPU that reads it is started afterwards
        local_apic::start_cpu(processor.controller);
        let mut waits = 0;
        // Acquire: takes the data of the CPU; pairs with `start_current`.
        while STARTED.load(Acquire) <= id {
            assert!(waits < 5_000, "CPU {id} (interrupt controller {}) does not start", processor.controller);
            local_apic::wait_ms(1);
            waits += 1;
        }
        pinned(|allocator| allocator.online_cpu(CpuId::new(id as u32))).expect("the CPU is offline");
    }
}

/// Allocates a stack for good.
fn stack_of(processor: &Processor) -> Block {
    let order = Order::holding(PageCount::new(STACK_BYTES as u64 / FRAME_BYTES)).expect("a small stack");
    let stack = pinned(|allocator| {
        let policy = Policy::preferred(allocator, processor.node).unwrap_or_else(|_| Policy::local());
        allocator.alloc(&Request::new(order).kind(PageKind::Kernel).policy(&policy))
    });
    stack.expect("memory for a stack")
}

/// Starts a CPU other than the first.
pub(crate) extern "C" fn other_cpu_main() -> ! {
    start_current(CpuId::new(NEXT_ID.load(Relaxed))); // relaxed: written before this CPU was started
    start_timer();
    tasks::idle()
}

/// Starts the timer of the calling CPU, which runs tasks from now on whenever it waits with interrupts on.
pub(crate) fn start_timer() {
    local_apic::start_timer(PERIOD.load(Relaxed)); // relaxed: written before this CPU was started
}

/// Parks a CPU or lets it go on. It does so when its task is next preempted.
pub(crate) fn set_parked(cpu: &Cpu, parked: bool) {
    cpu.should_park.store(parked, Release); // Release: publishes the caller's writes; pairs with `idle`, `park`.
}

/// Stops all CPUs but the first, and waits until they have stopped.
pub(crate) fn park_others(cpus: usize) {
    for cpu in (1..cpus as u32).map(|id| cpu::of(CpuId::new(id))) {
        set_parked(cpu, true);
        // Acquire: takes the writes of the parked CPU; pairs with `park`.
        while !cpu.is_parked.load(Acquire) {
            wait_a_little();
        }
    }
}

/// Records that a CPU runs. The calling CPU must be that CPU.
pub(crate) fn wake(cpu: &Cpu) {
    // AcqRel: takes the writes before earlier requests, publishes this CPU's; pairs with `Requests::quiesce`.
    let asked = cpu.asked.fetch_or(cpu::RUNNING, AcqRel);
    assert!(asked & cpu::RUNNING == 0, "CPU {} runs already", cpu.id());
    // Release: publishes this CPU's writes; pairs with `Requests::quiesce`.
    cpu.answered.store(asked / cpu::REQUEST, Release);
}

/// Records that the calling CPU does not run until it wakes. It executes no code of the allocator meanwhile.
pub(crate) fn sleep(cpu: &Cpu) {
    // Release: publishes this CPU's writes to those that find it asleep; pairs with `Requests::quiesce`.
    cpu.asked.fetch_and(!cpu::RUNNING, Release);
}

/// Runs one iteration of a loop that waits for another CPU with interrupts off.
pub(crate) fn wait_a_little() {
    cpu::current().answer();
    core::hint::spin_loop();
}

/// Requests to other CPUs, by interrupt.
pub(crate) struct Requests;

impl Quiesce for Requests {
    fn quiesce(&self, id: CpuId) {
        let cpu = cpu::of(id);
        // One operation adds the request and reads whether the CPU runs. In two steps, the CPU could wake in between.
        // AcqRel: takes a sleeping CPU's writes, publishes the caller's; pairs with `Cpu::answer`, `wake`, `sleep`.
        let before = cpu.asked.fetch_add(cpu::REQUEST, AcqRel);
        let request = before / cpu::REQUEST + 1;
        let mut runs = before & cpu::RUNNING != 0;
        if runs {
            local_apic::send(cpu.controller.load(Relaxed), handlers::REQUEST); // relaxed: written before it ran
        }
        let mut wait = Wait::new("the answer of another CPU");
        // Acquire: takes the writes before the answer; pairs with `Cpu::answer`, `wake`.
        while runs && cpu.answered.load(Acquire) < request {
            wait.a_little(); // the other CPU may be waiting for this one
            // Acquire: takes the writes before the sleep; pairs with `sleep`.
            runs = cpu.asked.load(Acquire) & cpu::RUNNING != 0;
        }
    }
}
