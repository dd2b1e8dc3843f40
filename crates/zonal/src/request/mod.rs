//! Requests: the order and kind of a block, the nodes and zones that may serve it, and its urgency.
//!
//! The *zone limit* is the highest kind of zone that can serve the request. In Linux, GFP flags express the same
//! properties of a request.
//!
//! Related files: `request/policy.rs` defines memory policies, and `alloc/mod.rs` serves requests.

pub(crate) mod context;
pub mod policy;

use crate::machine::FrameRange;
use crate::node_mask::NodeMask;
use crate::pageset::StackId;
use crate::platform::Platform;
use crate::platform::pageset_slot::PagesetSlot;
use crate::request::policy::{Mode, Policy, RequestPolicy};
pub use crate::rules::watermarks::Urgency;
pub use crate::units::PageKind;
use crate::units::{NodeId, Order, Pfn, ZoneId, ZoneKind};
use crate::zone::{CpuInfo, Zone};

/// An allocated block: `order.pages()` frames from `first`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// First frame of the block.
    pub first: Pfn,
    /// Order of the block.
    pub order: Order,
    /// Zone that served the request.
    pub zone: ZoneId,
    /// Node that served the request.
    pub node: NodeId,
}

impl Block {
    /// Returns the frames of the block.
    #[must_use]
    pub const fn range(&self) -> FrameRange {
        FrameRange { start: self.first, count: self.order.pages() }
    }
}

/// Any number of adjacent frames that were allocated together.
///
/// ```
/// # use core::mem::MaybeUninit;
/// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
/// # use zonal::platform::one_thread::OneThread;
/// # use zonal::request::PageKind;
/// # use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
/// # use zonal::{Allocator, Buffer, Config, FrameRun, Machine, Request};
/// # let id = NodeId::new(0).unwrap();
/// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
/// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
/// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
/// # let machine = Machine::new(&nodes, &zones)?;
/// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
/// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
/// // Three frames, aligned to four, below frame 0x3000.
/// let request = Request::new(Order::new(2).unwrap()).below(Pfn::new(0x3000));
/// let run: FrameRun = allocator.alloc_frames(&request, PageCount::new(3))?;
/// // Split, so that each frame can be freed on its own.
/// allocator.split_frames(run.range.start, run.range.count, Order::PAGE)?;
/// allocator.free(run.range.start, Order::PAGE)?;
/// // A given range, larger than the largest block, which is freed as a whole.
/// let given = FrameRange { start: Pfn::new(0x2345), count: PageCount::new(5000) };
/// allocator.alloc_range(given, PageKind::Kernel)?;
/// allocator.free_frames(given.start, given.count)?;
/// assert_eq!(allocator.accounting().allocated.get(), 2);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRun {
    /// The frames.
    pub range: FrameRange,
    /// Zone that served them.
    pub zone: ZoneId,
    /// Node that served them.
    pub node: NodeId,
}

const NO_WAIT: u8 = 1;
const NO_RETRY: u8 = 2;
const THIS_NODE: u8 = 4;
const ZEROED: u8 = 8;
const BELOW: u8 = 16;
/// The policy interleaves.
const IN_TURN: u8 = 32;

/// The part of a request that contains no references.
#[derive(Clone, Copy)]
pub(super) struct RequestFlags {
    pub(super) order: Order,
    pub(super) kind: PageKind,
    pub(super) zone_limit: ZoneKind,
    pub(super) urgency: Urgency,
    bits: u8,
}

impl RequestFlags {
    /// Whether the request may repeat direct reclaim.
    pub(super) const fn may_retry(self) -> bool {
        self.bits & NO_RETRY == 0
    }
}

/// A request for one block.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub(super) flags: RequestFlags,
    pub(super) policy: Option<&'a dyn RequestPolicy>,
    pub(super) allowed: Option<&'a NodeMask>,
    /// Nodes from whose preferred zone the policy lets any request be served; `None` for all nodes.
    pub(super) near: Option<&'a NodeMask>,
    /// The address limit; without meaning unless the flag is set.
    pub(super) below: Pfn,
}

impl<'a> Request<'a> {
    /// Creates a request for a block of `order` from any zone kind.
    ///
    /// The search for the block starts at the node of the CPU that allocates.
    #[must_use]
    pub const fn new(order: Order) -> Self {
        let (kind, zone_limit) = (PageKind::User, ZoneKind::Movable);
        let flags = RequestFlags { order, kind, zone_limit, urgency: Urgency::Normal, bits: 0 };
        Self { flags, policy: None, allowed: None, near: None, below: Pfn::new(0) }
    }

    /// Creates a request for one frame, with the defaults of [`Request::new`].
    #[must_use]
    pub const fn page() -> Self {
        Self::new(Order::PAGE)
    }

    /// Sets the kind of data that the frames will hold.
    #[must_use]
    pub const fn kind(self, kind: PageKind) -> Self {
        Self { flags: RequestFlags { kind, ..self.flags }, ..self }
    }

    /// Sets the highest kind of zone that can serve the request.
    #[must_use]
    pub const fn zone_limit(self, zone_limit: ZoneKind) -> Self {
        Self { flags: RequestFlags { zone_limit, ..self.flags }, ..self }
    }

    /// Sets how far below the watermark `min` the request may reduce the free frames of a zone.
    #[must_use]
    pub const fn urgency(self, urgency: Urgency) -> Self {
        Self { flags: RequestFlags { urgency, ..self.flags }, ..self }
    }

