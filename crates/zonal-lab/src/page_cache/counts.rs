//! Reclaim counters.

use std::cell::Cell;

use zonal::platform::reclaimer::ReclaimReason;

/// Reclaim counters, in pages of the LRU lists. The direct counters include node reclaim, like Linux's
/// `pgscan_direct`.
#[derive(Default, Debug)]
pub struct Counts {
    pub(super) direct_scanned: Cell<u64>,
    pub(super) direct_reclaimed: Cell<u64>,
    pub(super) background_scanned: Cell<u64>,
    pub(super) background_reclaimed: Cell<u64>,
    pub(super) with_files: Cell<u64>,
}

impl Counts {
    /// Returns the number of pages scanned by threads that reclaim for their own requests.
    #[must_use]
    pub fn direct_scanned(&self) -> u64 {
        self.direct_scanned.get()
    }

    /// Returns the number of pages freed by threads that reclaim for their own requests.
    #[must_use]
    pub fn direct_reclaimed(&self) -> u64 {
        self.direct_reclaimed.get()
    }

    /// Returns the number of pages scanned by background reclaim.
    #[must_use]
    pub fn background_scanned(&self) -> u64 {
        self.background_scanned.get()
    }

    /// Returns the number of pages freed by background reclaim.
    #[must_use]
    pub fn background_reclaimed(&self) -> u64 {
        self.background_reclaimed.get()
    }

    /// Returns how many pages direct and background reclaim freed by dropping pages of unused files.
    #[must_use]
    pub fn with_files(&self) -> u64 {
        self.with_files.get()
    }

    pub(super) fn add(&self, reason: ReclaimReason, scanned: u64, reclaimed: u64) {
        let (scans, gains) = match reason {
            ReclaimReason::Background => (&self.background_scanned, &self.background_reclaimed),
            _ => (&self.direct_scanned, &self.direct_reclaimed),
        };
        scans.set(scans.get() + scanned);
        gains.set(gains.get() + reclaimed);
    }
}
