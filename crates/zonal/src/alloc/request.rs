//! A request: how much, for what, from where, how urgently.
//!
//! Vocabulary: the *zone limit* is the highest kind of zone that can serve the request. Linux: GFP
//! flags. Neighbours: `policy.rs`, `alloc.rs`.

use crate::alloc::mempolicy::{Mode, Policy, RequestPolicy};
use crate::node_mask::NodeMask;
use crate::platform::Platform;
pub use crate::rules::watermarks::Urgency;
pub use crate::units::PageKind;
use crate::units::{NodeId, Order, Pfn, ZoneId, ZoneKind};

/// A block that was allocated: `order.pages()` frames from `first`.
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

/// What a request says of itself, without reference to anything.
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
    /// A block of `order` from any kind of zone, from the requester's node first.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        let (kind, zone_limit) = (PageKind::User, ZoneKind::Movable);
        let flags = RequestFlags { order, kind, zone_limit, urgency: Urgency::Normal, bits: 0 };
        Self { flags, policy: None, allowed: None }
    }

    /// One frame; otherwise as [`Request::new`].
    #[must_use]
    pub const fn page() -> Self {
        Self::new(Order::PAGE)
    }

    /// What the frames will hold.
    #[must_use]
    pub const fn kind(self, kind: PageKind) -> Self {
        Self { flags: RequestFlags { kind, ..self.flags }, ..self }
    }

    /// Highest kind of zone that can serve.
    #[must_use]
    pub const fn zone_limit(self, zone_limit: ZoneKind) -> Self {
        Self { flags: RequestFlags { zone_limit, ..self.flags }, ..self }
    }

    /// How deep into the reserve the request may go.
    #[must_use]
    pub const fn urgency(self, urgency: Urgency) -> Self {
        Self { flags: RequestFlags { urgency, ..self.flags }, ..self }
    }

    /// Which nodes, and in which order. The local policy is what a request has without one.
    #[must_use]
    pub fn policy<P: Platform>(self, policy: &'a Policy<'a, P>) -> Self {
        let policy: &dyn RequestPolicy = policy;
        Self { policy: Some(policy).filter(|policy| policy.mode() != Mode::Local), ..self }
    }

    /// Only these nodes may serve (a cpuset). `Atomic` requests ignore it.
    #[must_use]
    pub const fn allowed(self, nodes: &'a NodeMask) -> Self {
        Self { allowed: Some(nodes), ..self }
    }

    /// The request may not reclaim, and calls no reclaimer, not even to count.
    #[must_use]
    pub const fn no_wait(self) -> Self {
        self.with(NO_WAIT)
    }

    /// One round of direct reclaim at most.
    #[must_use]
    pub const fn no_retry(self) -> Self {
        self.with(NO_RETRY)
    }

    /// Only the node at which the search starts may serve. Linux: `__GFP_THISNODE`.
    #[must_use]
    pub const fn this_node(self) -> Self {
        self.with(THIS_NODE)
    }

    /// The frames are zeroed.
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

    /// Whether the home of the requester may serve it without a look at anything else.
    #[inline(always)]
    pub(super) const fn is_plain(&self) -> bool {
        self.flags.bits & THIS_NODE == 0 && self.may_pop()
    }

    /// Whether the first zone of the requester's node may serve it, if that is of the node itself
    /// where the request is strict.
    #[inline(always)]
    pub(super) const fn may_pop(&self) -> bool {
        self.flags.bits & ZEROED == 0
            && self.policy.is_none()
            && self.allowed.is_none()
            && matches!(self.flags.zone_limit, ZoneKind::Movable)
    }
}
