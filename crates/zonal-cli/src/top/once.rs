//! Prints one reading as text.

use zonal_live::top::{Reading, units, words};
use zonal_live::{Counter, Locality, Sample, ZoneSample};
use zonal_machine::Excerpt;

use crate::layout::{Content::Numbers, Content::Text, Grid, Width};

/// Size of the blocks whose share of free memory is printed.
const LARGE_BYTES: u64 = 2 << 20;
/// Maximum number of orders, whatever another program reports.
const ORDERS_MAX: usize = 64;

/// Formats a reading: zones, nodes, free blocks, processes that share the pool, and counters.
pub(super) fn text(reading: &Reading, width: Width) -> String {
    let sample = &*reading.sample;
    let name = match &sample.program {
        Some(program) => format!("{}, {}", Excerpt::name(program), reading.title),
        None => reading.title.clone(),
    };
    let over = match &reading.rates {
        Some(rates) => format!("rates over {:.1} s", rates.seconds),
        None => "no rates: the source started anew, or its nodes, zones or CPUs changed".to_owned(),
    };
    let mut parts =
        vec![width.labelled("", &format!("{name}; {over}")), titled("Zones", &zones(reading), width)];
    parts.push(titled("Nodes", &nodes(reading), width));
    parts.push(titled("Free blocks", &blocks(sample), width));
    if !sample.owners.is_empty() {
        parts.push(titled("Processes", &owners(sample), width));
    }
    parts.push(titled("Counters", &counters(reading), width));
    let missing: String = sample.missing.iter().map(|why| width.labelled("note: ", why)).collect();
    if !missing.is_empty() {
        parts.push(missing);
    }
    parts.join("\n")
}

fn titled(title: &str, grid: &Grid, width: Width) -> String {
    format!("{title}\n{}", grid.render("  ", width))
}

fn kind(zone: &ZoneSample) -> String {
    Excerpt::name(&zone.kind).to_string()
}

fn zones(reading: &Reading) -> Grid {
    let sample = &reading.sample;
    let size = |frames| units::bytes(frames, sample.page_bytes);
    let titles = [
        ("node", Numbers),
        ("zone", Text),
        ("memory", Numbers),
        ("free", Numbers),
        ("min", Numbers),
        ("low", Numbers),
        ("high", Numbers),
        ("state", Text),
        ("pagesets", Numbers),
    ];
    let mut grid = Grid::new(2, titles);
    for zone in &sample.zones {
        let sizes = [zone.managed, zone.free, zone.min, zone.low, zone.high].map(size);
        let first = [zone.node.to_string(), kind(zone)].into_iter().chain(sizes);
        grid.row(first.chain([words(zone.pressure()).to_owned(), size(zone.in_pagesets)]));
    }
    grid
}

fn nodes(reading: &Reading) -> Grid {
    let sample = &reading.sample;
    let titles = ["node", "hits/s", "misses/s", "foreign/s", "hits", "misses", "foreign", "local", "other"];
    let mut grid = Grid::new(1, titles.map(|title| (title, Numbers)));
    for (at, node) in sample.nodes.iter().enumerate() {
        let rates = reading.rates.as_ref().and_then(|rates| rates.nodes.get(at).copied().flatten());
        let rates = rates.map_or([None; 3], |rates| [rates.hit, rates.miss, rates.foreign].map(Some));
        let totals = sample.locality_of(node).map(|Locality { hit, miss, foreign, local, other, .. }| {
            [hit, miss, foreign, local, other].map(|total| Some(total as f64))
        });
        let cells = rates.into_iter().chain(totals.unwrap_or([None; 5])).map(units::known);
        grid.row([node.id.to_string()].into_iter().chain(cells));
    }
    grid
}

fn blocks(sample: &Sample) -> Grid {
    let order = (LARGE_BYTES / sample.page_bytes.clamp(1, LARGE_BYTES)).ilog2() as usize;
    let orders = sample.zones.iter().map(|zone| zone.free_blocks.len()).max().unwrap_or(0).min(ORDERS_MAX);
    let titles = [("node".to_owned(), Numbers), ("zone".to_owned(), Text), (">= 2 MiB".to_owned(), Numbers)];
    let sizes = (0..orders).map(|order| (units::bytes(1 << order.min(40), sample.page_bytes), Numbers));
    let mut grid = Grid::new(2, titles.into_iter().chain(sizes));
    for zone in &sample.zones {
        let large = zone.free_in_blocks_from(order).map_or_else(|| "-".to_owned(), units::percent);
        let counts = (0..orders)
            .map(|order| zone.free_blocks.get(order).map_or_else(|| "-".to_owned(), u64::to_string));
        grid.row([zone.node.to_string(), kind(zone), large].into_iter().chain(counts));
    }
    grid
}

fn owners(sample: &Sample) -> Grid {
    let titles =
        [("process", Numbers), ("pid", Numbers), ("state", Text), ("holds", Numbers), ("name", Text)];
    let mut grid = Grid::new(2, titles);
    for owner in &sample.owners {
        let state = if owner.is_alive { "lives" } else { "ended" };
        let name =
            owner.name.as_deref().map_or_else(|| "-".to_owned(), |name| Excerpt::name(name).to_string());
        let held = units::bytes(owner.held, sample.page_bytes);
        grid.row([owner.process.to_string(), owner.pid.to_string(), state.to_owned(), held, name]);
    }
    grid
}

fn counters(reading: &Reading) -> Grid {
    let titles = [("counter", Text), ("per second", Numbers), ("total", Numbers), ("unit", Text)];
    let mut grid = Grid::new(1, titles);
    for (counter, total) in reading.sample.totals.known() {
        let rate = reading.rates.as_ref().and_then(|rates| rates.get(counter));
        grid.row([
            counter.name().to_owned(),
            units::known(rate),
            total.to_string(),
            Counter::unit(counter).to_owned(),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_rates_have_their_reasons() {
        let text = text(&Reading::default(), Width::of_output());
        let words: Vec<&str> = text.split_whitespace().collect();
        let text = words.join(" ");
        assert!(text.contains("the source started anew, or its nodes, zones or CPUs changed"), "{text}");
    }
}
