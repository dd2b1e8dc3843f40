//! The tables of a summary, for the text and the page alike.
//!
//! Related files: `trace/text.rs` prints them, `trace/page.rs` draws pictures beside them.

use zonal_trace::{Info, LifetimeClass, NameCount};

use crate::layout::Content::{self, Numbers, Text};

/// Rows of a table whose length depends on the trace. The document has all.
const ROWS_MAX: usize = 20;

/// A table.
pub(super) struct TableOf {
    pub(super) title: &'static str,
    pub(super) columns: Vec<(&'static str, Content)>,
    pub(super) rows: Vec<Vec<String>>,
    /// Rows that were left out.
    pub(super) left_out: usize,
}

/// A kind of table, which the page puts into different sections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    Kinds,
    Orders,
    Zones,
    Cpus,
    Names,
    Requests,
    Fragmentation,
    Lifetimes,
    Time,
}

fn table(
    title: &'static str,
    columns: &[(&'static str, Content)],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> TableOf {
    let mut rows: Vec<Vec<String>> = rows.into_iter().collect();
    let left_out = rows.len().saturating_sub(ROWS_MAX);
    rows.truncate(ROWS_MAX);
    TableOf { title, columns: columns.to_vec(), rows, left_out }
}

/// Returns the tables that have rows, with their subjects.
pub(super) fn tables(info: &Info) -> Vec<(Subject, TableOf)> {
    let all = vec![
        (Subject::Kinds, kinds(info)),
        (Subject::Orders, orders(info)),
        (Subject::Zones, zones(info)),
        (Subject::Cpus, cpus(info)),
        (Subject::Names, names(info)),
        (Subject::Requests, migratetypes(info)),
        (Subject::Requests, gfp(info)),
        (Subject::Fragmentation, fallbacks(info)),
        (Subject::Lifetimes, lifetimes(info)),
        (Subject::Time, hot_spots(info)),
    ];
    all.into_iter().filter(|(_, table)| !table.rows.is_empty()).collect()
}

fn kinds(info: &Info) -> TableOf {
    let rows = info.kinds.iter().filter(|kind| kind.events > 0).map(|kind| {
        let rate = kind.events as f64 / info.seconds.max(1e-9);
        vec![kind.kind.to_owned(), kind.events.to_string(), format!("{rate:.0}")]
    });
    table("Events", &[("event", Text), ("events", Numbers), ("a second", Numbers)], rows)
}

fn orders(info: &Info) -> TableOf {
    let columns = [
        ("order", Numbers),
        ("allocated", Numbers),
        ("freed", Numbers),
        ("from free areas", Numbers),
        ("drained", Numbers),
    ];
    let rows = info.orders.iter().map(|one| {
        let counts = [one.order.into(), one.allocations, one.frees, one.locked, one.drained];
        counts.iter().map(u64::to_string).collect()
    });
    table("Blocks by order", &columns, rows)
}

fn zones(info: &Info) -> TableOf {
    let columns = [
        ("zone", Text),
        ("allocated", Numbers),
        ("freed", Numbers),
        ("from free areas", Numbers),
        ("drained", Numbers),
    ];
    let rows = info.zones.iter().map(|one| {
        let name = match (one.node, one.zone) {
            (Some(node), Some(zone)) => format!("node {node} {zone}"),
            _ => "unknown".to_owned(),
        };
        let counts = [one.allocated_pages, one.freed_pages, one.locked_pages, one.drained_pages];
        std::iter::once(name).chain(counts.iter().map(u64::to_string)).collect()
    });
    table("Frames by zone", &columns, rows)
}

fn cpus(info: &Info) -> TableOf {
    let columns = [
        ("CPU", Numbers),
        ("events", Numbers),
        ("lost", Numbers),
        ("allocated", Numbers),
        ("freed", Numbers),
        ("refills", Numbers),
        ("frames", Numbers),
        ("drains", Numbers),
        ("frames", Numbers),
    ];
    let rows = info.cpus.iter().map(|one| {
        let moved = one.moved;
        let refills = [moved.refills, moved.refilled_pages, moved.drains, moved.drained_pages];
        let counts = [one.cpu.into(), one.events, one.lost, one.allocations, one.frees];
        counts.iter().chain(&refills).map(u64::to_string).collect()
    });
    table("CPUs", &columns, rows)
}

fn names(info: &Info) -> TableOf {
    let columns = [
        ("threads", Text),
        ("events", Numbers),
        ("requests", Numbers),
        ("frames allocated", Numbers),
        ("frames freed", Numbers),
    ];
    let rows = info.names.iter().map(|one| {
        let NameCount { name, events, allocations, allocated_pages, freed_pages } = one;
        let counts = [events, allocations, allocated_pages, freed_pages];
        std::iter::once(name.clone()).chain(counts.into_iter().map(u64::to_string)).collect()
    });
    table("Threads by name", &columns, rows)
}

/// Returns the name of a migratetype, or its number.
fn migratetype(number: i32) -> String {
    let name = zonal_trace::Migratetype(number).name();
    name.map_or_else(|| number.to_string(), str::to_owned)
}

fn migratetypes(info: &Info) -> TableOf {
    let rows =
        info.migratetypes.iter().map(|one| vec![migratetype(one.migratetype), one.requests.to_string()]);
    table("Requests by migratetype", &[("migratetype", Text), ("requests", Numbers)], rows)
}

fn gfp(info: &Info) -> TableOf {
    let rows = info.gfp.iter().map(|one| vec![one.requests.to_string(), one.names.clone()]);
    table("Requests by flags", &[("requests", Numbers), ("flags", Text)], rows)
}

fn fallbacks(info: &Info) -> TableOf {
    let columns = [("wanted", Text), ("taken from", Text), ("page block changed", Text), ("events", Numbers)];
    let rows = info.fallbacks.iter().map(|one| {
        let of = |order: u8, number: i32| format!("order {order} {}", migratetype(number));
        let changed = if one.changes_owner { "yes" } else { "no" };
        vec![
            of(one.order, one.migratetype),
            of(one.from_order, one.from_migratetype),
            changed.to_owned(),
            one.events.to_string(),
        ]
    });
    table("Blocks taken from another migratetype", &columns, rows)
}

/// Returns a time with a unit.
pub(super) fn time(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
    match units.iter().find(|(unit, _)| ns >= *unit) {
        Some((unit, name)) => format!("{:.3} {name}", ns as f64 / *unit as f64),
        None => format!("{ns} ns"),
    }
}

fn lifetimes(info: &Info) -> TableOf {
    let all: u64 = info.lifetimes.classes.iter().map(|class| class.frees).sum();
    let mut sum = 0;
    let rows = info.lifetimes.classes.iter().map(|class| {
        let LifetimeClass { below_ns, frees } = *class;
        sum += frees;
        let share = 100.0 * sum as f64 / all.max(1) as f64;
        vec![time(below_ns), frees.to_string(), format!("{share:.1} %")]
    });
    let columns = [("freed within", Numbers), ("frees", Numbers), ("all up to here", Numbers)];
    let mut table = table("Lifetimes", &columns, Vec::new());
    // The number of classes has its own bound.
    table.rows = rows.collect();
    table
}

fn hot_spots(info: &Info) -> TableOf {
    let columns = [
        ("from", Numbers),
        ("to", Numbers),
        ("events a second", Numbers),
        ("times the average", Numbers),
        ("most by", Text),
    ];
    let rows = info.hot_spots.iter().map(|spot| {
        vec![
            time(spot.from_ns),
            time(spot.to_ns),
            format!("{:.0}", spot.events_per_second),
            format!("{:.1}", spot.times_average),
            spot.name.clone().unwrap_or_default(),
        ]
    });
    table("Hot spots", &columns, rows)
}
