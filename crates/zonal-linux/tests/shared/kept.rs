//! Processes with a name, whose blocks outlive them.

use std::time::Duration;

use zonal_linux::{FrameRange, Order, PageCount, Pfn, Pool, PoolError, PoolOwner, SharedError};

use crate::other::{Other, Place, free, page, recover};

fn owner(pool: &Pool, name: &str) -> Option<PoolOwner> {
    pool.owners().into_iter().find(|owner| owner.name.is_some_and(|found| found.as_str() == name))
}

fn held(pool: &Pool) -> Vec<FrameRange> {
    let mut held = Vec::new();
    pool.for_each_held(|block| held.push(block));
    held
}

/// Waits until the process with a name is found dead and recovered.
fn recover_named(pool: &Pool, name: &str) {
    while owner(pool, name).is_some_and(|owner| owner.is_alive) {
        std::thread::yield_now();
    }
    recover(pool, 1);
    pool.recover_dead().unwrap();
}

#[test]
fn a_successor_has_the_blocks_of_the_killed() {
    let place = Place::new("successor");
    let pool = place.pool();
    let mut other = Other::start_as(&place, "worker");
    let single = Pfn::new(other.ask("pages 1").parse().unwrap());
    let block = Pfn::new(other.ask("block 4").parse().unwrap());
    other.ask("run 700");
    other.ask("cache 90");
    let root = pool.root("run").unwrap().unwrap();
    assert_eq!(root.count.get(), 700);
    let mine = page(&pool);
    other.die();
    recover_named(&pool, "worker");
    assert_eq!(pool.verify().unwrap().allocated.get(), 1 + 16 + 700 + 1);
    let kept = owner(&pool, "worker").unwrap();
    assert_eq!((kept.held.get(), kept.is_alive), (717, false));
    let successor = Pool::join_as(&place.0, "worker").unwrap();
    let mut expected = vec![
        FrameRange { start: single, count: PageCount::new(1) },
        FrameRange { start: block, count: PageCount::new(16) },
        root,
    ];
    let mut found = held(&successor);
    let by_start = |range: &FrameRange| range.start;
    expected.sort_by_key(by_start);
    found.sort_by_key(by_start);
    assert_eq!(found, expected);
    // SAFETY: the run is allocated, and this test alone uses it.
    assert_eq!(unsafe { successor.ptr_of(root.start).unwrap().read_volatile() }, 700_u32 as u8);
    // SAFETY: no other owner is left.
    drop(unsafe { successor.own_frames_raw(root.start, root.count) });
    successor.set_root("run", None).unwrap();
    assert_eq!(pool.root("run").unwrap(), None);
    // Others may free it as they may free what a process that lives holds.
    free(&pool, (block, Order::new(4).unwrap()));
    free(&successor, (single, Order::PAGE));
    assert_eq!(successor.allocated_here(), Some(PageCount::ZERO));
    free(&pool, mine);
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn what_is_kept_survives_all_processes() {
    let place = Place::new("restart");
    let pool = Pool::builder().size(64 << 20).shared(&place.0).process_name("server").build().unwrap();
    let (frame, _) = page(&pool);
    let range = FrameRange { start: frame, count: PageCount::new(1) };
    pool.set_root("index", Some(range)).unwrap();
    let others = page(&Pool::join(&place.0).unwrap());
    drop(pool);
    // The first to come back is another process.
    let other = Pool::join(&place.0).unwrap();
    assert_eq!(other.verify().unwrap().allocated.get(), 1, "{others:?} was freed with its process");
    let server = Pool::join_as(&place.0, "server").unwrap();
    assert_eq!((server.root("index").unwrap(), held(&server)), (Some(range), vec![range]));
    drop(server);
    assert_eq!(other.discard("server").unwrap().get(), 1);
    assert_eq!((other.root("index").unwrap(), other.owners().len()), (None, 1));
    assert_eq!(other.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn whatever_the_killed_did_its_blocks_stay_whole() {
    let place = Place::new("whole");
    let pool = place.pool();
    let mine: Vec<_> = (0..100).map(|_| page(&pool)).collect();
    for seed in 0..20 {
        let mut other = Other::start_as(&place, "worker");
        other.pass(&format!("churn {seed}"));
        assert_eq!(other.answer(), "churning");
        std::thread::sleep(Duration::from_micros(500 * seed));
        other.die();
        recover_named(&pool, "worker");
        let allocated = pool.verify().unwrap().allocated.get();
        assert_eq!(owner(&pool, "worker").unwrap().held.get(), allocated - 100, "round {seed}");
        if seed % 2 == 0 {
            assert_eq!(pool.discard("worker").unwrap().get(), allocated - 100);
            continue;
        }
        let successor = Pool::join_as(&place.0, "worker").unwrap();
        for block in held(&successor) {
            // SAFETY: no other owner is left.
            drop(unsafe { successor.own_frames_raw(block.start, block.count) });
        }
        assert_eq!(pool.verify().unwrap().allocated.get(), 100, "round {seed}");
    }
    mine.into_iter().for_each(|block| free(&pool, block));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn of_several_that_join_under_one_name_one_succeeds() {
    let place = Place::new("one-name");
    let pool = place.pool();
    for _ in 0..30 {
        let join = || Pool::join_as(&place.0, "worker");
        let joined: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(join)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(joined.iter().filter(|joined| joined.is_ok()).count(), 1, "{joined:?}");
        for joined in &joined {
            let is_refused =
                matches!(joined, Err(PoolError::Shared { source: SharedError::NameInUse { .. }, .. }));
            assert!(joined.is_ok() || is_refused, "{joined:?}");
        }
        drop(joined);
        pool.discard("worker").unwrap();
    }
}

#[test]
fn names_and_roots_that_cannot_be_are_refused() {
    let place = Place::new("names");
    let pool =
        Pool::builder().size(64 << 20).shared(&place.0).processes(2).process_name("first").build().unwrap();
    let refused = |error: SharedError, text: &str| assert!(error.to_string().contains(text), "{error}");
    let join = |name: &str| match Pool::join_as(&place.0, name) {
        Err(PoolError::Shared { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    refused(join("first"), "lives");
    refused(join(""), "1 to 32 bytes");
    refused(join(&"long".repeat(9)), "1 to 32 bytes");
    refused(join("two\nlines"), "control characters");
    refused(pool.discard("first").unwrap_err(), "lives");
    refused(pool.discard("second").unwrap_err(), "keeps nothing");
    drop(Pool::join_as(&place.0, "second").unwrap());
    // What is kept needs a place among the processes.
    let full = Pool::join(&place.0).unwrap_err().to_string();
    assert!(
        full.contains(&place.0) && full.contains("1 share it") && full.contains("blocks of \"second\""),
        "{full}"
    );
    assert!(full.contains("discard"), "{full}");
    pool.discard("second").unwrap();
    let (first, _) = page(&pool);
    let range = |count| FrameRange { start: first, count: PageCount::new(count) };
    refused(pool.set_root("part", Some(range(2))).unwrap_err(), "cannot be a root");
    for number in 0..127 {
        pool.set_root(&number.to_string(), Some(range(1))).unwrap();
    }
    let other = Pool::join(&place.0).unwrap();
    let (theirs, order) = page(&other);
    let block = FrameRange { start: theirs, count: PageCount::new(1) };
    refused(pool.set_root("more", Some(block)).unwrap_err(), "127 roots");
    assert_eq!(other.allocated_here(), Some(PageCount::new(1)), "nothing has changed");
    free(&other, (theirs, order));
    // One of them can be set again, and removed.
    pool.set_root("126", Some(range(1))).unwrap();
    pool.set_root("0", None).unwrap();
    pool.set_root("more", Some(range(1))).unwrap();
    let private = Pool::builder().size(64 << 20).build().unwrap();
    refused(private.set_root("a", None).unwrap_err(), "do not share");
    refused(private.discard("a").unwrap_err(), "do not share");
    refused(private.root("a").unwrap_err(), "do not share");
}
