//! The modes of the zonelist cache (M1, M3), and what a past form of its scan must do.
//!
//! The core scans with the modes `On` and `Off`. A past mode is a [`ScanForm`], which walks the list itself: it gets the
//! scan as a [`ZonelistScan`], whose steps allocate or, in an explanation, only report what they would do. The crate
//! `zonal-history` has the past forms. Related file: `alloc/scan.rs` implements the steps.

use core::fmt::Debug;

/// The mode of the zonelist cache, which lets scans skip zones that were full recently (mechanisms M1 and M3 of the
/// README; Jackson 2006, Gorman 2011). All modes but `On` and `Off` select a [`ScanForm`], which the program must link.
///
/// A *scan* walks a zonelist until one of its zones serves the request. The cache has a *full bit* for each
/// zone of a zonelist. A scan sets the full bit of a zone that cannot serve its request, and later scans skip the zone.
/// Before a scan uses the full bits, it clears all of them if the last clearing was more than a second ago.
///
/// M3 consists of two changes. First, a scan checks the full bits before it reclaims its first zone, and too few
/// reclaimable frames are no longer a reason to set a full bit. Second, full bits are cleared when direct reclaim has
/// freed frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZonelistCache {
    /// A full bit affects only scans that are at least as hard to serve as the scan that set it. These scans have the
    /// same or a higher class of orders (0, 1 to 3, or above), watermark and zone limit, and the same or a lower
    /// urgency. A scan checks the full bits of 64 zones at a time.
    #[default]
    On,
    /// M1 with both changes of M3, as in Linux 3.1 to 4.3. A full bit affects every scan of the zonelist for up to a
    /// second. This mode and the following three reclaim one zone at a time and ignore
    /// [`reclaim_distance`](crate::Config::reclaim_distance), as Linux did in these versions.
    Published,
    /// M1 with only the first change of M3. Unlike with `Published`, full bits remain set when direct reclaim has freed
    /// frames.
    CacheFirst,
    /// M1 without M3, as in Linux 2.6.31 to 3.0: the baseline of M3. Full bits remain set when direct reclaim has freed
    /// frames. A scan checks full bits only in two cases: after its first zone and node reclaim of that zone have failed, or
    /// if the cpuset excludes that zone. If node reclaim finds too few reclaimable frames in a zone, the scan sets the
    /// zone's full bit. If node reclaim does not run, the scan skips the zone without setting the bit.
    Original,
    /// M1 as published, in Linux 2.6.20. Unlike with `Original`, each zone limit has full bits of its own. A zone whose node
    /// reclaim freed enough serves without another watermark check; if node reclaim freed too little or did not run, the
    /// scan sets the zone's full bit. Requests that only one node may serve use the cache too, and those under a binding
    /// policy do not.
    Jackson2006,
    /// The cache is not used: every scan checks every zone.
    Off,
}

impl ZonelistCache {
    /// Whether a [`ScanForm`] implements the mode.
    pub(crate) const fn is_past(self) -> bool {
        !matches!(self, Self::On | Self::Off)
    }
}

/// A past form of the scan. Scans of all orders, watermarks and urgencies share one full bit for each zone in a zonelist.
///
/// While a past form is selected, each reclaim covers one zone, as in Linux before 4.8, instead of a whole node, and node
/// reclaim ignores [`reclaim_distance`](crate::Config::reclaim_distance), which was introduced later. The last scan before
/// a request fails is an ordinary scan.
pub trait ScanForm: Debug + Sync + core::panic::RefUnwindSafe {
    /// Returns the mode that selects the form.
    fn zonelist_cache(&self) -> ZonelistCache;

    /// Walks the list until a zone serves the request.
    fn walk(&self, scan: &mut dyn ZonelistScan);

    /// Whether direct reclaim that freed frames clears all full bits of the requester's zonelist (the second change of
    /// M3).
    fn reconsiders(&self) -> bool;

    /// Whether a scan always tries the nearest zone that the cpuset allows. If so, requests need no scan while the current
    /// CPU's pageset of that zone has blocks.
    fn tries_nearest(&self) -> bool;

    /// Whether requests under a binding policy use the cache. Scans without it are repeated too, except on a machine with one
    /// node.
    fn serves_bound(&self) -> bool;

    /// Whether requests that only one node may serve use the cache, also if the machine has only this node.
    fn serves_one_node(&self) -> bool;

    /// Whether scans with different zone limits have full bits of their own.
    fn separates_limits(&self) -> bool;

    /// Whether a zone serves after node reclaim that freed enough although it is still below the watermark.
    fn trusts_reclaim(&self) -> bool;
}

impl PartialEq for dyn ScanForm {
    fn eq(&self, other: &Self) -> bool {
        self.zonelist_cache() == other.zonelist_cache()
    }
}

impl Eq for dyn ScanForm {}

/// One scan of a zonelist, as the steps that a [`ScanForm`] takes. It begins before the first zone, without the cache.
///
/// In an explanation, the steps change nothing, and continue as if reclaim freed nothing.
pub trait ZonelistScan {
    /// Whether the cpuset excludes the node of the first zone within the request's zone limit.
    fn begins_outside_cpuset(&mut self) -> bool;

    /// Makes the scan respect full bits from now on, and first clears them if the last clearing was more than a second ago.
    /// Only the first call has an effect.
    fn set_up_cache(&mut self);

    /// Moves to the next zone that may serve the request and whose full bit, if the scan respects it, is not set. Returns
    /// `false` at the end of the list.
    fn advance(&mut self) -> bool;

    /// Allocates from the current zone, if the zone is above the watermark and has a block. Returns whether it did. A scan
    /// allocates one block; once it has, this step and [`Self::try_reclaimed`] allocate nothing.
    fn try_zone(&mut self) -> bool;

    /// Runs node reclaim for the current zone, which did not serve. Returns `None` if node reclaim is off or cannot help,
    /// and [`ReclaimStep::FailedRecently`] if the scan respects full bits and that of the zone is set.
    fn reclaim_zone(&mut self) -> Option<ReclaimStep>;

    /// Allocates from the current zone after reclaim, as [`ScanForm::trusts_reclaim`] says. Returns whether it did.
    fn try_reclaimed(&mut self) -> bool;

    /// Sets the full bit of the current zone.
    fn mark_full(&mut self);

    /// Moves back before the first zone, and makes the scan ignore full bits. Returns `false` if that cannot help, because
    /// the scan skipped no zone.
    fn restart_without_cache(&mut self) -> bool;
}

messages! {
    /// What became of node reclaim.
    pub enum ReclaimStep {
        /// It failed for such a request within the last second, so it is not tried again.
        FailedRecently => "failed within the last second",
        /// The request may not reclaim the node: it may not wait, the node has CPUs of its own, or another CPU reclaims it.
        NotTried => "is not allowed or already running",
        /// Too few frames can be reclaimed.
        TooFew => "has too little to free",
        /// It was tried and freed nothing.
        Nothing => "freed nothing",
        /// It freed fewer frames than the request needs.
        Some => "freed too little",
        /// It freed enough frames.
        Success => "freed enough",
        /// It would be tried; how much the reclaimers would free is not known before.
        WouldRun => "would be run",
    }
}
