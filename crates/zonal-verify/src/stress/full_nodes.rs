//! Experiments on a machine without other programs: nodes are filled to the watermark, and then local requests are
//! checked.
//!
//! A node is *filled* by requests that only this node may serve, until none succeeds. The free frames of its zones must
//! then be at `min`, neither above nor below it. Afterwards some of the filled nodes are freed. Once a second has
//! passed, no full bit of the zonelist cache may hide these nodes.
//!
//! Related files: `pause.rs` calls these experiments.

use fastrand::Rng;
use zonal::request::PageKind;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{NodeId, Order, PageCount, ZoneKind};
use zonal::{NodeMask, Policy, Request};
use zonal_lab::sim::Time;

use super::round::one_of;
use super::world::{Cpu, Held, World};

/// A time longer than the second for which a full bit is valid.
const SECOND_AND_MORE: Time = Time::from_ps(1_001_000_000_000);
/// Safety margin in frames: a zone with so many free frames above its limit and the counters' error must serve.
const PLENTY: u64 = 64;
/// Requests of each CPU while nodes are full.
const TRIES: usize = 3;

impl World<'_, '_, '_, '_> {
    /// Fills some nodes, allocates on all CPUs, frees some of the filled nodes, and allocates on all CPUs again.
    pub(super) fn fill_and_probe(&self, random: &mut Rng) {
        let [staying, leaving] = self.nodes_to_fill(random).map(|nodes| {
            let fill = |node| {
                let cpu = one_of(random, &self.cpus);
                self.machine().move_to(cpu.id.index());
                self.fill(node)
            };
            nodes.into_iter().flat_map(fill).collect::<Vec<_>>()
        });
        let mut extra = Vec::new();
        for cpu in &self.cpus {
            self.machine().move_to(cpu.id.index());
            for _ in 0..TRIES {
                extra.extend(self.alloc(&Request::page().no_wait(), PageKind::User));
            }
        }
        self.free_each(extra);
        self.free_each(leaving);
        self.pass_a_second();
        for &cpu in &self.cpus {
            self.probe(cpu);
        }
        self.free_each(staying);
        self.pass_a_second();
    }

    /// Returns the nodes that stay full, and the filled nodes that are freed again. In half of the cases these are the
    /// first and the second node in a fallback list, because a scan reads the full bits only after its first zone has
    /// failed.
    fn nodes_to_fill(&self, random: &mut Rng) -> [Vec<NodeId>; 2] {
        if random.bool() {
            let mut list = Vec::new();
            self.allocator().fallback_order(one_of(random, &self.cpus).node, |node| list.push(node));
            if let [first, second, _, ..] = list[..] {
                return [vec![first], vec![second]];
            }
        }
        let mut nodes: Vec<NodeId> = self.memory.iter().filter(|_| random.u8(..4) != 0).collect();
        random.shuffle(&mut nodes);
        let leaving = nodes.split_off(random.usize(..=nodes.len()));
        [nodes, leaving]
    }

    fn free_each(&self, held: Vec<Held>) {
        for held in held {
            self.free(held);
            self.system.checkpoint();
        }
    }

    /// Lets more than a second pass twice, each time with a tick, so that full bits expire.
    fn pass_a_second(&self) {
        for _ in 0..2 {
            self.machine().sleep_until(self.machine().now() + SECOND_AND_MORE);
            self.allocator().tick();
        }
    }

    /// Allocates all blocks that a node serves to requests that no other node may serve.
    fn fill(&self, node: NodeId) -> Vec<Held> {
        let mut all = Vec::new();
        let only = NodeMask::from_iter([node]);
        let Ok(policy) = Policy::bind(self.allocator(), only) else { return all };
        for order in (0..=self.allocator().max_order().get()).rev().filter_map(Order::new) {
            let request = Request::new(order).policy(&policy).no_wait();
            while let Some(held) = self.alloc(&request, PageKind::Kernel) {
                all.push(held);
                self.system.checkpoint();
            }
        }
        let zones = self.machine().free_of_charge(|| self.zones());
        for zone in zones.iter().filter(|zone| zone.node == node) {
            self.check_full(zone);
        }
        all
    }

    /// Checks the free frames of a zone after requests for single frames have failed.
    fn check_full(&self, zone: &ZoneSnapshot) {
        let keeps = zone.watermarks.min.plus(kept_for_others(zone)).get();
        let (free, drift) = (zone.free.get(), self.drift(zone));
        if free + drift < keeps.min(zone.managed.saturating_minus(zone.retired).get()) {
            self.system.fault(format!(
                "node {} {}: ordinary requests left {free} frames, less than the {keeps} below which only urgent requests may allocate",
                zone.node, zone.kind
            ));
        }
        if free > keeps + drift {
            self.system.fault(format!(
                "node {} {}: a request failed although {free} frames are free and only {keeps} must stay",
                zone.node, zone.kind
            ));
        }
    }

    /// Allocates locally on a CPU. The serving zone must not come after the first zone in the CPU's list that has
    /// plenty of free frames.
    fn probe(&self, cpu: Cpu) {
        let zones = self.machine().free_of_charge(|| self.zones());
        let mut list: Vec<&ZoneSnapshot> = Vec::new();
        self.allocator().fallback_order(cpu.node, |node| {
            let of_node = zones.iter().rev().filter(|zone| zone.node == node);
            list.extend(of_node.filter(|zone| zone.managed != PageCount::ZERO));
        });
        let has_plenty = |zone: &&ZoneSnapshot| {
            let keeps = zone.watermarks.high.plus(kept_for_others(zone)).get();
            zone.free.get() > keeps + self.drift(zone) + PLENTY
        };
        let Some(nearest) = list.iter().position(has_plenty) else { return };
        self.machine().move_to(cpu.id.index());
        let Some(held) = self.alloc(&Request::page(), PageKind::User) else {
            self.system.fault(format!("no frame on CPU {}, although {}", cpu.id, wealth(list[nearest])))
        };
        let served = list.iter().position(|zone| zone.id == held.block.zone);
        if served.is_none_or(|served| served > nearest) {
            self.system.fault(format!(
                "CPU {} of node {} was served by node {}, although {}, and a second has passed since that changed",
                cpu.id,
                cpu.node,
                held.block.node,
                wealth(list[nearest])
            ));
        }
        self.free(held);
    }

    fn zones(&self) -> Vec<ZoneSnapshot> {
        self.allocator().zones().collect()
    }

    /// Returns the maximum error in a reading of the zone's free frames. It is computed from the normal threshold even
    /// while active background reclaim lowers the threshold, because per-CPU differences may be older than that.
    fn drift(&self, zone: &ZoneSnapshot) -> u64 {
        let cpus = self.cpus.len() as u32;
        let (rules, page_bytes) = (self.round.config.counters, self.round.machine.model.page_bytes);
        let frames = rules.frames(zone.managed, zone.present);
        u64::from(rules.threshold(cpus, frames, page_bytes)) * u64::from(cpus)
    }
}

/// Returns the frames that a zone reserves against requests that may use any zone.
fn kept_for_others(zone: &ZoneSnapshot) -> PageCount {
    zone.reserve[ZoneKind::Movable.index()]
}

fn wealth(zone: &ZoneSnapshot) -> String {
    format!("{} frames of node {} {} are free", zone.free, zone.node, zone.kind)
}
