//! Memory policies: which node's zonelist a request walks, and which nodes may serve the request.
//!
//! Related files: a request in `alloc/request.rs` refers to a policy, and `alloc/context.rs` applies the policy. Linux:
//! the `MPOL_*` modes of `set_mempolicy(2)`.

use core::sync::atomic::Ordering::Relaxed;

use crate::error::PolicyError;
use crate::node_mask::NodeMask;
use crate::platform::{Atomic, Platform};
use crate::units::{MAX_NODES, NodeId};

/// Weights of nodes under [`Policy::weighted_interleave`]: 0 to 255 for each node id.
///
/// The weights can be changed while the policy is in use.
pub struct WeightTable<P: Platform> {
    weights: [P::U8; MAX_NODES],
}

impl<P: Platform> WeightTable<P> {
    /// Creates a table with all weights zero.
    #[must_use]
    pub fn new() -> Self {
        Self { weights: core::array::from_fn(|_| P::U8::new(0)) }
    }

    /// Sets the weight of `node`; 0 excludes the node.
    pub fn set(&self, node: NodeId, weight: u8) {
        self.weights[node.index()].store(weight, Relaxed); // relaxed: each weight is independent
    }

    /// Returns the weight of `node`.
    #[must_use]
    pub fn get(&self, node: NodeId) -> u8 {
        self.weights[node.index()].load(Relaxed) // relaxed: each weight is independent
    }
}

impl<P: Platform> Default for WeightTable<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// A memory policy: the nodes that may serve requests, and the node at which the search for memory starts.
pub struct Policy<'w, P: Platform> {
    mode: Mode,
    /// Nodes that the policy names; all nodes for the local policy.
    nodes: NodeMask,
    /// Weights of a weighted interleaving policy.
    weights: Option<&'w WeightTable<P>>,
    /// Nodes of a policy that prefers several nodes, in order; otherwise empty.
    order: &'w [NodeId],
    /// Nodes from whose preferred zone any request may be served without a choice among nodes.
    near: NodeMask,
    /// Number of turns used so far under an interleaving policy.
    turn: P::U64,
}

/// The way in which a policy chooses among its nodes. Linux: `MPOL_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Local,
    Preferred(NodeId),
    PreferredMany,
    Bind,
    /// One node after another, weighted or not.
    Interleave,
}

/// The interface through which requests use a policy, independent of the platform.
pub(super) trait RequestPolicy: Sync {
    /// Returns how the policy chooses among its nodes.
    fn mode(&self) -> Mode;
    /// Returns the nodes that the policy names.
    fn nodes(&self) -> &NodeMask;
    /// Returns the nodes that are tried first, in order, before those of the zonelist.
    fn order(&self) -> &[NodeId];
    /// Returns the policy's node for `turn` among the nodes of `usable`.
    ///
    /// Returns `None` if there is no such node or the policy does not interleave.
    fn target(&self, usable: &NodeMask, turn: Turn) -> Option<NodeId>;
}

/// The information about a machine's nodes that a policy needs; implemented by [`Allocator`](crate::Allocator).
pub trait PolicyNodes {
    /// The platform of the policy's cells.
    type Platform: Platform;
    /// Whether the machine has a node with this id.
    fn has_node(&self, id: NodeId) -> bool;
    /// Returns the nodes that currently have memory.
    fn memory_nodes(&self) -> NodeMask;
}

/// Which turn of an interleaving policy a request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// The next turn, which is reserved for this request.
    Next,
    /// The turn used last, to examine a request that failed.
    Last,
    /// The turn that the next request uses, to examine it before.
    Upcoming,
}

impl<'w, P: Platform> Policy<'w, P> {
    fn new(mode: Mode, nodes: NodeMask) -> Self {
        let near = if mode == Mode::Interleave { NodeMask::EMPTY } else { nodes };
        Self { mode, nodes, weights: None, order: &[], near, turn: P::U64::new(0) }
    }

    /// Returns how the policy chooses among its nodes.
    pub(super) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the nodes from whose preferred zone any request may be served, if it is the preferred zone of the CPU.
    ///
    /// These are the nodes of a binding policy, the first node of a policy that prefers nodes, and no node of an
    /// interleaving policy.
    pub(super) const fn near(&self) -> &NodeMask {
        &self.near
    }

