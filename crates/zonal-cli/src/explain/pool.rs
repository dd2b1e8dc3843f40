//! Explanations of a published pool: what it would do now, and what became of its last requests.
//!
//! Related files: `zonal-linux/src/publish/explain.rs` has the answers of the pool, `explain/render.rs` prints steps.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};
use zonal::explain::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use zonal::rules::watermarks::Watermark;
use zonal::units::{NodeId, PageCount, ZoneId, ZoneKind};
use zonal_live::ask;
use zonal_machine::Excerpt;

use super::render::{Explained, named, recent_step, recent_step_text, zone};
use super::{ExplainArgs, Explanation};
use crate::layout::Width;
use crate::outcome::{Failure, print};
use crate::values::PolicyChoice;

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Steps after which a pool leaves out some.
const FIRST_STEPS: usize = 16;
const STEPS_INDENT: &str = "    ";

/// Explains the request of the arguments, as the pool at `socket` is now.
pub(super) fn explain(args: &ExplainArgs, socket: &Path) -> Result<(), Failure> {
    let request = json!({
        "node": args.node.map(NodeId::get),
        "order": args.order.get(),
        "policy": policy(&args.policy),
        "cpuset": args.cpuset.as_ref().map(|nodes| nodes.0.iter().map(|node| node.get()).collect::<Vec<_>>()),
        "urgency": format!("{:?}", args.urgency).to_lowercase(),
    });
    let answer: Answer = ask(socket, "explain", request)?;
    let explanation = Explanation {
        node: answer.node.0,
        steps: answer.steps.into_iter().map(Step::from).collect(),
        served_by: answer.served_by.map(|zone| zone.0),
        after_reclaim: None,
    };
    let machine = answer.program.to_string();
    let explained = Explained { args, machine: &machine, explanation: &explanation };
    print(&if args.json { explained.json() } else { explained.text(Width::of_output()) })
}

/// Shows the last requests of the pool at `socket` that failed, stalled, or were served by another node.
pub(super) fn recent(args: &ExplainArgs, socket: &Path) -> Result<(), Failure> {
    let answer: RecentAnswer = ask(socket, "recent", json!({}))?;
    if args.json {
        return print(&format!("{}\n", answer.document()));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    print(&answer.text(now, Width::of_output()))
}

fn policy(policy: &PolicyChoice) -> Value {
    let mode = match policy {
        PolicyChoice::Local => "local",
        PolicyChoice::Preferred(_) => "preferred",
        PolicyChoice::PreferredMany(_) => "preferred-many",
        PolicyChoice::Bind(_) => "bind",
        PolicyChoice::Interleave(_) => "interleave",
        PolicyChoice::Weighted(_) => "weighted",
    };
    let mut found = json!({ "mode": mode });
    if *policy != PolicyChoice::Local {
        found["nodes"] = policy.nodes().iter().map(|node| node.get()).collect();
    }
    if let PolicyChoice::Weighted(pairs) = policy {
        found["weights"] = pairs.iter().map(|&(_, weight)| weight).collect();
    }
    found
}

/// The answer to `explain`.
#[derive(Deserialize)]
struct Answer {
    program: Program,
    node: Node,
    steps: Vec<PoolStep>,
    served_by: Option<Zone>,
}

/// The answer to `recent`.
#[derive(Deserialize)]
struct RecentAnswer {
    program: Program,
    requests: Vec<Recent>,
    total: u64,
}

/// A request that the pool has kept.
#[derive(Deserialize)]
struct Recent {
    at_ms: u64,
    request: RecentRequest,
    served_by: Option<Zone>,
    stalled_us: u64,
    steps: Vec<PoolStep>,
    steps_left_out: u64,
}

#[derive(Deserialize)]
struct RecentRequest {
    cpu: u32,
    node: Node,
    preferred: Option<Node>,
    order: u8,
    frames: u64,
    kind: String,
    urgency: String,
    zone_limit: String,
    may_reclaim: bool,
}

#[derive(Deserialize)]
struct Program {
    pid: u32,
    name: String,
    pool: u64,
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}), pool {}", Excerpt::name(&self.name), self.pid, self.pool)
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "u16")]
struct Node(NodeId);

impl TryFrom<u16> for Node {
    type Error = String;

    fn try_from(id: u16) -> Result<Self, String> {
        NodeId::new(id).map(Self).ok_or_else(|| format!("{id} is not a node"))
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "ZoneMembers")]
struct Zone(ZoneName);

