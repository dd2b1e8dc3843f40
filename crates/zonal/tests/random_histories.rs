//! Long random histories on one thread against a naive model: the set of blocks handed out.

mod common;

use std::collections::BTreeMap;

use common::{Plan, Random, TestPlatform, World, node, order, range, run_on, stress_rounds};
use zonal::config::{Hardening, Misuse, NodeReclaim, ZonelistCache};
use zonal::error::{AllocError, FreeError, OnlineError};
use zonal::machine::FrameRange;
use zonal::pageset_tuning::PagesetTuning;
use zonal::policy::{Policy, WeightTable};
use zonal::request::{Block, PageKind, Urgency};
use zonal::threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, NodeMask, Request};

/// What a naive allocator would know.
struct Model {
    plan: Plan,
    /// Blocks handed out, by first frame.
    held: BTreeMap<u64, Order>,
    /// Ranges of memory taken offline.
    offline: Vec<FrameRange>,
    successes: u64,
    wrong_frees: u64,
}

impl Model {
    fn overlaps(&self, start: u64, count: u64) -> bool {
        let below = self.held.range(..start + count).next_back();
        let offline = |gone: &FrameRange| start < gone.end().get() && gone.start.get() < start + count;
        below.is_some_and(|(&first, order)| first + order.pages().get() > start)
            || self.offline.iter().any(offline)
    }

    /// The zone that holds all frames of a block, which must be managed.
    fn zone_of(&self, block: Block) -> (NodeId, ZoneKind, usize) {
        let (start, end) = (block.first.get(), block.first.get() + block.order.pages().get());
        let inside = |&(at, count): &(u64, u64)| at <= start && end <= at + count;
        let found = self.plan.zones.iter().enumerate().find(|(_, zone)| zone.4.iter().any(inside));
        let (at, zone) = found.unwrap_or_else(|| panic!("{block:?} is not all managed memory"));
        (node(zone.0), zone.1, at)
    }

    fn managed(&self) -> u64 {
        let offline: u64 = self.offline.iter().map(|gone| gone.count.get()).sum();
        self.plan.frames().count() as u64 - offline
    }

    fn allocated(&self) -> u64 {
        self.held.values().map(|order| order.pages().get()).sum()
    }
}

