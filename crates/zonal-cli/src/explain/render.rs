//! Prints an explanation as text and as JSON.

use serde_json::{Value, json};
use zonal::explain::{Outcome, ReclaimStep, Step, ZoneName};
use zonal::rules::watermarks::Watermark;
use zonal::units::NodeId;
use zonal_machine::Excerpt;

use super::filled::reclaim_target;
use super::{ExplainArgs, Explanation, Fill};
use crate::changes::Changes;
use crate::layout::{Content::Text, Grid, Width};
use crate::values::Percent;

/// An explanation and what it is about.
pub(super) struct Explained<'a> {
    pub(super) args: &'a ExplainArgs,
    /// Name of the machine, or of a program and its pool.
    pub(super) machine: &'a str,
    pub(super) explanation: &'a Explanation,
}

impl Explained<'_> {
    pub(super) fn text(&self, width: Width) -> String {
        let mut grid = Grid::new(1, ["zone", "mark", "outcome"].map(|title| (title, Text)));
        for [zone, mark, outcome] in self.rows() {
            grid.row([zone, mark, outcome]);
        }
        let end = width.labelled("", &(capitalized(&self.end()) + "."));
        width.labelled("", &self.request()) + "\n" + &grid.render("  ", width) + "\n" + &end
    }

    /// Returns the text of this explanation before changes, and of the one after them.
    pub(super) fn text_beside(&self, after: &Self, changes: &Changes, width: Width) -> String {
        let answer = match self.final_zone() == after.final_zone() {
            true => {
                format!("{changes}, the same zone serves this request: {}.", after.end())
            }
            false => format!("As it is, {}. {changes}, {}.", self.end(), after.end()),
        };
        let mut grid = Grid::new(1, ["", "before", "after"].map(|title| (title, Text)));
        let cell = |row: Option<&[String; 3]>| match row {
            None => String::new(),
            Some([zone, mark, outcome]) if mark.is_empty() => format!("{zone}: {outcome}"),
            Some([zone, mark, outcome]) => format!("{zone} ({mark}): {outcome}"),
        };
        let (rows, others) = (self.rows(), after.rows());
        for at in 0..rows.len().max(others.len()) {
            grid.row([(at + 1).to_string(), cell(rows.get(at)), cell(others.get(at))]);
        }
        let table = grid.render("  ", width);
        width.labelled("", &self.request()) + "\n" + &width.labelled("", &answer) + "\n" + &table
    }

    fn request(&self) -> String {
        let frames = self.args.order.pages();
        format!(
            "{}: a request for {frames} {} from node {}, policy {}",
            Excerpt::name(self.machine),
            if frames.get() == 1 { "frame" } else { "frames" },
            self.explanation.node,
            self.args.policy,
        )
    }

    /// Returns zone, mark and outcome of each step.
    fn rows(&self) -> Vec<[String; 3]> {
        self.explanation.steps.iter().map(|&step| row(step)).collect()
    }

    /// Returns the zone that serves the request if node reclaim succeeds.
    fn final_zone(&self) -> Option<ZoneName> {
        self.explanation.after_reclaim.map_or(self.explanation.served_by, |(_, zone)| zone)
    }

    /// Returns the result as a sentence without its full stop.
    fn end(&self) -> String {
        let serves = |zone: Option<ZoneName>| match zone {
            Some(zone) => format!("{} serves the request", named(zone)),
            None => "no zone serves the request before memory is freed".to_owned(),
        };
        match self.explanation.after_reclaim {
            Some((reclaimed, zone)) => {
                let freed = reclaim_target(self.args.order);
                let without = self.explanation.served_by;
                let (first, otherwise) = (serves(zone), serves(without));
                format!(
                    "node reclaim frees {freed} frames of node {}, and {first} (else {otherwise})",
                    reclaimed.node
                )
            }
            None => serves(self.explanation.served_by),
        }
    }

    pub(super) fn json(&self) -> String {
        format!("{}\n", with_schema(self.document()))
    }

    /// Returns the documents before and after changes as one.
    pub(super) fn json_beside(&self, after: &Self) -> String {
        let document = json!({ "before": self.document(), "after": after.document() });
        format!("{}\n", with_schema(document))
    }

    fn document(&self) -> Value {
        let steps = self.explanation.steps.iter();
        let zones: Vec<Value> = steps.clone().filter_map(step).collect();
        let is_other = |step: &&Step| !matches!(step, Step::Zone { .. } | Step::Near(_));
        let others: Vec<&str> = steps.filter(is_other).map(|&step| follows(step).0).collect();
        let args = self.args;
        let fill = |(node, fill): &(NodeId, Fill)| match fill {
            Fill::Percent(percent) => json!({ "node": node.get(), "percent": percent.0 }),
            Fill::To(to) => json!({ "node": node.get(), "to": mark(*to) }),
        };
        let reclaimable =
            |(node, share): &(NodeId, Percent)| json!({ "node": node.get(), "percent": share.0 });
        let after_reclaim = self.explanation.after_reclaim.map(|(reclaimed, served_by)| {
            json!({ "reclaimed": zone(reclaimed), "frames": reclaim_target(args.order).get(), "served_by": served_by.map(zone) })
        });
        json!({
            "machine": self.machine,
            "request": {
                "node": self.explanation.node.get(),
                "order": args.order.get(),
                "policy": args.policy.to_string(),
                "cpuset": args.cpuset.as_ref().map(|nodes| nodes.0.iter().map(|node| node.get()).collect::<Vec<_>>()),
                "urgency": format!("{:?}", args.urgency).to_lowercase(),
                "fill": args.fill.iter().map(fill).collect::<Vec<_>>(),
                "reclaimable": args.reclaimable.iter().map(reclaimable).collect::<Vec<_>>(),
            },
            "steps": zones,
            "slow_path": others,
            "served_by": self.explanation.served_by.map(zone),
            "if_node_reclaim_succeeds": after_reclaim,
        })
    }
}

