//! A trace as a page with pictures.
//!
//! Related files: `trace/tables.rs` has the tables, `trace/text.rs` the sentences, and `zonal-page` draws.

use std::path::Path;

use zonal_machine::Excerpt;
use zonal_page::color::{BLUE, FILLS, GREEN, PURPLE, VERMILION};
use zonal_page::{
    Bar, Bars, Block, Cell, Chart, Color, Column, Key, Kind, Line, Lines, Page, Panel, Scale, Section,
    Symbol, Table,
};
use zonal_trace::{Header, Info, Interval};

use super::tables::{Subject, TableOf, tables, time};
use super::text::summary;
use crate::layout::Content;

/// Bars of a chart.
const BARS_MAX: usize = 16;

/// Returns the page as text.
pub(super) fn render(header: &Header, info: &Info, file: &Path) -> String {
    let over_time = over_time(info);
    let cpus = cpus(info);
    let lifetimes = lifetimes(info);
    let names = names(info);
    let mut tables: Vec<(Subject, TableOf)> = tables(info);
    let mut of = |subject: Subject| -> Vec<Block<'static>> {
        let (these, others) = tables.drain(..).partition(|(of, _)| *of == subject);
        tables = others;
        let these: Vec<(Subject, TableOf)> = these;
        these.into_iter().map(|(_, table)| Block::Table(shown(table))).collect()
    };
    let mut sections = vec![
        section("Over time", &over_time, of(Subject::Time)),
        section("Events", &[], [of(Subject::Kinds), of(Subject::Orders)].concat()),
        section("Zones", &[], of(Subject::Zones)),
        section("CPUs", &cpus, of(Subject::Cpus)),
        section("Threads", &names, of(Subject::Names)),
        section("Requests", &[], of(Subject::Requests)),
        section("Lifetimes", &lifetimes, of(Subject::Lifetimes)),
        section("Fragmentation", &[], of(Subject::Fragmentation)),
    ];
    sections.retain(|section| !section.blocks.is_empty());
    let mut sentences = summary(header, info).into_iter();
    let mut head = Vec::new();
    if !info.is_complete {
        head.extend(sentences.next().map(Block::Warning));
    }
    head.extend(sentences.next().map(Block::Lead));
    head.extend(sentences.map(Block::About));
    Page { title: format!("Trace {}", Excerpt::name(file.display())), header: head, sections }.html()
}

fn section<'a>(title: &str, charts: &'a [Chart], tables: Vec<Block<'a>>) -> Section<'a> {
    let pictures = (!charts.is_empty()).then_some(Block::Charts(charts));
    Section { title: title.to_owned(), blocks: pictures.into_iter().chain(tables).collect() }
}

