//! Checks of the state between phases, when no operation is in progress. The leading thread runs them.
//!
//! Every pause checks the accounting, the counters and the zonelists. At a rest, programs have freed everything. Then
//! the pause also runs the experiments of `full_nodes.rs`, and checks that all memory is free in the largest possible
//! blocks.
//!
//! Related files: `course.rs` calls these checks.

use zonal::units::{NodeId, PageCount};
use zonal::{NodeMask, machine::FrameRange};
use zonal_lab::sim::Time;

use super::round::one_of;
use super::world::World;

/// Time between two tests of whether the background workers are idle.
const MOMENT: Time = Time::from_ps(50_000_000);
/// Number of experiments on full nodes at each rest.
const EXPERIMENTS: u32 = 2;
/// Maximum by which a node's distance may exceed the next one's in a fallback list. The order adds one unit to a
/// distance if the other node has a lower id, and one if it has CPUs.
const DISTANCE_SLACK: u8 = 2;

impl World<'_, '_, '_, '_> {
    /// Runs one pause.
    pub(super) fn pause(&self, rests: bool) {
        self.check();
        let mut random = fastrand::Rng::with_seed(self.machine().seed() ^ self.system.operations());
        if rests {
            self.rest(&mut random);
        } else if random.u8(..3) == 0 {
            let seconds = one_of(&mut random, &[0.3, 1.1, 2.5]);
            self.machine().sleep_until(self.machine().now() + Time::from_seconds(seconds));
        }
    }

    /// Checks the accounting, the counters and the fallback lists, after background workers have become idle.
    fn check(&self) {
        while self.reclaiming.get() != 0 {
            self.machine().sleep_until(self.machine().now() + MOMENT);
        }
        self.retire_lost();
        let unused = self.machine().free_of_charge(|| self.out_of_use());
        self.system.check_allocated(unused);
        self.machine().free_of_charge(|| {
            self.demand(self.check_unused());
            self.demand(self.accounting.check(self.allocator(), |node| self.unused_of(node)));
            self.demand(self.check_lists());
        });
    }

    /// Returns how many of the machine's frames are fenced or retired.
    fn out_of_use(&self) -> PageCount {
        let nodes = self.round.machine.model.nodes.iter();
        PageCount::new(nodes.flat_map(|node| self.unused_of(node.id)).sum())
    }

    pub(super) fn demand(&self, holds: Result<(), String>) {
        if let Err(what) = holds {
            self.system.fault(what);
        }
    }

    /// Runs the experiments, and checks the machine after programs have freed everything.
    fn rest(&self, random: &mut fastrand::Rng) {
        self.end_fences();
        self.free_shared();
        if random.bool() {
            self.bring_cpus_back();
        }
        for _ in 0..EXPERIMENTS {
            self.fill_and_probe(random);
            self.check();
        }
        self.allocator().drain_pagesets();
        self.allocator().tick();
        self.check();
        self.machine().free_of_charge(|| {
            self.demand(self.accounting.check_totals(self.allocator(), |node| self.unused_of(node)));
            self.demand(self.check_all_free());
        });
    }

    /// Checks the fallback list of every node. The list must contain each node with memory once, start with the node
    /// itself if the node has memory, and have near nodes before far ones.
    fn check_lists(&self) -> Result<(), String> {
        let zones = self.allocator().zones().filter(|zone| zone.managed != PageCount::ZERO);
        let memory: NodeMask = zones.map(|zone| zone.node).collect();
        for (place, node) in self.round.machine.model.nodes.iter().enumerate() {
            let mut list: Vec<NodeId> = Vec::new();
            self.allocator().fallback_order(node.id, |next| list.push(next));
            let ids: Vec<u16> = list.iter().map(|next| next.get()).collect();
            let there: NodeMask = list.iter().copied().collect();
            if there != memory || list.len() != memory.len() {
                let memory: Vec<u16> = memory.iter().map(NodeId::get).collect();
                return Err(format!(
                    "the list of node {} is {ids:?}, but the nodes with memory are {memory:?}",
                    node.id
                ));
            }
            if memory.contains(node.id) && list[0] != node.id {
                return Err(format!("the list of node {} begins elsewhere: {ids:?}", node.id));
            }
            let distance =
                |next: &NodeId| self.round.machine.model.distance_between(place, self.system.place_of(*next));
            let far = |pair: &[NodeId]| distance(&pair[0]) > distance(&pair[1]) + DISTANCE_SLACK;
            if list.windows(2).any(far) {
                return Err(format!(
                    "the list of node {} goes to far nodes before near ones: {ids:?}",
                    node.id
                ));
            }
        }
        Ok(())
    }

    /// Checks that all frames are free or retired, and that the free ones form as many blocks of the maximum order as possible.
    fn check_all_free(&self) -> Result<(), String> {
        let max = self.allocator().max_order();
        for zone in self.allocator().zones() {
            let (node, kind) = (zone.node, zone.kind);
            if zone.free.plus(zone.retired) != zone.managed || zone.in_pagesets != PageCount::ZERO {
                return Err(format!(
                    "node {node} {kind}: all blocks were freed, but {} of {} frames are free, {} retired and {} in pagesets",
                    zone.free, zone.managed, zone.retired, zone.in_pagesets
                ));
            }
            if self.offline.borrow().iter().any(|gone| zone.span.contains(gone)) {
                continue;
            }
            // The managed frames are the first ones of the span.
            let all = FrameRange { start: zone.span.start, count: zone.managed };
            let size = max.pages().get();
            let end = (all.start.get() + all.count.get()) / size;
            let expected = end.saturating_sub(all.start.get().div_ceil(size));
            let expected = expected - self.blocks_with_retired(&zone, size);
            let found = zone.free_blocks[usize::from(max.get())];
            if found != expected {
                return Err(format!(
                    "node {node} {kind}: everything is free, in {found} blocks of order {max}; {expected} were expected"
                ));
            }
        }
        Ok(())
    }
}
