//! The scan that most requests come to while their home zone is full: straight to the first zone
//! that is not marked, as long as the pageset there has a block.
//!
//! It finds what `scan.rs` would find, and gives up wherever that would do more: set marks, wipe
//! them, reclaim, refill. The home zone is looked at first, as in every scan; the serving zone's
//! watermark is not, for its pageset holds frames that left the zone when it was checked
//! (docs/decisions/0003). Neighbours: `alloc.rs` comes here when the stack at home is empty.

use crate::Allocator;
use crate::alloc::request::{Block, Request};
use crate::config::ZonelistCache;
use crate::pageset::StackId;
use crate::platform::Platform;
use crate::rules::watermarks::{Mark, Urgency};
use crate::units::Order;
use crate::zone::counters::ZoneItem;
use crate::zone::{Seat, Zone};
use crate::zonelist::candidates::Candidates;
use crate::zonelist::full_cache::ScanClass;

/// Zones looked at: the home zone and the one that serves.
const PROBES: u64 = 2;

impl<'m, P: Platform> Allocator<'m, P> {
    /// A block from the current CPU's pageset of the nearest zone that is not marked full, for a
    /// request that its home zone may serve; `None` when there is one at home, when the home
    /// zone is not full or not marked, or when more than that is called for. Single frames come from
    /// there at once from then on, but for the cache as published.
    pub(crate) fn pop_past_full(&self, request: &Request<'_, P>) -> Option<Block> {
        let order = request.terms.order;
        // Pagesets of other nodes' CPUs hardly keep 2 MiB blocks.
        let stack = self.state.cached.stack(order).filter(|&stack| stack != StackId::LARGE)?;
        let seat = self.state.current_seat()?;
        let (home, zone) = self.home_and_serving(request, stack, seat)?;
        let guard = self.state.own_pageset(zone, seat)?;
        let block = self.pop(&guard, stack, order, request.terms.kind)?;
        let missed = zone.node != home.node;
        zone.counters().update(&guard.zone_diffs, &guard, |counts| {
            counts.increment(if missed { ZoneItem::NumaMiss } else { ZoneItem::NumaHit });
            counts.increment(if zone.is_own(seat) { ZoneItem::NumaLocal } else { ZoneItem::NumaOther });
        });
        guard.add_to(|pageset| &pageset.probes, PROBES);
        if order == Order::PAGE && self.state.shared.zonelist_cache() == ZonelistCache::On {
            self.state.nodes[usize::from(seat.node)].note_absence();
            guard.stand_for(missed.then_some(home.id));
            self.state.use_pageset(zone, &guard, seat);
        }
        guard.update_limits();
        drop(guard);
        if missed {
            self.count_foreign(home, Some(seat));
        }
        Some(block)
    }

    /// Whether the current CPU is at home, or what has sent it away still holds. If not, it looks at
    /// its home zone again.
    pub(crate) fn may_stay(&self, request: &Request<'_, P>) -> bool {
        let Some(seat) = self.state.current_seat() else { return false };
        if !self.state.is_away(seat) {
            return true;
        }
        let serving = self.home_and_serving(request, StackId::PAGES, seat);
        let stays = serving.is_some_and(|(_, zone)| self.state.uses(zone, seat));
        if !stays {
            self.state.go_home(seat);
        }
        stays
    }

    /// The home zone of the CPU at `seat`, which is full, marked, and has nothing in its pageset, with
    /// the nearest zone that is not marked.
    fn home_and_serving(
        &self,
        request: &Request<'_, P>,
        stack: StackId,
        seat: Seat,
    ) -> Option<(&Zone<'m, P>, &Zone<'m, P>)> {
        let home = &self.state.zones[self.state.nodes[usize::from(seat.node)].home()?];
        if self.state.pagesets_of(home).of(seat).has(stack) {
            return None;
        }
        Some((home, self.first_not_marked(request, home, seat)?))
    }

    /// The nearest zone that is not marked for this request, where `home` is marked and full.
    fn first_not_marked(
        &self,
        request: &Request<'_, P>,
        home: &Zone<'m, P>,
        seat: Seat,
    ) -> Option<&Zone<'m, P>> {
        let (order, urgency, limit) = (request.terms.order, request.terms.urgency, request.terms.zone_limit);
        let mode = self.state.shared.zonelist_cache();
        if mode == ZonelistCache::Off {
            return None;
        }
        let class = if mode.is_published_form() {
            ScanClass::published()
        } else {
            ScanClass::new(order, Mark::Low, urgency, limit)
        };
        let full = self.state.lists.full(usize::from(seat.node));
        let reserve = urgency == Urgency::Reserve || self.state.platform.is_reclaiming();
        if !full.is_full(class, 0)
            || reserve
            || self.state.shared.node_reclaim().is_on()
            || full.is_stale(self.state.platform.now())
        {
            return None;
        }
        // Where frees that lift a zone above its mark drop that mark at once, drift cannot hide them:
        // the count that costs one load will do, unless it says what the exact one may not.
        let allows = |free| home.watermarks().allow(free, order, Mark::Low, urgency, home.reserve(limit));
        if (mode != ZonelistCache::On || allows(home.free_approximate())) && allows(home.free()) {
            return None;
        }
        let (_, zone) = Candidates::new(self.state.lists.read(usize::from(seat.node)), limit, None)
            .next(1, Some(full.bitmap(class)))
            .ok()??;
        Some(&self.state.zones[zone.index()])
    }
}
