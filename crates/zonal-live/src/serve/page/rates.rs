//! Locality and counters: rates and totals.

use zonal_page::{Block, Cell, Column, Kind, Table, Tone};

use super::words::{ROWS_MAX, count, memory, percent, rate};
use super::zones::more;
use crate::sample::{Counter, Locality, Node, Owner, Rates};
use crate::serve::tick::Tick;

/// Shares of allocations from the preferred zone below which a cell has a colour.
const GOOD: f64 = 0.99;
const FAIR: f64 = 0.9;

/// Returns the contents of the section about locality.
pub(super) fn locality(tick: &Tick) -> Vec<Block<'static>> {
    let sample = &*tick.sample;
    if sample.locality().is_none() {
        return vec![Block::Text("The source does not count where allocations are served.".to_owned())];
    }
    let text = "Hit: served by the zone or node that was preferred. Miss: served here, although another one was \
        preferred. Foreign: served elsewhere, although this one was preferred.";
    let per_second = |title: &str| Column::of("per second", Kind::Number, title);
    let total = |title: &str| Column::of("total", Kind::Number, title);
    let columns = vec![
        Column::new(Kind::Head, "node"),
        per_second("hit"),
        per_second("miss"),
        per_second("foreign"),
        per_second("hit share"),
        total("hit"),
        total("miss"),
        total("foreign"),
        total("interleaved"),
        total("local"),
        total("other"),
    ];
    let row = |(at, node): (usize, &Node)| {
        let rates = tick.rates.as_ref().and_then(|rates| rates.nodes.get(at).copied().flatten());
        let cell = |value: Option<f64>| Cell::from(rate(value));
        let share = rates.map_or(f64::NAN, |rates| rates.hit / (rates.hit + rates.miss));
        let mut row = vec![
            Cell::from(node.id.to_string()),
            cell(rates.map(|rates| rates.hit)),
            cell(rates.map(|rates| rates.miss)),
            cell(rates.map(|rates| rates.foreign)),
            Cell { tone: tone(share), ..Cell::from(percent(share)) },
        ];
        let Locality { hit, miss, foreign, interleave_hit, local, other } =
            sample.locality_of(node).unwrap_or_default();
        row.extend([hit, miss, foreign, interleave_hit, local, other].map(|value| Cell::from(count(value))));
        row
    };
    let rows = vec![sample.nodes.iter().enumerate().take(ROWS_MAX).map(row).collect()];
    let table = Block::Table(Table { caption: "Allocations by locality".to_owned(), columns, rows });
    [Block::About(text.to_owned()), table].into_iter().chain(more(sample.nodes.len())).collect()
}

fn tone(share: f64) -> Tone {
    match share {
        _ if !share.is_finite() || share >= GOOD => Tone::Plain,
        _ if share >= FAIR => Tone::Fair,
        _ => Tone::Off,
    }
}

/// Returns the contents of the section about counters.
pub(super) fn counters(tick: &Tick) -> Vec<Block<'static>> {
    let rates = tick.rates.as_ref();
    let row = |(counter, total): (Counter, u64)| {
        vec![
            Cell::from(counter.name()),
            Cell::from(rate(rates.and_then(|rates: &Rates| rates.get(counter)))),
            Cell::from(count(total)),
            Cell::from(counter.unit()),
            Cell::from(counter.help()),
        ]
    };
    let rows: Vec<Vec<Cell>> = tick.sample.totals.known().map(row).collect();
    if rows.is_empty() {
        return vec![Block::Text("The source has no counters.".to_owned())];
    }
    let columns = vec![
        Column::new(Kind::Code, "counter"),
        Column::new(Kind::Number, "per second"),
        Column::new(Kind::Number, "total"),
        Column::new(Kind::Unit, "unit"),
        Column::new(Kind::Text, "meaning"),
    ];
    let caption = "Counters since the pool was built or the system booted".to_owned();
    let counters = Block::Table(Table { caption, columns, rows: vec![rows] });
    owners(tick).into_iter().chain([counters]).collect()
}

/// Returns the table with the processes that share the pool.
fn owners(tick: &Tick) -> Option<Block<'static>> {
    let row = |owner: &Owner| {
        vec![
            Cell::from(owner.process.to_string()),
            Cell::from(owner.pid.to_string()),
            Cell::from(owner.name.clone().unwrap_or_default()),
            Cell::from(if owner.is_alive { "lives" } else { "ended" }),
            Cell::from(memory(&tick.sample, owner.held)),
        ]
    };
    let rows: Vec<Vec<Cell>> = tick.sample.owners.iter().map(row).collect();
    let columns = vec![
        Column::new(Kind::Number, "process"),
        Column::new(Kind::Number, "process id"),
        Column::new(Kind::Text, "name"),
        Column::new(Kind::Text, "state"),
        Column::new(Kind::Number, "holds"),
    ];
    let caption = "Processes that share the pool".to_owned();
    (!rows.is_empty()).then(|| Block::Table(Table { caption, columns, rows: vec![rows] }))
}
