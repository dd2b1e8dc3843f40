//! Counts blocks that a CPU's pageset of a zone served, in one lane of its word.
//!
//! Normally such a block is a *hit*: its zone was preferred. While the CPU uses the pageset of another serving zone
//! (`alloc/past_full.rs`), it is a *miss*: the pageset serves for the preferred zone, which counts it as foreign. The
//! zone that a pageset serves for changes only while the lane is empty. Neighbours: `zone/counters.rs` has the totals,
//! `pageset/steps.rs` folds most of these counts.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{Pageset, PagesetGuard};
use crate::platform::pageset_word::SERVED_LANE;
use crate::platform::{Atomic, Platform};
use crate::units::ZoneId;
use crate::zone::counters::ZoneItem;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> MachineState<'m, P> {
    /// Adds a difference of such blocks, taken out of the word, to the totals.
    pub(super) fn fold_served(&self, zone: &Zone<'m, P>, pageset: &Pageset<P>, cpu: CpuInfo, blocks: i64) {
        zone.counters().fold_difference(&served_items(zone, pageset, cpu), blocks);
        if let Some(other) = pageset.serves_for() {
            self.zones[other.index()].counters().fold_difference(&[ZoneItem::NumaForeign], blocks);
        }
    }

    /// Returns the differences of such blocks that count as `item` of `zone`; possibly out of date.
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
        let counted = pagesets.filter(|&(cpu, pageset)| served_items(zone, pageset, cpu).contains(&item));
        counted.map(|(_, pageset)| difference(pageset)).sum()
    }

    /// Makes every pageset serve for its own zone again, because preferred zones have changed.
    pub(crate) fn end_serving_for_others(&self) {
        for (zone, cpu) in self.used_pagesets() {
            if self.pagesets_of(zone).of(cpu).serves_for().is_some() {
                self.pageset(zone, cpu).serve_for(None);
            }
        }
    }
}

/// Returns the two counters of `zone` that change with every such block of a CPU.
fn served_items<P: Platform>(zone: &Zone<'_, P>, pageset: &Pageset<P>, cpu: CpuInfo) -> [ZoneItem; 2] {
    [
        if pageset.serves_for().is_some() { ZoneItem::NumaMiss } else { ZoneItem::NumaHit },
        if zone.is_own(cpu) { ZoneItem::NumaLocal } else { ZoneItem::NumaOther },
    ]
}

fn difference<P: Platform>(pageset: &Pageset<P>) -> i64 {
    pageset.word().difference(SERVED_LANE)
}

// Relaxed throughout: written under the pageset's lock, and read under it or by observers.
impl<P: Platform> Pageset<P> {
    /// Whether blocks served from the slot count as misses of another zone.
    #[inline]
    pub(crate) fn serves_for_another(&self) -> bool {
        self.serves_for().is_some()
    }

    /// Returns the preferred zone that this pageset serves for, if it is another.
    fn serves_for(&self) -> Option<ZoneId> {
        (self.serves_for.load(Relaxed) as usize).checked_sub(1).map(ZoneId::from_index)
    }
}

impl<P: Platform> PagesetGuard<'_, P> {
    fn set_serves_for(&self, zone: Option<ZoneId>) {
        self.serves_for.store(zone.map_or(0, |zone| zone.index() as u64 + 1), Relaxed);
    }
}

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Returns the largest difference of such blocks: the zone's threshold minus the differences of blocks that are
    /// counted one by one.
    #[inline]
    pub(super) fn served_leeway(&self) -> i64 {
        let counters = self.zone.counters();
        let threshold = i64::from(counters.threshold());
        if self.zone_diffs.load(Relaxed) == 0 {
            return threshold; // the usual case
        }
        let beside =
            served_items(self.zone, self, self.cpu).map(|item| counters.difference(&self.zone_diffs, item));
        (threshold - beside[0].max(beside[1]).max(0)).max(0)
    }

    /// Counts blocks that are hits.
    pub(crate) fn count_hits(&self, blocks: i64) {
        self.serve_for(None);
        let most = self.served_leeway();
        let items = served_items(self.zone, self, self.cpu);
        self.count_served(|before| self.zone.counters().leave_all(items, before, blocks, most));
    }

    /// Sets the zone that a pageset serves for: another one, or its own.
    pub(crate) fn serve_for(&self, other: Option<ZoneId>) {
        if self.serves_for() != other {
            self.fold_all_served();
            self.set_serves_for(other);
        }
    }

    /// Moves the whole difference of such blocks to the totals.
    pub(crate) fn fold_all_served(&self) {
        self.state.fold_served(self.zone, self, self.cpu, self.clear_served());
    }
}
