//! The nodes of a machine on its page: their topology, distances, fallback orders and balance.

use std::collections::BTreeMap;

use zonal_machine::{MachineModel, NodeReport, Report, ordinal};
use zonal_page::color::FILLS;
use zonal_page::{
    Block, Cell, Chart, Color, Column, HeatAxis, HeatMap, Key, Kind, Merge, Symbol, Table, Topology,
    TopologyNode, TopologyZone,
};

use super::super::words::{in_order, ranges, size};

/// Maximum row count of a table that is not folded.
const ROWS_MAX: usize = 32;
/// Maximum number of places in fallback orders whose balance is shown. The first places matter most.
const PLACES_MAX: usize = 32;

/// Kinds of zones and their colours.
const KINDS: [(&str, Color); 4] =
    [("DMA", FILLS[3]), ("DMA32", FILLS[1]), ("Normal", FILLS[0]), ("Movable", FILLS[2])];
const OTHER_KIND: Color = FILLS[4];

/// Returns the picture of the nodes.
pub(super) fn topology(model: &MachineModel, report: &Report) -> Chart {
    let zone = |zone: &zonal_machine::ZoneReport| TopologyZone {
        name: zone.kind.to_owned(),
        managed_bytes: zone.managed.saturating_mul(u64::from(report.page_bytes)),
        size: size(zone.managed, report.page_bytes),
        color: KINDS.iter().find(|(kind, _)| *kind == zone.kind).map_or(OTHER_KIND, |(_, color)| *color),
    };
    let node = |node: &NodeReport| TopologyNode {
        id: u32::from(node.id),
        cpus: if node.cpus.is_empty() { String::new() } else { ranges(&node.cpus) },
        size: size(node.managed, report.page_bytes),
        zones: report.zones.iter().filter(|zone| zone.node == node.id).map(zone).collect(),
    };
    let nodes = report.nodes.iter().map(node).collect();
    let known = KINDS.iter().filter(|(kind, _)| report.zones.iter().any(|zone| zone.kind == *kind));
    let mut keys: Vec<Key> = known.map(|(kind, color)| Key::new(Symbol::Fill, *color, *kind)).collect();
    if report.nodes.iter().any(|node| node.cpus.is_empty()) {
        keys.push(Key::new(Symbol::None, OTHER_KIND, "dashed: a node without CPUs"));
    }
    let about = "The nodes as boxes with their CPUs and zones. Nodes that are close to each other share a frame. The \
                 table of nodes has the same values.";
    let title = match report.nodes.len() {
        0 | 1 => "CPUs and zones",
        _ => "CPUs and zones, with nodes grouped by distance",
    };
    Chart {
        name: "topology".to_owned(),
        title: title.to_owned(),
        about: about.to_owned(),
        keys,
        panels: vec![Topology { nodes, distances: distance_rows(model) }.panel()],
    }
}

/// Returns the distances between all online nodes.
fn distance_rows(model: &MachineModel) -> Vec<Vec<u32>> {
    let online: Vec<usize> = model.online_nodes().filter_map(|node| model.place(node.id)).collect();
    let row = |&from: &usize| online.iter().map(|&to| u32::from(model.distance_between(from, to))).collect();
    online.iter().map(row).collect()
}

/// Returns the table of nodes, which is folded if it is long.
pub(super) fn table(report: &Report) -> Block<'static> {
    let columns = [
        (Kind::Head, "node"),
        (Kind::Text, "CPUs"),
        (Kind::Number, "memory"),
        (Kind::Text, "fallback order"),
    ];
    let row = |node: &NodeReport| {
        let order = in_order(node.fallback_order.iter().map(|&id| u64::from(id)));
        let texts = [node.id.to_string(), ranges(&node.cpus), size(node.managed, report.page_bytes), order];
        texts.map(Cell::from).into()
    };
    folded(
        "Table of nodes",
        Table {
            caption: "Nodes".to_owned(),
            columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
            rows: vec![report.nodes.iter().map(row).collect()],
        },
    )
}

/// Returns a table, folded if it is long.
pub(super) fn folded(summary: &str, table: Table) -> Block<'static> {
    let rows: usize = table.rows.iter().map(Vec::len).sum();
    if rows <= ROWS_MAX {
        return Block::Table(table);
    }
    let summary = format!("{summary} ({rows} rows)");
    Block::Folded { summary, is_open: false, blocks: vec![Block::Table(table)] }
}

fn axis(name: &str, data: &'static str, labels: impl Iterator<Item = String>) -> HeatAxis {
    HeatAxis { name: name.to_owned(), data, labels: labels.collect() }
}

/// Adds the sentence that says what a cell of a picture with merged cells represents.
fn explained(mut map: HeatMap) -> HeatMap {
    let each = match map.merge {
        Merge::Mean => "the mean of",
        Merge::Largest => "the largest value of",
    };
    let sentence = match map.merged() {
        (1, 1) => String::new(),
        (rows, 1) => format!(" Each cell is {each} {rows} rows."),
        (rows, columns) => format!(" Each cell is {each} {rows} rows and {columns} columns."),
    };
    map.note += &sentence;
    map
}