#[derive(Deserialize)]
struct ZoneMembers {
    id: usize,
    node: Node,
    kind: String,
}

impl TryFrom<ZoneMembers> for Zone {
    type Error = String;

    fn try_from(zone: ZoneMembers) -> Result<Self, String> {
        let id = ZoneId::new(zone.id).ok_or_else(|| format!("{} is not a zone", zone.id))?;
        let kind = ZoneKind::ALL.into_iter().find(|kind| kind.name() == zone.kind);
        let kind = kind.ok_or_else(|| format!("`{}` is not a kind of zone", zone.kind))?;
        Ok(Self(ZoneName { id, node: zone.node.0, kind }))
    }
}

#[derive(Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
enum PoolStep {
    Near {
        zone: Zone,
    },
    Zone {
        zone: Zone,
        mark: Mark,
        #[serde(flatten)]
        outcome: PoolOutcome,
    },
    BackgroundWoken,
    DirectReclaim {
        freed: u64,
    },
    WouldReclaim {
        has_reclaimable: bool,
    },
    PagesetsDrained {
        frames: u64,
    },
    RangeReclaimed {
        freed: u64,
        is_empty: bool,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mark {
    Low,
    Min,
}

#[derive(Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
enum PoolOutcome {
    NotAllowed { reason: Reason },
    MarkedFull { within_ns: u64 },
    Below { short_by: u64, is_reserved: bool },
    NoBlock,
    Lost,
    Reclaim { result: ReclaimResult },
    Serves,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reason {
    ZoneLimit,
    Node,
    AddressLimit,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ReclaimResult {
    FailedRecently,
    NotTried,
    TooFew,
    Nothing,
    Some,
    Success,
    WouldRun,
}

impl From<PoolStep> for Step {
    fn from(step: PoolStep) -> Self {
        let frames = PageCount::new;
        match step {
            PoolStep::Near { zone } => Self::Near(zone.0),
            PoolStep::Zone { zone, mark, outcome } => {
                let watermark = match mark {
                    Mark::Low => Watermark::Low,
                    Mark::Min => Watermark::Min,
                };
                Self::Zone { zone: zone.0, watermark, outcome: outcome.into() }
            }
            PoolStep::BackgroundWoken => Self::BackgroundWoken,
            PoolStep::DirectReclaim { freed } => Self::DirectReclaim { freed: frames(freed) },
            PoolStep::WouldReclaim { has_reclaimable } => Self::WouldReclaim { has_reclaimable },
            PoolStep::PagesetsDrained { frames: count } => Self::PagesetsDrained { frames: frames(count) },
            PoolStep::RangeReclaimed { freed, is_empty } => {
                Self::RangeReclaimed { freed: frames(freed), is_empty }
            }
        }
    }
}

impl From<PoolOutcome> for Outcome {
    fn from(outcome: PoolOutcome) -> Self {
        match outcome {
            PoolOutcome::NotAllowed { reason } => Self::NotAllowed(match reason {
                Reason::ZoneLimit => Exclusion::ZoneLimit,
                Reason::Node => Exclusion::Node,
                Reason::AddressLimit => Exclusion::AddressLimit,
            }),
            PoolOutcome::MarkedFull { within_ns } => Self::MarkedFull { within_ns },
            PoolOutcome::Below { short_by, is_reserved } => {
                Self::Below { short_by: PageCount::new(short_by), is_reserved }
            }
            PoolOutcome::NoBlock => Self::NoBlock,
            PoolOutcome::Lost => Self::Lost,
            PoolOutcome::Reclaim { result } => Self::Reclaim(match result {
                ReclaimResult::FailedRecently => ReclaimStep::FailedRecently,
                ReclaimResult::NotTried => ReclaimStep::NotTried,
                ReclaimResult::TooFew => ReclaimStep::TooFew,
                ReclaimResult::Nothing => ReclaimStep::Nothing,
                ReclaimResult::Some => ReclaimStep::Some,
                ReclaimResult::Success => ReclaimStep::Success,
                ReclaimResult::WouldRun => ReclaimStep::WouldRun,
            }),
            PoolOutcome::Serves => Self::Serves,
        }
    }
}

impl RecentAnswer {
    fn document(self) -> Value {
        let row = |recent: Recent| {
            let request = recent.request;
            json!({
                "at_ms": recent.at_ms,
                "request": {
                    "cpu": request.cpu,
                    "node": request.node.0.get(),
                    "preferred": request.preferred.map(|node| node.0.get()),
                    "order": request.order,
                    "frames": request.frames,
                    "kind": request.kind,
                    "urgency": request.urgency,
                    "zone_limit": request.zone_limit,
                    "may_reclaim": request.may_reclaim,
                },
                "served_by": recent.served_by.map(|served| zone(served.0)),
                "stalled_us": recent.stalled_us,
                "steps": recent.steps.into_iter().map(|step| recent_step(step.into())).collect::<Vec<_>>(),
                "steps_left_out": recent.steps_left_out,
            })
        };
        json!({
            "schema": "zonal.explain.v1",
            "machine": self.program.to_string(),
            "total": self.total,
            "requests": self.requests.into_iter().map(row).collect::<Vec<_>>(),
        })
    }

    fn text(self, now_ms: u64, width: Width) -> String {
        let about = "that failed, stalled, or were served by another node than the preferred one";
        let (program, shown) = (&self.program, self.requests.len() as u64);
        let first = match self.total {
            0 => format!("{program}: no requests {about}, since it is published"),
            total if total > shown => format!("{program}: the last {shown} of {total} requests {about}"),
            _ => format!("{program}: {shown} {} {about}", if shown == 1 { "request" } else { "requests" }),
        };
        let rows: String = self.requests.into_iter().map(|recent| recent.text(now_ms, width)).collect();
        let gap = if rows.is_empty() { "" } else { "\n" };
        width.labelled("", &first) + gap + &rows
    }
}

impl Recent {
    /// Returns a line with the request and what became of it, and one with its steps.
    fn text(self, now_ms: u64, width: Width) -> String {
        let outcome = match self.served_by {
            Some(zone) => format!("served by {}", named(zone.0)),
            None => "failed".to_owned(),
        };
        let stalled = match self.stalled_us {
            0 => String::new(),
            us => format!(", stalled for {}.{:03} ms", us / 1000, us % 1000),
        };
        let mut steps: Vec<String> =
            self.steps.into_iter().map(|step| recent_step_text(step.into())).collect();
        if self.steps_left_out > 0 {
            steps.insert(steps.len().min(FIRST_STEPS), format!("({} more steps)", self.steps_left_out));
        }
        let steps = if steps.is_empty() { "no steps".to_owned() } else { steps.join("; ") };
        let request = format!("{}: {outcome}{stalled}", self.request);
        width.labelled(&(time_of_day(self.at_ms, now_ms) + "  "), &request)
            + &width.labelled(STEPS_INDENT, &steps)
    }
}

impl std::fmt::Display for RecentRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.frames == 1 { "" } else { "s" };
        write!(f, "{} {} frame{plural} from node {}", self.frames, Excerpt::name(&self.kind), self.node.0)?;
        if self.preferred.is_some_and(|preferred| preferred.0 != self.node.0) {
            self.preferred.iter().try_for_each(|preferred| write!(f, ", preferred {}", preferred.0))?;
        }
        if self.urgency != "normal" {
            write!(f, ", {}", Excerpt::name(&self.urgency))?;
        }
        if self.may_reclaim { Ok(()) } else { f.write_str(", no reclaim") }
    }
}

/// Returns the time of day, and how many days have passed since then.
fn time_of_day(at_ms: u64, now_ms: u64) -> String {
    let ms = at_ms % DAY_MS;
    let (seconds, rest) = (ms / 1000, ms % 1000);
    let time = format!("{:02}:{:02}:{:02}.{rest:03}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (now_ms / DAY_MS).saturating_sub(at_ms / DAY_MS) {
        0 => time,
        1 => format!("{time}, yesterday"),
        days => format!("{time}, {days} days ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_earlier_days_say_so() {
        let noon = 20_000 * DAY_MS + DAY_MS / 2;
        assert_eq!(time_of_day(noon + 61_007, noon + 100_000), "12:01:01.007");
        assert_eq!(time_of_day(noon - DAY_MS / 2 - 1, noon), "23:59:59.999, yesterday");
        assert_eq!(time_of_day(0, noon), "00:00:00.000, 20000 days ago");
    }

    #[test]
    fn requests_are_described_in_words() {
        let request: RecentRequest = serde_json::from_value(json!({
            "cpu": 3, "node": 1, "preferred": 2, "order": 4, "frames": 16, "kind": "user", "urgency": "atomic",
            "zone_limit": "Movable", "may_reclaim": false,
        }))
        .unwrap();
        assert_eq!(request.to_string(), "16 user frames from node 1, preferred 2, atomic, no reclaim");
    }
}
