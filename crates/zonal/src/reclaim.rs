//! Reclaim: who can give frames back, and when they are asked.
//!
//! *Background* reclaim works for a node until its zones are above `high`; *direct* reclaim works
//! for one request in its own context; *node* reclaim works for one nearby zone before a scan goes
//! on. Reclaimers run outside every lock; what they allocate meanwhile is served from the reserve.
//! Source of node reclaim's rules: Gorman 2011, Linux 76d3fbf8fbf6. Neighbours: `slow_path.rs`,
//! `scan.rs`.

use crate::Allocator;
use crate::counters::NodeItem;
use crate::events::Event;
use crate::platform::Platform;
use crate::reach::Reach;
use crate::slow_path::{IDLE_ROUNDS, reclaim_target};
use crate::units::{NodeId, PageCount};
use crate::zone::Zone;
use crate::zonelist_cache::OrderClasses;

/// Someone who holds frames and can give some back: a cache's shrinker.
///
/// Called outside every lock, by a requester (direct and node reclaim) or by the embedder's
/// background worker. What it frees, it frees through the allocator as usual. Linux: `struct shrinker`.
pub trait Reclaimer: Sync {
    /// Frames of `node` it could give up now.
    fn count(&self, node: NodeId) -> PageCount;
    /// Tries to free `target` frames of `node`; gives how many it freed.
    fn reclaim(&self, node: NodeId, target: PageCount) -> PageCount;
}

/// The reclaimer of an embedder that has none.
#[derive(Clone, Copy, Debug)]
pub struct NoReclaimer;

impl Reclaimer for NoReclaimer {
    fn count(&self, _node: NodeId) -> PageCount {
        PageCount::ZERO
    }

    fn reclaim(&self, _node: NodeId, _target: PageCount) -> PageCount {
        PageCount::ZERO
    }
}

/// How node reclaim of a zone went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeReclaimOutcome {
    /// Not tried: the caller may not, or somebody else is at it.
    NoScan,
    /// Not tried: too little to give up.
    Full,
    /// Freed less than the request needs, nothing included.
    Some,
    /// Freed what the request needs.
    Success,
}

/// A caller that is reclaiming, until dropped; its own requests act as reserve ones.
struct Reclaiming<'p, P: Platform>(&'p P);

impl<'p, P: Platform> Reclaiming<'p, P> {
    fn begin(platform: &'p P) -> Self {
        platform.set_reclaiming(true);
        Self(platform)
    }
}

impl<P: Platform> Drop for Reclaiming<'_, P> {
    fn drop(&mut self) {
        self.0.set_reclaiming(false);
    }
}

/// A background worker that is awake, until dropped; its node's counters are exact meanwhile.
struct Awake<'a, 'm, P: Platform> {
    allocator: &'a Allocator<'m, P>,
    place: usize,
}

impl<P: Platform> Drop for Awake<'_, '_, P> {
    fn drop(&mut self) {
        self.allocator.nodes[self.place].background_ends();
        self.allocator.pressure_ends(self.place);
    }
}

/// Zones whose pagesets are held down while they are reclaimed, until dropped.
struct HeldDown<'z, 'm, P: Platform>(&'z [Zone<'m, P>]);

impl<'z, 'm, P: Platform> HeldDown<'z, 'm, P> {
    fn begin(zones: &'z [Zone<'m, P>]) -> Self {
        zones.iter().for_each(Zone::reclaim_begins);
        Self(zones)
    }
}

