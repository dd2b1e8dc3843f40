//! The zones of a machine on its page: watermarks and reserves as bars, and all values as a table.

use zonal_machine::{Report, ZoneReport};
use zonal_page::color::{FILLS, REST};
use zonal_page::figures::quantity;
use zonal_page::{Bar, Bars, Block, Cell, Chart, Color, Column, Key, Kind, Panel, Scale, Symbol, Table};

use super::super::words::{pageset_high, ranges, size};
use super::nodes::folded;

/// Maximum number of bars in a panel.
const BARS_MAX: usize = 32;
/// Colours of the frames up to `min`, from there to `low`, and from there to `high`.
const COLORS: [Color; 3] = [FILLS[5], FILLS[1], FILLS[4]];

/// Zones with equal values, which share a bar.
struct Alike<'a> {
    zone: &'a ZoneReport,
    nodes: Vec<u32>,
}

impl Alike<'_> {
    fn name(&self) -> String {
        let nodes = if self.nodes.len() == 1 { "node" } else { "nodes" };
        format!("{nodes} {}", ranges(&self.nodes))
    }

    /// Returns a frame count in percent of the managed frames.
    fn percent(&self, frames: u64) -> f64 {
        100.0 * frames as f64 / self.zone.managed.max(1) as f64
    }

    /// Returns the largest reserve, which applies to requests that may use any higher zone.
    fn reserve(&self) -> u64 {
        self.zone.protection.iter().copied().max().unwrap_or(0)
    }
}

/// Returns the zones that have memory, by kind. Of equal zones only one is listed.
fn alike(report: &Report) -> Vec<Alike<'_>> {
    let values = |zone: &ZoneReport| {
        (zone.kind, zone.managed, [zone.min, zone.low, zone.high], zone.protection.iter().copied().max())
    };
    let mut found: Vec<Alike<'_>> = Vec::new();
    for zone in report.zones.iter().filter(|zone| zone.managed > 0) {
        let node = u32::from(zone.node);
        match found.iter_mut().find(|alike| values(alike.zone) == values(zone)) {
            Some(alike) => alike.nodes.push(node),
            None => found.push(Alike { zone, nodes: vec![node] }),
        }
    }
    found.sort_by_key(|alike| report.zones.iter().position(|zone| zone.kind == alike.zone.kind));
    found
}

/// Returns the charts of watermarks and reserves. There is no chart for reserves that are all 0.
pub(super) fn charts(report: &Report) -> Vec<Chart> {
    let mut zones = alike(report);
    zones.truncate(BARS_MAX);
    let mut charts: Vec<Chart> = watermarks(&zones, report.page_bytes).into_iter().collect();
    charts.extend(reserves(&zones, report.page_bytes));
    charts
}

fn watermarks(zones: &[Alike<'_>], page_bytes: u32) -> Option<Chart> {
    let bar = |alike: &Alike<'_>| {
        let ZoneReport { min, low, high, .. } = *alike.zone;
        let lengths = [min, low.saturating_sub(min), high.saturating_sub(low)];
        let parts = lengths.iter().zip(COLORS);
        Bar {
            name: alike.name(),
            parts: parts.map(|(frames, color)| (alike.percent(*frames), color, String::new())).collect(),
            spread: None,
            mark: None,
            text: format!("{}, {}", size(high, page_bytes), quantity(alike.percent(high), "%")),
        }
    };
    let longest = zones.iter().map(|alike| alike.percent(alike.zone.high));
    let panel = panel(longest, by_kind(zones, bar))?;
    let keys = ["up to min", "min to low", "low to high"];
    Some(Chart {
        name: "watermarks".to_owned(),
        title: "Watermarks".to_owned(),
        about: "Bars of the watermarks min, low and high of each zone, as shares of its managed memory. The table of \
                zones has the values in frames."
            .to_owned(),
        keys: keys.iter().zip(COLORS).map(|(text, color)| Key::new(Symbol::Fill, color, *text)).collect(),
        panels: vec![panel],
    })
}

