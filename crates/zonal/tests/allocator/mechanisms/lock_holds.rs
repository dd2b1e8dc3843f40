//! Tests that few frames move, and few cells are accessed, under one hold of a lock, however deep pagesets are.
//!
//! The platform counts the frames whose states change, and all accesses, between each lock and its release. The count of
//! frames that the allocator itself reports must agree with the limit too.

use std::cell::RefCell;

use crate::common::access::Disturbance;
use crate::common::watched::{Access, Kind};
use crate::common::watching::{WatchedAllocator, Watcher, watch};
use crate::common::{Plan, Random, range, run_on};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Order, Pfn};
use zonal::{Config, Request};

/// Largest number of frames that may move under one hold.
const FRAMES_MAX: u64 = 512;
/// Most accesses under one hold of a pageset's lock, and of a free area's lock.
const ACCESSES_MAX: u64 = 15_000;
const AREA_ACCESSES_MAX: u64 = 2_000;

/// What happened on this thread, and under each lock that it holds.
#[derive(Default)]
struct Holds {
    accesses: u64,
    states: u64,
    /// The lock word of the pageset that is locked, and the counts when it was.
    pageset: Option<(usize, u64, u64)>,
    /// Other locks: address and counts. The first is the lock for run-time changes if there are two.
    locks: Vec<(usize, u64, u64)>,
    longest: Longest,
}

/// The longest holds.
#[derive(Clone, Copy, Default, Debug)]
struct Longest {
    /// Frame states changed under a pageset's lock.
    frames: u64,
    /// Accesses under the lock of a pageset.
    accesses: u64,
    /// Accesses under the lock of a free area, while a pageset is locked.
    area_accesses: u64,
}

thread_local! {
    static HOLDS: RefCell<Holds> = RefCell::default();
}

/// Counts accesses, and the holds of locks and pagesets.
struct Counted;

impl Watcher for Counted {
    fn before(&self, access: Access) {
        HOLDS.with_borrow_mut(|holds| {
            holds.accesses += 1;
            // The only cells of one byte are frame states.
            holds.states += u64::from(access.bytes == 1 && access.kind != Kind::Read);
            if let Some((address, accesses, states)) = holds.pageset
                && access.address == address
                && access.kind == Kind::Write
            {
                holds.longest.frames = holds.longest.frames.max(holds.states - states);
                holds.longest.accesses = holds.longest.accesses.max(holds.accesses - accesses);
                holds.pageset = None;
            }
        });
    }

    fn took_lock(&self, address: usize) {
        HOLDS.with_borrow_mut(|holds| holds.locks.push((address, holds.accesses, holds.states)));
    }

    fn freed_lock(&self, address: usize) {
        HOLDS.with_borrow_mut(|holds| {
            let (last, accesses, _) = holds.locks.pop().unwrap();
            assert_eq!(last, address);
            if holds.pageset.is_some() {
                holds.longest.area_accesses = holds.longest.area_accesses.max(holds.accesses - accesses);
            }
        });
    }
}

impl Disturbance for Counted {
    fn locked(&self, address: usize) {
        HOLDS.with_borrow_mut(|holds| {
            assert!(holds.pageset.is_none(), "two pagesets are locked");
            holds.pageset = Some((address, holds.accesses, holds.states));
        });
    }
}

/// Frames of the zone: 1 GiB, whose pagesets may have 16384 frames each.
const FRAMES: u64 = 1 << 18;
const DEEP: u64 = 16_384;
/// Start of as much memory that comes online later.
const MORE: u64 = 1 << 19;

fn deep(tuning: PagesetTuning) -> WatchedAllocator {
    let config = Config { tuning, high_fraction: 8, past: zonal_history::PAST, ..Config::default() };
    let mut plan = Plan::even(1, 2, FRAMES);
    let zone = &mut plan.zones[0];
    zone.3 = MORE + FRAMES - zone.2;
    plan.hotplug.push((MORE, FRAMES));
    HOLDS.set(Holds::default());
    watch(&Counted);
    plan.build_of(&config, |controls| controls.disturb(&Counted)).allocator
}

/// Allocates `count` frames, or all, and frees them in an order given by `sort`.
fn out_and_back(world: &WatchedAllocator, count: usize, sort: impl FnOnce(&mut [Pfn])) {
    let mut frames: Vec<Pfn> = std::iter::from_fn(|| world.alloc(&Request::page()).ok())
        .map(|block| block.first)
        .take(count)
        .collect();
    sort(&mut frames);
    frames.iter().for_each(|&frame| world.free(frame, Order::PAGE).unwrap());
}

