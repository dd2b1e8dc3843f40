//! The requests of the protocol and their answers, as JSON.
//!
//! A request is an object with `zonal` (the version) and `request`: `settings`, `set` (with `name` and `value`),
//! `snapshot`, `explain` or `recent` (`publish/explain.rs`). An answer is an object with `zonal` and either `error`, a text, or a member with the name of the request.
//!
//! The members of a snapshot are `program` (its `pid` and `name`, and the number `pool` of the
//! pool in it), `page_bytes`, `events`, `nodes`, `zones` and
//! `pagesets`. `events` has the counts of [`Events`] under their names, since the pool was built. A node has its `distances`, an object with the distance to
//! each node by id; its `fallback_order`, a list of ids; and `stalled`, the shares of the recent time in which direct
//! reclaim stalled a caller, as in [`StallShares`], in hundredths of a percent. A zone has `free_blocks`, a list with
//! the number of free blocks for each order up to the pool's largest. Counts of memory are in frames.

use std::fmt::{Display, Write};

use serde_json::{Map, Value, json};
use zonal::platform::pressure::StallShares;
use zonal::settings::{Access, Setting};
use zonal::snapshot::{Events, NodeSnapshot};
use zonal::units::{MAX_ORDER_LIMIT, NodeId, PageCount};

use super::explain::{explain, recent};
use crate::error::SharedError;
use crate::memory::pool_socket;
use crate::pool::{Pool, PoolOwner};

/// Version of the requests and answers.
pub const PROTOCOL_VERSION: u64 = pool_socket::PROTOCOL_VERSION;

/// The request for the pool's file, which comes with the answer.
const JOIN: &str = "join";

/// Returns the answer to a request, as a line, and whether the pool's file comes with it.
pub(super) fn answer(pool: &Pool, request: &[u8]) -> (String, bool) {
    match result(pool, request) {
        Ok((name, text)) => (format!("{{\"zonal\":{PROTOCOL_VERSION},\"{name}\":{text}}}\n"), name == JOIN),
        Err(why) => (refusal(&why), false),
    }
}

/// Returns an answer that contains only an error.
pub(super) fn refusal(why: &str) -> String {
    json!({ "zonal": PROTOCOL_VERSION, "error": why }).to_string() + "\n"
}

/// Returns the name of the request, and what its answer has under this name, as JSON.
fn result(pool: &Pool, request: &[u8]) -> Result<(&'static str, String), String> {
    let request: Value =
        serde_json::from_slice(request).map_err(|error| format!("the request is not JSON: {error}"))?;
    if request["zonal"] != PROTOCOL_VERSION {
        let version = &request["zonal"];
        return Err(format!(
            "the version of the request is {version}; this program knows {PROTOCOL_VERSION}"
        ));
    }
    let (name, value) = match request["request"].as_str() {
        Some("settings") => ("settings", settings(pool)),
        Some(JOIN) => match pool.shared_file() {
            Some(_) => (JOIN, json!({})),
            None => return Err(SharedError::NotShared.to_string()),
        },
        Some("set") => ("set", set(pool, &request)?),
        Some("snapshot") => return Ok(("snapshot", snapshot(pool))),
        Some("explain") => ("explain", with_program(pool, explain(pool, &request)?)),
        Some("recent") => ("recent", with_program(pool, recent(pool))),
        _ => {
            return Err(format!(
                "{} is not a request; requests are settings, set, snapshot, explain, recent and join",
                request["request"]
            ));
        }
    };
    Ok((name, value.to_string()))
}

/// Returns the settings table with the pool's values.
fn settings(pool: &Pool) -> Value {
    let row = |setting: Setting| {
        let info = setting.info();
        let access = match info.access {
            Access::ReadWrite => "read-write",
            Access::ReadOnly => "read-only",
            Access::WriteOnly => "write-only",
        };
        json!({
            "name": info.name,
            "value": pool.setting(info.name).ok().map(|value| value.to_string()),
            "default": info.default,
            "allowed": info.values.to_string(),
            "access": access,
            "summary": info.summary,
        })
    };
    Setting::ALL.into_iter().map(row).collect()
}

/// Returns the values of all settings that can be read, by name.
fn values(pool: &Pool) -> Map<String, Value> {
    let value = |setting: Setting| {
        let name = setting.info().name;
        Some((name.to_owned(), pool.setting(name).ok()?.to_string().into()))
    };
    Setting::ALL.into_iter().filter_map(value).collect()
}

/// Changes one setting, and returns its name and its new value.
fn set(pool: &Pool, request: &Value) -> Result<Value, String> {
    let text = |member: &str| {
        request[member]
            .as_str()
            .ok_or_else(|| format!("`{member}` is {}; it must be a text", request[member]))
    };
    let (name, value) = (text("name")?, text("value")?);
    pool.set_setting_quietly(name, value).map_err(|error| error.to_string())?;
    let value = pool.setting(name).ok().map(|value| value.to_string());
    Ok(json!({ "name": name, "value": value }))
}

/// Returns the names of the program and its pool.
fn program(pool: &Pool) -> Value {
    // The name that the kernel shows; a process may change it.
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    json!({ "pid": std::process::id(), "name": name.trim_end(), "pool": pool.number() })
}

fn with_program(pool: &Pool, mut answer: Value) -> Value {
    answer["program"] = program(pool);
    answer
}

