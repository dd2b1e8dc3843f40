//! Tests of frees that a handler defers because they would have to wait for its own thread: what finishes them, what they
//! count as until then, and which frees are refused.

use crate::common::{Plan, World, order, range, reenter_on_this_thread, run_on};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::{AllocError, FreeError};
use zonal::platform::DEFERRED_FREES_MAX;
use zonal::request::{Block, PageKind, Urgency};
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::{Allocator, Config, Request, Retirement};

use crate::common::TestPlatform;

type TestAllocator = Allocator<'static, TestPlatform>;

/// Frames in each of the two zones, which are adjacent. The first begins at frame [`START`].
const FRAMES: u64 = 4096;
const START: u64 = 4096;

fn world(config: &Config) -> World {
    run_on(0);
    Plan::even(2, 2, FRAMES).build(config)
}

/// Runs `work` as a handler that interrupted its own thread inside the allocator.
fn in_handler<R>(work: impl FnOnce() -> R) -> R {
    reenter_on_this_thread(true);
    let result = work();
    reenter_on_this_thread(false);
    result
}

fn free_in_handler(a: &TestAllocator, block: Block) -> Result<(), FreeError> {
    in_handler(|| a.free(block.first, block.order))
}

fn allocated(a: &TestAllocator) -> i64 {
    let accounting = a.accounting();
    assert!(accounting.balance(), "{accounting:?}");
    accounting.allocated.get() as i64
}

fn alloc(a: &TestAllocator, of_order: u8) -> Block {
    a.alloc(&Request::new(order(of_order))).unwrap()
}

fn around(block: Block) -> zonal::machine::FrameRange {
    range(block.first.get(), block.order.pages().get())
}

/// An operation that finishes the frees that CPU 0 has deferred. The first block is one of those, the second one is still
/// allocated. Returns by how many frames the operation itself changes what is allocated.
type Finish = fn(&TestAllocator, Block, Block) -> i64;

fn on_cpu_1(work: impl FnOnce()) -> i64 {
    run_on(1);
    work();
    run_on(0);
    0
}

const FINISHES: [(&str, Finish); 18] = [
    ("a request for a block that is not cached", |a, _, _| alloc(a, 10).order.pages().get() as i64),
    ("a request that refills", |a, _, _| {
        let held = |a: &TestAllocator| a.pagesets().find(|of| of.cpu == CpuId::new(0)).unwrap().count.get();
        let most = held(a) + 1;
        (0..most).for_each(|_| _ = alloc(a, 0));
        most as i64
    }),
    ("a request for a run", |a, _, _| {
        a.alloc_frames(&Request::page(), PageCount::new(3)).unwrap();
        3
    }),
    ("a request for a range", |a, _, _| {
        a.alloc_contiguous(&Request::page(), PageCount::new(1500)).unwrap();
        1500
    }),
    ("a free of a block that is not cached", |a, _, held| {
        a.free(held.first, held.order).unwrap();
        -(held.order.pages().get() as i64)
    }),
    ("a free of a block of another node", |a, _, _| {
        let block = a.alloc_range(range(START + FRAMES, 1024), PageKind::User).unwrap();
        a.free(block.range.start, order(10)).unwrap();
        0
    }),
    ("frees of single frames", |a, _, held| {
        a.split(held.first, held.order, Order::PAGE).unwrap();
        let frames = held.first.get()..around(held).end().get();
        frames.for_each(|frame| a.free(Pfn::new(frame), Order::PAGE).unwrap());
        -(held.order.pages().get() as i64)
    }),
    ("a drain by another CPU", |a, _, _| on_cpu_1(|| a.drain_pagesets())),
    ("a tick", |a, _, _| on_cpu_1(|| a.tick())),
    ("a tick of the CPU", |a, _, _| on_cpu_1(|| a.tick_cpu(CpuId::new(0)))),
    ("a check", |a, _, _| on_cpu_1(|| _ = a.verify().unwrap())),
    ("the CPU goes offline", |a, _, _| on_cpu_1(|| a.offline_cpu(CpuId::new(0)).unwrap())),
    ("an allocation of the frames", |a, deferred, _| {
        on_cpu_1(|| _ = a.alloc_range(around(deferred), PageKind::User).unwrap());
        deferred.order.pages().get() as i64
    }),
    ("a fence over the frames", |a, deferred, _| {
        on_cpu_1(|| {
            let fence = a.fence(around(deferred)).unwrap();
            assert!(fence.is_whole());
        })
    }),
    ("the frames go offline", |a, deferred, _| on_cpu_1(|| a.offline_memory(around(deferred)).unwrap())),
    ("a reclaim of the frames", |a, deferred, _| on_cpu_1(|| _ = a.reclaim_range(around(deferred)).unwrap())),
    ("a retirement of a frame", |a, deferred, _| {
        on_cpu_1(|| assert_eq!(a.retire(deferred.first), Ok(Retirement::Done)));
        1
    }),
    ("a request that would fail", |a, _, _| {
        let before = allocated(a);
        let all = Request::page().urgency(Urgency::Reserve).no_wait();
        on_cpu_1(|| {
            let failed = core::iter::repeat_with(|| a.alloc(&all)).find_map(Result::err);
            assert!(matches!(failed, Some(AllocError::OutOfMemory(_))), "{failed:?}");
        });
        // All frames are allocated, including those of the deferred blocks.
        assert_eq!(allocated(a), 2 * FRAMES as i64);
        2 * FRAMES as i64 - before + PAGES
    }),
];

