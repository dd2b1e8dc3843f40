//! Blocks that a CPU's pageset of a zone served at once, counted in one lane of its word.
//!
//! They are blocks that *hit*: their zone was preferred. But while the CPU is away from its home zone
//! (`other.rs`), they *missed*: the pageset *stands for* the home zone, for which each of them is a
//! foreign one. What a pageset stands for changes only with that lane empty. Neighbours:
//! `counters.rs` has the totals, `at_home.rs` folds most of what is counted here.

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
    /// Moves a difference of such blocks, taken out of the word, to the totals.
    pub(super) fn fold_served(&self, zone: &Zone<'m, P>, pageset: &Pageset<P>, cpu: CpuInfo, blocks: i64) {
        zone.counters().fold_difference(&served_items(zone, pageset, cpu), blocks);
        if let Some(other) = pageset.serves_for() {
            self.zones[other.index()].counters().fold_difference(&[ZoneItem::NumaForeign], blocks);
        }
    }

    /// The differences of such blocks that belong to `item` of `zone`, as of some moment.
    pub(crate) fn served(&self, zone: &Zone<'m, P>, item: ZoneItem) -> i64 {
        let cpus = self.cpus.iter().filter(|cpu| cpu.exists());
        if item == ZoneItem::NumaForeign {
            let at_home = cpus
                .filter(|cpu| self.nodes[usize::from(cpu.node)].preferred_zone() == Some(zone.id.index()));
            let pagesets =
                at_home.flat_map(|&cpu| self.zones.iter().map(move |zone| self.pagesets_of(zone).of(cpu)));
            return pagesets.filter(|pageset| pageset.serves_for() == Some(zone.id)).map(difference).sum();
        }
        let pagesets = cpus.map(|&cpu| (cpu, self.pagesets_of(zone).of(cpu)));
        let counted = pagesets.filter(|&(cpu, pageset)| served_items(zone, pageset, cpu).contains(&item));
        counted.map(|(_, pageset)| difference(pageset)).sum()
    }

    /// Ends all standing in: home zones have changed.
    pub(crate) fn end_serving_for_others(&self) {
        for (zone, cpu) in self.used_pagesets() {
            if self.pagesets_of(zone).of(cpu).serves_for().is_some() {
                self.pageset(zone, cpu).serve_for(None);
            }
        }
    }
}

/// The two counters of `zone` that change with every such block of the CPU at `cpu`.
fn served_items<P: Platform>(zone: &Zone<'_, P>, pageset: &Pageset<P>, cpu: CpuInfo) -> [ZoneItem; 2] {
    [
        if pageset.serves_for().is_some() { ZoneItem::NumaMiss } else { ZoneItem::NumaHit },
        if zone.is_own(cpu) { ZoneItem::NumaLocal } else { ZoneItem::NumaOther },
    ]
}

fn difference<P: Platform>(pageset: &Pageset<P>) -> i64 {
    pageset.word().difference(SERVED_LANE)
}

// Relaxed throughout: written under the pageset's lock, and read there or by lookers-on.
impl<P: Platform> Pageset<P> {
    /// The zone that this one stands for.
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
    /// Largest difference of such blocks: what the zone's threshold leaves beside blocks that are
    /// counted one by one.
    #[inline]
    pub(super) fn served_leeway(&self) -> i64 {
        let counters = self.zone.counters();
        let threshold = i64::from(counters.threshold());
        if self.zone_diffs.load(Relaxed) == 0 {
            return threshold; // so it is most of the time
        }
        let beside =
            served_items(self.zone, self, self.cpu).map(|item| counters.difference(&self.zone_diffs, item));
        (threshold - beside[0].max(beside[1]).max(0)).max(0)
    }

    /// Counts blocks that hit.
    pub(crate) fn count_hits(&self, blocks: i64) {
        self.serve_for(None);
        let most = self.served_leeway();
        let items = served_items(self.zone, self, self.cpu);
        self.count_served(|before| self.zone.counters().leave_all(items, before, blocks, most));
    }

    /// Sets what a pageset stands for: another zone, or its own.
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