    /// Creates a policy that starts at the requesting CPU's node and follows that node's fallback order.
    #[must_use]
    pub fn local() -> Self {
        Self::new(Mode::Local, NodeMask::ALL)
    }

    /// Creates a policy that starts at `node` and follows that node's fallback order.
    ///
    /// # Errors
    /// Returns an error if the machine has no such node, or the node has no memory.
    pub fn preferred(machine: &impl PolicyNodes<Platform = P>, node: NodeId) -> Result<Self, PolicyError> {
        let nodes = check(machine, NodeMask::from_iter([node]))?;
        Ok(Self::new(Mode::Preferred(node), nodes))
    }

    /// Creates a policy that tries `nodes` first, in their order, and then all other nodes in the fallback order of the
    /// requesting CPU's node.
    ///
    /// The nodes are tried without reclaim, down to the watermark `min`. Each of them counts as the preferred node while it
    /// is tried. A request for [this node](crate::Request::this_node) only ignores the policy. Linux:
    /// `MPOL_PREFERRED_MANY`.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Policy, Request};
    /// # let ids = [0, 1, 2].map(|id| NodeId::new(id).unwrap());
    /// # let memory = [1, 2, 3].map(|at| FrameRange { start: Pfn::new(at << 14), count: PageCount::new(1 << 14) });
    /// # let cpu = [CpuId::new(0)];
    /// # let node = |at: usize| NodeDescription { id: ids[at], cpus: &cpu[..usize::from(at == 0)], distances: [&[10, 20, 20], &[20, 10, 20], &[20, 20, 10]][at] };
    /// # let nodes = [0, 1, 2].map(node);
    /// # let zones = [0, 1, 2].map(|at| ZoneDescription { node: ids[at], kind: ZoneKind::Normal, span: memory[at], managed: &memory[at..=at] });
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// // Nodes 2 and 1 have fast memory; the CPU is on node 0.
    /// let fast = [ids[2], ids[1]];
    /// let policy = Policy::preferred_many(&allocator, &fast)?;
    /// let block = allocator.alloc(&Request::page().policy(&policy))?;
    /// assert_eq!(block.node, ids[2]);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if a node is not part of this machine, or none of the nodes has memory.
    pub fn preferred_many(
        machine: &impl PolicyNodes<Platform = P>,
        nodes: &'w [NodeId],
    ) -> Result<Self, PolicyError> {
        let named = check(machine, nodes.iter().copied().collect())?;
        let near = nodes.first().copied().into_iter().collect();
        Ok(Self { order: nodes, near, ..Self::new(Mode::PreferredMany, named) })
    }

    /// Creates a policy that allows only `nodes`, in the fallback order of the requesting CPU's node.
    ///
    /// # Errors
    /// Returns an error if a node is not part of this machine, or none of the nodes has memory.
    pub fn bind(machine: &impl PolicyNodes<Platform = P>, nodes: NodeMask) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Bind, check(machine, nodes)?))
    }

    /// Creates a policy under which each request starts at the next of `nodes` and follows that node's fallback order.
    ///
    /// # Errors
    /// Returns an error if a node is not part of this machine, or none of the nodes has memory.
    pub fn interleave(
        machine: &impl PolicyNodes<Platform = P>,
        nodes: NodeMask,
    ) -> Result<Self, PolicyError> {
        Ok(Self::new(Mode::Interleave, check(machine, nodes)?))
    }

    /// Creates a policy like [`Policy::interleave`] in which each node serves as many consecutive requests as its
    /// weight.
    ///
    /// # Errors
    /// Returns an error if a node is not part of this machine, none of the nodes has memory, or all weights are 0.
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
        // Another thread has decreased the weights since they were summed. Use the first usable node.
        nodes.nth(0)
    }

    fn turn(&self, turn: Turn) -> u64 {
        // Relaxed: turns must be distinct, but they order no other memory accesses.
        match turn {
            Turn::Next => self.turn.fetch_add(1, Relaxed),
            Turn::Last => self.turn.load(Relaxed).saturating_sub(1),
            Turn::Upcoming => self.turn.load(Relaxed),
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

    fn order(&self) -> &[NodeId] {
        self.order
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
