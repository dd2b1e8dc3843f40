//! The settings of a pool and the values derived from them, as text: the settings, the fallback orders, and the
//! threshold and limits of each zone.
//!
//! Related files: `run/text.rs` is the report before this text, `run/json.rs` prints the same data for scripts.

use zonal::snapshot::{Settings, ZoneSnapshot};
use zonal_linux::Pool;

use super::json::named;
use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};

pub(super) fn render(pool: &Pool, width: Width) -> String {
    let mut text = String::from("\nSettings\n");
    for line in settings(&pool.settings()) {
        text.push_str(&width.labelled("  ", &line));
    }
    text.push_str("\nFallback orders\n");
    for node in pool.topology().nodes() {
        let order: Vec<_> = pool.fallback_order(node.id).iter().map(ToString::to_string).collect();
        text.push_str(&width.labelled(&format!("  node {:<5}", node.id), &order.join(" ")));
    }
    text + "\nZones, in frames\n" + &zones(pool, width)
}

fn settings(settings: &Settings) -> [String; 3] {
    let names = named(settings);
    [
        format!(
            "node-load {}, tuning {}, high-fraction {}, zonelist-cache {}",
            names.node_load, names.tuning, names.percpu_pagelist_high_fraction, names.zonelist_cache
        ),
        format!(
            "node-reclaim {}, reclaim-distance {}, min-unmapped {} %",
            names.zone_reclaim_mode, names.reclaim_distance, names.min_unmapped_ratio
        ),
        format!(
            "counters {}, folded every {} s, invalid-free {}",
            names.counters, names.stat_interval, names.invalid_free
        ),
    ]
}

fn zones(pool: &Pool, width: Width) -> String {
    let columns = [("node", Numbers), ("zone", Text), ("managed", Numbers), ("threshold", Numbers)];
    let limits = [("batch", Numbers), ("pageset.high", Text)];
    let mut grid = Grid::new(2, columns.into_iter().chain(limits));
    pool.zones().for_each(|zone| grid.row(row(&zone)));
    grid.render("  ", width)
}

fn row(zone: &ZoneSnapshot) -> [String; 6] {
    let limits = zone.pageset_limits;
    [
        zone.node.to_string(),
        zone.kind.name().to_owned(),
        zone.managed.to_string(),
        zone.stat_threshold.to_string(),
        limits.batch.to_string(),
        format!("{} to {}", limits.high_min, limits.high_max),
    ]
}
