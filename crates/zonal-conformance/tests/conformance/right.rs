//! Platforms that keep the contract.

use zonal_conformance::{Outcome, SCENARIOS, Scenario};

use crate::machine::{Machine, Mistake, Way};

/// Runs all scenarios, of which none may fail. Returns those that are not supported.
fn skipped(cpus: u32, way: Way) -> Vec<Scenario> {
    let (outcomes, broken) = Machine::new(cpus, way, Mistake::None).run_all(&SCENARIOS);
    assert_eq!(broken, None, "{cpus} CPUs, {way:?}");
    let is_skipped = |outcome| matches!(outcome, Outcome::NotSupported(_));
    outcomes.into_iter().filter(|&(_, outcome)| is_skipped(outcome)).map(|(scenario, _)| scenario).collect()
}

/// Scenarios that need a second or third CPU.
const OF_SEVERAL: [Scenario; 7] = [
    Scenario::PopsAndPushes,
    Scenario::FirstUse,
    Scenario::OwnLocks,
    Scenario::RemoteLocks,
    Scenario::MutualDrains,
    Scenario::CpusThatLeave,
    Scenario::MemoryThatLeaves,
];

#[test]
fn one_cpu() {
    assert_eq!(skipped(1, Way::Locks), OF_SEVERAL);
    assert_eq!(
        skipped(1, Way::Alone),
        [&OF_SEVERAL[..], &[Scenario::SharedCpus, Scenario::UnknownCpu, Scenario::Handlers]].concat()
    );
}

#[test]
fn locks() {
    assert_eq!(skipped(3, Way::Locks), []);
}

#[test]
fn interrupts_off() {
    assert_eq!(skipped(3, Way::Pinned), [Scenario::SharedCpus, Scenario::Handlers]);
}

#[test]
fn sequences() {
    assert_eq!(skipped(3, Way::Sequences), []);
}
