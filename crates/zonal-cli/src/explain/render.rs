//! Prints an explanation as text and as JSON.

use serde_json::{Value, json};
use zonal::explain::{Outcome, ReclaimStep, Step, ZoneName};
use zonal::rules::watermarks::Watermark;
use zonal::units::NodeId;
use zonal_machine::{Excerpt, MachineModel};

use super::{ExplainArgs, Explanation};
use crate::layout::{Content::Text, Grid, Width};

/// An explanation and what it is about.
pub(super) struct Explained<'a> {
    pub(super) args: &'a ExplainArgs,
    pub(super) model: &'a MachineModel,
    pub(super) node: NodeId,
    pub(super) explanation: &'a Explanation,
}

impl Explained<'_> {
    pub(super) fn text(&self, width: Width) -> String {
        let frames = self.args.order.pages();
        let request = format!(
            "{}: a request for {frames} {} from node {}, policy {}",
            Excerpt::name(&self.model.name),
            if frames.get() == 1 { "frame" } else { "frames" },
            self.node,
            self.args.policy,
        );
        let mut grid = Grid::new(1, ["zone", "mark", "outcome"].map(|title| (title, Text)));
        for step in &self.explanation.steps {
            match *step {
                Step::Zone { zone, watermark, outcome } => {
                    let outcome = match outcome {
                        Outcome::Below { short_by, is_reserved: false } => format!("{short_by} frames below"),
                        outcome => outcome.to_string(),
                    };
                    grid.row([named(zone), mark(watermark).to_owned(), outcome]);
                }
                Step::Near(zone) => grid.row([named(zone), String::new(), "serves".to_owned()]),
                step => grid.row(["then".to_owned(), String::new(), follows(step).1.to_owned()]),
            }
        }
        let end = match self.explanation.served_by {
            Some(zone) => format!("{} serves the request.", named(zone)),
            None => "No zone serves the request before memory is freed.".to_owned(),
        };
        width.labelled("", &request) + "\n" + &grid.render("  ", width) + "\n" + &width.labelled("", &end)
    }

    pub(super) fn json(&self) -> String {
        let steps = self.explanation.steps.iter();
        let zones: Vec<Value> = steps.clone().filter_map(step).collect();
        let is_other = |step: &&Step| !matches!(step, Step::Zone { .. } | Step::Near(_));
        let others: Vec<&str> = steps.filter(is_other).map(|&step| follows(step).0).collect();
        let args = self.args;
        let document = json!({
            "schema": "zonal.explain.v1",
            "machine": self.model.name,
            "request": {
                "node": self.node.get(),
                "order": args.order.get(),
                "policy": args.policy.to_string(),
                "cpuset": args.cpuset.as_ref().map(|nodes| nodes.0.iter().map(|node| node.get()).collect::<Vec<_>>()),
                "urgency": format!("{:?}", args.urgency).to_lowercase(),
                "fill": args.fill.iter().map(|(node, percent)| json!({ "node": node.get(), "percent": percent.0 })).collect::<Vec<_>>(),
            },
            "steps": zones,
            "slow_path": others,
            "served_by": self.explanation.served_by.map(zone),
        });
        format!("{document}\n")
    }
}

fn named(zone: ZoneName) -> String {
    format!("node {} {}", zone.node, zone.kind)
}

const fn mark(watermark: Watermark) -> &'static str {
    match watermark {
        Watermark::Low => "low",
        Watermark::Min => "min",
    }
}

/// Returns the name and the text of a step that is not about a zone.
const fn follows(step: Step) -> (&'static str, &'static str) {
    match step {
        Step::BackgroundWoken => ("background-reclaim", "background reclaim is woken"),
        Step::DirectReclaim { .. } | Step::WouldReclaim { .. } => {
            ("direct-reclaim", "the request reclaims memory itself and tries again")
        }
        Step::PagesetsDrained { .. } => {
            ("drain-pagesets", "the pagesets of all CPUs are drained, and the zones tried a last time")
        }
        Step::RangeReclaimed { .. } => ("reclaim-range", "a range is reclaimed as a whole"),
        Step::Zone { .. } | Step::Near(_) => ("", ""),
    }
}

fn zone(zone: ZoneName) -> Value {
    json!({ "node": zone.node.get(), "kind": zone.kind.to_string() })
}

/// Returns a step about a zone; other steps have none.
fn step(step: &Step) -> Option<Value> {
    let (name, watermark, outcome) = match *step {
        Step::Zone { zone, watermark, outcome } => (zone, Some(mark(watermark)), outcome),
        Step::Near(zone) => (zone, None, Outcome::Serves),
        _ => return None,
    };
    let (outcome, short_by, detail) = match outcome {
        Outcome::NotAllowed(_) => ("not-allowed", None, Some(outcome.to_string())),
        Outcome::MarkedFull { .. } => ("marked-full", None, Some(outcome.to_string())),
        Outcome::Below { short_by, is_reserved } => {
            ("below", Some(short_by.get()), is_reserved.then(|| "lowmem reserve".to_owned()))
        }
        Outcome::NoBlock | Outcome::Lost => ("no-block", None, None),
        Outcome::Reclaim(step) => ("reclaim", None, Some(reclaim(step).to_owned())),
        Outcome::Serves => ("serves", None, None),
    };
    Some(
        json!({ "zone": zone(name), "outcome": outcome, "mark": watermark, "short_by": short_by, "detail": detail }),
    )
}

const fn reclaim(step: ReclaimStep) -> &'static str {
    match step {
        ReclaimStep::FailedRecently => "failed-recently",
        ReclaimStep::NotTried => "not-tried",
        ReclaimStep::TooFew => "too-few",
        ReclaimStep::Nothing => "nothing",
        ReclaimStep::Some => "some",
        ReclaimStep::Success => "success",
        ReclaimStep::WouldRun => "would-run",
    }
}
