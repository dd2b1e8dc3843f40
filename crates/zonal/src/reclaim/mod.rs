//! Reclaim: when the allocator calls the reclaimers, and for which zones.
//!
//! *Background* reclaim frees frames of a node until its zones are above `watermarks.high`. *Direct* reclaim frees
//! frames for one request in the caller's context. *Node* reclaim frees frames of a nearby node before a scan continues
//! to the next node. By default each call of the reclaimers covers a whole node. With a past form of the scan
//! it covers one zone, as in the kernels that had those forms. Reclaimers run with no lock held, and their own
//! allocations may use the reserve. Source of the node reclaim rules: Gorman 2011, Linux 76d3fbf8fbf6. Related
//! files: `platform/reclaimer.rs` has the trait that reclaimers implement. `alloc/slow.rs` and `alloc/scan.rs`
//! start reclaim.

mod by_range;
mod pressure;

use crate::Allocator;
use crate::error::OnlineError;
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::pressure::PressureKind;
use crate::platform::reclaimer::{ReclaimReason, ReclaimRequest};
use crate::platform::steps::ReclaimStep;
use crate::platform::tracepoint::Tracepoint;
use crate::request::context::AllocContext;
use crate::settings::Setting;
use crate::units::{NodeId, Order, PageCount, ZoneId};
use crate::zone::Zone;
use crate::zone::counters::NodeItem;
use crate::zone::events::Event;
use crate::zone::order_classes::OrderClasses;

/// Consecutive rounds of reclaim without progress after which reclaim stops.
pub(crate) const IDLE_ROUNDS: u32 = 16;
/// Smallest number of frames that a reclaim round should free.
pub(crate) const TARGET_MIN: PageCount = PageCount::new(32);

/// Calls a function when dropped: the end of something that other threads see while it lasts.
struct Defer<F: Fn()>(F);

impl<F: Fn()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The zones that one call of the reclaimers covers: all zones of a node, or one of them.
struct Extent<'m, P: Platform> {
    /// Index of the node.
    place: usize,
    zones: &'m [Zone<'m, P>],
    /// The zone, if the call covers only one.
    alone: Option<ZoneId>,
}

impl<'m, P: Platform> Extent<'m, P> {
    fn managed(&self) -> PageCount {
        self.zones.iter().map(Zone::managed).sum()
    }

