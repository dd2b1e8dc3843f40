//! Explanations compared with real requests, in random states of random machines.
//!
//! An explanation does not share the control flow of a scan. This test notices when the two differ: for every state, the
//! explained zone must be the one that serves the request, and both must report the same steps up to reclaim.
//! `explained.rs` has tests of single steps.

use std::sync::Arc;

use crate::common::scenarios::{Scripted, with_min};
use crate::common::{MODES, Plan, Random, TestPlatform, World, node, order, run_on};
use zonal::config::NodeReclaim;
use zonal::explain::{Outcome, ReclaimStep, Step};
use zonal::mempolicy::Policy;
use zonal::platform::reclaimer::ReclaimRequest;
use zonal::request::{Block, Urgency};
use zonal::units::{NodeId, PageCount, Pfn, ZoneKind};
use zonal::{NodeMask, Request};

const KINDS: [ZoneKind; 3] = [ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];
/// Worlds, and states of each.
const WORLDS: u64 = if cfg!(miri) { 2 } else { 100 };
const STATES: u64 = if cfg!(miri) { 8 } else { 100 };

/// How many explanations named a zone, walked past a full bit, would have run node reclaim, and named no zone; and how many
/// lists of steps were compared.
#[derive(Default, Debug)]
struct Seen {
    served: u64,
    past_marks: u64,
    would_reclaim: u64,
    unserved: u64,
    compared: u64,
}

/// Returns a machine of one to six nodes with up to two parts of each kind, or one whose lists have more than 64 zones.
fn random_plan(random: &mut Random) -> Plan {
    let many = random.once_in(10);
    let nodes = if many { 30 } else { 1 + random.below(6) as u16 };
    let distances: Vec<u8> = (0..nodes).map(|_| random.pick(&[15, 20, 31, 40])).collect();
    let mut plan =
        Plan::with_distances(2, 4096, |a, b| distances[a.max(b) as usize].max(distances[0]), nodes);
    plan.zones.clear();
    let mut start = 4096;
    for id in 0..nodes {
        if id > 0 && random.once_in(4) {
            plan.nodes[usize::from(id)].1.clear(); // a node without CPUs
        }
        for kind in KINDS {
            let parts = if many { 1 } else { random.below(3) };
            for _ in 0..parts.max(u64::from(kind == ZoneKind::Normal)) {
                let frames = if many { 256 } else { random.pick(&[512, 1024, 2048]) };
                plan.zones.push((id, kind, start, frames, vec![(start, frames)]));
                start += 2 * 4096;
            }
        }
    }
    plan
}

struct Player<'w> {
    random: Random,
    world: &'w World,
    cpus: Vec<u32>,
    nodes: u16,
    held: Vec<Block>,
}

impl<'w> Player<'w> {
    fn random_node(&mut self) -> NodeId {
        node(self.random.below(self.nodes.into()) as u16)
    }

    fn random_mask(&mut self) -> NodeMask {
        (0..=self.random.below(3)).map(|_| self.random_node()).collect()
    }

    /// Returns a policy with random nodes, or with those of `order`.
    fn random_policy<'p>(&mut self, order: &'p [NodeId; 2]) -> Policy<'p, TestPlatform>
    where
        'w: 'p,
    {
        let (allocator, mask) = (&self.world.allocator, self.random_mask());
        match self.random.below(5) {
            0 => Policy::local(),
            1 => Policy::preferred(allocator, order[0]).unwrap(),
            2 => Policy::bind(allocator, mask).unwrap(),
            3 => Policy::interleave(allocator, mask).unwrap(),
            _ => Policy::preferred_many(allocator, order).unwrap(),
        }
    }

    /// Returns a request with random properties, without its nodes.
    fn random_request<'r>(&mut self) -> Request<'r> {
        let random = &mut self.random;
        let mut request = Request::new(order(random.pick(&[0, 0, 0, 0, 1, 3, 5, 9])));
        if random.once_in(3) {
            request = request.zone_limit(random.pick(&KINDS));
        }
        if random.once_in(4) {
            request = request.urgency(random.pick(&[Urgency::High, Urgency::Atomic, Urgency::Reserve]));
        }
        if random.once_in(6) {
            request = request.this_node();
        }
        if random.once_in(4) {
            request = request.no_wait();
        }
        if random.once_in(6) {
            request = request.no_retry();
        }
        if random.once_in(8) {
            request = request.below(Pfn::new(random.below(60_000)));
        }
        request
    }

    /// Changes the state: frames, pagesets, full bits by time and by requests, and settings.
    fn change_state(&mut self) {
        run_on(self.random.pick(&self.cpus));
        let (world, allocator) = (self.world, &self.world.allocator);
        match self.random.below(14) {
            0..=5 => {
                // Fills one node, mostly to about a watermark.
                let target = self.random_node();
                let policy = Policy::preferred(allocator, target).unwrap();
                let urgency = self.random.pick(&[Urgency::Normal, Urgency::Atomic, Urgency::Reserve]);
                let at = order(self.random.pick(&[0, 2, 4, 6]));
                let request = Request::new(at).policy(&policy).this_node().no_wait().urgency(urgency);
                let limit = self.random.pick(&KINDS);
                let blocks = std::iter::from_fn(|| allocator.alloc(&request.zone_limit(limit)).ok());
                let count = self.random.pick(&[10, 100, 2000]);
                self.held.extend(blocks.take(count));
            }
            6 | 7 => {
                for _ in 0..self.random.below(self.held.len() as u64 / 2 + 1) {
                    let at = self.random.below(self.held.len() as u64) as usize;
                    let block = self.held.swap_remove(at);
                    allocator.free(block.first, block.order).unwrap();
                }
            }
            8 => allocator.drain_pagesets(),
            9 => world.controls.advance_ms(self.random.pick(&[1, 1, 400, 1001])),
            10 => match self.random.below(4) {
                0 => world.controls.set_ms(self.random.below(10_000)),
                1 => allocator.set_zonelist_cache(self.random.pick(&MODES)).unwrap(),
                2 => allocator.set_node_reclaim(self.random.pick(&[NodeReclaim::OFF, NodeReclaim::ON])),
                _ => allocator.set_reclaim_distance(self.random.pick(&[20, 30, 40])),
            },
            11 => {
                // A reclaimer that frees nothing, which is what explanations expect.
                let (could_free, few) =
                    (self.random.pick(&[0, 1 << 20, 1 << 20]), self.random.below(self.nodes.into()));
                let count = move |request: &ReclaimRequest| {
                    if u64::from(request.node.get()) == few { 3 } else { could_free }
                };
                world.controls.set_reclaimer(Scripted::by_request(count, |_| 0) as Arc<_>);
            }
            _ => {}
        }
    }
}

