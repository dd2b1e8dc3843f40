//! The periodic tick: decay, idle drains and counter folds, and what follows when limits change.
//!
//! Folds can also be less frequent, or on demand. Neighbours: `rules/pageset_tuning.rs` has the rules,
//! `pageset/upkeep.rs` maintains one pageset.

use crate::Allocator;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::units::{CpuId, PageCount};
use crate::zone::CpuInfo;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Maintains the pagesets and counters of every CPU.
    ///
    /// Must be called once a second, whatever [`Config::stat_interval`](crate::Config::stat_interval) is. A machine
    /// whose CPUs have their own timers calls [`Allocator::tick_cpu`] from them instead.
    pub fn tick(&self) {
        self.state.cpus.iter().filter(|cpu| cpu.exists()).for_each(|&cpu| self.state.tick_pagesets_of(cpu));
    }

    /// Maintains the pagesets and counters of one CPU.
    pub fn tick_cpu(&self, cpu: CpuId) {
        if let Some(cpu) = self.state.cpu_info(cpu) {
            self.state.tick_pagesets_of(cpu);
        }
    }

    /// Folds the counter differences of every CPU into the totals of zones and nodes.
    ///
    /// Then the `..._approximate` readings are exact, as long as nothing is allocated or freed. Pagesets without
    /// differences are not touched; the locks of the others are waited for, so a reclaimer or a request must not call
    /// this. Linux: `vm.stat_refresh`.
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
        let (now, tuning) = (self.platform.now(), self.shared.tuning());
        let marks = self.lists.full(usize::from(cpu.node));
        if self.is_served_elsewhere(cpu) && marks.is_stale(now) {
            self.serve_from_preferred(cpu);
        }
        for zone in self.zones {
            let pageset = self.pagesets_of(zone).of(cpu);
            // Relaxed reads: there is nothing to do for a pageset that holds no frames and has no differences, and
            // whose `high` has decayed.
            let is_clean = !pageset.has_differences()
                && pageset.high() <= zone.pageset_limits(zone.locality(cpu)).high_min
                && !(tuning == PagesetTuning::Depth && pageset.was_used() && pageset.is_watch_due(now));
            if (pageset.count() != PageCount::ZERO || !is_clean)
                && let Some(guard) = self.try_pageset(zone, cpu)
            {
                guard.tick();
                guard.update_limits();
            }
        }
    }

    /// Clamps `high` of every pageset in use to its limits, and folds its differences, after limits changed.
    pub(super) fn reclamp_pagesets(&self) {
        for (zone, cpu) in self.used_pagesets() {
            let guard = self.pageset(zone, cpu);
            guard.set_high(guard.high_limits().clamp(guard.high()));
            guard.fold();
            guard.update_limits();
        }
    }

    /// Restarts the tuning of all pagesets.
    pub(super) fn reset_tuning(&self) {
        for (zone, cpu) in self.used_pagesets() {
            self.pageset(zone, cpu).restart_tuning();
        }
    }
}
