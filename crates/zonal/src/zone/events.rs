//! Event counters for display and tests, which the fast path does not use.
//!
//! Each node has its own counters, mainly for the requests that start at the node, so that CPUs of different nodes
//! rarely share a cache line. Related file: `admin/snapshot.rs` sums up the counters.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};

/// Declares the events that a node counts: the kind of each, and its field in [`Events`].
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $count:ident;)*) => {
        /// A kind of event.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Event { $($event),* }

        const EVENTS: usize = [$(Event::$event),*].len();

        /// Counts of events, summed over the machine. Units are events unless stated otherwise.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Events {
            $($(#[$doc])* pub $count: u64,)*
            /// Batches moved from zones to pagesets.
            pub refills: u64,
            /// Batches moved from pagesets to zones.
            pub drains: u64,
            /// Drains of another CPU's pageset.
            pub remote_drains: u64,
        }

        impl<P: Platform> EventCells<P> {
            /// Adds this node's counts to `sum`.
            pub(crate) fn add_to(&self, sum: &mut Events) {
                $(sum.$count += self.cells[Event::$event as usize].load(Relaxed);)*
            }
        }
    };
}

events! {
    /// Zones checked by scans of zonelists.
    Probes probes;
    /// Full bits set in zonelist caches.
    Marks marks;
    /// Times that a zonelist cache was wiped.
    Wipes wipes;
    /// Full bits cleared before they expired, because frees lifted a zone above its watermark.
    EarlyClears early_clears;
    /// Node reclaims not tried, because the caller must not wait, the node has CPUs and is not the caller's node, or
    /// another caller is reclaiming the node.
    NodeReclaimNoScan node_reclaim_no_scan;
    /// Node reclaims not tried, because too few frames can be reclaimed.
    NodeReclaimFull node_reclaim_full;
    /// Node reclaims that freed fewer frames than the request needs, or none.
    NodeReclaimSome node_reclaim_some;
    /// Node reclaims that freed at least as many frames as the request needs.
    NodeReclaimSuccess node_reclaim_success;
    /// Times that a background worker was woken.
    BackgroundWakes background_wakes;
    /// Rounds of background reclaim.
    BackgroundRounds background_rounds;
    /// Frames freed by background reclaim.
    BackgroundReclaimed background_reclaimed;
    /// Rounds of direct reclaim, in which the allocating thread itself reclaims frames.
    DirectStalls direct_stalls;
    /// Frames freed by direct reclaim.
    DirectReclaimed direct_reclaimed;
    /// Time spent in direct reclaim, in nanoseconds.
    DirectNs direct_ns;
    /// Frames retired because invalid frees had put them onto two stacks or into free memory twice.
    Retired retired;
    /// Frames of blocks whose poison was found changed on allocation, if poisoning is enabled. They are retired.
    PoisonFound poison_found;
    /// Requests that failed.
    Failures failures;
    /// Frames retired by [`Allocator::retire`](crate::Allocator::retire).
    BadFrames bad_frames;
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
}