fn reserves(zones: &[Alike<'_>], page_bytes: u32) -> Option<Chart> {
    if zones.iter().all(|alike| alike.reserve() == 0) {
        return None;
    }
    let bar = |alike: &Alike<'_>| {
        let (min, reserve) = (alike.zone.min, alike.reserve());
        Bar {
            name: alike.name(),
            parts: vec![
                (alike.percent(min), COLORS[0], String::new()),
                (alike.percent(reserve), REST, String::new()),
            ],
            spread: None,
            mark: None,
            text: match reserve {
                0 => "none".to_owned(),
                _ => format!("{}, {}", size(reserve, page_bytes), quantity(alike.percent(reserve), "%")),
            },
        }
    };
    let longest = zones.iter().map(|alike| alike.percent(alike.zone.min + alike.reserve()));
    let panel = panel(longest, by_kind(zones, bar))?;
    Some(Chart {
        name: "reserves".to_owned(),
        title: "Kept from requests that may use higher zones".to_owned(),
        about: "Bars of min and the largest lowmem reserve of each zone, as shares of its managed memory. The table \
                of zones has the values in frames."
            .to_owned(),
        keys: vec![
            Key::new(Symbol::Fill, COLORS[0], "up to min"),
            Key::new(Symbol::Fill, REST, "lowmem reserve"),
        ],
        panels: vec![panel],
    })
}

/// Returns the bars of zones in a group for each kind.
fn by_kind(zones: &[Alike<'_>], bar: impl Fn(&Alike<'_>) -> Bar) -> Vec<(String, Vec<Bar>)> {
    let kinds = zones.chunk_by(|a, b| a.zone.kind == b.zone.kind);
    kinds.map(|zones| (format!("zone {}", zones[0].zone.kind), zones.iter().map(&bar).collect())).collect()
}

/// Draws bars whose lengths are percentages. Returns `None` if there are none.
fn panel(lengths: impl Iterator<Item = f64>, groups: Vec<(String, Vec<Bar>)>) -> Option<Panel> {
    let scale = Scale::lengths(lengths, "%")?;
    let axis = Some("share of the managed memory");
    Some(Bars { title: "", scale: &scale, axis, groups, text_width: 140.0 }.panel())
}

/// Returns the blocks of the section.
pub(super) fn blocks<'a>(report: &Report, charts: &'a [Chart]) -> Vec<Block<'a>> {
    let mut text = "Background reclaim starts when the free memory of a zone falls below low, and ends at high. Below \
                    min, requests reclaim memory themselves, and only urgent ones get more. A zone with a lowmem \
                    reserve keeps this much more from requests that may use higher zones."
        .to_owned();
    let zones = alike(report);
    if zones.iter().any(|alike| alike.zone.min + alike.reserve() > alike.zone.managed) {
        text += " Above 100 %, such requests get nothing from the zone.";
    }
    let bars = zones.len();
    if bars > BARS_MAX {
        text += &format!(" The pictures show {BARS_MAX} of {bars} different zones.");
    }
    let mut blocks = vec![Block::About(text), Block::Charts(charts)];
    blocks.push(folded("Table of zones", table(report)));
    blocks
}

fn table(report: &Report) -> Table {
    let numbers = ["managed", "min", "low", "high", "reserve", "batch", "pageset high", "stat threshold"];
    let mut columns = vec![Column::new(Kind::Head, "node"), Column::new(Kind::Text, "zone")];
    columns.extend(numbers.map(|title| Column::new(Kind::Number, title)));
    let row = |zone: &ZoneReport| -> Vec<Cell> {
        let numbers = [
            zone.managed,
            zone.min,
            zone.low,
            zone.high,
            zone.protection.iter().copied().max().unwrap_or(0),
            zone.batch,
        ];
        let mut row = vec![zone.node.to_string(), zone.kind.to_owned()];
        row.extend(numbers.map(|number| number.to_string()));
        row.extend([pageset_high(zone), zone.stat_threshold.to_string()]);
        row.into_iter().map(Cell::from).collect()
    };
    Table {
        caption: format!("Zones, in frames of {}", size(1, report.page_bytes)),
        columns,
        rows: report
            .zones
            .chunk_by(|a, b| a.node == b.node)
            .map(|zones| zones.iter().map(row).collect())
            .collect(),
    }
}
