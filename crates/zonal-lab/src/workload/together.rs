//! Programs that run at the same time on one machine, such as a web server and a database.
//!
//! Each program has CPUs of its own. The programs share the zones, their locks, the memory bandwidth and the caches of
//! full zones, but each has LRU lists of its own, as in memory cgroups. Related files: `sim/together.rs` runs the programs.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal_machine::MachineModel;

use super::Workload;
use super::program::{Program, Unfit};
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulatedMachine, Simulation};
use crate::system::System;

/// Programs that run at the same time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Together {
    /// The programs, at least one. Their names differ, and so do their CPUs.
    pub programs: Vec<NamedProgram>,
}

/// A program among others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NamedProgram {
    /// Name, which is the prefix of the program's metrics.
    pub name: String,
    /// Ids of the CPUs that the program may use.
    pub on_cpus: Vec<u64>,
    /// The program.
    pub workload: Workload,
}

impl NamedProgram {
    /// Returns the machine as the program sees it: without the CPUs of other programs.
    #[must_use]
    pub fn view(&self, machine: &SimulatedMachine) -> SimulatedMachine {
        let mut model = MachineModel::clone(&machine.model);
        for node in &mut model.nodes {
            node.cpus.retain(|cpu| self.on_cpus.contains(&(cpu.index() as u64)));
        }
        SimulatedMachine { model, hardware: machine.hardware.clone() }
    }
}

impl Together {
    /// Returns the unit of a program's metric, as in `web.throughput`.
    pub(super) fn unit_of(&self, metric: &str) -> Option<&'static str> {
        let (name, metric) = metric.split_once('.')?;
        self.programs.iter().find(|program| program.name == name)?.workload.unit_of(metric)
    }

    /// Joins the outcomes of all programs. Events and causes are those of the whole machine.
    fn joined(&self, outcomes: Vec<Outcome>) -> Outcome {
        let mut joined = Outcome::default();
        for (NamedProgram { name, .. }, outcome) in self.programs.iter().zip(outcomes) {
            for metric in outcome.metrics {
                joined.metric(format!("{name}.{}", metric.name), metric.unit, metric.value);
            }
            let unmeasured = outcome.unmeasured.iter().map(|metric| format!("{name}.{metric}").into());
            joined.unmeasured.extend(unmeasured);
            for mut series in outcome.series {
                series.name = format!("{name}: {}", series.name);
                joined.series.push(series);
            }
            (joined.causes, joined.events, joined.operations) =
                (outcome.causes, outcome.events, outcome.operations);
            joined.seconds = joined.seconds.max(outcome.seconds);
        }
        joined
    }
}

impl Program for Together {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        self.programs.iter().try_for_each(|program| program.workload.program().check(&program.view(machine)))
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        self.programs
            .iter()
            .map(|program| program.workload.program().operations(&program.view(machine)))
            .sum()
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        self.programs
            .iter()
            .map(|program| program.workload.program().held_bytes(&program.view(machine)))
            .sum()
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let Simulation { world, allocator, machine } = *system.sim;
        let views: Vec<SimulatedMachine> =
            self.programs.iter().map(|program| program.view(machine)).collect();
        let sims: Vec<Simulation<'_, '_>> =
            views.iter().map(|machine| Simulation { world, allocator, machine }).collect();
        let systems: Vec<System<'_, '_>> = sims.iter().map(|sim| system.within(sim)).collect();
        let results: Vec<RefCell<Option<Result<Outcome, RunError>>>> =
            systems.iter().map(|_| RefCell::default()).collect();
        let run = |at: usize| {
            let (program, system, result) =
                (self.programs[at].workload.program(), &systems[at], &results[at]);
            let work: Box<dyn FnOnce() + '_> =
                Box::new(move || *result.borrow_mut() = Some(program.run(system, stop)));
            work
        };
        world.run_together((0..systems.len()).map(run).collect())?;
        let results: Vec<Result<Outcome, RunError>> =
            results.into_iter().filter_map(RefCell::into_inner).collect();
        let outcomes: Vec<Outcome> = results.into_iter().collect::<Result<_, _>>()?;
        if outcomes.len() < self.programs.len() {
            system.fault("a program ended before the others began".to_owned());
        }
        Ok(self.joined(outcomes))
    }
}
