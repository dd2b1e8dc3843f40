//! A process that stores into the mapped pages of a large file, from start to end, as measured by Gorman in
//! 2011.
//!
//! The first store into a page causes a fault, which allocates a frame; the page is then dirty. Pages stay mapped
//! until reclaim unmaps them, which node reclaim must not do. The process never synchronizes the file to the disk. A
//! writer with a time limit reports how much data it has written within this time and how long its slowest store took.
//! Related files: `workload/file_machine.rs` runs the kernel's threads.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::NodeMask;

use super::file_machine::{FILE_MIB_MAX, FileMachine, bytes_of_files, check_files};
use super::program::{Program, Unfit, check_figure};
use crate::bounds::SECONDS;
use crate::outcome::Outcome;
use crate::page_cache::CacheSettings;
use crate::sim::{RunError, SimulatedMachine, Time};
use crate::system::System;

/// A writer of a mapping.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MappedWriter {
    /// Size of the mapping, in GiB.
    pub mapping_gib: f64,
    /// Simulated part of the mapping, in GiB. The time for the rest is extrapolated from this part's second half, so
    /// memory must be full well before this part's middle.
    pub simulated_gib: f64,
    /// Clean, unmapped file pages on the first node that other processes use all the time, in MiB.
    pub resident_mib: f64,
    /// Virtual time, in seconds, at which the writer stops. Its result is not extrapolated.
    pub seconds: Option<f64>,
    /// Kernel work per page, in nanoseconds. Excludes allocation and copying.
    pub page_ns: f64,
    /// Scan of a page on an LRU list, in nanoseconds.
    pub scan_ns: f64,
}

impl Program for MappedWriter {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_figure("mapping_gib", self.mapping_gib, 0.0..=FILE_MIB_MAX / 1024.0)?;
        check_figure("simulated_gib", self.simulated_gib, 0.0..=FILE_MIB_MAX / 1024.0)?;
        check_figure("resident_mib", self.resident_mib, 0.0..=FILE_MIB_MAX)?;
        let first = machine.model.nodes.first().map(|node| machine.model.managed_of(node.id).get());
        if let Some(seconds) = self.seconds {
            check_figure("seconds", seconds, SECONDS)?;
        }
        let there = first.unwrap_or(0) as f64 * f64::from(machine.model.page_bytes) / f64::from(1 << 20);
        if self.resident_mib > there / 2.0 {
            let problem =
                format!("is {}, must be at most half of the first node's {there}", self.resident_mib);
            return Err(Unfit { field: "resident_mib", problem });
        }
        check_files(machine, &self.settings())
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        2.0 * self.simulated_gib * f64::from(1 << 30) / f64::from(machine.model.page_bytes)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        bytes_of_files(machine, 1.0, self.operations(machine) / 2.0)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let machine = FileMachine::new(system, &self.settings());
        let first: NodeMask = system.sim.machine.model.nodes.iter().take(1).map(|node| node.id).collect();
        let pages = self.pages(system, self.mapping_gib * 1024.0);
        let simulated = pages.min(self.pages(system, self.simulated_gib * 1024.0));
        let resident = self.pages(system, self.resident_mib);
        let world = system.sim.world;
        let end = self.seconds.map_or(Time::NEVER, Time::from_seconds);
        let (half, written, slowest) = (RefCell::default(), Cell::new(0), Cell::new(Time::ZERO));
        let program = || {
            machine.cache.add_resident(&first, resident);
            let file = machine.cache.create();
            while written.get() < simulated && world.now() < end {
                if written.get() == simulated / 2 {
                    half.replace(Some((world.now(), machine.reclaim())));
                }
                let before = world.now();
                machine.cache.store(file, written.get());
                slowest.set(slowest.get().max(world.now().saturating_sub(before)));
                written.set(written.get() + 1);
            }
        };
        let mut outcome = machine.run(vec![Box::new(program)], stop)?;
        let (half_time, half) = half.take().unwrap_or_else(|| (Time::ZERO, machine.reclaim()));
        let rest = if self.seconds.is_none() { pages - simulated } else { 0 };
        let more = f64::from(rest) / f64::from((simulated - simulated / 2).max(1));
        let whole = |half: f64, end: f64| end + (end - half) * more;
        let elapsed = whole(half_time.seconds(), outcome.seconds);
        let measured = |value: f64| (written.get() > 0).then_some(value);
        outcome.sampled("elapsed_s", "s", measured(elapsed));
        if self.seconds.is_some() {
            let mib = f64::from(written.get()) / f64::from(self.pages(system, 1.0));
            outcome.sampled("written_mib_s", "MiB/s", measured(mib / elapsed));
            outcome.sampled("slowest_store_ms", "ms", measured(slowest.get().seconds() * 1e3));
        }
        for (begin, end) in half.iter().zip(machine.reclaim()) {
            outcome.sampled(end.name, end.unit, measured(whole(begin.value, end.value)));
        }
        Ok(outcome)
    }
}

impl MappedWriter {
    /// Returns the number of pages in `mib` MiB.
    fn pages(&self, system: &System<'_, '_>, mib: f64) -> u32 {
        (mib * f64::from(1 << 20) / f64::from(system.sim.machine.model.page_bytes)) as u32
    }

    fn settings(&self) -> CacheSettings {
        CacheSettings { page_ns: self.page_ns, scan_ns: self.scan_ns, ..CacheSettings::default() }
    }
}
