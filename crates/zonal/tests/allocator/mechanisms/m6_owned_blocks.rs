//! Tests of blocks owned by CPUs (M6): where frames come from, how they find their owner, and what ends ownership.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::common::scenarios::{all_free, pages};
use crate::common::{Cells, Plan, Random, World, YieldLock, order, range, run_on};
use zonal::config::{Config, InvalidFree, OwnedBlocks};
use zonal::platform::RawLock;
use zonal::request::Block;
use zonal::units::{CpuId, PageKind};
use zonal::{Request, Retirement};

/// Frames of a node: 128 blocks of 2 MiB, so that each of two CPUs has two entries.
const FRAMES: u64 = 1 << 16;
/// Frames of a 2 MiB block.
const BLOCK: u64 = 512;

fn owning(cpus: u32) -> World {
    run_on(0);
    Plan::even(1, cpus, FRAMES).build(&Config { owned_blocks: OwnedBlocks::On, ..Config::default() })
}

fn alloc(world: &World, block_order: u8) -> Block {
    world.allocator.alloc(&Request::new(order(block_order))).unwrap()
}

fn free(world: &World, block: Block) {
    world.allocator.free(block.first, block.order).unwrap();
}

/// Returns the free frames of the zone, which do not include those of owned blocks.
fn free_frames(world: &World) -> u64 {
    world.allocator.verify().unwrap();
    world.zone(0).free.get()
}

/// A CPU that owns the block around the returned one.
fn with_owned_block() -> (World, Block) {
    let world = owning(2);
    let block = alloc(&world, 5);
    assert_eq!(free_frames(&world), FRAMES - BLOCK);
    (world, block)
}

#[test]
fn a_whole_block_leaves_the_zone_once() {
    let (world, first) = with_owned_block();
    let more: Vec<_> = (0..15).map(|_| alloc(&world, 5)).collect();
    assert_eq!(free_frames(&world), FRAMES - BLOCK, "sixteen blocks of 32 frames fill the owned block");
    let next = alloc(&world, 5);
    assert_eq!(free_frames(&world), FRAMES - 2 * BLOCK);
    more.into_iter().chain([first, next]).for_each(|block| free(&world, block));
    world.allocator.drain_pagesets();
    all_free(&world);
}

#[test]
fn frees_by_any_cpu_reach_the_owner_and_a_whole_block_returns_to_the_zone() {
    let (world, block) = with_owned_block();
    let others: Vec<_> = (0..3).map(|_| alloc(&world, 6)).collect();
    run_on(1);
    free(&world, block);
    assert_eq!(free_frames(&world), FRAMES - BLOCK, "the owner has the frames");
    others.into_iter().for_each(|block| free(&world, block));
    assert_eq!(free_frames(&world), FRAMES, "the last free completes the block");
}

#[test]
fn a_full_block_is_still_owned() {
    let (world, first) = with_owned_block();
    let rest: Vec<_> = (0..15).map(|_| alloc(&world, 5)).collect();
    let elsewhere = alloc(&world, 8);
    run_on(1);
    free(&world, first);
    assert_eq!(free_frames(&world), FRAMES - 2 * BLOCK);
    run_on(0);
    let again = alloc(&world, 5);
    assert_eq!(again.first, first.first, "the fullest block serves");
    rest.into_iter().chain([again, elsewhere]).for_each(|block| free(&world, block));
    world.allocator.drain_pagesets();
    all_free(&world);
}

#[test]
fn single_frames_are_refilled_from_the_cpus_blocks() {
    let (world, block) = with_owned_block();
    let frames: Vec<_> = (0..100).map(|_| alloc(&world, 0)).collect();
    let around = |other: &Block| other.first.get() / BLOCK == block.first.get() / BLOCK;
    assert!(frames.iter().all(around));
    assert_eq!(free_frames(&world), FRAMES - BLOCK);
    frames.into_iter().for_each(|frame| free(&world, frame));
    free(&world, block);
    world.allocator.drain_pagesets();
    all_free(&world);
}

thread_local! {
    /// Called after each release of a lock until it returns `true`.
    static RELEASED: Cell<Option<Box<dyn Fn() -> bool>>> = const { Cell::new(None) };
}

