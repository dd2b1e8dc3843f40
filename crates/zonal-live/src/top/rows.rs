//! The rows of each table, in the order in which they are shown.
//!
//! Rows are in groups: a node with its zones, or a zone with its migrate types. Sorting orders the groups by their first
//! rows, and the rows inside each group.

use std::cmp::Ordering;

use super::reading::{Reading, parts};
use crate::sample::{Counter, Pressure, Sample, ZoneSample};

/// The column by which a table is sorted, and the direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sort {
    pub(super) column: usize,
    pub(super) direction: Direction,
}

/// A direction of sorting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Ascending,
    Descending,
}

impl Direction {
    pub(super) const fn reversed(self) -> Self {
        match self {
            Self::Ascending => Self::Descending,
            Self::Descending => Self::Ascending,
        }
    }
}

impl Sort {
    /// The order of the source: that of nodes, or of names.
    pub(super) const BY_NAME: Self = Self { column: 0, direction: Direction::Ascending };

    /// Sorts by a column, with the largest values first unless they are names.
    pub(super) const fn by(column: usize) -> Self {
        let direction = if column == 0 { Direction::Ascending } else { Direction::Descending };
        Self { column, direction }
    }

    fn apply(self, ordering: Ordering) -> Ordering {
        match self.direction {
            Direction::Ascending => ordering,
            Direction::Descending => ordering.reverse(),
        }
    }

    /// Sorts groups by the values of their first rows, and the other rows of each group.
    fn groups<R>(self, groups: &mut [Vec<R>], value: impl Fn(&R) -> f64) {
        let compare = |a: &R, b: &R| self.apply(value(a).total_cmp(&value(b)));
        for group in groups.iter_mut() {
            group[1..].sort_by(compare);
        }
        groups.sort_by(|a, b| compare(&a[0], &b[0]));
    }
}

/// A node with several zones, one of its zones, or a node with its only zone.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct MemoryRow {
    /// Id of the node; `None` in the rows below that of a node.
    pub(super) node: Option<u64>,
    pub(super) of_node: u64,
    /// Kind of the zone; `None` for all zones of a node.
    pub(super) kind: Option<String>,
    /// Indexes of the zones in the sample.
    pub(super) zones: Vec<usize>,
    pub(super) cpus: Option<String>,
    pub(super) managed: u64,
    pub(super) free: u64,
    pub(super) in_pagesets: u64,
    pub(super) min: u64,
    pub(super) low: u64,
    pub(super) high: u64,
    /// That of the worst zone.
    pub(super) pressure: Pressure,
    /// Free frames in relation to `high`, of the worst zone.
    pub(super) headroom: f64,
    /// Hits, misses and foreign allocations per second.
    pub(super) locality: [Option<f64>; 3],
    pub(super) stalled: Option<f64>,
}

/// Columns of the table with nodes and zones.
pub(super) mod memory {
    pub(in crate::top) const NAME: usize = 0;
    pub(in crate::top) const CPUS: usize = 1;
    pub(in crate::top) const MEMORY: usize = 2;
    pub(in crate::top) const FREE: usize = 3;
    pub(in crate::top) const BAR: usize = 4;
    pub(in crate::top) const STATE: usize = 5;
    pub(in crate::top) const IN_PAGESETS: usize = 6;
    pub(in crate::top) const HIT: usize = 7;
    pub(in crate::top) const MISS: usize = 8;
    pub(in crate::top) const FOREIGN: usize = 9;
    pub(in crate::top) const STALLED: usize = 10;
    pub(in crate::top) const HISTORY: usize = 11;
}

impl MemoryRow {
    fn zone(index: usize, zone: &ZoneSample, locality: [Option<f64>; 3]) -> Self {
        Self {
            node: None,
            of_node: zone.node,
            kind: Some(zone.kind.clone()),
            zones: vec![index],
            cpus: None,
            managed: zone.managed,
            free: zone.free,
            in_pagesets: zone.in_pagesets,
            min: zone.min,
            low: zone.low,
            high: zone.high,
            pressure: zone.pressure(),
            headroom: zone.free as f64 / zone.high.max(1) as f64,
            locality,
            stalled: None,
        }
    }

    /// Returns a node's row from those of its zones.
    fn sum(node: u64, zones: &[Self]) -> Self {
        let sum = |value: fn(&Self) -> u64| zones.iter().map(value).fold(0, u64::saturating_add);
        Self {
            node: Some(node),
            of_node: node,
            kind: None,
            zones: zones.iter().flat_map(|row| row.zones.clone()).collect(),
            cpus: None,
            managed: sum(|row| row.managed),
            free: sum(|row| row.free),
            in_pagesets: sum(|row| row.in_pagesets),
            min: sum(|row| row.min),
            low: sum(|row| row.low),
            high: sum(|row| row.high),
            pressure: zones.iter().map(|row| row.pressure).max().unwrap_or(Pressure::None),
            headroom: zones.iter().map(|row| row.headroom).fold(f64::INFINITY, f64::min),
            locality: [None; 3],
            stalled: None,
        }
    }

