//! Tests on the most unhelpful platform that the contract allows. It returns another CPU at each call, which may be
//! unknown. It disturbs the operations of a CPU on its own pagesets, and its clock is arbitrary.
//!
//! All hints may then be wrong, but frames are neither lost nor allocated twice, and no request fails while there are
//! plenty of free frames.

use std::cell::{Cell, RefCell};

use crate::common::access::{Disturbance, Pushed};
use crate::common::scenarios::{TestAllocator, with_min};
use crate::common::{Plan, Random, order, stress_rounds};
use zonal::config::{InvalidFree, NodeReclaim, ZonelistCache};
use zonal::request::{Block, PageKind};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Moment, PageCount, Pfn};
use zonal::{Config, Request};
use zonal_testing::Ledger;

const CPUS: u64 = 4;
const FRAMES: u64 = 1 << 13;
/// A year of the clock.
const YEAR_NS: u64 = 365 * 24 * 3600 * 1_000_000_000;

thread_local! {
    /// Generator of the platform's random choices, or `None` while the platform behaves normally.
    static DICE: RefCell<Option<Random>> = const { RefCell::new(None) };
    /// Whether [`WEDGED_CPU`] vanished in the middle of an operation, so that its pagesets cannot be locked.
    static WEDGED: Cell<bool> = const { Cell::new(false) };
}

const WEDGED_CPU: CpuId = CpuId::new(3);

/// Returns a random number of the calling thread, or 0 while the platform behaves normally.
fn throw(bound: u64) -> u64 {
    DICE.with_borrow_mut(|dice| dice.as_mut().map_or(0, |dice| dice.below(bound)))
}

/// CPU-local access that sometimes fails.
struct Disturbed;

impl Disturbance for Disturbed {
    fn may_pop(&self) -> bool {
        throw(4) != 1
    }

    fn push(&self) -> Pushed {
        match throw(8) {
            1 => Pushed::Never,
            2 => Pushed::Refused,
            _ => Pushed::IfItFits,
        }
    }

    fn may_lock(&self, _cpu: CpuId) -> bool {
        throw(4) != 1
    }

    fn may_lock_remotely(&self, cpu: CpuId) -> bool {
        throw(4) != 1 && !(cpu == WEDGED_CPU && WEDGED.get())
    }
}

/// Returns any CPU, also an unknown one.
fn any_cpu(there: u32) -> u32 {
    match throw(8) {
        0 => there,
        1 => u32::MAX,
        2 => CPUS as u32,
        at => (at % CPUS) as u32,
    }
}

/// Returns an arbitrary time.
fn any_time(there: Moment) -> Moment {
    match throw(16) {
        1 => Moment::from_ns(0),
        2 => Moment::from_ns(u64::MAX),
        3 => Moment::from_ns(there.ns() + 500 * YEAR_NS),
        4 => Moment::from_ns(there.ns() + throw(3_000_000_000)),
        _ => there,
    }
}

/// Builds two nodes with two CPUs each, on a platform with hostile behavior.
fn build(config: &Config) -> TestAllocator {
    let world = Plan::even(2, 2, FRAMES).build_in(config, |controls| {
        controls.disturb(&Disturbed);
        controls.change_cpu(any_cpu);
        controls.change_time(any_time);
    });
    world.allocator
}

/// One thread of a test on the hostile platform.
struct Worker<'a> {
    a: &'a TestAllocator,
    owners: &'a Ledger,
    name: u32,
    random: Random,
    held: Vec<Block>,
}