/// Returns the text with a capital letter at its beginning, unless it begins with a name.
fn capitalized(text: &str) -> String {
    match text.strip_prefix("no ") {
        Some(rest) => format!("No {rest}"),
        None => text.to_owned(),
    }
}

fn with_schema(mut document: Value) -> Value {
    document["schema"] = "zonal.explain.v1".into();
    document
}

/// Returns zone, mark and outcome of a step.
fn row(step: Step) -> [String; 3] {
    match step {
        Step::Zone { zone, watermark, outcome } => {
            let outcome = match outcome {
                Outcome::Below { short_by, is_reserved: false } if short_by.get() == 1 => {
                    "1 frame below".to_owned()
                }
                Outcome::Below { short_by, is_reserved: false } => format!("{short_by} frames below"),
                outcome => outcome.to_string(),
            };
            [named(zone), mark(watermark).to_owned(), outcome]
        }
        Step::Near(zone) => [named(zone), String::new(), "serves".to_owned()],
        step => ["then".to_owned(), String::new(), follows(step).1.to_owned()],
    }
}

/// Returns the text of a step that a request has taken.
pub(super) fn recent_step_text(step: Step) -> String {
    match row(step) {
        [zone, mark, outcome] if matches!(step, Step::Zone { .. }) => format!("{zone} ({mark}): {outcome}"),
        _ => step.to_string(),
    }
}

/// Returns a step that a request has taken, with the members of a step about a zone.
pub(super) fn recent_step(taken: Step) -> Value {
    step(&taken).unwrap_or_else(|| {
        let detail = taken.to_string();
        json!({ "zone": null, "outcome": follows(taken).0, "mark": null, "short_by": null, "detail": detail })
    })
}

pub(super) fn named(zone: ZoneName) -> String {
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

pub(super) fn zone(zone: ZoneName) -> Value {
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
