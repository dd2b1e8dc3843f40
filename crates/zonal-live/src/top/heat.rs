//! The heat map of pagesets: a grid of zones and CPUs, or of CPU groups where the screen is narrower.

use super::app::Drawn;
use super::reading::Reading;
use crate::sample::{PagesetRates, PagesetSample};

/// What the cells show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Metric {
    /// Frames in relation to `high`.
    Fill,
    /// Refills per second, in relation to the largest.
    Refills,
    /// Drains per second, in relation to the largest.
    Drains,
}

impl Metric {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Fill => Self::Refills,
            Self::Refills => Self::Drains,
            Self::Drains => Self::Fill,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Fill => "frames / high",
            Self::Refills => "refills/s",
            Self::Drains => "drains/s",
        }
    }
}

/// The state of the heat map.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heat {
    pub(super) metric: Metric,
    /// Whether CPUs share cells so that all are visible, instead of scrolling.
    pub(super) is_grouped: bool,
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) first_row: usize,
    pub(super) first_column: usize,
}

impl Default for Heat {
    fn default() -> Self {
        Self { metric: Metric::Fill, is_grouped: true, row: 0, column: 0, first_row: 0, first_column: 0 }
    }
}

impl Heat {
    /// Takes what was drawn: the position, and the limits of the cursor.
    pub(super) fn drew(&mut self, drawn: &Drawn) {
        self.first_row = drawn.offset;
        self.first_column = drawn.first_column;
        self.row = self.row.min(drawn.rows.saturating_sub(1));
        self.column = self.column.min(drawn.columns.saturating_sub(1));
    }
}

/// Sums over the pagesets of one cell.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Cell {
    pub(super) pagesets: u64,
    pub(super) count: u64,
    pub(super) high: u64,
    pub(super) batch: u64,
    /// Refills and drains so far.
    pub(super) totals: Option<(u64, u64)>,
    /// Refills and drains per second.
    pub(super) rates: Option<PagesetRates>,
}

impl Cell {
    fn add(&mut self, pageset: &PagesetSample, rates: Option<PagesetRates>) {
        self.pagesets += 1;
        // Numbers of other programs may have any value.
        self.count = self.count.saturating_add(pageset.count);
        self.high = self.high.saturating_add(pageset.high);
        self.batch = self.batch.max(pageset.batch);
        if let (Some(refills), Some(drains)) = (pageset.refills, pageset.drains) {
            let sum = self.totals.get_or_insert_default();
            *sum = (sum.0.saturating_add(refills), sum.1.saturating_add(drains));
        }
        if let Some(rates) = rates {
            let sum = self.rates.get_or_insert_default();
            sum.refills += rates.refills;
            sum.drains += rates.drains;
        }
    }

    /// Returns the value of a metric, or `None` if it is unknown. The fill is a share, and the others are rates.
    pub(super) fn value(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Fill => match (self.pagesets, self.high) {
                (0, _) => None,
                (_, 0) => Some(if self.count > 0 { 1.0 } else { 0.0 }),
                _ => Some(self.count as f64 / self.high as f64),
            },
            Metric::Refills => self.rates.map(|rates| rates.refills),
            Metric::Drains => self.rates.map(|rates| rates.drains),
        }
    }
}

/// The cells that have pagesets, and which CPUs they stand for.
///
/// There are at most as many cells as pagesets: zones and CPUs of a large machine, or of a file that only claims to be of
/// one, may have far more combinations than memory has space for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Grid {
    /// All CPUs, in order.
    pub(super) cpus: Vec<u64>,
    /// How many CPUs share a column.
    pub(super) group: usize,
    pub(super) columns: usize,
    /// Cells by zone and column, in order.
    cells: Vec<((usize, usize), Cell)>,
}

