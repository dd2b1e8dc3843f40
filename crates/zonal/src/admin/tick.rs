//! The periodic tick, which decays `high`, drains idle pagesets and folds counters, and the update of pagesets after
//! limits change.
//!
//! Counters can also be folded less often than each tick, or on demand.
//!
//! Related files: `rules/pageset_tuning.rs` contains the rules, and `pageset/upkeep.rs` applies a tick to one
//! pageset.

use crate::Allocator;
use crate::platform::Platform;
use crate::units::CpuId;

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
        self.state.retire_lost();
        self.state.report_recovered();
    }

    /// Maintains the pagesets and counters of one CPU.
    pub fn tick_cpu(&self, cpu: CpuId) {
        if let Some(cpu) = self.state.cpu_info(cpu)
            && !self.state.platform.is_reentered()
        {
            self.state.tick_pagesets_of(cpu);
            self.state.retire_lost();
            self.state.report_recovered();
        }
    }

    /// Folds every CPU's counter differences into the totals of zones and nodes.
    ///
    /// Afterwards, the `..._approximate` functions return exact values until the next allocation or free. The
    /// function skips pagesets without differences and waits for the locks of the others, so it must not be called
    /// from a reclaimer or during a request. Linux: `vm.stat_refresh`.
    pub fn stat_refresh(&self) {
        self.state.fold_pagesets();
    }
}
