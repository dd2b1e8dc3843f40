//! An experiment that was found fit to run: its runs, and what their figures are held against.
//!
//! Neighbours: `resolve.rs` makes it, `run.rs` runs it.

use std::sync::Arc;

use zonal::Config;
use zonal_machine::MachineModel;

use super::published::{Baseline, CaseFilter, Published};
use super::results::{CaseValues, Parameter, VariantInfo, case_text};
use crate::sim::{Hardware, SimulatedMachine};
use crate::workload::Workload;

/// An experiment, ready to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// What it is about, in a line.
    pub title: String,
    /// Where the published figures are from; empty for a user's own.
    pub source: String,
    /// What it is about, in a paragraph.
    pub about: String,
    /// What was assumed, a sentence each.
    pub assumptions: Vec<String>,
    /// Names of its machines, each once.
    pub machines: Vec<String>,
    /// Its variants.
    pub variants: Vec<VariantInfo>,
    /// What documents its parameters.
    pub parameters: Vec<Parameter>,
    /// What was calibrated on, if anything was.
    pub calibration: Option<Calibration>,
    /// All its runs, in the order of the file: parts, cases, variants.
    pub runs: Vec<Run>,
    pub(super) published: Published,
}

/// What an experiment was calibrated on.
#[derive(Clone, PartialEq, Debug)]
pub struct Calibration {
    /// In words.
    pub about: String,
    /// The figures.
    pub rows: Baseline,
}

/// One case in one variant.
#[derive(Clone, Debug)]
pub struct Run {
    /// The case.
    pub case: CaseValues,
    /// Place of the case among all of the experiment: the same for all its variants.
    pub case_place: u64,
    /// Name of the variant.
    pub variant: String,
    /// The machine.
    pub model: Arc<MachineModel>,
    /// What things cost there.
    pub hardware: Hardware,
    /// Choices of the allocator.
    pub config: Config,
    /// What runs.
    pub workload: Workload,
    /// Bytes of host memory that the machine and its program take, at most.
    pub host_bytes: u64,
    /// About how many page operations there will be.
    pub operations: f64,
}

impl Run {
    /// The machine to simulate.
    #[must_use]
    pub fn machine(&self) -> SimulatedMachine {
        SimulatedMachine { model: MachineModel::clone(&self.model), hardware: self.hardware.clone() }
    }

    /// Its random choices, which all variants of a case share, so that they can be compared one to one.
    #[must_use]
    pub fn seed(&self, seed: u64) -> u64 {
        fastrand::Rng::with_seed(seed ^ self.case_place.rotate_right(16)).u64(..)
    }

    /// In words, as in `cpus = 4, fixed32`.
    #[must_use]
    pub fn text(&self) -> String {
        let case = case_text(&self.case);
        if case.is_empty() { self.variant.clone() } else { format!("{case}, {}", self.variant) }
    }
}

impl Plan {
    /// Whether anything was published that it is held against.
    #[must_use]
    pub fn has_published(&self) -> bool {
        !self.published.rows.is_empty()
    }

    /// Number of cases.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.runs.len() / self.variants.len().max(1)
    }

    /// Keeps the runs of some variants, all if none is named, and of some cases.
    ///
    /// # Errors
    /// A variant that is not there, or cases of which there are none, with what there is.
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

    /// The columns of cases and their values, in words.
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
