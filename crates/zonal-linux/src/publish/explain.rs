//! The requests `explain` and `recent` of the protocol: why a request is served where it is, and why others were.
//!
//! `explain` has the members `node`, on whose CPU the request is made (default: the first with CPUs), `order` (0), `policy`
//! (local), `cpuset` (all nodes) and `urgency` (`normal`). A policy is an object with its `mode` and `nodes`, and with
//! `weights` if the mode is `weighted`. The answer has the `node`, the `steps` that the request would take now, and the zone
//! by which it is `served_by`, or null.
//!
//! The answer to `recent` has the `requests` that were kept, the oldest first, and the `total` that ever were. `at_ms` is the
//! Unix time at which a request began. Both answers have the `program`, like a snapshot.
//!
//! A step has its name in `step`. Those of `zone` have `zone`, `mark` and `outcome`, and what the outcome needs: `reason`,
//! `within_ns`, `short_by` and `is_reserved`, or `result`.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use zonal::NodeMask;
use zonal::explain::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use zonal::request::{PageKind, Urgency};
use zonal::rules::watermarks::Watermark;
use zonal::units::{MAX_NODES, MAX_ORDER_LIMIT, NodeId, Order};

use crate::pool::{Pool, PoolPolicy, PoolRequest, PoolWeights, RecentRequest};

const URGENCIES: [(&str, Urgency); 4] = [
    ("normal", Urgency::Normal),
    ("high", Urgency::High),
    ("atomic", Urgency::Atomic),
    ("reserve", Urgency::Reserve),
];
const MODES: [&str; 6] = ["local", "preferred", "preferred-many", "bind", "interleave", "weighted"];

/// Explains a request in the present state of the pool.
pub(super) fn explain(pool: &Pool, request: &Value) -> Result<Value, String> {
    let node = match &request["node"] {
        Value::Null => pool.first_node_with_cpus().ok_or("the pool has no CPUs")?,
        id => node(id).ok_or_else(|| wrong("node", id, &nodes_are()))?,
    };
    let order = match &request["order"] {
        Value::Null => Some(Order::PAGE),
        order => order.as_u64().and_then(|order| Order::new(u8::try_from(order).ok()?)),
    };
    let orders = format!("a number from 0 to {MAX_ORDER_LIMIT}");
    let order = order.ok_or_else(|| wrong("order", &request["order"], &orders))?;
    let urgency = match &request["urgency"] {
        Value::Null => Some(Urgency::Normal),
        name => URGENCIES.iter().find(|(known, _)| name == known).map(|&(_, urgency)| urgency),
    };
    let urgency =
        urgency.ok_or_else(|| wrong("urgency", &request["urgency"], "normal, high, atomic or reserve"))?;
    let cpuset: Option<NodeMask> = match &request["cpuset"] {
        Value::Null => None,
        _ => Some(nodes(pool, "cpuset", &request["cpuset"])?.into_iter().collect()),
    };
    let weights = PoolWeights::new();
    let listed = match &request["policy"] {
        Value::Null => Vec::new(),
        policy if policy["mode"] == "local" => Vec::new(),
        policy => nodes(pool, "policy.nodes", &policy["nodes"])?,
    };
    let policy = policy(pool, &request["policy"], &listed, &weights)?;
    let mut asked = PoolRequest::new(order).policy(&policy).urgency(urgency);
    if let Some(cpuset) = &cpuset {
        asked = asked.allowed(cpuset);
    }
    let mut steps = Vec::new();
    let served_by = pool.explain_on(node, &asked, |one| steps.push(step(one)));
    let served_by = served_by.map_err(|error| error.to_string())?;
    Ok(json!({
        "node": node.get(),
        "steps": steps,
        "served_by": served_by.map(zone),
    }))
}

/// Returns the requests that the pool has kept.
pub(super) fn recent(pool: &Pool) -> Value {
    let (requests, total) = pool.recent_requests();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let row = |recent: RecentRequest| {
        let RecentRequest { request, age, stalled, served_by, steps, steps_left_out, .. } = recent;
        json!({
            "at_ms": now.saturating_sub(age).as_millis() as u64,
            "request": {
                "cpu": request.cpu.get(),
                "node": request.node.get(),
                "preferred": request.preferred.map(NodeId::get),
                "order": request.order.get(),
                "frames": request.frames.get(),
                "kind": match request.kind {
                    PageKind::User => "user",
                    PageKind::Cache => "cache",
                    PageKind::Kernel => "kernel",
                },
                "urgency": URGENCIES.iter().find(|(_, one)| *one == request.urgency).map(|(name, _)| name),
                "zone_limit": request.zone_limit.to_string(),
                "may_reclaim": request.may_reclaim,
            },
            "served_by": served_by.map(zone),
            "stalled_us": stalled.as_micros() as u64,
            "steps": steps.into_iter().map(step).collect::<Vec<_>>(),
            "steps_left_out": steps_left_out,
        })
    };
    json!({
        "total": total,
        "requests": requests.into_iter().map(row).collect::<Vec<_>>(),
    })
}

/// Returns an error with the value of a member, and what it must be.
fn wrong(member: &str, value: &Value, right: &str) -> String {
    format!("`{member}` is {value}; it must be {right}")
}

