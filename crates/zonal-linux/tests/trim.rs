//! Tests of pools that return free frames' memory.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use zonal_linux::{Config, Hardening, HugePages, Pool, PoolBuilder, PoolRequest, TrimError};

#[path = "common/pages.rs"]
mod pages;

use pages::filled;

const MIB: u64 = 1 << 20;

fn small_pages(mib: u64) -> PoolBuilder<'static> {
    Pool::builder().size(mib * MIB).fake_nodes(2).huge_pages(HugePages::Never)
}

/// Returns how many bytes of the pool are resident.
fn resident(pool: &Pool) -> u64 {
    let mut total = 0;
    for zone in pool.ranges() {
        let mut pages = vec![0_u8; zone.frames.count.get() as usize];
        let start = pool.ptr_of(zone.frames.start).unwrap().as_ptr();
        // SAFETY: the buffer has one byte for each page of the mapped range.
        assert_eq!(unsafe { libc::mincore(start.cast(), 4096 * pages.len(), pages.as_mut_ptr()) }, 0);
        total += pages.iter().filter(|page| **page & 1 == 1).count() as u64 * 4096;
    }
    total
}

#[test]
fn exactly_the_memory_of_free_frames_is_returned() {
    let pool = small_pages(64).build().unwrap();
    let pages = filled(&pool, 12_000);
    let (kept, freed): (Vec<_>, Vec<_>) = pages.into_iter().enumerate().partition(|(at, _)| at % 3 == 0);
    drop(freed);
    assert_eq!(resident(&pool), 12_000 * 4096);
    assert_eq!(pool.trim().unwrap(), 8_000 * 4096);
    assert_eq!(resident(&pool), 4_000 * 4096);
    assert!(
        kept.iter().all(|(at, page)| page.iter().all(|&byte| byte == *at as u8 | 1)),
        "pages in use stay"
    );
    assert_eq!(pool.trim().unwrap(), 0, "nothing is left to return");
    let accounting = pool.verify().unwrap();
    assert_eq!(accounting.managed.get() * 4096, 64 * MIB, "the frames stay online");
    drop(kept);
    drop(filled(&pool, 12_000));
}

#[test]
fn frames_that_were_returned_read_zero() {
    let pool = small_pages(16).build().unwrap();
    drop(filled(&pool, 3000));
    pool.trim().unwrap();
    let pages: Vec<_> = (0..3000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    assert!(pages.iter().all(|page| page.iter().all(|&byte| byte == 0)));
}

/// Whether or not the kernel provides huge pages, ranges smaller than 2 MiB stay in memory.
#[test]
fn transparent_huge_pages_are_returned_as_a_whole() {
    let pool = Pool::builder().size(32 * MIB).fake_nodes(1).build().unwrap();
    if !pool.warnings().is_empty() {
        zonal_testing::skipped!("{}", pool.warnings()[0]);
        return;
    }
    let pages = filled(&pool, 4096);
    let mut per_part = std::collections::HashSet::new();
    let kept: Vec<_> = pages.into_iter().filter(|page| per_part.insert(page.first().get() / 512)).collect();
    assert_eq!(pool.trim().unwrap() % (2 * MIB), 0);
    assert!(resident(&pool) >= kept.len() as u64 * 2 * MIB, "a huge page with one frame in use stays");
    drop(kept);
    assert!(pool.trim().unwrap() >= 14 * MIB);
}

#[test]
fn poisoned_frames_keep_their_pattern() {
    let hardening = Hardening { poison: Some(0xdead_beef), ..Hardening::default() };
    let pool = small_pages(16).config(Config { hardening, ..Config::default() }).build().unwrap();
    drop(filled(&pool, 100));
    assert!(matches!(pool.trim(), Err(TrimError::Poisoned)));
    drop(filled(&pool, 100));
    pool.verify().unwrap();
}

#[test]
fn memory_that_the_kernel_refuses_is_named_and_stays_free() {
    let pool = small_pages(16).build().unwrap();
    let pages = filled(&pool, 3000);
    let locked = pages[1000].first();
    let start = pool.ptr_of(locked).unwrap().as_ptr();
    // SAFETY: the page is mapped, and the call does not change it.
    if unsafe { libc::mlock(start.cast(), 4096) } != 0 {
        zonal_testing::skipped!("this process may not lock memory");
        return;
    }
    drop(pages);
    let error = pool.trim().unwrap_err();
    let TrimError::Refused { range, .. } = &error else { panic!("{error}") };
    assert!(range.start <= locked && locked < range.end(), "{error}");
    drop(filled(&pool, 3000));
    pool.verify().unwrap();
}

/// Threads use four fifths of the pool in turns, so that a trim which held much of the rest would make them fail.
#[test]
fn requests_succeed_and_keep_their_contents_during_trims() {
    let pool = small_pages(32).build().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let users: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let pages = filled(&pool, 2000);
                        assert!(pages.iter().enumerate().all(|(at, page)| page[4095] == at as u8 | 1));
                    }
                })
            })
            .collect();
        let trims = scope.spawn(|| {
            let mut returned = 0;
            while !stop.load(Relaxed) {
                returned += pool.trim().unwrap();
            }
            returned
        });
        let results: Vec<_> = users.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Relaxed);
        let returned = trims.join().unwrap();
        assert!(results.iter().all(Result::is_ok));
        assert!(returned > 0);
    });
    pool.verify().unwrap();
}

#[test]
fn a_process_returns_what_others_have_freed_unless_the_pool_is_shared_by_a_path() {
    let pool = small_pages(32).shared_by_descriptor().build().unwrap();
    let other = Pool::join_file(pool.shared_file().unwrap()).unwrap();
    let pages = filled(&pool, 6000);
    let (kept, freed): (Vec<_>, Vec<_>) = pages.into_iter().enumerate().partition(|(at, _)| at % 3 == 0);
    let before = resident(&pool);
    drop(freed);
    pool.drain_pagesets();
    assert_eq!(other.trim().unwrap(), 4_000 * 4096);
    assert_eq!(resident(&pool), before - 4_000 * 4096);
    assert!(
        kept.iter().all(|(at, page)| page.iter().all(|&byte| byte == *at as u8 | 1)),
        "pages in use stay"
    );
    let again: Vec<_> = (0..4_000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    assert!(again.iter().all(|page| page.iter().all(|&byte| byte == 0)));
    pool.verify().unwrap();

    let path = format!("/dev/shm/zonal-trim-{}", std::process::id());
    let pool = small_pages(4).shared(&path).build().unwrap();
    std::fs::remove_file(&path).unwrap();
    drop(filled(&pool, 100));
    assert!(matches!(pool.trim(), Err(TrimError::Shared)));
}