fn shown(table: TableOf) -> Table {
    let left_out = match table.left_out {
        0 => String::new(),
        left_out => format!(" ({left_out} more rows are in the document)"),
    };
    let column = |(at, (title, content)): (usize, &(&'static str, Content))| {
        let kind = match content {
            _ if at == 0 => Kind::Head,
            Content::Numbers => Kind::Number,
            Content::Text => Kind::Text,
        };
        Column::new(kind, *title)
    };
    Table {
        caption: format!("{}{left_out}", table.title),
        columns: table.columns.iter().enumerate().map(column).collect(),
        rows: vec![table.rows.into_iter().map(|row| row.into_iter().map(Cell::from).collect()).collect()],
    }
}

/// A line of a chart over time: its name, its colour and its count.
type Series = (&'static str, Color, fn(&Interval) -> u64);

/// Returns the charts of rates over time.
fn over_time(info: &Info) -> Vec<Chart> {
    const REQUESTS: [Series; 2] =
        [("allocated", BLUE, |one| one.allocations), ("freed", VERMILION, |one| one.frees)];
    const MOVED: [Series; 2] =
        [("refilled", GREEN, |one| one.refilled_pages), ("drained", PURPLE, |one| one.drained_pages)];
    let requests = rates(info, "requests", "Requests and frees", "blocks a second", &REQUESTS);
    let moved = rates(info, "pagesets", "Between pagesets and free areas", "frames a second", &MOVED);
    requests.into_iter().chain(moved).collect()
}

fn rates(info: &Info, name: &str, title: &str, y_name: &str, series: &[Series]) -> Option<Chart> {
    let rates = &info.rates;
    let length = rates.interval_ns as f64 / 1e9;
    let line = |(_, color, count): &Series| {
        let point =
            |(place, one): (usize, &Interval)| ((place as f64 + 0.5) * length, count(one) as f64 / length);
        let points = rates.intervals.iter().enumerate().map(point).collect();
        Line { color: *color, points, has_dots: false, marks: Vec::new() }
    };
    let lines: Vec<Line> = series.iter().map(line).collect();
    let points = || lines.iter().flat_map(|line| &line.points);
    if points().all(|(_, y)| *y == 0.0) {
        return None;
    }
    let x = Scale::time([0.0].into_iter().chain(points().map(|(x, _)| *x)))?;
    let y = Scale::lengths(points().map(|(_, y)| *y), "")?;
    let panel = Lines { title: y_name, x_name: "seconds", x: &x, y: &y, lines: &lines }.panel();
    let names: Vec<&str> = series.iter().map(|(name, ..)| *name).collect();
    Some(Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        about: format!("Lines of what was {} over time, in {y_name}.", names.join(" and ")),
        keys: series.iter().map(|(name, color, _)| Key::new(Symbol::Line, *color, *name)).collect(),
        panels: vec![panel],
    })
}

/// Returns a chart of bars with counts.
fn bars(name: &str, title: &str, about: &str, rows: Vec<(String, Vec<u64>)>, keys: &[&str]) -> Option<Chart> {
    let total = |counts: &Vec<u64>| counts.iter().sum::<u64>();
    if rows.iter().all(|(_, counts)| total(counts) == 0) {
        return None;
    }
    let scale = Scale::lengths(rows.iter().map(|(_, counts)| total(counts) as f64), "")?;
    let color = |at: usize| FILLS[at % FILLS.len()];
    let bar = |(name, counts): &(String, Vec<u64>)| Bar {
        name: name.clone(),
        parts: counts
            .iter()
            .enumerate()
            .map(|(at, count)| (*count as f64, color(at), String::new()))
            .collect(),
        spread: None,
        mark: None,
        text: total(counts).to_string(),
    };
    let groups = vec![(String::new(), rows.iter().take(BARS_MAX).map(bar).collect())];
    let panel: Panel = Bars { title: "", scale: &scale, axis: None, groups, text_width: 90.0 }.panel();
    let key = |(at, text): (usize, &&str)| Key::new(Symbol::Fill, color(at), *text);
    Some(Chart {
        name: name.to_owned(),
        title: title.to_owned(),
        about: about.to_owned(),
        keys: keys.iter().enumerate().map(key).collect(),
        panels: vec![panel],
    })
}

fn cpus(info: &Info) -> Vec<Chart> {
    let row = |one: &zonal_trace::CpuCount| {
        (format!("CPU {}", one.cpu), vec![one.moved.refilled_pages, one.moved.drained_pages])
    };
    let about = "Bars of the frames refilled to and drained from the pagesets of each CPU. The table has the numbers.";
    let rows = info.cpus.iter().map(row).collect();
    bars("cpus", "Frames refilled and drained", about, rows, &["refilled", "drained"]).into_iter().collect()
}

fn names(info: &Info) -> Vec<Chart> {
    let row = |one: &zonal_trace::NameCount| (one.name.clone(), vec![one.allocated_pages]);
    let mut rows: Vec<(String, Vec<u64>)> = info.names.iter().map(row).collect();
    rows.sort_by_key(|(_, counts)| std::cmp::Reverse(counts[0]));
    rows.truncate(BARS_MAX);
    let about = "Bars of the frames allocated by threads of each name. The table has the numbers.";
    bars("threads", "Frames allocated", about, rows, &[]).into_iter().collect()
}

fn lifetimes(info: &Info) -> Vec<Chart> {
    let row =
        |class: &zonal_trace::LifetimeClass| (format!("below {}", time(class.below_ns)), vec![class.frees]);
    let classes = &info.lifetimes.classes;
    let rows: Vec<(String, Vec<u64>)> = classes.iter().rev().take(2 * BARS_MAX).rev().map(row).collect();
    let about =
        "Bars of how many blocks were freed after which time, by powers of two. The table has the numbers.";
    bars("lifetimes", "Blocks by lifetime", about, rows, &[]).into_iter().collect()
}
