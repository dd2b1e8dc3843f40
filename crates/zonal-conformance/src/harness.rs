//! The interface to the machine under test, which the embedder implements.
//!
//! Related files: `watched.rs` has cells that report their accesses, for harnesses that can [watch](Harness::watch).

use zonal::Platform;
use zonal::units::{CpuId, NodeId};

use crate::rule::Rule;

/// Work for one CPU.
pub type Job<'a> = (CpuId, &'a (dyn Fn() + Sync));

/// The reason why a platform or its harness cannot do something. The report of the scenario contains it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotSupported(pub &'static str);

/// What the watched code is about to do, or has just done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It is about to access a cell.
    Access,
    /// It is about to acquire a lock of the platform, or to wait for it.
    Locks,
    /// It has released a lock of the platform, or has not acquired it.
    Unlocks,
    /// It waits for this CPU in [`quiesce`](zonal::platform::cpu_local::Quiesce::quiesce), or for any CPU in
    /// [`relax`](Platform::relax) or a lock.
    Waits(Option<CpuId>),
}

/// A machine whose CPUs run the scenarios.
///
/// The scenarios create their own allocators over frames that do not exist, with platforms from
/// [`Harness::platform`]. They never access the contents of frames. The methods without a default are required; each
/// other method lets more scenarios run, or more interleavings.
pub trait Harness: Sync {
    /// The platform under test.
    type Platform: Platform;

    /// Creates the platform of a new allocator.
    fn platform(&self) -> Self::Platform;

    /// Returns the CPUs on which jobs can run.
    fn cpus(&self) -> &[CpuId];

    /// Runs each job on its CPU, all at once, and returns when all have ended. A CPU without a job need not run.
    fn run(&self, jobs: &[Job<'_>]);

    /// Makes one call of the allocator as the embedder does, for example with interrupts off.
    fn call(&self, call: &mut dyn FnMut()) {
        call();
    }

    /// Pauses briefly while a job waits for another CPU's job. The CPU must not answer quiesce requests meanwhile,
    /// because it may be in the middle of an operation.
    fn spin(&self) {
        core::hint::spin_loop();
    }

    /// Returns how often scenarios repeat what they cannot repeat at every access.
    fn rounds(&self) -> u32 {
        100
    }

    /// Calls `work`, and `hook` at every [`Event`] of the calling CPU meanwhile.
    ///
    /// The hook may block until other jobs have made progress. It is called by the cells (`watched.rs`), the locks, the
    /// wait loops and `quiesce` of the platform.
    ///
    /// # Errors
    /// Returns the reason if the platform's cells do not report their accesses. `work` was not called then.
    fn watch(&self, _work: &mut dyn FnMut(), _hook: &dyn Fn(Event)) -> Result<(), NotSupported> {
        Err(NotSupported("the platform's cells report no accesses"))
    }

    /// Whether a handler may call the allocator while it interrupts a call of the allocator.
    ///
    /// # Errors
    /// Returns the reason if handlers never do.
    fn handlers(&self) -> Result<(), NotSupported> {
        Err(NotSupported("handlers never interrupt a call of the allocator"))
    }

    /// Whether several jobs at once may run on one CPU, because the scheduler may preempt a call of the allocator.
    ///
    /// # Errors
    /// Returns the reason if only one job at a time may run on a CPU.
    fn preemption(&self) -> Result<(), NotSupported> {
        Err(NotSupported("a call of the allocator is never preempted"))
    }

    /// Returns a CPU that is missing in [`Harness::cpus`], but on which jobs can run.
    ///
    /// # Errors
    /// Returns the reason if there is no such CPU.
    fn unknown_cpu(&self) -> Result<CpuId, NotSupported> {
        Err(NotSupported("all CPUs are described"))
    }

    /// Lets this many milliseconds pass on the platform's clock.
    ///
    /// # Errors
    /// Returns the reason if that takes too long.
    fn pass_ms(&self, platform: &Self::Platform, ms: u64) -> Result<(), NotSupported>;

    /// Returns whether the background worker of a node would run now, and lets it sleep again.
    ///
    /// # Errors
    /// Returns the reason if there are no workers.
    fn take_wake_up(&self, _platform: &Self::Platform, _node: NodeId) -> Result<bool, NotSupported> {
        Err(NotSupported("there are no background workers"))
    }

    /// Receives the rule that the next part of a scenario tests. If the part does not end, or the allocator panics because its state is
    /// damaged, the platform breaks this rule.
    fn begin(&self, _rule: Rule) {}

    /// Receives which CPU is about to go offline, or has come online. The CPU runs jobs all the time.
    fn set_online(&self, _platform: &Self::Platform, _cpu: CpuId, _online: bool) {}
}
