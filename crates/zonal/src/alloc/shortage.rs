//! Explains why a request found no memory: the reason for each zone, and how many frames the zone lacked.
//!
//! This code runs only for failed requests and does not allocate memory. Related files: `alloc/slow.rs` fails
//! requests, `rules/watermarks.rs` has the rule that the verdicts follow, and `error/shortage.rs` defines the figures.

use crate::Allocator;
use crate::error::{AllocError, Shortage, Verdict, VerdictCounts, ZoneShortage};
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::steps::Outcome;
use crate::request::Request;
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::PageCount;
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
        let context = self.state.resolve(request, Turn::Last)?;
        let zones = self.state.zones.iter().filter(|zone| context.allows(zone));
        zones.for_each(|zone| sink(self.state.zone_shortage(zone, &context)));
        Ok(())
    }
}

/// Returns the reason why a zone cannot serve a request at `min`, or [`Verdict::WouldServe`].
fn judge<P: Platform>(zone: &Zone<'_, P>, context: &AllocContext<'_>) -> Verdict {
    match why_failed(zone, context, Watermark::Min) {
        _ if zone.managed() == PageCount::ZERO => Verdict::NoMemory,
        Outcome::Below { short_by, is_reserved: false } => Verdict::BelowMin { short_by },
        Outcome::Below { short_by, is_reserved: true } => Verdict::Reserved { short_by },
        Outcome::NoBlock => Verdict::NoBlock,
        _ => Verdict::WouldServe,
    }
}

/// Returns why a zone that was tried did not serve; [`Outcome::Lost`] if it seems to have a block.
///
/// Applies the rule of the watermark check ([`Watermarks::allow`](crate::rules::watermarks::Watermarks::allow)) to the
/// same count of free frames.
pub(super) fn why_failed<P: Platform>(
    zone: &Zone<'_, P>,
    context: &AllocContext<'_>,
    watermark: Watermark,
) -> Outcome {
    let free = zone.count_for_check(context.order, context.limit);
    let mark = zone.watermarks().discounted(watermark, context.urgency);
    // More than `mark` frames must remain free after all frames of the block except one have been allocated.
    let needed = mark.plus(context.order.pages());
    let beside_reserve = needed.plus(zone.reserve(context.limit));
    if context.urgency != Urgency::Reserve && free < beside_reserve {
        Outcome::Below { short_by: beside_reserve.saturating_minus(free), is_reserved: free >= needed }
    } else if zone.free_areas.largest_order() < Some(context.order) || !context.has_block_in_reach(zone) {
        Outcome::NoBlock
    } else {
        Outcome::Lost
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
            let zone = self.zone_shortage(zone, context);
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

    fn zone_shortage(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> ZoneShortage {
        let watermarks = zone.watermarks();
        ZoneShortage {
            node: zone.node_id,
            kind: zone.kind,
            verdict: judge(zone, context),
            largest: zone.free_areas.largest_order(),
            free: PageCount::new(zone.free_areas.pages()),
            min: watermarks.min,
            low: watermarks.low,
            high: watermarks.high,
            reserve: zone.reserve(context.limit),
            in_pagesets: self.in_pagesets(zone),
            managed: zone.managed(),
        }
    }

    /// Returns the number of frames in pagesets whose zones the request may use.
    pub(crate) fn in_allowed_pagesets(&self, context: &AllocContext<'_>) -> PageCount {
        let zones = self.zones.iter().filter(|zone| context.allows(zone));
        zones.map(|zone| self.in_pagesets(zone)).sum()
    }
}
