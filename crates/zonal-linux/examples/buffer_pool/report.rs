//! Output: the configuration of the pool, its state during the run, and the results of the checks.

use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table};
use zonal_linux::{Events, PageCount, Pool, VerifyError, ZoneSnapshot};

use crate::cache::Totals;
use crate::readers::Finished;

/// Rows of the timeline.
const ROWS: u32 = 8;

/// The pool's state over time, with one row for each eighth of the run.
pub(crate) struct Timeline {
    start: Instant,
    row_time: Duration,
    rows: Vec<Row>,
    row: Row,
    /// Samples of the free frames in each zone, which show how close the zone came to its watermarks.
    zones: Vec<ZoneLooks>,
}

/// Counts since the start of the run, and the lowest number of free frames since the previous row.
#[derive(Clone, Copy)]
struct Row {
    end: Duration,
    totals: Totals,
    events: Events,
    lowest: u64,
}

#[derive(Clone, Copy)]
struct ZoneLooks {
    looks: u64,
    lowest: u64,
    sum: u64,
    below_min: u64,
}

impl Timeline {
    /// Starts a timeline for a run of this duration.
    pub(crate) fn start(duration: Duration) -> Self {
        let row = Row {
            end: Duration::ZERO,
            totals: Totals::default(),
            events: Events::default(),
            lowest: u64::MAX,
        };
        Self { start: Instant::now(), row_time: duration / ROWS, rows: Vec::new(), row, zones: Vec::new() }
    }

    /// Records the state of the pool and its cache.
    pub(crate) fn look(&mut self, pool: &Pool, totals: &Totals) {
        let mut free = 0;
        for (at, zone) in pool.zones().enumerate() {
            if self.zones.len() == at {
                self.zones.push(ZoneLooks { looks: 0, lowest: u64::MAX, sum: 0, below_min: 0 });
            }
            self.zones[at].add(&zone);
            free += zone.free.get();
        }
        let (end, events) = (self.start.elapsed(), pool.events());
        self.row = Row { end, totals: *totals, events, lowest: self.row.lowest.min(free) };
        if end >= self.row_time * (self.rows.len() as u32 + 1) {
            self.rows.push(self.row);
            self.row.lowest = u64::MAX;
        }
    }

    fn table(&self) -> Table {
        let mut table = table(&[
            "seconds",
            "reads/s",
            "hits %",
            "misses",
            "evicted: background",
            "direct",
            "direct stalls",
            "least free",
        ]);
        let mut before = Timeline::start(Duration::ZERO).row;
        for row in &self.rows {
            let (totals, events) = (row.totals, row.events);
            let (hits, misses) = (totals.hits - before.totals.hits, totals.misses - before.totals.misses);
            let seconds = (row.end - before.end).as_secs_f64();
            add(
                &mut table,
                [
                    format!("{:.2}", row.end.as_secs_f64()),
                    format!("{:.0}", (hits + misses) as f64 / seconds),
                    percent(hits, hits + misses),
                    misses.to_string(),
                    (events.background_reclaimed - before.events.background_reclaimed).to_string(),
                    (events.direct_reclaimed - before.events.direct_reclaimed).to_string(),
                    (events.direct_stalls - before.events.direct_stalls).to_string(),
                    row.lowest.to_string(),
                ],
            );
            before = *row;
        }
        table
    }
}

impl ZoneLooks {
    fn add(&mut self, zone: &ZoneSnapshot) {
        let free = zone.free.get();
        self.looks += 1;
        self.lowest = self.lowest.min(free);
        self.sum += free;
        self.below_min += u64::from(zone.free < zone.watermarks.min);
    }
}

/// Prints the configuration of the run.
pub(crate) fn introduce(pool: &Pool, threads: usize) {
    let nodes = pool.topology().nodes().len();
    let (frames, placement) = (pool.frames(), pool.placement());
    println!("pool of {frames} frames, {nodes} nodes ({placement}); {threads} threads read");
}

/// Prints the results. Returns whether all data read was correct and every frame is accounted for.
pub(crate) fn conclude(pool: &Pool, finished: &Finished, totals: &Totals) -> Result<bool, VerifyError> {
    let events = pool.events();
    println!("\n{}\n", finished.timeline.table());
    println!("{}\n", nodes_table(pool, &finished.timeline));
    print_totals(finished, totals, &events);
    let reclaimed: u64 = pool.nodes().flat_map(|node| node.reclaimed).map(PageCount::get).sum();
    let accounting = pool.verify()?;
    println!("accounting      {accounting}");
    let checks = [
        ("all contents right", finished.wrong == 0),
        ("every read counted once", finished.reads == totals.hits + totals.misses),
        ("evictions as the pool counted them", totals.evicted == reclaimed),
        ("evicted by nobody but reclaim", reclaimed == events.background_reclaimed + events.direct_reclaimed),
        ("no panic in the reclaimer", pool.reclaimer_panics() == 0),
        (
            "the accounting balances, all frames are back",
            accounting.balance() && accounting.allocated == PageCount::ZERO,
        ),
    ];
    for (what, holds) in checks {
        println!("{:<9}{what}", if holds { "ok" } else { "WRONG" });
    }
    Ok(checks.iter().all(|(_, holds)| *holds))
}

fn print_totals(finished: &Finished, totals: &Totals, events: &Events) {
    let evicted = events.background_reclaimed + events.direct_reclaimed;
    println!("reads           {}, {} % hits", finished.reads, percent(totals.hits, finished.reads));
    println!("misses          {}", totals.misses);
    println!(
        "evicted         {} % by background reclaim ({} wakes, {} rounds), {} % by direct reclaim",
        percent(events.background_reclaimed, evicted),
        events.background_wakes,
        events.background_rounds,
        percent(events.direct_reclaimed, evicted)
    );
    println!(
        "direct stalls   {}, {:.1} ms in all, in {} % of misses",
        events.direct_stalls,
        events.direct_ns as f64 / 1e6,
        percent(events.direct_stalls, totals.misses)
    );
    let at = |quantile| finished.requests.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "requests        {:.1} us at the median, {:.1} us at 99 %, {:.1} us at 99.9 %, at most {:.1} us",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
    println!("pinned          {} times a block stayed because it was being read", totals.passed_over_pinned);
    println!("wrong contents  {}", finished.wrong);
}

fn nodes_table(pool: &Pool, timeline: &Timeline) -> Table {
    let mut table = table(&[
        "node",
        "frames",
        "min",
        "low",
        "high",
        "free: least",
        "mean",
        "looks below min %",
        "evicted: background",
        "direct",
    ]);
    for (zone, looks) in pool.zones().zip(&timeline.zones) {
        let of_node = pool.nodes().find(|node| node.id == zone.node);
        let [background, direct, _] = of_node.map_or([PageCount::ZERO; 3], |node| node.reclaimed);
        let marks = zone.watermarks;
        add(
            &mut table,
            [
                zone.node.to_string(),
                zone.managed.to_string(),
                marks.min.to_string(),
                marks.low.to_string(),
                marks.high.to_string(),
                looks.lowest.to_string(),
                (looks.sum / looks.looks).to_string(),
                percent(looks.below_min, looks.looks),
                background.to_string(),
                direct.to_string(),
            ],
        );
    }
    table
}

fn table(headers: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING).set_header(headers);
    table.column_iter_mut().for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

fn add<const N: usize>(table: &mut Table, cells: [String; N]) {
    table.add_row(cells);
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.1}", 100.0 * part as f64 / whole as f64) }
}
