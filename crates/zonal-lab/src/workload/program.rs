//! The interface of a program, and checks that programs share.
//!
//! Neighbours: `workload/mod.rs` lists all programs.

use std::sync::atomic::AtomicBool;

use crate::bounds::{self, Bounds};
use crate::hands::Hands;
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulatedMachine};

/// Reason why a workload does not fit a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// Name of the field.
    pub field: &'static str,
    /// What is wrong with its value, and what would be right.
    pub problem: String,
}

/// A program of a simulated machine.
pub trait Program {
    /// Checks whether the program can run on `machine`.
    ///
    /// # Errors
    /// The field that does not fit.
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit>;

    /// Estimates how many pages the program allocates and frees, which determines the cost of a run on the host;
    /// 0 if unknown.
    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Returns the host memory, in bytes, needed at most for what the program holds at once, excluding the
    /// machine itself.
    fn held_bytes(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Runs the program on a machine that is otherwise idle.
    ///
    /// # Errors
    /// When `stop` becomes true, its threads wait for each other, or the run exceeds the longest time that is
    /// simulated.
    fn run(&self, hands: &Hands<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError>;
}

/// Returns the CPUs of a machine by ascending id, as programs number them.
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

/// Refuses a value outside its bounds.
pub(super) fn check_figure(field: &'static str, value: f64, bounds: Bounds) -> Result<(), Unfit> {
    bounds::check(value, &bounds).map_err(|problem| Unfit { field, problem: format!("is {problem}") })
}

/// Returns the memory of a machine, in bytes.
pub(super) fn memory_bytes(machine: &SimulatedMachine) -> f64 {
    let managed: u64 = machine.model.zones.iter().map(|zone| zone.managed.get()).sum();
    managed as f64 * f64::from(machine.model.page_bytes)
}

/// Returns the memory of a machine, in MiB.
pub(super) fn memory_mib(machine: &SimulatedMachine) -> f64 {
    memory_bytes(machine) / f64::from(1 << 20)
}

/// Returns the time to zero a page of the CPU's own node without contention, in nanoseconds.
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
