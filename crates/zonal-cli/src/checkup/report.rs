//! The figures of a check-up as a document that its owner can send: no names, addresses or paths.

use std::fs;

use serde_json::{Value, json};
use zonal_machine::Settings;

use super::Checkup;

/// Returns the document, with a line for each member.
pub(super) fn document(checkup: &Checkup) -> String {
    let Checkup { model, rules, report, sample, pool, cleared, .. } = checkup;
    let nodes: Vec<Value> = model
        .online_nodes()
        .map(|node| {
            let order = report.nodes.iter().find(|one| one.id == node.id.get()).map(|one| &one.fallback_order);
            json!({ "id": node.id.get(), "cpus": node.cpus.len(), "distances": node.distances, "fallback_order": order })
        })
        .collect();
    let zones: Vec<Value> = model
        .zones
        .iter()
        .map(|zone| {
            let is_same = |one: &&zonal_machine::state::ZoneSample| {
                one.node == u64::from(zone.node.get()) && one.kind == zone.kind.name()
            };
            let state = sample.zones.iter().find(is_same);
            json!({
                "node": zone.node.get(),
                "kind": zone.kind.name(),
                "spanned": zone.spanned.get(),
                "present": zone.present.get(),
                "managed": zone.managed.get(),
                "free": state.map(|state| state.free),
                "free_blocks": state.map(|state| &state.free_blocks),
                "locality": state.map(|state| state.locality),
            })
        })
        .collect();
    let settings: serde_json::Map<String, Value> = Settings::ALL
        .iter()
        .map(|&setting| (setting.info().name.to_owned(), json!(model.settings.numbers(setting))))
        .collect();
    let same = report.checks.iter().filter(|check| check.same).count();
    let measured = &pool.measured;
    let document = json!({
        "processor": processor(),
        "kernel": rules.version.to_string(),
        "page_bytes": model.page_bytes,
        "nodes": nodes,
        "zones": zones,
        "settings": settings,
        "predicted_exactly": { "same": same, "of": report.checks.len() },
        "advice": report.advice,
        "pool": {
            "bytes": checkup.pool_bytes,
            "threads": pool.plan.threads.get(),
            "ns_per_page": measured.cpu_ns_per_pair(),
            "ns_per_cleared_page": cleared.from_pool_ns,
            "p99_ns": measured.latency.p99_ns,
            "metadata_bytes_per_frame": pool.metadata_bytes_per_frame,
            "balanced": pool.is_balanced(),
        },
        "kernel_pages": {
            "own_mapping_ns_per_page": cleared.own_mapping_ns,
            "in_region_ns_per_page": cleared.in_region_ns,
        },
    });
    let Value::Object(members) = document else { return String::new() };
    let lines = members.iter().map(|(name, value)| format!("  {}: {value}", json!(name)));
    let lines: Vec<String> = lines.collect();
    format!("{{\n  \"schema\": \"zonal.checkup.v1\",\n{}\n}}\n", lines.join(",\n"))
}

/// Returns the name of the processor model, which names a product and not a machine.
pub(super) fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name") || line.starts_with("CPU part"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}
