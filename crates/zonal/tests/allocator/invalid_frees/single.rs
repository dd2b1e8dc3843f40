//! Tests that invalid frees are refused with an error that names the frame, and change nothing. Also tests the effects
//! of the hardening options.

use crate::common::{Plan, World, node, order, range, run_on};
use std::sync::atomic::Ordering::Relaxed;
use zonal::config::{Hardening, InvalidFree, ZeroOn};
use zonal::error::{AllocError, ConfigError, FreeError};
use zonal::request::{Block, PageKind};
use zonal::snapshot::Accounting;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, Request};

const START: u64 = 1 << 16;
const FRAMES: u64 = 1 << 14;
const HOLE: u64 = START + 8192;

/// Returns a machine with two CPUs and a zone with a hole of 2048 frames in the middle and unmanaged frames at both
/// ends.
fn plan_with_hole() -> Plan {
    let mut plan = Plan::even(1, 2, FRAMES);
    let ranges = vec![(START, HOLE - START), (HOLE + 2048, FRAMES - 8192 - 2048)];
    plan.zones = vec![(0, ZoneKind::Normal, START - 100, FRAMES + 200, ranges)];
    plan
}

fn orders() -> impl Iterator<Item = Order> {
    (0..=10).map(order)
}

/// Checks that the free fails with `error` and does not change the accounting.
fn refused(world: &World, frame: Pfn, given: Order, error: FreeError) {
    let before = world.allocator.verify().unwrap();
    assert_eq!(world.allocator.free(frame, given), Err(error), "{frame} with order {given}");
    assert_eq!(world.allocator.verify().unwrap(), before);
    assert!(error.to_string().contains(&frame.to_string()), "{error}");
}

fn for_both(mut test: impl FnMut(&Config)) {
    for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
        test(&Config { invalid_free, ..Config::default() });
    }
}

#[test]
fn frees_of_what_is_not_allocated() {
    for_both(|config| {
        let world = plan_with_hole().build(config);
        for order in orders() {
            run_on(0);
            let never = Pfn::new(START + FRAMES - order.pages().get());
            refused(&world, never, order, FreeError::NotAllocated(never));
            let block = world.allocator.alloc(&Request::new(order)).unwrap();
            world.allocator.free(block.first, order).unwrap();
            // The block is freed again by the same CPU and by another one, while it is in the pageset and while it is
            // in the buddy allocator.
            refused(&world, block.first, order, FreeError::NotAllocated(block.first));
            run_on(1);
            refused(&world, block.first, order, FreeError::NotAllocated(block.first));
            world.allocator.drain_pagesets();
            refused(&world, block.first, order, FreeError::NotAllocated(block.first));
        }
    });
}

#[test]
fn frees_inside_a_block_or_with_another_order() {
    for_both(|config| {
        let world = plan_with_hole().build(config);
        for allocated in orders() {
            run_on(u32::from(allocated.get()) % 2);
            let block = world.allocator.alloc(&Request::new(allocated)).unwrap();
            for given in orders().filter(|&given| given != allocated) {
                let frame = block.first;
                refused(&world, frame, given, FreeError::WrongOrder { frame, allocated, given });
            }
            let pages = allocated.pages().get();
            for inside in [1, pages / 2, pages - 1].into_iter().filter(|&at| (1..pages).contains(&at)) {
                let frame = block.first.plus(PageCount::new(inside));
                for given in orders() {
                    let error = FreeError::InsideBlock { frame, block: block.first, order: allocated };
                    refused(&world, frame, given, error); // most of these frames are misaligned
                }
            }
            world.allocator.free(block.first, allocated).unwrap();
        }
        world.allocator.drain_pagesets();
        let accounting = world.allocator.verify().unwrap();
        assert_eq!(accounting.free, accounting.managed);
    });
}

