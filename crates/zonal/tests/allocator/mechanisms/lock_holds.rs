//! Tests that few frames move, and few cells are accessed, under one hold of a lock, however deep pagesets are.
//!
//! The platform counts the frames whose states change, and all accesses, between each lock and its release. The count of
//! frames that the allocator itself reports must agree with the limit too.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::common::watched::{Access, Kind, Watch};
use crate::common::{Plan, Random, range, run_on};
use zonal::platform::cpu_local::{CpuLocal, Head, PagesetSlot, PagesetSlots, Popped, Push, Step, TryLock};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Moment, Order, Pfn};
use zonal::{Allocator, Config, Platform, Request};

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
    static CPU: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Counts an access. `STATES` says whether the cell is a frame's state.
struct Counted<const STATES: bool>;

impl<const STATES: bool> Watch for Counted<STATES> {
    fn saw(access: Access) {
        HOLDS.with_borrow_mut(|holds| {
            holds.accesses += 1;
            holds.states += u64::from(STATES && access.kind != Kind::Read);
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

    fn took_lock(address: usize) {
        HOLDS.with_borrow_mut(|holds| holds.locks.push((address, holds.accesses, holds.states)));
    }

    fn freed_lock(address: usize) {
        HOLDS.with_borrow_mut(|holds| {
            let (last, accesses, _) = holds.locks.pop().unwrap();
            assert_eq!(last, address);
            if holds.pageset.is_some() {
                holds.longest.area_accesses = holds.longest.area_accesses.max(holds.accesses - accesses);
            }
        });
    }
}

/// Access under a lock, whose holds are counted.
struct Noted;

impl CpuLocal<Measured> for Noted {
    fn pop_current<'m>(
        &self,
        platform: &Measured,
        slots: &PagesetSlots<'m, Measured>,
        step: Step,
    ) -> (&'m PagesetSlot<'m, Measured>, Popped) {
        TryLock.pop_current(platform, slots, step)
    }

    fn pop_current_if<'m>(
        &self,
        platform: &Measured,
        slots: &PagesetSlots<'m, Measured>,
        step: Step,
        accepts: impl FnOnce(&PagesetSlot<'m, Measured>) -> bool,
    ) -> Option<(&'m PagesetSlot<'m, Measured>, Popped)> {
        TryLock.pop_current_if(platform, slots, step, accepts)
    }

    fn push_current<'m>(
        &self,
        platform: &Measured,
        slots: &PagesetSlots<'m, Measured>,
        prepare: impl FnOnce(&'m PagesetSlot<'m, Measured>) -> Option<Push>,
        refused: impl FnOnce(&'m PagesetSlot<'m, Measured>, Push) -> bool,
    ) -> bool {
        TryLock.push_current(platform, slots, prepare, refused)
    }

    fn lock(&self, cpu: CpuId, head: &Head<Measured>) -> bool {
        if !CpuLocal::<Measured>::lock(&TryLock, cpu, head) {
            return false;
        }
        HOLDS.with_borrow_mut(|holds| {
            assert!(holds.pageset.is_none(), "two pagesets are locked");
            holds.pageset = Some((std::ptr::from_ref(&head.lock_word).addr(), holds.accesses, holds.states));
        });
        true
    }

    fn lock_remote(&self, cpu: CpuId, head: &Head<Measured>) -> bool {
        self.lock(cpu, head)
    }
}

/// A platform whose cells and locks are counted.
struct Measured(AtomicU64);

impl Platform for Measured {
    type U8 = crate::common::watched::Cell<AtomicU8, Counted<true>>;
    type U32 = crate::common::watched::Cell<AtomicU32, Counted<false>>;
    type U64 = crate::common::watched::Cell<AtomicU64, Counted<false>>;
    type Lock = crate::common::watched::Lock<Counted<false>>;
    type CpuLocal = Noted;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn cpu_local(&self) -> &Noted {
        &Noted
    }

    fn now(&self) -> Moment {
        Moment::from_ns(self.0.load(Relaxed))
    }
}

type World = Allocator<'static, Measured>;

/// Frames of the zone: 1 GiB, whose pagesets may have 16384 frames each.
const FRAMES: u64 = 1 << 18;
const DEEP: u64 = 16_384;
/// Start of as much memory that comes online later.
const MORE: u64 = 1 << 19;

fn deep(tuning: PagesetTuning) -> World {
    let config = Config { tuning, high_fraction: 8, past: zonal_history::PAST, ..Config::default() };
    let mut plan = Plan::even(1, 2, FRAMES);
    let zone = &mut plan.zones[0];
    zone.3 = MORE + FRAMES - zone.2;
    plan.hotplug.push((MORE, FRAMES));
    HOLDS.set(Holds::default());
    plan.try_build(&config, Measured(AtomicU64::new(0))).unwrap()
}

/// Allocates `count` frames, or all, and frees them in an order given by `sort`.
fn out_and_back(world: &World, count: usize, sort: impl FnOnce(&mut [Pfn])) {
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
fn count(world: &World, cpu: u32) -> u64 {
    world.pagesets().filter(|pageset| pageset.cpu == CpuId::new(cpu)).map(|pageset| pageset.count.get()).sum()
}

/// Fills the pagesets of both CPUs as deep as they may be.
fn fill_pagesets(world: &World) {
    for cpu in [1, 0] {
        CPU.set(cpu);
        out_and_back(world, 2 * DEEP as usize, |_| ());
        assert!(count(world, cpu) > DEEP / 2, "{} frames", count(world, cpu));
    }
}

/// Does everything that moves many frames.
fn exercise(world: &World, tuning: PagesetTuning) {
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
        world.platform().0.fetch_add(1_000_000_000, Relaxed);
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
