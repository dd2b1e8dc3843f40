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

use crate::alloc::shortage::why_failed;
use crate::config::ZonelistCache;
use crate::pageset::full_zones::note_full;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::reclaim::IDLE_ROUNDS;
use crate::reclaim::failed::{FailedReclaim, Past};
use crate::request::Block;
use crate::request::context::AllocContext;
use crate::request::steps::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::settings::Setting;
use crate::units::{Order, PageCount, ZoneKind};
use crate::zone::counters::ZoneItem;
use crate::zone::events::Event;
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::candidates::{Candidates, NodeFilter};
use crate::zonelist::full_cache::{FullBits, ScanClass};
use crate::zonelist::{ListChanged, PositionMask, RESTARTS};

/// Maximum number of last scans before a request fails. A request that never skips a zone makes this number of scans.
const LAST_SCANS: u32 = IDLE_ROUNDS + 2;

/// The use of the zonelist cache by a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CacheUse {
    /// The cache is not used yet, because no zone has failed in this scan.
    Later,
    /// Positions whose full bit is set are skipped.
    Active,
    /// Every full bit is ignored, because a walk that skipped full zones found no block, or because this is a last
    /// scan.
    Ignored,
}

/// The rules of a scan, which read the state and change nothing. Explanations (`explain/walk.rs`) follow them too.
pub(crate) struct ScanRules<'s, 'm, P: Platform> {
    state: &'s MachineState<'m, P>,
    context: &'s AllocContext<'s>,
    watermark: Watermark,
    past: Past,
    mode: ZonelistCache,
    class: ScanClass,
    /// The list's full bits that apply to the scan. `None` if the scan does not use the zonelist cache: the machine has
    /// one node with undivided memory, only one node may serve the request, the cache is off or does not serve binding
    /// policies, or the request ignores watermarks.
    pub(crate) bits: Option<&'m [P::U64]>,
}

struct Scan<'s, 'm, P: Platform> {
    rules: ScanRules<'s, 'm, P>,
    state: &'s MachineState<'m, P>,
    context: &'s AllocContext<'s>,
    candidates: Candidates<'s, 'm, P>,
    full: &'s FullBits<'m, P>,
    cache: CacheUse,
    /// The preferred zone: the first zone that may serve the request.
    preferred: Option<&'s Zone<'m, P>>,
    probes: u64,
    /// Whether node reclaim freed frames.
    freed: bool,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Scans the request's list at `watermark`.
    pub(super) fn scan(&self, context: &AllocContext<'_>, watermark: Watermark) -> Option<Block> {
        self.scan_by(context, watermark, Past::Heeded).0
    }

    /// Scans the request's list a last time before the request fails.
    ///
    /// Ignores full bits, and repeats the scan as long as node reclaim frees frames. A request therefore never fails
    /// because of the zonelist cache. In the published form, this method runs one ordinary scan.
    pub(super) fn scan_last(&self, context: &AllocContext<'_>) -> Option<Block> {
        if self.shared.zonelist_cache().is_published_form() {
            return self.scan(context, Watermark::Min);
        }
        for _ in 0..LAST_SCANS {
            let (found, freed) = self.scan_by(context, Watermark::Min, Past::Ignored);
            if found.is_some() || !freed {
                return found;
            }
        }
        None
    }

    /// Scans the list, and restarts if the list changes; also returns whether node reclaim freed frames.
    fn scan_by(&self, context: &AllocContext<'_>, watermark: Watermark, past: Past) -> (Option<Block>, bool) {
        let mut freed = false;
        for _ in 0..RESTARTS {
            let mut listed = None;
            let mut scan = Scan::new(ScanRules::new(self, context, watermark, past), &mut listed);
            let found = scan.run();
            self.count_probes(context, scan.probes);
            freed |= scan.freed;
            if let Ok(found) = found {
                return (found, freed);
            }
        }
        (None, freed)
    }
}

