//! Zones against their watermarks, and nodes.

use zonal_page::{
    Bar, Bars, Block, Cell, Chart, Column, Gauge, Gauges, Key, Kind, Scale, Symbol, Table, Tone, color,
};

use super::words::{ROWS_MAX, counted, memory, mib, percent, share, shown_remark, shown_zones, total};
use crate::sample::{Pressure, Sample, ZoneSample};
use crate::serve::tick::Tick;

/// Space for the texts next to gauges and bars, in pixels.
const TEXT_WIDTH: f64 = 150.0;
/// The free memory scale begins at this share of the smallest watermark.
const BELOW_MIN: f64 = 0.25;

/// Returns the charts of each zone's free memory and use.
pub(super) fn charts(tick: &Tick) -> Vec<Chart> {
    let sample = &*tick.sample;
    let zones: Vec<&ZoneSample> = shown_zones(sample).into_iter().map(|at| &sample.zones[at]).collect();
    free(sample, &zones).into_iter().chain([usage(sample, &zones)]).collect()
}

fn free(sample: &Sample, zones: &[&ZoneSample]) -> Option<Chart> {
    let watermarks = sample.zones.iter().filter(|zone| zone.min > 0);
    let least = watermarks.map(|zone| zone.min).min().unwrap_or(1);
    let most = sample.zones.iter().map(|zone| zone.managed).max()?;
    let (low, high) = (mib(sample, least) * BELOW_MIN, mib(sample, most));
    if low <= 0.0 || high <= low {
        return None;
    }
    let scale = Scale::logarithmic(low, high, "");
    let gauge = |zone: &&ZoneSample| Gauge {
        name: zone.name(),
        value: mib(sample, zone.free),
        color: match zone.pressure() {
            Pressure::None | Pressure::BelowHigh => color::BLUE,
            Pressure::BelowLow => color::YELLOW,
            Pressure::BelowMin => color::VERMILION,
        },
        limits: vec![
            (mib(sample, zone.min), color::VERMILION),
            (mib(sample, zone.low), color::YELLOW),
            (mib(sample, zone.high), color::GREY),
        ],
        text: format!("{}{}", memory(sample, zone.free), short_state(zone)),
    };
    let gauges: Vec<Gauge> = zones.iter().map(gauge).collect();
    let axis = "MiB (logarithmic)";
    let panel = Gauges { title: "", scale: &scale, axis, gauges: &gauges, text_width: TEXT_WIDTH }.panel();
    let range = |color, text: &str| Key::new(Symbol::Fill, color, text);
    Some(Chart {
        name: "watermarks".to_owned(),
        title: "Free memory against watermarks".to_owned(),
        about: "A bar of free memory for each zone, in front of the ranges below its watermarks min, low and high. The \
            table of zones has all numbers."
            .to_owned(),
        keys: vec![
            Key::new(Symbol::Line, color::BLUE, "free"),
            range(color::VERMILION, "below min"),
            range(color::YELLOW, "below low"),
            range(color::GREY, "below high"),
        ],
        panels: vec![panel],
    })
}

fn usage(sample: &Sample, zones: &[&ZoneSample]) -> Chart {
    let [used, cached, free] = [color::FILLS[0], color::FILLS[1], color::REST];
    let bar = |zone: &&ZoneSample| {
        let part = |frames, color| {
            let share = share(frames, zone.managed);
            (share * 100.0, color, percent(share))
        };
        Bar {
            name: zone.name(),
            parts: vec![part(zone.used(), used), part(zone.in_pagesets, cached), part(zone.free, free)],
            spread: None,
            mark: None,
            text: format!("of {}", memory(sample, zone.managed)),
        }
    };
    let scale = Scale::lengths([100.0], "%").expect("100 is a number");
    let groups = vec![(String::new(), zones.iter().map(bar).collect())];
    let axis = Some("share of managed memory");
    let panel = Bars { title: "", scale: &scale, axis, groups, text_width: 90.0 }.panel();
    let key = |color, text: &str| Key::new(Symbol::Fill, color, text);
    Chart {
        name: "usage".to_owned(),
        title: "Use of each zone".to_owned(),
        about: "A bar for each zone, divided into used memory, memory in pagesets and free memory. The table of zones \
            has all numbers."
            .to_owned(),
        keys: vec![key(used, "used"), key(cached, "in pagesets"), key(free, "free")],
        panels: vec![panel],
    }
}

/// Returns the contents of the section about zones.
pub(super) fn blocks<'a>(tick: &Tick, charts: &'a [Chart]) -> Vec<Block<'a>> {
    let sample = &*tick.sample;
    let remark = shown_remark(sample).map(Block::About);
    let folded = Block::Folded {
        summary: "Table of zones".to_owned(),
        is_open: false,
        blocks: vec![Block::Table(table(sample))],
    };
    [Block::Lead(lead(sample))].into_iter().chain(remark).chain([Block::Charts(charts), folded]).collect()
}

