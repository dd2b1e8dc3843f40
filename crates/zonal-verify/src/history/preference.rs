//! Predicts which node serves a request under a policy that prefers several nodes.
//!
//! The nodes of the policy come first, in the caller's order, and then all others. A node is passed over only if it
//! cannot serve: the nodes are tried at the watermark `low` and, if none serves, at `min`. Counters may be off by
//! [`Executor::error_max`], so a node is expected to serve only if it has that many frames more than necessary.
//!
//! Related files: `answers.rs` has the other checks of answers.

use zonal::error::ZoneShortage;
use zonal::request::Block;
use zonal::rules::watermarks::Watermark;
use zonal::units::{NodeId, Order, PageCount};

use super::answers::marks_of;
use super::executor::{Execution, Executor};
use super::operation::{RequestSpec, Scope};
use super::platform::Cells;

impl<C: Cells> Executor<'_, '_, C> {
    /// Checks that no node comes before the one that served, and could have served.
    pub(super) fn check_preference(&self, spec: &RequestSpec, block: &Block, execution: &Execution) {
        let order = self.policies.at(spec.policy).order;
        if order.is_empty() || spec.scope == Scope::ThisNode {
            return;
        }
        let place = order.iter().position(|&node| node == block.node);
        let tried = &order[..place.unwrap_or(order.len())];
        // A frame from a pageset says nothing about the watermark.
        let may_be_low = execution.stocked.contains(&block.zone) || self.quarantined_max > 0;
        let served = || execution.before.iter().filter(|zone| zone.node == block.node);
        let served_at_min = place.is_none()
            || (!may_be_low && !served().any(|zone| self.might_serve(spec, zone, Watermark::Low)));
        let passed = |nodes: &[NodeId], watermark| {
            let mut zones = execution.before.iter().filter(|zone| nodes.contains(&zone.node));
            zones.find(|zone| self.must_serve(spec, zone, watermark)).copied()
        };
        let passed = if served_at_min {
            passed(tried, Watermark::Min).or_else(|| passed(order, Watermark::Low))
        } else {
            passed(tried, Watermark::Low)
        };
        assert!(passed.is_none(), "{block:?} was served before a node that {order:?} prefers: {passed:?}");
    }

    /// Whether a zone has enough free frames for a request, whatever the error of its counters is.
    fn must_serve(&self, spec: &RequestSpec, zone: &ZoneShortage, watermark: Watermark) -> bool {
        let marks = marks_of(zone);
        let free = zone.free.saturating_minus(self.error_max(zone.managed, &marks));
        has_block(spec, zone.largest)
            && marks.allow(free, order_of(spec), watermark, spec.urgency, zone.reserve)
    }

    /// Whether a zone has enough free frames for a request, with some error of its counters.
    fn might_serve(&self, spec: &RequestSpec, zone: &ZoneShortage, watermark: Watermark) -> bool {
        let marks = marks_of(zone);
        let free: PageCount = zone.free.plus(zone.in_pagesets).plus(self.error_max(zone.managed, &marks));
        marks.allow(free, order_of(spec), watermark, spec.urgency, zone.reserve)
    }
}

fn order_of(spec: &RequestSpec) -> Order {
    Order::new(spec.order).expect("a request with a larger order fails")
}

fn has_block(spec: &RequestSpec, largest: Option<Order>) -> bool {
    largest.is_some_and(|largest| largest.get() >= spec.order)
}
