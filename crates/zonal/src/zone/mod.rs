//! One zone: its regions of free frames, frame states, watermarks, pagesets and counters, seen together.
//!
//! A [`Zone`] is a process-local view; all that changes lies in cells. Vocabulary: the *base* is
//! the zone's start rounded down so that blocks align, an *offset* is a frame's distance from it;
//! a *seat* is what the allocator knows of a CPU. Neighbours: `refill.rs` moves frames between
//! pagesets and buddy, `settings.rs` writes the limits.

pub(crate) mod counters;
pub(crate) mod events;
pub(crate) mod frame_states;
pub(crate) mod free_areas;
#[cfg(test)]
mod free_areas_tests;
pub(crate) mod node;
pub(crate) mod order_classes;
pub(crate) mod quarantine;
pub(crate) mod shared;

use core::sync::atomic::Ordering::Relaxed;

use crate::machine::FrameRange;
use crate::platform::cells::all_zero;
use crate::platform::cells::copy_view;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::CpuLocality;
use crate::rules::watermarks::{Urgency, Watermark, Watermarks};
use crate::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};
use crate::zone::counters::{TOTAL_CELLS, ThresholdCells, ZoneItem, ZonedCounters};
use crate::zone::frame_states::FrameTable;
use crate::zone::free_areas::FreeAreas;
use crate::zone::order_classes::OrderClasses;

/// A CPU as the allocator knows it: the node it is on, and how many of that node's CPUs come
/// before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CpuInfo {
    pub(crate) id: CpuId,
    pub(crate) node: u16,
    pub(crate) rank: u32,
}

impl CpuInfo {
    const NO_NODE: u16 = u16::MAX;

    /// The seat of a CPU id that the machine does not have.
    pub(crate) const fn absent(cpu: CpuId) -> Self {
        Self { id: cpu, node: Self::NO_NODE, rank: 0 }
    }

    pub(crate) const fn exists(&self) -> bool {
        self.node != Self::NO_NODE
    }
}

all_zero! {
    /// What changes in a zone beside its regions, frames and pagesets. Frames unless said otherwise.
    ///
    /// Invariant: `min <= low <= high`, `managed` = frames whose state is not "not managed".
    #[repr(C)]
    pub(crate) struct ZoneCells<P> {
        /// Read on every path, written by changes of settings only.
        pub(crate) rules: (line {ZoneRules<P>}),
        /// Guards the quarantine.
        pub(crate) lock: (line lock),
        /// Totals of the zone's counters.
        pub(crate) totals: (line [u64; TOTAL_CELLS]),
        /// Why pagesets are held down: the number of reclaims under way, plus the bits of [`Shortness`].
        /// One cell, so that a free looks at just one.
        held_down: (line u64),
        /// How node reclaim last failed for each order class: words of [`FailedReclaim`](crate::alloc::failed_reclaim).
        pub(crate) reclaim_failed_at: [u64; OrderClasses::COUNT],
        /// Order classes for which the zone is marked in some zonelist cache.
        pub(crate) marked: u64,
        /// Blocks that ever entered quarantine, and that left it.
        pub(crate) quarantine_in: u64,
        pub(crate) quarantine_out: u64,
        /// Frames in quarantine.
        pub(crate) quarantine_frames: u64,
    }
}

/// What a zone can be short of, beside reclaim: bits above any number of reclaims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shortness {
    /// Fewer than 1/64 of its 2 MiB blocks are free.
    HugeBlocks = 32,
    /// It is not above `watermarks.high`; noted for the stepwise rule only.
    BelowHigh = 33,
}

/// The part of `held_down` that counts reclaims.
const RECLAIMS: u64 = u32::MAX as u64;

all_zero! {
    #[repr(C)]
    pub(crate) struct ZoneRules<P> {
        pub(crate) managed: u64,
        pub(crate) min: u64,
        pub(crate) low: u64,
        pub(crate) high: u64,
        pub(crate) reserve: [u64; ZoneKind::COUNT],
        /// Reading of free frames below which a check counts exactly; 0 = never.
        pub(crate) drift_mark: u64,
        pub(crate) threshold: {ThresholdCells<P>},
        pub(crate) batch: u64,
        /// Limits of `pageset.high` on the zone's own CPUs, then on others.
        pub(crate) high_min: [u64; 2],
        pub(crate) high_max: [u64; 2],
    }
}