/// A lock whose release lets a test act for another CPU.
struct HookedLock(YieldLock);

impl RawLock for HookedLock {
    fn new() -> Self {
        Self(YieldLock::new())
    }

    fn lock(&self) {
        self.0.lock();
    }

    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    fn unlock(&self) {
        self.0.unlock();
        if let Some(hook) = RELEASED.take()
            && !hook()
        {
            RELEASED.set(Some(hook));
        }
    }
}

struct Hooked;

impl Cells for Hooked {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = HookedLock;
}

#[test]
fn a_block_that_is_whole_again_can_have_a_new_owner_at_once() {
    run_on(0);
    let config = Config { owned_blocks: OwnedBlocks::On, ..Config::default() };
    let world: &World<Hooked> = Box::leak(Box::new(Plan::even(1, 3, FRAMES).build_of(&config, |_| ())));
    let a = &world.allocator;
    // Only the first block is whole.
    for first in (FRAMES + BLOCK..2 * FRAMES).step_by(BLOCK as usize) {
        a.alloc_range(range(first, BLOCK / 2), PageKind::User).unwrap();
    }
    let of_64 = Request::new(order(6));
    let held: Vec<_> = (0..8).map(|_| a.alloc(&of_64).unwrap()).collect();
    let whole_blocks = || a.zones().next().unwrap().free_blocks[9];
    assert_eq!(whole_blocks(), 0);
    let new_owner = Rc::new(Cell::new(None));
    let found = Rc::clone(&new_owner);
    RELEASED.set(Some(Box::new(move || {
        let is_returned = whole_blocks() != 0;
        if is_returned {
            run_on(2);
            found.set(a.alloc(&of_64).ok());
            run_on(1);
        }
        is_returned
    })));
    run_on(1);
    held.into_iter().for_each(|block| a.free(block.first, block.order).unwrap());
    let block = new_owner.get().expect("the last free has returned the block");
    assert_eq!(block.first.get() / BLOCK, FRAMES / BLOCK);
    a.verify().unwrap();
    a.free(block.first, block.order).unwrap();
    a.drain_pagesets();
    assert_eq!(a.verify().unwrap().free, pages((FRAMES + BLOCK) / 2));
}

/// Everything that must find the frames of owned blocks, or ends ownership.
#[test]
fn ownership_ends_when_others_need_the_frames() {
    type End = fn(&World);
    let ends: [(&str, End); 7] = [
        ("idle ticks", |world| {
            for _ in 0..4 {
                world.controls.advance_ms(1000);
                world.allocator.tick();
            }
        }),
        ("off", |world| {
            world.allocator.set_setting("owned_blocks", "off").unwrap();
            world.allocator.tick();
        }),
        ("drain", |world| world.allocator.drain_pagesets()),
        ("offline CPU", |world| world.allocator.offline_cpu(CpuId::new(0)).unwrap()),
        ("fence", |world| drop(world.allocator.fence(range(FRAMES, 4)).unwrap())),
        ("range", |world| {
            let taken = world.allocator.alloc_range(range(FRAMES + 64, BLOCK - 64), PageKind::User).unwrap();
            world.allocator.free_frames(taken.range.start, taken.range.count).unwrap();
        }),
        ("retirement", |world| {
            let frame = range(FRAMES + 100, 1).start;
            assert_eq!(world.allocator.retire(frame), Ok(Retirement::Done));
        }),
    ];
    for (name, end) in ends {
        let (world, block) = with_owned_block();
        assert_eq!(block.first.get(), FRAMES, "the lowest block");
        run_on(1);
        end(&world);
        let retired = u64::from(name == "retirement");
        assert_eq!(free_frames(&world), FRAMES - 32 - retired, "{name}");
        free(&world, block);
        world.allocator.drain_pagesets();
        assert_eq!(free_frames(&world), FRAMES - retired, "{name}");
    }
}

#[test]
fn a_request_that_would_fail_gets_the_frames_that_other_cpus_own() {
    let (world, block) = with_owned_block();
    run_on(1);
    let held = world.alloc_all(&Request::page().no_wait());
    let from_owned = held.iter().filter(|frame| frame.first.get() / BLOCK == block.first.get() / BLOCK);
    assert_eq!(from_owned.count() as u64, BLOCK - 32);
    held.into_iter().chain([block]).for_each(|block| free(&world, block));
    world.allocator.drain_pagesets();
    all_free(&world);
}