impl Worker<'_> {
    fn run(mut self, steps: u32) {
        DICE.set(Some(Random(self.random.bits())));
        for _ in 0..steps {
            match self.random.below(100) {
                0..2 => self.a.drain_pagesets(),
                2..4 => self.a.tick(),
                4..6 => {
                    let node = crate::common::node(self.random.below(2) as u16);
                    self.a.background_reclaim(node);
                }
                6..10 => self.bulk(),
                10..50 => self.free_one(),
                _ => self.take_one(),
            }
        }
        while !self.held.is_empty() {
            self.free_one();
        }
        DICE.set(None);
    }

    fn take_one(&mut self) {
        if self.held.len() == 100 {
            return;
        }
        let wanted = order(self.random.pick(&[0, 0, 0, 0, 0, 0, 1, 2, 3, 4]));
        let kind = self.random.pick(&PageKind::ALL);
        let block = self.a.alloc(&Request::new(wanted).kind(kind)).expect("there is plenty");
        self.owners.assign(block.first.get(), wanted.pages().get(), self.name);
        self.held.push(block);
    }

    fn free_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let block = self.held.swap_remove(self.random.below(self.held.len() as u64) as usize);
        self.owners.release(block.first.get(), block.order.pages().get(), self.name);
        self.a.free(block.first, block.order).unwrap();
        if self.random.once_in(8) {
            // Another thread may own this frame, so the test checks only that the accounting stays valid.
            self.a.free(Pfn::new(block.first.get() | 1 << 40), block.order).unwrap_err();
        }
    }

    fn bulk(&mut self) {
        let mut frames = [Pfn::new(0); 70];
        let came = self.a.alloc_bulk(&Request::page(), &mut frames).expect("there is plenty");
        assert_eq!(came, frames.len());
        frames.iter().for_each(|frame| self.owners.assign(frame.get(), 1, self.name));
        frames.iter().for_each(|frame| self.owners.release(frame.get(), 1, self.name));
        self.a.free_bulk(&frames).unwrap();
    }
}

fn configs() -> impl Iterator<Item = Config> {
    let tunings =
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed];
    let caches = [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Off];
    let choices = tunings.into_iter().flat_map(move |tuning| caches.map(|cache| (tuning, cache)));
    choices.enumerate().map(|(at, (tuning, zonelist_cache))| Config {
        tuning,
        zonelist_cache,
        node_reclaim: [NodeReclaim::OFF, NodeReclaim::ON][at % 2],
        invalid_free: [InvalidFree::Checked, InvalidFree::Exact][at / 2 % 2],
        past: zonal_history::PAST,
        ..with_min(64)
    })
}

fn history(config: &Config, threads: u32, seed: u64) {
    let a = build(config);
    let owners = Ledger::new(0..4 * FRAMES);
    std::thread::scope(|scope| {
        for name in 1..=threads {
            let (a, owners) = (&a, &owners);
            let random = Random(seed ^ u64::from(name) << 40);
            let worker = Worker { a, owners, name, random, held: Vec::new() };
            scope.spawn(move || worker.run(8000));
        }
    });
    assert_eq!(owners.owned().next(), None);
    a.drain_pagesets();
    let accounting = a.verify().unwrap_or_else(|why| panic!("{why} with seed {seed}, {config:?}"));
    assert_eq!((accounting.free, accounting.allocated), (accounting.managed, PageCount::ZERO), "seed {seed}");
}

#[test]
fn one_thread_among_false_hints_and_disturbances() {
    for round in stress_rounds() {
        configs().enumerate().for_each(|(at, config)| history(&config, 1, 100 * round + at as u64));
    }
}

#[test]
fn three_threads_among_false_hints_and_disturbances() {
    for round in stress_rounds() {
        configs().enumerate().for_each(|(at, config)| history(&config, 3, 100 * round + at as u64));
    }
}

#[test]
fn a_cpu_that_stops_inside_an_operation_costs_only_its_cached_frames() {
    let a = build(&with_min(64));
    crate::common::run_on(WEDGED_CPU.get());
    let mut held: Vec<Block> = (0..500).map(|_| a.alloc(&Request::page()).unwrap()).collect();
    held.drain(..300).for_each(|block| a.free(block.first, block.order).unwrap());
    let kept: u64 = a.pagesets().map(|pageset| pageset.count.get()).sum();
    assert!(kept > 0);
    WEDGED.set(true);
    crate::common::run_on(0);
    while let Ok(block) = a.alloc(&Request::page().no_wait()) {
        held.push(block);
    }
    let accounting = a.accounting(); // `verify` would wait for the pageset that cannot be locked
    assert!(accounting.balance());
    assert_eq!(accounting.in_pagesets.get(), kept);
    assert!(accounting.free.get() <= 64 + 2 * u64::from(a.zones().next().unwrap().stat_threshold));
    a.tick();
    held.drain(..).for_each(|block| a.free(block.first, block.order).unwrap());
    a.drain_pagesets();
    assert_eq!(a.accounting().in_pagesets.get(), kept, "all others were emptied");
    WEDGED.set(false);
    a.drain_pagesets();
    let accounting = a.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed, "and if it comes back, nothing was lost");
}
