//! A scan: one walk over a zonelist to find a zone that passes its watermark and has a block.
//!
//! A zonelist cache (M1; see the README for M1 to M4) has a full bit for each zone that failed recently, and a scan
//! skips these zones 64 at a time. With node reclaim (M3), a scan reclaims a nearby zone below its watermark before it
//! continues, unless the cache records a recent failure. A scan tries its first zone without the cache. When a scan
//! with the cache finds no block, it tries all zones once more. A past form walks the list itself, by the same steps.
//! An explanation is a scan whose steps change nothing. Related files: `alloc/slow.rs` runs scans,
//! `zonelist/candidates.rs` finds the zones to try, `zonelist/full_cache.rs` holds the full bits, and `reclaim/mod.rs`
//! has node reclaim. Source: Jackson 2006, Linux 9276b1bc96a1; Gorman 2011, Linux cd38b115d5ad.

use core::sync::atomic::Ordering::Relaxed;

use crate::alloc::failed::{FailedReclaim, Past, failed_reclaim};
use crate::alloc::slow::why_failed;
use crate::config::ZonelistCache;
use crate::pageset::state::MachineState;
use crate::platform::steps::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use crate::platform::{Atomic, Platform};
use crate::reclaim::IDLE_ROUNDS;
use crate::request::context::AllocContext;
use crate::request::{Block, RequestFlags};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::rules::zonelist_cache::{ScanForm, ZonelistScan};
use crate::settings::Setting;
use crate::units::{Order, PageCount, ZoneId, ZoneKind};
use crate::zone::counters::ZoneItem;
use crate::zone::events::Event;
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::candidates::Candidates;
use crate::zonelist::full_cache::{BitsCopy, FullBits, ScanClass};
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

/// What the steps of a scan are for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To serve a request.
    Serve,
    /// To explain what a request would do. The steps change nothing but their own copy of the full bits, and continue as
    /// if node reclaim freed nothing.
    Explain,
}

/// A scan in progress.
struct Scan<'s, 'm, P: Platform> {
    purpose: Purpose,
    state: &'s MachineState<'m, P>,
    context: &'s AllocContext<'s>,
    watermark: Watermark,
    past: Past,
    /// The past form that walks the list, if the mode is a past one.
    form: Option<&'static dyn ScanForm>,
    class: ScanClass,
    full: &'s FullBits<'m, P>,
    /// The list's full bits that apply to the scan. `None` if the scan does not use the zonelist cache.
    bits: Option<&'s [P::U64]>,
    candidates: Candidates<'s, 'm, P>,
    cache: CacheUse,
    /// The preferred zone: the first zone that may serve the request.
    preferred: Option<&'s Zone<'m, P>>,
    probes: u64,
    /// Whether node reclaim freed frames.
    freed: bool,
    /// Whether full bits prevented a step. Known only if the steps are reported.
    hid_zones: bool,
    /// The current position and zone.
    current: Option<(usize, &'s Zone<'m, P>)>,
    /// What became of node reclaim in the current zone.
    reclaimed: Option<ReclaimStep>,
    /// The zone that serves the request, and the block, unless the scan explains.
    served: Option<ZoneId>,
    found: Option<Block>,
    /// Whether the list changed, so that the scan must restart.
    changed: bool,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Scans the request's list at `watermark`.
    pub(super) fn scan(&self, context: &AllocContext<'_>, watermark: Watermark) -> Option<Block> {
        self.scan_by(context, watermark, Past::Heeded).0
    }

