//! Makes changes under load: CPUs and memory go offline and online, and rules and watermarks change.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;
use zonal::config::NodeReclaim;
use zonal::machine::FrameRange;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, PageCount, Pfn};
use zonal_linux::{OfflineError, Pool};

use super::round::Round;
use super::tally::Faults;
use crate::stress::round::{one_of, zonelist_cache};

/// Maximum number of ranges that are offline at the same time.
const RANGES_MAX: usize = 4;
/// Time between two changes.
const REST: Duration = Duration::from_micros(500);

pub(super) struct Mutator {
    pool: Pool,
    cpus: Vec<CpuId>,
    /// CPUs in `cpus` that are offline.
    away: Vec<CpuId>,
    ranges: Vec<FrameRange>,
    /// Whether ranges go offline; not if the pool shrinks and grows.
    removes_ranges: bool,
    random: Rng,
    faults: Faults,
}

impl Mutator {
    pub(super) fn new(round: &Round, seed: u64) -> Self {
        Self {
            pool: round.pool.clone(),
            cpus: round.cpus.clone(),
            away: Vec::new(),
            ranges: Vec::new(),
            removes_ranges: !round.resizes,
            random: Rng::with_seed(seed ^ 0x71_2c),
            faults: Faults::default(),
        }
    }

    pub(super) fn work_until(&mut self, over: &AtomicBool) {
        // Relaxed: the flag only ends the loop and publishes no data.
        while !over.load(Relaxed) {
            match self.random.u8(..8) {
                0 => self.change_rules(),
                1 => self.change_watermarks(),
                2 => self.pool.drain_pagesets(),
                3 => self.change_cpus(),
                _ if self.removes_ranges => self.change_memory(),
                _ => {}
            }
            sleep(REST);
        }
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Brings all CPUs and ranges back online.
    pub(super) fn restore(&mut self) -> Result<(), String> {
        for cpu in std::mem::take(&mut self.away) {
            self.pool.online_cpu(cpu).map_err(|error| format!("CPU {cpu:?} does not come back: {error}"))?;
        }
        for range in std::mem::take(&mut self.ranges) {
            let came = self.pool.online_memory(range);
            came.map_err(|error| format!("{range:?} does not come back: {error}"))?;
        }
        Ok(())
    }

    fn change_rules(&mut self) {
        let random = &mut self.random;
        match random.u8(..4) {
            0 => {
                let tunings = [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed];
                self.pool.set_tuning(one_of(random, &tunings)).expect("these need no more slots");
            }
            1 => {
                self.pool.set_zonelist_cache(zonelist_cache(random)).expect("past forms are linked");
            }
            2 => self.pool.set_node_reclaim(one_of(random, &[NodeReclaim::OFF, NodeReclaim::ON])),
            _ => self.pool.set_high_fraction(one_of(random, &[0, 8, 100])),
        }
        self.faults.settings += 1;
    }

    fn change_watermarks(&mut self) {
        let min_free = PageCount::new(self.random.u64(..self.pool.frames().get() / 8));
        let scale_factor = self.random.u32(1..=1000);
        let settings =
            WatermarkSettings { min_free: Some(min_free), scale_factor, ..WatermarkSettings::default() };
        self.pool.set_watermarks(settings).expect("an eighth of memory can be kept free");
        self.faults.settings += 1;
    }

    fn change_cpus(&mut self) {
        if self.cpus.is_empty() {
            return;
        }
        let cpu = one_of(&mut self.random, &self.cpus);
        if let Some(at) = self.away.iter().position(|&away| away == cpu) {
            self.away.swap_remove(at);
            self.pool.online_cpu(cpu).expect("it was taken out");
        } else if self.away.len() + 1 < self.cpus.len() {
            self.pool.offline_cpu(cpu).expect("another one stays");
            self.away.push(cpu);
        } else {
            return;
        }
        self.faults.cpus += 1;
    }

    /// Brings a range back online, or tries to take one offline, which may be in use.
    fn change_memory(&mut self) {
        if self.ranges.len() == RANGES_MAX || (!self.ranges.is_empty() && self.random.bool()) {
            let range = self.ranges.swap_remove(self.random.usize(..self.ranges.len()));
            self.pool.online_memory(range).expect("it was taken out");
            self.faults.ranges += 1;
            return;
        }
        let zones: Vec<FrameRange> = self.pool.ranges().map(|zone| zone.frames).collect();
        let zone = one_of(&mut self.random, &zones);
        let count = self.random.u64(1..=zone.count.get().min(600));
        let start = zone.start.get() + self.random.u64(..=zone.count.get() - count);
        let range = FrameRange { start: Pfn::new(start), count: PageCount::new(count) };
        match self.pool.offline_memory(range) {
            Ok(()) => {
                self.ranges.push(range);
                self.faults.ranges += 1;
            }
            Err(OfflineError::Refused(_)) => {}
            Err(error @ OfflineError::NotReturned { .. }) => panic!("{range:?}: {error}"),
        }
    }
}
