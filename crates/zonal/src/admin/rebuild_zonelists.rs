//! Rebuilds all zonelists from the fallback order of nodes.
//!
//! Related files: `rules/fallback_order.rs` contains the rule, `zonelist/mod.rs` defines the lists, and
//! `admin/hotplug.rs` and
//! `ranges/fences.rs` start a rebuild when memory comes and goes.

use core::sync::atomic::Ordering::Relaxed;

use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::rules::fallback_order::{Accumulate, FallbackNodes, FallbackRules, fallback_order};
use crate::units::{MAX_NODES, PageCount};
use crate::zone::Zone;

/// The machine as input of the fallback rule.
struct Nodes<'a, 'm, P: Platform>(&'a MachineState<'m, P>);

impl<P: Platform> FallbackNodes for Nodes<'_, '_, P> {
    fn len(&self) -> usize {
        self.0.nodes.len()
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        self.0.distance(from, to)
    }

    fn has_memory(&self, node: usize) -> bool {
        self.0.memory_nodes().contains(self.0.nodes[node].id)
    }

    fn has_cpus(&self, node: usize) -> bool {
        self.0.nodes[node].has_cpus
    }

    fn is_online(&self, _node: usize) -> bool {
        true
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the distance between two nodes, by index.
    pub(crate) fn distance(&self, from: usize, to: usize) -> u8 {
        self.distances[from * self.nodes.len() + to]
    }

    /// Writes every zonelist from the memory that is online. The function uses about 10 KiB of stack.
    pub(super) fn write_lists(&self, _held: &Held<'_, P::Lock>) {
        let with_memory =
            self.nodes.iter().enumerate().filter(|&(at, _)| self.zones_downwards(at).next().is_some());
        let mask: NodeMask = with_memory.map(|(_, node)| node.id).collect();
        for (cell, &word) in self.shared.memory_nodes.0.iter().zip(&mask.words) {
            cell.store(word, Relaxed); // relaxed: see `MachineState::memory_nodes`
        }
        let rules = FallbackRules {
            load: self.config().past.load_rule(self.config().node_load).unwrap_or(&Accumulate), // refused at creation
            cpu_penalty: self.config().cpu_penalty,
        };
        let (mut load, mut order) = ([0_u64; MAX_NODES], [0_u16; MAX_NODES]);
        self.lists.rebuild(|from, list| {
            let len = fallback_order(from, &Nodes(self), &rules, &mut load, &mut order);
            let zones = order[..len].iter().flat_map(|&at| self.zones_downwards(usize::from(at)));
            self.nodes[from].set_preferred_zone(zones.clone().next().map(|zone| zone.id));
            list.write(zones.map(|zone| (zone.id, zone.node_id, zone.kind)));
        });
    }

    /// Rebuilds every zonelist, and makes all CPUs use their preferred zones of the new lists.
    ///
    /// Scans in progress continue with the lists that they started with.
    pub(crate) fn rebuild_lists(&self, held: &Held<'_, P::Lock>) {
        self.write_lists(held);
        // In this order: a request that holds another zone's pageset may make its CPU use it meanwhile. The CPU then returns here,
        // or later, because the pageset is marked as serving for another zone. A session that marks its pageset later finds
        // the new preferred zone before it ends, and removes the mark if it is its own (`PagesetSession::update_limits`).
        self.end_serving_for_others();
        self.local_cpus().for_each(|&cpu| self.serve_from_preferred(cpu));
    }

    /// Returns the zones with memory of the node with index `node`, in the order of `zones_by_preference`.
    fn zones_downwards(&self, node: usize) -> impl Iterator<Item = &'m Zone<'m, P>> + Clone {
        let zones = self.zones_by_preference(node);
        zones.filter(|zone| zone.managed() != PageCount::ZERO)
    }
}
