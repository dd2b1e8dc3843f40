//! What happens once a second, and whenever limits change: decay, idle drains, counter folds. Folds can come
//! more rarely, and on demand.
//!
//! Neighbours: `pageset_tuning.rs` has the rules, `refill.rs` drains.

use crate::Allocator;
use crate::platform::Platform;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::units::{CpuId, PageCount};
use crate::zone::CpuInfo;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Looks after the pagesets and counters of every CPU. Call it once a second, whatever
    /// [`Config::stat_interval`](crate::Config::stat_interval) is; a machine whose CPUs each have a timer
    /// calls [`Allocator::tick_cpu`] there instead.
    pub fn tick(&self) {
        self.state.cpus.iter().filter(|cpu| cpu.exists()).for_each(|&cpu| self.tick_pagesets_of(cpu));
    }

    /// Looks after the pagesets and counters of one CPU.
    pub fn tick_cpu(&self, cpu: CpuId) {
        if let Some(cpu) = self.state.cpu_info(cpu) {
            self.tick_pagesets_of(cpu);
        }
    }

    /// Adds what every CPU has counted for itself to the totals of every zone and node, now. Then the
    /// `..._approximate` readings are exact, as long as nobody allocates or frees. Clean pagesets are
    /// not touched; others are waited for, so not to be called by a reclaimer or within a request.
    /// Linux: `vm.stat_refresh`.
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

    fn tick_pagesets_of(&self, cpu: CpuInfo) {
        let (now, tuning) = (self.state.platform.now(), self.state.shared.tuning());
        let marks = self.state.lists.full(usize::from(cpu.node));
        if self.state.is_served_elsewhere(cpu) && marks.is_stale(now) {
            self.state.serve_from_preferred(cpu);
        }
        for zone in self.state.zones {
            let pageset = self.state.pagesets_of(zone).of(cpu);
            // Relaxed looks: nothing to do for a pageset that never held or counted anything, and
            // whose `high` has decayed.
            let is_clean = !pageset.has_differences()
                && pageset.high() <= zone.pageset_limits(zone.locality(cpu)).high_min
                && !(tuning == PagesetTuning::Depth && pageset.was_used() && pageset.is_watch_due(now));
            if (pageset.count() != PageCount::ZERO || !is_clean)
                && let Some(guard) = self.state.try_pageset(zone, cpu)
            {
                guard.tick();
                guard.update_limits();
            }
        }
    }

    /// After limits changed: `high` of every pageset in use is clamped to them, and differences beyond
    /// lowered thresholds are folded.
    pub(super) fn reclamp_pagesets(&self) {
        for (zone, cpu) in self.state.used_pagesets() {
            let guard = self.state.pageset(zone, cpu);
            guard.set_high(guard.high_limits().clamp(guard.high()));
            guard.fold();
            guard.update_limits();
        }
    }

    /// Starts tuning afresh everywhere.
    pub(super) fn reset_tuning(&self) {
        for (zone, cpu) in self.state.used_pagesets() {
            self.state.pageset(zone, cpu).restart_tuning();
        }
    }
}
