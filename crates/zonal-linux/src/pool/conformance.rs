//! The conformance scenarios on the parts of a pool's platform: restartable sequences, the lock, and the clock. Threads are
//! bound to real CPUs.
//!
//! The cells are those of `core`, as the sequences require, and report no accesses, so threads run freely. Related files:
//! `tests/interrupted_steps.rs` interrupts every instruction of the sequences.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::thread;

use zonal::platform::Platform;
use zonal::units::{CpuId, Moment};
use zonal_conformance::{Harness, Job, Kit, NotSupported, Outcome, SCENARIOS, Scenario, memory_bytes};

use crate::sequences::Sequences;
use crate::sequences::current_cpu::CurrentCpu;
use crate::threads::lock::{SleepingLock, nap};
use crate::threads::reentrancy;
use crate::topology::affinity::CpuSet;

/// Scenarios that this harness never supports: these parts have no workers, all CPUs of the process are described, and the
/// cells report no accesses at which a handler could run. `threads/wake_tests.rs`, `tests/acting.rs` and
/// `tests/handlers.rs` test these.
const NEVER_SUPPORTED: [Scenario; 3] = [Scenario::WakeUps, Scenario::UnknownCpu, Scenario::Handlers];

/// The parts of a pool's platform that have no memory.
struct Parts {
    sequences: Sequences,
    cpu: CurrentCpu,
    ms: AtomicU64,
}

impl Platform for Parts {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SleepingLock;
    type CpuLocal = Sequences;

    fn current_cpu(&self) -> CpuId {
        self.sequences.current_cpu().unwrap_or_else(|| CpuId::new(self.cpu.read()))
    }

    fn cpu_local(&self) -> &Sequences {
        &self.sequences
    }

    fn now(&self) -> Moment {
        Moment::from_ns(1_000_000 * self.ms.load(Relaxed))
    }

    fn relax(&self, _round: u32) {
        nap();
    }

    fn is_reentered(&self) -> bool {
        reentrancy::is_inside()
    }
}

/// This machine, whose CPUs run threads.
struct Threads {
    sequences: Sequences,
    cpus: Vec<CpuId>,
}

impl Harness for Threads {
    type Platform = Parts;

    fn platform(&self) -> Parts {
        Parts { sequences: self.sequences, cpu: CurrentCpu::detect(), ms: AtomicU64::new(0) }
    }

    fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    fn run(&self, jobs: &[Job<'_>]) {
        thread::scope(|scope| {
            for &(cpu, work) in jobs {
                scope.spawn(move || {
                    assert!(CpuSet::one(cpu).is_some_and(|cpu| cpu.apply()), "CPU {cpu} was there before");
                    work();
                });
            }
        });
    }

    fn spin(&self) {
        thread::yield_now();
    }

    fn handlers(&self) -> Result<(), NotSupported> {
        Ok(())
    }

    fn preemption(&self) -> Result<(), NotSupported> {
        Ok(())
    }

    fn pass_ms(&self, platform: &Parts, ms: u64) -> Result<(), NotSupported> {
        platform.ms.fetch_add(ms, Relaxed);
        Ok(())
    }
}

/// Returns the CPUs to which this process may bind a thread.
fn usable_cpus() -> Vec<CpuId> {
    let usable = |&cpu: &CpuId| {
        let bind = move || CpuSet::one(cpu).is_some_and(|cpu| cpu.apply());
        thread::spawn(bind).join().expect("the thread does not panic")
    };
    (0..256).map(CpuId::new).filter(usable).take(4).collect()
}

fn conforms(sequences: Sequences) {
    let machine = Threads { sequences, cpus: usable_cpus() };
    let mut memory = vec![MaybeUninit::uninit(); memory_bytes::<Parts>(machine.cpus())];
    let mut kit = Kit::new(&machine, &mut memory);
    for scenario in SCENARIOS {
        match kit.run(scenario) {
            Outcome::Failed(failure) => panic!("{scenario:?}: {failure}"),
            Outcome::NotSupported(_) if NEVER_SUPPORTED.contains(&scenario) => {}
            Outcome::NotSupported(reason) => zonal_testing::skipped!("{scenario:?}: {}", reason.0),
            passed => println!("{scenario:?}: {passed}"),
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot bind threads")]
fn sequences_conform() {
    let sequences = Sequences::detect();
    if !sequences.are_used() {
        return zonal_testing::skipped!("no restartable sequences here; locks are tested instead");
    }
    conforms(sequences);
}

#[test]
#[cfg_attr(miri, ignore = "Miri cannot bind threads")]
fn locks_conform() {
    conforms(Sequences::none());
}
