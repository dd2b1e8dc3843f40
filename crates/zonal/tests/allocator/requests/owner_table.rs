//! Tests that no frame is allocated twice and none is lost. Threads use small pools that run out of memory all the
//! time, while another thread changes everything that can be changed.
//!
//! Each test runs one pass by default. `ZONAL_STRESS_SECONDS` sets how long it runs instead.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::thread::ScopedJoinHandle;

use crate::common::{Plan, Random, World, order, range, run_on, stress_rounds};
use zonal::config::{InvalidFree, NodeReclaim, ZonelistCache};
use zonal::error::{FreeError, OnlineError};
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::request::{Block, PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn};
use zonal::{Config, Request};
use zonal_testing::Ledger;

const TUNINGS: [PagesetTuning; 4] =
    [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
const CACHES: [ZonelistCache; 3] = [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Off];
const URGENCIES: [Urgency; 4] = [Urgency::Normal, Urgency::High, Urgency::Atomic, Urgency::Reserve];

/// A stress test: the number of threads, the orders that they request, and whether another thread makes changes.
#[derive(Clone, Copy)]
struct Stress {
    seed: u64,
    threads: u32,
    cpus: u32,
    steps: u32,
    /// The orders that threads request.
    orders: (u8, u8),
    changes: bool,
}

/// A running stress test.
struct Arena {
    stress: Stress,
    world: World,
    owners: Ledger,
    zones: Vec<FrameRange>,
    frames: u64,
    /// Blocks that one thread allocated and another thread will free. Reclaim frees them too.
    exchange: Mutex<Vec<(Block, u32)>>,
    taken: AtomicU64,
    done: AtomicBool,
}

impl Arena {
    fn free(&self, block: Block, owner: u32) {
        self.owners.release(block.first.get(), block.order.pages().get(), owner);
        self.world.allocator.free(block.first, block.order).unwrap();
    }

    /// Frees a block of the exchange, which must be of `node` if it is given. Returns the number of frames freed.
    fn free_passed_on(&self, node: Option<NodeId>) -> Option<PageCount> {
        let mut exchange = self.exchange.lock().unwrap();
        let at = exchange.iter().position(|(block, _)| node.is_none_or(|node| block.node == node))?;
        let (block, owner) = exchange.swap_remove(at);
        drop(exchange);
        self.free(block, owner);
        Some(block.order.pages())
    }
}

/// A reclaimer that frees the blocks of the exchange.
struct Cache(Weak<Arena>);

impl Reclaimer for Cache {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let Some(arena) = self.0.upgrade() else { return PageCount::ZERO };
        let exchange = arena.exchange.lock().unwrap();
        exchange
            .iter()
            .filter(|(block, _)| block.node == request.node)
            .map(|(block, _)| block.order.pages())
            .sum()
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let Some(arena) = self.0.upgrade() else { return PageCount::ZERO };
        let mut freed = PageCount::ZERO;
        while freed < request.target
            && let Some(more) = arena.free_passed_on(Some(request.node))
        {
            freed = freed.plus(more);
        }
        freed
    }
}

/// The blocks of one thread.
struct Worker<'a> {
    arena: &'a Arena,
    name: u32,
    random: Random,
    held: Vec<Block>,
}

