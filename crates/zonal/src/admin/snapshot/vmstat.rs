//! `/proc/vmstat`: machine-wide counters.
//!
//! Counters that Linux also has use its names: `allocstall` counts rounds of direct reclaim, `pageoutrun` counts
//! rounds of background reclaim, and `zone_reclaim_failed` counts node reclaims that freed too few frames.

use core::fmt;

use super::Locality;
use super::text::Snapshot;
use crate::platform::Platform;
use crate::units::PageCount;

/// Names of the allocated-frame counts, by kind.
pub(super) const ALLOCATED: [&str; 3] = ["zonal_nr_user", "zonal_nr_cache", "zonal_nr_kernel"];
/// Names of the counts for frames freed by background, direct and node reclaim.
pub(super) const RECLAIMED: [&str; 3] = ["pgsteal_kswapd", "pgsteal_direct", "zonal_pgsteal_node_reclaim"];

pub(super) struct VmStat<'a, 'm, P: Platform>(pub(super) Snapshot<'a, 'm, P>);

impl<P: Platform> fmt::Display for VmStat<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allocator = self.0.0;
        writeln!(f, "nr_free_pages {}", allocator.accounting().free)?;
        locality(f, &allocator.locality(), "")?;
        let (mut allocated, mut reclaimed) = ([PageCount::ZERO; 3], [PageCount::ZERO; 3]);
        for node in allocator.nodes() {
            allocated.iter_mut().zip(node.allocated).for_each(|(sum, more)| *sum = sum.plus(more));
            reclaimed.iter_mut().zip(node.reclaimed).for_each(|(sum, more)| *sum = sum.plus(more));
        }
        let pages = ALLOCATED.iter().zip(allocated).chain(RECLAIMED.iter().zip(reclaimed));
        for (name, pages) in pages {
            writeln!(f, "{name} {pages}")?;
        }
        let events = allocator.events();
        for (name, count) in [
            ("pageoutrun", events.background_rounds),
            ("allocstall", events.direct_stalls),
            ("zone_reclaim_success", events.node_reclaim_success),
            ("zone_reclaim_failed", events.node_reclaim_some),
            ("zonal_node_reclaim_no_scan", events.node_reclaim_no_scan),
            ("zonal_node_reclaim_full", events.node_reclaim_full),
            ("zonal_background_wakes", events.background_wakes),
            ("zonal_direct_reclaim_ns", events.direct_ns),
            ("zonal_zones_probed", events.probes),
            ("zonal_full_bits_set", events.marks),
            ("zonal_full_bits_cleared_early", events.early_clears),
            ("zonal_zonelist_cache_wipes", events.wipes),
            ("zonal_pageset_refills", events.refills),
            ("zonal_pageset_drains", events.drains),
            ("zonal_pageset_remote_drains", events.remote_drains),
            ("zonal_frames_retired", events.retired),
            ("zonal_poison_found", events.poison_found),
            ("zonal_failures", events.failures),
        ] {
            writeln!(f, "{name} {count}")?;
        }
        Ok(())
    }
}

/// Writes the counters of NUMA events with the names that Linux uses for zones and for the machine, each line after
/// `indent`.
pub(super) fn locality(f: &mut fmt::Formatter<'_>, locality: &Locality, indent: &str) -> fmt::Result {
    let width = if indent.is_empty() { 0 } else { 12 };
    for (name, blocks) in [
        ("numa_hit", locality.hit),
        ("numa_miss", locality.miss),
        ("numa_foreign", locality.foreign),
        ("numa_interleave", locality.interleave_hit),
        ("numa_local", locality.local),
        ("numa_other", locality.other),
    ] {
        writeln!(f, "{indent}{name:<width$} {blocks}")?;
    }
    Ok(())
}