/// Returns the different steps up to the first reclaim. A second pass over a list repeats steps.
fn up_to_reclaim(steps: &[Step]) -> Vec<Step> {
    let runs = |step: &Step| match step {
        Step::Zone { outcome: Outcome::Reclaim(step), .. } => matches!(
            step,
            ReclaimStep::WouldRun | ReclaimStep::Nothing | ReclaimStep::Some | ReclaimStep::Success
        ),
        Step::Near(_) | Step::Zone { .. } | Step::BackgroundWoken => false,
        _ => true,
    };
    let mut before: Vec<Step> = Vec::new();
    for &step in steps.iter().take_while(|step| !runs(step)) {
        if !before.contains(&step) {
            before.push(step);
        }
    }
    before
}

/// Explains a request, makes it, and compares the two. Returns the block.
fn compare(world: &World, request: &Request<'_>, seen: &mut Seen) -> Option<Block> {
    let (mut steps, mut real) = (Vec::new(), Vec::new());
    let before = world.allocator.events();
    let explained = world.allocator.explain(request, |step| steps.push(step));
    assert_eq!(before, world.allocator.events(), "an explanation counts nothing");
    let block = world.allocator.alloc_explained(request, |step| real.push(step));
    let both = || format!("explained: {steps:#?}\nreal: {real:#?}");
    let explained = match explained {
        Ok(explained) => explained,
        Err(error) => {
            assert_eq!(block.map(|block| block.zone), Err(error), "{}", both());
            return None;
        }
    };
    let has = |wanted: fn(&Outcome) -> bool| {
        steps.iter().any(|step| matches!(step, Step::Zone { outcome, .. } if wanted(outcome)))
    };
    let frees = |step: &Step| matches!(step, Step::PagesetsDrained { frames } if *frames > PageCount::ZERO);
    seen.past_marks += u64::from(has(|outcome| matches!(outcome, Outcome::MarkedFull { .. })));
    seen.would_reclaim += u64::from(has(|&outcome| outcome == Outcome::Reclaim(ReclaimStep::WouldRun)));
    match (explained, &block) {
        (Some(zone), Ok(block)) => {
            seen.served += 1;
            assert_eq!(zone.id, block.zone, "{}", both());
        }
        (Some(zone), Err(error)) => panic!("{zone} would serve, but {error}\n{}", both()),
        (None, Ok(_)) => assert!(steps.iter().any(frees) && real.iter().any(frees), "{}", both()),
        (None, Err(_)) => seen.unserved += 1,
    }
    // A refill of the CPU's pageset is not a scan, and is explained like one.
    if !matches!(real[..], [Step::Near(_)]) || matches!(steps[..], [Step::Near(_)]) {
        seen.compared += 1;
        assert_eq!(up_to_reclaim(&steps), up_to_reclaim(&real), "{}", both());
    }
    block.ok()
}

fn play(seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let plan = random_plan(&mut random);
    let managed = plan.frames().count() as u64;
    let mut config = with_min(random.pick(&[40, 200, 600]).min(managed / 4));
    config.zonelist_cache = MODES[seed as usize % MODES.len()];
    config.node_reclaim = random.pick(&[NodeReclaim::OFF, NodeReclaim::ON, NodeReclaim::ON]);
    let world = &plan.build(&config);
    let cpus = plan.nodes.iter().flat_map(|(_, cpus)| cpus).copied().collect();
    let nodes = plan.nodes.len() as u16;
    let mut player = Player { random, world, cpus, nodes, held: Vec::new() };
    for _ in 0..STATES {
        (0..=player.random.below(4)).for_each(|_| player.change_state());
        for _ in 0..=player.random.below(3) {
            let (mask, request) = (player.random_mask(), player.random_request());
            let (with_policy, with_mask) = (player.random.once_in(3), player.random.once_in(4));
            let order = [player.random_node(), player.random_node()];
            let policy = player.random_policy(&order);
            let request = if with_policy { request.policy(&policy) } else { request };
            let request = if with_mask { request.allowed(&mask) } else { request };
            let block = compare(world, &request, seen);
            player.held.extend(block);
        }
    }
    player.held.drain(..).for_each(|block| world.allocator.free(block.first, block.order).unwrap());
    world.check();
}

#[test]
fn the_explained_zone_serves_in_random_states() {
    let mut seen = Seen::default();
    (0..WORLDS).for_each(|seed| play(seed, &mut seen));
    let Seen { served, past_marks, would_reclaim, unserved, compared } = seen;
    let enough =
        served > 4000 && past_marks > 300 && would_reclaim > 300 && unserved > 300 && compared > 3000;
    assert!(enough || cfg!(miri), "{seen:?}");
}
