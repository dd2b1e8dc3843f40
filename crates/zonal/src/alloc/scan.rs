//! A scan: one walk over a zonelist to find a zone that passes its watermark and has a block.
//!
//! A zonelist cache (M1; see the README for M1 to M4) has a full bit for each zone that failed recently, and a scan
//! skips these zones 64 at a time. With node reclaim (M3), a scan reclaims a nearby zone below its watermark before it
//! continues, unless the cache records a recent failure. A scan tries its first zone without the cache. In the form
//! first published, node reclaim of that zone also precedes the cache. When a scan with the cache finds no block, it
//! tries all zones once more. Related files: `alloc/slow.rs` runs scans, `zonelist/candidates.rs` finds the zones
//! to try, `zonelist/full_cache.rs` holds the full bits, and `reclaim/mod.rs` has node reclaim. Source: Jackson 2006,
//! Linux 9276b1bc96a1; Gorman 2011, Linux cd38b115d5ad.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::ZonelistCache;
use crate::pageset::full_zones::note_full;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::reclaim::IDLE_ROUNDS;
use crate::reclaim::NodeReclaimOutcome;
use crate::reclaim::failed::{FailedReclaim, Past};
use crate::request::Block;
use crate::request::context::AllocContext;
use crate::request::steps::Watch;
use crate::request::steps::{Exclusion, Outcome, ReclaimStep};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::settings::Setting;
use crate::units::{Order, PageCount};
use crate::zone::counters::ZoneItem;
use crate::zone::events::{Event, EventCells};
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::candidates::{Candidates, NodeFilter};
use crate::zonelist::full_cache::{FullBits, ScanClass};
use crate::zonelist::{ListChanged, PositionMask, RESTARTS};

/// Maximum number of last scans before a request fails. A request that never skips a zone makes this number of scans.
const LAST_SCANS: u32 = IDLE_ROUNDS + 2;

/// The use of the zonelist cache by a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CacheUse {
    /// The cache is not used. Either the machine has one node with undivided memory, only one node may serve the
    /// request, the cache is off or does not serve binding policies, or the request ignores watermarks.
    None,
    /// The cache is not used yet, because no zone has failed in this scan.
    Later,
    /// Positions whose full bit is set are skipped.
    Active,
    /// Every full bit is ignored, because a walk that skipped full zones found no block, or because this is a last
    /// scan.
    Ignored,
}

struct Scan<'s, 'm, P: Platform, W> {
    watch: W,
    state: &'s MachineState<'m, P>,
    context: &'s AllocContext<'s>,
    watermark: Watermark,
    candidates: Candidates<'s, 'm, P>,
    full: &'s FullBits<'m, P>,
    events: &'s EventCells<P>,
    mode: ZonelistCache,
    class: ScanClass,
    cache: CacheUse,
    /// The preferred zone: the first zone that may serve the request.
    preferred: Option<&'s Zone<'m, P>>,
    probes: u64,
    past: Past,
    /// Whether node reclaim freed frames.
    freed: bool,
    /// Whether a dry walk ignores the full bits, because a real scan would have cleared them first.
    bits_are_stale: bool,
    /// Whether a dry walk has passed over a zone that is marked as full.
    met_marks: bool,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Scans the request's list at `watermark`.
    pub(super) fn scan<W: Watch>(
        &self,
        context: &AllocContext<'_>,
        watermark: Watermark,
        watch: W,
    ) -> Option<Block> {
        self.scan_by(context, watermark, Past::Heeded, watch).0
    }

    /// Scans the request's list a last time before the request fails.
    ///
    /// Ignores full bits, and repeats the scan as long as node reclaim frees frames. A request therefore never fails
    /// because of the zonelist cache. In the published form, this method runs one ordinary scan.
    pub(super) fn scan_last<W: Watch>(&self, context: &AllocContext<'_>, watch: W) -> Option<Block> {
        if self.shared.zonelist_cache().is_published_form() {
            return self.scan(context, Watermark::Min, watch);
        }
        for _ in 0..LAST_SCANS {
            let (found, freed) = self.scan_by(context, Watermark::Min, Past::Ignored, watch);
            if found.is_some() || !freed {
                return found;
            }
        }
        None
    }