fn nodes_are() -> String {
    format!("the number of a node, from 0 to {}", MAX_NODES - 1)
}

fn node(value: &Value) -> Option<NodeId> {
    value.as_u64().and_then(|id| NodeId::new(u16::try_from(id).ok()?))
}

/// Reads a list of the pool's nodes.
fn nodes(pool: &Pool, member: &str, value: &Value) -> Result<Vec<NodeId>, String> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| wrong(member, value, "a list with at least one node"))?;
    let known = |id: &Value| {
        let node = node(id).ok_or_else(|| wrong(&format!("{member}[]"), id, &nodes_are()))?;
        if !pool.topology().nodes().iter().any(|known| known.id == node) {
            return Err(format!("`{member}`: the pool has no node {node}"));
        }
        Ok(node)
    };
    list.iter().map(known).collect()
}

fn policy<'a>(
    pool: &'a Pool,
    policy: &Value,
    listed: &'a [NodeId],
    weights: &'a PoolWeights,
) -> Result<PoolPolicy<'a>, String> {
    let mask = || listed.iter().copied().collect::<NodeMask>();
    let mode = if policy.is_null() { Some("local") } else { policy["mode"].as_str() };
    let made = match (mode, listed) {
        (Some("local"), _) => return Ok(PoolPolicy::local()),
        (Some("preferred"), &[node]) => pool.preferred(node),
        (Some("preferred"), _) => {
            return Err(wrong("policy.nodes", &policy["nodes"], "a list with one node"));
        }
        (Some("preferred-many"), _) => pool.preferred_many(listed),
        (Some("bind"), _) => pool.bind(mask()),
        (Some("interleave"), _) => pool.interleave(mask()),
        (Some("weighted"), _) => {
            let numbers = policy["weights"].as_array().filter(|numbers| numbers.len() == listed.len());
            let number = |value: &Value| value.as_u64().and_then(|weight| u8::try_from(weight).ok());
            let numbers: Option<Vec<u8>> = numbers.and_then(|numbers| numbers.iter().map(number).collect());
            let right = format!("{} numbers from 0 to 255, one for each node", listed.len());
            let numbers = numbers.ok_or_else(|| wrong("policy.weights", &policy["weights"], &right))?;
            listed.iter().zip(numbers).for_each(|(&node, weight)| weights.set(node, weight));
            pool.weighted_interleave(mask(), weights)
        }
        _ => return Err(wrong("policy.mode", &policy["mode"], &MODES.join(", "))),
    };
    made.map_err(|error| format!("`policy`: {error}"))
}

fn zone(zone: ZoneName) -> Value {
    json!({ "id": zone.id.index(), "node": zone.node.get(), "kind": zone.kind.to_string() })
}

fn step(step: Step) -> Value {
    match step {
        Step::Near(name) => json!({ "step": "near", "zone": zone(name) }),
        Step::Zone { zone: name, watermark, outcome } => {
            let mark = if watermark == Watermark::Low { "low" } else { "min" };
            let mut row = outcome_of(outcome);
            (row["step"], row["zone"], row["mark"]) = ("zone".into(), zone(name), mark.into());
            row
        }
        Step::BackgroundWoken => json!({ "step": "background-woken" }),
        Step::DirectReclaim { freed } => json!({ "step": "direct-reclaim", "freed": freed.get() }),
        Step::WouldReclaim { has_reclaimable } => {
            json!({ "step": "would-reclaim", "has_reclaimable": has_reclaimable })
        }
        Step::PagesetsDrained { frames } => json!({ "step": "pagesets-drained", "frames": frames.get() }),
        Step::RangeReclaimed { freed, is_empty } => {
            json!({ "step": "range-reclaimed", "freed": freed.get(), "is_empty": is_empty })
        }
    }
}

fn outcome_of(outcome: Outcome) -> Value {
    match outcome {
        Outcome::NotAllowed(why) => {
            let reason = match why {
                Exclusion::ZoneLimit => "zone-limit",
                Exclusion::Node => "node",
                Exclusion::AddressLimit => "address-limit",
            };
            json!({ "outcome": "not-allowed", "reason": reason })
        }
        Outcome::MarkedFull { within_ns } => json!({ "outcome": "marked-full", "within_ns": within_ns }),
        Outcome::Below { short_by, is_reserved } => {
            json!({ "outcome": "below", "short_by": short_by.get(), "is_reserved": is_reserved })
        }
        Outcome::NoBlock => json!({ "outcome": "no-block" }),
        Outcome::Lost => json!({ "outcome": "lost" }),
        Outcome::Reclaim(step) => {
            let result = match step {
                ReclaimStep::FailedRecently => "failed-recently",
                ReclaimStep::NotTried => "not-tried",
                ReclaimStep::TooFew => "too-few",
                ReclaimStep::Nothing => "nothing",
                ReclaimStep::Some => "some",
                ReclaimStep::Success => "success",
                ReclaimStep::WouldRun => "would-run",
            };
            json!({ "outcome": "reclaim", "result": result })
        }
        Outcome::Serves => json!({ "outcome": "serves" }),
    }
}