    /// Scans the request's list a last time before the request fails.
    ///
    /// Ignores full bits, and repeats the scan as long as node reclaim frees frames, so that no request fails because of the
    /// zonelist cache. With a past form, this method runs one ordinary scan.
    pub(super) fn scan_last(&self, context: &AllocContext<'_>) -> Option<Block> {
        if self.shared.zonelist_cache().is_past() {
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
            let mut scan = Scan::new(self, context, watermark, past, &mut listed);
            scan.run();
            // In the CPU's pageset, because the node's counter is shared by all scanning CPUs.
            let preferred = self.nodes[context.from].preferred_zone();
            match preferred.and_then(|zone| self.own_pageset_still(&self.zones[zone], context.cpu)) {
                Some(guard) => guard.add_to(|pageset| &pageset.probes, scan.probes),
                None => self.nodes[context.target].events.add(Event::Probes, scan.probes),
            }
            freed |= scan.freed;
            if scan.found.is_some() || !scan.changed {
                return (scan.found, freed);
            }
        }
        (None, freed)
    }

    /// Reports the steps of a scan at `watermark`, and returns the zone that would serve the request.
    pub(super) fn explain_scan(
        &self,
        context: &AllocContext<'_>,
        watermark: Watermark,
        copy: &mut BitsCopy<P>,
    ) -> Option<ZoneId> {
        let attempt = |_| {
            let mut listed = None;
            let mut scan = Scan::new(self, context, watermark, Past::Heeded, &mut listed);
            scan.purpose = Purpose::Explain;
            scan.bits = scan.bits.map(|_| copy.of(scan.full, scan.class, self.platform.now()));
            scan.run();
            (!scan.changed).then_some(scan.served)
        };
        (0..RESTARTS).find_map(attempt).flatten()
    }

    /// Counts a block that `preferred` should have served, in the CPU's counter difference if its pageset can be
    /// locked.
    pub(super) fn count_foreign(&self, preferred: &Zone<'m, P>, cpu: CpuInfo) {
        match self.own_pageset_still(preferred, cpu) {
            Some(guard) => {
                preferred.counters().update(&guard.zone_diffs, &guard, [(ZoneItem::NumaForeign, 1)]);
            }
            None => preferred.counters().add_total(ZoneItem::NumaForeign, 1),
        }
    }
}

