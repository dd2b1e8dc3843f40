//! The nodes that may serve a request, where not all may.

use crate::node_mask::NodeMask;
use crate::units::NodeId;

/// The nodes that policy and cpuset leave, where that is not all.
#[derive(Clone, Copy)]
pub(crate) struct AllowedNodes<'r> {
    /// Those that are in this set and, if there is one, in the other.
    masks: (&'r NodeMask, Option<&'r NodeMask>),
    /// How many of them have memory.
    pub(super) count: usize,
}

impl<'r> AllowedNodes<'r> {
    /// The nodes in `first` and, if there is one, in `other`; `count` of them have memory.
    pub(crate) const fn new(first: &'r NodeMask, other: Option<&'r NodeMask>, count: usize) -> Self {
        Self { masks: (first, other), count }
    }

    #[inline]
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.masks.0.contains(node) && self.masks.1.is_none_or(|mask| mask.contains(node))
    }

    /// The bits of the nodes from `64 * word` up.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u64 {
        self.masks.0.words()[word] & self.masks.1.map_or(!0, |mask| mask.words()[word])
    }
}
