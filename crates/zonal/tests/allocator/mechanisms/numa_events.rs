//! Tests that NUMA events are counted by their rule. Random histories run on machines with full nodes, with random
//! requests, policies and cpusets. For every block, the test determines the first zone that could have served the
//! request, and compares the events with it.

use crate::common::scenarios::{one_cpu, with_min};
use crate::common::{MODES, Plan, Random, TestPlatform, World, node, order, run_on, stress_rounds};
use zonal::config::NodeReclaim;
use zonal::request::Urgency;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::{Locality, ZoneSnapshot};
use zonal::units::{CpuId, NodeId, Pfn, ZoneKind};
use zonal::{Block, Config, NodeMask, Policy, Request};

const TUNINGS: [PagesetTuning; 4] =
    [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
const LIMITS: [ZoneKind; 6] = [
    ZoneKind::Movable,
    ZoneKind::Movable,
    ZoneKind::Movable,
    ZoneKind::Movable,
    ZoneKind::Normal,
    ZoneKind::Dma32,
];
const URGENCIES: [Urgency; 4] = [Urgency::Normal, Urgency::Normal, Urgency::High, Urgency::Atomic];
/// Ids of the nodes. Node 2 has no memory, and node 3 has no CPU.
const NODES: [u16; 4] = [0, 1, 2, 3];
const CPUS: u32 = 5;

/// Returns a machine of two nodes with CPUs and several zones, one node with CPUs only, and one with memory only.
fn plan(random: &mut Random) -> Plan {
    let mut plan = Plan {
        nodes: vec![(0, vec![0, 1]), (1, vec![2, 3]), (2, vec![4]), (3, vec![])],
        distances: vec![
            vec![10, 20, 30, 40],
            vec![20, 10, 40, 30],
            vec![40, 20, 10, 20],
            vec![20, 20, 20, 10],
        ],
        ..Plan::default()
    };
    let mut start = 4096;
    for (id, kind) in [
        (0, ZoneKind::Dma32),
        (0, ZoneKind::Normal),
        (1, ZoneKind::Normal),
        (1, ZoneKind::Movable),
        (3, ZoneKind::Normal),
    ] {
        // Node 3 has at least as many frames as the minimums of all zones together.
        let frames = if id == 3 { 2000 } else { random.pick(&[1, 40, 300, 1000, 3000]) };
        plan.zones.push((id, kind, start, frames, vec![(start, frames)]));
        start += frames.next_multiple_of(4096);
    }
    plan
}

/// The nodes that a request names.
#[derive(Clone, Copy, Debug)]
enum Choice {
    Local,
    Preferred(u16),
    Bind(NodeMask),
    Interleave,
}

struct History {
    world: World,
    random: Random,
    cpu: u32,
    held: Vec<Block>,
    by_turns: &'static Policy<'static, TestPlatform>,
}

impl History {
    fn zones(&self) -> Vec<ZoneSnapshot> {
        self.world.allocator.zones().collect()
    }

    /// Returns the node of the current CPU, or node 0 for a CPU that the machine does not have.
    fn here(&self) -> u16 {
        self.world.allocator.node_of_cpu(CpuId::new(self.cpu)).map_or(0, NodeId::get)
    }

    fn mask(&mut self) -> NodeMask {
        loop {
            let bits = self.random.below(16);
            if bits & 0b1011 != 0 {
                return NODES.into_iter().filter(|id| bits >> id & 1 != 0).map(node).collect();
            }
        }
    }

    /// Returns the first zone in fallback order that may serve, on the nodes that `allows` accepts.
    fn first_zone(
        &self,
        zones: &[ZoneSnapshot],
        target: u16,
        limit: ZoneKind,
        strict: bool,
        allows: impl Fn(NodeId) -> bool,
    ) -> Option<usize> {
        let mut order = Vec::new();
        self.world.allocator.fallback_order(node(target), |id| order.push(id));
        let in_list = order.into_iter().flat_map(|id| {
            let of_node = zones.iter().enumerate().rev();
            of_node.filter(move |(_, zone)| zone.node == id).map(|(at, _)| at).collect::<Vec<_>>()
        });
        let mut eligible = in_list.filter(|&at| {
            let zone = &zones[at];
            zone.kind <= limit
                && zone.managed.get() > 0
                && allows(zone.node)
                && (!strict || zone.node == node(target))
        });
        eligible.next()
    }

    fn alloc(&mut self) {
        let wanted = self.random.pick(&[0, 0, 0, 0, 0, 0, 1, 3, 5, 9]);
        let limit = self.random.pick(&LIMITS);
        let urgency = self.random.pick(&URGENCIES);
        let mut request = Request::new(order(wanted)).zone_limit(limit).urgency(urgency).no_wait();
        let strict = self.random.once_in(10);
        if strict {
            request = request.this_node();
        }
        let choice = match self.random.below(12) {
            0 => Choice::Preferred(self.random.pick(&[0, 1, 3])),
            1 => Choice::Bind(self.mask()),
            2 => Choice::Interleave,
            _ => Choice::Local,
        };
        let cpuset = self.random.once_in(10).then(|| self.mask());
        let a = &self.world.allocator;
        let policy = match choice {
            Choice::Local | Choice::Interleave => Policy::local(),
            Choice::Preferred(id) => Policy::preferred(a, node(id)).unwrap(),
            Choice::Bind(mask) => Policy::bind(a, mask).unwrap(),
        };
        let is_by_turns = matches!(choice, Choice::Interleave);
        let mut request = request.policy(if is_by_turns { self.by_turns } else { &policy });
        if let Some(mask) = &cpuset {
            request = request.allowed(mask);
        }
        let heeded = cpuset.filter(|_| urgency != Urgency::Atomic);
        let allows = |id: NodeId| {
            let bound = if let Choice::Bind(mask) = choice { mask.contains(id) } else { true };
            bound && heeded.is_none_or(|mask| mask.contains(id))
        };
        let target = if let Choice::Preferred(id) = choice { id } else { self.here() };
        let before = self.zones();
        let first = self.first_zone(&before, target, limit, strict, allows);
        let result = self.world.allocator.alloc(&request);
        let said = format!(
            "order {wanted}, {limit}, {urgency:?}, strict {strict}, {choice:?}, cpuset {cpuset:?}, CPU {}: {result:?}",
            self.cpu
        );
        let changes = changes(&before, &self.zones(), &said);
        let Ok(block) = result else {
            assert!(changes.iter().all(|change| *change == Locality::default()), "{said}: {changes:?}");
            return;
        };
        let served = block.zone.index();
        assert!(before[served].kind <= limit && allows(block.node), "{said}");
        if !is_by_turns {
            assert!(!strict || block.node == node(target), "{said}");
            let first = first.expect("a zone served");
            let mut expected = vec![Locality::default(); before.len()];
            if before[first].node == block.node {
                expected[served].hit = 1;
            } else {
                expected[served].miss = 1;
                expected[first].foreign = 1;
            }
            if block.node == node(self.here()) {
                expected[served].local = 1;
            } else {
                expected[served].other = 1;
            }
            assert_eq!(changes, expected, "{said}");
        }
        self.held.push(block);
    }

    fn alloc_bulk(&mut self) {
        let mut frames = vec![Pfn::new(0); 1 + self.random.below(40) as usize];
        let before = self.zones();
        let got = self.world.allocator.alloc_bulk(&Request::page().no_wait(), &mut frames).unwrap_or(0);
        let said = format!("{got} at once, CPU {}", self.cpu);
        let changes = changes(&before, &self.zones(), &said);
        let first = self.first_zone(&before, self.here(), ZoneKind::Movable, false, |_| true).unwrap();
        let mut expected = vec![Locality::default(); before.len()];
        for &frame in &frames[..got] {
            let within = |zone: &ZoneSnapshot| frame >= zone.span.start && frame < zone.span.end();
            let at = before.iter().position(within).unwrap();
            if before[first].node == before[at].node {
                expected[at].hit += 1;
            } else {
                expected[at].miss += 1;
                expected[first].foreign += 1;
            }
            let local = before[at].node == node(self.here());
            *(if local { &mut expected[at].local } else { &mut expected[at].other }) += 1;
            let (zone, node) = (before[at].id, before[at].node);
            self.held.push(Block { first: frame, order: order(0), zone, node });
        }
        assert_eq!(changes, expected, "{said}");
    }

    fn free(&mut self, count: u64) {
        for _ in 0..count {
            if self.held.is_empty() {
                return;
            }
            let at = self.random.below(self.held.len() as u64) as usize;
            let block = self.held.swap_remove(at);
            self.world.allocator.free(block.first, block.order).unwrap();
        }
    }

    fn other(&mut self) {
        let random = &mut self.random;
        let a = &self.world.allocator;
        match random.below(12) {
            0 => a.tick(),
            1 => self.world.controls.advance_ms(random.pick(&[1, 100, 900, 1100, 5000])),
            2 => a.drain_pagesets(),
            3 => a.set_zonelist_cache(random.pick(&MODES)).unwrap(),
            4 => drop(a.set_tuning(random.pick(&TUNINGS))),
            5 => a.set_node_reclaim(random.pick(&[NodeReclaim::OFF, NodeReclaim::OFF, NodeReclaim::ON])),
            6 => a.stat_refresh(),
            7 => a.offline_cpu(CpuId::new(random.below(CPUS.into()) as u32)).unwrap_or_default(),
            8 | 9 => (0..CPUS).for_each(|cpu| a.online_cpu(CpuId::new(cpu)).unwrap_or_default()),
            10 => drop(a.verify().unwrap()),
            _ => a.tick_cpu(CpuId::new(self.cpu)),
        }
    }

    fn run(&mut self, steps: u32) {
        let mut growing = true;
        for _ in 0..steps {
            if self.random.once_in(10) {
                self.cpu = self.random.pick(&[0, 0, 0, 1, 2, 3, 4, 4, 999]);
                run_on(self.cpu);
            }
            growing ^= self.random.once_in(200);
            match self.random.below(100) {
                0..3 => self.other(),
                3..5 => self.alloc_bulk(),
                5..20 => self.free(1),
                20..22 if !growing => self.free(200),
                _ if growing => self.alloc(),
                n if n % 2 == 0 => self.alloc(),
                _ => self.free(1),
            }
        }
        self.free(u64::MAX);
        self.world.allocator.drain_pagesets();
        let after = self.world.allocator.verify().unwrap();
        assert_eq!(after.free, after.managed);
    }
}

/// Returns the events that each zone counted between two snapshots. Checks that no count decreased.
fn changes(before: &[ZoneSnapshot], after: &[ZoneSnapshot], said: &str) -> Vec<Locality> {
    let change =
        |before: u64, after: u64| after.checked_sub(before).unwrap_or_else(|| panic!("falls: {said}"));
    let of = |(before, after): (&ZoneSnapshot, &ZoneSnapshot)| {
        let (before, after) = (before.locality, after.locality);
        Locality {
            hit: change(before.hit, after.hit),
            miss: change(before.miss, after.miss),
            foreign: change(before.foreign, after.foreign),
            interleave_hit: change(before.interleave_hit, after.interleave_hit),
            local: change(before.local, after.local),
            other: change(before.other, after.other),
        }
    };
    before.iter().zip(after).map(of).collect()
}

#[test]
fn every_block_is_counted_against_the_first_zone_that_could_serve_it() {
    for round in stress_rounds() {
        for seed in round * 100..(round + 1) * 100 {
            let mut random = Random(seed);
            let plan = plan(&mut random);
            let config = Config {
                zonelist_cache: MODES[seed as usize % 5],
                tuning: TUNINGS[seed as usize / 5 % 4],
                ..with_min(random.pick(&[1, 30, 300]))
            };
            let world = plan.build(&config);
            run_on(0);
            let all = NODES.map(node).into_iter().collect();
            let by_turns = Box::leak(Box::new(Policy::interleave(&world.allocator, all).unwrap()));
            let mut history = History { world, random, cpu: 0, held: Vec::new(), by_turns };
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| history.run(1500)));
            assert!(outcome.is_ok(), "seed {seed}");
        }
    }
}

#[test]
fn a_full_zone_that_is_skipped_from_the_start_is_preferred_all_the_same() {
    for mode in MODES {
        let config = Config { zonelist_cache: mode, ..with_min(72) };
        let world = one_cpu(&[4096, 128, 8192], ZoneKind::Normal).build(&config);
        let others: NodeMask = [node(1), node(2)].into_iter().collect();
        let request = Request::page().allowed(&others);
        while world.server(&request) == 1 {}
        let before = [world.zone(1), world.zone(2)].map(|zone| zone.locality);
        (0..100).for_each(|_| assert_eq!(world.server(&request), 2, "{mode:?}"));
        let after = [world.zone(1), world.zone(2)].map(|zone| zone.locality);
        assert_eq!(after[0].foreign - before[0].foreign, 100, "{mode:?}");
        assert_eq!((after[1].hit - before[1].hit, after[1].miss - before[1].miss), (0, 100), "{mode:?}");
    }
}
