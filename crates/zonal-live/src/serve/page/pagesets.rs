//! Pagesets: how full each is, as a heat map of zones and CPUs.

use zonal_page::{Block, HeatAxis, HeatMap, Merge};

use super::words::{count, counted, memory, rate, shown_zones, total};
use crate::sample::Sample;
use crate::serve::tick::Tick;

/// Returns the contents of the section.
pub(super) fn blocks(tick: &Tick) -> Vec<Block<'static>> {
    let sample = &*tick.sample;
    if sample.pagesets.is_empty() {
        return vec![Block::Text("The source does not report pagesets.".to_owned())];
    }
    let mut map = map(sample);
    let (rows, columns) = map.merged();
    if rows * columns > 1 {
        let (rows, columns) = (counted(rows, "neighbouring zone"), counted(columns, "neighbouring CPU"));
        map.note = format!("One cell is the mean of {rows} and {columns}.");
    }
    vec![Block::Lead(lead(tick)), Block::Heat(vec![map])]
}

fn lead(tick: &Tick) -> String {
    let sample = &*tick.sample;
    let frames = total(sample.pagesets.iter().map(|pageset| pageset.count));
    let text = format!("{} pagesets have {}", count(sample.pagesets.len() as u64), memory(sample, frames));
    let rates = tick.rates.as_ref().map(|rates| rates.pagesets.iter().flatten());
    match rates.filter(|rates| rates.clone().next().is_some()) {
        None => text + ".",
        Some(rates) => {
            let (refills, drains) =
                rates.fold((0.0, 0.0), |(refills, drains), one| (refills + one.refills, drains + one.drains));
            format!("{text}; {} refills and {} drains per second.", rate(Some(refills)), rate(Some(drains)))
        }
    }
}

fn map(sample: &Sample) -> HeatMap {
    let zones = shown_zones(sample);
    let mut cpus: Vec<u64> = sample.pagesets.iter().map(|pageset| pageset.cpu).collect();
    cpus.sort_unstable();
    cpus.dedup();
    let mut values = vec![vec![None; cpus.len()]; zones.len()];
    for pageset in &sample.pagesets {
        let (Ok(row), Ok(column)) = (zones.binary_search(&pageset.zone), cpus.binary_search(&pageset.cpu))
        else {
            continue;
        };
        let percent = 100.0 * pageset.count as f64 / pageset.high.max(1) as f64;
        values[row][column] = Some(percent.round());
    }
    let axis = |name: &str, data, labels| HeatAxis { name: name.to_owned(), data, labels };
    HeatMap {
        name: "pagesets-map".to_owned(),
        title: "Frames in each pageset, in percent of the number above which it drains".to_owned(),
        about: "How full the pageset of each zone and CPU is. The snapshot has all numbers.".to_owned(),
        rows: axis("zone", "zone", zones.iter().map(|&at| sample.zones[at].name()).collect()),
        columns: axis("CPU", "cpu", cpus.iter().map(u64::to_string).collect()),
        values,
        note: String::new(),
        merge: Merge::Mean,
        range: Some((0.0, 100.0)),
    }
}
