//! Tests of what a pool reports about its memory's place.

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::thread;

use zonal_linux::{HugePages, Order, PagePlace, PageRun, Pool, PoolRequest, Prefault, Progress};

const MIB: u64 = 1 << 20;

#[test]
fn memory_counts_once_it_is_used() {
    let pool = Pool::builder().size(8 * MIB).huge_pages(HugePages::Never).fake_nodes(2).build().unwrap();
    let absent = |pool: &Pool| -> Vec<u64> {
        pool.residency().unwrap().iter().map(|node| node.pages.absent).collect()
    };
    assert_eq!(absent(&pool), [4 * MIB, 4 * MIB]);
    let policy = pool.preferred(zonal_linux::NodeId::new(1).unwrap()).unwrap();
    let mut page = pool.alloc(&PoolRequest::page().policy(&policy)).unwrap();
    page[0] = 1;
    assert_eq!(absent(&pool), [4 * MIB, 4 * MIB - 4096]);
    for node in pool.residency().unwrap() {
        assert_eq!(node.pages.resident() + node.pages.absent, node.bytes);
    }
    assert_eq!(pool.backing().unwrap().transparent_huge, 0);
}

#[test]
fn memory_of_a_node_is_reported_on_it() {
    let pool = Pool::builder().size(64 * MIB).prefault(Prefault::AtOnce).build().unwrap();
    let residency = pool.residency().unwrap();
    assert_eq!(residency.iter().map(|node| node.bytes).sum::<u64>(), 64 * MIB);
    for node in residency {
        assert_eq!((node.pages.absent, node.misplaced()), (0, 0), "{node:?}");
        assert_eq!(node.on_node(), node.bytes);
    }
}

#[test]
fn memory_that_was_returned_is_absent() {
    let pool = Pool::builder().size(64 * MIB).fake_nodes(1).prefault(Prefault::AtOnce).build().unwrap();
    let returned = pool.shrink(32 * MIB).unwrap();
    let residency = pool.residency().unwrap();
    assert_eq!(
        residency[0].pages.absent,
        returned,
        "{residency:?}, {:?}, {:?}",
        pool.backing(),
        pool.warnings()
    );
}

#[test]
fn shared_memory_is_reported_too() {
    let builder = Pool::builder().size(16 * MIB).shared_memory().huge_pages(HugePages::Never);
    let pool = builder.prefault(Prefault::AtOnce).build().unwrap();
    assert!(pool.residency().unwrap().iter().all(|node| node.pages.absent == 0));
}

#[test]
fn the_program_chooses_the_threads_that_prefault() {
    let seen = Mutex::new(HashSet::new());
    let report = |_: Progress| {
        seen.lock().unwrap().insert(thread::current().id());
        ControlFlow::Continue(())
    };
    let builder = Pool::builder().size(256 * MIB).huge_pages(HugePages::Never).prefault(Prefault::AtOnce);
    let pool = builder.prefault_threads(NonZeroUsize::MIN).on_progress(&report).build().unwrap();
    assert!(seen.into_inner().unwrap() == HashSet::from([thread::current().id()]));
    assert!(pool.residency().unwrap().iter().all(|node| node.pages.absent == 0));
}

#[test]
fn runs_of_pages_are_as_long_as_possible() {
    let pool = Pool::builder().size(16 << 20).fake_nodes(1).huge_pages(HugePages::Never).build().unwrap();
    let mut buffer = pool.alloc(&PoolRequest::new(Order::new(6).unwrap())).unwrap();
    let page = pool.page_bytes();
    for index in [3, 4, 9] {
        buffer[index * page] = 1;
    }
    let start = buffer.as_ptr().addr();
    let runs = PageRun::of(start..start + buffer.len()).unwrap();
    let pages = |run: &PageRun| (run.range.start - start) / page..(run.range.end - start) / page;
    let resident = |run: &&PageRun| matches!(run.place, PagePlace::OnNode(_));
    assert_eq!(runs.iter().filter(resident).map(pages).collect::<Vec<_>>(), [3..5, 9..10]);
    let absent = |run: &&PageRun| run.place == PagePlace::Absent;
    assert_eq!(runs.iter().filter(absent).map(pages).collect::<Vec<_>>(), [0..3, 5..9, 10..64]);
}