#[test]
fn frees_of_foreign_frames() {
    for_both(|config| {
        let world = plan_with_hole().build(config);
        run_on(0);
        let offline = range(START, 1024);
        world.allocator.offline_memory(offline).unwrap();
        let outside = [0, 1, START - 101, START - 100, START - 1, START + FRAMES, START + FRAMES + 99];
        let absent = [HOLE, HOLE + 2047, START, START + 1023, START + FRAMES + 100, u64::MAX];
        for frame in outside.into_iter().chain(absent).map(Pfn::new) {
            for order in orders() {
                refused(&world, frame, order, FreeError::NotManaged(frame));
            }
        }
        world.allocator.online_memory(offline).unwrap();
        refused(&world, Pfn::new(START), Order::PAGE, FreeError::NotAllocated(Pfn::new(START)));
    });
}

/// The refusal depends on the block around the frame: allocated, free, or in quarantine.
#[test]
fn refusals_name_the_block_around_a_frame() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    let a = &world.allocator;
    let inside = |block: &Block, at: u64| block.first.plus(PageCount::new(at));
    let largest = a.alloc(&Request::new(Order::DEFAULT_MAX)).unwrap();
    for at in [1, 2, 3, 511, 512, 513, 1023] {
        let frame = inside(&largest, at);
        let error = FreeError::InsideBlock { frame, block: largest.first, order: largest.order };
        refused(&world, frame, Order::PAGE, error);
        let text = error.to_string();
        let parts = [format!("frame {frame} "), format!("order 10 at frame {}", largest.first)];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    a.free(largest.first, largest.order).unwrap();
    // The frames are next to a smaller block, in the place of the larger block that was freed.
    let page = a.alloc(&Request::page()).unwrap();
    for at in [1, 2, 512, 1023] {
        let frame = Pfn::new((page.first.get() & !1023) + at);
        if frame != page.first {
            refused(&world, frame, Order::PAGE, FreeError::NotAllocated(frame));
        }
    }
    // The frame is inside a free block, which is first in a pageset and then in the buddy allocator.
    let eight = a.alloc(&Request::new(order(3))).unwrap();
    a.free(eight.first, eight.order).unwrap();
    for _ in 0..2 {
        refused(&world, inside(&eight, 5), Order::PAGE, FreeError::NotAllocated(inside(&eight, 5)));
        a.drain_pagesets();
    }
    // The frame is inside a block in quarantine.
    let kept = Hardening { quarantine: PageCount::new(64), ..Hardening::default() };
    let world = Plan::even(1, 1, FRAMES).build(&Config { hardening: kept, ..Config::default() });
    let block = world.allocator.alloc(&Request::new(order(3))).unwrap();
    let frame = inside(&block, 6);
    let error = FreeError::InsideBlock { frame, block: block.first, order: block.order };
    refused(&world, frame, order(1), error);
    world.allocator.free(block.first, block.order).unwrap();
    refused(&world, frame, order(1), FreeError::Quarantined(frame));
}

#[test]
fn another_cpu_may_free() {
    for_both(|config| {
        let world = Plan::even(2, 1, FRAMES).build(config);
        let a = &world.allocator;
        for (order, kind) in orders().flat_map(|order| PageKind::ALL.map(|kind| (order, kind))) {
            run_on(0);
            let block = a.alloc(&Request::new(order).kind(kind)).unwrap();
            assert_eq!(block.node, node(0));
            assert_eq!(a.nodes().next().unwrap().allocated[kind as usize], order.pages());
            run_on([1, 77][order.get() as usize % 2]); // a CPU of the other node, or an unknown CPU
            a.free(block.first, order).unwrap();
            refused(&world, block.first, order, FreeError::NotAllocated(block.first));
            assert_eq!(a.nodes().next().unwrap().allocated, [PageCount::ZERO; 3]);
        }
        a.drain_pagesets();
        assert_eq!(a.verify().unwrap().free, PageCount::new(2 * FRAMES));
    });
}

