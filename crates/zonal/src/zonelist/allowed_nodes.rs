//! The set of nodes that may serve a request whose policy or cpuset excludes some nodes.

use crate::node_mask::NodeMask;
use crate::units::NodeId;

/// The nodes that a request's policy and cpuset allow.
#[derive(Clone, Copy)]
pub(crate) struct AllowedNodes<'r> {
    /// A node is allowed if it is in the first set and, if there is a second set, also in the second.
    masks: (&'r NodeMask, Option<&'r NodeMask>),
}

impl<'r> AllowedNodes<'r> {
    /// Creates the set of nodes in `first` and, if present, in `other`.
    pub(crate) const fn new(first: &'r NodeMask, other: Option<&'r NodeMask>) -> Self {
        Self { masks: (first, other) }
    }

    #[inline]
    pub(crate) fn contains(&self, node: NodeId) -> bool {
        self.masks.0.contains(node) && self.masks.1.is_none_or(|mask| mask.contains(node))
    }

    /// Returns how many nodes are allowed, with memory or without.
    pub(crate) fn len(&self) -> usize {
        self.masks.1.map_or_else(|| self.masks.0.len(), |other| self.masks.0.intersection(other).len())
    }

    /// Returns the bits of the 64 nodes whose ids start at `64 * word`.
    #[inline]
    pub(super) fn word(&self, word: usize) -> u64 {
        self.masks.0.words[word] & self.masks.1.map_or(!0, |mask| mask.words[word])
    }
}