/// View of one zone.
///
/// Invariant at every quiescent point: `managed = free in buddy + Σ pageset.count + allocated`.
pub(crate) struct Zone<'m, P: Platform> {
    pub(crate) id: ZoneId,
    /// Place of its node in the machine.
    pub(crate) node: usize,
    pub(crate) node_id: NodeId,
    pub(crate) kind: ZoneKind,
    /// Whether no other part of the same kind follows on its node.
    pub(crate) is_last_part: bool,
    pub(crate) span: FrameRange,
    /// Frames that are present but never managed.
    pub(crate) unmanaged: PageCount,
    pub(crate) base: Pfn,
    pub(crate) cells: &'m ZoneCells<P>,
    pub(crate) free_areas: FreeAreas<'m, P>,
    pub(crate) frames: FrameTable<'m, P>,
    /// A ring of freed blocks that are kept back: offset and order of each.
    pub(crate) quarantine: &'m [P::U32],
    /// CPUs of its node.
    pub(crate) own_cpus: usize,
    /// One more than the largest CPU id of the machine.
    pub(crate) cpu_ids: usize,
    /// Bit for each node (by place) in whose zonelist cache the zone is marked.
    pub(crate) full_in: &'m [P::U64],
}

copy_view!(Zone);

// Loads of rules are relaxed throughout: each is a figure of its own, and a stale one is as good
// as having come a moment earlier.
impl<'m, P: Platform> Zone<'m, P> {
    /// Whether the CPU at `cpu` is on the zone's node.
    #[inline]
    pub(crate) const fn is_own(&self, cpu: CpuInfo) -> bool {
        cpu.node as usize == self.node
    }

    /// The same, as the pageset rules have it.
    pub(crate) const fn locality(&self, cpu: CpuInfo) -> CpuLocality {
        if self.is_own(cpu) { CpuLocality::Local } else { CpuLocality::Remote }
    }

