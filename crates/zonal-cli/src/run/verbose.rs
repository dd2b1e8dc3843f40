//! The settings of a pool and the values derived from them, as text: the settings, the fallback orders, and the
//! threshold and limits of each zone.
//!
//! Related files: `run/text.rs` is the report before this text, `run/json.rs` prints the same data for scripts.

use zonal::Config;
use zonal::settings::{Setting, SettingValues};
use zonal::snapshot::ZoneSnapshot;
use zonal_linux::Pool;

use super::allocator::OPTIONS;
use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};
use crate::values::rules::Counters;

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

fn settings(config: &Config) -> [String; 3] {
    let text = |setting: Setting| {
        let option = OPTIONS.iter().find(|option| option.setting == setting);
        let unit =
            if let SettingValues::Number { unit: "%", .. } = setting.info().values { " %" } else { "" };
        format!("{} {}{unit}", option.map_or("", |option| option.name), config.get(setting))
    };
    let pagesets = [Setting::NodeLoad, Setting::PagesetTuning, Setting::PercpuPagelistHighFraction];
    let reclaim = [Setting::ZoneReclaimMode, Setting::ReclaimDistance, Setting::MinUnmappedRatio];
    let (counters, seconds) = (Counters(config.counters), config.stat_interval.seconds());
    [
        format!("{}, {}", pagesets.map(text).join(", "), text(Setting::ZonelistCache)),
        reclaim.map(text).join(", "),
        format!("counters {counters}, folded every {seconds} s, {}", text(Setting::InvalidFree)),
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
