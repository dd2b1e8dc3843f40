//! What a request may use: from which CPU it comes, which list it walks, which zones may serve it.
//!
//! A [`Reach`] is a request resolved against the state of the machine. Vocabulary: the *target* is
//! the node whose zonelist is walked. Neighbours: `policy.rs` names nodes, `scan.rs` walks.

use crate::Allocator;
use crate::config::ZeroOn;
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::platform::Platform;
use crate::policy::Mode;
use crate::request::{PageKind, Request};
use crate::units::{NodeId, Order, ZoneKind};
use crate::watermarks::Urgency;
use crate::zone::{Seat, Zone};

/// A request, resolved.
pub(crate) struct Reach<'r> {
    pub(crate) order: Order,
    pub(crate) kind: PageKind,
    pub(crate) urgency: Urgency,
    pub(crate) limit: ZoneKind,
    /// Seat of the current CPU; one that does not exist, with that CPU's number, if the CPU is unknown or
    /// offline.
    pub(crate) seat: Option<Seat>,
    /// Place of the node the request comes from.
    pub(crate) from: usize,
    /// Place of the node whose list is walked.
    pub(crate) target: usize,
    /// Whether only the target may serve.
    pub(crate) strict: bool,
    /// Whether `target` was chosen by interleaving.
    pub(crate) interleaved: bool,
    /// Whether the caller is in a reclaimer's call.
    pub(crate) reclaiming: bool,
    pub(crate) may_reclaim: bool,
    pub(crate) may_retry: bool,
    /// Nodes a binding policy leaves.
    bound: Option<&'r NodeMask>,
    /// Nodes the request's cpuset leaves.
    allowed: Option<&'r NodeMask>,
    /// The nodes that both leave, when they are few.
    few: Option<FewNodes>,
}

/// Places of up to [`FewNodes::MOST`] nodes: so few that looking up each beats walking a long list.
#[derive(Clone, Copy)]
pub(crate) struct FewNodes {
    places: [u16; Self::MOST],
    len: usize,
}

impl FewNodes {
    const MOST: usize = 8;

    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + '_ {
        self.places[..self.len].iter().map(|&place| usize::from(place))
    }
}

impl Reach<'_> {
    /// Whether `zone` may serve the request.
    pub(crate) fn allows<P: Platform>(&self, zone: &Zone<'_, P>) -> bool {
        zone.kind <= self.limit
            && (!self.strict || zone.node == self.target)
            && self.allows_node(zone.node_id)
    }

    /// The nodes that may serve, when policy and cpuset leave only a few.
    pub(crate) const fn few_nodes(&self) -> Option<&FewNodes> {
        self.few.as_ref()
    }

    fn allows_node(&self, node: NodeId) -> bool {
        self.bound.is_none_or(|mask| mask.contains(node))
            && self.allowed.is_none_or(|mask| mask.contains(node))
    }
}

impl<P: Platform> Allocator<'_, P> {
    /// Resolves a request.
    pub(crate) fn resolve<'r>(&self, request: &Request<'r, P>) -> Result<Reach<'r>, AllocError> {
        if request.terms.order > self.max_order {
            return Err(AllocError::OrderTooLarge { order: request.terms.order, max: self.max_order });
        }
        if self.zeroes(request) && self.platform.contents().is_none() {
            return Err(AllocError::NoContents);
        }
        let reclaiming = self.platform.is_reclaiming();
        let urgency = if reclaiming { Urgency::Reserve } else { request.terms.urgency };
        let cpu = self.platform.current_cpu();
        let here = self.seat(cpu);
        let from = here.map_or(0, |seat| usize::from(seat.node));
        let mut reach = Reach {
            order: request.terms.order,
            kind: request.terms.kind,
            urgency,
            limit: request.terms.zone_limit,
            seat: here.filter(|&seat| self.is_online(seat)).or(Some(Seat::absent(cpu))),
            from,
            target: from,
            strict: request.is_strict(),
            interleaved: false,
            reclaiming,
            may_reclaim: request.may_wait() && !reclaiming,
            may_retry: request.may_retry(),
            bound: None,
            allowed: request.allowed.filter(|_| urgency != Urgency::Atomic),
            few: None,
        };
        if request.policy.is_some() || reach.allowed.is_some() {
            self.constrain(&mut reach, request)?;
            reach.few = self.few_nodes(reach.bound, reach.allowed);
        }
        Ok(reach)
    }

    /// Whether a block for this request is zeroed.
    pub(crate) fn zeroes(&self, request: &Request<'_, P>) -> bool {
        request.is_zeroed() || self.hardening.zero == ZeroOn::EveryAllocation
    }

    /// Applies policy and cpuset.
    fn constrain<'r>(&self, reach: &mut Reach<'r>, request: &Request<'r, P>) -> Result<(), AllocError> {
        let memory = self.memory_nodes();
        let usable = reach.allowed.map_or(memory, |mask| mask.intersection(&memory));
        let none = |mask: &NodeMask| if mask.is_empty() { Err(AllocError::NoNodeInPolicy) } else { Ok(()) };
        none(&usable)?;
        let Some(policy) = request.policy else { return Ok(()) };
        none(&policy.nodes.intersection(&memory))?;
        let target = match &policy.mode {
            Mode::Local => None,
            Mode::Preferred(node) => Some(*node),
            Mode::Bind => {
                none(&policy.nodes.intersection(&usable))?;
                reach.bound = Some(&policy.nodes);
                None
            }
            Mode::Interleave | Mode::Weighted(_) => {
                let node = policy.next_target(&usable);
                reach.interleaved = node.is_some();
                node
            }
        };
        if let Some(place) = target.and_then(|node| self.place_of(node)) {
            reach.target = place;
        }
        Ok(())
    }

    /// The nodes that `bound` and `allowed` leave, if they are few on a machine of many.
    fn few_nodes(&self, bound: Option<&NodeMask>, allowed: Option<&NodeMask>) -> Option<FewNodes> {
        if self.nodes.len() <= FewNodes::MOST || (bound.is_none() && allowed.is_none()) {
            return None;
        }
        let nodes = bound.unwrap_or(&NodeMask::ALL).intersection(allowed.unwrap_or(&NodeMask::ALL));
        let mut few = FewNodes { places: [0; FewNodes::MOST], len: 0 };
        for place in nodes.iter().filter_map(|node| self.place_of(node)) {
            *few.places.get_mut(few.len)? = place as u16;
            few.len += 1;
        }
        Some(few)
    }
}
