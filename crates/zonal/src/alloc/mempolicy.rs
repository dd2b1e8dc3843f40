//! Memory policies: which node's list a request walks, and which nodes may serve it.
//!
//! Neighbours: `request.rs` carries a policy, `slow_path.rs` walks the list it names. Linux: the
//! `MPOL_*` modes of `set_mempolicy(2)`.

use core::sync::atomic::Ordering::Relaxed;

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
    mode: Mode,
    /// Nodes the policy names; all of them for the local policy.
    nodes: NodeMask,
    /// Of the weighted interleaving policy.
    weights: Option<&'w WeightTable<P>>,
    /// Requests served so far under an interleaving policy.
    turn: P::U64,
}

/// How a policy chooses among its nodes. Linux: `MPOL_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Local,
    Preferred(NodeId),
    Bind,
    /// By turns, weighted or not.
    Interleave,
}

/// A policy as requests refer to it, whatever the platform of its cells.
pub(super) trait RequestPolicy: Sync {
    /// How it chooses among its nodes.
    fn mode(&self) -> Mode;
    /// The nodes that it names.
    fn nodes(&self) -> &NodeMask;
    /// The node whose turn it is among those of `usable`, under an interleaving policy; `None` when there is none, or
    /// the policy is another.
    fn target(&self, usable: &NodeMask, turn: Turn) -> Option<NodeId>;
}

/// What a policy must know of a machine: [`Allocator`](crate::Allocator).
pub trait PolicyNodes {
    /// The platform of the policy's cells.
    type Platform: Platform;
    /// Whether the machine has a node with this id.
    fn has_node(&self, id: NodeId) -> bool;
    /// The nodes that have memory now.
    fn memory_nodes(&self) -> NodeMask;
}

/// Which turn of an interleaving policy a request has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// The next one, which nobody else has then.
    Next,
    /// The one that was taken last: for looking at a request that failed.
    Last,
}

impl<'w, P: Platform> Policy<'w, P> {
    fn new(mode: Mode, nodes: NodeMask) -> Self {
        Self { mode, nodes, weights: None, turn: P::U64::new(0) }
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
    pub fn preferred(machine: &impl PolicyNodes<Platform = P>, node: NodeId) -> Result<Self, PolicyError> {
        let nodes = check(machine, NodeMask::from_iter([node]))?;
        Ok(Self::new(Mode::Preferred(node), nodes))
    }

    /// Only `nodes`, in the fallback order of the requesting CPU's node.
    ///
    /// # Errors
    /// When a node is not of this machine, or none of them has memory.
    pub fn bind(machine: &impl PolicyNodes<Platform = P>, nodes: NodeMask) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Bind, check(machine, nodes)?))
    }

    /// Each request starts at the next of `nodes` in turn, then that node's fallback order.
    ///
    /// # Errors
    /// When a node is not of this machine, or none of them has memory.
    pub fn interleave(
        machine: &impl PolicyNodes<Platform = P>,
        nodes: NodeMask,
    ) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Interleave, check(machine, nodes)?))
    }

    /// As [`Policy::interleave`], with as many requests in a row for each node as its weight says.
    ///
    /// # Errors
    /// When a node is not of this machine, none of them has memory, or all weights are 0.
    pub fn weighted_interleave(
        machine: &impl PolicyNodes<Platform = P>,
        nodes: NodeMask,
        weights: &'w WeightTable<P>,
    ) -> Result<Self, PolicyError> {
        let nodes = check(machine, nodes)?;
        if nodes.iter().all(|node| weights.get(node) == 0) {
            return Err(PolicyError::NoWeight);
        }
        Ok(Self { weights: Some(weights), ..Self::new(Mode::Interleave, nodes) })
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

impl<P: Platform> RequestPolicy for Policy<'_, P> {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn nodes(&self) -> &NodeMask {
        &self.nodes
    }

    fn target(&self, usable: &NodeMask, turn: Turn) -> Option<NodeId> {
        if self.mode != Mode::Interleave {
            return None;
        }
        let nodes = self.nodes.intersection(usable);
        if let Some(weights) = self.weights {
            return self.weighted_target(&nodes, weights, turn);
        }
        let turn = self.turn(turn).checked_rem(nodes.len() as u64)?;
        nodes.nth(turn as usize)
    }
}

fn check(machine: &impl PolicyNodes, nodes: NodeMask) -> Result<NodeMask, PolicyError> {
    if let Some(unknown) = nodes.iter().find(|&node| !machine.has_node(node)) {
        return Err(PolicyError::UnknownNode(unknown));
    }
    if nodes.intersection(&machine.memory_nodes()).is_empty() {
        return Err(PolicyError::NoMemory);
    }
    Ok(nodes)
}
