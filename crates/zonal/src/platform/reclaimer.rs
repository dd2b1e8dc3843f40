//! What an embedder implements to give frames back: the reclaimer, and what a call asks of it.
//!
//! Neighbours: `reclaim.rs` makes the calls, `platform.rs` names the reclaimer.

use crate::config::NodeReclaim;
use crate::machine::FrameRange;
use crate::units::{NodeId, Order, PageCount, ZoneId, ZoneKind};

/// Gives frames back under pressure: a cache's shrinker. Linux: `struct shrinker`.
///
/// Both calls come outside every lock, from the thread that allocates (node and direct reclaim), from
/// the embedder's background worker, or from whoever called [`Allocator::reclaim_range`] or
/// [`Allocator::shrink_caches`]. A reclaimer frees through the allocator as usual, and may allocate: such
/// requests are served from the reserve and never reclaim. It is not called again by the thread that is
/// in one of its calls. Requests that [do not wait](crate::Request::no_wait) and frees make neither call, so
/// that both may be made under a lock that a reclaimer takes.
///
/// A reclaimer may ignore every limit of the request: the result is correct, if less useful.
///
/// [`Allocator::reclaim_range`]: crate::Allocator::reclaim_range
/// [`Allocator::shrink_caches`]: crate::Allocator::shrink_caches
pub trait Reclaimer: Sync {
    /// Returns how many frames could be given up now for `request`, whatever its target. Zero for one
    /// reason says nothing about another: clean pages may be used up where written ones would do.
    fn count(&self, request: &ReclaimRequest) -> PageCount;
    /// Tries to free `request.target` frames; returns how many it freed.
    fn reclaim(&self, request: &ReclaimRequest) -> PageCount;
}

/// The reclaimer of an embedder that has none.
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
    /// Node reclaim: a zone near the caller is below its watermark, and other nodes could serve. Quick
    /// and local: it neither writes nor unmaps, unless the mode allows ([`NodeReclaim`]).
    Node,
    /// Direct reclaim: a request cannot be served otherwise, and its caller waits.
    Direct,
    /// Background reclaim: a node is to reach `watermarks.high`, and nobody waits.
    Background,
    /// The frames of a range are wanted, to leave or to be allocated as a whole.
    Range,
    /// Caches are to hold less, although no request lacks frames.
    Shrink,
}

/// What a reclaimer is asked for.
///
/// A plain value; [`ReclaimRequest::new`] makes one for tests of a reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReclaimRequest {
    /// Why frames are wanted.
    pub reason: ReclaimReason,
    /// Node whose frames are wanted.
    pub node: NodeId,
    /// The one zone of the node whose frames are wanted, under the modes of
    /// [`ZonelistCache`](crate::config::ZonelistCache) that reclaim zone by zone as kernels did when
    /// they were published; `None` = the whole node.
    pub zone: Option<ZoneId>,
    /// Highest kind of zone whose frames help.
    pub zone_limit: ZoneKind,
    /// Order of the block that is wanted: free frames that do not make one help less.
    pub order: Order,
    /// The frames that are wanted, and no others; `None` = any of the node.
    pub range: Option<FrameRange>,
    /// How many frames are wanted.
    pub target: PageCount,
    /// Whether contents may be written to where they can be read back from. Linux: `may_writepage`.
    pub may_write: bool,
    /// Whether frames that are mapped may be unmapped. Linux: `may_unmap`.
    pub may_unmap: bool,
}

impl ReclaimRequest {
    /// A request for `target` frames of `node`: single frames of any zone. For [`ReclaimReason::Node`]
    /// it allows neither writing nor unmapping, for all other reasons both.
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

    /// Allows what `mode` allows node reclaim to do.
    pub(crate) const fn under(self, mode: NodeReclaim) -> Self {
        Self { may_write: mode.may_write(), may_unmap: mode.may_unmap(), ..self }
    }
}