impl Worker<'_> {
    fn run(mut self) {
        let stress = self.arena.stress;
        let mut growing = true;
        for _ in 0..stress.steps {
            if self.random.once_in(16) {
                // Usually each thread runs on its own CPU, as if pinned. CPU 999 is unknown.
                let near = self.name % stress.cpus;
                let other = self.random.below(u64::from(stress.cpus)) as u32;
                run_on(self.random.pick(&[near, near, near, other, 999]));
            }
            if self.random.once_in(64) {
                growing = !growing;
            }
            match self.random.below(100) {
                0..2 => self.invalid_free(),
                2..5 => self.pass_on(),
                5..8 => self.take_over(),
                8..30 => self.free_one(),
                _ if growing => self.alloc_one(),
                _ => self.free_one(),
            }
        }
        while !self.held.is_empty() {
            self.free_one();
        }
    }

    fn request(&mut self) -> Request<'static> {
        let (least, most) = self.arena.stress.orders;
        let wanted = least + self.random.below(u64::from(most - least) + 1) as u8;
        let mut request = Request::new(order(wanted)).kind(self.random.pick(&PageKind::ALL));
        if self.random.once_in(4) {
            request = request.urgency(self.random.pick(&URGENCIES));
        }
        if self.random.once_in(8) {
            request = request.this_node();
        }
        if self.random.once_in(8) { request } else { request.no_wait() }
    }

    fn alloc_one(&mut self) {
        let request = self.request();
        if let Ok(block) = self.arena.world.allocator.alloc(&request) {
            self.arena.owners.assign(block.first.get(), block.order.pages().get(), self.name + 1);
            self.arena.taken.fetch_add(1, Relaxed); // relaxed: read after the join
            self.held.push(block);
        }
    }

    fn free_one(&mut self) {
        let Some(last) = self.held.len().checked_sub(1) else { return };
        let at = if self.random.once_in(3) { self.random.below(last as u64 + 1) as usize } else { last };
        let block = self.held.swap_remove(at);
        self.arena.free(block, self.name + 1);
    }

    fn pass_on(&mut self) {
        if let Some(block) = self.held.pop() {
            self.arena.exchange.lock().unwrap().push((block, self.name + 1));
        }
    }

    fn take_over(&self) {
        // Leaves ten blocks in the exchange, so that reclaim has some to free.
        if self.arena.exchange.lock().unwrap().len() > 10 {
            self.arena.free_passed_on(None);
        }
    }

    /// Attempts a free that is invalid whatever other threads do, because the block belongs to this thread.
    fn invalid_free(&mut self) {
        let Some(block) = self.held.last() else { return };
        let (allocator, first) = (&self.arena.world.allocator, block.first);
        let given = order(if block.order == Order::PAGE { 1 } else { block.order.get() - 1 });
        let wrong = FreeError::WrongOrder { frame: first, allocated: block.order, given };
        assert_eq!(allocator.free(first, given), Err(wrong));
        let inside = first.plus(PageCount::new(self.random.below(block.order.pages().get())));
        if inside != first {
            let error = FreeError::InsideBlock { frame: inside, block: first, order: block.order };
            assert_eq!(allocator.free(inside, Order::PAGE), Err(error));
        }
        let nowhere = Pfn::new(self.random.below(100));
        assert_eq!(allocator.free(nowhere, Order::PAGE), Err(FreeError::NotManaged(nowhere)));
    }
}

/// Changes everything that can be changed, until the workers are done.
fn change_things(arena: &Arena, mut random: Random) {
    run_on(arena.stress.cpus - 1);
    let a = &arena.world.allocator;
    let mut offline = Vec::new();
    // Relaxed: the flag only ends the loop, and no other data depends on it.
    while !arena.done.load(Relaxed) {
        let cpu = CpuId::new(random.below(u64::from(arena.stress.cpus)) as u32);
        match random.below(14) {
            0 => a.drain_pagesets(),
            1 => a.tick(),
            2 => arena.world.controls.advance_ms(random.below(3000)),
            // Where pagesets have too few slots, the change is refused and changes nothing.
            3 => drop(a.set_tuning(random.pick(&TUNINGS))),
            4 => change_watermarks(arena, &mut random),
            5 => a.set_zonelist_cache(random.pick(&CACHES)).unwrap(),
            6 => a.set_node_reclaim(random.pick(&[NodeReclaim::OFF, NodeReclaim::ON])),
            7 => a.set_high_fraction(random.pick(&[0, 0, 8, 100, u32::MAX])),
            8 => a.offline_cpu(cpu).unwrap_or_default(),
            9 => a.online_cpu(cpu).unwrap_or_default(),
            10 => take_memory(arena, &mut random, &mut offline),
            11 => {
                let woken = arena.world.controls.take_woken();
                for node in woken {
                    a.background_reclaim(node);
                }
            }
            12 => look(arena),
            _ => return_memory(arena, &mut offline),
        }
        std::thread::yield_now();
    }
    while !offline.is_empty() {
        return_memory(arena, &mut offline);
    }
    for cpu in (0..arena.stress.cpus).map(CpuId::new) {
        let _ = a.online_cpu(cpu);
    }
    a.set_watermarks(WatermarkSettings::default()).unwrap();
}

/// Reads all state. Reading must be possible at any time.
fn look(arena: &Arena) {
    let a = &arena.world.allocator;
    let managed: u64 = a.zones().map(|zone| zone.managed.get()).sum();
    assert!(a.accounting().managed.get().max(managed) <= arena.frames);
    assert!(a.free_approximate().get() <= 2 * arena.frames);
    a.shortage(&Request::page(), |zone| assert!(zone.managed.get() <= arena.frames)).unwrap();
    a.fallback_order(NodeId::new(0).unwrap(), |node| assert!(node.get() < 4));
    assert!(a.pagesets().all(|pageset| pageset.count.get() <= arena.frames));
    let before = a.events();
    assert!(before.probes <= a.events().probes && before.failures <= a.events().failures);
}

