//! Pools that several processes share: who may join, what each process can do, and what is left when one dies.

mod huge;
mod kept;
mod other;
mod reclaim;
mod refusals;
#[path = "../common/reserve.rs"]
mod reserve;

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use other::{Other, Place, free, page, recover};
use zonal::config::{Faults, ZeroOn};
use zonal::rules::fallback_order::CpuPenalty;
use zonal::rules::stat_threshold::{FoldRule, PressureRule, ThresholdRule};
use zonal::rules::watermarks::WatermarkSettings;
use zonal_linux::{
    AllocError, Config, FrameRange, Order, PageCount, PageKind, Pfn, Pool, PoolError, PoolRequest,
};

#[test]
fn two_members_of_one_process_allocate_and_free() {
    let place = Place::new("two");
    let first = place.pool();
    let second = Pool::join(&place.0).unwrap();
    let mut blocks = Vec::new();
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..3000 {
        let pool = if round % 2 == 0 { &first } else { &second };
        let order = Order::new([0, 0, 3, 9, 1, 0, 10][round % 7]).unwrap();
        if let Ok(block) = pool.alloc_raw(&PoolRequest::new(order)) {
            blocks.push((block.first, order));
        }
        if blocks.len() > 40 {
            free(
                if round % 3 == 0 { &first } else { &second },
                blocks.swap_remove(random.usize(..blocks.len())),
            );
        }
    }
    first.verify().unwrap();
    blocks.drain(..).for_each(|block| free(&first, block));
    for pool in [&first, &second] {
        assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
    }
    drop(second);
    assert_eq!(first.verify().unwrap().allocated, PageCount::ZERO);
    assert_eq!(first.owners().len(), 1);
}

#[test]
fn blocks_are_aligned_in_each_process() {
    let config = Config { max_order: Order::new(12).unwrap(), ..Pool::default_config(Some(128 << 20)) };
    let builder = Pool::builder().size(128 << 20).config(config).shared_by_descriptor();
    let pool = builder.build().unwrap();
    let others: Vec<_> = (0..4).map(|_| Pool::join_file(pool.shared_file().unwrap()).unwrap()).collect();
    for order in 0..=12 {
        let order = Order::new(order).unwrap();
        let block = pool.alloc_raw(&PoolRequest::new(order)).unwrap();
        for one in others.iter().chain([&pool]) {
            let start = one.ptr_of(block.first).unwrap();
            assert_eq!(start.as_ptr().addr() % (4096 << order.get()), 0, "order {order}");
        }
        free(&pool, (block.first, order));
    }
}

/// The pool is refused before other processes can find it.
#[test]
fn a_pool_that_lacks_what_is_required_leaves_no_file() {
    let place = Place::new("required");
    let builder = || Pool::builder().size(64 << 20).shared(&place.0);
    match builder().require_huge_pages().build() {
        Err(PoolError::Required(_)) => assert!(!std::path::Path::new(&place.0).exists()),
        built => {
            built.unwrap();
            return zonal_testing::skipped!("this kernel has transparent huge pages for shared memory");
        }
    }
    builder().build().unwrap();
}

#[test]
fn memory_is_the_same_in_both() {
    let place = Place::new("contents");
    let (first, second) = (place.pool(), Pool::join(&place.0).unwrap());
    let (frame, order) = page(&first);
    // SAFETY: the frame is allocated, and this test alone uses it.
    unsafe { first.ptr_of(frame).unwrap().write_volatile(77) };
    let there = second.ptr_of(frame).unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { there.read_volatile() }, 77);
    assert_eq!(second.pfn_of(there.as_ptr()), Some(frame));
    free(&second, (frame, order));
}

