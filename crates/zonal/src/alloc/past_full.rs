//! The short scan while the preferred zone is full: allocates from the CPU's pageset of the first zone whose full bit
//! is not set, the *serving zone*.
//!
//! The short scan finds the same zone as the scan in `alloc/scan.rs`. It returns `None` in all cases in which that scan
//! would set or clear full bits, reclaim, or refill a pageset. The preferred zone's watermark is checked first, as in
//! every scan. The serving zone's watermark is not checked, because it was checked when the frames in the pageset left
//! the zone (docs/decisions/0003). Related file: `alloc/mod.rs` runs the short scan when the CPU's pageset is empty.

use crate::Allocator;
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::config::ZonelistCache;
use crate::pageset::StackId;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::Order;
use crate::zone::counters::ZoneItem;
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::candidates::Candidates;
use crate::zonelist::full_cache::ScanClass;

/// Number of zones checked: the preferred zone and the serving zone.
const PROBES: u64 = 2;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Pops a block from the current CPU's pageset of the serving zone, or returns `None` if the stack is empty.
    ///
    /// In the default mode of the zonelist cache, this pageset becomes the CPU's slot for single frames.
    #[inline(never)]
    pub(super) fn pop_past_full(
        &self,
        session: PagesetSession<'_, 'm, P>,
        preferred: &Zone<'m, P>,
        stack: StackId,
        flags: &RequestFlags,
    ) -> Option<Block> {
        let block = self.pop(&session, stack, flags.order, flags.kind)?;
        let (zone, cpu) = (session.zone, session.cpu);
        let missed = zone.node != preferred.node;
        zone.counters().update(&session.zone_diffs, &session, |counts| {
            counts.increment(if missed { ZoneItem::NumaMiss } else { ZoneItem::NumaHit });
            counts.increment(if session.is_own() { ZoneItem::NumaLocal } else { ZoneItem::NumaOther });
        });
        session.add_to(|pageset| &pageset.probes, PROBES);
        if flags.order == Order::PAGE && self.state.shared.zonelist_cache() == ZonelistCache::On {
            self.state.nodes[usize::from(cpu.node)].note_served_elsewhere();
            session.serve_instead_of(preferred);
            self.state.use_pageset(zone, &session, cpu);
        }
        session.update_limits();
        drop(session);
        if missed {
            self.state.count_foreign(preferred, Some(cpu));
        }
        Some(block)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the serving zone of a request while `preferred` is full.
    ///
    /// The serving zone is the nearest zone whose full bit is not set. Returns `None` if the full bit of `preferred` is
    /// not set, or the CPU's pageset of `preferred` has a block. A CPU that does not use the pageset of the returned
    /// zone returns to its pageset slot of `preferred`.
    pub(super) fn zone_past_full(
        &self,
        request: &Request<'_>,
        stack: StackId,
        preferred: &Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<&Zone<'m, P>> {
        let may_pass = request.may_pass(stack);
        let instead = (may_pass && !self.pagesets_of(preferred).of(cpu).has(stack))
            .then(|| self.first_not_full(request, preferred, cpu))
            .flatten();
        if stack == StackId::PAGES
            && may_pass
            && instead.is_none_or(|zone| !self.uses(zone, cpu))
            && self.is_served_elsewhere(cpu)
        {
            self.serve_from_preferred(cpu);
        }
        instead
    }

    /// Returns the nearest zone whose full bit is not set, if `preferred` has its full bit set and still fails its
    /// watermark.
    #[inline(never)]
    pub(super) fn first_not_full(
        &self,
        request: &Request<'_>,
        preferred: &Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<&Zone<'m, P>> {
        let (order, urgency, limit) = (request.flags.order, request.flags.urgency, request.flags.zone_limit);
        let mode = self.shared.zonelist_cache();
        if mode == ZonelistCache::Off {
            return None;
        }
        let class = if mode.is_published_form() {
            ScanClass::published()
        } else {
            ScanClass::new(order, Watermark::Low, urgency, limit)
        };
        let full = self.lists.full(usize::from(cpu.node));
        let reserve = urgency == Urgency::Reserve || self.platform.is_reclaiming();
        if !full.is_full(class, 0)
            || reserve
            || self.shared.node_reclaim().is_on()
            || full.is_stale(self.platform.now())
        {
            return None;
        }
        // With `ZonelistCache::On`, a free that lifts a zone above its watermark clears the zone's full bit at once. An
        // approximate count that is too low therefore cannot hide the zone for long, so this count, which costs one
        // load, decides first. The exact count is read only if the approximate count allows the request.
        let allows = |free| {
            preferred.watermarks().allow(free, order, Watermark::Low, urgency, preferred.reserve(limit))
        };
        if (mode != ZonelistCache::On || allows(preferred.free_approximate())) && allows(preferred.free()) {
            return None;
        }
        let (_, zone) = Candidates::new(self.lists.read(usize::from(cpu.node)), limit, None)
            .next(1, Some(full.bitmap(class)))
            .ok()??;
        Some(&self.zones[zone.index()])
    }
}