    /// The zone's counters.
    #[inline]
    pub(crate) fn counters(&self) -> ZonedCounters<'m, P, ZoneItem> {
        ZonedCounters::new(&self.cells.totals.0, &self.cells.rules.0.threshold)
    }

    /// Waits for the lock of the zone's quarantine.
    pub(crate) fn lock_quarantine(&self) -> Held<'m, P::Lock> {
        Held::wait(&self.cells.lock.0)
    }

    /// Frames managed.
    pub(crate) fn managed(&self) -> PageCount {
        PageCount::new(self.cells.rules.0.managed.load(Relaxed))
    }

    /// Frames present: those managed now, and those that never are.
    pub(crate) fn present(&self) -> PageCount {
        self.managed().plus(self.unmanaged)
    }

    /// The three watermarks.
    pub(crate) fn watermarks(&self) -> Watermarks {
        let rules = &self.cells.rules.0;
        let frames = |cell: &P::U64| PageCount::new(cell.load(Relaxed));
        Watermarks { min: frames(&rules.min), low: frames(&rules.low), high: frames(&rules.high) }
    }

    /// What requests limited to `limit` must leave.
    pub(crate) fn reserve(&self, limit: ZoneKind) -> PageCount {
        PageCount::new(self.cells.rules.0.reserve[limit.index()].load(Relaxed))
    }

    /// Limits of pagesets on CPUs of the zone's node, or on others.
    pub(crate) fn pageset_limits(&self, locality: CpuLocality) -> PagesetLimits {
        let (rules, at) = (&self.cells.rules.0, locality as usize);
        PagesetLimits {
            batch: PageCount::new(rules.batch.load(Relaxed)),
            high_min: PageCount::new(rules.high_min[at].load(Relaxed)),
            high_max: PageCount::new(rules.high_max[at].load(Relaxed)),
        }
    }

    /// Free frames as a check sees them: the total, or below the drift mark the regions' own counts,
    /// which are exact and fewer than the differences of all CPUs.
    pub(crate) fn free(&self) -> PageCount {
        self.free_before(PageCount::ZERO)
    }

    /// Free frames as one who is about to take up to `frames` sees them: drift must not hide how
    /// many of those lie above a mark.
    pub(crate) fn free_before(&self, frames: PageCount) -> PageCount {
        let free = self.counters().approximate(ZoneItem::Free);
        let drift_mark = self.cells.rules.0.drift_mark.load(Relaxed);
        let exact = drift_mark != 0 && free < drift_mark + frames.get();
        PageCount::new(if exact { self.free_areas.free_pages() } else { free })
    }

    /// Free frames but for what CPUs have not told yet, at the price of one load.
    #[inline]
    pub(crate) fn free_approximate(&self) -> PageCount {
        PageCount::new(self.counters().approximate(ZoneItem::Free))
    }

    /// Whether the zone's watermarks let it serve a request for a block of `order`.
    pub(crate) fn watermarks_allow(
        &self,
        order: Order,
        urgency: Urgency,
        limit: ZoneKind,
        watermark: Watermark,
    ) -> bool {
        let free = self.free_beside(order, limit);
        self.watermarks().allow(free, order, watermark, urgency, self.reserve(limit))
    }

    /// Free frames as the watermark check of a request for `order` sees them: judged by what remains
    /// beside block and reserve, and so counted exactly by that.
    pub(crate) fn free_beside(&self, order: Order, limit: ZoneKind) -> PageCount {
        self.free_before(order.pages().saturating_minus(PageCount::new(1)).plus(self.reserve(limit)))
    }

    /// The region in which the CPU at `cpu` looks for free frames first.
    #[inline]
    pub(crate) fn preferred_area(&self, cpu: Option<CpuInfo>) -> usize {
        match cpu {
            Some(cpu) if self.is_own(cpu) => self.free_areas.preferred_area(cpu.rank as usize, self.own_cpus),
            Some(cpu) if !cpu.exists() => self.free_areas.preferred_of_unknown(cpu.id),
            Some(cpu) => self.free_areas.preferred_area(cpu.id.index(), self.cpu_ids),
            None => 0,
        }
    }

    // Accesses of `held_down` are relaxed: a hint that frees notice when they look next.

    /// Whether anything holds pagesets down.
    #[inline]
    pub(crate) fn holds_pagesets_down(&self) -> bool {
        self.cells.held_down.0.load(Relaxed) != 0
    }

    /// Whether pagesets are held down to 4 batches because the zone is being reclaimed.
    pub(crate) fn is_reclaimed(&self) -> bool {
        self.cells.held_down.0.load(Relaxed) & RECLAIMS != 0
    }

    /// Whether the zone was found short in this way.
    pub(crate) fn is_short(&self, of: Shortness) -> bool {
        self.cells.held_down.0.load(Relaxed) & (1 << of as u64) != 0
    }

    /// Notes a reclaim; `true` for the first of those under way.
    pub(crate) fn reclaim_begins(&self) -> bool {
        self.cells.held_down.0.fetch_add(1, Relaxed) & RECLAIMS == 0
    }

    pub(crate) fn reclaim_ends(&self) {
        self.cells.held_down.0.fetch_add(1_u64.wrapping_neg(), Relaxed);
    }

    /// Notes that the zone is short; a note that changes nothing leaves the line shared.
    pub(crate) fn note_shortage(&self, of: Shortness) {
        if !self.is_short(of) {
            self.cells.held_down.0.fetch_or(1 << of as u64, Relaxed);
        }
    }

    /// Notes that the zone is not short any more, in the same way.
    pub(crate) fn note_plenty(&self, of: Shortness) {
        if self.is_short(of) {
            self.cells.held_down.0.fetch_and(!(1 << of as u64), Relaxed);
        }
    }

    /// The frame at `offset`.
    #[inline]
    pub(crate) const fn pfn(&self, offset: u32) -> Pfn {
        self.base.plus(PageCount::new(offset as u64))
    }

    /// Offset of a frame of the span.
    #[inline]
    pub(crate) const fn offset(&self, frame: Pfn) -> u32 {
        (frame.get() - self.base.get()) as u32
    }
}
