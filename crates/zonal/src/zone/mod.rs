//! Zones: free areas, frame states, watermarks, quarantine and counters of one zone.
//!
//! A [`Zone`] is a process-local view, and all changing state is in cells in the metadata. The *base* of a zone is its
//! start, rounded down so that blocks are aligned relative to it. An *offset* is a frame's distance from the base.
//! Related files: `pageset/refill.rs` and `pageset/drain.rs` move frames between pagesets and the buddy, and
//! `admin/settings.rs` writes the limits.

pub(crate) mod bad_frames;
pub(crate) mod cells;
mod claims;
pub(crate) mod counters;
pub(crate) mod events;
mod fences;
pub(crate) mod frame_state;
pub(crate) mod frame_states;
pub(crate) mod free_areas;
mod free_ranges;
pub(crate) mod node;
pub(crate) mod order_classes;
pub(crate) mod owned_blocks;
mod owned_words;
mod owners;
pub(crate) mod processes;
pub(crate) mod quarantine;
mod rebuilt_areas;
pub(crate) mod runs;
pub(crate) mod shared;
mod stalls;

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::machine::FrameRange;
use crate::metadata::regions::{Part, first_true, holds};
use crate::platform::cells::copy_view;
use crate::platform::steps::ZoneName;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::CpuLocality;
use crate::rules::watermarks::{Urgency, Watermark, Watermarks};
use crate::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};
use crate::zone::cells::ZoneCells;
use crate::zone::counters::{ProcessTotals, ZoneItem, ZonedCounters, subtract};
use crate::zone::frame_state::FrameState;
use crate::zone::frame_states::FrameTable;
use crate::zone::free_areas::FreeAreas;
use crate::zone::owned_blocks::Owned;
use crate::zone::processes::Holders;
use crate::zone::runs::Run;

/// CPU info: a CPU's id, the index of its node, its rank, which is the number of the node's CPUs before it, and its index,
/// which is the number of the machine's CPUs with smaller ids. Ids can be far apart; ranks and indexes have no gaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuInfo {
    pub(crate) id: CpuId,
    pub(crate) node: u16,
    pub(crate) rank: u32,
    pub(crate) index: u32,
}

impl CpuInfo {
    const NO_NODE: u16 = u16::MAX;

    /// Returns the CPU info of a CPU id that the machine does not have.
    pub(crate) const fn absent(cpu: CpuId) -> Self {
        Self { id: cpu, node: Self::NO_NODE, rank: 0, index: 0 }
    }

    pub(crate) const fn exists(&self) -> bool {
        self.node != Self::NO_NODE
    }
}

/// Shortages of a zone, as bit positions in `held_down` above the count of reclaims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shortness {
    /// Fewer than 1/64 of its 2 MiB blocks are free.
    HugeBlocks = 32,
    /// The zone is not above `watermarks.high`; recorded only for the stepwise rule.
    BelowHigh = 33,
}

/// The bits of `held_down` that count reclaims under way.
const RECLAIMS: u64 = u32::MAX as u64;

/// A view of one zone.
///
/// Invariant at every quiescent point: `managed = free in buddy + Σ pageset.count + allocated`.
pub(crate) struct Zone<'m, P: Platform> {
    pub(crate) id: ZoneId,
    /// Index of the zone's node.
    pub(crate) node: usize,
    pub(crate) node_id: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) span: FrameRange,
    /// Frames that are present but never managed.
    pub(crate) unmanaged: PageCount,
    pub(crate) base: Pfn,
    pub(crate) cells: &'m ZoneCells<P>,
    pub(crate) free_areas: FreeAreas<'m, P>,
    pub(crate) owned: Owned<'m, P>,
    pub(crate) frames: FrameTable<'m, P>,
    /// A ring of the freed blocks in quarantine, with the offset and the order of each block.
    pub(crate) quarantine: &'m [P::U32],
    /// Number of CPUs on the zone's node.
    pub(crate) own_cpus: usize,
    /// Number of CPUs in the machine.
    pub(crate) cpus: usize,
    /// One bit for each node index: whether the zone may have full bits in that node's zonelist cache.
    pub(crate) full_in: &'m [P::U64],
    /// Totals by process, if processes share the allocator.
    pub(crate) by_process: &'m [ProcessTotals<P>],
}

copy_view!(Zone);

impl ZoneName {
    /// Returns the name of `zone`.
    pub(crate) fn of<P: Platform>(zone: &Zone<'_, P>) -> Self {
        Self { id: zone.id, node: zone.node_id, kind: zone.kind }
    }
}

