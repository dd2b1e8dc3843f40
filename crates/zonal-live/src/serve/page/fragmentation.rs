//! Fragmentation: in blocks of which sizes the free memory is.

use zonal_page::{Bar, Bars, Block, Cell, Chart, Column, Key, Kind, Scale, Symbol, Table, color, figures};

use super::words::{percent, shown_remark, shown_zones};
use crate::sample::{Sample, ZoneSample};
use crate::serve::tick::Tick;

/// Sizes of blocks, in KiB, at which the parts of a bar begin.
const MIDDLE_KIB: u64 = 64;
/// Zones up to which the table is visible at first.
const OPEN_MAX: usize = 8;

/// Maximum number of orders in the table.
const ORDERS_MAX: usize = 32;

/// Returns the chart, if the source reports free blocks.
pub(super) fn charts(tick: &Tick) -> Vec<Chart> {
    let sample = &*tick.sample;
    let zones: Vec<&ZoneSample> = shown_zones(sample).into_iter().map(|at| &sample.zones[at]).collect();
    if zones.iter().all(|zone| zone.free_blocks.is_empty()) {
        return Vec::new();
    }
    let (large, middle) = (sample.large_order(), middle_order(sample));
    let colors = [color::FILLS[2], color::FILLS[4], color::FILLS[1]];
    let bar = |zone: &&ZoneSample| {
        let from = |order| zone.free_in_blocks_from(order).unwrap_or(0.0);
        let shares = [from(large), from(middle) - from(large), from(0) - from(middle)];
        let part = |(share, color): (f64, color::Color)| (100.0 * share, color, percent(share));
        let text = match zone.free_in_blocks_from(large) {
            Some(share) => format!("{} in large blocks", percent(share)),
            None => "no free blocks".to_owned(),
        };
        let parts = shares.into_iter().zip(colors).map(part).collect();
        Bar { name: zone.name(), parts, spread: None, mark: None, text }
    };
    let scale = Scale::lengths([100.0], "%").expect("100 is a number");
    let groups = vec![(String::new(), zones.iter().map(bar).collect())];
    let axis = Some("share of free memory");
    let panel = Bars { title: "", scale: &scale, axis, groups, text_width: 160.0 }.panel();
    let key = |color, text: &str| Key::new(Symbol::Fill, color, text);
    vec![Chart {
        name: "fragmentation-bars".to_owned(),
        title: "Free memory by the size of its blocks".to_owned(),
        about: "A bar for each zone, divided by the size of free blocks. The table has the number of blocks of each \
            order."
            .to_owned(),
        keys: vec![
            key(colors[0], "blocks of at least 2 MiB"),
            key(colors[1], "of at least 64 KiB"),
            key(colors[2], "smaller"),
        ],
        panels: vec![panel],
    }]
}

/// Returns the smallest order of blocks that have at least [`MIDDLE_KIB`].
fn middle_order(sample: &Sample) -> usize {
    let frames = (MIDDLE_KIB << 10).div_ceil(sample.page_bytes.max(1));
    (frames.next_power_of_two().trailing_zeros() as usize).min(sample.large_order())
}

/// Returns the contents of the section.
pub(super) fn blocks<'a>(tick: &Tick, charts: &'a [Chart]) -> Vec<Block<'a>> {
    let sample = &*tick.sample;
    if charts.is_empty() {
        return vec![Block::Text("The source does not report free blocks.".to_owned())];
    }
    let table = Block::Folded {
        summary: "Table of free blocks by order".to_owned(),
        is_open: sample.zones.len() <= OPEN_MAX,
        blocks: vec![Block::Table(table(sample))],
    };
    shown_remark(sample).map(Block::About).into_iter().chain([Block::Charts(charts), table]).collect()
}

fn table(sample: &Sample) -> Table {
    let orders = sample.zones.iter().map(|zone| zone.free_blocks.len()).max().unwrap_or(0).min(ORDERS_MAX);
    let size = |order: usize| {
        let kib = (sample.page_bytes as f64 / 1024.0) * (order as f64).exp2();
        Column::of(format!("order {order}"), Kind::Number, figures::quantity(kib, "KiB"))
    };
    let row = |at: usize| {
        let zone = &sample.zones[at];
        let counts = (0..orders).map(|order| {
            let count = zone.free_blocks.get(order);
            Cell::from(count.map_or_else(String::new, |count| figures::quantity(*count as f64, "")))
        });
        [Cell::from(zone.name())].into_iter().chain(counts).collect()
    };
    Table {
        caption: "Free blocks by their size".to_owned(),
        columns: [Column::new(Kind::Head, "zone")].into_iter().chain((0..orders).map(size)).collect(),
        rows: vec![shown_zones(sample).into_iter().map(row).collect()],
    }
}
