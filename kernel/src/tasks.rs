//! Tasks, which share the CPUs: the timer preempts a task at any instruction, and the task may go on on another CPU.
//!
//! A task is its saved registers and a stack. To switch tasks, an interrupt handler stores the interrupted task's
//! registers and replaces them by those of another task, and the end of the handler loads them.

use core::arch::asm;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};

use x86_64::instructions::interrupts::{self, without_interrupts};
use zonal::units::Order;
use zonal::{Block, Request};

use crate::cpu::{self, Cpu, NO_TASK};
use crate::firmware::FRAME_BYTES;
use crate::handlers::{Context, YIELD};
use crate::platform::{Kernel, pinned};
use crate::sync::Mutex;
use crate::{conformance, owners, race, smp};

/// The largest number of tasks.
pub(crate) const TASKS_MAX: usize = 64;
/// Order of a task's stack block: 64 KiB.
const STACK_ORDER: u8 = 4;

/// Code of a task. It gets the number of the task, which is its owner in `owners.rs`.
pub(crate) type Code = fn(u32);

#[derive(Clone, Copy)]
struct Task {
    registers: Context,
    code: Option<Code>,
    stack: Option<Block>,
    is_ready: bool,
    /// The CPU that the task ran on last.
    last_cpu: usize,
}

/// All tasks. A task is ready, or runs on one CPU, or has ended.
struct Tasks {
    list: [Task; TASKS_MAX],
    /// The registers of each CPU's idle loop while the CPU runs a task.
    idle: [Context; cpu::CPUS_MAX],
    len: usize,
    /// Place from which the next ready task is searched.
    next: usize,
}

const NONE: Task =
    Task { registers: Context::new(0, 0, 0), code: None, stack: None, is_ready: false, last_cpu: NO_TASK };

static TASKS: Mutex<Tasks> = Mutex::new(Tasks {
    list: [NONE; TASKS_MAX],
    idle: [Context::new(0, 0, 0); cpu::CPUS_MAX],
    len: 0,
    next: 0,
});
/// Number of tasks that have not ended.
static ALIVE: AtomicUsize = AtomicUsize::new(0);
/// Number of switches from one task to another at a tick, and of tasks that went on on another CPU.
static PREEMPTED: AtomicU64 = AtomicU64::new(0);
static MIGRATED: AtomicU64 = AtomicU64::new(0);

/// Creates a task. Its stack is a block of the allocator.
pub(crate) fn spawn(code: Code) {
    let order = Order::new(STACK_ORDER).expect("a small order");
    let stack = pinned(|allocator| allocator.alloc(&Request::new(order))).expect("memory for a stack");
    owners::claim_unstamped(stack.range(), Some(stack.node), owners::STACK);
    without_interrupts(|| {
        let mut tasks = TASKS.lock();
        let place = tasks.len;
        assert!(place < TASKS_MAX, "at most {TASKS_MAX} tasks");
        // The processor expects the stack as it is after a call: 8 bytes from a multiple of 16.
        let end = stack.range().end().get() * FRAME_BYTES - 8;
        let registers = Context::new(begin as *const () as u64, end, place as u64);
        let code = Some(code);
        tasks.list[place] = Task { registers, code, stack: Some(stack), is_ready: true, ..NONE };
        tasks.len += 1;
        ALIVE.fetch_add(1, Relaxed); // relaxed: the lock orders it before the task runs
    });
}

/// Runs the code of a task, which is the task with this number.
extern "C" fn begin(place: usize) -> ! {
    let code = without_interrupts(|| TASKS.lock().list[place].code).expect("the task has code");
    code(place as u32 + 1);
    without_interrupts(|| TASKS.lock().list[place].code = None);
    loop {
        yield_now(); // this task is never ready again
    }
}

/// Waits on the calling CPU, which runs tasks meanwhile, until all tasks have ended.
pub(crate) fn wait_for_all() {
    // Acquire: takes the writes of the tasks; pairs with `Tasks::store`.
    while ALIVE.load(Acquire) > 0 {
        interrupts::enable_and_hlt();
    }
    interrupts::disable();
}

/// Frees the stacks of all tasks, which have ended.
pub(crate) fn free_stacks() {
    without_interrupts(|| {
        let mut tasks = TASKS.lock();
        for stack in tasks.list.iter_mut().filter_map(|task| task.stack.take()) {
            owners::release_unstamped(stack.range(), owners::STACK);
            pinned(|allocator| allocator.free(stack.first, stack.order)).expect("a stack can be freed");
        }
    });
}

/// Returns how often the timer preempted a task, and how often a task went on on another CPU.
pub(crate) fn switches() -> [u64; 2] {
    [&PREEMPTED, &MIGRATED].map(|count| count.load(Relaxed)) // relaxed: a statistic
}

/// Lets the CPU run another task.
pub(crate) fn yield_now() {
    // SAFETY: the handler of this vector switches tasks, and returns here when this task goes on.
    unsafe { asm!("int {vector}", vector = const YIELD, options(nostack)) };
}