    /// Scans the list, and restarts if the list changes; also returns whether node reclaim freed frames.
    fn scan_by<W: Watch>(
        &self,
        context: &AllocContext<'_>,
        watermark: Watermark,
        past: Past,
        watch: W,
    ) -> (Option<Block>, bool) {
        let mut freed = false;
        for _ in 0..RESTARTS {
            let mut listed = None;
            let mut scan = Scan::new(self, context, watermark, past, &mut listed, watch);
            let found = scan.run();
            if !W::IS_DRY {
                self.count_probes(context, scan.probes);
            }
            freed |= scan.freed;
            if let Ok(found) = found {
                return (found, freed);
            }
        }
        (None, freed)
    }
}

impl<'s, 'm, P: Platform, W: Watch> Scan<'s, 'm, P, W> {
    /// Creates a scan at `watermark`; `listed` is storage for the positions of allowed nodes.
    fn new(
        state: &'s MachineState<'m, P>,
        context: &'s AllocContext<'s>,
        watermark: Watermark,
        past: Past,
        listed: &'s mut Option<PositionMask>,
        watch: W,
    ) -> Self {
        let node = &state.nodes[context.target];
        let mode = state.shared.zonelist_cache();
        let off = mode == ZonelistCache::Off
            || !state.has_fallback()
            || context.strict
            || context.has_address_limit()
            || context.urgency == Urgency::Reserve
            || (context.is_bound() && !mode.serves_bound());
        let class = if mode.is_published_form() {
            ScanClass::published()
        } else {
            ScanClass::new(context.order, watermark, context.urgency, context.limit)
        };
        Self {
            watch,
            state,
            context,
            watermark,
            candidates: Candidates::new(
                state.lists.read(context.target),
                context.limit,
                context.nodes().map(|nodes| NodeFilter::new(nodes, context.nodes, listed)),
            ),
            full: state.lists.full(context.target),
            events: node.events,
            mode,
            class,
            cache: match past {
                _ if off => CacheUse::None,
                Past::Heeded => CacheUse::Later,
                Past::Ignored => CacheUse::Ignored,
            },
            preferred: None,
            probes: 0,
            past,
            freed: false,
            bits_are_stale: false,
            met_marks: false,
        }
    }

    fn run(&mut self) -> Result<Option<Block>, ListChanged> {
        if self.mode.sets_up_past_disallowed() && self.first_is_disallowed()? {
            // The first zone that may serve the request remains the preferred zone, even if its full bit makes this
            // scan skip it.
            let first = self.candidates.next(0, None)?;
            self.preferred = first.map(|(_, zone)| &self.state.zones[zone.index()]);
            self.set_up_cache();
        }
        let found = self.pass()?;
        if found.is_some() || self.cache != CacheUse::Active {
            return Ok(found);
        }
        if W::IS_DRY && !self.met_marks {
            return Ok(None); // every zone has been explained
        }
        self.cache = CacheUse::Ignored;
        self.pass()
    }

