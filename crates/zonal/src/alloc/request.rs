//! Requests: how many frames, what for, from which nodes and zones, how urgently.
//!
//! The *zone limit* is the highest kind of zone that can serve the request. Linux: GFP flags. Neighbours:
//! `alloc/mempolicy.rs`, `alloc/mod.rs`.

use crate::alloc::mempolicy::{Mode, Policy, RequestPolicy};
use crate::node_mask::NodeMask;
use crate::platform::Platform;
pub use crate::rules::watermarks::Urgency;
pub use crate::units::PageKind;
use crate::units::{NodeId, Order, Pfn, ZoneId, ZoneKind};

/// An allocated block: `order.pages()` frames from `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// First frame.
    pub first: Pfn,
    /// Order.
    pub order: Order,
    /// Zone that served it.
    pub zone: ZoneId,
    /// Node that served it.
    pub node: NodeId,
}

const NO_WAIT: u8 = 1;
const NO_RETRY: u8 = 2;
const THIS_NODE: u8 = 4;
const ZEROED: u8 = 8;

/// The part of a request that refers to nothing outside it.
#[derive(Clone, Copy)]
pub(super) struct RequestFlags {
    pub(super) order: Order,
    pub(super) kind: PageKind,
    pub(super) zone_limit: ZoneKind,
    pub(super) urgency: Urgency,
    bits: u8,
}

/// A request for one block.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub(super) flags: RequestFlags,
    pub(super) policy: Option<&'a dyn RequestPolicy>,
    pub(super) allowed: Option<&'a NodeMask>,
}

impl<'a> Request<'a> {
    /// Creates a request for a block of `order` from any kind of zone, starting at the requester's node.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        let (kind, zone_limit) = (PageKind::User, ZoneKind::Movable);
        let flags = RequestFlags { order, kind, zone_limit, urgency: Urgency::Normal, bits: 0 };
        Self { flags, policy: None, allowed: None }
    }

    /// Creates a request for one frame; otherwise as [`Request::new`].
    #[must_use]
    pub const fn page() -> Self {
        Self::new(Order::PAGE)
    }

    /// Sets what the frames will hold.
    #[must_use]
    pub const fn kind(self, kind: PageKind) -> Self {
        Self { flags: RequestFlags { kind, ..self.flags }, ..self }
    }

    /// Sets the highest kind of zone that can serve the request.
    #[must_use]
    pub const fn zone_limit(self, zone_limit: ZoneKind) -> Self {
        Self { flags: RequestFlags { zone_limit, ..self.flags }, ..self }
    }

    /// Sets how deep into the reserve the request may go.
    #[must_use]
    pub const fn urgency(self, urgency: Urgency) -> Self {
        Self { flags: RequestFlags { urgency, ..self.flags }, ..self }
    }

    /// Sets which nodes may serve, and in which order.
    ///
    /// The default is the local policy.
    #[must_use]
    pub fn policy<P: Platform>(self, policy: &'a Policy<'a, P>) -> Self {
        let policy: &dyn RequestPolicy = policy;
        Self { policy: Some(policy).filter(|policy| policy.mode() != Mode::Local), ..self }
    }

    /// Restricts the request to these nodes (a cpuset). `Atomic` requests ignore it.
    #[must_use]
    pub const fn allowed(self, nodes: &'a NodeMask) -> Self {
        Self { allowed: Some(nodes), ..self }
    }

    /// Forbids reclaim: the request calls no reclaimer, not even to count.
    #[must_use]
    pub const fn no_wait(self) -> Self {
        self.with(NO_WAIT)
    }

    /// Limits the request to one round of direct reclaim.
    #[must_use]
    pub const fn no_retry(self) -> Self {
        self.with(NO_RETRY)
    }

    /// Restricts the request to the node at which the search starts (Linux: `__GFP_THISNODE`).
    #[must_use]
    pub const fn this_node(self) -> Self {
        self.with(THIS_NODE)
    }

    /// Zeroes the frames.
    #[must_use]
    pub const fn zeroed(self) -> Self {
        self.with(ZEROED)
    }

    const fn with(self, flag: u8) -> Self {
        Self { flags: RequestFlags { bits: self.flags.bits | flag, ..self.flags }, ..self }
    }

    pub(super) const fn may_wait(&self) -> bool {
        self.flags.bits & NO_WAIT == 0
    }

    pub(super) const fn may_retry(&self) -> bool {
        self.flags.bits & NO_RETRY == 0
    }

    pub(super) const fn is_strict(&self) -> bool {
        self.flags.bits & THIS_NODE != 0
    }

    pub(super) const fn is_zeroed(&self) -> bool {
        self.flags.bits & ZEROED != 0
    }

    /// Whether the CPU's pageset slot may serve the request without any further check.
    #[inline(always)]
    pub(super) const fn is_plain(&self) -> bool {
        self.flags.bits & THIS_NODE == 0 && self.may_pop()
    }

    /// Whether the first zone of the requester's node may serve the request; a strict request also needs that zone to
    /// be on the node itself.
    #[inline(always)]
    pub(super) const fn may_pop(&self) -> bool {
        self.flags.bits & ZEROED == 0
            && self.policy.is_none()
            && self.allowed.is_none()
            && matches!(self.flags.zone_limit, ZoneKind::Movable)
    }
}
