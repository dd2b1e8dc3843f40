//! The reclaimer, which an embedder implements to free frames under pressure, and the requests it receives.
//!
//! Neighbours: `alloc/reclaim.rs` makes the calls, `platform/mod.rs` names the reclaimer.

use crate::config::NodeReclaim;
use crate::machine::FrameRange;
use crate::units::{NodeId, Order, PageCount, ZoneId, ZoneKind};

/// Frees frames under pressure, as the shrinker of a cache does. Linux: `struct shrinker`.
///
/// Both methods are called without any lock held: by the allocating thread (node and direct reclaim), by the
/// embedder's background worker, or by the caller of [`Allocator::reclaim_range`] or [`Allocator::shrink_caches`].
/// A reclaimer frees through the allocator as usual, and may allocate: such requests are served from the reserve
/// and never reclaim. The thread that is in one of these calls does not call the reclaimer again. Requests that
/// [do not wait](crate::Request::no_wait) and frees never call it, so both may be made under a lock that a
/// reclaimer acquires.
///
/// A reclaimer may put its caller to sleep, and the caller may continue on another CPU.
///
/// A reclaimer may ignore any limit of the request: the result is correct, if less useful.
///
/// [`Allocator::reclaim_range`]: crate::Allocator::reclaim_range
/// [`Allocator::shrink_caches`]: crate::Allocator::shrink_caches
pub trait Reclaimer: Sync {
    /// Returns how many frames could be freed now for `request`, regardless of its target.
    ///
    /// Zero for one reason says nothing about another: clean pages may be exhausted while dirty pages remain.
    fn count(&self, request: &ReclaimRequest) -> PageCount;
    /// Tries to free `request.target` frames and returns how many it freed.
    fn reclaim(&self, request: &ReclaimRequest) -> PageCount;
}

/// The reclaimer of an embedder that has nothing to reclaim.
#[derive(Clone, Copy, Debug)]
pub struct NoReclaimer;

impl Reclaimer for NoReclaimer {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }

    fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::ZERO
    }
}

/// Why frames are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReclaimReason {
    /// Node reclaim: a zone near the caller is below its watermark, and other nodes could serve the request. Quick
    /// and local: it neither writes nor unmaps, unless the mode allows it ([`NodeReclaim`]).
    Node,
    /// Direct reclaim: a request cannot be served otherwise, and its caller waits.
    Direct,
    /// Background reclaim: a node is to reach `watermarks.high`; no request waits for it.
    Background,
    /// Reclaim of a range, which is to go offline or to be allocated as a whole.
    Range,
    /// Shrinking of caches although no request lacks frames.
    Shrink,
}

/// A request to a reclaimer.
///
/// A plain value; [`ReclaimRequest::new`] creates one to test a reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReclaimRequest {
    /// Why frames are wanted.
    pub reason: ReclaimReason,
    /// Node whose frames are wanted.
    pub node: NodeId,
    /// The only zone whose frames are wanted, under the modes of [`ZonelistCache`](crate::config::ZonelistCache)
    /// that reclaim zone by zone as kernels did when these modes were published; `None` = the whole node.
    pub zone: Option<ZoneId>,
    /// Highest kind of zone whose frames are useful.
    pub zone_limit: ZoneKind,
    /// Order of the block wanted: free frames that do not form such a block help less.
    pub order: Order,
    /// The only frames that are wanted; `None` = any frames of the node.
    pub range: Option<FrameRange>,
    /// Number of frames wanted.
    pub target: PageCount,
    /// Whether contents may be written to backing storage. Linux: `may_writepage`.
    pub may_write: bool,
    /// Whether mapped frames may be unmapped. Linux: `may_unmap`.
    pub may_unmap: bool,
}

impl ReclaimRequest {
    /// Creates a request for `target` frames of `node`: single frames of any zone.
    ///
    /// For [`ReclaimReason::Node`] it allows neither writing nor unmapping; for all other reasons it allows both.
    #[must_use]
    pub const fn new(reason: ReclaimReason, node: NodeId, target: PageCount) -> Self {
        let thorough = !matches!(reason, ReclaimReason::Node);
        Self {
            reason,
            node,
            zone: None,
            zone_limit: ZoneKind::Movable,
            order: Order::PAGE,
            range: None,
            target,
            may_write: thorough,
            may_unmap: thorough,
        }
    }

    /// Returns the request with the permissions that `mode` grants node reclaim.
    pub(crate) const fn under(self, mode: NodeReclaim) -> Self {
        Self { may_write: mode.may_write(), may_unmap: mode.may_unmap(), ..self }
    }
}
