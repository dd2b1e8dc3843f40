//! What happened so far: counters for people and tests, off the fast path.
//!
//! Each node counts for the requests that start at it, so that the cells are rarely shared.
//! Neighbours: `snapshot.rs` sums them up.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};

/// Something worth counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Probes,
    Marks,
    Wipes,
    EarlyClears,
    NodeReclaimNoScan,
    NodeReclaimFull,
    NodeReclaimSome,
    NodeReclaimSuccess,
    BackgroundWakes,
    BackgroundRounds,
    BackgroundReclaimed,
    DirectStalls,
    DirectReclaimed,
    DirectNs,
    Retired,
    PoisonFound,
    Failures,
}

const EVENTS: usize = Event::Failures as usize + 1;

/// Counts of events, summed over the machine. Units are events unless the name says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// Zones looked at by scans of zonelists.
    pub probes: u64,
    /// Marks set in zonelist caches.
    pub marks: u64,
    /// Times a zonelist cache was wiped.
    pub wipes: u64,
    /// Marks dropped early because frees lifted a zone above its watermark.
    pub early_clears: u64,
    /// Node reclaims not tried: caller may not wait, node of others, or another caller at it.
    pub node_reclaim_no_scan: u64,
    /// Node reclaims not tried: too little to give up.
    pub node_reclaim_full: u64,
    /// Node reclaims that freed less than asked for, nothing included.
    pub node_reclaim_some: u64,
    /// Node reclaims that freed enough.
    pub node_reclaim_success: u64,
    /// Times a background worker was woken.
    pub background_wakes: u64,
    /// Rounds of background reclaim.
    pub background_rounds: u64,
    /// Frames that background reclaim freed.
    pub background_reclaimed: u64,
    /// Rounds of direct reclaim: requests that had to reclaim by themselves, once each round.
    pub direct_stalls: u64,
    /// Frames that direct reclaim freed.
    pub direct_reclaimed: u64,
    /// Time spent in direct reclaim, in nanoseconds.
    pub direct_ns: u64,
    /// Frames withheld on allocation because they were somebody's already (misuse).
    pub retired: u64,
    /// Frames found changed while free, under the poison option.
    pub poison_found: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Batches taken from zones into pagesets.
    pub refills: u64,
    /// Batches given back from pagesets to zones.
    pub drains: u64,
    /// Of these, those done for another CPU.
    pub remote_drains: u64,
}

all_zero! {
    /// The counters of one node.
    #[repr(C, align(64))]
    pub(crate) struct EventCells<P> {
        cells: [u64; EVENTS],
    }
}

// All accesses are relaxed: the counts order nothing.
impl<P: Platform> EventCells<P> {
    /// Counts `amount` of `event`.
    pub(crate) fn add(&self, event: Event, amount: u64) {
        if amount != 0 {
            self.cells[event as usize].fetch_add(amount, Relaxed);
        }
    }

    /// Adds this node's counts to `sum`.
    pub(crate) fn add_to(&self, sum: &mut Events) {
        let of = |event: Event| self.cells[event as usize].load(Relaxed);
        sum.probes += of(Event::Probes);
        sum.marks += of(Event::Marks);
        sum.wipes += of(Event::Wipes);
        sum.early_clears += of(Event::EarlyClears);
        sum.node_reclaim_no_scan += of(Event::NodeReclaimNoScan);
        sum.node_reclaim_full += of(Event::NodeReclaimFull);
        sum.node_reclaim_some += of(Event::NodeReclaimSome);
        sum.node_reclaim_success += of(Event::NodeReclaimSuccess);
        sum.background_wakes += of(Event::BackgroundWakes);
        sum.background_rounds += of(Event::BackgroundRounds);
        sum.background_reclaimed += of(Event::BackgroundReclaimed);
        sum.direct_stalls += of(Event::DirectStalls);
        sum.direct_reclaimed += of(Event::DirectReclaimed);
        sum.direct_ns += of(Event::DirectNs);
        sum.retired += of(Event::Retired);
        sum.poison_found += of(Event::PoisonFound);
        sum.failures += of(Event::Failures);
    }
}