// Loads of rules are relaxed throughout, because each value is independent and an old value was correct a moment ago.
impl<'m, P: Platform> Zone<'m, P> {
    /// Whether a CPU is on the zone's node.
    pub(crate) const fn is_own(&self, cpu: CpuInfo) -> bool {
        cpu.node as usize == self.node
    }

    /// Returns whether a CPU is on the zone's node, as a type of the pageset rules.
    pub(crate) const fn locality(&self, cpu: CpuInfo) -> CpuLocality {
        if self.is_own(cpu) { CpuLocality::Local } else { CpuLocality::Remote }
    }

    /// Returns the zone's counters.
    pub(crate) fn counters(&self) -> ZonedCounters<'m, P, ZoneItem> {
        let counters = ZonedCounters::new(&self.cells.totals.0, &self.cells.rules.0.threshold, None);
        if !P::IS_SHARED || self.by_process.is_empty() {
            return counters;
        }
        counters.of_process(self.holders().process, self.by_process)
    }

    /// Returns which process holds each of the zone's frames.
    #[inline(always)]
    pub(crate) const fn holders(&self) -> Holders<'m, P> {
        self.free_areas.holders
    }

    /// Returns the first frame and the state of the block that contains `frame`, unless the frame is free or not managed.
    ///
    /// Only the first frame of a block has a state, so this checks every frame at which such a block could start.
    pub(crate) fn block_around(&self, frame: u32, max: Order) -> Option<(u32, FrameState)> {
        let (first, least, state) = self.start_around(frame, max)?;
        self.unwatched(first, state).order().filter(|&order| order >= least).map(|_| (first, state))
    }

    /// Returns the first frame at or before `frame` at which the block around `frame` could start, the least order of such
    /// a block, and the state of the first frame. Waits for no lock.
    pub(crate) fn start_around(&self, frame: u32, max: Order) -> Option<(u32, Order, FrameState)> {
        for order in (0..=max.get()).filter_map(Order::new) {
            let first = frame & !(order.pages().get() as u32 - 1);
            if self.pfn(first) < self.span.start {
                return None;
            }
            match self.frames.state(first) {
                FrameState::Free => {}
                // Otherwise the block ends before `frame`, or there is a hole; no block around `frame` starts earlier.
                state => return Some((first, order, state)),
            }
        }
        None
    }

    /// Returns the number of managed frames.
    pub(crate) fn managed(&self) -> PageCount {
        PageCount::new(self.cells.rules.0.managed.load(Relaxed))
    }

    /// Returns the number of present frames: the frames managed now, and the present frames that are never managed.
    pub(crate) fn present(&self) -> PageCount {
        self.managed().plus(self.unmanaged)
    }

    /// Returns the three watermarks.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let cells = self.cells.rules.0.watermarks.each_ref();
        let [min, low, high] = cells.map(|cell| PageCount::new(cell.load(Relaxed)));
        Watermarks { min, low, high }
    }

    /// Returns the number of frames that requests with the zone limit `limit` must leave free.
    pub(crate) fn reserve(&self, limit: ZoneKind) -> PageCount {
        PageCount::new(self.cells.rules.0.reserve[limit.index()].load(Relaxed))
    }

    /// Sets the number of frames that requests with the zone limit `limit` must leave free.
    pub(crate) fn set_reserve(&self, limit: ZoneKind, frames: PageCount) {
        self.cells.rules.0.reserve[limit.index()].store(frames.get(), Relaxed);
    }

    /// Sets the watermarks, and the approximate count below which checks use the exact count.
    pub(crate) fn set_watermarks(&self, marks: &Watermarks, drift_mark: Option<PageCount>) {
        let rules = &self.cells.rules.0;
        let marks = rules.watermarks.iter().zip([marks.min, marks.low, marks.high]);
        marks.for_each(|(cell, mark)| cell.store(mark.get(), Relaxed));
        rules.drift_mark.store(drift_mark.map_or(0, PageCount::get), Relaxed);
    }

    /// Sets the pageset limits for the zone's local CPUs and for other CPUs, which have the same batch and this many slots.
    pub(crate) fn set_pageset_limits(&self, limits: [PagesetLimits; 2], slots: [PageCount; 2]) {
        let rules = &self.cells.rules.0;
        rules.batch.store(limits[0].batch.get(), Relaxed);
        for (at, (limits, slots)) in limits.iter().zip(slots).enumerate() {
            rules.high_min[at].store(limits.high_min.min(slots).get(), Relaxed);
            rules.high_max[at].store(limits.high_max.min(slots).get(), Relaxed);
        }
    }

    /// Adds frames, none of which may be managed, to the managed and free frames. The caller holds the lock for run-time changes.
    pub(crate) fn add_managed(&self, run: Run) {
        self.frames.add_managed(run.first, run.count);
        let added = self.free_areas.add_range(run.first, run.count);
        assert!(added, "frames that come online at {} are free already", self.pfn(run.first));
        self.cells.rules.0.managed.fetch_add(run.count, Relaxed);
        self.counters().add_total(ZoneItem::Free, run.count as i64);
    }

    /// Removes frames, which are in state `Free` but not in the buddy, from the managed frames. The caller holds the lock for
    /// run-time changes.
    pub(crate) fn remove_managed(&self, run: Run) {
        self.cells.rules.0.managed.fetch_add(run.count.wrapping_neg(), Relaxed);
        self.frames.remove_managed(run.first, run.count);
    }

    /// Returns a range within the zone's span as a run.
    pub(crate) const fn run_of(&self, range: &FrameRange) -> Run {
        Run { first: self.offset(range.start), count: range.count.get() }
    }

    /// Returns the frames of `run` as a range.
    pub(crate) const fn range_of(&self, run: Run) -> FrameRange {
        FrameRange { start: self.pfn(run.first), count: PageCount::new(run.count) }
    }

    /// Returns the limits of pagesets on the zone's local CPUs, or on other CPUs.
    pub(crate) fn pageset_limits(&self, locality: CpuLocality) -> PagesetLimits {
        let (rules, at) = (&self.cells.rules.0, locality as usize);
        PagesetLimits {
            batch: PageCount::new(rules.batch.load(Relaxed)),
            high_min: PageCount::new(rules.high_min[at].load(Relaxed)),
            high_max: PageCount::new(rules.high_max[at].load(Relaxed)),
        }
    }

    /// Returns the number of free frames for a watermark check.
    ///
    /// This is normally the total of the counter. Below the drift mark it is the sum of the free areas' own counts,
    /// which are exact. Summing these needs fewer reads than summing the differences of all CPUs.
    pub(crate) fn free(&self) -> PageCount {
        self.count_free_before(PageCount::ZERO)
    }

    /// Returns how many frames are free, for a caller that may allocate up to `frames` of them.
    ///
    /// Counter drift must not hide how many of these `frames` are above a watermark. The function therefore uses the
    /// exact count already at `frames` above the drift mark.
    pub(crate) fn count_free_before(&self, frames: PageCount) -> PageCount {
        let free = self.free_approximate();
        let drift_mark = self.cells.rules.0.drift_mark.load(Relaxed);
        let exact = drift_mark != 0 && free.get() < drift_mark + frames.get();
        if exact { PageCount::new(self.free_areas.pages()) } else { free }
    }

    /// Returns the total of free frames, without the differences that CPUs have not folded, for the cost of one load.
    pub(crate) fn free_approximate(&self) -> PageCount {
        PageCount::new(self.counters().approximate(ZoneItem::Free))
    }

    /// Whether the zone's watermarks allow a request for a block of `order`.
    pub(crate) fn watermarks_allow(
        &self,
        order: Order,
        urgency: Urgency,
        limit: ZoneKind,
        watermark: Watermark,
    ) -> bool {
        let free = self.count_for_check(order, limit);
        self.watermarks().allow(free, order, watermark, urgency, self.reserve(limit))
    }

    /// Returns the number of free frames for a request's watermark check at `order`.
    ///
    /// The check compares the frames that remain after the block and the reserve are subtracted. The function therefore
    /// uses the exact count at this many frames above the drift mark.
    pub(crate) fn count_for_check(&self, order: Order, limit: ZoneKind) -> PageCount {
        self.count_free_before(order.pages().saturating_minus(PageCount::new(1)).plus(self.reserve(limit)))
    }

    /// Returns the free area from which a CPU tries to allocate first.
    pub(crate) fn preferred_area(&self, cpu: CpuInfo) -> usize {
        if self.is_own(cpu) {
            self.free_areas.preferred_area(cpu.rank as usize, self.own_cpus)
        } else if cpu.exists() {
            self.free_areas.preferred_area(cpu.index as usize, self.cpus)
        } else {
            cpu.id.index() % self.free_areas.shape.count
        }
    }

    // Accesses to `held_down` are relaxed, because it is a hint that later frees read.

    /// Whether pagesets are limited to few frames for any reason.
    pub(crate) fn holds_pagesets_down(&self) -> bool {
        self.cells.held_down.0.load(Relaxed) != 0
    }

    /// Whether the zone is being reclaimed, which limits pagesets to 4 batches.
    pub(crate) fn is_reclaimed(&self) -> bool {
        self.cells.held_down.0.load(Relaxed) & RECLAIMS != 0
    }

    /// Whether the zone is recorded as short of `of`.
    pub(crate) fn is_short(&self, of: Shortness) -> bool {
        self.cells.held_down.0.load(Relaxed) & (1 << of as u64) != 0
    }

    /// Records the start of a reclaim; returns `true` if no other reclaim of the zone is under way.
    pub(crate) fn reclaim_begins(&self) -> bool {
        self.cells.held_down.0.fetch_add(1, Relaxed) & RECLAIMS == 0
    }

    pub(crate) fn reclaim_ends(&self) {
        subtract::<P>(&self.cells.held_down.0, 1, RECLAIMS);
    }

    /// Records that no reclaim is under way, because a reclaim's process may have died.
    pub(crate) fn forget_reclaims(&self) {
        self.cells.held_down.0.fetch_and(!RECLAIMS, Relaxed);
        self.counters().forget_pressure();
    }

    /// Records whether the zone is short of `of`; returns `true` if it is and that was not recorded before.
    ///
    /// Does not write if nothing changes, to keep the cache line shared.
    pub(crate) fn note_shortage(&self, of: Shortness, is_short: bool) -> bool {
        if is_short == self.is_short(of) {
            return false;
        }
        let (held_down, bit) = (&self.cells.held_down.0, 1 << of as u64);
        let before =
            if is_short { held_down.fetch_or(bit, Relaxed) } else { held_down.fetch_and(!bit, Relaxed) };
        is_short && before & bit == 0
    }

    /// Returns which part of the zone's metadata, except its pagesets, contains the byte at `address`.
    pub(crate) fn part_at(&self, address: usize) -> Option<Part> {
        let (id, cells, frames) = (self.id, self.cells, &self.frames);
        let part = first_true([
            (holds(&cells.rules, address), Part::ZoneRules(id)),
            (holds(&cells.totals, address), Part::ZoneTotals(id)),
            (holds(&cells.lock, address) || holds(self.quarantine, address), Part::Quarantine(id)),
            (holds(cells, address), Part::ZoneState(id)),
            (holds(self.full_in, address), Part::ZoneFullNodes(id)),
            (holds(frames.states, address) || holds(frames.present, address), Part::FrameStates(id)),
            (self.owned.holds(address), Part::OwnedBlocks(id)),
        ]);
        part.or_else(|| self.free_areas.part_at(id, address))
    }

    /// Returns the offsets of the frames in the zone's span.
    pub(crate) fn offsets(&self) -> Range<u64> {
        let first = u64::from(self.offset(self.span.start));
        first..first + self.span.count.get()
    }

    /// Returns the frame at `offset`.
    pub(crate) const fn pfn(&self, offset: u32) -> Pfn {
        self.base.plus(PageCount::new(offset as u64))
    }

    /// Returns the offset of a frame in the span.
    pub(crate) const fn offset(&self, frame: Pfn) -> u32 {
        (frame.get() - self.base.get()) as u32
    }
}