/// Frames of the blocks that the next test defers.
const PAGES: i64 = 2 + 8 + 512;

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn deferred_frees_count_as_allocated_until_an_operation_finishes_them() {
    for (what, finish) in FINISHES {
        let world = world(&Config::default());
        let a = &world.allocator;
        let warm = alloc(a, 0);
        let held = alloc(a, 10);
        let blocks = [1, 3, 9].map(|order| alloc(a, order));
        a.free(warm.first, warm.order).unwrap();
        let before = allocated(a);
        for block in blocks {
            assert_eq!(free_in_handler(a, block), Ok(()), "{what}");
        }
        assert_eq!(allocated(a), before, "{what}");
        let own = finish(a, blocks[1], held);
        assert_eq!(allocated(a), before - PAGES + own, "{what}");
        a.verify().unwrap_or_else(|fault| panic!("{what}: {fault}"));
        assert_eq!(a.events().retired, 0, "{what}");
    }
}

#[test]
fn a_full_list_refuses_frees_and_leaves_their_blocks_allocated() {
    let world = world(&Config::default());
    let a = &world.allocator;
    for round in 0..3 {
        let blocks: Vec<Block> = (0..DEFERRED_FREES_MAX + 9).map(|_| alloc(a, round)).collect();
        // A full list of a CPU does not affect another CPU.
        let deferred = |of: &[Block]| of.iter().filter(|&&block| free_in_handler(a, block).is_ok()).count();
        if round > 0 {
            assert_eq!(deferred(&blocks), DEFERRED_FREES_MAX);
            let (done, refused) = blocks.split_at(DEFERRED_FREES_MAX);
            for block in done {
                let again = [free_in_handler(a, *block), a.free(block.first, block.order)];
                assert_eq!(again, [Err(FreeError::NotAllocated(block.first)); 2]);
            }
            let [first, rest @ ..] = refused else { panic!("some are refused") };
            // The refusals above did not finish anything.
            assert_eq!(free_in_handler(a, *first), Err(FreeError::Reentered(first.first)));
            run_on(1);
            assert_eq!(free_in_handler(a, *first), Ok(()));
            run_on(0);
            rest.iter().for_each(|block| a.free(block.first, block.order).unwrap());
        } else {
            blocks.iter().for_each(|block| a.free(block.first, block.order).unwrap());
        }
        a.drain_pagesets();
        assert_eq!(a.verify().unwrap().free.get(), 2 * FRAMES);
    }
}

#[test]
fn invalid_frees_in_handlers_are_refused_like_others() {
    for invalid_free in [InvalidFree::Exact, InvalidFree::Checked] {
        let world = world(&Config { invalid_free, ..Config::default() });
        let a = &world.allocator;
        let [block, deferred, gone, page] = [3, 2, 4, 0].map(|order| alloc(a, order));
        let run = a.alloc_frames(&Request::page(), PageCount::new(3)).unwrap().range;
        a.free(gone.first, gone.order).unwrap();
        a.drain_pagesets(); // the block is free in the buddy
        assert_eq!(free_in_handler(a, deferred), Ok(()));
        let inside = |first: Pfn| first.plus(PageCount::new(1));
        for (frame, order, what) in [
            (deferred.first, deferred.order, "freed twice"),
            (gone.first, gone.order, "freed twice, and merged"),
            (block.first, order(2), "of a wrong order"),
            (inside(block.first), Order::PAGE, "inside a block"),
            (page.first, order(1), "of a wrong order"),
            (run.start, order(1), "of a run"),
            (inside(run.start), Order::PAGE, "inside a run"),
            (Pfn::new(START - 1), Order::PAGE, "of no zone"),
        ] {
            let refused = in_handler(|| a.free(frame, order)).expect_err(what);
            assert!(!matches!(refused, FreeError::Reentered(_)), "{what}: {refused:?}");
            if frame != deferred.first {
                assert_eq!(a.free(frame, order), Err(refused), "{what}");
            }
        }
        assert_eq!(in_handler(|| a.free_frames(block.first, block.order.pages())), Ok(()));
        a.verify().unwrap();
    }
}

