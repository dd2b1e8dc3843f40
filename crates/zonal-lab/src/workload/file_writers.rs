//! Threads that each write many files in several loops and keep all of them: fs_mark, as measured by Gorman in 2011.
//!
//! To create a file, a thread must hold the file system's journal, which only one thread can hold at a time. The
//! contents of the file go into the page cache, and a thread that modifies too many pages waits for the disk. The
//! files are synchronized to the disk only once, at the end of the run. Related files: `workload/file_machine.rs`
//! runs the kernel's threads.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::file_machine::{FILE_MIB_MAX, FileMachine, bytes_of_files, check_count, check_files};
use super::program::{Program, Unfit, check_figure};
use crate::bounds::{COUNT, PAUSE_MS};
use crate::outcome::Outcome;
use crate::page_cache::CacheSettings;
use crate::sim::{Join, ProgramLock, RunError, SimulatedMachine, Time};
use crate::system::System;

/// Maximum number of threads. The stack of a thread needs two mappings on the host, which allows about 65,000
/// mappings in total.
const THREADS_MAX: f64 = 8192.0;

/// Threads that write files.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileWriters {
    /// Threads, assigned round-robin to the first node's CPUs.
    pub threads: usize,
    /// Files that each thread writes in a loop.
    pub files: usize,
    /// Size of a file, in KiB.
    pub file_kib: u32,
    /// Number of loops.
    pub loops: usize,
    /// Time that creating a file holds the journal, in milliseconds.
    pub create_ms: f64,
    /// Metadata that the disk writes for each file besides its contents, in KiB.
    pub metadata_kib: f64,
    /// Kernel work per page, in nanoseconds. Excludes allocation and copying.
    pub page_ns: f64,
    /// Scan of a page on an LRU list, in nanoseconds.
    pub scan_ns: f64,
    /// Closed files' pages that reclaim scans per page that it scans on an LRU list.
    pub inode_pressure: f64,
}

impl Program for FileWriters {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_figure("threads", self.threads as f64, 1.0..=THREADS_MAX)?;
        check_figure("files", self.files as f64, 1.0..=1e7)?;
        check_figure("file_kib", f64::from(self.file_kib), 1.0..=FILE_MIB_MAX * 1024.0)?;
        check_figure("loops", self.loops as f64, COUNT)?;
        check_count("files", self.threads as f64 * self.files as f64 * self.loops as f64)?;
        check_figure("create_ms", self.create_ms, PAUSE_MS)?;
        check_files(machine, &self.settings())
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        let kib = self.threads as f64 * self.files as f64 * self.loops as f64 * f64::from(self.file_kib);
        2.0 * kib * 1024.0 / f64::from(machine.model.page_bytes)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        let pages = f64::from(self.file_kib) * 1024.0 / f64::from(machine.model.page_bytes);
        bytes_of_files(machine, self.threads as f64 * self.files as f64 * self.loops as f64, pages)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let machine = FileMachine::new(system, &self.settings());
        let world = system.sim.world;
        let journal = ProgramLock::new(world, 0);
        let barriers: Vec<Join> = (0..self.loops).map(|_| Join::new(self.threads)).collect();
        let ends = RefCell::new(vec![Time::ZERO; self.loops]);
        let program = |at: usize| {
            let (machine, journal, barriers, ends) = (&machine, &journal, &barriers, &ends);
            Box::new(move || {
                for (turn, barrier) in barriers.iter().enumerate() {
                    (0..self.files).for_each(|_| self.write_file(machine, journal));
                    barrier.arrive(world);
                    barrier.wait(world);
                    ends.borrow_mut()[turn] = world.now();
                }
                if at == 0 {
                    machine.cache.sync();
                }
            }) as Box<dyn FnOnce()>
        };
        let mut outcome = machine.run((0..self.threads).map(program).collect(), stop)?;
        self.measure(&ends.borrow(), &mut outcome);
        outcome.metrics.extend(machine.reclaim());
        Ok(outcome)
    }
}

impl FileWriters {
    fn settings(&self) -> CacheSettings {
        CacheSettings {
            metadata_kib: self.metadata_kib,
            page_ns: self.page_ns,
            scan_ns: self.scan_ns,
            inode_pressure: self.inode_pressure,
            ..CacheSettings::default()
        }
    }

    fn write_file(&self, machine: &FileMachine<'_, '_, '_>, journal: &ProgramLock) {
        let (cache, world) = (&machine.cache, machine.system.sim.world);
        journal.hold(world, || world.spend(Time::from_ns(self.create_ms * 1e6)));
        let file = cache.create();
        let page_kib = machine.system.sim.machine.model.page_bytes / 1024;
        (0..self.file_kib.div_ceil(page_kib)).for_each(|index| cache.write(file, index));
        cache.close(file);
    }

    fn measure(&self, ends: &[Time], outcome: &mut Outcome) {
        let begins = std::iter::once(&Time::ZERO).chain(ends);
        let files = (self.threads * self.files) as f64;
        let rates: Vec<f64> =
            ends.iter().zip(begins).map(|(&end, &begin)| files / (end - begin).seconds()).collect();
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
        let deviation = (squares / (rates.len() as f64 - 1.0)).sqrt();
        outcome.metric("files_per_s_min", "files/s", rates.iter().copied().fold(f64::INFINITY, f64::min));
        outcome.metric("files_per_s_mean", "files/s", mean);
        outcome.sampled("files_per_s_stddev", "files/s", (rates.len() > 1).then_some(deviation));
        outcome.metric("files_per_s_max", "files/s", rates.iter().copied().fold(0.0, f64::max));
        outcome.metric("elapsed_s", "s", outcome.seconds);
    }
}
