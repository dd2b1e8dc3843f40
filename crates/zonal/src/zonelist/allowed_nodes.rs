//! The nodes that may serve a request, if not all may.

use crate::node_mask::NodeMask;
use crate::units::NodeId;

/// The nodes that policy and cpuset allow, if not all.
#[derive(Clone, Copy)]
pub(crate) struct AllowedNodes<'r> {
    /// The allowed nodes: those in the first set and, if present, in the second.
    masks: (&'r NodeMask, Option<&'r NodeMask>),
    /// Number of allowed nodes with memory.
    pub(super) count: usize,
}

impl<'r> AllowedNodes<'r> {
    /// Creates the set of nodes in `first` and, if present, in `other`; `count` of them have memory.
    pub(crate) const fn new(first: &'r NodeMask, other: Option<&'r NodeMask>, count: usize) -> Self {
        Self { masks: (first, other), count }
    }

    #[inline]
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.masks.0.contains(node) && self.masks.1.is_none_or(|mask| mask.contains(node))
    }

    /// Returns the bits of the 64 nodes from `64 * word`.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u64 {
        self.masks.0.words()[word] & self.masks.1.map_or(!0, |mask| mask.words()[word])
    }
}