#[test]
fn frames_of_the_killed_are_freed_and_those_of_others_stay() {
    let place = Place::new("killed");
    let pool = place.pool();
    let mine: Vec<_> = (0..500).map(|_| page(&pool)).collect();
    for seed in 0..20 {
        let mut others = [Other::start(&place), Other::start(&place)];
        others.iter_mut().for_each(|other| other.pass(&format!("churn {seed}")));
        others.iter_mut().for_each(|other| assert_eq!(other.answer(), "churning"));
        std::thread::sleep(Duration::from_millis(seed % 7));
        let [first, second] = others;
        first.die();
        // The other goes on meanwhile.
        recover(&pool, 2);
        second.die();
        recover(&pool, 1);
        assert_eq!(pool.verify().unwrap().allocated.get(), 500, "round {seed}");
    }
    mine.iter().for_each(|&block| free(&pool, block));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn a_process_takes_the_place_of_one_that_died_at_work() {
    let place = Place::new("place");
    // With room for one other process, the next one gets the place of the dead before the pool may have recovered.
    let pool = Pool::builder().size(64 << 20).shared(&place.0).processes(2).build().unwrap();
    for seed in 0..40 {
        let mut other = Other::start(&place);
        other.pass(&format!("churn {seed}"));
        assert_eq!(other.answer(), "churning");
        std::thread::sleep(Duration::from_micros(seed * 100));
        other.die();
    }
    recover(&pool, 1);
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn blocks_that_were_taken_over_survive_their_first_holder() {
    let place = Place::new("over");
    let pool = place.pool();
    let mut other = Other::start(&place);
    let block = Pfn::new(other.ask("block 4").parse().unwrap());
    let lost = Pfn::new(other.ask("block 5").parse().unwrap());
    pool.take_over(block, PageCount::new(16)).unwrap();
    assert!(pool.take_over(block, PageCount::new(8)).is_err(), "not what was allocated together");
    let held = pool.owners().iter().find(|owner| !owner.is_this).unwrap().held;
    assert_eq!(held, PageCount::new(32));
    other.die();
    recover(&pool, 1);
    assert_eq!(pool.verify().unwrap().allocated.get(), 16);
    // SAFETY: the block is gone, so nothing uses it.
    assert!(unsafe { pool.free_raw(lost, Order::new(5).unwrap()) }.is_err());
    free(&pool, (block, Order::new(4).unwrap()));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn a_recovery_waits_for_tables_that_change() {
    let (place, busy) = (Place::new("waits"), Place::new("busy"));
    let (pool, busy) = (place.pool(), busy.pool());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                busy.root("none").unwrap();
            }
        });
        let left = [(); 10].map(|()| {
            let mut other = Other::start(&place);
            other.ask("pages 1");
            other.die();
            pool.recover_dead().map(|_| pool.owners().len())
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(left.iter().all(|left| matches!(left, Ok(1))), "{left:?}");
    });
}

#[test]
fn the_dead_are_recovered_while_the_pools_threads_are_paused() {
    let place = Place::new("paused");
    let pool = place.pool();
    let mut other = Other::start(&place);
    other.ask("pages 1");
    let left = pool.with_threads_paused(|_| {
        other.die();
        // The pool's own thread finds out, too, and must not lock the table before the end of the pause. It has time to.
        std::thread::sleep(Duration::from_millis(400));
        pool.recover_dead().map(|_| pool.owners().len())
    });
    assert!(matches!(left, Ok(1)), "{left:?}");
}

