//! Reclaim.

use crate::units::{NodeId, PageCount};

/// Someone who holds frames and can give some back: a cache's shrinker.
///
/// Called outside every lock, by a requester (direct and node reclaim) or by the embedder's
/// background worker. What it frees, it frees through the allocator as usual. Linux: `struct shrinker`.
pub trait Reclaimer: Sync {
    /// Frames of `node` it could give up now.
    fn count(&self, node: NodeId) -> PageCount;
    /// Tries to free `target` frames of `node`; gives how many it freed.
    fn reclaim(&self, node: NodeId, target: PageCount) -> PageCount;
}

/// The reclaimer of an embedder that has none.
#[derive(Clone, Copy, Debug)]
pub struct NoReclaimer;

impl Reclaimer for NoReclaimer {
    fn count(&self, _node: NodeId) -> PageCount {
        PageCount::ZERO
    }

    fn reclaim(&self, _node: NodeId, _target: PageCount) -> PageCount {
        PageCount::ZERO
    }
}
