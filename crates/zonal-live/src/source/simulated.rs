//! A source of any size that invents its samples, to test and measure what renders them.
//!
//! Everything that shows its samples says that they are simulated, because its title does.

use super::{Source, SourceError};
use crate::sample::{Counter, Locality, Node, PagesetSample, Sample, ZoneSample};

/// Samples that change smoothly with time: the same ones whenever it is opened.
#[derive(Clone, Debug)]
pub struct SimulatedSource {
    nodes: u64,
    cpus_per_node: u64,
    ticks: u64,
}

impl SimulatedSource {
    /// Creates a machine with one zone on each node, and a pageset for each zone and CPU.
    #[must_use]
    pub const fn new(nodes: u64, cpus_per_node: u64) -> Self {
        Self { nodes, cpus_per_node, ticks: 0 }
    }

    /// Returns a wave between 0 and 1 with a period of `period` seconds, shifted by `phase` periods.
    fn wave(&self, period: f64, phase: f64) -> f64 {
        (1.0 + (std::f64::consts::TAU * (self.ticks as f64 / period + phase)).sin()) / 2.0
    }

    fn zone(&self, node: u64) -> ZoneSample {
        const MANAGED: u64 = 1 << 20;
        let full = self.wave(40.0, node as f64 / self.nodes as f64);
        let free = 9000 + (full * 0.8 * MANAGED as f64) as u64;
        let hits = 10_000 * self.ticks * (node + 1);
        let misses = hits / 50;
        let blocks = |order: u32| (free >> order) / (2 << (10 - order));
        ZoneSample {
            node,
            kind: "Normal".to_owned(),
            managed: MANAGED,
            free,
            in_pagesets: self.cpus_per_node * 300,
            min: 8192,
            low: 10_240,
            high: 12_288,
            reserve: vec![0; 4],
            free_blocks: (0..=10).map(blocks).collect(),
            free_by_type: Vec::new(),
            locality: Some(Locality {
                hit: hits,
                miss: misses,
                foreign: misses,
                interleave_hit: 0,
                local: hits,
                other: misses,
            }),
            stat_threshold: Some(125),
            retired: Some(0),
        }
    }
}

impl Source for SimulatedSource {
    fn title(&self) -> String {
        format!("a simulated machine with {} nodes", self.nodes)
    }

    /// Returns the state one second after that of the last call.
    fn read(&mut self) -> Result<Sample, SourceError> {
        self.ticks += 1;
        let cpus = self.nodes * self.cpus_per_node;
        let node = |id: u64| {
            let (first, last) = (id * self.cpus_per_node, (id + 1) * self.cpus_per_node - 1);
            Node { id, cpus: Some(format!("{first}-{last}")), ..Node::default() }
        };
        let pageset = |zone: u64, cpu: u64| {
            let count = (512.0 * self.wave(20.0, (zone * 7 + cpu) as f64 / 31.0)) as u64;
            let refills = self.ticks * (1 + cpu % 8);
            let (zone, batch) = (zone as usize, 63);
            PagesetSample {
                zone,
                cpu,
                count,
                high: 600,
                batch,
                refills: Some(refills),
                drains: Some(refills / 2),
            }
        };
        let mut sample = Sample {
            unix_ms: 1_700_000_000_000 + self.ticks * 1000,
            seconds: self.ticks as f64,
            page_bytes: 4096,
            nodes: (0..self.nodes).map(node).collect(),
            zones: (0..self.nodes).map(|node| self.zone(node)).collect(),
            pagesets: (0..self.nodes)
                .flat_map(|zone| (0..cpus).map(move |cpu| (zone, cpu)))
                .map(|(zone, cpu)| pageset(zone, cpu))
                .collect(),
            ..Sample::default()
        };
        for (counter, per_second) in [
            (Counter::Refills, 4000),
            (Counter::Drains, 2000),
            (Counter::RemoteDrains, 3),
            (Counter::Failures, 0),
        ] {
            sample.totals.set(counter, per_second * self.ticks);
        }
        sample.totals.set(Counter::DirectStalls, self.ticks / 10);
        sample.totals.set(Counter::BackgroundReclaimed, 700 * self.ticks);
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rates;

    #[test]
    fn simulated_samples_are_consistent() {
        let mut source = SimulatedSource::new(4, 8);
        let old = source.read().unwrap();
        for _ in 0..100 {
            let new = source.read().unwrap();
            assert!(new.zones.iter().all(|zone| zone.free + zone.in_pagesets <= zone.managed));
            assert_eq!(new.pagesets.len(), 4 * 32);
            assert!(Rates::between(&old, &new).is_some());
        }
        let same = SimulatedSource::new(4, 8).read().unwrap();
        assert_eq!(old, same, "the same samples whenever it is opened");
        for zone in &old.zones {
            let frames: u64 = zone.free_blocks.iter().enumerate().map(|(order, count)| count << order).sum();
            assert!(frames <= zone.free, "{frames} of {}", zone.free);
        }
    }
}