#[test]
fn a_stopped_process_is_not_dead() {
    let place = Place::new("stopped");
    let pool = place.pool();
    let mut other = Other::start(&place);
    other.ask("pages 100");
    other.signal(libc::SIGSTOP);
    zonal_testing::eventually("the other process stops", || other.state() == "T");
    assert_eq!(pool.recover_dead().unwrap(), PageCount::ZERO);
    assert_eq!(pool.owners().len(), 2);
    let block = page(&pool);
    free(&pool, block);
    other.signal(libc::SIGCONT);
    other.ask("pages 1");
    assert_eq!(pool.verify().unwrap().allocated.get(), 101);
    other.die();
    recover(&pool, 1);
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn frames_that_others_cache_serve_the_last_requests() {
    let place = Place::new("cached");
    let pool = place.pool();
    let mut other = Other::start(&place);
    other.ask("cache 400");
    let cached = pool.accounting().in_pagesets;
    assert!(cached > PageCount::new(50), "{cached}");
    let mut mine = Vec::new();
    let request = PoolRequest::page().urgency(zonal_linux::Urgency::Atomic);
    let error = loop {
        match pool.alloc_raw(&request) {
            Ok(block) => mine.push((block.first, Order::PAGE)),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::OutOfMemory(_)), "{error}");
    let left = pool.accounting().in_pagesets;
    assert!(left < cached, "{left} of {cached} frames are cached still");
    mine.into_iter().for_each(|block| free(&pool, block));
}

/// Whatever a pool is configured to do, each process does it, or the pool is refused.
#[test]
fn every_configuration_reaches_the_processes_that_join() {
    let default = Pool::default_config(Some(64 << 20));
    let mut configs = vec![default; 12];
    configs[1].hardening.zero = ZeroOn::EveryAllocation;
    configs[2].counters.threshold = ThresholdRule::Fixed(7);
    configs[3].counters.fold = FoldRule::ToZero;
    configs[4].counters.pressure = PressureRule::Unchanged;
    configs[5].cpu_penalty = CpuPenalty::Off;
    configs[6].faults = Faults::EveryNth(NonZeroU64::new(1000).unwrap());
    configs[7].faults = Faults::Random { seed: u64::MAX, one_in: NonZeroU64::new(1000).unwrap() };
    configs[8].free_area_min = PageCount::new(4096);
    configs[9].max_order = Order::new(11).unwrap();
    configs[10].watermarks.scale_factor = 3000;
    configs[11].watermarks.min_free = Some(PageCount::new(77));
    for config in configs {
        let builder = || Pool::builder().size(64 << 20).shared_by_descriptor();
        let pool = builder().config(config).build().unwrap();
        let joined = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        let settings = pool.settings();
        assert_eq!(joined.settings(), settings);
        assert_eq!((joined.placement(), settings.processes), (pool.placement(), 8));
        assert_eq!(Config { processes: 0, past: config.past, ..settings }, config);
        if let ThresholdRule::Fixed(threshold) = config.counters.threshold {
            assert!(pool.zones().all(|zone| zone.stat_threshold == threshold));
        }
        for refused in [0, 3001] {
            let watermarks = WatermarkSettings { scale_factor: refused, ..config.watermarks };
            builder().config(Config { watermarks, ..config }).build().unwrap_err();
        }
    }
}

#[test]
fn threads_of_one_process_join_at_once() {
    let pool = Pool::builder().size(16 << 20).shared_by_descriptor().processes(8).build().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope
                .spawn(|| (0..300).for_each(|_| drop(Pool::join_file(pool.shared_file().unwrap()).unwrap())));
        }
    });
    assert_eq!(pool.owners().len(), 1);
}

#[test]
fn a_full_file_system_and_too_many_processes_are_errors() {
    let place = Place::new("full");
    let shm = std::fs::metadata("/dev/shm").is_ok();
    assert!(shm, "the tests need /dev/shm");
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().processes(2).build().unwrap();
    let second = Pool::join_file(pool.shared_file().unwrap().as_fd()).unwrap();
    let third = Pool::join_file(pool.shared_file().unwrap());
    let full = third.unwrap_err().to_string();
    assert!(full.contains("2 processes share the pool") && full.contains("end one"), "{full}");
    drop(second);
    Pool::join_file(pool.shared_file().unwrap()).unwrap();
    // A file that may have less than the pool needs. A file above the limit raises a signal, which is ignored.
    // SAFETY: the call changes what a signal does, which no other test uses.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = |bytes: libc::rlim_t| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call reads the structure.
        unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    };
    limit(1 << 20);
    let refused = Pool::builder().size(64 << 20).shared(&place.0).build();
    limit(libc::RLIM_INFINITY);
    assert!(refused.is_err() && !std::path::Path::new(&place.0).exists());
}

