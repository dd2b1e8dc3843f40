//! Conformance tests for the platforms of zonal.
//!
//! The allocator is only as right as the [`Platform`](zonal::Platform) under it. This crate has scenarios that run on any
//! platform: an embedder implements [`Harness`], which runs jobs on CPUs, and calls [`Kit::run`] in its own kernel or
//! program. A scenario ends with the allocator's own check, and counts frames to the last. A failure names the [`Rule`]
//! of the contract that was broken.
//!
//! If the platform's cells report their accesses ([`WatchedCell`]), the scenarios force each interleaving of interest.
//! They always run, too, with CPUs that run freely. What a platform cannot do is visible in the report, as
//! [`Outcome::NotSupported`].
//!
//! ```
//! # use core::mem::MaybeUninit;
//! # use zonal::platform::one_thread::OneThread;
//! # use zonal::units::{CpuId, Moment};
//! use zonal_conformance::{Harness, Job, Kit, NotSupported, Outcome, SCENARIOS, memory_bytes};
//!
//! /// A machine with one CPU, whose clock the harness sets.
//! struct OneCpu;
//!
//! impl Harness for OneCpu {
//!     type Platform = OneThread;
//!
//!     fn platform(&self) -> OneThread {
//!         OneThread::new()
//!     }
//!
//!     fn cpus(&self) -> &[CpuId] {
//!         const CPUS: [CpuId; 1] = [CpuId::new(0)];
//!         &CPUS
//!     }
//!
//!     fn run(&self, jobs: &[Job<'_>]) {
//!         jobs.iter().for_each(|(_, work)| work());
//!     }
//!
//!     fn pass_ms(&self, platform: &OneThread, ms: u64) -> Result<(), NotSupported> {
//!         let now = zonal::Platform::now(platform).ns();
//!         platform.set_time(Moment::from_ns(now + ms * 1_000_000));
//!         Ok(())
//!     }
//! }
//!
//! let mut memory = vec![MaybeUninit::uninit(); memory_bytes::<OneThread>(OneCpu.cpus())];
//! let mut kit = Kit::new(&OneCpu, &mut memory);
//! for scenario in SCENARIOS {
//!     let outcome = kit.run(scenario);
//!     println!("{scenario:?}: {outcome}");
//!     assert!(!matches!(outcome, Outcome::Failed(_)));
//! }
//! ```
#![no_std]
#![forbid(unsafe_code)]
// An error contains a sentence, because there is no heap, and ends a scenario.
#![allow(clippy::result_large_err, clippy::large_enum_variant)]

mod duel;
mod handlers;
mod harness;
mod load;
mod operations;
mod pagesets;
mod primitives;
mod report;
mod rule;
mod turns;
mod watched;
mod world;

use core::mem::MaybeUninit;

pub use duel::Kit;
pub use harness::{Event, Harness, Job, NotSupported};
pub use report::{Failure, Outcome, SCENARIOS, Scenario};
pub use rule::Rule;
pub use watched::{Watch, WatchedCell};
pub use world::memory_bytes;

impl<'k, H: Harness> Kit<'k, H> {
    /// Creates a kit. The buffer is for the metadata of the scenarios' allocators and has at least [`memory_bytes`]
    /// bytes.
    pub fn new(harness: &'k H, memory: &'k mut [MaybeUninit<u8>]) -> Self {
        Self { harness, memory, counts: report::Counts::default() }
    }

    /// Runs a scenario.
    ///
    /// A platform on which CPUs wait for each other for ever breaks [`Rule::WaitsAnswer`], or loses unlocks. The scenario
    /// then never ends, so report its name before it runs.
    pub fn run(&mut self, scenario: Scenario) -> Outcome {
        self.counts = report::Counts::default();
        let result = match scenario {
            Scenario::Cells => self.cells(),
            Scenario::Locks => self.locks(),
            Scenario::CurrentCpus => self.current_cpus(),
            Scenario::Clock => self.clock(),
            Scenario::WakeUps => self.wake_ups(),
            Scenario::PopsAndPushes => self.pops_and_pushes(),
            Scenario::FirstUse => self.first_use(),
            Scenario::OwnLocks => self.own_locks(),
            Scenario::RemoteLocks => self.remote_locks(),
            Scenario::MutualDrains => self.mutual_drains(),
            Scenario::CpusThatLeave => self.cpus_that_leave(),
            Scenario::MemoryThatLeaves => self.memory_that_leaves(),
            Scenario::SharedCpus => self.shared_cpus(),
            Scenario::UnknownCpu => self.unknown_cpu(),
            Scenario::Handlers => self.handlers(),
        };
        result.map(|()| self.counts).into()
    }
}
