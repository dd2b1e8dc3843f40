//! Options of `zonal run` that choose the allocator's rules and settings.
//!
//! Related files: `values.rs` and `values/rules.rs` parse the values of the options, `zonal::Config` documents the
//! settings.

use clap::Args;
use zonal::Config;
use zonal::config::{InvalidFree, NodeReclaim, ZonelistCache};
use zonal::rules::fallback_order::NodeLoad;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal_linux::Pool;

use crate::values;
use crate::values::rules::{Counters, rule};

/// The allocator's rules and settings; each default is that of [`Pool::default_config`].
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Rules and settings of the allocator")]
pub(crate) struct AllocatorArgs {
    /// How the size of per-CPU pagesets is tuned
    #[arg(long, value_name = "HOW", value_parser = rule::<PagesetTuning>(), default_value = "depth")]
    tuning: PagesetTuning,

    /// Fix pageset sizes at 1/F of each zone, divided among the CPUs of its node; 0 tunes it
    #[arg(long, value_name = "F", value_parser = values::high_fraction, default_value = "0",
          allow_hyphen_values = true)]
    high_fraction: u32,

    /// How full zones are remembered
    #[arg(long, value_name = "HOW", value_parser = rule::<ZonelistCache>(), default_value = "on")]
    zonelist_cache: ZonelistCache,

    /// Reclaim nearby nodes before falling back to others: on, off, or a value of Linux's
    /// zone_reclaim_mode (0 to 7)
    #[arg(long, value_name = "MODE", value_parser = values::node_reclaim, default_value = "off")]
    node_reclaim: NodeReclaim,

    /// Do not reclaim nodes farther away than D, from 0 to 255; a node's distance to itself is 10. The
    /// zonelist cache modes published, cache-first and original ignore it
    #[arg(long, value_name = "D", value_parser = values::reclaim_distance, default_value = "30",
          allow_hyphen_values = true)]
    reclaim_distance: u8,

    /// Do not reclaim a node unless more than this percentage of its memory is reclaimable
    #[arg(long, value_name = "PERCENT", value_parser = values::min_unmapped, default_value = "1",
          allow_hyphen_values = true)]
    min_unmapped: u8,

    /// How node load grows while fallback orders are built
    #[arg(long, value_name = "RULE", value_parser = rule::<NodeLoad>(), default_value = "accumulate")]
    node_load: NodeLoad,

    /// How far the counters of a CPU may differ: scaled with the machine, first-posting (scaled as first
    /// posted in 2006: at most 120, by present memory) or fixed:N; then any of ,to-zero (folds do not
    /// overstep), ,and-machine (with totals of the machine) and ,unchanged (not lowered under pressure)
    #[arg(long, value_name = "RULE", default_value = "scaled", allow_hyphen_values = true)]
    counters: Counters,

    /// How invalid frees are detected: with plain loads and stores, so that an invalid free that races with a
    /// valid one may be detected late (checked), or with one atomic exchange per free (exact)
    #[arg(long, value_name = "HOW", value_parser = rule::<InvalidFree>(), default_value = "exact")]
    invalid_free: InvalidFree,
}

impl AllocatorArgs {
    /// Returns the configuration that the options describe, for a pool with this many bytes or the default size.
    pub(super) fn config(&self, bytes: Option<u64>) -> Config {
        let Counters(counters) = self.counters;
        Config {
            tuning: self.tuning,
            high_fraction: self.high_fraction,
            zonelist_cache: self.zonelist_cache,
            node_reclaim: self.node_reclaim,
            reclaim_distance: self.reclaim_distance,
            min_unmapped_percent: self.min_unmapped,
            node_load: self.node_load,
            counters,
            invalid_free: self.invalid_free,
            ..Pool::default_config(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        allocator: AllocatorArgs,
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        assert_eq!(Line::parse_from(["zonal"]).allocator.config(None), Pool::default_config(None));
    }
}