fn change_watermarks(arena: &Arena, random: &mut Random) {
    let min_free = Some(PageCount::new(random.below(64)));
    let scale_factor = random.pick(&[1, 10, 100, 3000]);
    let settings = WatermarkSettings { min_free, scale_factor, ..WatermarkSettings::default() };
    // The change is refused while too little memory is online.
    let _ = arena.world.allocator.set_watermarks(settings);
}

fn take_memory(arena: &Arena, random: &mut Random, offline: &mut Vec<FrameRange>) {
    let zone = random.pick(&arena.zones);
    let count = if random.once_in(3) { zone.count.get() } else { 1 + random.below(zone.count.get()) };
    let start = zone.start.get() + random.below(zone.count.get() - count + 1);
    let taken = range(start, count);
    match arena.world.allocator.offline_memory(taken) {
        Ok(()) => {
            arena.owners.assign(start, count, Ledger::OFFLINE);
            offline.push(taken);
        }
        Err(OnlineError::InUse { start, in_use, .. }) => {
            assert!(start == taken.start && (1..=count).contains(&in_use.get()), "{in_use} of {count}");
        }
        Err(OnlineError::NotOnline(_)) => assert!(!offline.is_empty()),
        Err(other) => panic!("{other}"),
    }
}

fn return_memory(arena: &Arena, offline: &mut Vec<FrameRange>) {
    if let Some(taken) = offline.pop() {
        arena.owners.release(taken.start.get(), taken.count.get(), Ledger::OFFLINE);
        arena.world.allocator.online_memory(taken).unwrap();
    }
}

/// Runs a stress test on a machine and checks the accounting afterwards. Returns the number of blocks allocated, which
/// is 0 if all memory happens to be offline while the workers run.
fn run(plan: &Plan, config: &Config, stress: Stress) -> u64 {
    let world = plan.build(config);
    let first = plan.frames().min().unwrap();
    let zones = plan.zones.iter().map(|zone| range(zone.4[0].0, zone.4[0].1)).collect();
    let before = world.allocator.verify().unwrap();
    let arena = Arc::new(Arena {
        stress,
        world,
        owners: Ledger::new(first..plan.frames().max().unwrap() + 1),
        zones,
        frames: before.managed.get(),
        exchange: Mutex::default(),
        taken: AtomicU64::new(0),
        done: AtomicBool::new(false),
    });
    arena.world.controls.set_reclaimer(Arc::new(Cache(Arc::downgrade(&arena))));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..stress.threads)
            .map(|name| {
                let random = Random(stress.seed << 8 | u64::from(name));
                let worker = Worker { arena: &arena, name, random, held: Vec::new() };
                scope.spawn(move || {
                    run_on(name % stress.cpus);
                    worker.run();
                })
            })
            .collect();
        if stress.changes {
            scope.spawn(|| change_things(&arena, Random(!stress.seed)));
        }
        let ends: Vec<_> = workers.into_iter().map(ScopedJoinHandle::join).collect();
        arena.done.store(true, Relaxed);
        assert!(ends.iter().all(Result::is_ok), "seed {:#x}", stress.seed);
    });
    while arena.free_passed_on(None).is_some() {}
    check_after(&arena, before);
    arena.taken.load(Relaxed) // relaxed: after the joins
}

fn check_after(arena: &Arena, before: zonal::snapshot::Accounting) {
    let (a, seed) = (&arena.world.allocator, arena.stress.seed);
    assert_eq!(arena.owners.owned().next(), None, "seed {seed:#x}");
    a.verify().unwrap_or_else(|error| panic!("seed {seed:#x}: {error}"));
    a.drain_pagesets();
    let after = a.verify().unwrap_or_else(|error| panic!("seed {seed:#x}, drained: {error}"));
    assert_eq!(after.free, after.managed, "seed {seed:#x}");
    assert_eq!(after, before, "seed {seed:#x}");
    let (locality, taken) = (a.locality(), arena.taken.load(Relaxed)); // relaxed: after the joins
    assert_eq!(locality.hit + locality.miss, taken, "seed {seed:#x}");
    assert_eq!(locality.local + locality.other, taken, "seed {seed:#x}");
    assert_eq!(locality.miss, locality.foreign, "seed {seed:#x}");
    assert_eq!(a.events().retired, 0, "there was no invalid free; seed {seed:#x}");
}

/// Returns a configuration in which zones of more than 4096 frames have several free areas.
fn config(tuning: PagesetTuning, invalid_free: InvalidFree) -> Config {
    Config { tuning, invalid_free, free_area_min: PageCount::ZERO, ..Config::default() }
}