/// Returns the state of the pool as JSON; counts are in frames. Nodes, zones and pagesets become text one by one, because
/// all their values would need many times the text's memory.
pub(super) fn snapshot(pool: &Pool) -> String {
    let accounting = pool.accounting();
    let mut text = json!({
        "schema": "zonal.snapshot.v1",
        "accounting": {
            "managed": accounting.managed.get(),
            "free": accounting.free.get(),
            "in_pagesets": accounting.in_pagesets.get(),
            "allocated": accounting.allocated.get(),
        },
        "settings": values(pool),
        "program": program(pool),
        "page_bytes": pool.page_bytes(),
        "events": events(&pool.events()),
        "owners": owners(pool),
    })
    .to_string();
    add(&mut text, "nodes", ['[', ']'], pool.nodes().map(|found| node(pool, &found)));
    add(&mut text, "zones", ['[', ']'], zones(pool));
    add(&mut text, "pagesets", ['[', ']'], pagesets(pool));
    text
}

/// Adds a member to the text of an object that has others: a list or an object with `parts` between two brackets.
fn add(text: &mut String, name: &str, [open, close]: [char; 2], parts: impl Iterator<Item = impl Display>) {
    text.pop(); // the end of the object
    write!(text, ",\"{name}\":{open}").expect("texts take everything");
    for (at, part) in parts.enumerate() {
        let between = if at == 0 { "" } else { "," };
        write!(text, "{between}{part}").expect("texts take everything");
    }
    text.extend([close, '}']);
}

fn zones(pool: &Pool) -> impl Iterator<Item = Value> {
    let has_order = |&order: &usize| pool.order_holding(pool.page_bytes() << order).is_some();
    let orders = (0..=usize::from(MAX_ORDER_LIMIT)).take_while(has_order).count();
    pool.zones().map(move |zone| {
        json!({
            "id": zone.id.index(),
            "node": zone.node.get(),
            "kind": zone.kind.to_string(),
            "start_pfn": zone.span.start.get(),
            "spanned": zone.span.count.get(),
            "present": zone.present.get(),
            "managed": zone.managed.get(),
            "free": zone.free.get(),
            "in_pagesets": zone.in_pagesets.get(),
            "fenced": zone.fenced.get(),
            "retired": zone.retired.get(),
            "watermarks": {
                "min": zone.watermarks.min.get(),
                "low": zone.watermarks.low.get(),
                "high": zone.watermarks.high.get(),
            },
            "reserve": zone.reserve.map(PageCount::get),
            "stat_threshold": zone.stat_threshold,
            "free_blocks": zone.free_blocks[..orders],
            "locality": {
                "hit": zone.locality.hit,
                "miss": zone.locality.miss,
                "foreign": zone.locality.foreign,
                "interleave_hit": zone.locality.interleave_hit,
                "local": zone.locality.local,
                "other": zone.locality.other,
            },
        })
    })
}

fn pagesets(pool: &Pool) -> impl Iterator<Item = Value> {
    pool.pagesets().map(|pageset| {
        json!({
            "zone": pageset.zone.index(),
            "cpu": pageset.cpu.get(),
            "count": pageset.count.get(),
            "high": pageset.high.get(),
            "batch": pageset.limits.batch.get(),
            "refills": pageset.refills,
            "drains": pageset.drains,
            "remote_drains": pageset.remote_drains,
        })
    })
}

/// Returns the processes that share the pool.
fn owners(pool: &Pool) -> Value {
    let owner = |owner: PoolOwner| {
        json!({
            "process": owner.process,
            "pid": owner.pid,
            "name": owner.name.map(|name| name.to_string()),
            "is_alive": owner.is_alive,
            "held": owner.held.get(),
        })
    };
    pool.owners().into_iter().map(owner).collect()
}

fn node(pool: &Pool, node: &NodeSnapshot) -> String {
    let mut text = json!({
        "id": node.id.get(),
        "allocated": { "user": node.allocated[0].get(), "cache": node.allocated[1].get(), "kernel": node.allocated[2].get() },
        "reclaimed": { "background": node.reclaimed[0].get(), "direct": node.reclaimed[1].get(), "node": node.reclaimed[2].get() },
        "stalled": pool.stall_shares(node.id).map(stalled),
    })
    .to_string();
    let nodes = pool.topology().nodes();
    let row = nodes.iter().find(|other| other.id == node.id).map(|node| &node.distances);
    let columns = nodes.iter().zip(row.into_iter().flatten());
    let distances = columns.map(|(to, distance)| format!("\"{}\":{distance}", to.id));
    add(&mut text, "distances", ['{', '}'], distances);
    add(&mut text, "fallback_order", ['[', ']'], pool.fallback_order(node.id).into_iter().map(NodeId::get));
    text
}

fn stalled(shares: StallShares) -> Value {
    let StallShares { last_10s, last_60s, last_300s } = shares;
    json!({ "last_10s": last_10s, "last_60s": last_60s, "last_300s": last_300s })
}

fn events(events: &Events) -> Value {
    json!({
        "probes": events.probes,
        "marks": events.marks,
        "wipes": events.wipes,
        "early_clears": events.early_clears,
        "node_reclaim_no_scan": events.node_reclaim_no_scan,
        "node_reclaim_full": events.node_reclaim_full,
        "node_reclaim_some": events.node_reclaim_some,
        "node_reclaim_success": events.node_reclaim_success,
        "background_wakes": events.background_wakes,
        "background_rounds": events.background_rounds,
        "background_reclaimed": events.background_reclaimed,
        "direct_stalls": events.direct_stalls,
        "direct_reclaimed": events.direct_reclaimed,
        "direct_ns": events.direct_ns,
        "retired": events.retired,
        "poison_found": events.poison_found,
        "failures": events.failures,
        "bad_frames": events.bad_frames,
        "refills": events.refills,
        "drains": events.drains,
        "remote_drains": events.remote_drains,
    })
}
