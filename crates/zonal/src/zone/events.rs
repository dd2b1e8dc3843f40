//! Event counters for display and tests, which the fast path does not use.
//!
//! Each node has its own counters, mainly for the requests that start at the node, so that CPUs of different nodes
//! rarely share a cache line. Related file: `admin/snapshot.rs` sums up the counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};

/// A kind of event.
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
    BadFrames,
}

const EVENTS: usize = Event::BadFrames as usize + 1;

/// Counts of events, summed over the machine. Units are events unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// Zones checked by scans of zonelists.
    pub probes: u64,
    /// Full bits set in zonelist caches.
    pub marks: u64,
    /// Times that a zonelist cache was wiped.
    pub wipes: u64,
    /// Full bits cleared before they expired, because frees lifted a zone above its watermark.
    pub early_clears: u64,
    /// Node reclaims not tried, because the caller must not wait, the node has CPUs and is not the caller's node, or
    /// another caller is reclaiming the node.
    pub node_reclaim_no_scan: u64,
    /// Node reclaims not tried, because too few frames can be reclaimed.
    pub node_reclaim_full: u64,
    /// Node reclaims that freed fewer frames than the request needs, or none.
    pub node_reclaim_some: u64,
    /// Node reclaims that freed at least as many frames as the request needs.
    pub node_reclaim_success: u64,
    /// Times that a background worker was woken.
    pub background_wakes: u64,
    /// Rounds of background reclaim.
    pub background_rounds: u64,
    /// Frames freed by background reclaim.
    pub background_reclaimed: u64,
    /// Rounds of direct reclaim, in which the allocating thread itself reclaims frames.
    pub direct_stalls: u64,
    /// Frames freed by direct reclaim.
    pub direct_reclaimed: u64,
    /// Time spent in direct reclaim, in nanoseconds.
    pub direct_ns: u64,
    /// Frames retired because invalid frees had put them onto two stacks or into free memory twice.
    pub retired: u64,
    /// Frames whose poison was found changed on allocation, if poisoning is enabled. They are not used again, and count as
    /// allocated.
    pub poison_found: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Frames retired by [`Allocator::retire`](crate::Allocator::retire).
    pub bad_frames: u64,
    /// Batches moved from zones to pagesets.
    pub refills: u64,
    /// Batches moved from pagesets to zones.
    pub drains: u64,
    /// Drains of another CPU's pageset.
    pub remote_drains: u64,
}

all_zero! {
    /// The event counters of one node.
    #[repr(C, align(64))]
    pub(crate) struct EventCells<P> {
        cells: [u64; EVENTS],
    }
}

// All accesses are relaxed, because the counts order no other accesses.
impl<P: Platform> EventCells<P> {
    /// Adds `amount` to the count of `event`.
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
        sum.bad_frames += of(Event::BadFrames);
    }
}