    /// Returns the name that a title shows.
    pub(super) fn name(&self) -> String {
        match &self.kind {
            Some(kind) => format!("node {} {kind}", self.of_node),
            None => format!("node {}", self.of_node),
        }
    }

    fn value(&self, column: usize) -> f64 {
        match column {
            memory::CPUS => first_number(self.cpus.as_deref()),
            memory::MEMORY => self.managed as f64,
            memory::FREE => self.free as f64,
            // Scarce free frames are a high value.
            memory::BAR | memory::STATE => -self.headroom,
            memory::IN_PAGESETS => self.in_pagesets as f64,
            memory::HIT | memory::MISS | memory::FOREIGN => {
                self.locality[column - memory::HIT].unwrap_or(-1.0)
            }
            memory::STALLED => self.stalled.unwrap_or(-1.0),
            // Rows are made in the order of nodes and zones.
            _ => self.zones.first().map_or(f64::MAX, |&zone| zone as f64),
        }
    }
}

fn first_number(list: Option<&str>) -> f64 {
    let digits = list.and_then(|list| list.split([',', '-']).next());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(f64::MAX)
}

/// Returns the rows of nodes and zones.
pub(super) fn memory_rows(reading: &Reading, sort: Sort) -> Vec<MemoryRow> {
    let sample = &*reading.sample;
    let rates = reading.rates.as_ref();
    let zone_rates = |zone: usize| parts(rates.and_then(|rates| rates.zones.get(zone).copied().flatten()));
    let group = |(at, node): (usize, &crate::sample::Node)| {
        let zones = sample.zones.iter().enumerate().filter(|(_, zone)| zone.node == node.id);
        let mut zones: Vec<_> =
            zones.map(|(index, zone)| MemoryRow::zone(index, zone, zone_rates(index))).collect();
        let mut first = match zones.len() {
            1 => MemoryRow { node: Some(node.id), ..zones.remove(0) },
            _ => MemoryRow::sum(node.id, &zones),
        };
        let node_rates = parts(rates.and_then(|rates| rates.nodes.get(at).copied().flatten()));
        first.locality = if node_rates[0].is_some() { node_rates } else { first.locality };
        first.cpus.clone_from(&node.cpus);
        first.stalled = node.stalled_percent;
        zones.insert(0, first);
        zones
    };
    let mut groups: Vec<Vec<MemoryRow>> = sample.nodes.iter().enumerate().map(group).collect();
    if sort != Sort::BY_NAME {
        sort.groups(&mut groups, |row| row.value(sort.column));
    }
    groups.concat()
}

/// A counter, with its rate if known.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct CounterRow {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) rate: Option<f64>,
    pub(super) total: u64,
    pub(super) series: Series,
}

/// Where the history of a value is in a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Series {
    /// Hits, misses or foreign allocations.
    Locality(usize),
    /// A counter.
    Total(Counter),
    /// Not kept.
    None,
}

/// Columns of the counter table.
pub(super) mod counter {
    pub(in crate::top) const NAME: usize = 0;
    pub(in crate::top) const RATE: usize = 1;
    pub(in crate::top) const TOTAL: usize = 2;
    pub(in crate::top) const UNIT: usize = 3;
    pub(in crate::top) const HISTORY: usize = 4;
    pub(in crate::top) const HELP: usize = 5;
}

/// The counters of locality: name and meaning.
const LOCALITY: [(&str, &str); 6] = [
    ("hit", "Allocations served by the node that they preferred."),
    ("miss", "Allocations served by a node although they preferred another one."),
    ("foreign", "Allocations that preferred a node and were served by another one."),
    ("interleave_hit", "Interleaved allocations served by the node whose turn it was."),
    ("local", "Allocations served by the node of the CPU."),
    ("other", "Allocations served by another node than that of the CPU."),
];

