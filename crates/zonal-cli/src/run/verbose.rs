//! The settings of a pool and the values derived from them, as text: settings, fallback orders, and each
//! zone's threshold and limits.
//!
//! Neighbours: `run/text.rs` is the report that precedes this text, `run/json.rs` has the same data for
//! scripts.

use std::fmt::Write;

use zonal::snapshot::{Settings, ZoneSnapshot};
use zonal_linux::Pool;

use super::json::named;

pub(super) fn render(pool: &Pool) -> String {
    let mut text = format!("\nSettings\n  {}\n\nFallback orders\n", settings(&pool.settings()));
    for node in pool.topology().nodes() {
        let order: Vec<_> = pool.fallback_order(node.id).iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "  node {:<5}{}", node.id, order.join(" "));
    }
    text.push_str("\nZones, in frames\n");
    let _ = writeln!(text, "  node  zone         managed  threshold  batch  pageset high");
    pool.zones().for_each(|zone| text.push_str(&line(&zone)));
    text
}

fn settings(settings: &Settings) -> String {
    let names = named(settings);
    format!(
        "node-load {}, tuning {}, high-fraction {}, zonelist-cache {}\n  node-reclaim {}, reclaim-distance {}, \
         min-unmapped {} %\n  counters {}, folded every {} s, invalid-free {}",
        names.node_load,
        names.tuning,
        names.percpu_pagelist_high_fraction,
        names.zonelist_cache,
        names.zone_reclaim_mode,
        names.reclaim_distance,
        names.min_unmapped_ratio,
        names.counters,
        names.stat_interval,
        names.invalid_free
    )
}

fn line(zone: &ZoneSnapshot) -> String {
    let limits = zone.pageset_limits;
    let kind = zone.kind.name();
    format!(
        "  {:>4}  {kind:<8}{:>12}{:>11}{:>7}  {} to {}\n",
        zone.node, zone.managed, zone.stat_threshold, limits.batch, limits.high_min, limits.high_max
    )
}
