//! The interface of a program, and checks that several programs use.
//!
//! Related files: `workload/mod.rs` lists all programs.

use std::sync::atomic::AtomicBool;

use crate::bounds::{self, Bounds};
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulatedMachine};
use crate::system::System;

/// Reason why a workload cannot run on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// Name of the field.
    pub field: &'static str,
    /// Description of the error and the allowed values.
    pub problem: String,
}

/// A program of a simulated machine.
pub trait Program {
    /// Checks whether the program can run on `machine`.
    ///
    /// # Errors
    /// Returns the field whose value is not valid on `machine`.
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit>;

    /// Estimates the number of pages that the program allocates and frees, which determines the cost of a run on the
    /// host. Returns 0 if the number is not known.
    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Returns the maximum host memory for the objects that the program holds at once, in bytes. Excludes the memory
    /// for the machine itself.
    fn held_bytes(&self, _machine: &SimulatedMachine) -> f64 {
        0.0
    }

    /// Runs the program on a machine that is otherwise idle.
    ///
    /// # Errors
    /// Returns an error if `stop` becomes true, if all threads wait for each other, or if the run exceeds the longest
    /// time that is simulated.
    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError>;
}

/// Returns the CPUs of a machine by ascending ID. Programs use CPUs in this order.
pub(crate) fn cpus(machine: &SimulatedMachine) -> Vec<usize> {
    let mut cpus: Vec<usize> =
        machine.model.nodes.iter().flat_map(|node| &node.cpus).map(|cpu| cpu.index()).collect();
    cpus.sort_unstable();
    cpus
}

/// Refuses a number of pinned threads that is zero or exceeds the CPU count.
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

/// Returns the time in which a CPU zeroes a page of its own node without contention, in nanoseconds.
pub(crate) fn zeroing_ns(machine: &SimulatedMachine) -> f64 {
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
