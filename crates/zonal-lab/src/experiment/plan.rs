//! A checked experiment: its runs, and the published figures to compare them with.
//!
//! Related files: `experiment/resolve.rs` creates the plan, `experiment/run.rs` executes it.

use std::sync::Arc;

use zonal::Config;
use zonal_machine::MachineModel;
use zonal_machine::state::Sample;

use super::published::{Baseline, CaseFilter, PART, Published};
use super::results::{CaseValue, CaseValues, NamedFigures, Parameter, Question, VariantInfo, case_text};
use crate::sim::{Hardware, SimulatedMachine};
use crate::workload::Workload;

/// An experiment that is ready to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the experiment.
    pub name: String,
    /// Title, in one line.
    pub title: String,
    /// Source of the published figures; empty if a user's experiment names none.
    pub source: String,
    /// Description, in a paragraph.
    pub about: String,
    /// Assumptions, one sentence each.
    pub assumptions: Vec<String>,
    /// Names of the experiment's machines, without duplicates.
    pub machines: Vec<String>,
    /// Variants of the experiment.
    pub variants: Vec<VariantInfo>,
    /// Documented parameters.
    pub parameters: Vec<Parameter>,
    /// Calibration of the experiment, if any.
    pub calibration: Option<Calibration>,
    /// Published figures, besides those of the calibration, by which a cost or a rule was chosen.
    pub fitted: Vec<NamedFigures>,
    /// Published figures that the model does not explain.
    pub open: Vec<NamedFigures>,
    /// What the experiment is meant to find out.
    pub question: Question,
    /// Whether runs with other seeds and changed costs show how sure the answer is.
    pub spread: bool,
    /// All runs, in the order of the file: parts, cases, variants.
    pub runs: Vec<Run>,
    pub(super) published: Published,
}

/// The published figures that were used to calibrate an experiment.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    /// Description of the calibration.
    pub about: String,
    /// Figures used for the calibration.
    pub rows: Baseline,
}

/// A run of one case with one variant.
#[derive(Clone, Debug)]
pub struct Run {
    /// Values that distinguish the case.
    pub case: CaseValues,
    /// Index of the case in the experiment. All variants of a case have the same index.
    pub case_place: u64,
    /// Name of the variant.
    pub variant: String,
    /// Description of the machine.
    pub model: Arc<MachineModel>,
    /// What is allocated before the run; nothing if `None`.
    pub before: Option<Arc<Sample>>,
    /// Costs of the machine's hardware.
    pub hardware: Hardware,
    /// Configuration of the allocator.
    pub config: Config,
    /// Workload to run.
    pub workload: Workload,
    /// Maximum host memory for the machine and its program, in bytes.
    pub host_bytes: u64,
    /// Estimated number of page operations.
    pub operations: f64,
}

impl Run {
    /// Returns the machine to simulate.
    #[must_use]
    pub fn machine(&self) -> SimulatedMachine {
        SimulatedMachine { model: MachineModel::clone(&self.model), hardware: self.hardware.clone() }
    }

    /// Returns the seed of this run. All variants of a case have the same seed so that they can be compared directly.
    #[must_use]
    pub fn seed(&self, seed: u64) -> u64 {
        fastrand::Rng::with_seed(seed ^ self.case_place.rotate_right(16)).u64(..)
    }

    /// Whether the run has a figure called `name`, which is METRIC, PART.METRIC or PROGRAM.METRIC.
    pub(super) fn reports(&self, name: &str) -> bool {
        let of_part = |part: &str| matches!(self.case.first(), Some((column, CaseValue::Text(own))) if column == PART && own == part);
        self.workload.reports(name)
            || name
                .split_once('.')
                .is_some_and(|(part, metric)| of_part(part) && self.workload.unit_of(metric).is_some())
    }

    /// Describes the run for people, as in `cpus = 4, fixed32`.
    #[must_use]
    pub fn text(&self) -> String {
        let case = case_text(&self.case);
        if case.is_empty() { self.variant.clone() } else { format!("{case}, {}", self.variant) }
    }
}

impl Plan {
    /// Whether there are published figures to compare with.
    #[must_use]
    pub fn has_published(&self) -> bool {
        !self.published.rows.is_empty()
    }

    /// Returns the number of cases.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.runs.len() / self.variants.len().max(1)
    }

    /// Restricts the plan to some variants and some cases. An empty variant list selects all of them.
    ///
    /// # Errors
    /// Returns an error if a variant does not exist or no case matches the filter. The error lists the existing names
    /// and values.
    pub fn keep(&mut self, variants: &[String], cases: &CaseFilter) -> Result<(), String> {
        for wanted in variants {
            if !self.variants.iter().any(|variant| variant.name == *wanted) {
                let known: Vec<&str> = self.variants.iter().map(|variant| &*variant.name).collect();
                let (name, known) = (&self.name, known.join(", "));
                return Err(format!("{name} has no variant `{wanted}`; it has {known}"));
            }
        }
        let cases = cases.ready();
        let is_kept = |name: &String| variants.is_empty() || variants.contains(name);
        if !self.runs.iter().any(|run| cases.takes(&run.case)) {
            return Err(format!("{} has no such case; {}", self.name, self.columns_text()));
        }
        self.variants.retain(|variant| is_kept(&variant.name));
        self.runs.retain(|run| is_kept(&run.variant) && cases.takes(&run.case));
        Ok(())
    }

    /// Lists the columns of cases and their values, for people.
    pub(super) fn columns_text(&self) -> String {
        let mut columns: Vec<(&String, Vec<String>)> = Vec::new();
        for (name, value) in self.runs.iter().flat_map(|run| &run.case) {
            let value = value.to_string();
            match columns.iter_mut().find(|(column, _)| *column == name) {
                Some((_, values)) if values.contains(&value) => {}
                Some((_, values)) => values.push(value),
                None => columns.push((name, vec![value])),
            }
        }
        if columns.is_empty() {
            return "its only case has no columns".to_owned();
        }
        let text = columns.iter().map(|(name, values)| format!("{name} is one of {}", values.join(", ")));
        text.collect::<Vec<_>>().join("; ")
    }
}