fn hardened(hardening: Hardening) -> World {
    run_on(0);
    let config = Config { hardening, ..Config::default() };
    // The initial contents of frames are not guaranteed.
    Plan::even(1, 2, FRAMES).build_in(&config, |controls| controls.set_contents(FRAMES, FRAMES, 0xbad))
}

fn alloc_all(world: &World, order: Order) -> Vec<Block> {
    let request = Request::new(order).urgency(zonal::request::Urgency::Reserve);
    std::iter::from_fn(|| world.allocator.alloc(&request).ok()).collect()
}

fn accounting(world: &World) -> Accounting {
    world.allocator.verify().unwrap()
}

#[test]
fn quarantine_delays_reuse_and_ends_under_pressure() {
    let kept = PageCount::new(64);
    let world = hardened(Hardening { quarantine: kept, ..Hardening::default() });
    let a = &world.allocator;
    let block = a.alloc(&Request::page()).unwrap();
    a.free(block.first, block.order).unwrap();
    refused(&world, block.first, Order::PAGE, FreeError::Quarantined(block.first));
    assert_eq!(accounting(&world).allocated, PageCount::new(1));
    // Without quarantine, the block would be allocated again at once. With it, 64 other frames must be freed first.
    for _ in 0..64 {
        let other = a.alloc(&Request::page()).unwrap();
        assert_ne!(other.first, block.first);
        a.free(other.first, other.order).unwrap();
        assert!(accounting(&world).allocated <= kept);
    }
    assert_eq!(accounting(&world).allocated, kept);
    assert_eq!(a.free(block.first, block.order), Err(FreeError::NotAllocated(block.first)));
    // Blocks of every order are freed, because the quarantine counts frames, not blocks.
    for order in orders() {
        let block = a.alloc(&Request::new(order)).unwrap();
        a.free(block.first, order).unwrap();
        assert!(accounting(&world).allocated <= kept, "order {order}: {:?}", accounting(&world));
    }
    let all = alloc_all(&world, Order::PAGE);
    assert_eq!(all.len() as u64, FRAMES, "what was kept back is given up before a request fails");
    all.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    a.drain_pagesets();
    assert_eq!(accounting(&world).free, accounting(&world).managed);
}

#[test]
fn quarantine_does_not_prevent_memory_from_going_offline() {
    let world = hardened(Hardening { quarantine: PageCount::new(1000), ..Hardening::default() });
    let a = &world.allocator;
    let blocks: Vec<Block> = (0..300).map(|_| a.alloc(&Request::page()).unwrap()).collect();
    blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    assert_eq!(accounting(&world).allocated, PageCount::new(300));
    a.offline_memory(range(FRAMES, FRAMES)).unwrap();
    assert_eq!(accounting(&world), Accounting::default());
}

#[test]
fn poison_is_written_on_free_and_checked_on_allocation() {
    let world = hardened(Hardening { poison: Some(0xdead), ..Hardening::default() });
    let (a, contents) = (&world.allocator, world.controls.contents());
    for order in orders() {
        let block = a.alloc(&Request::new(order)).unwrap();
        let frames = block.first.get()..block.first.get() + order.pages().get();
        frames.clone().for_each(|frame| contents.word(frame).store(7, Relaxed));
        a.free(block.first, order).unwrap();
        assert!(frames.clone().all(|frame| contents.word(frame).load(Relaxed) == 0xdead));
        // After a stray write to the freed block, it is not allocated again.
        contents.word(frames.end - 1).store(8, Relaxed);
        let next = a.alloc(&Request::new(order)).unwrap();
        assert_ne!(next.first, block.first);
        a.free(next.first, order).unwrap();
    }
    let lost: u64 = orders().map(|order| order.pages().get()).sum();
    assert_eq!(a.events().poison_found, lost);
    assert_eq!(accounting(&world).allocated, PageCount::new(lost));
    // Zeroed requests and poison work together.
    let zeroed = a.alloc(&Request::new(order(3)).zeroed()).unwrap();
    assert_eq!(contents.word(zeroed.first.get() + 7).load(Relaxed), 0);
}