impl<'s, 'm, P: Platform> Scan<'s, 'm, P> {
    /// Creates a scan for a request; `listed` is storage for the positions of allowed nodes.
    fn new(
        state: &'s MachineState<'m, P>,
        context: &'s AllocContext<'s>,
        watermark: Watermark,
        past: Past,
        listed: &'s mut Option<PositionMask>,
    ) -> Self {
        let (mode, form) = (state.shared.zonelist_cache(), state.past_scan());
        let nodes = state.nodes.len();
        let are_parts = |pair: &[Zone<'m, P>]| (pair[0].node, pair[0].kind) == (pair[1].node, pair[1].kind);
        // The present form uses it where a fallback exists and watermarks count; a past form decides by the list.
        let off = match form {
            _ if mode == ZonelistCache::Off || context.below.is_some() => true,
            Some(_) if context.strict && !context.first.is_empty() => true,
            Some(form) if context.strict || nodes == 1 => !form.serves_one_node(),
            Some(form) => context.bound.is_some() && !form.serves_bound(),
            None if context.strict || context.flags.urgency == Urgency::Reserve => true,
            // Without another node or another part of the same memory, no zone has an equivalent fallback.
            None => nodes == 1 && !state.zones.windows(2).any(are_parts),
        };
        let is_used = !off || (form.is_some() && nodes > 1);
        let class = ScanClass::of(
            form,
            context.flags.order,
            watermark,
            context.flags.urgency,
            context.flags.zone_limit,
        );
        let full = state.lists.full(context.target);
        let filter = context.nodes().filter(|_| P::RESTRICTS).map(|nodes| (nodes, context.nodes, listed));
        Self {
            purpose: Purpose::Serve,
            state,
            context,
            watermark,
            past,
            form,
            class,
            full,
            bits: (!off).then(|| full.bitmap(class)),
            candidates: Candidates::new(&state.lists, context.target, context.flags.zone_limit, filter),
            cache: if is_used && past == Past::Heeded { CacheUse::Later } else { CacheUse::Ignored },
            preferred: None,
            probes: 0,
            freed: false,
            hid_zones: false,
            current: None,
            reclaimed: None,
            served: None,
            found: None,
            changed: false,
        }
    }

    /// Walks the list until a zone serves the request, and once more without full bits if these hid zones. A past form
    /// walks in its own way.
    fn run(&mut self) {
        if let Some(form) = self.form {
            return form.walk(self);
        }
        loop {
            while self.advance() {
                if self.try_zone() {
                    return;
                }
                self.set_up_cache();
                match self.reclaim_zone() {
                    // The zone is skipped, but its full bit is not set, because direct reclaim may free frames that
                    // node reclaim must not free.
                    Some(ReclaimStep::NotTried | ReclaimStep::TooFew) => {}
                    None | Some(ReclaimStep::FailedRecently) => self.mark_full(),
                    Some(_) if self.try_reclaimed() => return,
                    Some(_) => self.mark_full(),
                }
            }
            if !self.restart_without_cache() {
                return;
            }
        }
    }

    /// Returns the first zone to try after the current one.
    fn next_zone(&mut self) -> Result<Option<(usize, &'s Zone<'m, P>)>, ListChanged> {
        let mut from = self.current.map_or(0, |(position, _)| position + 1);
        loop {
            let marked = self.bits.filter(|_| self.cache == CacheUse::Active);
            let next = self.candidates.next(from, marked)?;
            if !P::ONLY_BLOCKS && self.context.observer.is_some() {
                self.report_skipped(from, next.map(|(position, _)| position))?;
            }
            let Some((position, zone)) = next else { return Ok(None) };
            let zone = &self.state.zones[zone.index()];
            if self.context.strict && zone.node != self.context.target {
                return Ok(None); // the zones of the target come first in its list
            }
            if self.context.below.is_none() || self.context.allows(zone) {
                return Ok(Some((position, zone)));
            }
            self.report(zone, Outcome::NotAllowed(Exclusion::AddressLimit));
            from = position + 1;
        }
    }

    /// Reports the zones at positions from `from` to before `end`, or to the end of the list, which are not tried.
    #[cold]
    fn report_skipped(&mut self, mut from: usize, end: Option<usize>) -> Result<(), ListChanged> {
        let within_ns = self.full.age(self.state.platform.now()).unwrap_or(0);
        let mut all = Candidates::new(&self.state.lists, self.context.target, ZoneKind::Movable, None);
        while let Some((position, zone)) = all.next(from, None)?.filter(|&(at, _)| Some(at) != end) {
            let zone = &self.state.zones[zone.index()];
            if self.context.strict && zone.node != self.context.target {
                break;
            }
            let exclusion = self.context.exclusion(zone).map(Outcome::NotAllowed);
            self.hid_zones |= exclusion.is_none();
            self.report(zone, exclusion.unwrap_or(Outcome::MarkedFull { within_ns }));
            from = position + 1;
        }
        Ok(())
    }

    /// Reports the outcome of a zone.
    fn report(&self, zone: &Zone<'m, P>, outcome: Outcome) {
        if !P::ONLY_BLOCKS {
            self.context.report(Step::Zone { zone: ZoneName::of(zone), watermark: self.watermark, outcome });
        }
    }

    /// Allocates from `zone`, if it is above the watermark and has a block. Returns whether it did, or would.
    fn serve_by(&mut self, zone: &'s Zone<'m, P>) -> bool {
        let is_trusted =
            self.reclaimed == Some(ReclaimStep::Success) && self.form.is_some_and(ScanForm::trusts_reclaim);
        if self.served.is_some() || !(is_trusted || self.passes(zone)) {
            return self.served.is_some(); // a past form must not allocate a second block
        }
        let serves = if self.explains() {
            self.state.has_block_for(zone, self.context)
        } else {
            let preferred = self.preferred.unwrap_or(zone);
            self.found = self.state.serve_from(zone, preferred, self.context, self.watermark);
            if self.found.is_some() && zone.node != preferred.node {
                self.state.count_foreign(preferred, self.context.cpu);
            }
            self.found.is_some()
        };
        if serves {
            self.served = Some(zone.id);
            self.report(zone, Outcome::Serves);
        }
        serves
    }

    /// Whether the scan only explains what a request would do.
    fn explains(&self) -> bool {
        !P::ONLY_BLOCKS && self.purpose == Purpose::Explain
    }

    /// Whether `zone` is above the watermark and has a block of the order.
    fn passes(&self, zone: &Zone<'_, P>) -> bool {
        let RequestFlags { order, urgency, zone_limit, .. } = self.context.flags;
        zone.watermarks_allow(order, urgency, zone_limit, self.watermark)
            && (order == Order::PAGE
                || zone.free_areas.has_block(order, zone.preferred_area(self.context.cpu))
                || self.past == Past::Ignored && zone.free_areas.has_block_exactly(order))
    }

    /// Whether the scan respects full bits and that of `position` is set.
    fn is_marked(&self, position: usize) -> bool {
        // Relaxed: full bits are hints.
        let is_set = |bits: &[P::U64]| bits[position / 64].load(Relaxed) & (1 << (position % 64)) != 0;
        self.cache == CacheUse::Active && self.bits.is_some_and(is_set)
    }

    /// Records for `zone` and the node's lower zones that node reclaim failed.
    ///
    /// The scan reaches the lower zones next. Because reclaim covered the whole node, it need not be repeated for them.
    fn note_failed_reclaim(&self, zone: &Zone<'_, P>, outcome: ReclaimStep) {
        let now = self.state.platform.now();
        let failure = FailedReclaim::new(now, self.context.flags.zone_limit, outcome != ReclaimStep::Nothing);
        let lower = |other: &&Zone<'_, P>| other.kind <= zone.kind;
        for zone in self.state.node_zones(zone.node).iter().filter(lower) {
            for class in self.class.bound_orders().iter() {
                if !failed_reclaim(zone, class).covers(failure, now) {
                    zone.cells.reclaim_failed_at[class].store(failure.0, Relaxed); // relaxed: a hint
                }
            }
            self.state.note_full(zone, self.class.bound_orders());
        }
    }
}

impl<P: Platform> ZonelistScan for Scan<'_, '_, P> {
    fn advance(&mut self) -> bool {
        let next = self.next_zone();
        self.changed |= next.is_err();
        (self.current, self.reclaimed) = (next.unwrap_or(None), None);
        self.current.is_some()
    }

