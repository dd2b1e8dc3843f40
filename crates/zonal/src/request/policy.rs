//! Memory policies: which node's zonelist a request walks, and which nodes may serve the request.
//!
//! Related files: a request in `request/mod.rs` refers to a policy, and `request/context.rs` applies the policy. Linux:
//! the `MPOL_*` modes of `set_mempolicy(2)`.

use core::num::NonZeroU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::error::PolicyError;
use crate::node_mask::NodeMask;
use crate::platform::cells::Line;
use crate::platform::{Atomic, Platform};
use crate::units::{CpuId, MAX_NODES, NodeId};

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
    /// Nodes from whose preferred zone any request may be served, if it is the preferred zone of the CPU: those of a binding
    /// policy, the first of a policy that prefers nodes, and none of an interleaving policy.
    pub(super) near: NodeMask,
    /// The turns of an interleaving policy.
    turns: Option<Turns<P>>,
}

/// The way in which a policy chooses among its nodes. Linux: `MPOL_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Local,
    Preferred(NodeId),
    PreferredMany,
    Bind,
    /// One node after another, weighted or not.
    Interleave,
}

/// The interface through which requests use a policy, independent of the platform.
pub(crate) trait RequestPolicy: Sync {
    /// Returns how the policy chooses among its nodes.
    fn mode(&self) -> Mode;
    /// Returns the nodes that the policy names.
    fn nodes(&self) -> &NodeMask;
    /// Returns the nodes that are tried first, in order, before those of the zonelist.
    fn order(&self) -> &[NodeId];
    /// Returns the turn that the next request on `cpu` uses if it may use all nodes, or `None` if no node has a turn.
    fn next_turn(&self, cpu: CpuId) -> Option<NodeTurn>;
    /// Returns the turn that the next request on `cpu` uses among the usable nodes.
    ///
    /// `usable` returns a word of the mask with all nodes that the request may use.
    fn next_usable_turn(&self, cpu: CpuId, usable: &dyn Fn(usize) -> u64) -> Option<NodeTurn>;
    /// Records that a request on `cpu` uses `turn`.
    fn use_turn(&self, cpu: CpuId, turn: NodeTurn);

    /// Returns the policy's node for `turn` of a request on `cpu` among the usable nodes.
    fn target(&self, cpu: CpuId, usable: &dyn Fn(usize) -> u64, turn: Turn) -> Option<NodeId>;
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
pub(crate) enum Turn {
    /// The next turn, which is reserved for this request.
    Next,
    /// The turn used last, to examine a request that failed.
    Last,
    /// The turn that the next request uses, to examine it before.
    Upcoming,
}

/// A turn of one node: a node serves requests with the numbers 1 to its weight.
///
/// Bits 0 to 15 are the node, bits 16 to 23 the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeTurn(NonZeroU32);

impl NodeTurn {
    #[inline]
    fn new(node: NodeId, number: u8) -> Option<Self> {
        NonZeroU32::new(node.index() as u32 | u32::from(number) << 16).filter(|_| number > 0).map(Self)
    }

    #[inline]
    pub(crate) fn node(self) -> NodeId {
        NodeId::from_index(self.0.get() as usize & (MAX_NODES - 1))
    }

    #[inline]
    const fn number(self) -> u8 {
        (self.0.get() >> 16) as u8
    }
}

/// Number of cells in an interleaving policy. If a machine has more CPUs, some of them share a cell.
const TURN_CELLS: usize = 16;

/// The turns of an interleaving policy.
struct Turns<P: Platform> {
    /// The turn used last on each CPU, on a cache line of its own; 0 before the first.
    last: [Line<P::U32>; TURN_CELLS],
    /// Number of nodes, and of mask words up to the last that is not zero.
    nodes: usize,
    words: usize,
}

impl<P: Platform> Turns<P> {
    // Relaxed: a turn orders no other memory accesses. A load and a separate store are enough. If another thread uses a turn
    // between them, on the same CPU or on one that shares the cell, then both use the same turn. A request that refills a
    // pageset may take that long, and its turn may then set the cell back by some turns.