/// Returns the rows of all counters that the source has.
pub(super) fn counter_rows(reading: &Reading, sort: Sort) -> Vec<CounterRow> {
    let rates = reading.rates.as_ref();
    let locality_rates = parts(rates.and_then(crate::Rates::locality));
    let locality = reading.sample.locality().map(|sum| {
        let totals = [sum.hit, sum.miss, sum.foreign, sum.interleave_hit, sum.local, sum.other];
        let row = |(at, ((name, help), total)): (usize, ((&'static str, &'static str), u64))| CounterRow {
            name,
            unit: "blocks",
            help,
            rate: locality_rates.get(at).copied().flatten(),
            total,
            series: if at < locality_rates.len() { Series::Locality(at) } else { Series::None },
        };
        LOCALITY.into_iter().zip(totals).enumerate().map(row).collect::<Vec<_>>()
    });
    let known = reading.sample.totals.known().map(|(counter, total)| CounterRow {
        name: counter.name(),
        unit: counter.unit(),
        help: counter.help(),
        rate: rates.and_then(|rates| rates.get(counter)),
        total,
        series: Series::Total(counter),
    });
    let mut rows: Vec<CounterRow> = locality.into_iter().flatten().chain(known).collect();
    let value = |row: &CounterRow| match sort.column {
        counter::RATE | counter::HISTORY => row.rate.unwrap_or(-1.0),
        counter::TOTAL => row.total as f64,
        _ => 0.0,
    };
    match sort.column {
        counter::UNIT => rows.sort_by(|a, b| sort.apply(a.unit.cmp(b.unit))),
        counter::NAME | counter::HELP if sort.direction == Direction::Ascending => {}
        counter::NAME | counter::HELP => rows.reverse(),
        _ => rows.sort_by(|a, b| sort.apply(value(a).total_cmp(&value(b)))),
    }
    rows
}

/// The free blocks of a zone, or of a migrate type.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct BlockRow {
    /// Index of the zone.
    pub(super) zone: usize,
    pub(super) node: u64,
    pub(super) kind: String,
    /// Migrate type; `None` for the whole zone.
    pub(super) of_type: Option<String>,
    pub(super) blocks: Vec<u64>,
    pub(super) free: u64,
    /// Share of free memory in blocks from 2 MiB on.
    pub(super) large: Option<f64>,
}

/// Columns of the block table.
pub(super) mod block {
    pub(in crate::top) const NAME: usize = 0;
    pub(in crate::top) const LARGE: usize = 1;
    pub(in crate::top) const FREE: usize = 2;
    /// The first order.
    pub(in crate::top) const ORDERS: usize = 3;
}

/// Whether migrate types have rows of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Types {
    Shown,
    Hidden,
}

/// Returns the order of 2 MiB blocks.
pub(super) fn large_order(sample: &Sample) -> usize {
    ((2 << 20) / sample.page_bytes.clamp(1, 2 << 20)).ilog2() as usize
}

