//! The memory policies of an executor: every mode, over several sets of nodes.

use zonal::mempolicy::{Policy, WeightTable};
use zonal::platform::Platform;
use zonal::units::NodeId;
use zonal::{Allocator, NodeMask};

use super::model::Model;
use super::plan::{Plan, mask_of};
use super::platform::{Cells, ControlledPlatform};

/// The rule by which a policy selects the node at which a search starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// The node of the current CPU.
    Here,
    /// Always the same node.
    At(NodeId),
    /// One node after another, for successive requests.
    InTurn,
}

/// A policy and its expected behaviour.
pub(super) struct PolicyCase<'w, 'm, C: Cells> {
    pub(super) policy: Policy<'w, ControlledPlatform<'m, C>>,
    pub(super) start: Start,
    /// The nodes of the policy, or `None` for the local policy.
    pub(super) nodes: Option<NodeMask>,
    /// The nodes that have turns.
    pub(super) turns: NodeMask,
    /// Whether only the nodes of the policy may serve.
    pub(super) binds: bool,
    /// The nodes that must be tried first, in order.
    pub(super) order: &'w [NodeId],
}

/// Values that policies refer to, and that must outlive them.
pub(super) struct PolicyData<P: Platform> {
    weights: WeightTable<P>,
    /// Nodes in the orders of the policies that prefer several nodes.
    orders: Vec<Vec<NodeId>>,
}

impl<P: Platform> PolicyData<P> {
    /// Returns the weights and the orders of a machine: all nodes in descending order, these without the first, and
    /// the sets of the plan in descending order.
    pub(super) fn new(plan: &Plan) -> Self {
        let weights = WeightTable::new();
        let ids: Vec<NodeId> = plan.nodes.iter().filter_map(|&(node, _)| NodeId::new(node)).collect();
        for (at, &node) in ids.iter().enumerate() {
            let weight = plan.weights.get(at).copied();
            weights.set(node, weight.unwrap_or(3 - at as u8 % 3));
        }
        let mut orders: Vec<Vec<NodeId>> = vec![ids.clone(), ids[1..].to_vec()];
        orders.extend(plan.masks.iter().map(|&mask| mask_of(mask).iter().collect()));
        orders.iter_mut().for_each(|order| order.reverse());
        Self { weights, orders }
    }
}

/// All policies, of which the first is the local one.
pub struct Policies<'w, 'm, C: Cells> {
    all: Vec<PolicyCase<'w, 'm, C>>,
}

impl<'w, 'm, C: Cells> Policies<'w, 'm, C> {
    /// Creates policies over the nodes that have memory now.
    pub(super) fn new(
        allocator: &Allocator<'m, ControlledPlatform<'m, C>>,
        model: &Model,
        data: &'w PolicyData<ControlledPlatform<'m, C>>,
    ) -> Self {
        let PolicyData { weights, orders } = data;
        let local = PolicyCase {
            policy: Policy::local(),
            start: Start::Here,
            nodes: None,
            turns: NodeMask::EMPTY,
            binds: false,
            order: &[],
        };
        let mut all = vec![local];
        let ids: Vec<NodeId> = model.plan().nodes.iter().filter_map(|&(node, _)| NodeId::new(node)).collect();
        let mut sets = vec![ids.clone(), ids.iter().copied().skip(1).collect()];
        sets.extend(ids.iter().map(|&node| vec![node]));
        let of_mask = |mask: &u8| mask_of(*mask).iter().collect::<Vec<_>>();
        sets.extend(model.plan().masks.iter().map(of_mask).filter(|set| !set.is_empty()));
        for set in sets {
            let nodes = NodeMask::from_iter(set.iter().copied());
            let weighted = nodes.iter().filter(|&node| weights.get(node) > 0).collect();
            let mut add = |policy, start, turns, binds| {
                if let Ok(policy) = policy {
                    all.push(PolicyCase { policy, start, nodes: Some(nodes), turns, binds, order: &[] });
                }
            };
            add(Policy::bind(allocator, nodes), Start::Here, nodes, true);
            if let [only] = set[..] {
                add(Policy::preferred(allocator, only), Start::At(only), nodes, false);
            } else {
                add(Policy::interleave(allocator, nodes), Start::InTurn, nodes, false);
                add(Policy::weighted_interleave(allocator, nodes, weights), Start::InTurn, weighted, false);
            }
        }
        for order in orders {
            if let Ok(policy) = Policy::preferred_many(allocator, order) {
                let nodes = Some(order.iter().copied().collect());
                let (start, turns) = (Start::Here, NodeMask::EMPTY);
                all.push(PolicyCase { policy, start, nodes, turns, binds: false, order });
            }
        }
        Self { all }
    }

    /// Returns the policy with index `place`, modulo the number of policies.
    pub(super) fn at(&self, place: u8) -> &PolicyCase<'w, 'm, C> {
        &self.all[usize::from(place) % self.all.len()]
    }
}
