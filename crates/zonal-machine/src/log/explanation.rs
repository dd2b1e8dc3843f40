//! Explains a report: what refused the request, what each node had, what would have let it through, and every check.

use zonal::units::NodeId;

use super::check::{Check, Outcome, Place, Verdict};
use super::decide::{checks, left_out};
use super::report::LogReport;
use super::rules::Rule;
use super::state::State;
use super::{answer, cgroup, remedy};

/// What refused a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The zone; `None` for a cgroup's limit.
    pub place: Option<Place>,
    /// The rule.
    pub rule: Rule,
}

/// What a node had, and why it did not help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeAnswer {
    /// The node; `None` if the log does not name it.
    pub id: Option<NodeId>,
    /// Free pages; `None` if only the sum of several nodes is known.
    pub free: Option<u64>,
    /// Why the node did not serve the request.
    pub why: String,
}

/// What would have let a request through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remedy {
    /// What changes.
    pub change: Change,
    /// What it costs.
    pub cost: String,
}

/// A change that lets a request through.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A setting with its value.
    Setting(&'static str, String),
    /// A smaller order.
    Order(u8),
    /// Other nodes in the memory policy or the cpuset: its name, and the nodes.
    Nodes(&'static str, String),
}

/// The explanation of a report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The answer in a few sentences.
    pub answer: Vec<String>,
    /// What refused the request; `None` if the log does not show it.
    pub refused_by: Option<Refusal>,
    /// What each node had.
    pub nodes: Vec<NodeAnswer>,
    /// What would have let the request through, as far as the rules confirm it.
    pub remedies: Vec<Remedy>,
    /// Every check, in the order of the path.
    pub checks: Vec<Check>,
    /// What is assumed or missing.
    pub notes: Vec<String>,
    /// Size of a page in kB.
    pub page_kib: u64,
}

/// Explains a report.
#[must_use]
pub fn explain_report(report: &LogReport) -> Explanation {
    if report.is_of_cgroup() {
        return cgroup::explain(report);
    }
    let Some(state) = State::of(report) else { return answer::undecidable(report) };
    let checks = checks(report, &state);
    let refused_by = refusal(&state, &checks);
    let others = left_out(report, &state);
    let remedies = remedy::remedies(report, &state, others.as_ref());
    Explanation {
        answer: answer::sentences(report, &state, refused_by.as_ref(), others.as_ref(), &remedies),
        nodes: answer::nodes(&state, &checks, others.as_ref()),
        notes: answer::notes(report, Some(&state)),
        refused_by,
        remedies,
        checks,
        page_kib: state.page_kib,
    }
}

/// Returns what refused the request: the first rule that refuses in the largest zone that the request may use, or if it
/// may use none, the rule that keeps it out.
fn refusal(state: &State, checks: &[Check]) -> Option<Refusal> {
    let first = |zone: &super::state::ZoneState| {
        let place = Place { node: Some(zone.node), kind: Some(zone.kind) };
        let mut of_zone =
            checks.iter().filter(move |check| check.place == Some(place) && check.rule != Rule::Counts);
        of_zone.find(|check| check.outcome == Outcome::Refuses).map(|check| (zone.managed, check))
    };
    let refusals: Vec<(u64, &Check)> = state.zones.iter().filter_map(first).collect();
    let largest = |is_wanted: &dyn Fn(Rule) -> bool| {
        let wanted = refusals.iter().filter(|(_, check)| is_wanted(check.rule));
        wanted.rev().max_by_key(|(managed, _)| *managed).map(|(_, check)| *check)
    };
    let check = largest(&|rule| !rule.excludes()).or_else(|| largest(&Rule::excludes))?;
    Some(Refusal { place: check.place, rule: check.rule })
}

impl Explanation {
    /// Whether a check contradicts the log.
    #[must_use]
    pub fn is_contradicted(&self) -> bool {
        self.checks.iter().any(|check| check.verdict == Verdict::Contradicted)
    }
}