#[test]
fn poison_covers_memory_that_was_never_allocated() {
    let world = hardened(Hardening { poison: Some(0xdead), ..Hardening::default() });
    let a = &world.allocator;
    a.offline_memory(range(FRAMES + 4096, 4096)).unwrap();
    (FRAMES + 4096..FRAMES + 8192).for_each(|frame| world.controls.contents().word(frame).store(1, Relaxed));
    a.online_memory(range(FRAMES + 4096, 4096)).unwrap();
    let all = alloc_all(&world, Order::PAGE);
    assert_eq!((all.len() as u64, a.events().poison_found), (FRAMES, 0));
}

#[test]
fn zeroed_on_request_and_always() {
    let nonzero = |world: &World, block: Block| {
        let frames = block.first.get()..block.first.get() + block.order.pages().get();
        frames.filter(|&frame| world.controls.contents().word(frame).swap(3, Relaxed) != 0).count()
    };
    let asked = hardened(Hardening::default());
    for order in orders() {
        let plain = asked.allocator.alloc(&Request::new(order)).unwrap();
        assert_ne!(nonzero(&asked, plain), 0);
        let zeroed = asked.allocator.alloc(&Request::new(order).zeroed()).unwrap();
        assert_eq!(nonzero(&asked, zeroed), 0);
    }
    let always = hardened(Hardening { zero: ZeroOn::EveryAllocation, ..Hardening::default() });
    for order in orders().flat_map(|order| [order; 4]) {
        let block = always.allocator.alloc(&Request::new(order)).unwrap();
        assert_eq!(nonzero(&always, block), 0, "order {order}");
        always.allocator.free(block.first, order).unwrap();
    }
}

#[test]
fn hardening_is_refused_without_access_to_contents() {
    run_on(0);
    let world = Plan::even(1, 1, FRAMES).build(&Config::default());
    assert_eq!(world.allocator.alloc(&Request::page().zeroed()), Err(AllocError::NoContents));
    let poison = Hardening { poison: Some(0), ..Hardening::default() };
    let zero = Hardening { zero: ZeroOn::EveryAllocation, ..Hardening::default() };
    for hardening in [poison, zero] {
        let config = Config { hardening, ..Config::default() };
        let platform = crate::common::TestPlatform::default();
        let refused = Plan::even(1, 1, FRAMES).try_build(&config, platform);
        assert_eq!(refused.err(), Some(ConfigError::NoContents), "{hardening:?}");
    }
}

/// A frame whose poison was overwritten has no owner, so it cannot be freed.
#[test]
fn frames_with_overwritten_poison_cannot_be_freed() {
    let hardening = Hardening { poison: Some(0x5a5a), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    let world =
        Plan::even(1, 1, FRAMES).build_in(&config, |controls| controls.set_contents(FRAMES, FRAMES, 0xbad));
    run_on(0);
    let a = &world.allocator;
    for of in [0, 3, 10] {
        let block = a.alloc(&Request::new(order(of))).unwrap();
        a.free(block.first, block.order).unwrap();
        let last = block.first.get() + block.order.pages().get() - 1;
        world.controls.contents().word(last).store(7, Relaxed);
        let taken: Vec<_> = std::iter::from_fn(|| a.alloc(&Request::new(order(of))).ok()).collect();
        assert!(taken.iter().all(|other| other.first != block.first), "it is kept back");
        refused(&world, block.first, block.order, FreeError::Retired(block.first));
        taken.iter().for_each(|block| a.free(block.first, block.order).unwrap());
    }
    assert_eq!(a.events().poison_found, 1 + 8 + 1024);
    assert!(a.verify().unwrap().balance());
}