#[test]
fn a_block_that_another_process_has_freed_is_not_freed_again() {
    let place = Place::new("freed");
    let (first, second) = (place.pool(), Pool::join(&place.0).unwrap());
    let (block, run) = (
        first.alloc(&PoolRequest::page()).unwrap(),
        first.alloc_bytes(&PoolRequest::page(), 5 << 12).unwrap(),
    );
    free(&second, (block.first(), Order::PAGE));
    second.take_over(run.first(), run.count()).unwrap();
    // SAFETY: the other owner uses the frames no more.
    let taken = unsafe { second.own_frames_raw(run.first(), run.count()) };
    assert_eq!((taken.len(), taken.node()), (run.len(), run.node()));
    drop(taken);
    drop((block, run));
    assert_eq!(first.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn each_process_counts_what_it_has_allocated() {
    let place = Place::new("counted");
    let (first, second) = (place.pool(), Pool::join(&place.0).unwrap());
    let count = |pool: &Pool| pool.allocated_here().unwrap().get();
    let mut blocks: Vec<_> = (0..50).map(|_| page(&first)).collect();
    blocks.push((
        second.alloc_raw(&PoolRequest::new(Order::new(3).unwrap())).unwrap().first,
        Order::new(3).unwrap(),
    ));
    assert_eq!((count(&first), count(&second)), (50, 8));
    second.take_over(blocks[0].0, PageCount::new(1)).unwrap();
    assert_eq!((count(&first), count(&second)), (49, 9));
    blocks.into_iter().for_each(|block| free(&first, block));
    assert_eq!((count(&first), count(&second)), (0, 0));
    assert_eq!(Pool::builder().size(64 << 20).build().unwrap().allocated_here(), None);
}

#[test]
fn a_setting_reaches_the_pagesets_of_all_processes() {
    let place = Place::new("setting");
    let (first, second) = (place.pool(), Pool::join(&place.0).unwrap());
    let tuned = |pool: &Pool| {
        let blocks: Vec<_> = (0..300).map(|_| page(pool)).collect();
        blocks.into_iter().for_each(|block| free(pool, block));
    };
    [&first, &second].into_iter().for_each(tuned);
    first.set_setting("percpu_pagelist_high_fraction", "64").unwrap();
    for pool in [&first, &second] {
        // SAFETY: a tick frees no block.
        unsafe { pool.allocator() }.tick();
    }
    let mut used = 0;
    for pageset in first.pagesets() {
        let limits = pageset.limits;
        assert!(limits.high_min <= pageset.high && pageset.high <= limits.high_max, "{pageset:?}");
        used += 1;
    }
    assert!(used > 1, "both processes have used their pagesets");
}

#[test]
fn a_block_taken_over_while_others_free_and_allocate_it_is_counted_once() {
    let place = Place::new("raced");
    let mut pools = vec![place.pool()];
    pools.extend((0..2).map(|_| Pool::join(&place.0).unwrap()));
    let order = Order::new(10).unwrap();
    let block = pools[0].alloc_raw(&PoolRequest::new(order)).unwrap().first;
    free(&pools[0], (block, order));
    let range = FrameRange { start: block, count: order.pages() };
    // SAFETY: no thread uses the contents of blocks; frees of a block that another has taken fail.
    let allocators: Vec<_> = pools.iter().map(|pool| unsafe { pool.allocator() }).collect();
    let [first, others @ ..] = &allocators[..] else { unreachable!() };
    let (left, taken) = (AtomicUsize::new(others.len()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for allocator in others {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    if allocator.alloc_range(range, PageKind::User).is_ok() {
                        (0..100).for_each(|_| std::hint::spin_loop());
                        _ = allocator.free(block, order);
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while left.load(Ordering::Relaxed) > 0 {
            if first.take_over(block, order.pages()).is_ok() {
                taken.fetch_add(1, Ordering::Relaxed);
                _ = first.free(block, order);
            }
        }
    });
    println!("taken over {taken:?} times");
    while pools.len() > 1 {
        pools.pop();
        let accounting = pools[0].verify().unwrap();
        assert!(accounting.balance() && accounting.allocated == PageCount::ZERO, "{accounting}");
    }
}

#[test]
fn a_range_that_another_process_caches_is_allocated() {
    let place = Place::new("range");
    let (first, second) = (place.pool(), Pool::join(&place.0).unwrap());
    let block = page(&second);
    free(&second, block);
    let range = FrameRange { start: block.0, count: PageCount::new(1) };
    // SAFETY: no block is used.
    let allocator = unsafe { first.allocator() };
    // The other process may take longer than a request waits.
    let run = (0..1000).find_map(|_| allocator.alloc_range(range, PageKind::User).ok()).unwrap();
    assert_eq!(run.range, range);
    free(&first, block);
}

#[test]
fn pools_are_joined_by_their_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().build().unwrap();
    let published = pool.publish(&path).unwrap();
    let other = Pool::join_as(&path, "worker").unwrap();
    let block = page(&other);
    free(&pool, block);
    assert_eq!(pool.owners().len(), 2);
    drop((other, published));
    let refused = |text: &str| {
        let error = Pool::join(&path).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    };
    refused("No such file");
    let stale = std::os::unix::net::UnixListener::bind(&path).unwrap();
    drop(stale);
    refused("Connection refused");
    let private = Pool::builder().size(64 << 20).build().unwrap();
    let _published = private.publish(&path).unwrap();
    refused("cannot be joined: processes do not share this pool");
}
