//! Counts reports by kind, constraint, and what refused the request.

use std::collections::BTreeMap;

use super::check::Verdict;
use super::explanation::Explanation;
use super::report::{LogReport, ReportKind};

/// Distinct refusals that are counted by name.
const REFUSALS_MAX: usize = 100;

/// Counts of reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// All reports.
    pub reports: u64,
    /// OOM kills.
    pub kills: u64,
    /// Failed requests without a kill.
    pub failures: u64,
    /// Reports by constraint, as kernels print it.
    pub constraints: BTreeMap<&'static str, u64>,
    /// Reports by zone and rule.
    pub refusals: BTreeMap<String, u64>,
    /// Checks by verdict.
    pub verdicts: BTreeMap<Verdict, u64>,
}

impl Summary {
    /// Adds a report and its explanation.
    pub fn add(&mut self, report: &LogReport, explanation: &Explanation) {
        self.reports += 1;
        self.kills += u64::from(report.kind == Some(ReportKind::Oom));
        self.failures += u64::from(report.kind == Some(ReportKind::Failure));
        if let Some(constraint) = report.constraint() {
            *self.constraints.entry(constraint.name()).or_default() += 1;
        }
        if let Some(refusal) = &explanation.refused_by {
            let place = refusal.place.and_then(|place| Some((place.node?, place.kind?)));
            let place = place.map_or_else(String::new, |(node, kind)| format!("node {node} {kind}: "));
            let name = format!("{place}{}", refusal.rule.name());
            let is_full = self.refusals.len() >= REFUSALS_MAX && !self.refusals.contains_key(&name);
            *self.refusals.entry(if is_full { "others".to_owned() } else { name }).or_default() += 1;
        }
        for check in &explanation.checks {
            *self.verdicts.entry(check.verdict).or_default() += 1;
        }
    }
}