    fn try_zone(&mut self) -> bool {
        let Some((_, zone)) = self.current else { return false };
        self.preferred.get_or_insert(zone);
        self.probes += 1;
        let serves = self.serve_by(zone);
        if !P::ONLY_BLOCKS && !serves && self.context.observer.is_some() {
            self.report(zone, why_failed(zone, self.context, self.watermark));
        }
        serves
    }

    fn set_up_cache(&mut self) {
        if self.cache == CacheUse::Later {
            let sets_up = self.bits.is_some() && !self.explains();
            if sets_up && self.full.set_up(self.state.platform.now()) {
                self.state.nodes[self.context.target].events.add(Event::Wipes, 1);
            }
            self.cache = CacheUse::Active;
        }
    }

    fn reclaim_zone(&mut self) -> Option<ReclaimStep> {
        let (position, zone) = self.current?;
        let (state, context) = (self.state, self.context);
        let is_marked = self.is_marked(position);
        let is_near = || {
            let distance = state.distance(self.preferred.unwrap_or(zone).node, zone.node);
            self.form.is_some() || u64::from(distance) <= state.shared.number(Setting::ReclaimDistance)
        };
        // Memory of one kind may be divided into several zones, its *parts*. Only the last part is reclaimed, so that the scan
        // tries every part before.
        let is_later = |part: &Zone<'_, P>| {
            part.kind == zone.kind
                && part.id > zone.id
                && part.managed() != PageCount::ZERO
                && context.allows(part)
        };
        let helps = P::RECLAIMS
            && state.shared.node_reclaim().is_on()
            && !state.node_zones(zone.node).iter().any(is_later)
            && is_near()
            && !self.passes(zone);
        if !helps {
            self.reclaimed = None;
            return None;
        }
        // Node reclaim that failed within the last second is not tried again, not even by a scan that ignores full bits, except
        // in past forms.
        let failure = failed_reclaim(zone, self.class.order_class);
        let failed = self.form.is_none()
            && self.bits.is_some()
            && failure.binds(state.platform.now(), context.flags.zone_limit, self.past);
        let step = match self.purpose {
            // A full bit that was set within the last second prevents reclaim too (M3).
            _ if failed || is_marked => ReclaimStep::FailedRecently,
            Purpose::Serve => state.node_reclaim(zone, context),
            Purpose::Explain => state.expected_node_reclaim(zone, context),
        };
        self.report(zone, Outcome::Reclaim(step));
        self.hid_zones |= is_marked;
        self.freed |= matches!(step, ReclaimStep::Some | ReclaimStep::Success);
        self.reclaimed = Some(step);
        self.reclaimed
    }

