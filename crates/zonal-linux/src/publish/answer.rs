//! The requests of the protocol and their answers, as JSON.
//!
//! A request is an object with `zonal` (the version) and `request`: `settings`, `set` (with `name` and `value`) or
//! `snapshot`. An answer is an object with `zonal` and either `error`, a text, or a member with the name of the request.

use serde_json::{Value, json};
use zonal::settings::{Access, Setting};
use zonal::units::NodeId;

use crate::pool::Pool;

/// Version of the requests and answers.
pub const PROTOCOL_VERSION: u64 = 1;

/// Returns the answer to a request, as a line.
pub(super) fn answer(pool: &Pool, request: &[u8]) -> String {
    match result(pool, request) {
        Ok((name, value)) => line(json!({ "zonal": PROTOCOL_VERSION, name: value })),
        Err(why) => refusal(&why),
    }
}

/// Returns an answer that contains only an error.
pub(super) fn refusal(why: &str) -> String {
    line(json!({ "zonal": PROTOCOL_VERSION, "error": why }))
}

fn line(answer: Value) -> String {
    answer.to_string() + "\n"
}

fn result(pool: &Pool, request: &[u8]) -> Result<(&'static str, Value), String> {
    let request: Value =
        serde_json::from_slice(request).map_err(|error| format!("the request is not JSON: {error}"))?;
    if request["zonal"] != PROTOCOL_VERSION {
        let version = &request["zonal"];
        return Err(format!(
            "the version of the request is {version}; this program knows {PROTOCOL_VERSION}"
        ));
    }
    match request["request"].as_str() {
        Some("settings") => Ok(("settings", settings(pool))),
        Some("set") => set(pool, &request).map(|value| ("set", value)),
        Some("snapshot") => Ok(("snapshot", snapshot(pool))),
        _ => Err(format!("{} is not a request; requests are settings, set and snapshot", request["request"])),
    }
}

/// Returns the table of settings with the values of the pool.
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

/// Changes one setting, and returns its name and its new value.
fn set(pool: &Pool, request: &Value) -> Result<Value, String> {
    let text = |member: &str| {
        request[member]
            .as_str()
            .ok_or_else(|| format!("`{member}` is {}; it must be a text", request[member]))
    };
    let (name, value) = (text("name")?, text("value")?);
    pool.set_setting(name, value).map_err(|error| error.to_string())?;
    let value = pool.setting(name).ok().map(|value| value.to_string());
    Ok(json!({ "name": name, "value": value }))
}

/// Returns the state of the pool; counts are in frames.
fn snapshot(pool: &Pool) -> Value {
    let nodes = pool.nodes().map(|node| {
        let order = pool.fallback_order(node.id);
        json!({
            "id": node.id.get(),
            "allocated": { "user": node.allocated[0].get(), "cache": node.allocated[1].get(), "kernel": node.allocated[2].get() },
            "reclaimed": { "background": node.reclaimed[0].get(), "direct": node.reclaimed[1].get(), "node": node.reclaimed[2].get() },
            "fallback_order": order.into_iter().map(NodeId::get).collect::<Vec<_>>(),
        })
    });
    let zones = pool.zones().map(|zone| {
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
            "stat_threshold": zone.stat_threshold,
            "free_blocks": zone.free_blocks,
            "locality": {
                "hit": zone.locality.hit,
                "miss": zone.locality.miss,
                "foreign": zone.locality.foreign,
                "interleave_hit": zone.locality.interleave_hit,
                "local": zone.locality.local,
                "other": zone.locality.other,
            },
        })
    });
    let pagesets = pool.pagesets().map(|pageset| {
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
    });
    json!({
        "page_bytes": pool.page_bytes(),
        "nodes": nodes.collect::<Vec<_>>(),
        "zones": zones.collect::<Vec<_>>(),
        "pagesets": pagesets.collect::<Vec<_>>(),
    })
}
