//! Routes: which pageset of the current CPU serves a request, and which of its stacks.
//!
//! A request is served from the zone at which a scan of its zonelist would begin. That is the *preferred* zone of the CPU's
//! node, the *nearest* zone that the cpuset or the binding policy allows, or the preferred zone of the node whose *turn* it is
//! under an interleaving policy. While the preferred zone is full, it is the *serving* zone: the first zone without a full bit.
//! Later rungs (`alloc/mod.rs`) get the route and need none of these rules. Related files: `request/policy.rs` has the
//! turns, `zonelist/nearest_zones.rs` remembers nearest zones, `zonelist/full_cache.rs` has the full bits (M1).

use core::sync::atomic::Ordering::Relaxed;

use crate::config::ZonelistCache;
use crate::node_mask::NodeMask;
use crate::pageset::StackId;
use crate::pageset::state::MachineState;
use crate::platform::pageset_slot::PagesetSlot;
use crate::platform::pageset_word::POP_STEPS;
use crate::platform::{Atomic, Platform};
use crate::request::Request;
use crate::request::policy::{Mode, NodeTurn, RequestPolicy, is_in};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{CpuId, Order, Pfn, ZoneId, ZoneKind};
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::AllowedNodes;
use crate::zonelist::candidates::Candidates;
use crate::zonelist::full_cache::ScanClass;

/// The pageset that serves a request.
pub(super) struct Route<'m, P: Platform> {
    /// The current CPU, to which the pageset belongs.
    pub(super) cpu: CpuInfo,
    pub(super) zone: ZoneId,
    /// The pageset's slot, if one committing step may pop from it.
    pub(super) slot: Option<&'m PagesetSlot<'m, P>>,
    /// The stack that caches blocks of the request's order; `None` if the buddy serves the request.
    pub(super) stack: Option<StackId>,
    pub(super) role: Role,
}

/// Why a zone serves a request.
#[derive(Clone, Copy)]
pub(super) enum Role {
    /// It is the preferred zone of the CPU's node.
    Preferred,
    /// It is the nearest zone on the allowed nodes.
    Nearest,
    /// It is the preferred zone of the node whose turn it is. The turn is used only if the pageset serves the request.
    InTurn(NodeTurn),
    /// It is the first zone without a full bit, while this preferred zone is full.
    ServingFor(ZoneId),
}