    /// Walks the list once from its start, and tries each candidate.
    fn pass(&mut self) -> Result<Option<Block>, ListChanged> {
        let mut from = 0;
        loop {
            let marked = self.heeds_bits().then(|| self.full.bitmap(self.class));
            let next = self.candidates.next(from, marked)?;
            if W::WATCHES {
                self.report_skipped(from, next.map(|(position, _)| position))?;
            }
            let Some((position, zone)) = next else { return Ok(None) };
            let zone = &self.state.zones[zone.index()];
            if self.context.strict && zone.node != self.context.target {
                return Ok(None); // the zones of the target come first in its list
            }
            from = position + 1;
            if W::IS_DRY && self.would_be_marked(zone) {
                self.watch.zone(zone, self.watermark, Outcome::MarkedFull { within_ns: 0 });
                self.met_marks = true;
                continue;
            }
            let found = self.try_zone(zone, position);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Whether zones with full bits are skipped.
    fn heeds_bits(&self) -> bool {
        self.cache == CacheUse::Active && !(W::IS_DRY && self.bits_are_stale)
    }

    /// Whether the scan at `low`, which failed before this one, would have marked `zone` for this scan too.
    ///
    /// In the default mode, the marks of a scan at `low` do not apply to scans at `min`.
    fn would_be_marked(&self, zone: &Zone<'m, P>) -> bool {
        if self.cache != CacheUse::Active
            || !self.mode.is_published_form()
            || self.watermark == Watermark::Low
        {
            return false;
        }
        !self.may_reclaim(zone)
            || match self.state.expected_node_reclaim(zone, self.context) {
                Some(NodeReclaimOutcome::NoScan) => false,
                Some(NodeReclaimOutcome::Full) => self.mode.marks_unreclaimable(),
                _ => true,
            }
    }

    /// Reports the zones at positions from `from` to before `end`, or to the end of the list, which are not tried.
    #[cold]
    fn report_skipped(&mut self, from: usize, end: Option<usize>) -> Result<(), ListChanged> {
        let skipped = end.map_or(usize::MAX, |end| end - from);
        for zone in self.candidates.zones_from(from)?.take(skipped) {
            let zone = &self.state.zones[zone.index()];
            let outcome = self.state.why_skipped(zone, self.context);
            self.met_marks |= matches!(outcome, Outcome::MarkedFull { .. });
            self.watch.zone(zone, self.watermark, outcome);
        }
        Ok(())
    }

    /// Reports why a zone that was tried did not serve.
    fn report_failed(&self, zone: &Zone<'m, P>) {
        if W::WATCHES {
            let why = self.state.why_failed(zone, self.context, self.watermark);
            self.watch.zone(zone, self.watermark, why);
        }
    }

    fn report_reclaim(&self, zone: &Zone<'m, P>, step: ReclaimStep) {
        self.watch.zone(zone, self.watermark, Outcome::Reclaim(step));
    }

    /// Whether the first zone within the request's zone limit is on a node that the cpuset excludes.
    fn first_is_disallowed(&self) -> Result<bool, ListChanged> {
        let Some(cpuset) = self.context.cpuset else { return Ok(false) };
        let list = self.state.lists.read(self.context.target);
        let mut all = Candidates::new(list, self.context.limit, None);
        let first = all.next(0, None)?;
        Ok(first.is_some_and(|(_, zone)| !cpuset.contains(self.state.zones[zone.index()].node_id)))
    }

    /// Tries to allocate from one zone that may serve the request.
    fn try_zone(&mut self, zone: &'s Zone<'m, P>, position: usize) -> Option<Block> {
        if !self.context.reaches(zone) {
            self.watch.zone(zone, self.watermark, Outcome::NotAllowed(Exclusion::AddressLimit));
            return None;
        }
        self.preferred.get_or_insert(zone);
        self.probes += 1;
        let taken = self.try_alloc(zone);
        if taken.is_some() {
            return taken;
        }
        self.report_failed(zone);
        if self.mode.consults_before_reclaim() {
            self.set_up_cache();
        }
        let reclaimed = self.reclaim_or_mark(zone, position);
        if reclaimed.is_none() {
            self.set_up_cache();
        }
        reclaimed
    }

    /// Handles a zone that could not serve the request: runs node reclaim if it may help, otherwise sets the full bit.
    fn reclaim_or_mark(&mut self, zone: &'s Zone<'m, P>, position: usize) -> Option<Block> {
        if !self.may_reclaim(zone) || self.passes(zone) {
            self.set_full_bit(zone, position);
            return None;
        }
        if self.heeds_bits() && self.full.is_full(self.class, position) {
            self.report_reclaim(zone, ReclaimStep::FailedRecently);
            return None; // The full bit was set within the last second, so the zone is not reclaimed again (M3).
        }
        self.reclaim_and_retry(zone, position)
    }

    /// Runs node reclaim and tries the zone again.
    fn reclaim_and_retry(&mut self, zone: &'s Zone<'m, P>, position: usize) -> Option<Block> {
        if self.recently_failed(zone) {
            self.report_reclaim(zone, ReclaimStep::FailedRecently);
            self.set_full_bit(zone, position);
            return None;
        }
        if W::IS_DRY {
            let expected = self.state.expected_node_reclaim(zone, self.context);
            self.report_reclaim(zone, expected.map_or(ReclaimStep::WouldRun, NodeReclaimOutcome::step));
            return None;
        }
        let outcome = self.state.node_reclaim(zone, self.context);
        self.report_reclaim(zone, outcome.step());
        self.freed |= matches!(outcome, NodeReclaimOutcome::Some | NodeReclaimOutcome::Success);
        if matches!(outcome, NodeReclaimOutcome::NoScan | NodeReclaimOutcome::Full) {
            // The zone is skipped, but its full bit is not set, because direct reclaim may free frames that node
            // reclaim must not free. The first version of M3 set the bit.
            if outcome == NodeReclaimOutcome::Full && self.mode.marks_unreclaimable() {
                self.set_full_bit(zone, position);
            }
            return None;
        }
        // The freed frames may be in any of the node's zones with this kind.
        let taken = self.state.parts_up_to(zone).iter().find_map(|part| self.try_alloc(part));
        if taken.is_none() {
            let lasting = self.watermark == Watermark::Min || outcome != NodeReclaimOutcome::Success;
            if self.mode == ZonelistCache::On && lasting && !self.context.has_address_limit() {
                self.note_failed_reclaim(zone, outcome);
            }
            if self.mode.is_published_form() || lasting {
                self.set_full_bit(zone, position);
            }
        }
        taken
    }

    fn try_alloc(&self, zone: &'s Zone<'m, P>) -> Option<Block> {
        let preferred = self.preferred.unwrap_or(zone);
        if !self.passes(zone) {
            return None;
        }
        if W::IS_DRY {
            if !self.context.has_block_in_reach(zone) {
                return None;
            }
            self.watch.zone(zone, self.watermark, Outcome::Serves);
            let AllocContext { order, .. } = *self.context;
            return Some(Block { first: zone.span.start, order, zone: zone.id, node: zone.node_id });
        }
        let block = self.state.serve_from(zone, preferred, self.context, self.watermark)?;
        if zone.node != preferred.node {
            self.state.count_foreign(preferred, self.context.cpu);
        }
        self.watch.zone(zone, self.watermark, Outcome::Serves);
        Some(block)
    }

    fn passes(&self, zone: &Zone<'_, P>) -> bool {
        let AllocContext { order, urgency, limit, cpu, .. } = *self.context;
        zone.watermarks_allow(order, urgency, limit, self.watermark)
            && (order == Order::PAGE
                || zone.free_areas.has_block(order, zone.preferred_area(cpu))
                || self.past == Past::Ignored && zone.free_areas.has_block_exactly(order))
    }

    /// Whether node reclaim is on and `zone` is near enough to be reclaimed.
    ///
    /// Memory of one kind may be divided into several zones, its *parts*. Returns `false` for all parts except the
    /// last, so that the scan tries every part before it reclaims.
    fn may_reclaim(&self, zone: &Zone<'_, P>) -> bool {
        let preferred = self.preferred.map_or(zone.node, |preferred| preferred.node);
        self.state.shared.node_reclaim().is_on()
            && self.state.is_last_listed_part(zone, self.context)
            && (!self.mode.heeds_distance()
                || u64::from(self.state.distance(preferred, zone.node))
                    <= self.state.shared.number(Setting::ReclaimDistance))
    }

    /// Makes the cache active, at most once per scan.
    fn set_up_cache(&mut self) {
        if self.cache == CacheUse::Later {
            if W::IS_DRY {
                self.bits_are_stale = self.full.is_stale(self.state.platform.now());
            } else if self.full.set_up(self.state.platform.now()) {
                self.events.add(Event::Wipes, 1);
            }
            self.cache = CacheUse::Active;
        }
    }

    fn set_full_bit(&self, zone: &Zone<'_, P>, position: usize) {
        if W::IS_DRY || self.cache == CacheUse::None {
            return;
        }
        let is_new = if self.mode.is_published_form() {
            self.full.set_published(position)
        } else {
            self.state.note_full_bit(zone, self.class, self.context.target);
            self.full.set_bound(self.class, position)
        };
        if is_new {
            self.events.add(Event::Marks, 1);
        }
    }

    /// Whether node reclaim failed for the zone within the last second.
    ///
    /// Node reclaim of the zone is then not tried again, not even by a scan that ignores full bits. This rule is our
    /// own. In the published form, a scan that ignores full bits reclaims again.
    fn recently_failed(&self, zone: &Zone<'_, P>) -> bool {
        self.mode == ZonelistCache::On
            && self.cache != CacheUse::None
            && failed_reclaim(zone, self.class.order_class()).binds(
                self.state.platform.now(),
                self.context.limit,
                self.past,
            )
    }

    /// Records for `zone` and the node's lower zones that node reclaim failed.
    ///
    /// The scan reaches the lower zones next. Because reclaim covered the whole node, it need not be repeated for them.
    fn note_failed_reclaim(&self, zone: &Zone<'_, P>, outcome: NodeReclaimOutcome) {
        let now = self.state.platform.now();
        let failure = FailedReclaim::new(now, self.context.limit);
        let failure =
            if outcome == NodeReclaimOutcome::Nothing { failure } else { failure.with_some_freed() };
        let lower = |other: &&Zone<'_, P>| other.kind <= zone.kind;
        for zone in self.state.node_zones(zone.node).iter().filter(lower) {
            for class in self.class.bound_orders().iter() {
                if !failed_reclaim(zone, class).covers(failure, now) {
                    zone.cells.reclaim_failed_at[class].store(failure.word(), Relaxed); // relaxed: a hint
                }
            }
            note_full(zone, self.class.bound_orders());
        }
    }
}

/// Returns the last failure of node reclaim in `zone` for an order class.
fn failed_reclaim<P: Platform>(zone: &Zone<'_, P>, class: usize) -> FailedReclaim {
    FailedReclaim::from_word(zone.cells.reclaim_failed_at[class].load(Relaxed)) // relaxed: a hint
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Counts the zones checked in the CPU's pageset, because the node's counter is shared by all scanning CPUs.
    fn count_probes(&self, context: &AllocContext<'_>, probes: u64) {
        match self.preferred_pageset(context) {
            Some(guard) => guard.add_to(|pageset| &pageset.probes, probes),
            None => self.nodes[context.target].events.add(Event::Probes, probes),
        }
    }

    /// Locks the current CPU's pageset of its preferred zone, or returns `None` if it cannot be locked.
    fn preferred_pageset(&self, context: &AllocContext<'_>) -> Option<PagesetSession<'_, 'm, P>> {
        let cpu = context.cpu?;
        let preferred = self.nodes[context.from].preferred_zone()?;
        self.own_pageset_still(&self.zones[preferred], cpu)
    }

    /// Counts a block that `preferred` should have served, in the CPU's counter difference if its pageset can be
    /// locked.
    pub(crate) fn count_foreign(&self, preferred: &Zone<'m, P>, cpu: Option<CpuInfo>) {
        match cpu.and_then(|cpu| self.own_pageset_still(preferred, cpu)) {
            Some(guard) => {
                preferred.counters().increment(&guard.zone_diffs, ZoneItem::NumaForeign, &guard);
            }
            None => preferred.counters().add_total(ZoneItem::NumaForeign, 1),
        }
    }

    /// Whether a zone may have an equivalent fallback, either on another node or as another part of the same memory.
    fn has_fallback(&self) -> bool {
        self.nodes.len() > 1 || self.zones.iter().any(|zone| !zone.is_last_part)
    }

    /// Whether no later part of the same node and kind has memory.
    fn is_last_listed_part(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> bool {
        let later = &self.zones[zone.id.index() + 1..];
        let mut parts = later.iter().take_while(|part| (part.node, part.kind) == (zone.node, zone.kind));
        parts.all(|part| part.managed() == PageCount::ZERO || !context.reaches(part))
    }

    /// Returns the zones that are parts of the same memory as `zone`, up to and including `zone`.
    fn parts_up_to(&self, zone: &Zone<'m, P>) -> &'m [Zone<'m, P>] {
        let end = zone.id.index() + 1;
        let before = self.zones[..end].iter().rev();
        let parts = before.take_while(|part| (part.node, part.kind) == (zone.node, zone.kind)).count();
        &self.zones[end - parts..end]
    }
}
