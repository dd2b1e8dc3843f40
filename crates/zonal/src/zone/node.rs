//! One node: its counters, events, reclaim state, home zone and zonelist, seen together.
//!
//! Vocabulary: the *home* zone of a node is the first of its zonelist, the one that unconstrained
//! requests of its CPUs try first: its own highest zone, or a neighbour's if it has no memory. Neighbours: `zone.rs`, `zonelist.rs`.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::platform::cells::all_zero;
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::units::{NodeId, PageCount, ZoneId};
use crate::zone::counters::{NodeItem, TOTAL_CELLS, ThresholdCells, ZonedCounters};
use crate::zone::events::EventCells;

all_zero! {
    /// What changes in a node.
    #[repr(C)]
    pub(crate) struct NodeCells<P> {
        pub(crate) rules: (line {NodeRules<P>}),
        pub(crate) totals: (line [u64; TOTAL_CELLS]),
        /// 1 if CPUs of the node may be away from home (`preferred_zone.rs`).
        away: u64,
        /// 1 from a wake-up until the background worker begins.
        woken: u64,
        /// 1 while background reclaim works.
        awake: u64,
        /// A bit for each zone that somebody is at in node reclaim; all of them while it is the whole node.
        reclaiming: u64,
        /// Runs of background reclaim that freed nothing, since any reclaim of the node freed something.
        fruitless: u64,
    }
}

/// Runs of background reclaim without result after which nobody wakes it any more.
const FRUITLESS_MAX: u64 = 16;

all_zero! {
    #[repr(C)]
    pub(crate) struct NodeRules<P> {
        threshold: {ThresholdCells<P>},
        /// CPUs online.
        cpus: u64,
        /// Home zone + 1; 0 = there is no memory at all.
        preferred_zone: u64,
    }
}

/// View of one node.
pub(crate) struct Node<'m, P: Platform> {
    pub(crate) id: NodeId,
    /// First of its zones in the machine's list, and how many.
    pub(crate) first_zone: usize,
    pub(crate) zone_count: usize,
    /// Whether the machine gives it CPUs, online or not.
    pub(crate) has_cpus: bool,
    pub(crate) cells: &'m NodeCells<P>,
    /// The node's counters. Here, not made from `cells` each time, for folds are rare and the machine's
    /// totals rarer.
    pub(crate) counters: ZonedCounters<'m, P, NodeItem>,
    pub(crate) events: &'m EventCells<P>,
}

copy_view!(Node);

impl<P: Platform> NodeCells<P> {
    /// The node's counters.
    pub(crate) const fn counters(&self) -> ZonedCounters<'_, P, NodeItem> {
        ZonedCounters::new(&self.totals.0, &self.rules.0.threshold)
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// The home zone.
    #[inline]
    pub(crate) fn preferred_zone(&self) -> Option<usize> {
        (self.cells.rules.0.preferred_zone.load(Relaxed) as usize).checked_sub(1) // relaxed: a hint
    }

    /// Sets the home zone.
    pub(crate) fn set_preferred_zone(&self, zone: Option<ZoneId>) {
        let preferred_zone = zone.map_or(0, |zone| zone.index() as u64 + 1);
        self.cells.rules.0.preferred_zone.store(preferred_zone, Relaxed); // relaxed: a hint, frames are claimed exactly
    }

    /// Notes that a CPU of the node is about to be away from home.
    pub(crate) fn note_served_elsewhere(&self) {
        // Relaxed: a hint. Read before it is written to leave the line shared.
        if self.cells.away.load(Relaxed) == 0 {
            self.cells.away.store(1, Relaxed);
        }
    }

    /// Whether CPUs of the node may be away; they are not once the caller has called them home.
    pub(crate) fn end_served_elsewhere(&self) -> bool {
        self.cells.away.load(Relaxed) != 0 && self.cells.away.swap(0, Relaxed) != 0 // relaxed: a hint
    }

    /// Notes that background reclaim is wanted; `true` for the first to want it since the worker
    /// last began.
    pub(crate) fn want_background(&self) -> bool {
        // No look first: it could find 1 when the worker has begun, and has seen the zones as they were
        // before. AcqRel pairs with `background_begins`: who is not the first is seen by the worker.
        // Relaxed: a hint.
        self.cells.fruitless.load(Relaxed) < FRUITLESS_MAX && self.cells.woken.swap(1, AcqRel) == 0
    }

    /// Notes what a reclaim of the node freed.
    pub(crate) fn note_reclaimed(&self, freed: PageCount) {
        // Relaxed: a hint.
        if freed != PageCount::ZERO {
            self.cells.fruitless.store(0, Relaxed);
        }
    }

    /// Whether the background worker is no longer woken, because reclaim has freed nothing for too long.
    pub(crate) fn is_unreclaimable(&self) -> bool {
        self.cells.fruitless.load(Relaxed) >= FRUITLESS_MAX // relaxed: a figure for people
    }

    /// Notes a run of background reclaim that freed nothing.
    pub(crate) fn note_fruitless(&self) {
        self.cells.fruitless.fetch_add(1, Relaxed); // relaxed: a hint
    }

    /// CPUs of the node that are online.
    pub(crate) fn cpus_online(&self) -> u32 {
        self.cells.rules.0.cpus.load(Relaxed) as u32 // relaxed: a figure of its own
    }

    /// Sets the number of CPUs online.
    pub(crate) fn set_cpus_online(&self, cpus: u32) {
        self.cells.rules.0.cpus.store(u64::from(cpus), Relaxed); // relaxed: a figure of its own
    }

    /// The background worker begins: whoever wants it from now on wakes it again. `false` when
    /// another worker is at it.
    pub(crate) fn background_begins(&self) -> bool {
        self.cells.woken.swap(0, AcqRel); // sees what those who wanted it did before
        self.cells.awake.swap(1, AcqRel) == 0 // one worker at a time
    }

    /// The background worker rests.
    pub(crate) fn background_ends(&self) {
        self.cells.awake.swap(0, AcqRel); // pairs with the next `background_begins`
    }

    /// Becomes the one caller at node reclaim of the whole node, until the turn is dropped.
    pub(crate) fn try_reclaim_turn(&self) -> Option<ReclaimTurn<'m, P>> {
        let cell = &self.cells.reclaiming;
        // Relaxed look first, to leave the line shared; AcqRel pairs with the end of the turn before.
        let free = cell.load(Relaxed) == 0 && cell.compare_exchange(0, u64::MAX, AcqRel, Relaxed).is_ok();
        free.then(|| ReclaimTurn { cell, bits: u64::MAX }) // not `then_some`: what is dropped ends a turn
    }

    /// Becomes the one caller at node reclaim of `zone`, one of this node's, until the turn is dropped.
    pub(crate) fn try_zone_turn(&self, zone: ZoneId) -> Option<ReclaimTurn<'m, P>> {
        let cell = &self.cells.reclaiming;
        let bits = 1_u64 << (zone.index() - self.first_zone).min(63); // zones of a node are fewer by far
        // As above; a bit that was set belongs to another turn, which clears it.
        let free = cell.load(Relaxed) & bits == 0 && cell.fetch_or(bits, AcqRel) & bits == 0;
        free.then(|| ReclaimTurn { cell, bits })
    }
}

/// The right to reclaim a node, or one zone of it, in node reclaim.
pub(crate) struct ReclaimTurn<'m, P: Platform> {
    cell: &'m P::U64,
    bits: u64,
}

impl<P: Platform> Drop for ReclaimTurn<'_, P> {
    fn drop(&mut self) {
        self.cell.fetch_and(!self.bits, AcqRel); // pairs with the start of the next turn
    }
}
