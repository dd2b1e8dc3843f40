//! The allocation context: which CPU a request comes from, which list it walks, which zones may serve it.
//!
//! An [`AllocContext`] is a request resolved against the state of the machine. Its *target* is the node whose zonelist
//! is walked. Neighbours: `alloc/mempolicy.rs` names nodes, `alloc/scan.rs` walks the list.

use crate::Allocator;
use crate::alloc::mempolicy::{Mode, Turn};
use crate::alloc::request::{PageKind, Request};
use crate::config::ZeroOn;
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::rules::watermarks::Urgency;
use crate::units::{NodeId, Order, ZoneKind};
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::allowed_nodes::AllowedNodes;

/// A resolved request.
pub(super) struct AllocContext<'r> {
    pub(super) order: Order,
    pub(super) kind: PageKind,
    pub(super) urgency: Urgency,
    pub(super) limit: ZoneKind,
    /// CPU info of the current CPU; an absent one with the CPU's number if the CPU is unknown or offline.
    pub(super) cpu: Option<CpuInfo>,
    /// Index of the node that the request comes from.
    pub(super) from: usize,
    /// Index of the node whose list is walked.
    pub(super) target: usize,
    /// Whether only the target may serve.
    pub(super) strict: bool,
    /// Whether `target` was chosen by interleaving.
    pub(super) interleaved: bool,
    /// Whether reclaimers may be called: the request may wait, and the caller is not inside a reclaimer's call.
    pub(super) may_reclaim: bool,
    pub(super) may_retry: bool,
    /// Nodes that the request's cpuset allows.
    pub(super) cpuset: Option<&'r NodeMask>,
    /// Nodes that a binding policy allows.
    bound: Option<&'r NodeMask>,
    /// Number of nodes with memory that both allow.
    nodes: usize,
}

impl<'r> AllocContext<'r> {
    /// Whether `zone` may serve the request.
    pub(super) fn allows<P: Platform>(&self, zone: &Zone<'_, P>) -> bool {
        zone.kind <= self.limit
            && (!self.strict || zone.node == self.target)
            && self.allows_node(zone.node_id)
    }

    /// Returns the nodes that may serve; `None` means all.
    #[inline]
    pub(super) fn nodes(&self) -> Option<AllowedNodes<'r>> {
        let first = self.bound.or(self.cpuset)?;
        let other = self.bound.and(self.cpuset);
        Some(AllowedNodes::new(first, other, self.nodes))
    }

    /// Whether a policy binds the request to nodes.
    pub(super) const fn is_bound(&self) -> bool {
        self.bound.is_some()
    }

    fn allows_node(&self, node: NodeId) -> bool {
        self.nodes().is_none_or(|nodes| nodes.contains(node))
    }
}

impl<P: Platform> Allocator<'_, P> {
    /// Resolves a request, taking the next turn of its policy.
    pub(super) fn resolve<'r>(&self, request: &Request<'r>) -> Result<AllocContext<'r>, AllocError> {
        self.resolve_in_turn(request, Turn::Next)
    }

    /// Resolves a request with the given turn of its policy.
    pub(super) fn resolve_in_turn<'r>(
        &self,
        request: &Request<'r>,
        turn: Turn,
    ) -> Result<AllocContext<'r>, AllocError> {
        if request.flags.order > self.max_order {
            return Err(AllocError::OrderTooLarge { order: request.flags.order, max: self.max_order });
        }
        if self.zeroes(request) && self.state.platform.contents().is_none() {
            return Err(AllocError::NoContents);
        }
        let reclaiming = self.state.platform.is_reclaiming();
        let urgency = if reclaiming { Urgency::Reserve } else { request.flags.urgency };
        let cpu = self.state.platform.current_cpu();
        let here = self.state.cpu_info(cpu);
        let from = here.map_or(0, |cpu| usize::from(cpu.node));
        let mut context = AllocContext {
            order: request.flags.order,
            kind: request.flags.kind,
            urgency,
            limit: request.flags.zone_limit,
            cpu: here.filter(|&cpu| self.state.is_online(cpu)).or(Some(CpuInfo::absent(cpu))),
            from,
            target: from,
            strict: request.is_strict(),
            interleaved: false,
            may_reclaim: request.may_wait() && !reclaiming,
            may_retry: request.may_retry(),
            cpuset: request.allowed.filter(|_| urgency != Urgency::Atomic),
            bound: None,
            nodes: 0,
        };
        if request.policy.is_some() || context.cpuset.is_some() {
            self.state.constrain(&mut context, request, turn)?;
        }
        Ok(context)
    }

    /// Whether the block for this request is zeroed.
    pub(super) fn zeroes(&self, request: &Request<'_>) -> bool {
        request.is_zeroed() || self.hardening.zero == ZeroOn::EveryAllocation
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Applies the policy and the cpuset.
    fn constrain<'r>(
        &self,
        context: &mut AllocContext<'r>,
        request: &Request<'r>,
        turn: Turn,
    ) -> Result<(), AllocError> {
        let memory = self.memory_nodes();
        let usable = context.cpuset.map_or(memory, |mask| mask.intersection(&memory));
        context.nodes = usable.len();
        let none = |mask: &NodeMask| if mask.is_empty() { Err(AllocError::NoNodeInPolicy) } else { Ok(()) };
        none(&usable)?;
        let Some(policy) = request.policy else { return Ok(()) };
        none(&policy.nodes().intersection(&memory))?;
        let target = match policy.mode() {
            Mode::Local => None,
            Mode::Preferred(node) => Some(node),
            Mode::Bind => {
                let nodes = policy.nodes().intersection(&usable);
                none(&nodes)?;
                (context.bound, context.nodes) = (Some(policy.nodes()), nodes.len());
                None
            }
            Mode::Interleave => {
                let node = policy.target(&usable, turn);
                context.interleaved = node.is_some();
                node
            }
        };
        if let Some(place) = target.and_then(|node| self.place_of(node)) {
            context.target = place;
        }
        Ok(())
    }
}