fn shuffle(frames: &mut [Pfn]) {
    let mut random = Random(5);
    (1..frames.len()).for_each(|at| frames.swap(at, random.below(at as u64 + 1) as usize));
}

/// Returns how many frames the pageset of a CPU holds.
fn count(world: &WatchedAllocator, cpu: u32) -> u64 {
    world.pagesets().filter(|pageset| pageset.cpu == CpuId::new(cpu)).map(|pageset| pageset.count.get()).sum()
}

/// Fills the pagesets of both CPUs as deep as they may be.
fn fill_pagesets(world: &WatchedAllocator) {
    for cpu in [1, 0] {
        run_on(cpu);
        out_and_back(world, 2 * DEEP as usize, |_| ());
        assert!(count(world, cpu) > DEEP / 2, "{} frames", count(world, cpu));
    }
}

/// Does everything that moves many frames.
fn exercise(world: &WatchedAllocator, tuning: PagesetTuning) {
    out_and_back(world, usize::MAX, <[Pfn]>::reverse);
    out_and_back(world, usize::MAX, |_| ());
    out_and_back(world, FRAMES as usize / 4, shuffle);
    fill_pagesets(world);
    world.drain_pagesets();
    assert_eq!([count(world, 0), count(world, 1)], [0, 0]);
    let mut many = vec![Pfn::default(); 10_000];
    for sort in [|_: &mut [Pfn]| (), <[Pfn]>::reverse, shuffle] {
        assert_eq!(world.alloc_bulk(&Request::page(), &mut many), Ok(many.len()));
        sort(&mut many);
        world.free_bulk(&many).unwrap();
    }
    fill_pagesets(world);
    world.offline_cpu(CpuId::new(1)).unwrap();
    assert_eq!(count(world, 1), 0, "a closed pageset is empty");
    world.online_cpu(CpuId::new(1)).unwrap();
    // A pageset that becomes shallow gives its surplus back with the next free, in as many holds as that needs.
    fill_pagesets(world);
    let block = world.alloc(&Request::page()).unwrap();
    world.set_high_fraction(1 << 10);
    world.free(block.first, block.order).unwrap();
    let high = world.pagesets().next().unwrap().high.get();
    // The published rule of 2023 approaches the new `high` by one batch with each free.
    let is_shallow = count(world, 0) <= high || tuning == PagesetTuning::DepthPublished;
    assert!(high < 1000 && is_shallow, "{} frames at high {high}", count(world, 0));
    world.set_high_fraction(8);
    fill_pagesets(world);
    let more = range(MORE, FRAMES);
    world.online_memory(more).unwrap();
    out_and_back(world, usize::MAX, |_| ());
    world.offline_memory(more).unwrap();
    fill_pagesets(world);
    for _ in 0..40 {
        world.platform().0.advance_ms(1000);
        world.tick();
    }
}

#[test]
fn few_frames_move_under_one_hold_of_a_lock() {
    run_on(0);
    for tuning in
        [PagesetTuning::Depth, PagesetTuning::DepthPublished, PagesetTuning::Stepwise, PagesetTuning::Fixed]
    {
        let world = deep(tuning);
        exercise(&world, tuning);
        let longest = HOLDS.with_borrow(|holds| holds.longest);
        let reported = world.pagesets().map(|pageset| pageset.longest_hold.get()).max().unwrap();
        // The frame that is popped or pushed after the refill or before the drain changes its state, too.
        assert!(longest.frames <= FRAMES_MAX + 1, "{tuning:?}: {longest:?}");
        assert!(longest.frames >= FRAMES_MAX, "{tuning:?}: the limit was never reached: {longest:?}");
        assert_eq!(reported, FRAMES_MAX, "{tuning:?}");
        assert!(longest.accesses <= ACCESSES_MAX, "{tuning:?}: {longest:?}");
        assert!(longest.area_accesses <= AREA_ACCESSES_MAX, "{tuning:?}: {longest:?}");
        // The check of the whole state holds each pageset's lock while it reads all its frames.
        let accounting = world.verify().unwrap();
        assert!(accounting.balance(), "{accounting:?}");
    }
}
