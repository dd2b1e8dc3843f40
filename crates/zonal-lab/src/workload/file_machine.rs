//! The environment of programs that use files: a page cache and its kernel threads. All programs are bound to the
//! CPUs of the first node.
//!
//! Memory is not bound: pages come from the first node, or from other nodes when the first node is full. Related
//! files: `page_cache/` is the model of the kernel's page cache. `workload/file_writers.rs`, `workload/copies.rs` and
//! `workload/mapped_writer.rs` are the programs.

use std::cell::Cell;
use std::sync::atomic::AtomicBool;

use zonal::rules::watermarks::Watermarks;
use zonal::units::NodeId;

use super::observer::{Observer, Seen};
use super::program::{Unfit, check_figure};
use crate::bounds::{COUNT, WORK_NS};
use crate::outcome::{Metric, Outcome};
use crate::page_cache::{CacheSettings, PageCache};
use crate::sim::{Join, Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Period of the memory observer (10 virtual seconds).
const LOOK: Time = Time::from_ps(10_000_000_000_000);

/// Size of the largest file, in MiB: 2 TiB. A limit is needed because the host stores each file page's state.
pub(super) const FILE_MIB_MAX: f64 = 2.0 * 1024.0 * 1024.0;
/// Maximum number of files in a run.
const FILES_MAX: f64 = 1e7;

/// Refuses more files than the host has memory for. `field` and other fields determine the number of files.
pub(super) fn check_count(field: &'static str, files: f64) -> Result<(), Unfit> {
    if files <= FILES_MAX {
        return Ok(());
    }
    Err(Unfit { field, problem: format!("makes {files} files in all; the maximum is {FILES_MAX:e}") })
}

/// Maximum number of frames from a machine's first to its last frame. A limit is needed because the page cache has an
/// entry for each frame.
const FRAMES_MAX: u64 = 1 << 28;

/// A machine whose programs use files.
pub(super) struct FileMachine<'h, 's, 'm> {
    pub(super) system: &'h System<'s, 'm>,
    pub(super) cache: PageCache<'h, 's, 'm>,
    observer: Observer,
    /// Time at which the programs ended.
    ended: Cell<Time>,
}

/// Returns the CPUs of the first node, to which all programs are bound.
pub(super) fn bound_cpus(machine: &SimulatedMachine) -> Vec<usize> {
    let nodes = &machine.model.nodes;
    nodes.first().map(|node| node.cpus.iter().map(|cpu| cpu.index()).collect()).unwrap_or_default()
}

/// Returns the maximum host memory for the page cache itself and for `files` files of `pages` pages each, in bytes.
pub(super) fn bytes_of_files(machine: &SimulatedMachine, files: f64, pages: f64) -> f64 {
    let frames = frames_from_first_to_last(machine) as f64;
    // A file without cached pages has no list of pages.
    files * PageCache::FILE_BYTES
        + frames * PageCache::FRAME_BYTES
        + files.min(frames) * pages * PageCache::FILE_PAGE_BYTES
}

/// Returns the number of frames for which the page cache has an entry.
fn frames_from_first_to_last(machine: &SimulatedMachine) -> u64 {
    let ends =
        machine.model.zones.iter().map(|zone| (zone.start.get(), zone.start.get() + zone.spanned.get()));
    let (first, end) = ends.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1))).unwrap_or((0, 0));
    end - first
}

/// Refuses settings that are out of bounds, and machines without a CPU on the first node.
pub(super) fn check_files(machine: &SimulatedMachine, settings: &CacheSettings) -> Result<(), Unfit> {
    check_figure("metadata_kib", settings.metadata_kib, 0.0..=*COUNT.end())?;
    check_figure("page_ns", settings.page_ns, WORK_NS)?;
    check_figure("scan_ns", settings.scan_ns, WORK_NS)?;
    check_figure("inode_pressure", settings.inode_pressure, 0.0..=*COUNT.end())?;
    let frames = frames_from_first_to_last(machine);
    if frames > FRAMES_MAX {
        let problem =
            format!("of machine {} spans {frames} frames; the maximum is {FRAMES_MAX}", machine.model.name);
        return Err(Unfit { field: "the page cache", problem });
    }
    if bound_cpus(machine).is_empty() {
        let problem = format!("of machine {} has no CPUs for the programs", machine.model.name);
        return Err(Unfit { field: "the first node", problem });
    }
    Ok(())
}

impl<'h, 's, 'm> FileMachine<'h, 's, 'm> {
    pub(super) fn new(system: &'h System<'s, 'm>, settings: &CacheSettings) -> Self {
        Self {
            system,
            cache: PageCache::new(system, settings),
            observer: Observer::new(),
            ended: Cell::default(),
        }
    }

