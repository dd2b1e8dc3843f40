//! Nodes: counters, events, reclaim state and preferred zone of one node.
//!
//! The *preferred zone* of a node is the first of its zonelist, which unconstrained requests of its CPUs try first: its
//! own highest zone, or another node's if it has no memory. Neighbours: `zone/mod.rs`, `zonelist/mod.rs`.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::platform::cells::all_zero;
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::units::{NodeId, PageCount, ZoneId};
use crate::zone::counters::{NodeItem, TOTAL_CELLS, ThresholdCells, ZonedCounters};
use crate::zone::events::EventCells;

all_zero! {
    /// The changing state of a node.
    #[repr(C)]
    pub(crate) struct NodeCells<P> {
        pub(crate) rules: (line {NodeRules<P>}),
        pub(crate) totals: (line [u64; TOTAL_CELLS]),
        /// 1 if CPUs of the node may use another zone's pageset than the preferred zone's (`pageset/slot.rs`).
        served_elsewhere: u64,
        /// 1 from a wake-up until the background worker begins.
        woken: u64,
        /// 1 while background reclaim runs.
        awake: u64,
        /// A bit for each zone in node reclaim; all bits while the whole node is.
        reclaiming: u64,
        /// Runs of background reclaim that freed nothing, since the last reclaim of the node that freed something.
        fruitless: u64,
    }
}

/// Runs of background reclaim without result after which the worker is not woken any more.
const FRUITLESS_MAX: u64 = 16;

all_zero! {
    #[repr(C)]
    pub(crate) struct NodeRules<P> {
        threshold: {ThresholdCells<P>},
        /// Number of online CPUs.
        cpus: u64,
        /// Index of the preferred zone + 1; 0 if there is no memory at all.
        preferred_zone: u64,
    }
}

/// A view of one node.
pub(crate) struct Node<'m, P: Platform> {
    pub(crate) id: NodeId,
    /// First of its zones in the machine's list, and their number.
    pub(crate) first_zone: usize,
    pub(crate) zone_count: usize,
    /// Whether the machine has CPUs on this node, online or not.
    pub(crate) has_cpus: bool,
    pub(crate) cells: &'m NodeCells<P>,
    /// The node's counters. Stored here instead of made from `cells` each time, because the machine's totals are needed
    /// only in folds, which are rare.
    pub(crate) counters: ZonedCounters<'m, P, NodeItem>,
    pub(crate) events: &'m EventCells<P>,
}

copy_view!(Node);

impl<P: Platform> NodeCells<P> {
    /// Returns the node's counters.
    pub(crate) const fn counters(&self) -> ZonedCounters<'_, P, NodeItem> {
        ZonedCounters::new(&self.totals.0, &self.rules.0.threshold)
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// Returns the preferred zone.
    #[inline]
    pub(crate) fn preferred_zone(&self) -> Option<usize> {
        (self.cells.rules.0.preferred_zone.load(Relaxed) as usize).checked_sub(1) // relaxed: a hint
    }

    /// Sets the preferred zone.
    pub(crate) fn set_preferred_zone(&self, zone: Option<ZoneId>) {
        let preferred_zone = zone.map_or(0, |zone| zone.index() as u64 + 1);
        self.cells.rules.0.preferred_zone.store(preferred_zone, Relaxed); // relaxed: a hint; states decide about frames
    }

    /// Records that a CPU of the node is about to use another zone's pageset than the preferred zone's.
    pub(crate) fn note_served_elsewhere(&self) {
        // Relaxed: a hint. Read before it is written to keep the cache line shared.
        if self.cells.served_elsewhere.load(Relaxed) == 0 {
            self.cells.served_elsewhere.store(1, Relaxed);
        }
    }

    /// Whether CPUs of the node may use another zone's pageset; clears the record, so the caller must recall them.
    pub(crate) fn end_served_elsewhere(&self) -> bool {
        self.cells.served_elsewhere.load(Relaxed) != 0 && self.cells.served_elsewhere.swap(0, Relaxed) != 0 // relaxed: a hint
    }

