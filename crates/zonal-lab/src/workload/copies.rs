//! Copies of files, as measured by Gorman in 2011. Files arrive over a network, are copied several times in sequence,
//! and are deleted together with their copies.
//!
//! One process does all the work. To copy a page, it reads the page of the source, from the cache if it is still
//! there, and writes a page of the copy. Related files: `workload/file_machine.rs` runs the kernel's threads.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::file_machine::{FILE_MIB_MAX, FileMachine, bytes_of_files, check_count, check_files};
use super::held::with_capacity;
use super::program::{Program, Unfit, check_figure};
use crate::bounds::{COUNT, MB_S};
use crate::outcome::Outcome;
use crate::page_cache::{CacheSettings, FileId};
use crate::sim::{RunError, SimulatedMachine, Time};
use crate::system::System;

/// Copies of files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Copies {
    /// Source files.
    pub files: usize,
    /// Size of each source file, in MiB.
    pub file_mib: f64,
    /// Copies of each source file.
    pub copies: usize,
    /// Network bandwidth, in MB/s (10^6 bytes per second).
    pub network_mb_s: f64,
    /// Kernel work per page, in nanoseconds. Excludes allocation and copying.
    pub page_ns: f64,
    /// Scan of a page on an LRU list, in nanoseconds.
    pub scan_ns: f64,
    /// Closed files' pages that reclaim scans per page that it scans on an LRU list.
    pub inode_pressure: f64,
}

impl Program for Copies {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_figure("files", self.files as f64, 1.0..=1e7)?;
        check_figure("file_mib", self.file_mib, 0.01..=FILE_MIB_MAX)?;
        check_figure("copies", self.copies as f64, 0.0..=*COUNT.end())?;
        check_count("copies", self.files as f64 * (self.copies as f64 + 1.0))?;
        check_figure("network_mb_s", self.network_mb_s, MB_S)?;
        check_files(machine, &self.settings())
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        let mib = self.files as f64 * self.file_mib * (2.0 * self.copies as f64 + 1.0);
        2.0 * mib * f64::from(1 << 20) / f64::from(machine.model.page_bytes)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        let pages = self.file_mib * f64::from(1 << 20) / f64::from(machine.model.page_bytes);
        bytes_of_files(machine, self.files as f64 * (self.copies as f64 + 1.0), pages)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let machine = FileMachine::new(system, &self.settings());
        let phases = [const { Cell::new(Time::ZERO) }; 3];
        let mut outcome = machine.run(vec![Box::new(|| self.process(&machine, &phases))], stop)?;
        let mut begin = Time::ZERO;
        let has_pages = self.pages(system.sim.machine) > 0;
        let names = ["download_tar_s", "dd_source_files_s", "delete_source_s"];
        for ((name, has_work), end) in names.into_iter().zip([true, self.copies > 0, true]).zip(&phases) {
            let took = (end.get() - begin).seconds();
            outcome.sampled(name, "s", (has_pages && has_work).then_some(took));
            begin = end.get();
        }
        outcome.sampled("elapsed_s", "s", has_pages.then_some(outcome.seconds));
        outcome.metrics.extend(machine.reclaim());
        Ok(outcome)
    }
}

impl Copies {
    fn settings(&self) -> CacheSettings {
        CacheSettings {
            page_ns: self.page_ns,
            scan_ns: self.scan_ns,
            inode_pressure: self.inode_pressure,
            ..CacheSettings::default()
        }
    }

    /// Returns the pages of a source file.
    fn pages(&self, machine: &SimulatedMachine) -> u32 {
        (self.file_mib * f64::from(1 << 20) / f64::from(machine.model.page_bytes)) as u32
    }

    fn process(&self, machine: &FileMachine<'_, '_, '_>, phases: &[Cell<Time>; 3]) {
        let world = machine.system.sim.world;
        let page_bytes = f64::from(machine.system.sim.machine.model.page_bytes);
        let pages = self.pages(machine.system.sim.machine);
        let arrival = page_bytes / (self.network_mb_s * 1e6);
        let mut files = with_capacity(machine.system, self.files * (self.copies + 1));
        for at in 0..self.files {
            files.push(write(machine, pages, |index| {
                world.sleep_until(Time::from_seconds(
                    arrival * (at as f64 * f64::from(pages) + f64::from(index)),
                ));
            }));
        }
        phases[0].set(world.now());
        for _ in 0..self.copies {
            for source in 0..self.files {
                let source = files[source];
                machine.cache.open(source);
                files.push(write(machine, pages, |index| machine.cache.read(source, index, pages)));
                machine.cache.close(source);
            }
        }
        phases[1].set(world.now());
        files.iter().for_each(|&file| machine.cache.delete(file, pages));
        phases[2].set(world.now());
    }
}

/// Writes a new file of `pages` pages. `contents` waits until the contents of a page have arrived.
fn write(machine: &FileMachine<'_, '_, '_>, pages: u32, contents: impl Fn(u32)) -> FileId {
    let file = machine.cache.create();
    for index in 0..pages {
        contents(index);
        machine.cache.write(file, index);
    }
    machine.cache.close(file);
    file
}
