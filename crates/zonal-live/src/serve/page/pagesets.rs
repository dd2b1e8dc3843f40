//! Pagesets: how full each is, as a heat map of zones and CPUs.

use zonal_page::{Block, HeatAxis, HeatMap, Merge};

use super::words::{count, memory, rate, shown_zones, total};
use crate::sample::Sample;
use crate::serve::tick::Tick;

/// Maximum number of columns in the map. With more CPUs, neighbours share a column.
const COLUMNS_MAX: usize = 64;

/// Returns the contents of the section.
pub(super) fn blocks(tick: &Tick) -> Vec<Block<'static>> {
    let sample = &*tick.sample;
    if sample.pagesets.is_empty() {
        return vec![Block::Text("The source does not report pagesets.".to_owned())];
    }
    vec![Block::Lead(lead(tick)), Block::Heat(vec![map(sample)])]
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
    let group = cpus.len().div_ceil(COLUMNS_MAX).max(1);
    let mut means = vec![vec![Mean::default(); cpus.len().div_ceil(group)]; zones.len()];
    for pageset in &sample.pagesets {
        let (Ok(row), Ok(cpu)) = (zones.binary_search(&pageset.zone), cpus.binary_search(&pageset.cpu))
        else {
            continue;
        };
        means[row][cpu / group].add((100.0 * pageset.count as f64 / pageset.high.max(1) as f64).round());
    }
    let axis = |name: &str, data, labels| HeatAxis { name: name.to_owned(), data, labels };
    HeatMap {
        name: "pagesets-map".to_owned(),
        title: "Frames in each pageset, in percent of the number above which it drains".to_owned(),
        about: "How full the pageset of each zone and CPU is. The snapshot has all numbers.".to_owned(),
        rows: axis("zone", "zone", zones.iter().map(|&at| sample.zones[at].name()).collect()),
        columns: axis("CPU", "cpu", cpus.chunks(group).map(label).collect()),
        values: means.iter().map(|row| row.iter().map(Mean::value).collect()).collect(),
        note: match group {
            1 => String::new(),
            group => format!("One cell is the mean of {group} neighbouring CPUs."),
        },
        merge: Merge::Mean,
        range: Some((0.0, 100.0)),
    }
}

/// Returns the label of a column's CPUs.
fn label(cpus: &[u64]) -> String {
    match cpus {
        [first, .., last] => format!("{first}-{last}"),
        cpus => cpus.iter().map(u64::to_string).collect(),
    }
}

/// The mean of a cell's values.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    /// Returns the mean as a whole number, or `None` without values. Rounding bounds the number of distinct values.
    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| (self.sum / self.count as f64).round())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{PagesetSample, ZoneSample};

    fn sample(cpus: u64) -> Sample {
        let pageset = |cpu| PagesetSample { cpu, count: cpu % 10, high: 10, ..PagesetSample::default() };
        Sample {
            zones: vec![ZoneSample::default()],
            pagesets: (0..cpus).map(pageset).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn the_number_of_columns_is_bounded() {
        for (cpus, columns, last) in
            [(1, 1, "0"), (64, 64, "63"), (65, 33, "64"), (200_000, 64, "196875-199999")]
        {
            let map = map(&sample(cpus));
            assert_eq!((map.values[0].len(), map.columns.labels.len()), (columns, columns), "{cpus}");
            assert_eq!(map.columns.labels.last().map(String::as_str), Some(last));
            assert_eq!(map.note.is_empty(), cpus <= 64);
            assert_eq!(map.merged(), (1, 1));
        }
        let few = map(&sample(12)).values;
        assert_eq!(few[0][9..], [Some(90.0), Some(0.0), Some(10.0)]);
        assert_eq!(
            map(&sample(128)).values[0][..3],
            [Some(5.0), Some(25.0), Some(45.0)],
            "means of two CPUs"
        );
    }
}