/// Returns the rows of free blocks.
pub(super) fn block_rows(sample: &Sample, types: Types, sort: Sort) -> Vec<BlockRow> {
    let order = large_order(sample);
    let row = |index: usize, zone: &ZoneSample, of_type: Option<String>, blocks: &[u64]| {
        let blocks = blocks.to_vec();
        let frames = |(order, count): (usize, &u64)| count.checked_shl(order as u32).unwrap_or(u64::MAX);
        let free = blocks.iter().enumerate().map(frames).fold(0_u64, u64::saturating_add);
        let part = ZoneSample { free_blocks: blocks.clone(), ..ZoneSample::default() };
        let large = part.free_in_blocks_from(order);
        BlockRow { zone: index, node: zone.node, kind: zone.kind.clone(), of_type, blocks, free, large }
    };
    let group = |(index, zone): (usize, &ZoneSample)| {
        let mut rows = vec![row(index, zone, None, &zone.free_blocks)];
        if types == Types::Shown {
            let by_type = zone.free_by_type.iter();
            rows.extend(by_type.map(|(name, blocks)| row(index, zone, Some(name.clone()), blocks)));
        }
        rows
    };
    let mut groups: Vec<Vec<BlockRow>> = sample.zones.iter().enumerate().map(group).collect();
    let value = |row: &BlockRow| match sort.column {
        block::NAME => row.zone as f64,
        block::LARGE => row.large.unwrap_or(-1.0),
        block::FREE => row.free as f64,
        order => row.blocks.get(order - block::ORDERS).map_or(-1.0, |&count| count as f64),
    };
    sort.groups(&mut groups, value);
    groups.concat()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Node, Source};

    fn reading(zones: &[(u64, &str, u64)]) -> Reading {
        let zone = |&(node, kind, free): &(u64, &str, u64)| ZoneSample {
            node,
            kind: kind.to_owned(),
            free,
            managed: 1000,
            min: 10,
            low: 20,
            high: 100,
            free_blocks: vec![free],
            ..ZoneSample::default()
        };
        let zones: Vec<ZoneSample> = zones.iter().map(zone).collect();
        let mut nodes: Vec<u64> = zones.iter().map(|zone| zone.node).collect();
        nodes.dedup();
        let nodes = nodes.into_iter().map(|id| Node { id, ..Node::default() }).collect();
        let sample = Sample { page_bytes: 4096, nodes, zones, ..Sample::default() };
        Reading { sample: Arc::new(sample), ..Reading::default() }
    }

    fn names(rows: &[MemoryRow]) -> Vec<String> {
        rows.iter().map(MemoryRow::name).collect()
    }

    #[test]
    fn nodes_with_one_zone_have_one_row() {
        let reading = reading(&[(0, "DMA", 5), (0, "Normal", 900), (1, "Normal", 50)]);
        let rows = memory_rows(&reading, Sort::BY_NAME);
        assert_eq!(names(&rows), ["node 0", "node 0 DMA", "node 0 Normal", "node 1 Normal"]);
        assert_eq!((rows[0].free, rows[0].managed, rows[0].pressure), (905, 2000, Pressure::BelowMin));
        assert_eq!(rows[3].pressure, Pressure::BelowHigh);
    }

    #[test]
    fn zones_stay_with_their_nodes_when_sorted() {
        let reading = reading(&[(0, "DMA", 80), (0, "Normal", 900), (1, "Normal", 50), (2, "Normal", 70)]);
        let sorted = |column| names(&memory_rows(&reading, Sort::by(column)));
        let by_free = ["node 0", "node 0 Normal", "node 0 DMA", "node 2 Normal", "node 1 Normal"];
        assert_eq!(sorted(memory::FREE), by_free);
        let scarce_first = ["node 1 Normal", "node 2 Normal", "node 0", "node 0 DMA", "node 0 Normal"];
        assert_eq!(sorted(memory::STATE), scarce_first);
        let reversed = Sort { column: memory::NAME, direction: Direction::Descending };
        assert_eq!(names(&memory_rows(&reading, reversed))[0], "node 2 Normal");
    }

    #[test]
    fn nodes_without_memory_have_a_row() {
        let mut reading = reading(&[(0, "Normal", 80)]);
        Arc::get_mut(&mut reading.sample).unwrap().nodes.push(Node { id: 7, ..Node::default() });
        let rows = memory_rows(&reading, Sort::by(memory::FREE));
        assert_eq!(names(&rows), ["node 0 Normal", "node 7"]);
        assert_eq!((rows[1].managed, rows[1].pressure), (0, Pressure::None));
    }

    #[test]
    fn numbers_of_other_programs_may_have_any_value() {
        let mut reading = reading(&[(0, "DMA", u64::MAX), (0, "Normal", u64::MAX), (1, "Normal", 0)]);
        for zone in &mut Arc::get_mut(&mut reading.sample).unwrap().zones {
            (zone.managed, zone.high) = (u64::MAX, u64::MAX);
            zone.free_blocks = vec![u64::MAX; 70];
        }
        assert_eq!(memory_rows(&reading, Sort::BY_NAME)[0].free, u64::MAX);
        assert_eq!(block_rows(&reading.sample, Types::Shown, Sort::BY_NAME)[0].free, u64::MAX);
    }

    #[test]
    fn counters_sort_by_their_rates() {
        let mut source = crate::SimulatedSource::new(2, 2);
        let (old, new) = (source.read().unwrap(), source.read().unwrap());
        let rates = crate::Rates::between(&old, &new);
        let reading = Reading { sample: Arc::new(new), rates, ..Reading::default() };
        let names = |sort| counter_rows(&reading, sort).iter().map(|row| row.name).collect::<Vec<_>>();
        assert_eq!(names(Sort::BY_NAME)[..3], ["hit", "miss", "foreign"]);
        assert_eq!(names(Sort::by(counter::RATE))[..2], ["hit", "refills"]);
        assert_eq!(counter_rows(&reading, Sort::BY_NAME)[0].unit, "blocks");
        let mut reversed = names(Sort { column: counter::NAME, direction: Direction::Descending });
        reversed.reverse();
        assert_eq!(reversed, names(Sort::BY_NAME));
    }

    #[test]
    fn types_follow_their_zone() {
        let mut reading = reading(&[(0, "DMA", 8), (1, "Normal", 4)]);
        let zone = &mut Arc::get_mut(&mut reading.sample).unwrap().zones[1];
        zone.free_blocks = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        zone.free_by_type = vec![("Unmovable".into(), vec![1]), ("Movable".into(), vec![0, 5])];
        let rows = block_rows(&reading.sample, Types::Shown, Sort::by(block::LARGE));
        let named: Vec<_> = rows.iter().map(|row| (row.node, row.of_type.as_deref())).collect();
        assert_eq!(named[0], (1, None));
        assert!(named[1..3].contains(&(1, Some("Movable"))) && named[3] == (0, None), "{named:?}");
        assert_eq!(rows[0].large, Some(512.0 / 513.0));
        assert_eq!(block_rows(&reading.sample, Types::Hidden, Sort::BY_NAME).len(), 2);
    }
}
