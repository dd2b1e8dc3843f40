//! Explains why a request found no memory: the reason for each zone, and how many frames the zone lacked.
//!
//! This code runs only for failed requests and does not allocate memory. Related files: `alloc/slow.rs` fails
//! requests, `rules/watermarks.rs` has the rule that the verdicts follow, and `error/shortage.rs` defines the figures.

use crate::Allocator;
use crate::error::{AllocError, Shortage, Verdict, VerdictCounts, ZoneShortage};
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::request::Request;
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::request::steps::{Exclusion, Outcome};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount};
use crate::zone::Zone;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Calls `sink` for every zone that may serve `request`, with an out-of-memory report's figures.
    ///
    /// The policy does not advance. Under an interleaving policy, the zones are those for the last turn that was used.
    ///
    /// # Errors
    /// Returns an error if no zone can be reported, for example because the request's order is too large or the nodes
    /// of its policy have no memory.
    pub fn shortage(
        &self,
        request: &Request<'_>,
        mut sink: impl FnMut(ZoneShortage),
    ) -> Result<(), AllocError> {
        let context = self.state.resolve_in_turn(request, Turn::Last)?;
        let zones = self.state.zones.iter().filter(|zone| context.allows(zone));
        zones.for_each(|zone| sink(zone_shortage(zone, self.state.pagesets_of(zone).frames(), &context)));
        Ok(())
    }
}

fn zone_shortage<P: Platform>(
    zone: &Zone<'_, P>,
    in_pagesets: PageCount,
    context: &AllocContext<'_>,
) -> ZoneShortage {
    let watermarks = zone.watermarks();
    let largest = zone.free_areas.largest_order();
    ZoneShortage {
        node: zone.node_id,
        kind: zone.kind,
        verdict: judge(zone, context, largest),
        largest,
        free: PageCount::new(zone.free_areas.pages()),
        min: watermarks.min,
        low: watermarks.low,
        high: watermarks.high,
        reserve: zone.reserve(context.limit),
        in_pagesets,
        managed: zone.managed(),
    }
}

/// Returns the reason why a zone cannot serve a request, or [`Verdict::WouldServe`].
///
/// Applies the rule of the watermark check ([`Watermarks::allow`](crate::rules::watermarks::Watermarks::allow)) to the
/// same count of free frames. `largest` is the order of the zone's largest free block.
fn judge<P: Platform>(zone: &Zone<'_, P>, context: &AllocContext<'_>, largest: Option<Order>) -> Verdict {
    if zone.managed() == PageCount::ZERO {
        return Verdict::NoMemory;
    }
    let free = zone.put_back(context.order, context.limit);
    let min = zone.watermarks().discounted(Watermark::Min, context.urgency);
    // More than `min` frames must remain free after all frames of the block except one have been allocated.
    let needed = min.plus(context.order.pages());
    let beside_reserve = needed.plus(zone.reserve(context.limit));
    let heeds_marks = context.urgency != Urgency::Reserve;
    let short_by = beside_reserve.saturating_minus(free);
    if heeds_marks && free < needed {
        Verdict::BelowMin { short_by }
    } else if heeds_marks && free < beside_reserve {
        Verdict::Reserved { short_by }
    } else if largest.is_none_or(|largest| largest < context.order) || !context.has_block_in_reach(zone) {
        Verdict::NoBlock
    } else {
        Verdict::WouldServe
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Sums up the zones that were allowed to serve a failed request.
    pub(super) fn sum_up(&self, context: &AllocContext<'_>) -> Shortage {
        let none = PageCount::ZERO;
        let mut sum = Shortage {
            order: context.order,
            node: self.nodes[context.target].id,
            zones: 0,
            verdicts: VerdictCounts::default(),
            largest: None,
            free: none,
            min: none,
            low: none,
            high: none,
            in_pagesets: none,
            ranges_ignored: context.ranges_ignored.get(),
        };
        for zone in self.zones {
            if !context.allows(zone) {
                sum.verdicts.not_allowed += 1;
                continue;
            }
            let zone = zone_shortage(zone, self.pagesets_of(zone).frames(), context);
            sum.zones += 1;
            sum.verdicts.add(zone.verdict);
            sum.largest = sum.largest.max(zone.largest);
            sum.free = sum.free.plus(zone.free);
            sum.min = sum.min.plus(zone.min);
            sum.low = sum.low.plus(zone.low);
            sum.high = sum.high.plus(zone.high);
            sum.in_pagesets = sum.in_pagesets.plus(zone.in_pagesets);
        }
        sum
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Reports why a scan does not come to the zone: it is not allowed, or it is marked as full.
    pub(super) fn why_skipped(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> Outcome {
        if zone.kind > context.limit {
            Outcome::NotAllowed(Exclusion::ZoneLimit)
        } else if !context.allows_node(zone.node_id) {
            Outcome::NotAllowed(Exclusion::Node)
        } else {
            let wiped_at = self.lists.full(context.target).wiped_at();
            Outcome::MarkedFull { within_ns: self.platform.now().ns_since(wiped_at) }
        }
    }

    /// Returns why a zone that was tried did not serve.
    pub(super) fn why_failed(
        &self,
        zone: &Zone<'m, P>,
        context: &AllocContext<'_>,
        watermark: Watermark,
    ) -> Outcome {
        let free = zone.put_back(context.order, context.limit);
        let mark = zone.watermarks().discounted(watermark, context.urgency);
        let needed = mark.plus(context.order.pages());
        let beside_reserve = needed.plus(zone.reserve(context.limit));
        let is_short = context.urgency != Urgency::Reserve && free < beside_reserve;
        if is_short {
            Outcome::Below { short_by: beside_reserve.saturating_minus(free), is_reserved: free >= needed }
        } else if zone.free_areas.largest_order().is_none_or(|largest| largest < context.order)
            || !context.has_block_in_reach(zone)
        {
            Outcome::NoBlock
        } else {
            Outcome::Lost
        }
    }

    /// Returns the number of frames in pagesets whose zones the request may use.
    pub(super) fn in_allowed_pagesets(&self, context: &AllocContext<'_>) -> PageCount {
        let zones = self.zones.iter().filter(|zone| context.allows(zone));
        zones.map(|zone| self.pagesets_of(zone).frames()).sum()
    }
}
