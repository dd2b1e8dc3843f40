//! The platform of a small kernel with several CPUs: the current CPU, interrupts between CPUs, and a lock that answers
//! interrupts while it waits.
//!
//! A thread represents a CPU that runs with interrupts off, as [`Pinned`] requires. It checks its mailbox only at *safe
//! points*: while it waits, and between its calls of the allocator. In a real kernel, the interrupt controller replaces
//! the mailbox, and its handler does the work of [`safe_point`]. Related files: `main.rs` starts the machine.

use core::cell::RefCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::Arc;
use std::thread;

use zonal::Platform;
use zonal::platform::RawLock;
use zonal::platform::cpu_local::{Pinned, Quiesce};
use zonal::units::{CpuId, Moment};

/// Requests of other CPUs to one CPU. Invariant: `answered <= asked`.
#[derive(Default)]
struct Mailbox {
    /// Twice the number of requests so far, plus 1 while the CPU runs. It is changed only by read-modify-write
    /// operations. A CPU that starts after a request therefore reads everything that the requesting CPU wrote before
    /// it.
    asked: AtomicU64,
    /// Number of requests answered. Only the CPU itself writes it.
    answered: AtomicU64,
}

const RUNNING: u64 = 1;
const REQUEST: u64 = 2;

/// The CPUs of the machine, by id.
pub(crate) struct Cpus(Box<[Mailbox]>);

thread_local! {
    /// The data that a kernel stores in its per-CPU area.
    static THIS_CPU: RefCell<Option<(Arc<Cpus>, CpuId)>> = const { RefCell::new(None) };
}

impl Cpus {
    /// Creates `count` CPUs, none of which runs.
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self((0..count).map(|_| Mailbox::default()).collect()))
    }

    /// Starts a CPU. The calling thread represents the CPU until the result is dropped.
    pub(crate) fn start(self: &Arc<Self>, cpu: CpuId) -> RunningCpu {
        THIS_CPU.set(Some((Arc::clone(self), cpu)));
        self.wake(cpu);
        RunningCpu(())
    }

    fn wake(&self, cpu: CpuId) {
        let mailbox = &self.0[cpu.index()];
        // AcqRel: takes the writes before earlier requests, publishes this CPU's; pairs with `Interrupts::quiesce`.
        let asked = mailbox.asked.fetch_or(RUNNING, AcqRel);
        assert!(asked & RUNNING == 0, "CPU {cpu} runs already");
        // Release: publishes this CPU's writes; pairs with `Interrupts::quiesce`.
        mailbox.answered.store(asked / REQUEST, Release);
    }

    fn sleep(&self, cpu: CpuId) {
        // Release: publishes this CPU's writes to those that find it asleep; pairs with `Interrupts::quiesce`.
        self.0[cpu.index()].asked.fetch_and(!RUNNING, Release);
    }

    fn answer(&self, cpu: CpuId) {
        let mailbox = &self.0[cpu.index()];
        // Acquire: takes what was written before the request; pairs with `Interrupts::quiesce`.
        let asked = mailbox.asked.load(Acquire) / REQUEST;
        if mailbox.answered.load(Relaxed) != asked {
            // The load above is relaxed because no other CPU writes `answered`.
            // Release: publishes what was written before the answer; pairs with `Interrupts::quiesce`.
            mailbox.answered.store(asked, Release);
        }
    }
}

/// A CPU that runs on the calling thread. Dropping it stops the CPU, even after a panic, so that no other CPU waits for
/// its answer.
pub(crate) struct RunningCpu(());

impl RunningCpu {
    /// Sleeps during `wait`, which must not use the allocator. The CPU answers no requests meanwhile, and no CPU waits
    /// for it.
    pub(crate) fn idle<R>(&self, wait: impl FnOnce() -> R) -> R {
        on_this_cpu(Cpus::sleep);
        let result = wait();
        on_this_cpu(Cpus::wake);
        result
    }
}

impl Drop for RunningCpu {
    fn drop(&mut self) {
        on_this_cpu(Cpus::sleep);
        THIS_CPU.set(None);
    }
}

/// Answers the requests of other CPUs. A CPU that needs to access this CPU's pagesets waits until the next call.
pub(crate) fn safe_point() {
    on_this_cpu(Cpus::answer);
}

fn on_this_cpu(act: impl FnOnce(&Cpus, CpuId)) {
    THIS_CPU.with_borrow(|this| {
        if let Some((cpus, cpu)) = this {
            act(cpus, *cpu);
        }
    });
}

/// Runs one iteration of a loop that waits for another CPU.
fn wait_a_little() {
    safe_point();
    thread::yield_now(); // a kernel pauses the processor; here two CPUs may share one processor
}

/// Sends a request to another CPU and waits for its answer, which ensures that no operation is in progress there.
pub(crate) struct Interrupts(Arc<Cpus>);

impl Quiesce for Interrupts {
    fn quiesce(&self, cpu: CpuId) {
        let mailbox = &self.0.0[cpu.index()];
        // AcqRel: takes a sleeping CPU's writes, publishes the caller's; pairs with `answer`, `wake`, `sleep`.
        let before = mailbox.asked.fetch_add(REQUEST, AcqRel);
        let request = before / REQUEST + 1;
        let mut runs = before & RUNNING != 0;
        // Acquire: takes the writes before the answer; pairs with `answer`, `wake`.
        while runs && mailbox.answered.load(Acquire) < request {
            wait_a_little(); // the other CPU may be waiting for this one
            // Acquire: takes the writes before the sleep; pairs with `sleep`.
            runs = mailbox.asked.load(Acquire) & RUNNING != 0;
        }
    }
}

/// A spin lock that answers other CPUs while it waits, because its holder may be waiting for this CPU's answer.
pub(crate) struct AnsweringLock(AtomicBool);

impl RawLock for AnsweringLock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    fn lock(&self) {
        while !self.try_lock() {
            wait_a_little();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Acquire) // Acquire: takes the last holder's writes; pairs with `AnsweringLock::unlock`.
    }

    fn unlock(&self) {
        self.0.store(false, Release); // Release: publishes the holder's writes; pairs with `AnsweringLock::try_lock`.
    }
}

/// The platform that the allocator runs on.
pub(crate) struct Kernel {
    ticks_ns: AtomicU64,
    pinned: Pinned<Interrupts>,
}

impl Kernel {
    /// Creates the kernel of these CPUs.
    pub(crate) fn new(cpus: &Arc<Cpus>) -> Self {
        Self { ticks_ns: AtomicU64::new(0), pinned: Pinned(Interrupts(Arc::clone(cpus))) }
    }

    /// The timer interrupt: advances the clock by `ns`.
    pub(crate) fn advance(&self, ns: u64) {
        self.ticks_ns.fetch_add(ns, Relaxed); // relaxed: no other data depends on the clock
    }
}

impl Platform for Kernel {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = AnsweringLock;
    type CpuLocal = Pinned<Interrupts>;

    fn current_cpu(&self) -> CpuId {
        // A thread that is not a CPU of this kernel returns a number that the machine does not have, so its requests
        // bypass the pagesets.
        THIS_CPU.with_borrow(|this| this.as_ref().map_or(CpuId::new(u32::MAX), |&(_, cpu)| cpu))
    }

    fn cpu_local(&self) -> &Pinned<Interrupts> {
        &self.pinned
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.ticks_ns.load(Relaxed)) // relaxed: as in `advance`
    }

    fn relax(&self, _round: u32) {
        wait_a_little();
    }
}