impl<'s, 'm, P: Platform> ScanRules<'s, 'm, P> {
    /// Creates the rules of a scan at `watermark`.
    pub(crate) fn new(
        state: &'s MachineState<'m, P>,
        context: &'s AllocContext<'s>,
        watermark: Watermark,
        past: Past,
    ) -> Self {
        let mode = state.shared.zonelist_cache();
        let off = mode == ZonelistCache::Off
            || !state.has_fallback()
            || context.strict
            || context.has_address_limit()
            || context.urgency == Urgency::Reserve
            || (context.is_bound() && !mode.serves_bound());
        let class = ScanClass::of(mode, context.order, watermark, context.urgency, context.limit);
        let bits = (!off).then(|| state.lists.full(context.target).bitmap(class));
        Self { state, context, watermark, past, mode, class, bits }
    }

    /// Whether the scan respects full bits from its start, because the cpuset excludes the node of the first zone within
    /// the request's zone limit.
    pub(crate) fn begins_with_cache(&self) -> Result<bool, ListChanged> {
        let Some(cpuset) = self.context.cpuset.filter(|_| self.mode.sets_up_past_disallowed()) else {
            return Ok(false);
        };
        let list = self.state.lists.read(self.context.target);
        let mut all = Candidates::new(list, self.context.limit, None);
        let first = all.next(0, None)?;
        Ok(first.is_some_and(|(_, zone)| !cpuset.contains(self.state.zones[zone.index()].node_id)))
    }

    /// Returns whether `zone` serves the request, or why not.
    pub(crate) fn outcome(&self, zone: &Zone<'m, P>) -> Outcome {
        if self.passes(zone) && self.state.has_block_for(zone, self.context) {
            Outcome::Serves
        } else {
            why_failed(zone, self.context, self.watermark)
        }
    }

    /// Whether `zone` is above the watermark and has a block of the order.
    fn passes(&self, zone: &Zone<'_, P>) -> bool {
        let AllocContext { order, urgency, limit, cpu, .. } = *self.context;
        zone.watermarks_allow(order, urgency, limit, self.watermark)
            && (order == Order::PAGE
                || zone.free_areas.has_block(order, zone.preferred_area(cpu))
                || self.past == Past::Ignored && zone.free_areas.has_block_exactly(order))
    }

    /// Returns whether node reclaim would run for `zone`, which does not serve, or failed recently.
    ///
    /// Returns `None` if node reclaim is off or cannot help, because the zone passes or is too far from the preferred zone.
    /// Memory of one kind may be divided into several zones, its *parts*. Only the last part is reclaimed, so that the
    /// scan tries every part before.
    pub(crate) fn reclaim_step(&self, zone: &Zone<'m, P>, preferred: &Zone<'m, P>) -> Option<ReclaimStep> {
        let (state, node_reclaim) = (self.state, self.state.shared.node_reclaim());
        let helps = node_reclaim.is_on()
            && state.is_last_listed_part(zone, self.context)
            && (!self.mode.heeds_distance()
                || u64::from(state.distance(preferred.node, zone.node))
                    <= state.shared.number(Setting::ReclaimDistance))
            && !self.passes(zone);
        let failed = helps && self.recently_failed(zone);
        helps.then_some(if failed { ReclaimStep::FailedRecently } else { ReclaimStep::WouldRun })
    }

    /// Whether node reclaim failed for the zone within the last second.
    ///
    /// Node reclaim of the zone is then not tried again, not even by a scan that ignores full bits. This rule is our
    /// own. In the published form, a scan that ignores full bits reclaims again.
    fn recently_failed(&self, zone: &Zone<'_, P>) -> bool {
        let failure = failed_reclaim(zone, self.class.order_class());
        self.mode == ZonelistCache::On
            && self.bits.is_some()
            && failure.binds(self.state.platform.now(), self.context.limit, self.past)
    }
}

