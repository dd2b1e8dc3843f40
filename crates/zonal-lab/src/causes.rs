//! Attributes the waiting time of a run's threads to causes.
//!
//! Related files: `sim/` records the waiting times for each lock and cache line. The allocator identifies the object
//! at an address.

use std::collections::BTreeMap;

use crate::outcome::Cause;
use crate::sim::Simulation;

impl Simulation<'_, '_> {
    /// Returns the locks and cache lines that the threads have waited for so far, longest total time first.
    #[must_use]
    pub fn causes(&self) -> Vec<Cause> {
        let mut sums: BTreeMap<(&'static str, String), (u64, f64)> = BTreeMap::new();
        let waits = self.world.lock_waits().into_iter().map(|wait| ("lock", wait));
        for (kind, (address, waits)) in
            waits.chain(self.world.line_waits().into_iter().map(|wait| ("line", wait)))
        {
            let what = address
                .map_or_else(|| "the program's own data".to_owned(), |address| self.part_name(address));
            let sum = sums.entry((kind, what)).or_default();
            sum.0 += waits.handed_over;
            sum.1 += waits.waited.seconds();
        }
        let mut causes: Vec<Cause> = sums
            .into_iter()
            .map(|((kind, what), (waits, seconds))| Cause { what, kind, waits, seconds })
            .collect();
        causes.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        causes
    }

    fn part_name(&self, address: usize) -> String {
        self.allocator.part_at(address).map_or_else(|| "padding".to_owned(), |part| part.name().to_owned())
    }
}
