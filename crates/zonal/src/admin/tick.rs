//! The periodic tick, which decays `high`, drains idle pagesets and folds counters, and the update of pagesets after
//! limits change.
//!
//! Counters can also be folded less often than each tick, or on demand.
//!
//! Related files: `rules/pageset_tuning.rs` contains the rules, and `pageset/upkeep.rs` applies a tick to one
//! pageset.

use crate::Allocator;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::units::{CpuId, PageCount};
use crate::zone::CpuInfo;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Maintains the pagesets and counters of every CPU.
    ///
    /// The embedder must call this once a second, regardless of
    /// [`Config::stat_interval`](crate::Config::stat_interval). If each CPU has its own timer, the embedder can call
    /// [`Allocator::tick_cpu`] from each timer instead. Both do nothing if the caller is a handler that interrupted its own
    /// thread inside the allocator ([`Platform::is_reentered`]); the next tick then does the work.
    pub fn tick(&self) {
        if self.state.platform.is_reentered() {
            return;
        }
        self.state.local_cpus().for_each(|&cpu| self.state.tick_pagesets_of(cpu));
        self.retire_lost();
        self.state.report_recovered();
    }

    /// Maintains the pagesets and counters of one CPU.
    pub fn tick_cpu(&self, cpu: CpuId) {
        if let Some(cpu) = self.state.cpu_info(cpu)
            && !self.state.platform.is_reentered()
        {
            self.state.tick_pagesets_of(cpu);
            self.retire_lost();
            self.state.report_recovered();
        }
    }

    /// Folds every CPU's counter differences into the totals of zones and nodes.
    ///
    /// Afterwards, the `..._approximate` functions return exact values until the next allocation or free. The
    /// function skips pagesets without differences and waits for the locks of the others, so it must not be called
    /// from a reclaimer or during a request. Linux: `vm.stat_refresh`.
    pub fn stat_refresh(&self) {
        for (zone, cpu) in self.state.used_pagesets() {
            if !self.state.pagesets_of(zone).of(cpu).has_differences() {
                continue;
            }
            let guard = self.state.pageset(zone, cpu);
            guard.fold();
            guard.update_limits();
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    fn tick_pagesets_of(&self, cpu: CpuInfo) {
        self.finish_frees(cpu);
        let (now, tuning) = (self.platform.now(), self.shared.tuning());
        let marks = self.lists.full(usize::from(cpu.node));
        if self.is_served_elsewhere(cpu) && marks.is_stale(now) {
            self.serve_from_preferred(cpu);
        }
        for zone in self.zones {
            self.tick_owned(zone, cpu);
            let pageset = self.pagesets_of(zone).of(cpu);
            // Relaxed reads: a stale value only delays the work to the next tick. A pageset without frames and
            // differences, whose `high` has decayed, needs no work.
            let is_clean = !pageset.has_differences()
                && pageset.high() <= zone.pageset_limits(zone.locality(cpu)).high_min
                && !(tuning == PagesetTuning::Depth && pageset.was_used() && pageset.is_watch_due(now));
            if (pageset.count() != PageCount::ZERO || !is_clean)
                && let Some(guard) = self.try_pageset(zone, cpu)
            {
                guard.tick();
                guard.update_limits();
                guard.end_with(PagesetSession::note_seen);
            }
        }
    }

    /// Clamps `high` of every used pageset to its limits and folds its differences. Callers use this function after a
    /// change of limits.
    pub(super) fn reclamp_pagesets(&self) {
        for (zone, cpu) in self.used_pagesets() {
            let guard = self.pageset(zone, cpu);
            guard.set_high(guard.high_limits().clamp(guard.high()));
            guard.fold();
            guard.update_limits();
        }
    }

    /// Restarts the tuning of all used pagesets.
    pub(super) fn reset_tuning(&self) {
        for (zone, cpu) in self.used_pagesets() {
            self.pageset(zone, cpu).restart_tuning();
        }
    }
}
