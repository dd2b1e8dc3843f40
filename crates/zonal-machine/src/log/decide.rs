//! Decides a reported request again, and holds every outcome against the log.
//!
//! The log shows that no zone served the request, and what memory looked like shortly afterwards. A zone that the rules
//! refuse is predicted. One that they do not refuse is undecided as long as the difference is explained by what happens
//! between the decision and the report: pagesets are drained, per-CPU counters are folded, and background reclaim works
//! until `high`. Beyond that it is contradicted. Related files: `steps.rs` has the checks, `inputs.rs` their inputs.

use std::collections::BTreeMap;

use zonal::units::NodeId;

use super::check::{Check, Input, Origin, Outcome, Place, Verdict};
use super::figures::Figure;
use super::inputs;
use super::report::{Constraint, LogReport, NodeList};
use super::rules::Rule;
use super::state::{State, ZoneState};
use super::steps::{Step, last_check, steps, usable_pages};

/// Returns all checks of a report.
pub(super) fn checks(report: &LogReport, state: &State) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    for zone in &state.zones {
        checks.extend(of_zone(report, state, zone));
    }
    checks.extend(state.cut.iter().map(|&(node, kind)| Check {
        place: Some(Place { node: Some(node), kind: Some(kind) }),
        rule: Rule::Mark,
        inputs: Vec::new(),
        outcome: Outcome::Unknown,
        verdict: Verdict::Undecided,
        margin: None,
    }));
    checks.extend(left_out(report, state).iter().map(|other| other.check(report, state)));
    checks.extend(totals(report, state));
    checks
}

/// Returns the checks of a printed zone.
fn of_zone(report: &LogReport, state: &State, zone: &ZoneState) -> Vec<Check> {
    let request = &state.request;
    let steps = steps(zone, request);
    let place = Some(Place { node: Some(zone.node), kind: Some(zone.kind) });
    let is_eligible = !steps.iter().any(|step| step.refuses() && step.rule.excludes());
    let last = (request.is_kill && is_eligible).then(|| last_check(zone, request));
    let (doubtful, verdict) = doubt(state, zone, &steps, last);
    let mut checks: Vec<Check> = steps
        .iter()
        .map(|step| Check {
            place,
            rule: step.rule,
            inputs: inputs::of_step(report, state, zone, step),
            outcome: step.outcome,
            verdict: if Some(step.rule) == doubtful { verdict } else { excluded(report, step) },
            margin: step.margin,
        })
        .collect();
    if let Some(margin) = last {
        let is_refused = margin <= 0 || steps.iter().any(Step::refuses);
        checks.push(Check {
            place,
            rule: Rule::LastCheck,
            inputs: inputs::of_last_check(zone),
            outcome: if margin <= 0 { Outcome::Refuses } else { Outcome::Passes },
            verdict: if is_refused { Verdict::Predicted } else { verdict },
            margin: Some(margin),
        });
    }
    checks.extend(counts(zone, place));
    checks
}

/// Returns the rule that should have refused a zone although none did, and how much in doubt it is.
fn doubt(state: &State, zone: &ZoneState, steps: &[Step], last: Option<i64>) -> (Option<Rule>, Verdict) {
    if steps.iter().any(Step::refuses) {
        return (None, Verdict::Predicted);
    }
    let sums = || steps.iter().filter_map(|step| Some((step.margin?, step.rule)));
    let Some((margin, sum)) = sums().min_by_key(|&(margin, rule)| (margin, rule)) else {
        return (None, Verdict::Predicted);
    };
    let block = steps.iter().find(|step| step.rule == Rule::Block);
    let rule = block.map_or(sum, |step| step.rule);
    if block.is_some_and(|step| step.outcome == Outcome::Unknown) {
        return (Some(rule), Verdict::Undecided);
    }
    let until_high = i64::try_from(zone.high.saturating_sub(zone.min)).unwrap_or(i64::MAX);
    let tolerance = i64::try_from(zone.tolerance()).unwrap_or(i64::MAX);
    let excess = last.unwrap_or(margin.saturating_sub(until_high));
    // The only usable blocks may have become free in between, too.
    let of_blocks = block.map_or(u64::MAX, |_| usable_pages(zone, &state.request));
    let is_close = excess <= tolerance || of_blocks <= zone.tolerance();
    (Some(rule), if is_close { Verdict::Undecided } else { Verdict::Contradicted })
}

/// Returns the verdict of a step that is not in doubt. A kill prints only the nodes that the policy, or without one the
/// cpuset, allows.
fn excluded(report: &LogReport, step: &Step) -> Verdict {
    let is_filtered = match step.rule {
        Rule::Policy => true,
        Rule::Cpuset => !matches!(report.request.nodemask, Some(NodeList::Only(_))),
        _ => false,
    };
    let is_kill = report.kind == Some(super::report::ReportKind::Oom);
    if step.refuses() && is_filtered && is_kill { Verdict::Contradicted } else { Verdict::Predicted }
}

/// Compares the free pages with the sum of the free blocks, which the kernel counted a moment later.
fn counts(zone: &ZoneState, place: Option<Place>) -> Option<Check> {
    let (sum, printed) = (zone.blocks_sum()?, zone.blocks_total?);
    let difference = zone.free.abs_diff(sum);
    let until_high = zone.high.saturating_sub(zone.min);
    let verdict = match () {
        () if sum != printed => Verdict::Contradicted,
        () if difference <= zone.blocks_tolerance() => Verdict::Predicted,
        () if difference <= zone.blocks_tolerance().saturating_add(until_high) => Verdict::Undecided,
        () => Verdict::Contradicted,
    };
    Some(Check {
        place,
        rule: Rule::Counts,
        inputs: inputs::of_counts(zone, sum, printed),
        outcome: if sum == printed { Outcome::Passes } else { Outcome::Refuses },
        verdict,
        margin: Some(i64::try_from(difference).unwrap_or(i64::MAX)),
    })
}

