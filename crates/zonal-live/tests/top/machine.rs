//! A source that reports a small machine: three nodes, of which the last one has no memory.

use zonal_live::{Counter, Locality, Node, PagesetSample, Sample, Source, SourceError, ZoneSample};

/// Times of samples begin here: 2023-11-14, 22:13:20 UTC.
const FIRST_MS: u64 = 1_700_000_000_000;

/// Changes with each reading, in the same way in each run.
pub(crate) struct Machine {
    pub(crate) tick: u64,
    /// Readings that fail.
    pub(crate) failures: std::ops::Range<u64>,
}

impl Machine {
    pub(crate) const fn new() -> Self {
        Self { tick: 0, failures: 0..0 }
    }

    /// Returns a number between 0 and `most` that changes with time.
    fn wave(&self, most: u64, phase: u64) -> u64 {
        let at = (self.tick * 7 + phase * 13) % 60;
        most * at.min(60 - at) / 30
    }

    fn zone(&self, node: u64, kind: &str, managed: u64, free: u64) -> ZoneSample {
        let high = managed / 100;
        let blocks = |order: u32| (free >> order) / (3 + 2 * u64::from(order));
        let by_type = |part: u64| (0..=10).map(|order| blocks(order) / part).collect::<Vec<_>>();
        ZoneSample {
            node,
            kind: kind.to_owned(),
            managed,
            free,
            in_pagesets: 4 * 150,
            min: high * 2 / 3,
            low: high * 5 / 6,
            high,
            reserve: vec![0; 5],
            free_blocks: (0..=10).map(blocks).collect(),
            free_by_type: match kind {
                "Normal" => vec![("Unmovable".to_owned(), by_type(5)), ("Movable".to_owned(), by_type(2))],
                _ => Vec::new(),
            },
            locality: None,
            stat_threshold: Some(32),
            retired: None,
        }
    }

    fn node(&self, id: u64) -> Node {
        let hit = self.tick * (9000 + 2000 * id) + self.wave(800, id);
        let miss = self.tick * 40 * id;
        let locality =
            Locality { hit, miss, foreign: self.tick * 40, interleave_hit: 12, local: hit, other: miss };
        Node {
            id,
            cpus: Some(["0-1", "2-3", ""][id as usize].to_owned()),
            locality: Some(locality),
            stalled_percent: None,
            allocated: None,
        }
    }
}

impl Source for Machine {
    fn title(&self) -> String {
        "this system".to_owned()
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        self.tick += 1;
        if self.failures.contains(&self.tick) {
            return Err(SourceError::NoPool("/run/cache.zonal".into()));
        }
        let zones = vec![
            self.zone(0, "DMA", 3840, 3800),
            self.zone(0, "DMA32", 760_000, 200_000 + self.wave(300_000, 1)),
            self.zone(0, "Normal", 3_200_000, 20_000 + self.wave(2_000_000, 0)),
            self.zone(1, "Normal", 4_000_000, 25_000 + self.wave(14_000, 2)),
        ];
        let pageset = |(zone, cpu): (usize, u64)| PagesetSample {
            zone,
            cpu,
            count: if zone == 0 { 0 } else { self.wave(600, cpu + zone as u64) },
            high: if zone == 0 { 0 } else { 600 },
            batch: 63,
            refills: Some(self.tick * (cpu + 1) * zone as u64),
            drains: Some(self.tick * cpu),
        };
        let mut sample = Sample {
            unix_ms: FIRST_MS + self.tick * 1000,
            seconds: self.tick as f64,
            program: None,
            page_bytes: 4096,
            nodes: (0..3).map(|id| self.node(id)).collect(),
            zones,
            pagesets: (0..4).flat_map(|zone| (0..4).map(move |cpu| (zone, cpu))).map(pageset).collect(),
            ..Sample::default()
        };
        for (counter, total) in [
            (Counter::Allocated, self.tick * 21_000 + self.wave(9000, 0)),
            (Counter::Freed, self.tick * 20_500 + self.wave(7000, 3)),
            (Counter::BackgroundReclaimed, self.tick * 300),
            (Counter::DirectStalls, self.tick / 3),
            (Counter::OomKills, 0),
        ] {
            sample.totals.set(counter, total);
        }
        Ok(sample)
    }
}