#[test]
fn every_order_by_itself() {
    let mut taken = 0;
    for round in stress_rounds() {
        for wanted in 0..=10_u8 {
            let seed = round << 16 | u64::from(wanted);
            let tuning = TUNINGS[(seed as usize + round as usize) % 3];
            let invalid_free = if seed & 1 == 0 { InvalidFree::Checked } else { InvalidFree::Exact };
            let frames = [256, 1024, 8192][usize::from(wanted) / 4] + Random(seed).below(64);
            let stress =
                Stress { seed, threads: 2, cpus: 2, steps: 5000, orders: (wanted, wanted), changes: false };
            taken += run(&Plan::even(1, 2, frames), &config(tuning, invalid_free), stress);
            taken += run(
                &Plan::even(2, 1, frames),
                &config(tuning, invalid_free),
                Stress { changes: true, ..stress },
            );
        }
    }
    assert!(taken > 0);
}

#[test]
fn all_orders_mixed_under_every_rule() {
    let mut taken = 0;
    for round in stress_rounds() {
        for (at, tuning) in TUNINGS.into_iter().enumerate() {
            for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
                let seed = 0x1000 | round << 16 | (at as u64) << 1 | invalid_free as u64;
                let stress =
                    Stress { seed, threads: 2, cpus: 2, steps: 10_000, orders: (0, 10), changes: true };
                taken += run(&Plan::even(2, 1, 2048), &config(tuning, invalid_free), stress);
                taken += run(
                    &Plan::even(1, 2, 8192),
                    &config(tuning, invalid_free),
                    Stress { orders: (0, 3), ..stress },
                );
            }
        }
    }
    assert!(taken > 0);
}

#[test]
fn four_threads_on_two_nodes() {
    let mut taken = 0;
    for round in stress_rounds() {
        for (at, tuning) in TUNINGS.into_iter().enumerate() {
            let seed = 0x2000 | round << 16 | at as u64;
            let stress = Stress { seed, threads: 4, cpus: 4, steps: 8000, orders: (0, 4), changes: true };
            taken += run(&Plan::even(2, 2, 256), &config(tuning, InvalidFree::Checked), stress);
            taken += run(&Plan::even(2, 2, 1500), &config(tuning, InvalidFree::Exact), stress);
            // Four threads share one CPU, as migrated threads do.
            taken += run(
                &Plan::even(1, 1, 700),
                &config(tuning, InvalidFree::Checked),
                Stress { cpus: 1, ..stress },
            );
        }
    }
    assert!(taken > 0);
}

#[test]
fn many_free_areas_for_few_threads() {
    let mut taken = 0;
    for round in stress_rounds() {
        for (at, tuning) in TUNINGS.into_iter().enumerate() {
            let seed = 0x5000 | round << 16 | at as u64;
            let stress = Stress { seed, threads: 2, cpus: 2, steps: 8000, orders: (0, 10), changes: true };
            taken += run(&Plan::even(1, 2, 6 * 4096 + 100), &config(tuning, InvalidFree::Checked), stress);
            let single = Stress { orders: (0, 0), steps: 30_000, ..stress };
            taken += run(&Plan::even(1, 2, 3 * 4096), &config(tuning, InvalidFree::Exact), single);
        }
    }
    assert!(taken > 0);
}

#[test]
fn orders_up_to_eighteen() {
    let mut taken = 0;
    for round in stress_rounds() {
        let seed = 0x3000 | round << 16;
        let stress = Stress { seed, threads: 2, cpus: 2, steps: 600, orders: (7, 18), changes: true };
        let config = Config { max_order: order(18), ..Config::default() };
        taken += run(&Plan::even(1, 2, 1 << 19), &config, stress);
    }
    assert!(taken > 0);
}

#[test]
fn lists_are_rebuilt_while_they_are_walked() {
    let mut taken = 0;
    for round in stress_rounds() {
        for (at, invalid_free) in [InvalidFree::Checked, InvalidFree::Exact].into_iter().enumerate() {
            // The small far nodes have no CPUs, and lose all their memory again and again.
            let mut plan = Plan::with_distances(1, 600, |a, b| if a.max(b) > 1 { 40 } else { 20 }, 4);
            for far in [2, 3] {
                plan.nodes[far].1.clear();
                plan.zones[far].4[0].1 = 40;
            }
            let seed = 0x4000 | round << 16 | at as u64;
            let stress = Stress { seed, threads: 2, cpus: 2, steps: 20_000, orders: (0, 4), changes: true };
            taken += run(&plan, &config(PagesetTuning::default(), invalid_free), stress);
        }
    }
    assert!(taken > 0);
}
