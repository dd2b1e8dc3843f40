//! Memory policies: which node's list a request walks, and which nodes may serve it.
//!
//! Neighbours: `request.rs` carries a policy, `slow_path.rs` walks the list it names. Linux: the
//! `MPOL_*` modes of `set_mempolicy(2)`.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::error::PolicyError;
use crate::node_mask::NodeMask;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_NODES, NodeId};

/// Weights of nodes under [`Policy::weighted_interleave`]: 0..=255 for each node id. They can be
/// changed while the policy is in use.
pub struct WeightTable<P: Platform> {
    weights: [P::U8; MAX_NODES],
}

impl<P: Platform> WeightTable<P> {
    /// All weights zero.
    #[must_use]
    pub fn new() -> Self {
        Self { weights: core::array::from_fn(|_| P::U8::new(0)) }
    }

    /// Sets the weight of `node`; 0 leaves the node out.
    pub fn set(&self, node: NodeId, weight: u8) {
        self.weights[node.index()].store(weight, Relaxed); // relaxed: each weight stands alone
    }

    /// The weight of `node`.
    #[must_use]
    pub fn get(&self, node: NodeId) -> u8 {
        self.weights[node.index()].load(Relaxed) // relaxed: each weight stands alone
    }
}

impl<P: Platform> Default for WeightTable<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where requests under a policy may be served, and from where the search starts.
pub struct Policy<'w, P: Platform> {
    pub(crate) mode: Mode<'w, P>,
    /// Nodes the policy names; all of them for the local policy.
    pub(crate) nodes: NodeMask,
    /// Requests served so far under an interleaving policy.
    turn: P::U64,
}

pub(crate) enum Mode<'w, P: Platform> {
    Local,
    Preferred(NodeId),
    Bind,
    Interleave,
    Weighted(&'w WeightTable<P>),
}

/// Which turn of an interleaving policy a request has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The next one, which nobody else has then.
    Next,
    /// The one that was taken last: for looking at a request that failed.
    Last,
}

impl<'w, P: Platform> Policy<'w, P> {
    fn new(mode: Mode<'w, P>, nodes: NodeMask) -> Self {
        Self { mode, nodes, turn: P::U64::new(0) }
    }

    /// The node of the requesting CPU, then its fallback order.
    #[must_use]
    pub fn local() -> Self {
        Self::new(Mode::Local, NodeMask::ALL)
    }

    /// `node`, then its fallback order.
    ///
    /// # Errors
    /// When the machine has no such node, or the node has no memory.
    pub fn preferred(allocator: &Allocator<'_, P>, node: NodeId) -> Result<Self, PolicyError> {
        let nodes = check(allocator, NodeMask::from_iter([node]))?;
        Ok(Self::new(Mode::Preferred(node), nodes))
    }

    /// Only `nodes`, in the fallback order of the requesting CPU's node.
    ///
    /// # Errors
    /// When a node is not of this machine, or none of them has memory.
    pub fn bind(allocator: &Allocator<'_, P>, nodes: NodeMask) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Bind, check(allocator, nodes)?))
    }

    /// Each request starts at the next of `nodes` in turn, then that node's fallback order.
    ///
    /// # Errors
    /// When a node is not of this machine, or none of them has memory.
    pub fn interleave(allocator: &Allocator<'_, P>, nodes: NodeMask) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Interleave, check(allocator, nodes)?))
    }

    /// As [`Policy::interleave`], with as many requests in a row for each node as its weight says.
    ///
    /// # Errors
    /// When a node is not of this machine, none of them has memory, or all weights are 0.
    pub fn weighted_interleave(
        allocator: &Allocator<'_, P>,
        nodes: NodeMask,
        weights: &'w WeightTable<P>,
    ) -> Result<Self, PolicyError> {
        let nodes = check(allocator, nodes)?;
        if nodes.iter().all(|node| weights.get(node) == 0) {
            return Err(PolicyError::NoWeight);
        }
        Ok(Self::new(Mode::Weighted(weights), nodes))
    }

    /// The node whose turn it is among those of `usable`, under an interleaving policy; `None` when
    /// there is none, or the policy is another.
    pub(crate) fn target(&self, usable: &NodeMask, turn: Turn) -> Option<NodeId> {
        let nodes = self.nodes.intersection(usable);
        match &self.mode {
            Mode::Interleave => {
                let turn = self.turn(turn).checked_rem(nodes.len() as u64)?;
                nodes.nth(turn as usize)
            }
            Mode::Weighted(weights) => self.weighted_target(&nodes, weights, turn),
            Mode::Local | Mode::Preferred(_) | Mode::Bind => None,
        }
    }

    fn weighted_target(&self, nodes: &NodeMask, weights: &WeightTable<P>, turn: Turn) -> Option<NodeId> {
        let total: u64 = nodes.iter().map(|node| u64::from(weights.get(node))).sum();
        let mut rest = self.turn(turn).checked_rem(total)?;
        for node in nodes.iter() {
            let weight = u64::from(weights.get(node));
            if rest < weight {
                return Some(node);
            }
            rest -= weight;
        }
        // Weights shrank meanwhile: the first node with memory will do.
        nodes.nth(0)
    }

    fn turn(&self, turn: Turn) -> u64 {
        // Relaxed: only distinctness of turns matters.
        match turn {
            Turn::Next => self.turn.fetch_add(1, Relaxed),
            Turn::Last => self.turn.load(Relaxed).saturating_sub(1),
        }
    }
}

fn check<P: Platform>(allocator: &Allocator<'_, P>, nodes: NodeMask) -> Result<NodeMask, PolicyError> {
    if let Some(unknown) = nodes.iter().find(|&node| !allocator.has_node(node)) {
        return Err(PolicyError::UnknownNode(unknown));
    }
    if nodes.intersection(&allocator.memory_nodes()).is_empty() {
        return Err(PolicyError::NoMemory);
    }
    Ok(nodes)
}