    /// Sets which nodes may serve the request, and in which order.
    ///
    /// The default is the local policy.
    #[must_use]
    pub fn policy<P: Platform>(self, policy: &'a Policy<'a, P>) -> Self {
        const { assert!(P::RESTRICTS) };
        let bits = self.flags.bits & !IN_TURN;
        let of_mode = if policy.mode() == Mode::Interleave { IN_TURN } else { 0 };
        let flags = RequestFlags { bits: bits | of_mode, ..self.flags };
        if policy.mode() == Mode::Local {
            return Self { flags, policy: None, near: None, ..self };
        }
        Self { flags, policy: Some(policy), near: Some(&policy.near), ..self }
    }

    /// Restricts the request to these nodes (a cpuset). Requests with [`Urgency::Atomic`] ignore this restriction.
    #[must_use]
    pub const fn allowed(self, nodes: &'a NodeMask) -> Self {
        Self { allowed: Some(nodes), ..self }
    }

    /// Forbids reclaim. The request then never calls a reclaimer, not even to count reclaimable frames.
    #[must_use]
    pub const fn no_wait(self) -> Self {
        self.with(NO_WAIT)
    }

    /// Limits the request to one round of direct reclaim.
    #[must_use]
    pub const fn no_retry(self) -> Self {
        self.with(NO_RETRY)
    }

    /// Restricts the request to the node at which the search for a block starts. Linux: `__GFP_THISNODE`.
    #[must_use]
    pub const fn this_node(self) -> Self {
        self.with(THIS_NODE)
    }

    /// Requests zeroed frames.
    #[must_use]
    pub const fn zeroed(self) -> Self {
        self.with(ZEROED)
    }

    /// Restricts the request to frames below `limit`: the last frame of the block is at most `limit` - 1.
    ///
    /// For devices that cannot address all memory. Where a zone limit expresses the same, it is faster.
    #[must_use]
    pub const fn below(self, limit: Pfn) -> Self {
        Self { below: limit, ..self }.with(BELOW)
    }

    /// Returns the same request for a block of another order.
    #[must_use]
    pub const fn with_order(self, order: Order) -> Self {
        Self { flags: RequestFlags { order, ..self.flags }, ..self }
    }

    const fn with(self, flag: u8) -> Self {
        Self { flags: RequestFlags { bits: self.flags.bits | flag, ..self.flags }, ..self }
    }

    /// Whether the request may call reclaimers, which [`Request::no_wait`] forbids.
    #[must_use]
    pub const fn may_wait(&self) -> bool {
        self.flags.bits & NO_WAIT == 0
    }

    pub(super) const fn is_strict(&self) -> bool {
        self.flags.bits & THIS_NODE != 0
    }

    /// Whether a pageset may serve the request, if it is that of the node whose turn it is under an interleaving policy.
    #[inline(always)]
    pub(super) fn is_in_turn(&self) -> bool {
        self.flags.bits & (ZEROED | BELOW | IN_TURN) == IN_TURN && self.flags.order == Order::PAGE
    }

    /// Whether the current CPU's pageset slot may serve the request without further checks.
    #[inline(always)]
    pub(super) const fn is_plain(&self) -> bool {
        self.flags.bits & (THIS_NODE | ZEROED | BELOW) == 0 && !self.is_restricted()
    }

    /// Whether a pageset may serve the request, if its zone does.
    #[inline(always)]
    pub(super) const fn may_pop(&self) -> bool {
        self.flags.bits & (ZEROED | BELOW) == 0
    }

    /// Whether the current CPU's pageset slot may serve the request, if its zone does.
    #[inline(always)]
    pub(super) const fn may_pop_current(&self) -> bool {
        self.flags.bits & (ZEROED | BELOW | IN_TURN) == 0
    }

    /// Whether a zone limit, a cpuset or a policy excludes some zones.
    #[inline(always)]
    pub(super) const fn is_restricted(&self) -> bool {
        self.policy.is_some() || self.allowed.is_some() || !matches!(self.flags.zone_limit, ZoneKind::Movable)
    }

    /// Whether a preferred zone of this kind on `node` may serve the request, and would be the first zone of a scan.
    #[inline(always)]
    fn accepts(&self, kind: ZoneKind, node: NodeId) -> bool {
        kind <= self.flags.zone_limit
            && self.allowed.is_none_or(|nodes| nodes.contains(node))
            && self.near.is_none_or(|nodes| nodes.contains(node))
    }

    /// Whether a CPU's pageset slot belongs to the zone at which a scan for the request would begin.
    ///
    /// If the CPU's node has no memory, its preferred zone is on another node and cannot serve a request with
    /// [`Self::this_node`].
    #[inline(always)]
    pub(super) fn accepts_slot<P: Platform>(&self, slot: &PagesetSlot<'_, P>) -> bool {
        self.accepts(slot.kind, slot.node) && (slot.is_own || !self.is_strict()) && slot.is_preferred()
    }

    /// Whether a scan for the request would begin at `preferred`, the preferred zone of the CPU.
    #[inline(always)]
    pub(super) fn accepts_zone<P: Platform>(&self, preferred: &Zone<'_, P>, cpu: CpuInfo) -> bool {
        self.accepts(preferred.kind, preferred.node_id) && (!self.is_strict() || preferred.is_own(cpu))
    }

    /// Whether the serving zone (`alloc/route.rs`) may serve the request without a scan while the preferred zone is
    /// full.
    ///
    /// It does not check which nodes are allowed. Large blocks are left out, because a CPU's pagesets of other nodes' zones
    /// rarely hold such blocks.
    pub(super) fn may_pass(&self, stack: StackId) -> bool {
        !self.is_strict() && !self.is_restricted() && stack.is_small()
    }
}