    fn try_reclaimed(&mut self) -> bool {
        let Some((_, zone)) = self.current else { return false };
        // The freed frames may be in any of the parts up to this zone.
        let zones = self.state.node_zones(zone.node).iter();
        let mut parts = zones.filter(|part| part.kind == zone.kind && part.id <= zone.id);
        parts.any(|part| self.serve_by(part))
    }

    fn mark_full(&mut self) {
        let Some((position, zone)) = self.current else { return };
        let sets = match self.reclaimed.filter(|_| P::RECLAIMS) {
            _ if self.explains() || self.form.is_some() => true,
            None => true,
            Some(ReclaimStep::FailedRecently) => !self.is_marked(position),
            Some(outcome) => {
                let lasting = self.watermark == Watermark::Min || outcome != ReclaimStep::Success;
                let is_on = self.state.shared.zonelist_cache() == ZonelistCache::On;
                if lasting && is_on && self.context.below.is_none() {
                    self.note_failed_reclaim(zone, outcome);
                }
                lasting
            }
        };
        let Some(bits) = self.bits.filter(|_| sets) else { return };
        if self.explains() {
            bits[position / 64].fetch_or(1 << (position % 64), Relaxed); // relaxed: a copy
            return;
        }
        if self.form.is_none() {
            // Records in which node's cache the bit is set, for `clear_full_bits`. Relaxed: a hint.
            let (cell, bit) = (&zone.full_in[self.context.target / 64], 1 << (self.context.target % 64));
            if cell.load(Relaxed) & bit == 0 {
                cell.fetch_or(bit, Relaxed);
            }
            self.state.note_full(zone, self.class.bound_orders());
        }
        if self.full.set_full(self.class, position) {
            self.state.nodes[self.context.target].events.add(Event::Marks, 1);
        }
    }

    fn restart_without_cache(&mut self) -> bool {
        let hid_zones = self.cache == CacheUse::Active && (!self.explains() || self.hid_zones);
        if hid_zones {
            (self.cache, self.current) = (CacheUse::Ignored, None);
        }
        hid_zones
    }

    fn begins_outside_cpuset(&mut self) -> bool {
        let (state, context) = (self.state, self.context);
        let mut all = Candidates::new(&state.lists, context.target, context.flags.zone_limit, None);
        let outside = |zone: ZoneId| {
            context.cpuset.is_some_and(|cpuset| !cpuset.contains(state.zones[zone.index()].node_id))
        };
        let begins = matches!(all.next(0, None), Ok(Some((_, zone))) if outside(zone));
        if begins && let Ok(Some((_, zone))) = self.candidates.next(0, None) {
            // The first zone that may serve the request remains the preferred zone, even if it is skipped.
            self.preferred = Some(&state.zones[zone.index()]);
        }
        begins
    }
}