impl<P: Platform> Route<'_, P> {
    /// Whether the request chose the zone, by its cpuset or its policy.
    #[inline(always)]
    pub(super) const fn is_beside(&self) -> bool {
        matches!(self.role, Role::Nearest | Role::InTurn(_))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the route of a request to the CPU's slot, if it has frames, or to the pageset that the request chose: that of the
    /// node whose turn it is, or of the nearest zone.
    #[inline(always)]
    pub(super) fn route_to_slot(&self, request: &Request<'_>) -> Option<Route<'m, P>> {
        if !request.may_pop() {
            return None;
        }
        let cpu = self.current_cpu_info()?;
        if P::RESTRICTS && request.is_in_turn() {
            return self.route_in_turn(request, cpu);
        }
        let in_use = |slot: &&PagesetSlot<'m, P>| slot.slots_at != 0 && request.accepts_slot(slot);
        let Some(slot) = self.slots.of(cpu.id).filter(in_use) else {
            let chooses_nodes = P::RESTRICTS && (request.allowed.is_some() || request.near.is_some());
            return if chooses_nodes { self.route_to_nearest(request, cpu) } else { None };
        };
        let (stack, has) = match request.flags.order {
            Order::PAGE => (StackId::PAGES, slot.has_frames()),
            order => {
                let stack = self.cached.stack(order)?;
                (stack, self.pagesets[slot.zone.index()].of(cpu).has(stack))
            }
        };
        let (zone, slot, stack) = (slot.zone, Some(slot), Some(stack));
        has.then_some(Route { cpu, zone, slot, stack, role: Role::Preferred })
    }

    /// Returns the route of a request for which [`Self::route_to_slot`] finds none, or `None` if only the slow path may serve it.
    ///
    /// Its zone is the preferred zone, whose pageset is refilled, or the serving zone.
    pub(super) fn route_by_zone(&self, request: &Request<'_>) -> Option<Route<'m, P>> {
        if !request.may_pop() || request.is_in_turn() {
            return None;
        }
        let (order, cpu) = (request.flags.order, self.current_cpu_info()?);
        let zone = &self.zones[self.nodes[usize::from(cpu.node)].preferred_zone()?];
        if !request.accepts_zone(zone, cpu) {
            return None;
        }
        let route = |zone: &Zone<'m, P>, stack, role| Route { cpu, zone: zone.id, slot: None, stack, role };
        Some(match self.cached.stack(order) {
            Some(stack) if self.pagesets_of(zone).of(cpu).has(stack) => {
                route(zone, Some(stack), Role::Preferred)
            }
            Some(stack) if !stack.is_middle() => match self.serving_zone(request, stack, zone, cpu) {
                None => route(zone, Some(stack), Role::Preferred),
                Some(serving) => {
                    let slot = self.slot_of(serving, cpu).filter(|_| stack == StackId::PAGES);
                    Route { slot, ..route(serving, Some(stack), Role::ServingFor(zone.id)) }
                }
            },
            _ => route(zone, None, Role::Preferred),
        })
    }

    /// Returns the zone whose pageset has a block for the request on the current CPU.
    pub(super) fn zone_without_scan(&self, request: &Request<'_>) -> Option<&Zone<'m, P>> {
        let cpu = self.current_cpu_info()?;
        if request.flags.order == Order::PAGE
            && request.may_pop_current()
            && let Some(slot) = self.slots.of(cpu.id)
            && (request.is_plain() || request.accepts_slot(slot))
            && slot.allows_pop(POP_STEPS[request.flags.kind as usize])
        {
            return Some(&self.zones[slot.zone.index()]);
        }
        let route = self.route_to_slot(request).or_else(|| self.route_by_zone(request))?;
        let pageset = self.pagesets[route.zone.index()].of(route.cpu);
        let serves = match route.stack {
            Some(stack) => pageset.has(stack) && !(route.is_beside() && pageset.serves_for_another()),
            None => self.zones[route.zone.index()].has_owned(route.cpu, request.flags.order),
        };
        serves.then(|| &self.zones[route.zone.index()])
    }

    /// Returns the route to the CPU's pageset of the node whose turn it is.
    #[inline(always)]
    fn route_in_turn(&self, request: &Request<'_>, cpu: CpuInfo) -> Option<Route<'m, P>> {
        let (policy, allowed) = (request.policy?, request.allowed);
        // Urgent requests ignore cpusets, but not those of a caller that is reclaiming.
        if allowed.is_some() && request.flags.urgency == Urgency::Atomic {
            return None;
        }
        let mut turn = policy.next_turn(cpu.id)?;
        if !is_in(turn.node(), |at| self.usable(allowed, at)) {
            turn = self.next_usable_turn(policy, allowed, cpu.id)?;
        }
        let node = turn.node();
        let zone = ZoneId::from_index(self.nodes[self.place_of(node)?].preferred_zone()?);
        let slot = self.slots.at(cpu.index, zone)?;
        // A pageset that serves for another zone counts its blocks as misses.
        let suits = slot.kind <= request.flags.zone_limit && slot.node == node && slot.is_preferred();
        let (slot, stack) = (Some(slot), Some(StackId::PAGES));
        suits.then_some(Route { cpu, zone, slot, stack, role: Role::InTurn(turn) })
    }

    #[cold]
    #[inline(never)]
    fn next_usable_turn(
        &self,
        policy: &dyn RequestPolicy,
        allowed: Option<&NodeMask>,
        cpu: CpuId,
    ) -> Option<NodeTurn> {
        policy.next_usable_turn(cpu, &|at| self.usable(allowed, at))
    }

    /// Returns a word of the mask with all nodes that have memory and that the cpuset allows.
    #[inline]
    fn usable(&self, allowed: Option<&NodeMask>, at: usize) -> u64 {
        let memory = self.shared.memory_nodes.0[at].load(Relaxed); // relaxed: as in `memory_nodes`
        memory & allowed.map_or(u64::MAX, |nodes| nodes.words[at])
    }

    /// Uses the turn of the route, and counts the block that the pageset served.
    #[inline(always)]
    pub(super) fn count_turn(&self, route: &Route<'m, P>, request: &Request<'_>) {
        if P::RESTRICTS
            && let (Role::InTurn(turn), Some(slot)) = (route.role, route.slot)
            && let Some(policy) = request.policy
        {
            policy.use_turn(route.cpu.id, turn);
            self.count_interleave_hit(route.zone, slot.head);
        }
    }

    /// Returns the route to the CPU's pageset for the nearest zone on the request's nodes.
    #[inline(always)]
    fn route_to_nearest(&self, request: &Request<'_>, cpu: CpuInfo) -> Option<Route<'m, P>> {
        if self.past_scan().is_some_and(|form| !form.tries_nearest()) {
            return None; // the scan may skip this zone
        }
        // Urgent requests ignore cpusets, but not those of a caller that is reclaiming.
        let follows = request.allowed.is_none() || request.flags.urgency != Urgency::Atomic;
        if !follows || request.is_strict() || request.flags.order != Order::PAGE || !request.may_pop_current()
        {
            return None;
        }
        let nodes = match request.policy {
            None => AllowedNodes::new(request.allowed?, None),
            Some(policy) if policy.mode() == Mode::Bind => AllowedNodes::new(policy.nodes(), request.allowed),
            Some(_) => return None, // another rule chooses the first node
        };
        let limit = request.flags.zone_limit;
        let zone = match self.nearest.recall(cpu.index, limit, self.lists.version(), &nodes) {
            Some(zone) => zone,
            None => self.look_up(limit, nodes, cpu)?,
        };
        // A pageset that serves for another zone counts its blocks as misses.
        let slot = self.slots.at(cpu.index, zone).filter(|slot| slot.is_preferred());
        Some(Route { cpu, zone, slot, stack: Some(StackId::PAGES), role: Role::Nearest })
    }

    /// Finds the nearest zone in the CPU's zonelist, and records it.
    #[cold]
    fn look_up(&self, limit: ZoneKind, nodes: AllowedNodes<'_>, cpu: CpuInfo) -> Option<ZoneId> {
        // Read before the list: the record of a list that is newer than its version is never used.
        let (version, mut listed) = (self.lists.version(), None);
        let filter = Some((nodes, nodes.len(), &mut listed));
        let (_, zone) = Candidates::new(&self.lists, cpu.node.into(), limit, filter).next(0, None).ok()??;
        self.nearest.record_zone(cpu.index, limit, version, &nodes, zone);
        Some(zone)
    }

    /// Returns the zone that serves instead of `preferred`, whose pageset has no block: the nearest zone without a full bit, if
    /// `preferred` has its full bit set and still fails its watermark.
    ///
    /// Returns `None` in all cases in which a scan would set or clear full bits, or reclaim. The serving zone's
    /// watermark is not checked, because it was checked when the frames in the pageset left the zone (docs/decisions/0003).
    #[inline(never)]
    fn serving_zone(
        &self,
        request: &Request<'_>,
        stack: StackId,
        preferred: &Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<&Zone<'m, P>> {
        let (order, urgency, limit) = (request.flags.order, request.flags.urgency, request.flags.zone_limit);
        let mode = self.shared.zonelist_cache();
        if mode == ZonelistCache::Off || !request.may_pass(stack) {
            return None;
        }
        let form = self.past_scan();
        let class = ScanClass::of(form, order, Watermark::Low, urgency, limit);
        let full = self.lists.full(cpu.node.into());
        let reserve = urgency == Urgency::Reserve || self.platform.is_reclaiming();
        // Relaxed: full bits are hints.
        if full.bitmap(class)[0].load(Relaxed) & 1 == 0
            || reserve
            || self.shared.node_reclaim().is_on()
            || full.age(self.platform.now()).is_none()
        {
            return None;
        }
        // With `ZonelistCache::On`, a free that lifts a zone above its watermark clears the zone's full bit at once. An
        // approximate count that is too low therefore cannot hide the zone for long, so this count, which costs one
        // load, decides first. The exact count is read only if the approximate count allows the request.
        let allows = |free| {
            preferred.watermarks().allow(free, order, Watermark::Low, urgency, preferred.reserve(limit))
        };
        if (form.is_some() || allows(preferred.free_approximate())) && allows(preferred.free()) {
            return None;
        }
        let (_, zone) = Candidates::new(&self.lists, cpu.node.into(), limit, None)
            .next(1, Some(full.bitmap(class)))
            .ok()??;
        Some(&self.zones[zone.index()])
    }

    /// Returns the zone whose span holds `first` and, if one committing step may push the block, the CPU's slot: for a single
    /// frame that of the zone. Returns `None` if no zone spans the frame.
    ///
    /// The zone of the CPU's slot, whose single frames take another way, and the nearest zone of its cpuset are found without a
    /// search.
    #[inline(always)]
    pub(super) fn route_of_free(
        &self,
        cpu: Option<CpuInfo>,
        first: Pfn,
        order: Order,
    ) -> Option<(&Zone<'m, P>, Option<&'m PagesetSlot<'m, P>>)> {
        let Some(cpu) = cpu else {
            return Some((self.zone_of(first)?, None));
        };
        let spans = |zone: &&Zone<'m, P>| zone.span.contains_frame(first);
        if order != Order::PAGE {
            // CPUs have no slots if freed blocks must be poisoned or quarantined.
            let slot = self.slots.of(cpu.id).filter(|slot| slot.slots_at != 0);
            let zone = slot.map(|slot| &self.zones[slot.zone.index()]).filter(spans);
            let zone = zone.or_else(|| self.zone_of(first))?;
            return Some((zone, slot));
        }
        let nearest = self.nearest.last_zone(cpu.index).and_then(|zone| self.zones.get(zone.index()));
        let zone = nearest.filter(spans).or_else(|| self.zone_of(first))?;
        // While a CPU is served elsewhere, a frame of its preferred zone must make it use that zone's pageset again. Such frames
        // therefore take the lock.
        let is_preferred = self.nodes[usize::from(cpu.node)].preferred_zone() == Some(zone.id.index());
        let slot = if is_preferred { None } else { self.slots.at(cpu.index, zone.id) };
        Some((zone, slot))
    }
}