#[test]
fn runs_and_blocks_with_a_frame_to_retire_are_not_deferred() {
    let world = world(&Config::default());
    let a = &world.allocator;
    let (block, run) = (alloc(a, 3), a.alloc_frames(&Request::page(), PageCount::new(3)).unwrap().range);
    let inside = block.first.plus(PageCount::new(5));
    assert_eq!(a.retire(inside), Ok(Retirement::WhenFreed));
    assert_eq!(free_in_handler(a, block), Err(FreeError::Reentered(block.first)));
    assert_eq!(in_handler(|| a.free(inside, Order::PAGE)), Err(FreeError::Reentered(inside)));
    for count in [3, 3 * FRAMES].map(PageCount::new) {
        assert_eq!(
            in_handler(|| a.free_frames(block.first, count)),
            Err(FreeError::Reentered(block.first)),
            "{count} frames"
        );
    }
    assert_eq!(in_handler(|| a.free_frames(run.start, run.count)), Err(FreeError::Reentered(run.start)));
    a.free(block.first, block.order).unwrap();
    a.free_frames(run.start, run.count).unwrap();
    assert_eq!(a.verify().unwrap().allocated.get(), 1, "the retired frame");
}

#[test]
fn deferred_frees_are_poisoned_and_enter_quarantine_when_they_are_finished() {
    const POISON: u64 = 0x5a5a;
    let hardening =
        Hardening { poison: Some(POISON), quarantine: PageCount::new(64), ..Hardening::default() };
    let config = Config { hardening, ..Config::default() };
    run_on(0);
    let world =
        Plan::even(2, 2, FRAMES).build_in(&config, |controls| controls.set_contents(START, 2 * FRAMES, 7));
    let (a, contents) = (&world.allocator, world.controls.contents());
    let block = alloc(a, 0);
    let word = contents.word(block.first.get());
    let is_poisoned = || word.load(core::sync::atomic::Ordering::Relaxed) == POISON;
    word.store(1, core::sync::atomic::Ordering::Relaxed);
    assert_eq!(free_in_handler(a, block), Ok(()));
    assert!(!is_poisoned(), "the handler's block was changed before its free was finished");
    assert_eq!(a.free(block.first, block.order), Err(FreeError::NotAllocated(block.first)));
    a.tick();
    assert!(is_poisoned());
    assert_eq!(a.free(block.first, block.order), Err(FreeError::Quarantined(block.first)));
    a.drain_pagesets();
    assert_eq!(a.verify().unwrap().free.get(), 2 * FRAMES);
}

#[test]
fn a_fence_gets_frames_whose_frees_are_deferred_meanwhile() {
    let world = world(&Config::default());
    let a = &world.allocator;
    for round in 0..3 {
        let block = alloc(a, 3);
        let fence = a.fence(around(block)).unwrap();
        assert_eq!(free_in_handler(a, block), Ok(()));
        assert_eq!(fence.in_use(), block.order.pages());
        match round {
            0 => {
                let run = fence.alloc(PageKind::Kernel).expect("the frames were freed").range;
                a.free_frames(run.start, run.count).unwrap();
            }
            1 => {
                fence.offline().expect("the frames were freed");
                a.online_memory(around(block)).unwrap();
            }
            _ => assert!(fence.vacate(|used| panic!("{used:?} was freed"))),
        }
    }
    a.drain_pagesets();
    assert_eq!(a.verify().unwrap().free.get(), 2 * FRAMES);
}

#[test]
fn a_tick_in_a_handler_waits_for_no_lock_and_leaves_the_work_to_the_next() {
    let world = world(&Config::default());
    let a = &world.allocator;
    let block = alloc(a, 3);
    assert_eq!(free_in_handler(a, block), Ok(()));
    let before = a.accounting();
    for _ in 0..10 {
        in_handler(|| {
            a.tick();
            a.tick_cpu(CpuId::new(0));
        });
    }
    assert_eq!(a.accounting(), before);
    for _ in 0..10 {
        a.tick();
    }
    assert_eq!(allocated(a), 0);
}