    #[inline]
    fn last(&self, cpu: CpuId) -> Option<NodeTurn> {
        NonZeroU32::new(self.last[cpu.index() % TURN_CELLS].0.load(Relaxed)).map(NodeTurn)
    }

    /// Returns the next usable node of `nodes` after `after` in cyclic order; `after` itself comes last.
    #[inline]
    fn node_after(
        &self,
        after: Option<NodeId>,
        nodes: &NodeMask,
        usable: impl Fn(usize) -> u64,
    ) -> Option<NodeId> {
        let words = nodes.words.get(..self.words)?;
        let (mut at, mut mask) = after.map_or((0, u64::MAX), |node| (node.index() / 64, bits_above(node)));
        // The first word is visited twice: first its bits above `after`, in the end all of its bits.
        for _ in 0..=words.len() {
            let named = words.get(at)? & mask;
            let found = if named == 0 { 0 } else { named & usable(at) };
            if found != 0 {
                return Some(NodeId::from_index(at * 64 + found.trailing_zeros() as usize));
            }
            at = if at + 1 == words.len() { 0 } else { at + 1 };
            mask = u64::MAX;
        }
        None
    }
}

/// Returns the bits above the `node` bit in its mask word.
#[inline]
const fn bits_above(node: NodeId) -> u64 {
    (u64::MAX - 1) << (node.index() % 64)
}

/// Whether `node` is in the mask whose words `usable` returns.
#[inline]
pub(crate) fn is_in(node: NodeId, usable: impl Fn(usize) -> u64) -> bool {
    usable(node.index() / 64) >> (node.index() % 64) & 1 != 0
}

impl<'w, P: Platform> Policy<'w, P> {
    fn new(mode: Mode, nodes: NodeMask) -> Self {
        let near = if mode == Mode::Interleave { NodeMask::EMPTY } else { nodes };
        let turns = (mode == Mode::Interleave).then(|| Turns {
            last: core::array::from_fn(|_| Line(P::U32::new(0))),
            nodes: nodes.len(),
            words: nodes.words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1),
        });
        Self { mode, nodes, weights: None, order: &[], near, turns }
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

    /// Returns the number of consecutive requests that a node in the policy serves.
    #[inline(always)]
    fn weight(&self, node: NodeId) -> u8 {
        self.weights.map_or(1, |weights| weights.get(node))
    }

