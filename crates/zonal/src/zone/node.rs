//! Nodes: the counters, events, reclaim state and preferred zone of one node.
//!
//! A node's *preferred zone* is the first zone of its zonelist, which unconstrained requests of its CPUs try
//! first. It is the node's own highest zone with memory, or a zone of another node if the node has no memory. Related
//! files: `zone/mod.rs` has the zones, and `zonelist/mod.rs` has the zonelists.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::metadata::regions::{Part, first_true, holds};
use crate::platform::cells::{all_zero, copy_view};
use crate::platform::{Atomic, Platform};
use crate::units::{Moment, NodeId, PageCount, SECOND_NS, ZoneId};
use crate::zone::counters::{NodeItem, ProcessTotals, TOTAL_CELLS, ThresholdCells, ZonedCounters};
use crate::zone::events::EventCells;
use crate::zone::processes::HandoverCells;
use crate::zone::stalls::StallCells;

all_zero! {
    /// The changing state of a node.
    #[repr(C)]
    pub(crate) struct NodeCells<P> {
        rules: (line {NodeRules<P>}),
        totals: (line [u64; TOTAL_CELLS]),
        pub(crate) stalls: (line {StallCells<P>}),
    }
}

all_zero! {
    /// What a process does with a node: each has pagesets, workers and reclaimers of its own.
    #[repr(C)]
    pub(crate) struct NodeUse<P> {
        /// 1 if the node's CPUs may use a pageset of a zone that is not the preferred zone (`pageset/slot.rs`).
        pub(crate) served_elsewhere: (line u64),
        /// 1 from the moment at which a request wakes the background worker until the worker begins.
        woken: u64,
        /// 1 while background reclaim of the node runs.
        awake: u64,
        /// One bit for each zone that node reclaim is reclaiming; all bits while it is reclaiming the whole node.
        reclaiming: u64,
        /// Number of background reclaim runs that freed no frames, since the last reclaim of the node that freed
        /// some.
        fruitless: u64,
        /// Time of the last such run.
        fruitless_at: u64,
        /// 1 from the report that the node is below `low` until the report that it is above `high`.
        pub(crate) is_low: u64,
        /// For each pressure kind, time of the last event + 1 (`reclaim/pressure.rs`); 0 if there was none.
        pub(crate) reported_at: [u64; 4],
    }
}

/// Number of background reclaim runs without result after which requests wake the worker only once a second.
const FRUITLESS_MAX: u64 = 16;

all_zero! {
    #[repr(C)]
    struct NodeRules<P> {
        threshold: {ThresholdCells<P>},
        /// Number of online CPUs.
        pub(crate) cpus: u64,
        /// Index of the preferred zone + 1; 0 if there is no memory at all.
        preferred_zone: u64,
    }
}

/// A view of one node.
pub(crate) struct Node<'m, P: Platform> {
    pub(crate) id: NodeId,
    /// Index of the node's first zone in the machine's list, and number of its zones.
    pub(crate) first_zone: usize,
    pub(crate) zone_count: usize,
    /// Whether the machine has CPUs on this node, online or not.
    pub(crate) has_cpus: bool,
    pub(crate) cells: &'m NodeCells<P>,
    /// The node's counters, with the reference to the machine's totals that folds need and `cells` does not contain.
    pub(crate) counters: ZonedCounters<'m, P, NodeItem>,
    pub(crate) events: &'m EventCells<P>,
    /// What this process does with the node.
    pub(crate) own: &'m NodeUse<P>,
    /// Totals by process, and the block that is changing hands, if processes share the allocator.
    pub(crate) by_process: &'m [ProcessTotals<P>],
    pub(crate) handover: Option<&'m HandoverCells<P>>,
}

copy_view!(Node);

impl<P: Platform> NodeCells<P> {
    /// Returns the node's counters, which also count in the totals of the machine if there are any.
    pub(crate) const fn counters<'m>(
        &'m self,
        machine: Option<&'m [P::U64; TOTAL_CELLS]>,
    ) -> ZonedCounters<'m, P, NodeItem> {
        ZonedCounters::new(&self.totals.0, &self.rules.0.threshold, machine)
    }
}

impl<'m, P: Platform> Node<'m, P> {
    /// Returns which part of the node's metadata contains the byte at `address`.
    pub(crate) fn part_at(&self, address: usize) -> Option<Part> {
        first_true([
            (holds(&self.cells.rules, address), Part::NodeRules(self.id)),
            (holds(&self.cells.totals, address), Part::NodeTotals(self.id)),
            (holds(self.cells, address) || holds(self.own, address), Part::NodeState(self.id)),
            (holds(self.events, address), Part::Events(self.id)),
        ])
    }

    /// Returns the preferred zone.
    #[inline]
    pub(crate) fn preferred_zone(&self) -> Option<usize> {
        (self.cells.rules.0.preferred_zone.load(Relaxed) as usize).checked_sub(1) // relaxed: a hint
    }

    /// Sets the preferred zone.
    pub(crate) fn set_preferred_zone(&self, zone: Option<ZoneId>) {
        let preferred_zone = zone.map_or(0, |zone| zone.index() as u64 + 1);
        self.cells.rules.0.preferred_zone.store(preferred_zone, Relaxed); // relaxed: a hint; frame states decide
    }

    /// Records that one of the node's CPUs is about to use a pageset for a zone that is not the preferred zone.
    pub(crate) fn note_served_elsewhere(&self) {
        // Relaxed: a hint. The cell is read before it is written, to keep the cache line shared.
        if self.own.served_elsewhere.0.load(Relaxed) == 0 {
            self.own.served_elsewhere.0.store(1, Relaxed);
        }
    }