    /// Returns how many more frames must be free for all zones to be above `watermarks.high`.
    fn missing_to_high(&self) -> PageCount {
        let with_memory = self.zones.iter().filter(|zone| zone.managed() != PageCount::ZERO);
        let wanted = |zone: &Zone<'m, P>| zone.watermarks().high.plus(PageCount::new(1));
        with_memory.map(|zone| wanted(zone).saturating_minus(zone.free())).sum()
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Reclaims `node` until each of its zones has more than `watermarks.high` free frames, or reclaim makes no
    /// progress.
    ///
    /// The embedder's worker calls this method after [`wake_background_reclaim`](Platform::wake_background_reclaim).
    /// Returns the number of frames freed. The number is zero if another worker is reclaiming the node, or the caller
    /// is inside a reclaimer's call.
    pub fn background_reclaim(&self, node: NodeId) -> PageCount {
        let Some(place) = self.state.place_of(node) else { return PageCount::ZERO };
        let node = &self.state.nodes[place];
        if self.state.platform.is_reclaiming() || !node.background_begins() {
            return PageCount::ZERO;
        }
        let zones = self.state.node_zones(place);
        let _awake = Defer(|| {
            node.background_ends();
            zones.iter().for_each(|zone| zone.counters().pressure_ends());
        });
        // Meanwhile the node's zones use the counter thresholds for pressure, with which totals are more exact.
        zones.iter().for_each(|zone| zone.counters().pressure_begins());
        let mut freed = PageCount::ZERO;
        // A round counts as idle if the zones are still at least as far from `high` as before, regardless of the number that
        // the reclaimers return.
        let (mut least, mut idle) = (PageCount::new(u64::MAX), 0);
        loop {
            let missing = self.state.whole_node(place).missing_to_high();
            idle = if missing < least { 0 } else { idle + 1 };
            least = least.min(missing);
            if missing == PageCount::ZERO || idle == IDLE_ROUNDS {
                break;
            }
            node.events.add(Event::BackgroundRounds, 1);
            let mut in_round = PageCount::ZERO;
            for extent in self.state.extents(place) {
                let missing = extent.missing_to_high();
                if missing != PageCount::ZERO {
                    let target = missing.max(reclaim_target(Order::PAGE));
                    let request = ReclaimRequest::new(ReclaimReason::Background, node.id, target);
                    in_round = in_round.plus(self.state.call_reclaimers(&extent, &request));
                }
            }
            freed = freed.plus(in_round);
            if in_round == PageCount::ZERO {
                break;
            }
        }
        node.counters.add_total(NodeItem::ReclaimedBackground, freed.get() as i64);
        node.events.add(Event::BackgroundReclaimed, freed.get());
        if freed == PageCount::ZERO {
            node.note_fruitless(self.state.platform.now());
        } else {
            self.state.report_if_recovered(place);
        }
        freed
    }

    /// Calls the reclaimers to free `target` frames of `node` although no request needs them.
    ///
    /// An embedder uses this method to return memory to a host, or to free memory in advance. Returns the number of
    /// frames freed. The number is zero if the machine has no such node, or the caller is inside a reclaimer's call.
    /// Linux: `/sys/devices/system/node/node*/reclaim`.
    pub fn shrink_caches(&self, node: NodeId, target: PageCount) -> PageCount {
        match self.state.place_of(node) {
            Some(place) if !self.state.platform.is_reclaiming() => {
                let request = ReclaimRequest::new(ReclaimReason::Shrink, node, target);
                self.state.call_reclaimers(&self.state.whole_node(place), &request)
            }
            _ => PageCount::ZERO,
        }
    }

    /// Calls the reclaimers once to free the allocated frames of `range`, so that the range can go offline.
    ///
    /// Returns the number of frames freed, which may be outside `range`. The number is zero if all frames of `range`
    /// are already free, or the caller is inside a reclaimer's call.
    ///
    /// # Errors
    /// Returns an error if the range is empty or is not within one zone's span.
    pub fn reclaim_range(&self, range: FrameRange) -> Result<PageCount, OnlineError> {
        let zone = self.state.zone_around(&range)?;
        self.state.drain_zone(zone);
        let target = range.count.saturating_minus(zone.unused(zone.run_of(&range)));
        if target == PageCount::ZERO || self.state.platform.is_reclaiming() {
            return Ok(PageCount::ZERO);
        }
        Ok(self.state.call_reclaimers(&self.state.whole_node(zone.node), &range_request(zone, range, target)))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Marks the caller as reclaiming until the result is dropped; meanwhile the caller's own requests may use the reserve.
    fn reclaiming(&self) -> Defer<impl Fn()> {
        self.platform.begin_reclaiming();
        Defer(|| self.platform.end_reclaiming())
    }

    /// Calls the reclaimers for the zones of `extent`.
    ///
    /// The number that the reclaimers report is limited to the managed frames of these zones.
    fn call_reclaimers(&self, extent: &Extent<'m, P>, request: &ReclaimRequest) -> PageCount {
        let request = ReclaimRequest { zone: extent.alone, ..*request };
        let ReclaimRequest { node, reason, target, .. } = request;
        self.platform.trace(Tracepoint::ReclaimBegin { node, reason, target });
        let freed = {
            // Meanwhile the zones' pagesets are limited to few frames.
            let begun = extent.zones.iter().filter(|zone| zone.reclaim_begins());
            begun.for_each(|zone| self.pagesets_of(zone).let_next_pushes_bail_out());
            let _held_down = Defer(|| extent.zones.iter().for_each(Zone::reclaim_ends));
            let _reclaiming = self.reclaiming();
            self.platform.reclaimer().reclaim(&request)
        };
        let freed = freed.min(extent.managed());
        self.platform.trace(Tracepoint::ReclaimEnd { node, reason, freed });
        self.nodes[extent.place].note_reclaimed(freed);
        if freed != PageCount::ZERO {
            // The freed frames are in this CPU's pagesets, but watermark checks count only free frames in the buddy.
            if let Some(cpu) = self.current_cpu_info() {
                self.node_zones(extent.place).iter().for_each(|zone| {
                    self.drain_cpu(zone, cpu);
                    self.disown_all(zone);
                });
            }
        }
        freed
    }

    /// Runs direct reclaim for a request, and counts the frames freed and the time that the request stalls.
    fn stalling(&self, context: &AllocContext<'_>, reclaim: impl FnOnce() -> PageCount) -> PageCount {
        let node = &self.nodes[context.target];
        node.cells.stalls.0.begin(self.platform.now());
        let _stalled = Defer(|| node.cells.stalls.0.end(self.platform.now()));
        self.report_sometimes(context.target, PressureKind::Stalling);
        let start = self.platform.now();
        let freed = reclaim();
        node.events.add(Event::DirectStalls, 1);
        node.events.add(Event::DirectReclaimed, freed.get());
        node.events.add(Event::DirectNs, self.platform.now().ns_since(start));
        freed
    }

    /// Runs one direct reclaim round, which frees about `most` frames or fewer; returns the number of frames freed.
    pub(super) fn direct_reclaim(&self, context: &AllocContext<'_>, most: PageCount) -> PageCount {
        let target = reclaim_target(context.flags.order).min(most);
        self.stalling(context, || {
            let mut freed = PageCount::ZERO;
            let in_reach = self.allowed_nodes(context);
            // The loop starts at the target, so that requests for different nodes do not all reclaim the same node first.
            let places = (0..self.nodes.len()).map(|step| (context.target + step) % self.nodes.len());
            for place in places.filter(|&place| in_reach.contains(self.nodes[place].id)) {
                let before = freed;
                for extent in self.extents(place) {
                    if freed < target && extent.zones.iter().any(|zone| context.allows(zone)) {
                        let target = target.saturating_minus(freed);
                        let request =
                            ReclaimRequest { target, ..direct_request(context, self.nodes[place].id) };
                        freed = freed.plus(self.call_reclaimers(&extent, &request));
                    }
                }
                self.note_direct(place, context, freed.saturating_minus(before));
                if freed >= target {
                    break;
                }
            }
            freed
        })
    }

    /// Runs direct reclaim of an extent for `request`; returns the number of frames freed, which may be outside its range.
    fn direct_reclaim_by(
        &self,
        extent: &Extent<'m, P>,
        context: &AllocContext<'_>,
        request: &ReclaimRequest,
    ) -> PageCount {
        self.stalling(context, || {
            let freed = self.call_reclaimers(extent, request);
            self.note_direct(extent.place, context, freed);
            freed
        })
    }

    /// Counts frames of a node that direct reclaim freed for a request.
    fn note_direct(&self, place: usize, context: &AllocContext<'_>, freed: PageCount) {
        if freed != PageCount::ZERO {
            self.nodes[place].counters.add_total(NodeItem::ReclaimedDirect, freed.get() as i64);
            self.report_if_recovered(place);
            // Clears full bits (mechanism M3 of the README). A past form clears at most those of the requester's list.
            match self.past_scan() {
                None => {
                    self.node_zones(place)
                        .iter()
                        .for_each(|zone| self.clear_full_bits(zone, OrderClasses::ALL));
                }
                Some(form) if form.reconsiders() => self.lists.full(context.target).wipe(),
                Some(_) => {}
            }
        }
    }

    /// Runs node reclaim for a zone below its watermark, and counts the outcome.
    pub(super) fn node_reclaim(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> ReclaimStep {
        let mut outcome = self.expected_node_reclaim(zone, context);
        if outcome == ReclaimStep::WouldRun {
            let (node, extent) = (&self.nodes[zone.node], self.extent_of(zone));
            let turn = node.try_turn(extent.alone);
            outcome = turn.map_or(ReclaimStep::NotTried, |_turn| {
                let freed = self.call_reclaimers(&extent, &self.node_request(&extent, context));
                node.counters.add_total(NodeItem::ReclaimedNode, freed.get() as i64);
                match freed {
                    PageCount::ZERO => ReclaimStep::Nothing,
                    _ if freed < context.flags.order.pages() => ReclaimStep::Some,
                    _ => ReclaimStep::Success,
                }
            });
        }
        let event = match outcome {
            ReclaimStep::NotTried => Event::NodeReclaimNoScan,
            ReclaimStep::TooFew => Event::NodeReclaimFull,
            ReclaimStep::Success => Event::NodeReclaimSuccess,
            _ => Event::NodeReclaimSome,
        };
        self.nodes[context.target].events.add(event, 1);
        outcome
    }

    /// Returns the outcome of node reclaim if it would not be tried, or [`ReclaimStep::WouldRun`].
    pub(super) fn expected_node_reclaim(
        &self,
        zone: &Zone<'m, P>,
        context: &AllocContext<'_>,
    ) -> ReclaimStep {
        let (node, extent) = (&self.nodes[zone.node], self.extent_of(zone));
        // Even counting reclaimable frames calls the reclaimer. The reclaimer must not be called from within one of its
        // own calls, nor for a request that may not wait. Such a request may come from a signal handler, or from a
        // caller that holds a lock that the reclaimer acquires. Linux counts first, because it maintains the counts
        // itself, and so even a request that may not wait can mark a zone with too little to reclaim as full. Here such
        // a request does not, not even in the mode `Original`.
        if !context.may_reclaim {
            return ReclaimStep::NotTried;
        }
        let request = self.node_request(&extent, context);
        let too_few = extent.managed().get() * self.shared.number(Setting::MinUnmappedRatio) / 100;
        if self.count_reclaimable(&request).get() <= too_few {
            return ReclaimStep::TooFew;
        }
        let is_of_others = node.cpus_online() > 0 && context.from != zone.node;
        if is_of_others { ReclaimStep::NotTried } else { ReclaimStep::WouldRun }
    }

    /// Returns how many frames the reclaimers could free for `request`.
    ///
    /// The caller must not be inside a reclaimer's call.
    fn count_reclaimable(&self, request: &ReclaimRequest) -> PageCount {
        let _reclaiming = self.reclaiming();
        self.platform.reclaimer().count(request)
    }

    /// Returns the request for node reclaim of an extent.
    fn node_request(&self, extent: &Extent<'m, P>, context: &AllocContext<'_>) -> ReclaimRequest {
        let node = self.nodes[extent.place].id;
        ReclaimRequest {
            zone: extent.alone,
            zone_limit: context.flags.zone_limit,
            order: context.flags.order,
            ..ReclaimRequest::new(ReclaimReason::Node, node, reclaim_target(context.flags.order))
                .under(self.shared.node_reclaim())
        }
    }

    /// Whether direct reclaim could free frames of an allowed node.
    pub(super) fn has_reclaimable(&self, context: &AllocContext<'_>) -> bool {
        let nodes = self.allowed_nodes(context);
        let has = |node| self.count_reclaimable(&direct_request(context, node)) != PageCount::ZERO;
        nodes.iter().any(has)
    }

    /// Returns the extents that reclaim of the node with this index covers, one for each call of the reclaimers.
    ///
    /// There is one extent for the whole node, or one for each zone with memory, in descending order of zones.
    fn extents(&self, place: usize) -> impl Iterator<Item = Extent<'m, P>> {
        let by_zone = self.shared.zonelist_cache().is_past();
        let whole = (!by_zone).then(|| self.whole_node(place));
        let zones = if by_zone { self.node_zones(place) } else { &[] };
        let with_memory = zones.iter().rev().filter(|zone| zone.managed() != PageCount::ZERO);
        whole.into_iter().chain(with_memory.map(zone_alone))
    }

    /// Returns the extent that contains `zone`.
    fn extent_of(&self, zone: &Zone<'m, P>) -> Extent<'m, P> {
        if self.shared.zonelist_cache().is_past() {
            zone_alone(&self.zones[zone.id.index()])
        } else {
            self.whole_node(zone.node)
        }
    }

    fn whole_node(&self, place: usize) -> Extent<'m, P> {
        Extent { place, zones: self.node_zones(place), alone: None }
    }
}

/// Returns the number of frames that a reclaim round for an `order` block should free.
fn reclaim_target(order: Order) -> PageCount {
    order.pages().max(TARGET_MIN)
}

/// Returns the extent of one zone.
fn zone_alone<'m, P: Platform>(zone: &'m Zone<'m, P>) -> Extent<'m, P> {
    Extent { place: zone.node, zones: core::slice::from_ref(zone), alone: Some(zone.id) }
}

/// Returns the request for direct reclaim of a node.
fn direct_request(context: &AllocContext<'_>, node: NodeId) -> ReclaimRequest {
    ReclaimRequest {
        zone_limit: context.flags.zone_limit,
        order: context.flags.order,
        ..ReclaimRequest::new(ReclaimReason::Direct, node, reclaim_target(context.flags.order))
    }
}

/// Returns the request for `target` used frames in a range of `zone`.
fn range_request<P: Platform>(zone: &Zone<'_, P>, range: FrameRange, target: PageCount) -> ReclaimRequest {
    ReclaimRequest { range: Some(range), ..ReclaimRequest::new(ReclaimReason::Range, zone.node_id, target) }
}