    /// Runs `programs` on the CPUs of the first node, assigned round-robin, and the kernel's threads. Checks the
    /// accounting at the end.
    pub(super) fn run<'w>(
        &'w self,
        programs: Vec<Box<dyn FnOnce() + 'w>>,
        stop: &AtomicBool,
    ) -> Result<Outcome, RunError> {
        let world = self.system.sim.world;
        let _asked = world.ask(&self.cache);
        let cpus = bound_cpus(self.system.sim.machine);
        let done = Join::new(programs.len());
        let mut threads = Threads::new();
        for (at, program) in programs.into_iter().enumerate() {
            let done = &done;
            threads.add(cpus[at % cpus.len()], Role::Foreground, Time::ZERO, move || {
                program();
                done.arrive(world);
                if at == 0 {
                    done.wait(world);
                    self.ended.set(self.ended.get().max(world.now()));
                    self.cache.stop();
                }
            })?;
        }
        self.add_workers(&mut threads, cpus[0])?;
        let marks = self.marks();
        threads.add(cpus[0], Role::Background, Time::ZERO, || {
            self.observer.watch_every(world, LOOK, || self.look(&marks));
        })?;
        world.run(threads, stop)?;
        self.system.check_accounting();
        let mut outcome = Outcome::after(self.system, self.ended.get());
        outcome.series = self.observer.series();
        Ok(outcome)
    }

    /// Adds the flusher thread and one reclaim worker for each node.
    fn add_workers<'w>(&'w self, threads: &mut Threads<'w>, first_cpu: usize) -> Result<(), RunError> {
        threads.add(first_cpu, Role::Background, Time::ZERO, || self.cache.write_back())?;
        for node in &self.system.sim.machine.model.nodes {
            let cpu = node.cpus.last().map_or(first_cpu, |cpu| cpu.index());
            let id = node.id;
            threads.add(cpu, Role::Background, Time::ZERO, move || self.cache.reclaim_in_background(id))?;
        }
        Ok(())
    }

    /// Returns the reclaim metrics that all programs with files report.
    pub(super) fn reclaim(&self) -> Vec<Metric> {
        let counts = self.cache.counts();
        let figures = [
            ("direct_pages_scanned", "pages", counts.direct_scanned() as f64),
            ("direct_pages_reclaimed", "pages", counts.direct_reclaimed() as f64),
            ("kswapd_pages_scanned", "pages", counts.background_scanned() as f64),
            ("kswapd_pages_reclaimed", "pages", counts.background_reclaimed() as f64),
            ("pages_dropped_with_files", "pages", counts.with_files() as f64),
            ("page_outs_kib", "KiB", self.cache.written_kib()),
        ];
        figures.map(|(name, unit, value)| Metric { name: name.into(), unit, value }).into()
    }

    /// Returns the watermarks of each node, which are the sums over its zones.
    fn marks(&self) -> Vec<(NodeId, Watermarks)> {
        let sim = self.system.sim;
        let of = |node: NodeId| {
            sim.allocator.zones().filter(|zone| zone.node == node).map(|zone| zone.watermarks).fold(
                Watermarks::default(),
                |sum, marks| Watermarks {
                    min: sum.min.plus(marks.min),
                    low: sum.low.plus(marks.low),
                    high: sum.high.plus(marks.high),
                },
            )
        };
        sim.machine.model.nodes.iter().map(|node| (node.id, of(node.id))).collect()
    }

    fn look(&self, marks: &[(NodeId, Watermarks)]) -> Vec<Seen> {
        let (allocator, model) = (self.system.sim.allocator, &self.system.sim.machine.model);
        let zone_nodes: Vec<NodeId> = allocator.zones().map(|zone| zone.node).collect();
        let mut in_pagesets = vec![0; model.nodes.len()];
        for pageset in allocator.pagesets() {
            in_pagesets[self.system.place_of(zone_nodes[pageset.zone.index()])] += pageset.count.get();
        }
        let mut seen = Vec::new();
        for (node, (id, marks)) in allocator.nodes().zip(marks) {
            let kept = in_pagesets[self.system.place_of(*id)];
            let taken: u64 = node.allocated.iter().map(|pages| pages.get()).sum();
            let free = model.managed_of(*id).get().saturating_sub(taken + kept);
            for (name, pages) in [
                ("free", free),
                ("min", marks.min.get()),
                ("low", marks.low.get()),
                ("high", marks.high.get()),
            ] {
                seen.push(("free memory", format!("{name}, node {}", id.get()), "pages", pages as f64));
            }
            let cached = self.cache.cached(self.system.place_of(*id));
            seen.push(("page cache", format!("cached, node {}", id.get()), "pages", cached as f64));
        }
        seen.push(("page cache", "dirty".to_owned(), "pages", self.cache.dirty() as f64));
        seen
    }
}