fn lead(sample: &Sample) -> String {
    let mut below: Vec<&ZoneSample> =
        sample.zones.iter().filter(|zone| zone.pressure() >= Pressure::BelowLow).collect();
    below.sort_by_key(|zone| std::cmp::Reverse(zone.pressure()));
    match below.as_slice() {
        [] => "All zones are above their watermark low.".to_owned(),
        [first] => format!("Zone {} is {}.", first.name(), state(first)),
        [first, ..] => format!(
            "{} are below their watermark low; zone {} is {}.",
            counted(below.len(), "zone"),
            first.name(),
            state(first)
        ),
    }
}

fn state(zone: &ZoneSample) -> &'static str {
    match zone.pressure() {
        Pressure::None => "above high",
        Pressure::BelowHigh => "below high: background reclaim continues if it runs",
        Pressure::BelowLow => "below low: background reclaim starts",
        Pressure::BelowMin => "below min: only urgent requests are served",
    }
}

fn short_state(zone: &ZoneSample) -> &'static str {
    match zone.pressure() {
        Pressure::None => "",
        Pressure::BelowHigh => ", below high",
        Pressure::BelowLow => ", below low",
        Pressure::BelowMin => ", below min",
    }
}

fn table(sample: &Sample) -> Table {
    let number = |title: &str| Column::new(Kind::Number, title);
    let mark = |title: &str| Column::of("watermarks", Kind::Number, title);
    let row = |at: usize| {
        let zone = &sample.zones[at];
        let amount = |frames| Cell::from(memory(sample, frames));
        let tone = match zone.pressure() {
            Pressure::None => Tone::Plain,
            Pressure::BelowHigh => Tone::Fair,
            Pressure::BelowLow => Tone::Off,
            Pressure::BelowMin => Tone::Far,
        };
        vec![
            Cell::from(zone.name()),
            amount(zone.managed),
            amount(zone.used()),
            amount(zone.in_pagesets),
            Cell { tone, ..amount(zone.free) },
            amount(zone.min),
            amount(zone.low),
            amount(zone.high),
            Cell::from(state(zone).split(':').next().unwrap_or_default()),
        ]
    };
    Table {
        caption: "Zones".to_owned(),
        columns: vec![
            Column::new(Kind::Head, "zone"),
            number("managed"),
            number("used"),
            number("in pagesets"),
            number("free"),
            mark("min"),
            mark("low"),
            mark("high"),
            Column::new(Kind::Text, "state"),
        ],
        rows: vec![shown_zones(sample).into_iter().map(row).collect()],
    }
}

/// Returns the contents of the section about nodes.
pub(super) fn nodes(tick: &Tick) -> Vec<Block<'static>> {
    let sample = &*tick.sample;
    let number = |title: &str| Column::new(Kind::Number, title);
    let mut columns = vec![Column::new(Kind::Head, "node")];
    let has_cpus = sample.nodes.iter().any(|node| node.cpus.is_some());
    let has_uses = sample.nodes.iter().any(|node| node.allocated.is_some());
    let has_stalls = sample.nodes.iter().any(|node| node.stalled_percent.is_some());
    columns.extend(has_cpus.then(|| Column::new(Kind::Text, "CPUs")));
    columns.extend(["managed", "used", "in pagesets", "free"].map(number));
    if has_uses {
        columns.extend(["user", "cache", "kernel"].map(|name| Column::of("allocated", Kind::Number, name)));
    }
    columns.extend(has_stalls.then(|| number("stalled")));
    let row = |node: &crate::sample::Node| {
        let sum = |frames: fn(&ZoneSample) -> u64| {
            Cell::from(memory(sample, total(sample.zones_of(node.id).map(frames))))
        };
        let mut row = vec![Cell::from(node.id.to_string())];
        row.extend(has_cpus.then(|| Cell::from(node.cpus.clone().unwrap_or_default())));
        row.extend([sum(|zone| zone.managed), sum(ZoneSample::used), sum(|zone| zone.in_pagesets)]);
        row.push(sum(|zone| zone.free));
        if has_uses {
            row.extend(node.allocated.unwrap_or_default().map(|frames| Cell::from(memory(sample, frames))));
        }
        row.extend(has_stalls.then(|| Cell::from(percent(node.stalled_percent.unwrap_or(0.0) / 100.0))));
        row
    };
    let rows = vec![sample.nodes.iter().take(ROWS_MAX).map(row).collect()];
    let about = has_stalls.then(|| {
        "Stalled: the share of the last 10 seconds in which direct reclaim stalled a caller.".to_owned()
    });
    let table = Block::Table(Table { caption: "Memory of each node".to_owned(), columns, rows });
    about.map(Block::About).into_iter().chain([table]).chain(more(sample.nodes.len())).collect()
}

/// Returns a remark if not all of `count` nodes have a row.
pub(super) fn more(count: usize) -> Option<Block<'static>> {
    (count > ROWS_MAX).then(|| Block::About(format!("The first {ROWS_MAX} of {count} nodes are shown.")))
}