    /// Returns the turn after the last one on `cpu`, among the usable nodes.
    #[inline(always)]
    fn turn_after_last(&self, cpu: CpuId, usable: impl Fn(usize) -> u64) -> Option<NodeTurn> {
        let turns = self.turns.as_ref()?;
        let last = turns.last(cpu);
        if let Some(last) = last
            && last.number() < self.weight(last.node())
            && is_in(last.node(), &usable)
        {
            return NodeTurn::new(last.node(), last.number() + 1);
        }
        let mut after = last.map(NodeTurn::node);
        for _ in 0..turns.nodes {
            let node = turns.node_after(after, &self.nodes, &usable)?;
            if self.weight(node) > 0 {
                return NodeTurn::new(node, 1);
            }
            after = Some(node);
        }
        None
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

    fn next_turn(&self, cpu: CpuId) -> Option<NodeTurn> {
        let turns = self.turns.as_ref()?;
        if let Some(last) = turns.last(cpu) {
            let (number, node) = (last.number(), last.node());
            if number < self.weight(node) {
                return NodeTurn::new(node, number + 1);
            }
            // The next node is nearly always in the same word of the mask.
            let word = self.nodes.words[node.index() / 64];
            let above = word & bits_above(node);
            let found = if above == 0 && turns.words == 1 { word } else { above };
            let next = NodeId::from_index(node.index() / 64 * 64 + found.trailing_zeros() as usize % 64);
            if found != 0 && self.weight(next) > 0 {
                return NodeTurn::new(next, 1);
            }
        }
        self.turn_after_last(cpu, |_| u64::MAX)
    }

    fn next_usable_turn(&self, cpu: CpuId, usable: &dyn Fn(usize) -> u64) -> Option<NodeTurn> {
        self.turn_after_last(cpu, usable)
    }

    fn target(&self, cpu: CpuId, usable: &dyn Fn(usize) -> u64, turn: Turn) -> Option<NodeId> {
        let last = self.turns.as_ref()?.last(cpu);
        let last = last.filter(|last| turn == Turn::Last && is_in(last.node(), usable));
        let found = last.or_else(|| self.turn_after_last(cpu, usable))?;
        if turn == Turn::Next {
            self.use_turn(cpu, found);
        }
        Some(found.node())
    }

    fn use_turn(&self, cpu: CpuId, turn: NodeTurn) {
        if let Some(turns) = &self.turns {
            turns.last[cpu.index() % TURN_CELLS].0.store(turn.0.get(), Relaxed); // relaxed: as in `Turns::last`
        }
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

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::testing::Native;

    fn node(id: u16) -> NodeId {
        NodeId::new(id).unwrap()
    }

    fn served(policy: &Policy<'_, Native>, cpu: u32, usable: &NodeMask, count: usize) -> Vec<u16> {
        let next = || policy.target(CpuId::new(cpu), &|at| usable.words[at], Turn::Next);
        (0..count).map_while(|_| next()).map(NodeId::get).collect()
    }

    #[test]
    fn turns_go_round_the_usable_nodes_on_each_cpu() {
        let nodes: NodeMask = [3, 63, 64, 1023].map(node).into_iter().collect();
        let policy = Policy::<Native>::new(Mode::Interleave, nodes);
        assert_eq!(served(&policy, 0, &NodeMask::ALL, 6), [3, 63, 64, 1023, 3, 63]);
        assert_eq!(served(&policy, 1, &NodeMask::ALL, 2), [3, 63], "each CPU has turns of its own");
        let usable = [0, 63, 1023].map(node).into_iter().collect();
        assert_eq!(served(&policy, 0, &usable, 4), [1023, 63, 1023, 63]);
        assert_eq!(served(&policy, 0, &NodeMask::EMPTY, 1), []);
        let all = |at: usize| NodeMask::ALL.words[at];
        let target = |turn| policy.target(CpuId::new(0), &all, turn);
        assert_eq!(
            [Turn::Last, Turn::Upcoming, Turn::Upcoming].map(target),
            [63, 64, 64].map(|id| Some(node(id)))
        );
    }

    #[test]
    fn turns_that_may_use_all_nodes_are_those_that_may_use_any() {
        let weights = WeightTable::new();
        for (id, weight) in [(0, 3), (1, 0), (2, 1), (64, 2), (65, 0)] {
            weights.set(node(id), weight);
        }
        let sets: [&[u16]; 4] = [&[0], &[0, 1, 2], &[1, 2, 64, 65], &[65]];
        for (nodes, table) in sets.iter().flat_map(|set| [(set, None), (set, Some(&weights))]) {
            let nodes = nodes.iter().copied().map(node).collect();
            let policy = Policy { weights: table, ..Policy::<Native>::new(Mode::Interleave, nodes) };
            for _ in 0..20 {
                let next = policy.next_turn(CpuId::new(5));
                assert_eq!(next, policy.next_usable_turn(CpuId::new(5), &|_| u64::MAX));
                next.into_iter().for_each(|turn| policy.use_turn(CpuId::new(5), turn));
            }
        }
    }

    #[test]
    fn changed_weights_apply_to_the_next_turn() {
        let weights = WeightTable::new();
        let nodes = [0, 1].map(node).into_iter().collect();
        let policy = Policy { weights: Some(&weights), ..Policy::<Native>::new(Mode::Interleave, nodes) };
        [3, 1].into_iter().zip([0, 1]).for_each(|(weight, id)| weights.set(node(id), weight));
        assert_eq!(served(&policy, 0, &NodeMask::ALL, 6), [0, 0, 0, 1, 0, 0]);
        weights.set(node(0), 0);
        assert_eq!(served(&policy, 0, &NodeMask::ALL, 3), [1, 1, 1]);
        weights.set(node(1), 0);
        assert_eq!(served(&policy, 0, &NodeMask::ALL, 3), []);
    }
}