    /// Records that background reclaim is wanted; returns `true` for the first caller since the worker last began.
    pub(crate) fn want_background(&self) -> bool {
        // Swapped without reading it first: a read could return 1 after the worker has begun and has already checked
        // the zones. AcqRel: pairs with `background_begins`, so the worker sees the writes of callers that are not
        // first. Relaxed: a hint.
        self.cells.fruitless.load(Relaxed) < FRUITLESS_MAX && self.cells.woken.swap(1, AcqRel) == 0
    }

    /// Records how much a reclaim of the node freed.
    pub(crate) fn note_reclaimed(&self, freed: PageCount) {
        // Relaxed: a hint.
        if freed != PageCount::ZERO {
            self.cells.fruitless.store(0, Relaxed);
        }
    }

    /// Whether the background worker is no longer woken, because reclaim has freed nothing for too long.
    pub(crate) fn is_unreclaimable(&self) -> bool {
        self.cells.fruitless.load(Relaxed) >= FRUITLESS_MAX // relaxed: for display only
    }

    /// Records a run of background reclaim that freed nothing.
    pub(crate) fn note_fruitless(&self) {
        self.cells.fruitless.fetch_add(1, Relaxed); // relaxed: a hint
    }

    /// Returns the number of online CPUs of the node.
    pub(crate) fn cpus_online(&self) -> u32 {
        self.cells.rules.0.cpus.load(Relaxed) as u32 // relaxed: an independent value
    }

    /// Sets the number of online CPUs.
    pub(crate) fn set_cpus_online(&self, cpus: u32) {
        self.cells.rules.0.cpus.store(u64::from(cpus), Relaxed); // relaxed: an independent value
    }

    /// Records that the background worker begins; later callers that want it wake it again.
    ///
    /// Returns `false` if another worker is running.
    pub(crate) fn background_begins(&self) -> bool {
        self.cells.woken.swap(0, AcqRel); // AcqRel: sees the writes of callers that wanted it before
        self.cells.awake.swap(1, AcqRel) == 0 // AcqRel: one worker at a time
    }

    /// Records that the background worker ends.
    pub(crate) fn background_ends(&self) {
        self.cells.awake.swap(0, AcqRel); // pairs with the next `background_begins`
    }

    /// Reserves node reclaim of the whole node for the caller, until the turn is dropped.
    pub(crate) fn try_reclaim_turn(&self) -> Option<ReclaimTurn<'m, P>> {
        let cell = &self.cells.reclaiming;
        // Relaxed read first, to keep the cache line shared; AcqRel pairs with the end of the turn before.
        let free = cell.load(Relaxed) == 0 && cell.compare_exchange(0, u64::MAX, AcqRel, Relaxed).is_ok();
        free.then(|| ReclaimTurn { cell, bits: u64::MAX }) // not `then_some`: dropping a turn ends it
    }

    /// Reserves node reclaim of `zone`, one of this node's, for the caller, until the turn is dropped.
    pub(crate) fn try_zone_turn(&self, zone: ZoneId) -> Option<ReclaimTurn<'m, P>> {
        let cell = &self.cells.reclaiming;
        let bits = 1_u64 << (zone.index() - self.first_zone).min(63); // a node has far fewer zones
        // As above; a bit that was set belongs to another turn, which clears it.
        let free = cell.load(Relaxed) & bits == 0 && cell.fetch_or(bits, AcqRel) & bits == 0;
        free.then(|| ReclaimTurn { cell, bits })
    }
}

/// The right to run node reclaim on a node, or on one of its zones.
pub(crate) struct ReclaimTurn<'m, P: Platform> {
    cell: &'m P::U64,
    bits: u64,
}

impl<P: Platform> Drop for ReclaimTurn<'_, P> {
    fn drop(&mut self) {
        self.cell.fetch_and(!self.bits, AcqRel); // pairs with the start of the next turn
    }
}