#[test]
fn a_zone_below_low_gets_its_frames_back_with_the_next_tick() {
    let (world, block) = with_owned_block();
    run_on(1);
    let mut held = Vec::new();
    while world.zone(0).free >= world.zone(0).watermarks.low {
        held.push(world.allocator.alloc(&Request::new(order(9)).no_wait()).unwrap());
    }
    let before = free_frames(&world);
    world.allocator.tick();
    assert_eq!(free_frames(&world), before + BLOCK - 32);
    held.into_iter().chain([block]).for_each(|block| free(&world, block));
}

#[test]
fn disowned_frames_clear_full_bits() {
    let config = Config { owned_blocks: OwnedBlocks::On, ..Config::default() };
    let distance = |a: u16, b: u16| 10 + 10 * (a.abs_diff(b) as u8);
    let world = Plan::with_distances(1, FRAMES, distance, 3).build(&config);
    let take = |block_order| world.allocator.alloc(&Request::new(order(block_order)).no_wait()).unwrap();
    run_on(1);
    let blocks: Vec<_> = (0..16 * 8).map(|_| take(5)).collect();
    blocks.into_iter().filter(|block| block.first.get() % BLOCK != 0).for_each(|block| free(&world, block));
    run_on(2);
    for wanted in [9, 5, 3] {
        while take(wanted).node.get() != 0 {}
    }
    world.allocator.tick();
    assert!((0..100).all(|_| take(3).node.get() == 1), "the nearer node has frames again");
}

#[test]
fn invalid_frees_into_owned_blocks_are_refused() {
    for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
        run_on(0);
        let config = Config { owned_blocks: OwnedBlocks::On, invalid_free, ..Config::default() };
        let world = Plan::even(1, 1, FRAMES).build(&config);
        let (block, other) = (alloc(&world, 5), alloc(&world, 7));
        free(&world, other);
        world.allocator.free(other.first, other.order).unwrap_err();
        world.allocator.free(block.first.plus(pages(1)), order(0)).unwrap_err();
        world.allocator.free(block.first, order(4)).unwrap_err();
        free(&world, block);
        world.allocator.drain_pagesets();
        all_free(&world);
    }
}

#[test]
fn blocks_of_all_orders_from_many_threads_leave_nothing_behind() {
    const CPUS: u32 = 4;
    let world = &owning(CPUS);
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CPUS)
            .map(|cpu| {
                scope.spawn(move || {
                    let (mut random, mut held) = (Random(u64::from(cpu) + 1), Vec::new());
                    for step in 0..3000 {
                        run_on(random.below(u64::from(CPUS)) as u32);
                        if held.len() < 60 && !random.once_in(3) {
                            let request = Request::new(order(random.below(10) as u8)).no_wait();
                            held.extend(world.allocator.alloc(&request));
                        } else if !held.is_empty() {
                            let at = random.below(held.len() as u64) as usize;
                            free(world, held.swap_remove(at));
                        }
                        if step % 500 == 0 {
                            world.allocator.drain_pagesets();
                        }
                    }
                    held.into_iter().for_each(|block| free(world, block));
                })
            })
            .collect();
        scope.spawn(move || {
            let (mut random, mut fenced) = (Random(99), 0);
            // Relaxed: only an end is awaited.
            while !done.load(Relaxed) || fenced == 0 {
                world.allocator.tick();
                let first = FRAMES + random.below(FRAMES - BLOCK);
                let fence = world.allocator.fence(range(first, BLOCK)).unwrap();
                assert_eq!(world.allocator.count_free(range(first, BLOCK)).get(), 0, "the fence has them");
                drop(fence);
                fenced += 1;
                let setting = if fenced % 2 == 0 { "on" } else { "off" };
                world.allocator.set_setting("owned_blocks", setting).unwrap();
                std::thread::yield_now();
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Relaxed);
    });
    world.allocator.verify().unwrap();
    world.allocator.drain_pagesets();
    all_free(world);
}