impl<P: Platform> Drop for HeldDown<'_, '_, P> {
    fn drop(&mut self) {
        self.0.iter().for_each(Zone::reclaim_ends);
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Reclaims `node` until each of its zones has more than `watermarks.high` free or nothing more
    /// comes. Called by the embedder's worker after
    /// [`wake_background_reclaim`](Platform::wake_background_reclaim). Gives the frames freed; zero
    /// when another worker is at it.
    pub fn background_reclaim(&self, node: NodeId) -> PageCount {
        let Some(place) = self.place_of(node) else { return PageCount::ZERO };
        let node = &self.nodes[place];
        if !node.background_begins() {
            return PageCount::ZERO;
        }
        let _awake = Awake { allocator: self, place };
        self.pressure_begins(place);
        let freed = self.reclaim_to_high(place);
        node.counters.add_total(NodeItem::ReclaimedBackground, freed.get() as i64);
        node.events.add(Event::BackgroundReclaimed, freed.get());
        if freed == PageCount::ZERO {
            node.note_fruitless();
        }
        freed
    }

    /// Rounds of reclaim, as long as they help: those after which as much is missing as before
    /// count as idle, whatever the reclaimer says.
    fn reclaim_to_high(&self, place: usize) -> PageCount {
        let node = &self.nodes[place];
        let mut total = PageCount::ZERO;
        let (mut least, mut idle) = (PageCount::new(u64::MAX), 0);
        loop {
            let missing: PageCount = self.node_zones(place).iter().map(missing_to_high).sum();
            idle = if missing < least { 0 } else { idle + 1 };
            least = least.min(missing);
            if missing == PageCount::ZERO || idle == IDLE_ROUNDS {
                return total;
            }
            node.events.add(Event::BackgroundRounds, 1);
            let freed = self.reclaim_node(place, missing.max(reclaim_target(crate::units::Order::PAGE)));
            total = total.plus(freed);
            if freed == PageCount::ZERO {
                return total;
            }
        }
    }

    /// Asks the reclaimers for frames of one node. What they claim beyond the node's frames is no number to
    /// reckon with.
    fn reclaim_node(&self, place: usize, target: PageCount) -> PageCount {
        let zones = self.node_zones(place);
        let freed = {
            let _held_down = HeldDown::begin(zones);
            let _reclaiming = Reclaiming::begin(&self.platform);
            self.platform.reclaimer().reclaim(self.nodes[place].id, target)
        };
        let freed = freed.min(zones.iter().map(Zone::managed).sum());
        self.nodes[place].note_reclaimed(freed);
        if freed != PageCount::ZERO {
            // What was freed lies in the pagesets of this CPU; watermarks look at the zones.
            if let Some(seat) = self.current_seat() {
                zones.iter().for_each(|zone| self.drain_seat(zone, seat));
            }
        }
        freed
    }

    /// One round of direct reclaim for a request; gives the frames freed.
    pub(crate) fn direct_reclaim(&self, reach: &Reach<'_>) -> PageCount {
        let (events, start) = (self.nodes[reach.target].events, self.platform.now());
        let target = reclaim_target(reach.order);
        let mut freed = PageCount::ZERO;
        let in_reach = self.nodes_in_reach(reach);
        for step in 0..self.nodes.len() {
            // From the target on, so that requests of different nodes do not all start at one.
            let place = (reach.target + step) % self.nodes.len();
            let node = &self.nodes[place];
            if !in_reach.contains(node.id) {
                continue;
            }
            let came = self.reclaim_node(place, target.saturating_minus(freed));
            if came != PageCount::ZERO {
                node.counters.add_total(NodeItem::ReclaimedDirect, came.get() as i64);
                self.reconsider(place, reach.target);
            }
            freed = freed.plus(came);
            if freed >= target {
                break;
            }
        }
        events.add(Event::DirectStalls, 1);
        events.add(Event::DirectReclaimed, freed.get());
        events.add(Event::DirectNs, self.platform.now().ns_since(start));
        freed
    }

    /// Clears marks after direct reclaim freed frames of the node at `place`, where the cache knows that
    /// rule (M3): as published all marks of the requester's list, else those of the node's zones in all
    /// lists.
    fn reconsider(&self, place: usize, target: usize) {
        match self.zonelist_cache() {
            mode if !mode.reconsiders() => {}
            mode if mode.is_published_form() => self.nodes[target].list.full.wipe(),
            _ => self.node_zones(place).iter().for_each(|zone| self.clear_marks(zone, OrderClasses::ALL)),
        }
    }

    /// Node reclaim of a zone below its mark.
    pub(crate) fn node_reclaim(&self, zone: &Zone<'m, P>, reach: &Reach<'_>) -> NodeReclaimOutcome {
        let outcome = self.try_node_reclaim(zone, reach);
        let event = match outcome {
            NodeReclaimOutcome::NoScan => Event::NodeReclaimNoScan,
            NodeReclaimOutcome::Full => Event::NodeReclaimFull,
            NodeReclaimOutcome::Some => Event::NodeReclaimSome,
            NodeReclaimOutcome::Success => Event::NodeReclaimSuccess,
        };
        self.nodes[reach.target].events.add(event, 1);
        outcome
    }

    fn try_node_reclaim(&self, zone: &Zone<'m, P>, reach: &Reach<'_>) -> NodeReclaimOutcome {
        let node = &self.nodes[zone.node];
        let managed: PageCount = self.node_zones(zone.node).iter().map(Zone::managed).sum();
        let unworthy = managed.get() * u64::from(self.min_unmapped_percent) / 100;
        if self.platform.reclaimer().count(node.id).get() <= unworthy {
            return NodeReclaimOutcome::Full;
        }
        if !reach.may_reclaim || (node.cpus_online() > 0 && reach.from != zone.node) {
            return NodeReclaimOutcome::NoScan;
        }
        let Some(_turn) = node.try_reclaim_turn() else { return NodeReclaimOutcome::NoScan };
        let freed = self.reclaim_node(zone.node, reclaim_target(reach.order));
        node.counters.add_total(NodeItem::ReclaimedNode, freed.get() as i64);
        if freed >= reach.order.pages() { NodeReclaimOutcome::Success } else { NodeReclaimOutcome::Some }
    }

    /// The zones of the node at a place.
    pub(crate) fn node_zones(&self, place: usize) -> &'m [Zone<'m, P>] {
        let node = &self.nodes[place];
        &self.zones[node.first_zone..][..node.zone_count]
    }
}

/// Frames a zone lacks to have more than `watermarks.high` free.
fn missing_to_high<P: Platform>(zone: &Zone<'_, P>) -> PageCount {
    let wanted = zone.watermarks().high.plus(PageCount::new(1));
    if zone.managed() == PageCount::ZERO { PageCount::ZERO } else { wanted.saturating_minus(zone.free()) }
}
