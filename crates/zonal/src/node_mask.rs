//! Sets of nodes. Linux: `nodemask_t`.

use crate::units::{MAX_NODES, NodeId};

const WORDS: usize = MAX_NODES / 64;

/// A set of node ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeMask {
    pub(crate) words: [u64; WORDS],
}

impl NodeMask {
    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; WORDS] };
    /// The set of all possible nodes.
    pub const ALL: Self = Self { words: [!0; WORDS] };

    /// Adds `node`.
    pub fn insert(&mut self, node: NodeId) {
        self.words[node.index() / 64] |= 1 << (node.index() % 64);
    }

    /// Removes `node`.
    pub fn remove(&mut self, node: NodeId) {
        self.words[node.index() / 64] &= !(1 << (node.index() % 64));
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub const fn contains(&self, node: NodeId) -> bool {
        self.words[node.index() / 64] & (1 << (node.index() % 64)) != 0
    }

    /// Returns the nodes that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self { words: core::array::from_fn(|i| self.words[i] & other.words[i]) }
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words == [0; WORDS]
    }

    /// Returns the number of nodes in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }

    /// Returns an iterator over the nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros() as usize;
                    rest &= rest - 1;
                    NodeId::from_index(at * 64 + bit)
                })
            })
        })
    }

    /// Returns the node at index `n` of the set in ascending order, or `None` if the set has at most `n` nodes.
    #[must_use]
    pub fn nth(&self, n: usize) -> Option<NodeId> {
        self.iter().nth(n)
    }
}

impl FromIterator<NodeId> for NodeMask {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut mask = Self::EMPTY;
        nodes.into_iter().for_each(|node| mask.insert(node));
        mask
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn sets_of_nodes() {
        let ids = [0, 63, 64, 1023].map(|id| NodeId::new(id).unwrap());
        let mut mask: NodeMask = ids.into_iter().collect();
        assert_eq!(mask.iter().collect::<Vec<_>>(), ids);
        assert_eq!((mask.len(), mask.nth(2), mask.nth(4)), (4, Some(ids[2]), None));
        mask.remove(ids[1]);
        assert!(!mask.contains(ids[1]) && mask.contains(ids[0]) && !mask.is_empty());
        assert_eq!(mask.intersection(&ids[1..3].iter().copied().collect()).len(), 1);
    }
}