/// Runs tasks on the calling CPU from now on, starting with the next tick.
pub(crate) fn idle() -> ! {
    let cpu = cpu::current(); // the idle loop never changes its CPU
    loop {
        interrupts::disable();
        // Acquire: takes the writes before the request; pairs with `smp::set_parked`.
        if cpu.should_park.load(Acquire) {
            park(cpu);
        }
        conformance::run_job(cpu);
        interrupts::enable_and_hlt();
    }
}

/// Stops the calling CPU until another CPU wakes it. It executes no code of the allocator meanwhile.
fn park(cpu: &Cpu) {
    smp::sleep(cpu);
    cpu.is_parked.store(true, Release); // Release: publishes this CPU's writes; pairs with `park_others`, `move_cpus`.
    // Acquire: takes the writes before the request; pairs with `smp::set_parked`.
    while cpu.should_park.load(Acquire) {
        interrupts::enable_and_hlt();
        interrupts::disable();
    }
    smp::wake(cpu);
    cpu.is_parked.store(false, Release); // Release: as above.
}

/// Handles a tick of the timer: the first CPU advances the clock, and every CPU allocates in its handler and switches
/// tasks.
pub(crate) fn on_tick(context: &mut Context) {
    let cpu = cpu::current();
    if cpu.id().index() == 0 {
        pinned(|allocator| allocator.platform().advance());
    }
    if cpu.is_parked.load(Relaxed) {
        return; // relaxed: only this CPU writes it
    }
    if !race::should_stop() {
        allocate_in_handler(cpu);
    }
    let before = cpu.task.load(Relaxed); // relaxed: only this CPU accesses it
    switch(context);
    if before != NO_TASK && before != cpu.task.load(Relaxed) {
        PREEMPTED.fetch_add(1, Relaxed); // relaxed: a statistic
    }
}

/// Allocates and frees a frame, as the handler of a network card would. It interrupted a task, but never one that is
/// within the allocator.
fn allocate_in_handler(cpu: &Cpu) {
    let owner = (TASKS_MAX + 1 + cpu.id().index()) as u32;
    pinned(|allocator| {
        if let Ok(block) = allocator.alloc(&Request::page().no_wait()) {
            owners::claim(block.range(), block.node, owner);
            owners::release(block.first, block.order.pages(), owner);
            allocator.free(block.first, block.order).expect("the frame of a handler can be freed");
        }
    });
}

/// Replaces the interrupted task's registers by those of the next ready task, or of the idle loop.
pub(crate) fn switch(context: &mut Context) {
    let cpu = cpu::current();
    let mut tasks = TASKS.lock();
    let current = cpu.task.load(Relaxed); // relaxed: only this CPU accesses it
    let parks = cpu.should_park.load(Relaxed); // relaxed: the idle loop looks again
    let next = if parks { None } else { tasks.take_ready() };
    let goes_on = current == NO_TASK || (!parks && tasks.list[current].code.is_some());
    if next.is_none() && goes_on {
        return;
    }
    tasks.store(current, cpu, context);
    tasks.load(next, cpu, context);
}

impl Tasks {
    /// Finds the next ready task after the one that was found last. It is not ready any more.
    fn take_ready(&mut self) -> Option<usize> {
        let places = (0..self.len).map(|step| (self.next + step) % self.len);
        let place = places.clone().find(|&place| self.list[place].is_ready)?;
        self.list[place].is_ready = false;
        self.next = place + 1;
        Some(place)
    }

    /// Stores the registers of the task `current`, or of the idle loop.
    fn store(&mut self, current: usize, cpu: &Cpu, context: &Context) {
        if current == NO_TASK {
            self.idle[cpu.id().index()] = *context;
            return;
        }
        let task = &mut self.list[current];
        task.registers = *context;
        task.is_ready = task.code.is_some();
        if !task.is_ready {
            // The task has ended. This handler has a stack of its own, so the task's stack is not in use any more.
            ALIVE.fetch_sub(1, Release); // Release: publishes the writes of the task; pairs with `wait_for_all`.
        }
    }

    /// Loads the registers of the task `next`, or of the idle loop.
    fn load(&mut self, next: Option<usize>, cpu: &Cpu, context: &mut Context) {
        let here = cpu.id().index();
        cpu.task.store(next.unwrap_or(NO_TASK), Relaxed); // relaxed: only this CPU accesses it
        let Some(place) = next else {
            *context = self.idle[here];
            return;
        };
        let task = &mut self.list[place];
        *context = task.registers;
        if task.last_cpu != NO_TASK && task.last_cpu != here {
            MIGRATED.fetch_add(1, Relaxed); // relaxed: a statistic
        }
        task.last_cpu = here;
    }
}

/// Returns the time of the kernel, in milliseconds.
pub(crate) fn now_ms() -> u64 {
    pinned(|allocator| Kernel::now_ms(allocator.platform()))
}