/// Returns the title and the blocks of the section about nodes and their distances.
pub(super) fn blocks<'a>(
    model: &MachineModel,
    report: &Report,
    topology: &'a [Chart],
) -> (&'static str, Vec<Block<'a>>) {
    let charts = Block::Charts(topology);
    if report.nodes.len() < 2 {
        return ("Node", vec![Block::Beside(vec![charts, table(report)])]);
    }
    let rows = distance_rows(model);
    let map = distances(model, &rows);
    let counts = (!map.has_numbers()).then(|| folded("Table of distances", pairs(&rows)));
    let mut beside = vec![charts, Block::Heat(vec![map])];
    beside.extend(counts);
    beside.push(table(report));
    ("Nodes and distances", vec![Block::Beside(beside)])
}

/// Returns the blocks of the section about fallback orders.
pub(super) fn fallbacks(report: &Report) -> Vec<Block<'static>> {
    vec![Block::Heat(vec![orders(report), balance(report)])]
}

fn distances(model: &MachineModel, rows: &[Vec<u32>]) -> HeatMap {
    let ids = || model.online_nodes().map(|node| node.id.to_string());
    let row = |row: &Vec<u32>| row.iter().map(|&distance| Some(f64::from(distance))).collect();
    explained(HeatMap {
        name: "distances".to_owned(),
        title: "Distances".to_owned(),
        note: "10 is the distance of a node to itself; 20 means twice the latency.".to_owned(),
        about: "Distances by node and node.".to_owned(),
        rows: axis("from node", "from", ids()),
        columns: axis("to node", "to", ids()),
        values: rows.iter().map(row).collect(),
        merge: Merge::Mean,
        range: None,
    })
}

/// Returns the table of distances between different nodes and how often each occurs.
fn pairs(rows: &[Vec<u32>]) -> Table {
    let mut pairs: BTreeMap<u32, u64> = BTreeMap::new();
    for (from, row) in rows.iter().enumerate() {
        for (_, distance) in row.iter().enumerate().filter(|(to, _)| *to != from) {
            *pairs.entry(*distance).or_default() += 1;
        }
    }
    let row = |(distance, count): (&u32, &u64)| vec![distance.to_string().into(), count.to_string().into()];
    Table {
        caption: "Distances between different nodes".to_owned(),
        columns: vec![Column::new(Kind::Head, "distance"), Column::new(Kind::Number, "ordered pairs")],
        rows: vec![pairs.iter().map(row).collect()],
    }
}

fn orders(report: &Report) -> HeatMap {
    let mut fallbacks: Vec<u16> = report.nodes.iter().flat_map(|node| node.fallback_order.clone()).collect();
    fallbacks.sort_unstable();
    fallbacks.dedup();
    let ranks = |node: &NodeReport| {
        let mut row = vec![None; fallbacks.len()];
        for (nth, id) in node.fallback_order.iter().enumerate() {
            if let Ok(column) = fallbacks.binary_search(id) {
                row[column] = Some((nth + 1) as f64);
            }
        }
        row
    };
    explained(HeatMap {
        name: "orders".to_owned(),
        title: "Fallback orders".to_owned(),
        note: "Each row is a fallback order: a request tries the node with 1 first, then the one with 2, and so on."
            .to_owned(),
        about:
            "Places by the node of a request and the node that serves it. The table of nodes has the orders."
                .to_owned(),
        rows: axis("requests of node", "requests-of", report.nodes.iter().map(|node| node.id.to_string())),
        columns: axis("try node", "node", fallbacks.iter().map(u16::to_string)),
        values: report.nodes.iter().map(ranks).collect(),
        merge: Merge::Mean,
        range: None,
    })
}

fn balance(report: &Report) -> HeatMap {
    let places = report.balance.first().map_or(0, |node| node.times_nth.len());
    let shown = places.min(PLACES_MAX);
    let times = |node: &zonal_machine::Balance| {
        node.times_nth.iter().take(shown).map(|&times| Some(f64::from(times))).collect()
    };
    let mut note =
        "How many other nodes have a node as their 1st, 2nd ... fallback. An early fallback of many nodes \
                    fills first when memory is short."
            .to_owned();
    if places > shown {
        note += &format!(" The first {shown} of {places} places are shown.");
    }
    explained(HeatMap {
        name: "balance".to_owned(),
        title: "Balance".to_owned(),
        note,
        about: "Numbers of other nodes by node and place in their fallback orders.".to_owned(),
        rows: axis("node", "node", report.balance.iter().map(|node| node.node.to_string())),
        columns: axis("place", "place", (1..=shown).map(ordinal)),
        values: report.balance.iter().map(times).collect(),
        merge: Merge::Largest,
        range: None,
    })
}