/// Nodes whose zones the kernel did not print, because the request may not use them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LeftOut {
    /// The nodes, if the log names them.
    pub(super) nodes: Vec<NodeId>,
    /// The rule that keeps the request out; [`Rule::Mark`] if none does, and their marks are unknown.
    pub(super) rule: Rule,
    /// Their free pages together, from the totals.
    pub(super) free: u64,
    /// Their free pages in pagesets.
    pub(super) pcp: u64,
}

/// Returns the nodes that were left out of a report, as far as the log shows that there are any.
pub(super) fn left_out(report: &LogReport, state: &State) -> Option<LeftOut> {
    let totals = report.totals.as_ref()?;
    let rest = |figure, sum: u64| Some(totals.get(figure)?.saturating_sub(sum));
    let sum = |of: fn(&ZoneState) -> u64| state.zones.iter().map(of).fold(0, u64::saturating_add);
    let free = rest(Figure::Free, sum(|zone| zone.free))?;
    let pcp = rest(Figure::FreePcp, sum(|zone| zone.pcp)).unwrap_or(0);
    let tolerance = sum(ZoneState::tolerance);
    if state.zones.is_empty() || !state.cut.is_empty() {
        return None;
    }
    let request = &state.request;
    let is_printed = |node: &NodeId| state.zones.iter().any(|zone| zone.node == *node);
    let (nodes, rule) = match (&request.policy, &request.cpuset) {
        (Some(policy), Some(cpuset)) => {
            let left_out = |node: &&NodeId| !policy.contains(node) && !is_printed(node);
            (cpuset.iter().filter(left_out).copied().collect(), Rule::Policy)
        }
        (Some(_), None) => (Vec::new(), Rule::Policy),
        // Without nodes of its own in the report, this may also be memory in zones above the highest one.
        // A kill prints the cpuset's nodes, also for a request that may leave them; and from 6.1 on, no zones above the
        // highest one.
        (None, Some(_)) if request.is_kill && is_free_to_leave(report, state) => (Vec::new(), Rule::Mark),
        (None, Some(_)) if request.is_kill => (Vec::new(), Rule::Cpuset),
        (None, _) => return None,
    };
    (!nodes.is_empty() || free > tolerance).then_some(LeftOut { nodes, rule, free, pcp })
}

/// Whether the cpuset does not limit the request, so that what was not printed may have been checked.
fn is_free_to_leave(report: &LogReport, state: &State) -> bool {
    state.request.access.ignores_cpuset || report.constraint() == Some(Constraint::None)
}

impl LeftOut {
    fn check(&self, report: &LogReport, state: &State) -> Check {
        let node = if let [node] = self.nodes[..] { Some(node) } else { None };
        let list = match self.rule {
            Rule::Policy => ("nodemask", &state.request.policy),
            _ => ("mems_allowed", &state.request.cpuset),
        };
        let mut inputs = vec![
            Input::text(list.0, inputs::nodes(list.1.as_deref()), Origin::Printed),
            Input::pages("free", self.free, Origin::Computed),
            Input::pages("free_pcp", self.pcp, Origin::Computed),
        ];
        if !self.nodes.is_empty() {
            let from = if report.request.mems_allowed.is_some() { Origin::Computed } else { Origin::Assumed };
            inputs.push(Input::text("nodes", inputs::nodes(Some(&self.nodes)), from));
        }
        Check {
            place: Some(Place { node, kind: None }),
            rule: self.rule,
            inputs,
            outcome: if self.rule == Rule::Mark { Outcome::Unknown } else { Outcome::Refuses },
            verdict: if self.rule == Rule::Mark { Verdict::Undecided } else { Verdict::Predicted },
            margin: None,
        }
    }
}

/// Compares the zones' free pages with the total, which the kernel printed before them.
fn totals(report: &LogReport, state: &State) -> Option<Check> {
    let total = report.totals.as_ref()?.get(Figure::Free)?;
    let sum = state.zones.iter().map(|zone| zone.free).fold(0, u64::saturating_add);
    if state.zones.is_empty() {
        return None;
    }
    let tolerance = state.zones.iter().map(ZoneState::tolerance).fold(0, u64::saturating_add);
    let gaps = state.zones.iter().map(|zone| zone.high.saturating_sub(zone.min));
    let until_high = gaps.fold(tolerance, u64::saturating_add);
    let excess = sum.saturating_sub(total);
    let verdict = match () {
        () if excess <= tolerance => Verdict::Predicted,
        () if excess <= until_high => Verdict::Undecided,
        () => Verdict::Contradicted,
    };
    Some(Check {
        place: None,
        rule: Rule::Totals,
        inputs: vec![
            Input::pages("free", total, Origin::Printed),
            Input::pages("sum of zones", sum, Origin::Computed),
            Input::pages("left out", total.saturating_sub(sum), Origin::Computed),
        ],
        outcome: if excess <= tolerance { Outcome::Passes } else { Outcome::Refuses },
        verdict,
        margin: Some(i64::try_from(excess).unwrap_or(i64::MAX)),
    })
}

/// Returns the number of checks with each verdict.
#[must_use]
pub fn tally(checks: &[Check]) -> BTreeMap<Verdict, usize> {
    let mut counts = BTreeMap::new();
    checks.iter().for_each(|check| *counts.entry(check.verdict).or_default() += 1);
    counts
}