impl<'s, 'm, P: Platform> Scan<'s, 'm, P> {
    /// Creates a scan by `rules`; `listed` is storage for the positions of allowed nodes.
    fn new(rules: ScanRules<'s, 'm, P>, listed: &'s mut Option<PositionMask>) -> Self {
        let ScanRules { state, context, past, .. } = rules;
        let filter = context.nodes().map(|nodes| NodeFilter::new(nodes, context.nodes, listed));
        Self {
            state,
            context,
            candidates: Candidates::new(state.lists.read(context.target), context.limit, filter),
            full: state.lists.full(context.target),
            cache: if past == Past::Heeded { CacheUse::Later } else { CacheUse::Ignored },
            rules,
            preferred: None,
            probes: 0,
            freed: false,
        }
    }

    fn run(&mut self) -> Result<Option<Block>, ListChanged> {
        if self.rules.begins_with_cache()? {
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
        self.cache = CacheUse::Ignored;
        self.pass()
    }

    /// Walks the list once from its start, and tries each candidate.
    fn pass(&mut self) -> Result<Option<Block>, ListChanged> {
        let mut from = 0;
        loop {
            let marked = self.rules.bits.filter(|_| self.cache == CacheUse::Active);
            let next = self.candidates.next(from, marked)?;
            if self.context.observer.is_some() {
                self.report_skipped(from, next.map(|(position, _)| position))?;
            }
            let Some((position, zone)) = next else { return Ok(None) };
            let zone = &self.state.zones[zone.index()];
            if self.context.strict && zone.node != self.context.target {
                return Ok(None); // the zones of the target come first in its list
            }
            from = position + 1;
            let found = self.try_zone(zone, position);
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Reports the zones at positions from `from` to before `end`, or to the end of the list, which are not tried.
    #[cold]
    fn report_skipped(&self, mut from: usize, end: Option<usize>) -> Result<(), ListChanged> {
        let within_ns = self.full.age_ns(self.state.platform.now());
        let list = self.state.lists.read(self.context.target);
        let mut all = Candidates::new(list, ZoneKind::Movable, None);
        while let Some((position, zone)) = all.next(from, None)?.filter(|&(at, _)| Some(at) != end) {
            let zone = &self.state.zones[zone.index()];
            if self.context.strict && zone.node != self.context.target {
                break;
            }
            let exclusion = self.context.exclusion(zone).map(Outcome::NotAllowed);
            self.report(zone, exclusion.unwrap_or(Outcome::MarkedFull { within_ns }));
            from = position + 1;
        }
        Ok(())
    }

    /// Reports the outcome of a zone.
    fn report(&self, zone: &Zone<'m, P>, outcome: Outcome) {
        self.context.report(Step::Zone {
            zone: ZoneName::of(zone),
            watermark: self.rules.watermark,
            outcome,
        });
    }

    /// Tries to allocate from one zone that may serve the request.
    fn try_zone(&mut self, zone: &'s Zone<'m, P>, position: usize) -> Option<Block> {
        if self.context.has_address_limit() && !self.context.allows(zone) {
            self.report(zone, Outcome::NotAllowed(Exclusion::AddressLimit));
            return None;
        }
        self.preferred.get_or_insert(zone);
        self.probes += 1;
        let taken = self.try_alloc(zone);
        if taken.is_some() {
            return taken;
        }
        if self.context.observer.is_some() {
            self.report(zone, why_failed(zone, self.context, self.rules.watermark));
        }
        if self.rules.mode.consults_before_reclaim() {
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
        let is_marked = self.cache == CacheUse::Active && self.full.is_full(self.rules.class, position);
        match self.rules.reclaim_step(zone, self.preferred.unwrap_or(zone)) {
            // A full bit that was set within the last second prevents reclaim too (M3).
            Some(ReclaimStep::WouldRun) if !is_marked => return self.reclaim_and_retry(zone, position),
            Some(_) => {
                self.report(zone, Outcome::Reclaim(ReclaimStep::FailedRecently));
                if is_marked {
                    return None;
                }
            }
            None => {}
        }
        self.set_full_bit(zone, position);
        None
    }

    /// Runs node reclaim and tries the zone again.
    fn reclaim_and_retry(&mut self, zone: &'s Zone<'m, P>, position: usize) -> Option<Block> {
        let outcome = self.state.node_reclaim(zone, self.context);
        self.report(zone, Outcome::Reclaim(outcome));
        self.freed |= matches!(outcome, ReclaimStep::Some | ReclaimStep::Success);
        if matches!(outcome, ReclaimStep::NotTried | ReclaimStep::TooFew) {
            // The zone is skipped, but its full bit is not set, because direct reclaim may free frames that node
            // reclaim must not free. The first version of M3 set the bit.
            if outcome == ReclaimStep::TooFew && self.rules.mode.marks_unreclaimable() {
                self.set_full_bit(zone, position);
            }
            return None;
        }
        // The freed frames may be in any of the node's zones with this kind.
        let taken = self.state.parts_up_to(zone).iter().find_map(|part| self.try_alloc(part));
        if taken.is_none() {
            let lasting = self.rules.watermark == Watermark::Min || outcome != ReclaimStep::Success;
            if self.rules.mode == ZonelistCache::On && lasting && !self.context.has_address_limit() {
                self.note_failed_reclaim(zone, outcome);
            }
            if self.rules.mode.is_published_form() || lasting {
                self.set_full_bit(zone, position);
            }
        }
        taken
    }

    fn try_alloc(&self, zone: &'s Zone<'m, P>) -> Option<Block> {
        let preferred = self.preferred.unwrap_or(zone);
        if !self.rules.passes(zone) {
            return None;
        }
        let block = self.state.serve_from(zone, preferred, self.context, self.rules.watermark)?;
        if zone.node != preferred.node {
            self.state.count_foreign(preferred, self.context.cpu);
        }
        self.report(zone, Outcome::Serves);
        Some(block)
    }

    /// Makes the cache active, at most once per scan.
    fn set_up_cache(&mut self) {
        if self.cache == CacheUse::Later && self.rules.bits.is_some() {
            if self.full.set_up(self.state.platform.now()) {
                self.state.nodes[self.context.target].events.add(Event::Wipes, 1);
            }
            self.cache = CacheUse::Active;
        }
    }

    fn set_full_bit(&self, zone: &Zone<'_, P>, position: usize) {
        if self.rules.bits.is_none() {
            return;
        }
        let ScanRules { mode, class, .. } = self.rules;
        if !mode.is_published_form() {
            self.state.note_full_bit(zone, class, self.context.target);
        }
        if self.full.set_full(mode, class, position) {
            self.state.nodes[self.context.target].events.add(Event::Marks, 1);
        }
    }

    /// Records for `zone` and the node's lower zones that node reclaim failed.
    ///
    /// The scan reaches the lower zones next. Because reclaim covered the whole node, it need not be repeated for them.
    fn note_failed_reclaim(&self, zone: &Zone<'_, P>, outcome: ReclaimStep) {
        let now = self.state.platform.now();
        let failure = FailedReclaim::new(now, self.context.limit);
        let failure = if outcome == ReclaimStep::Nothing { failure } else { failure.with_some_freed() };
        let lower = |other: &&Zone<'_, P>| other.kind <= zone.kind;
        for zone in self.state.node_zones(zone.node).iter().filter(lower) {
            for class in self.rules.class.bound_orders().iter() {
                if !failed_reclaim(zone, class).covers(failure, now) {
                    zone.cells.reclaim_failed_at[class].store(failure.word(), Relaxed); // relaxed: a hint
                }
            }
            note_full(zone, self.rules.class.bound_orders());
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
        parts.all(|part| part.managed() == PageCount::ZERO || !context.allows(part))
    }

    /// Returns the zones that are parts of the same memory as `zone`, up to and including `zone`.
    pub(crate) fn parts_up_to(&self, zone: &Zone<'m, P>) -> &'m [Zone<'m, P>] {
        let end = zone.id.index() + 1;
        let before = self.zones[..end].iter().rev();
        let parts = before.take_while(|part| (part.node, part.kind) == (zone.node, zone.kind)).count();
        &self.zones[end - parts..end]
    }
}