    /// Records a request for background reclaim.
    ///
    /// Returns `true` for the first caller since the worker last began, which must wake the worker. Returns `false` if
    /// the node was unreclaimable within the last second. Later the reclaimers may have frames that they can free.
    pub(crate) fn want_background(&self, platform: &P) -> bool {
        // `woken` is swapped without a read before it. A separate read could return 1 although the worker has begun and
        // has already checked the zones. The load of the time is relaxed: a hint.
        let is_old = || platform.now().ns().abs_diff(self.own.fruitless_at.load(Relaxed)) > SECOND_NS;
        // AcqRel: takes the worker's start, publishes every caller's writes; pairs with `Node::background_begins`.
        (!self.is_unreclaimable() || is_old()) && self.own.woken.swap(1, AcqRel) == 0
    }

    /// Records how many frames a reclaim of the node freed.
    pub(crate) fn note_reclaimed(&self, freed: PageCount) {
        // Relaxed: a hint.
        if freed != PageCount::ZERO {
            self.own.fruitless.store(0, Relaxed);
        }
    }

    /// Whether requests rarely wake the background worker, because many runs of reclaim have freed no frames.
    pub(crate) fn is_unreclaimable(&self) -> bool {
        self.own.fruitless.load(Relaxed) >= FRUITLESS_MAX // relaxed: a hint
    }

    /// Records a run of background reclaim that freed nothing.
    pub(crate) fn note_fruitless(&self, now: Moment) {
        self.own.fruitless_at.store(now.ns(), Relaxed); // relaxed: a hint
        self.own.fruitless.fetch_add(1, Relaxed); // relaxed: a hint
    }

    /// Returns the number of online CPUs on the node.
    pub(crate) fn cpus_online(&self) -> u32 {
        self.cells.rules.0.cpus.load(Relaxed) as u32 // relaxed: an independent value
    }

    /// Sets the number of online CPUs.
    pub(crate) fn set_cpus_online(&self, cpus: u32) {
        self.cells.rules.0.cpus.store(u64::from(cpus), Relaxed); // relaxed: an independent value
    }

    /// Records that the background worker begins; the next request for background reclaim wakes it again.
    ///
    /// Returns `false` if another worker is running.
    pub(crate) fn background_begins(&self) -> bool {
        // AcqRel: takes the writes of all callers, publishes the start; pairs with `Node::want_background`.
        self.own.woken.swap(0, AcqRel);
        // AcqRel: takes the previous run's writes, publishes the start; pairs with `background_ends`, `forget_callers`.
        self.own.awake.swap(1, AcqRel) == 0
    }

    /// Records that the background worker ends.
    pub(crate) fn background_ends(&self) {
        // AcqRel: takes the start, publishes the run's writes; pairs with `Node::background_begins`.
        self.own.awake.swap(0, AcqRel);
    }

    /// Records that nothing reclaims the node for this process, which may have begun in the place of one that has died. Two reclaims
    /// that run at once for a moment do no harm.
    pub(crate) fn forget_callers(&self) {
        for cell in [&self.own.woken, &self.own.awake, &self.own.reclaiming] {
            // AcqRel: takes the starts, publishes the recovery; pairs with `Node::background_begins`.
            cell.swap(0, AcqRel);
        }
        self.counters.forget_pressure();
    }

    /// Reserves node reclaim of `zone`, a zone of this node, or of the whole node for the caller, until the turn is dropped.
    pub(crate) fn try_turn(&self, zone: Option<ZoneId>) -> Option<ReclaimTurn<'m, P>> {
        let cell = &self.own.reclaiming;
        let bit = |zone: ZoneId| 1_u64 << (zone.index() - self.first_zone).min(63); // a node has far fewer zones
        let (bits, seen) = (zone.map_or(u64::MAX, bit), cell.load(Relaxed)); // relaxed: the next access decides
        // AcqRel: takes the previous turn's writes, publishes the start; pairs with `ReclaimTurn::drop`.
        let take_all = || cell.compare_exchange(0, bits, AcqRel, Relaxed).is_ok();
        // A bit that was already set belongs to another turn, which clears it.
        // AcqRel: takes the previous turn's writes, publishes the start; pairs with `ReclaimTurn::drop`.
        let take_one = || cell.fetch_or(bits, AcqRel) & bits == 0;
        let free = seen & bits == 0 && if zone.is_some() { take_one() } else { take_all() };
        free.then(|| ReclaimTurn { cell, bits }) // not `then_some`: dropping a turn ends it
    }
}

/// The right to run node reclaim on a node, or on one of its zones.
pub(crate) struct ReclaimTurn<'m, P: Platform> {
    cell: &'m P::U64,
    bits: u64,
}

impl<P: Platform> Drop for ReclaimTurn<'_, P> {
    fn drop(&mut self) {
        // AcqRel: takes the starts, publishes the turn's writes; pairs with `Node::try_turn`.
        self.cell.fetch_and(!self.bits, AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::testing::{at, small};

    #[test]
    fn cells_lie_in_the_parts_they_belong_to() {
        let allocator = small(&Config::default(), |_| {});
        let node = &allocator.state.nodes[1];
        let totals = at(&node.cells.totals);
        assert_eq!(allocator.part_at(totals), Some(Part::NodeTotals(node.id)));
    }
}
