//! What a program is, and checks that programs share.
//!
//! Neighbours: `mod.rs` has all programs.

use std::sync::atomic::AtomicBool;

use crate::bounds::{self, Bounds};
use crate::hands::Hands;
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulatedMachine};

/// What is wrong with a workload on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// The field.
    pub field: &'static str,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

/// A program of a simulated machine.
pub trait Program {
    /// Whether it can run on `machine`.
    ///
    /// # Errors
    /// The field that does not fit.
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit>;

    /// About how many pages it takes and gives: what a run costs the host, 0 where that is not known.
    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Bytes of the host's memory for what it holds at once, at most, beside the machine itself.
    fn held_bytes(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Runs it on a machine that nothing else runs on.
    ///
    /// # Errors
    /// When `stop` becomes true, or its threads wait for each other.
    fn run(&self, hands: &Hands<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError>;
}

/// CPUs of a machine by ascending id, as programs number them.
pub(super) fn cpus(machine: &SimulatedMachine) -> Vec<usize> {
    let mut cpus: Vec<usize> =
        machine.model.nodes.iter().flat_map(|node| &node.cpus).map(|cpu| cpu.index()).collect();
    cpus.sort_unstable();
    cpus
}

/// Refuses more pinned threads than there are CPUs.
pub(super) fn check_pinned(
    field: &'static str,
    threads: usize,
    machine: &SimulatedMachine,
) -> Result<(), Unfit> {
    let there = cpus(machine).len();
    if threads == 0 {
        return Err(Unfit { field, problem: "must be at least 1".to_owned() });
    }
    if threads > there {
        let problem = format!(
            "{threads} threads, each pinned to a CPU of its own, but machine {} has {there} CPUs",
            machine.model.name
        );
        return Err(Unfit { field, problem });
    }
    Ok(())
}

/// Refuses a figure that is not a number in bounds.
pub(super) fn check_figure(field: &'static str, value: f64, bounds: Bounds) -> Result<(), Unfit> {
    bounds::check(value, &bounds).map_err(|problem| Unfit { field, problem: format!("is {problem}") })
}

/// Memory of a machine, in bytes.
pub(super) fn memory_bytes(machine: &SimulatedMachine) -> f64 {
    let managed: u64 = machine.model.zones.iter().map(|zone| zone.managed.get()).sum();
    managed as f64 * f64::from(machine.model.page_bytes)
}

/// Memory of a machine, in MiB.
pub(super) fn memory_mib(machine: &SimulatedMachine) -> f64 {
    memory_bytes(machine) / f64::from(1 << 20)
}

/// Zeroing a page of the CPU's own node while nobody else does, in nanoseconds.
pub(super) fn zeroing_ns(machine: &SimulatedMachine) -> f64 {
    f64::from(machine.model.page_bytes) / machine.hardware.cpu_gb_s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::Hardware;

    #[test]
    fn zeroing_takes_the_bytes_of_a_page_at_the_speed_of_a_cpu() {
        let model = zonal_machine::preset("desktop").expect("it is one");
        let hardware = Hardware { cpu_gb_s: 2.048, ..Hardware::default() };
        assert_eq!(zeroing_ns(&SimulatedMachine { model, hardware }), 2000.0);
    }
}
