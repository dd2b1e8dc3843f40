//! Counts the blocks that a pageset served, in one lane (a small counter field) of the pageset's word.
//!
//! Normally a served block is a *hit*, because its zone was the preferred zone. While the CPU uses the pageset of
//! another zone (`alloc/route.rs`), a served block is a *miss*. The pageset then *serves for* the preferred zone,
//! which counts the block as foreign. The zone for which a pageset serves changes only while the lane is zero, because
//! the lane cannot distinguish the two cases. The next session after the CPU has left the pageset, or after the zone has
//! become the preferred zone, ends that. Hits of interleaving requests are also counted in a separate cell.
//! Related files: `zone/counters.rs` has the totals, and `pageset/steps.rs` folds most of these counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{OWN_ZONE, Pageset};
use crate::platform::pageset_slot::Head;
use crate::platform::pageset_word::SERVED_LANE;
use crate::platform::{Atomic, Platform};
use crate::units::ZoneId;
use crate::zone::counters::{SERVED_MOST, ZoneItem};
use crate::zone::{CpuInfo, Zone};

/// Value of `serves_for` if the preferred zone is on the same node. Blocks then count as hits.
const SAME_NODE: u32 = u32::MAX;

impl<'m, P: Platform> MachineState<'m, P> {
    /// Adds a difference of served blocks, which the caller has removed from the word, to the totals.
    pub(super) fn fold_served(&self, zone: &Zone<'m, P>, pageset: &Pageset<P>, cpu: CpuInfo, blocks: i64) {
        zone.counters().fold_difference(&served_items(zone, pageset, cpu), blocks);
        if let Some(other) = pageset.serves_for() {
            self.zones[other.index()].counters().fold_difference(&[ZoneItem::NumaForeign], blocks);
        }
    }

    /// Counts a block that an interleaving policy requested from the node of `zone`, and that the pageset with this head
    /// served.
    ///
    /// The difference is changed by atomic additions, because pops without the lock count too. After each call it is at
    /// most [`SERVED_MOST`].
    #[inline(always)]
    pub(crate) fn count_interleave_hit(&self, zone: ZoneId, head: &Head<P>) {
        // Relaxed: additions commute, and order no other accesses.
        if head.interleave_hits.fetch_add(1, Relaxed) >= u32::from(SERVED_MOST) {
            fold_interleave_hits(&self.zones[zone.index()], head);
        }
    }

    /// Returns the sum of the served-block differences that count as `item` in `zone`; the sum may be out of date.
    pub(crate) fn served(&self, zone: &Zone<'m, P>, item: ZoneItem) -> i64 {
        let cpus = self.cpus.iter().filter(|cpu| cpu.exists());
        if item == ZoneItem::NumaForeign {
            let cpus_of_node = cpus
                .filter(|cpu| self.nodes[usize::from(cpu.node)].preferred_zone() == Some(zone.id.index()));
            let pagesets = cpus_of_node
                .flat_map(|&cpu| self.zones.iter().map(move |zone| self.pagesets_of(zone).of(cpu)));
            return pagesets.filter(|pageset| pageset.serves_for() == Some(zone.id)).map(difference).sum();
        }
        let pagesets = cpus.map(|&cpu| (cpu, self.pagesets_of(zone).of(cpu)));
        if item == ZoneItem::InterleaveHit {
            // Relaxed: the sum may be out of date.
            return pagesets.map(|(_, pageset)| i64::from(pageset.head.interleave_hits.load(Relaxed))).sum();
        }
        let counted = pagesets.filter(|&(cpu, pageset)| served_items(zone, pageset, cpu).contains(&item));
        counted.map(|(_, pageset)| difference(pageset)).sum()
    }

    /// Makes every pageset serve for its own zone again, because preferred zones have changed.
    pub(crate) fn end_serving_for_others(&self) {
        for (zone, cpu) in self.used_pagesets() {
            // Relaxed: checked again under the lock.
            if self.pagesets_of(zone).of(cpu).head.serves_for.load(Relaxed) != 0 {
                self.pageset(zone, cpu).set_serves_for(OWN_ZONE);
            }
        }
    }
}

/// Moves the difference of interleaving requests' hits to the totals.
pub(super) fn fold_interleave_hits<P: Platform>(zone: &Zone<'_, P>, head: &Head<P>) {
    // Relaxed: the cell is read before it is written, because most pagesets never count such hits.
    if head.interleave_hits.load(Relaxed) != 0 {
        let hits = head.interleave_hits.swap(0, Relaxed);
        zone.counters().fold_difference(&[ZoneItem::InterleaveHit], i64::from(hits));
    }
}

/// Returns the two counters of `zone` that change with every block that the pageset serves.
fn served_items<P: Platform>(zone: &Zone<'_, P>, pageset: &Pageset<P>, cpu: CpuInfo) -> [ZoneItem; 2] {
    ZoneItem::of_served(!pageset.serves_for_another(), zone.is_own(cpu))
}

fn difference<P: Platform>(pageset: &Pageset<P>) -> i64 {
    pageset.word().difference(SERVED_LANE)
}

// Relaxed throughout: the cell is written under the pageset's lock. It is read under that lock, or where an old value
// is harmless.
impl<P: Platform> Pageset<P> {
    /// Whether blocks that this pageset serves count as misses, because another zone is preferred.
    #[inline]
    pub(crate) fn serves_for_another(&self) -> bool {
        self.serves_for().is_some()
    }

    /// Returns the preferred zone for which this pageset serves, or `None` if the preferred zone is on the same node.
    fn serves_for(&self) -> Option<ZoneId> {
        match self.head.serves_for.load(Relaxed) {
            SAME_NODE => None,
            other => (other as usize).checked_sub(1).map(ZoneId::from_index),
        }
    }
}

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Counts served blocks as hits.
    pub(crate) fn count_hits(&self, blocks: i64) {
        if self.serves_for_another() {
            self.set_serves_for(OWN_ZONE);
        }
        let (items, word) = (served_items(self.zone, self, self.cpu), self.word());
        let left = self.zone.counters().leave_served(items, word.difference(SERVED_LANE), blocks);
        self.set_word(word.with_difference(SERVED_LANE, left));
    }

    /// Makes the pageset serve for `preferred`, which is full.
    pub(crate) fn serve_instead_of(&self, preferred: &Zone<'m, P>) {
        let other = preferred.id.index() as u32 + 1;
        self.set_serves_for(if preferred.node == self.zone.node { SAME_NODE } else { other });
    }

    /// Sets the zone for which the pageset serves, and first moves the difference of served blocks to the totals.
    pub(super) fn set_serves_for(&self, value: u32) {
        let cell = &self.head.serves_for;
        if cell.load(Relaxed) != value {
            self.fold_all_served();
            cell.store(value, Relaxed);
        }
    }

    /// Moves the whole difference of served blocks to the totals.
    pub(super) fn fold_all_served(&self) {
        self.state.fold_served(self.zone, self, self.cpu, self.clear(SERVED_LANE));
    }
}
