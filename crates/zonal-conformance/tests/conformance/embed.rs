//! The platform of the example `embed`, whose cells are native: CPUs run freely.
//!
//! No CPU waits for a CPU that has stopped, even if it stopped by a panic. If the CPUs of a scenario wait for each other
//! forever, the process is ended after five minutes.

use core::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use zonal::units::CpuId;
use zonal_conformance::{Harness, Job, Kit, NotSupported, Outcome, SCENARIOS, Scenario, memory_bytes};

use crate::kernel::{Cpus, Kernel, safe_point};

/// Ends the process if `race` has not ended after five minutes, because its CPUs wait for each other.
fn with_end(race: impl FnOnce()) {
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            if end.recv_timeout(Duration::from_secs(300)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the CPUs of a race wait for each other");
                std::process::abort();
            }
        });
        let _ended = ended; // a panic drops it too
        race();
    });
}

/// The machine of the scenarios: a CPU runs while it has a job.
struct Threads {
    cpus: Arc<Cpus>,
    ids: Vec<CpuId>,
}

impl Harness for Threads {
    type Platform = Kernel;

    fn platform(&self) -> Kernel {
        Kernel::new(&self.cpus)
    }

    fn cpus(&self) -> &[CpuId] {
        &self.ids
    }

    fn run(&self, jobs: &[Job<'_>]) {
        thread::scope(|scope| {
            for &(cpu, work) in jobs {
                scope.spawn(move || {
                    // A thread that is not a CPU bypasses the pagesets.
                    let _running = self.ids.contains(&cpu).then(|| self.cpus.start(cpu));
                    work();
                });
            }
        });
    }

    fn call(&self, call: &mut dyn FnMut()) {
        call();
        safe_point();
    }

    fn spin(&self) {
        thread::yield_now();
    }

    fn rounds(&self) -> u32 {
        100
    }

    fn unknown_cpu(&self) -> Result<CpuId, NotSupported> {
        Ok(CpuId::new(u32::MAX))
    }

    fn pass_ms(&self, kernel: &Kernel, ms: u64) -> Result<(), NotSupported> {
        kernel.advance(ms * 1_000_000);
        Ok(())
    }
}

#[test]
fn the_platform_of_the_example_keeps_the_contract() {
    let machine = Threads { cpus: Cpus::new(3), ids: (0..3).map(CpuId::new).collect() };
    let mut memory = vec![MaybeUninit::uninit(); memory_bytes::<Kernel>(machine.cpus())];
    let mut skipped = Vec::new();
    with_end(|| {
        let mut kit = Kit::new(&machine, &mut memory);
        for scenario in SCENARIOS {
            let outcome = kit.run(scenario);
            println!("{scenario:?}: {outcome}");
            assert!(!matches!(outcome, Outcome::Failed(_)), "{scenario:?}: {outcome}");
            if matches!(outcome, Outcome::NotSupported(_)) {
                skipped.push(scenario);
            }
        }
    });
    assert_eq!(skipped, [Scenario::WakeUps, Scenario::SharedCpus, Scenario::Handlers]);
}
