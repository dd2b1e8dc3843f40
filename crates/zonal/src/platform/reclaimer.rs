//! The reclaimer, which an embedder implements to free frames under pressure, and the requests it receives.
//!
//! Related files: `reclaim/mod.rs` calls the reclaimer; [`Platform::reclaimer`](super::Platform::reclaimer) returns
//! it.

use crate::config::NodeReclaim;
use crate::machine::FrameRange;
use crate::units::{NodeId, Order, PageCount, ZoneId, ZoneKind};

/// Frees frames under pressure, like the shrinker of a cache in Linux (`struct shrinker`).
///
/// The allocator holds no lock when it calls either method. The calling thread is the allocating thread (node and
/// direct reclaim), the embedder's background worker, or the caller of [`Allocator::reclaim_range`] or
/// [`Allocator::shrink_caches`].
///
/// A reclaimer frees frames through the allocator as usual. It may also allocate: its requests are served from the
/// reserve and never reclaim, so calls to the reclaimer are not nested in one thread. Frees, and requests that [do
/// not wait](crate::Request::no_wait), never call the reclaimer. An embedder may therefore make them while it holds a
/// lock that its reclaimer acquires.
///
/// A reclaimer may put its caller to sleep, and the caller may continue on another CPU.
///
/// A reclaimer may ignore any limit of the request. The allocator then still works correctly, but the freed frames
/// are less useful to it.
///
/// [`Allocator::reclaim_range`]: crate::Allocator::reclaim_range
/// [`Allocator::shrink_caches`]: crate::Allocator::shrink_caches
pub trait Reclaimer: Sync {
    /// Returns how many frames could be freed now for `request`, regardless of its target.
    ///
    /// If the request has a range, only frames of the range count. Requests for large blocks choose their range by this
    /// number; with a larger number, they choose ranges that stay in use.
    ///
    /// A count of zero for one [reason](ReclaimReason) does not imply zero for another: clean pages may be exhausted
    /// while dirty pages remain.
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

/// Reason for a reclaim request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReclaimReason {
    /// Node reclaim: a zone near the caller is below its watermark, and other nodes could serve the request. Node
    /// reclaim must be quick, so it writes no pages to backing storage and unmaps none, unless the mode
    /// ([`NodeReclaim`]) permits this.
    Node,
    /// Direct reclaim: a request cannot be served otherwise, and its caller waits.
    Direct,
    /// Background reclaim, which raises the free frames of a node to `watermarks.high` without a waiting request.
    Background,
    /// Reclaim of a range that is about to go offline or to be allocated as a whole.
    Range,
    /// Shrinking of caches although no request lacks frames.
    Shrink,
}

/// A request to a reclaimer.
///
/// The allocator creates requests. Tests of a reclaimer can create them with [`ReclaimRequest::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReclaimRequest {
    /// Reason for the request.
    pub reason: ReclaimReason,
    /// Node whose frames are wanted.
    pub node: NodeId,
    /// The only zone whose frames are wanted, or `None` for all zones of the node. A zone is given in those modes of
    /// [`ZonelistCache`](crate::config::ZonelistCache) that reclaim zone by zone, as kernels did when these modes were
    /// published, and if a request for a large block lacks frames of this zone.
    pub zone: Option<ZoneId>,
    /// Highest kind of zone whose frames are useful.
    pub zone_limit: ZoneKind,
    /// Order of the block that is needed. Freed frames that do not form a block of this order help less.
    pub order: Order,
    /// The only frames that are wanted, or `None` for any frames of the node.
    pub range: Option<FrameRange>,
    /// Number of frames wanted.
    pub target: PageCount,
    /// Whether contents may be written to backing storage. Linux: `may_writepage`.
    pub may_write: bool,
    /// Whether mapped frames may be unmapped. Linux: `may_unmap`.
    pub may_unmap: bool,
}

impl ReclaimRequest {
    /// Creates a request for `target` single frames of `node`, from any zone.
    ///
    /// For [`ReclaimReason::Node`] the request allows neither writing nor unmapping; for all other reasons it allows
    /// both.
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