#[cfg(test)]
mod free_areas_tests;

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};

    use super::*;
    use crate::Config;
    use crate::testing::{at, small};

    #[test]
    fn cells_lie_in_the_parts_they_belong_to() {
        let allocator = small(&Config { free_area_min: PageCount::ZERO, ..Config::default() }, |_| {});
        let shown = |address| allocator.part_at(address).map(|part| part.to_string());
        let is = |address: usize, text: &str| assert_eq!(shown(address), Some(String::from(text)));
        let zone = &allocator.state.zones[3];
        let totals = at(&zone.cells.totals);
        is(totals + 63, "zone 3 totals");
        is(totals + 64, "zone 3 state");
        is(totals - 1, "zone 3 quarantine");
        let areas = &zone.free_areas;
        assert!(areas.heads.len() > 2);
        let last = areas.heads.len() - 1;
        is(at(&areas.heads[0]), "zone 3 free area 0 lock and counts");
        is(at(&areas.heads[last]), &std::format!("zone 3 free area {last} lock and counts"));
        is(at(&areas.cells[areas.shape.stride - 1]), "zone 3 free area 0 free bitmap");
        is(at(&areas.cells[areas.shape.stride]), "zone 3 free area 1 free bitmap");
        is(at(areas.cells.last().unwrap()), &std::format!("zone 3 free area {last} free bitmap"));
    }
}