impl Grid {
    /// Sums up the pagesets of a reading for at most `columns_max` columns, or with a column for each CPU.
    pub(super) fn new(reading: &Reading, columns_max: Option<usize>) -> Self {
        let sample = &*reading.sample;
        let mut cpus: Vec<u64> = sample.pagesets.iter().map(|pageset| pageset.cpu).collect();
        cpus.sort_unstable();
        cpus.dedup();
        let group = columns_max.map_or(1, |max| cpus.len().div_ceil(max.max(1))).max(1);
        let columns = cpus.len().div_ceil(group);
        let place = |(at, pageset): (usize, &PagesetSample)| {
            let column = cpus.binary_search(&pageset.cpu).ok()? / group;
            Some(((pageset.zone, column), at))
        };
        let mut places: Vec<_> = sample.pagesets.iter().enumerate().filter_map(place).collect();
        places.sort_unstable();
        let rates = reading.rates.as_ref().map(|rates| &rates.pagesets);
        let cell = |places: &[((usize, usize), usize)]| {
            let mut cell = Cell::default();
            for &(_, at) in places {
                let rates = rates.and_then(|rates| rates.get(at).copied().flatten());
                cell.add(&sample.pagesets[at], rates);
            }
            (places[0].0, cell)
        };
        let cells = places.chunk_by(|(a, _), (b, _)| a == b).map(cell).collect();
        Self { cpus, group, columns, cells }
    }

    /// Returns a cell, which has no pagesets if there are none for its zone and CPUs.
    pub(super) fn cell(&self, zone: usize, column: usize) -> Cell {
        let found = self.cells.binary_search_by_key(&(zone, column), |&(place, _)| place);
        found.map_or_else(|_| Cell::default(), |at| self.cells[at].1)
    }

    /// Returns the CPUs of a column.
    pub(super) fn cpus_of(&self, column: usize) -> &[u64] {
        let first = (column * self.group).min(self.cpus.len());
        &self.cpus[first..(first + self.group).min(self.cpus.len())]
    }

    /// Returns the largest value of a metric.
    pub(super) fn largest(&self, metric: Metric) -> f64 {
        self.cells.iter().filter_map(|(_, cell)| cell.value(metric)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sample::{Sample, ZoneSample};
    use crate::{SimulatedSource, Watch};

    #[test]
    fn groups_of_cpus_sum_up_their_pagesets() {
        let mut watch = Watch::start(Box::new(SimulatedSource::new(4, 8))).unwrap();
        watch.tick();
        let reading = Reading::of(&watch);
        let each = Grid::new(&reading, None);
        let grouped = Grid::new(&reading, Some(10));
        assert_eq!((each.columns, each.group, grouped.columns, grouped.group), (32, 1, 8, 4));
        assert_eq!(grouped.cpus_of(7), [28, 29, 30, 31]);
        for zone in 0..4 {
            let parts: Vec<_> = (4..8).map(|cpu| each.cell(zone, cpu)).collect();
            let sum = grouped.cell(zone, 1);
            assert_eq!(sum.count, parts.iter().map(|cell| cell.count).sum::<u64>());
            let refills: f64 = parts.iter().filter_map(|cell| cell.value(Metric::Refills)).sum();
            assert_eq!(sum.value(Metric::Refills), Some(refills));
        }
        assert_eq!([each.cell(0, 32), each.cell(4, 0)], [Cell::default(); 2]);
        assert!(grouped.largest(Metric::Refills) >= each.largest(Metric::Refills));
    }

    /// With a cell for each combination of zone and CPU, the grid would need terabytes.
    #[test]
    fn zones_and_cpus_without_a_pageset_have_no_cell() {
        const PARTS: usize = 200_000;
        let pageset = |at| PagesetSample { zone: at, cpu: at as u64, count: 3, ..PagesetSample::default() };
        let sample = Sample {
            zones: vec![ZoneSample::default(); PARTS],
            // A file's order is not always that of its CPUs.
            pagesets: (0..PARTS).rev().map(pageset).collect(),
            ..Sample::default()
        };
        let grid = Grid::new(&Reading { sample: Arc::new(sample), ..Reading::default() }, None);
        assert_eq!((grid.columns, grid.cells.len()), (PARTS, PARTS));
        assert_eq!((grid.cell(7, 7).count, grid.cell(7, 8).pagesets), (3, 0));
    }

    #[test]
    fn a_pageset_without_a_limit_is_full_or_empty() {
        let cell = |count| Cell { pagesets: 1, count, ..Cell::default() };
        assert_eq!([cell(0), cell(3)].map(|cell| cell.value(Metric::Fill)), [Some(0.0), Some(1.0)]);
        assert_eq!(Cell::default().value(Metric::Fill), None, "no pageset is not an empty one");
    }
}