/// A history under way.
struct History {
    world: World,
    model: Model,
    random: Random,
    policies: Vec<(Policy<'static, TestPlatform>, Option<NodeMask>)>,
    cpus: u32,
}

/// One to three nodes, some with several zones, with holes between and in them.
fn random_plan(random: &mut Random) -> Plan {
    let nodes = 1 + random.below(3) as u16;
    let cpus = 1 + random.below(3) as u32;
    let mut plan = Plan::even(nodes, cpus, 64);
    plan.zones.clear();
    let mut at = 1 + random.below(5000);
    for id in 0..nodes {
        for kind in ZoneKind::ALL {
            if random.once_in(3) {
                continue;
            }
            let most = random.pick(&[300, 3000, 9000]);
            let span = 1 + random.below(most);
            let mut ranges = Vec::new();
            let mut next = at + random.below(span.min(20));
            while next < at + span {
                let count = (1 + random.below(span)).min(at + span - next);
                ranges.push((next, count));
                next += count + 1 + random.below(200);
            }
            plan.zones.push((id, kind, at, span, ranges));
            at += span + random.below(3) * random.below(3000);
        }
    }
    if plan.frames().count() < 200 { random_plan(random) } else { plan }
}

fn random_config(random: &mut Random) -> Config {
    let none = Hardening::default();
    Config {
        tuning: random.pick(&[PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed]),
        misuse: random.pick(&[Misuse::Checked, Misuse::Exact]),
        counters: CounterRules {
            threshold: random.pick(&[
                ThresholdRule::Scaled,
                ThresholdRule::Fixed(1),
                ThresholdRule::Fixed(125),
            ]),
            fold: random.pick(&[FoldRule::Overstep, FoldRule::ToZero]),
            totals: random.pick(&[TotalsRule::PerNode, TotalsRule::AndMachine]),
            pressure: random.pick(&[PressureRule::Lowered, PressureRule::Unchanged]),
        },
        zonelist_cache: random.pick(&[
            ZonelistCache::On,
            ZonelistCache::Published,
            ZonelistCache::CacheFirst,
            ZonelistCache::Original,
            ZonelistCache::Off,
        ]),
        node_reclaim: random.pick(&[NodeReclaim::Off, NodeReclaim::On]),
        region_min: PageCount::new(random.pick(&[0, 1 << 14])),
        max_order: order(random.pick(&[10, 10, 11, 12, 13, 18])),
        hardening: Hardening { quarantine: PageCount::new(random.pick(&[0, 0, 0, 1, 50])), ..none },
        ..Config::default()
    }
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        run_on(0);
        let plan = random_plan(&mut random);
        let world = plan.build(&random_config(&mut random));
        let cpus = plan.nodes.iter().map(|(_, cpus)| cpus.len() as u32).sum();
        let policies = policies(&world, &plan, &mut random);
        let (held, offline) = (BTreeMap::new(), Vec::new());
        let model = Model { plan, held, offline, successes: 0, wrong_frees: 0 };
        Self { world, model, random, policies, cpus }
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => self.alloc(),
            45..80 => self.free(),
            80..85 => self.free_wrongly(),
            85..90 => run_on(self.random.below(u64::from(self.cpus) + 1) as u32),
            90..92 => self.world.controls.advance_ms(self.random.below(3000)),
            92 => self.world.controls.set_ms(self.random.below(5000)),
            93 => self.world.allocator.tick(),
            94 => self.world.allocator.drain_pagesets(),
            95 => self.change_cpu(),
            96 => self.take_memory(),
            97 => self.return_memory(),
            98 => self.free_many(),
            _ => drop(self.world.allocator.background_reclaim(node(self.random.below(3) as u16)).get()),
        }
    }

    fn alloc(&mut self) {
        let random = &mut self.random;
        let most = if random.once_in(3) { 10 } else { 3 };
        let mut request = Request::new(order(random.below(most + 1) as u8)).kind(random.pick(&PageKind::ALL));
        let urgency = random.pick(&[Urgency::Normal, Urgency::High, Urgency::Atomic, Urgency::Reserve]);
        let limit = if random.once_in(4) { random.pick(&ZoneKind::ALL) } else { ZoneKind::Movable };
        request = request.urgency(urgency).zone_limit(limit);
        let strict = random.once_in(6);
        if strict {
            request = request.this_node();
        }
        let allowed = random.once_in(5).then(|| NodeMask::from_iter([node(random.below(3) as u16)]));
        if let Some(mask) = &allowed {
            request = request.allowed(mask);
        }
        let policy = random.once_in(3).then(|| random.below(self.policies.len() as u64) as usize);
        let (bound, request) = match policy.map(|at| &self.policies[at]) {
            Some((policy, bound)) => (*bound, request.policy(policy)),
            None => (None, request),
        };
        match self.world.allocator.alloc(&request) {
            Ok(block) => {
                let (node, kind, at) = self.model.zone_of(block);
                assert_eq!((block.node, block.zone.index()), (node, at));
                assert!(kind <= limit, "{kind} beyond {limit}");
                assert!(bound.is_none_or(|bound| bound.contains(node)), "left its set");
                let masked = allowed.filter(|_| urgency != Urgency::Atomic);
                assert!(masked.is_none_or(|mask| mask.contains(node)), "left its cpuset");
                assert!(block.first.is_aligned_to(block.order));
                assert!(!self.model.overlaps(block.first.get(), block.order.pages().get()), "{block:?}");
                self.model.held.insert(block.first.get(), block.order);
                self.model.successes += 1;
            }
            Err(AllocError::OutOfMemory(shortage)) => assert!(shortage.free.get() <= self.model.managed()),
            Err(AllocError::NoNodeInPolicy) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn some_held(&mut self) -> Option<(u64, Order)> {
        let len = self.model.held.len() as u64;
        let at = self.random.below(len.max(1)) as usize;
        self.model.held.iter().nth(at).map(|(&first, &order)| (first, order))
    }

    fn free(&mut self) {
        if let Some((first, order)) = self.some_held() {
            self.model.held.remove(&first);
            self.world.allocator.free(Pfn::new(first), order).unwrap();
        }
    }

    fn free_many(&mut self) {
        for _ in 0..self.random.below(200) {
            self.free();
        }
    }

    /// Any frame with any order that is not a block handed out.
    fn free_wrongly(&mut self) {
        let near = self.some_held().map_or(0, |(first, _)| first);
        let frame = near + self.random.below(40);
        let given = order(self.random.below(11) as u8);
        let known = self.model.held.get(&frame).copied();
        if known == Some(given) {
            return;
        }
        let frame = Pfn::new(frame);
        match (self.world.allocator.free(frame, given), known) {
            (Err(error), Some(allocated)) => {
                assert_eq!(error, FreeError::WrongOrder { frame, allocated, given });
            }
            (Err(error), None) => assert!(
                [FreeError::NotAllocated, FreeError::NotManaged, FreeError::Quarantined]
                    .map(|error| error(frame))
                    .contains(&error),
                "{error}"
            ),
            (Ok(()), _) => panic!("{frame} was freed with order {given}, held: {known:?}"),
        }
        self.model.wrong_frees += 1;
    }

    fn change_cpu(&mut self) {
        let cpu = CpuId::new(self.random.below(u64::from(self.cpus)) as u32);
        let a = &self.world.allocator;
        let result = if self.random.once_in(2) { a.offline_cpu(cpu) } else { a.online_cpu(cpu) };
        assert!(matches!(result, Ok(()) | Err(OnlineError::CpuUnchanged(_) | OnlineError::LastCpu(_))));
    }

    fn take_memory(&mut self) {
        let zone = self.random.below(self.model.plan.zones.len() as u64) as usize;
        let Some(&(start, count)) = self.model.plan.zones[zone].4.last() else { return };
        let first = start + self.random.below(count);
        let gone = range(first, 1 + self.random.below(start + count - first));
        let overlap = self.model.overlaps(gone.start.get(), gone.count.get());
        let is_offline = |frame: u64| self.model.offline.iter().any(|gone| gone.contains(&range(frame, 1)));
        let absent = (first..gone.end().get()).find(|&frame| is_offline(frame));
        let in_use: u64 = (self.model.held.iter())
            .map(|(&at, order)| {
                (at + order.pages().get()).min(gone.end().get()).saturating_sub(at.max(first))
            })
            .sum();
        match self.world.allocator.offline_memory(gone) {
            Ok(()) => {
                assert!(!overlap);
                self.model.offline.push(gone);
            }
            Err(OnlineError::InUse { start, in_use: told }) => {
                assert_eq!((start, told.get(), absent), (gone.start, in_use, None));
            }
            Err(OnlineError::NotOnline(frame)) => assert_eq!(Some(frame.get()), absent),
            Err(other) => panic!("{other}"),
        }
    }

    fn return_memory(&mut self) {
        if let Some(gone) = self.model.offline.pop() {
            self.world.allocator.online_memory(gone).unwrap();
        }
    }

    fn check(&self) {
        let (a, model) = (&self.world.allocator, &self.model);
        let books = a.verify().unwrap();
        assert_eq!((books.managed.get(), a.books()), (model.managed(), books));
        let quarantined = books.allocated.get() - model.allocated();
        assert!(quarantined <= 50 * model.plan.zones.len() as u64, "{quarantined}");
        let (locality, events) = (a.locality(), a.events());
        assert_eq!(locality.hit + locality.miss, model.successes);
        assert_eq!(locality.local + locality.other, model.successes);
        assert_eq!(locality.miss, locality.foreign);
        assert!(locality.interleave_hit <= model.successes);
        assert_eq!((events.withheld, events.poison_found), (0, 0));
    }

    fn finish(mut self) {
        while !self.model.held.is_empty() {
            self.free();
        }
        while !self.model.offline.is_empty() {
            self.return_memory();
        }
        self.world.allocator.drain_pagesets();
        self.check();
        let books = self.world.allocator.verify().unwrap();
        assert_eq!(books.free, books.managed);
        assert!(self.model.successes > 100 && self.model.wrong_frees > 10);
    }
}

/// Policies of every mode over random sets of nodes; binding ones with their set.
fn policies(
    world: &World,
    plan: &Plan,
    random: &mut Random,
) -> Vec<(Policy<'static, TestPlatform>, Option<NodeMask>)> {
    let a = &world.allocator;
    let mut policies = vec![(Policy::local(), None)];
    for _ in 0..4 {
        let mask: NodeMask =
            plan.nodes.iter().map(|&(id, _)| node(id)).filter(|_| !random.once_in(3)).collect();
        let weights: &'static WeightTable<TestPlatform> = Box::leak(Box::default());
        mask.iter().for_each(|node| weights.set(node, random.below(5) as u8));
        policies.extend(Policy::bind(a, mask).map(|policy| (policy, Some(mask))));
        policies.extend(Policy::interleave(a, mask).map(|policy| (policy, None)));
        policies.extend(Policy::weighted_interleave(a, mask, weights).map(|policy| (policy, None)));
        policies.extend(Policy::preferred(a, node(random.below(3) as u16)).map(|policy| (policy, None)));
    }
    policies
}

/// One history; its seed is printed when something is wrong with it.
fn run(seed: u64) {
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the history of seed {:#x} failed", self.0);
            }
        }
    }
    let _seed = Seed(seed);
    let mut history = History::new(seed);
    for step in 0..2000 {
        history.step();
        if step % 50 == 0 {
            history.check();
        }
    }
    history.finish();
}

#[test]
fn histories() {
    for round in stress_rounds() {
        (0..60).for_each(|at| run(round << 8 | at));
    }
}
