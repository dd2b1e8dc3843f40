//! Checks the page cache against naive models, and checks what reclaim may and may not do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;

use zonal::config::NodeReclaim;
use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest};
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};
use zonal::{Block, Config};
use zonal_machine::MachineModel;

use super::table::{NONE, State, Table};
use super::{ADD_BATCH, ADD_NS, CacheSettings, FileId, Files, PageCache};
use crate::sim::{Hardware, ProgramReclaimer, Role, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Bandwidth of the disk, in MB/s.
const DISK_MB_S: f64 = 100.0;
/// Frames of each node.
const FRAMES: u64 = 8192;

/// Returns a machine with two nodes of two CPUs each and one node without CPUs. Each node has one zone.
fn small() -> MachineModel {
    machine([(0, "Normal"), (1, "Normal"), (2, "Normal")])
}

/// Returns the machine of [`small`] with other zones, given by node and kind.
fn machine(zones: [(u64, &str); 3]) -> MachineModel {
    let node = |id: u64, cpus: &str, row: [u64; 3]| {
        let [a, b, c] = row;
        format!(r#"{{"id": {id}, "cpus": [{cpus}], "distances": {{"0": {a}, "1": {b}, "2": {c}}}}}"#)
    };
    let mut start = (1 << 20) - FRAMES;
    let zones = zones.map(|(node, kind)| {
        start += FRAMES;
        format!(
            r#"{{"node": {node}, "kind": "{kind}", "start": {start}, "spanned": {FRAMES}, "present": {FRAMES}, "managed": {FRAMES}}}"#
        )
    });
    let nodes = [node(0, "0, 1", [10, 20, 11]), node(1, "2, 3", [20, 10, 20]), node(2, "", [11, 20, 10])];
    let text = format!(
        r#"{{"name": "small", "page_bytes": 4096, "nodes": [{}], "zones": [{}]}}"#,
        nodes.join(","),
        zones.join(",")
    );
    MachineModel::from_json(&text, "small").unwrap()
}

/// Runs `work` as the only program of a small machine, with a flusher and background reclaim.
fn with_cache(settings: &CacheSettings, node_reclaim: NodeReclaim, work: impl Fn(&PageCache<'_, '_, '_>)) {
    with_cache_on(small(), settings, node_reclaim, work);
}

/// Runs `work` like [`with_cache`], on another machine with three nodes.
fn with_cache_on(
    model: MachineModel,
    settings: &CacheSettings,
    node_reclaim: NodeReclaim,
    work: impl Fn(&PageCache<'_, '_, '_>),
) {
    let hardware = Hardware { disk_mb_s: DISK_MB_S, disk_request_ms: 0.0, ..Hardware::default() };
    let machine = SimulatedMachine { model, hardware };
    let config = Config { node_reclaim, ..Config::default() };
    let run = machine.simulate(&config, 1, |sim| {
        let system = System::new(sim);
        let cache = PageCache::new(&system, settings);
        let _asked = sim.world.ask(&cache);
        let mut threads = Threads::new();
        threads
            .add(0, Role::Foreground, Time::ZERO, || {
                work(&cache);
                cache.stop();
            })
            .unwrap();
        threads.add(1, Role::Background, Time::ZERO, || cache.write_back()).unwrap();
        for id in 0..3 {
            let (cache, id) = (&cache, NodeId::new(id).unwrap());
            let work = move || cache.reclaim_in_background(id);
            threads.add(1, Role::Background, Time::ZERO, work).unwrap();
        }
        sim.world.run(threads, &AtomicBool::new(false)).unwrap();
        system.check_accounting();
        let cached: u64 = (0..3).map(|place| cache.cached(place)).sum();
        assert_eq!(cached, system.held(), "each frame is a page of the cache, and the other way round");
    });
    run.unwrap();
}

const NODE: NodeId = match NodeId::new(0) {
    Some(node) => node,
    None => unreachable!(),
};

/// Returns a request to reclaim `target` frames of node 0.
fn wanted(reason: ReclaimReason, target: u64) -> ReclaimRequest {
    ReclaimRequest::new(reason, NODE, PageCount::new(target))
}

/// Runs node reclaim for `target` frames and returns the number of frames freed.
fn node_reclaim(cache: &PageCache<'_, '_, '_>, target: u64) -> u64 {
    cache.reclaim(&wanted(ReclaimReason::Node, target)).get()
}

/// Returns the number of pages that could be freed for a reason.
fn count(cache: &PageCache<'_, '_, '_>, reason: ReclaimReason) -> u64 {
    cache.count(&wanted(reason, 32)).get()
}

/// Returns the states of a file's cached pages.
fn states(cache: &PageCache<'_, '_, '_>, file: FileId) -> Vec<State> {
    let pages = cache.files.borrow().pages_of(file);
    pages.into_iter().map(|page| cache.table.borrow().page(page).state).collect()
}

#[test]
fn lists_are_as_those_of_a_naive_model() {
    let model = small();
    let mut table = Table::new(&model).unwrap();
    // The inactive and the active list of each node, from head to tail.
    let mut lists: [[VecDeque<u32>; 2]; 3] = Default::default();
    let mut random = fastrand::Rng::with_seed(7);
    let zone = |node: u64| ZoneId::new(node as usize).unwrap();
    for _ in 0..200_000 {
        let node = random.usize(..3);
        let active = random.bool();
        let list = &mut lists[node][usize::from(active)];
        let flag = if active { State::ACTIVE } else { State::CLEAN };
        assert_eq!(table.tail(node, flag), list.back().copied());
        let there = (!list.is_empty()).then(|| random.usize(..list.len().max(1)));
        match (random.u32(..4), there) {
            (0, _) | (_, None) => {
                let first = Pfn::new((1 << 20) + node as u64 * FRAMES + random.u64(..FRAMES));
                let at = (first.get() - (1 << 20)) as u32;
                if table.page(at).file != NONE {
                    continue;
                }
                let id = NodeId::new(node as u16).unwrap();
                let block = Block { first, order: Order::PAGE, zone: zone(node as u64), node: id };
                assert_eq!(table.insert(&block, 3, 0, flag), at);
                list.push_front(at);
            }
            (1, Some(place)) => {
                let at = list.remove(place).unwrap();
                assert_eq!(table.remove(at).first.get(), (1 << 20) + u64::from(at));
            }
            (2, Some(place)) => {
                let at = list.remove(place).unwrap();
                let state = table.page(at).state;
                let moved = if active { state.without(State::ACTIVE) } else { state.with(State::ACTIVE) };
                table.move_to(at, moved);
                lists[node][usize::from(!active)].push_front(at);
            }
            (_, Some(place)) => {
                let flags = [State::DIRTY, State::WRITEBACK, State::MAPPED];
                let flag = flags[random.usize(..3)];
                let state = table.page(list[place]).state;
                let state = if state.has(flag) { state.without(flag) } else { state.with(flag) };
                table.set_state(list[place], state);
            }
        }
    }
    for (node, lists) in lists.iter().enumerate() {
        let tally = table.tally(node);
        assert_eq!([tally.inactive, tally.active], [lists[0].len() as u64, lists[1].len() as u64]);
        let with = |flag| lists.iter().flatten().filter(|&&at| table.page(at).state.has(flag)).count() as u64;
        let found = [State::DIRTY, State::WRITEBACK, State::MAPPED].map(with);
        assert_eq!(found, [tally.dirty, tally.writeback, tally.mapped]);
    }
}

#[test]
fn files_know_their_pages_as_a_map_does() {
    let mut files = Files::default();
    let ids: Vec<FileId> = (0..3).map(|_| files.create().unwrap()).collect();
    let mut known: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut random = fastrand::Rng::with_seed(3);
    for page in 0..100_000 {
        let (file, index) = (ids[random.usize(..3)], random.u32(..200));
        let found = known.get(&(file.0, index)).copied();
        assert_eq!(files.page_at(file, index), found);
        if found.is_some() {
            known.remove(&(file.0, index));
            files.remove(file.0, index);
        } else {
            known.insert((file.0, index), page);
            files.insert(file, index, page).unwrap();
        }
    }
    for id in ids {
        let of = known.range((id.0, 0)..(id.0 + 1, 0)).map(|(_, &page)| page);
        assert!(of.eq(files.pages_of(id)), "{id:?}");
    }
}

#[test]
fn unused_files_get_a_second_chance_when_they_are_used_again() {
    let mut files = Files::default();
    let ids: Vec<FileId> = (0..3).map(|_| files.create().unwrap()).collect();
    for (page, &id) in ids.iter().enumerate() {
        files.insert(id, 0, page as u32).unwrap();
        files.close(id);
    }
    files.open(ids[0]);
    files.close(ids[0]);
    assert_eq!(files.longest_unused(), Some((ids[1], 1)));
    files.remove(ids[1].0, 0);
    files.open(ids[2]);
    assert_eq!(files.longest_unused(), Some((ids[0], 1)));
}

#[test]
fn pages_are_listed_in_batches_under_the_lock_of_the_list() {
    with_cache(&CacheSettings::default(), NodeReclaim::OFF, |cache| {
        let file = cache.create();
        (0..3 * ADD_BATCH).for_each(|index| cache.write(file, index));
        let times: Vec<Time> = (3 * ADD_BATCH..5 * ADD_BATCH)
            .map(|index| {
                let before = cache.world().now();
                cache.write(file, index);
                cache.world().now() - before
            })
            .collect();
        let batch = Time::from_ns(ADD_NS * f64::from(ADD_BATCH));
        for last in [ADD_BATCH as usize - 1, 2 * ADD_BATCH as usize - 1] {
            assert!(times[last] >= times[last - 1] + batch, "page {last} lists its batch: {times:?}");
        }
    });
}

#[test]
fn node_reclaim_gives_up_neither_dirty_nor_mapped_pages() {
    with_cache(
        &CacheSettings { background_pct: 100.0, limit_pct: 100.0, ..CacheSettings::default() },
        NodeReclaim::OFF,
        |cache| {
            let [clean, dirty, mapped] = [(); 3].map(|()| cache.create());
            (0..1000).for_each(|index| cache.write(clean, index));
            cache.sync();
            (0..1000).for_each(|index| cache.write(dirty, index));
            (0..1000).for_each(|index| cache.store(mapped, index));
            assert_eq!(count(cache, ReclaimReason::Node), 0, "1000 clean, less 2000 dirty");
            let mut freed = 0;
            for _ in 0..100 {
                freed += node_reclaim(cache, 32);
            }
            assert_eq!(freed, 1000);
            assert!(states(cache, clean).is_empty());
            assert_eq!(states(cache, dirty).iter().filter(|state| state.has(State::DIRTY)).count(), 1000);
            assert_eq!(states(cache, mapped).iter().filter(|state| state.has(State::MAPPED)).count(), 1000);
        },
    );
}

/// Checks that node reclaim stops after one block, and that other reclaim continues to its target.
#[test]
fn node_reclaim_is_content_with_a_block() {
    let settings = CacheSettings { background_pct: 100.0, limit_pct: 100.0, ..CacheSettings::default() };
    with_cache(&settings, NodeReclaim::OFF, |cache| {
        let [clean, dirty] = [(); 2].map(|()| cache.create());
        (0..3).for_each(|index| cache.write(clean, index));
        cache.sync();
        (0..1600).for_each(|index| cache.write(dirty, index));
        assert_eq!(node_reclaim(cache, 32), 3);
        let a_sixteenth = 1603 / 16;
        assert_eq!(cache.counts().direct_scanned(), a_sixteenth);
    });
}

#[test]
fn what_is_given_up_depends_on_the_reason() {
    with_cache(&CacheSettings::default(), NodeReclaim::OFF, |cache| {
        let mapped = cache.create();
        (0..1000).for_each(|index| cache.store(mapped, index));
        let clean = cache.create();
        (0..1000).for_each(|index| cache.write(clean, index));
        cache.sync();
        // One thread makes all requests, so their order does not matter.
        assert_eq!(count(cache, ReclaimReason::Direct), 2000);
        assert_eq!(count(cache, ReclaimReason::Node), 1000);
        while node_reclaim(cache, 32) != 0 {}
        assert_eq!((states(cache, mapped).len(), states(cache, clean).len()), (1000, 0));
        assert_eq!(
            [ReclaimReason::Node, ReclaimReason::Background].map(|reason| count(cache, reason)),
            [0, 1000]
        );
        // The second scan frees mapped pages, both in direct reclaim and in node reclaim that may unmap.
        let mut unmapping = wanted(ReclaimReason::Node, 500);
        unmapping.may_unmap = true;
        assert_eq!(cache.count(&unmapping), PageCount::new(1000));
        let by_node = cache.reclaim(&unmapping).get();
        assert!(by_node >= 1, "a frame is enough");
        let direct = cache.reclaim(&wanted(ReclaimReason::Direct, 1000)).get();
        assert_eq!(by_node + direct, 1000);
        let counts = cache.counts();
        assert_eq!((counts.direct_reclaimed(), counts.background_scanned()), (2000, 0));
        assert!(counts.direct_scanned() >= 3000);
    });
}

#[test]
fn a_zone_alone_gives_up_its_own_pages() {
    let zones = machine([(0, "DMA32"), (0, "Normal"), (1, "Normal")]);
    with_cache_on(zones, &CacheSettings::default(), NodeReclaim::OFF, |cache| {
        let file = cache.create();
        (0..FRAMES as u32 + 1000).for_each(|index| cache.write(file, index));
        cache.sync();
        let cached = |zone: usize| cache.tally(&[zone]).inactive;
        let [low, high] = [0, 1].map(cached);
        assert!(low >= 1000 && high >= 7000, "{low} and {high} pages");
        let of = |zone: Option<usize>, limit| {
            let mut request = wanted(ReclaimReason::Node, 32);
            (request.zone, request.zone_limit) = (zone.and_then(ZoneId::new), limit);
            request
        };
        let any = ZoneKind::Movable;
        let counts = [of(Some(0), any), of(Some(1), any), of(None, any), of(None, ZoneKind::Dma32)]
            .map(|request| cache.count(&request).get());
        assert_eq!(counts, [low, high, low + high, low]);
        assert_eq!(cache.reclaim(&of(Some(0), any)), PageCount::new(32));
        assert_eq!([0, 1].map(cached), [low - 32, high]);
        assert_eq!(cache.reclaim(&of(None, any)), PageCount::new(32));
        assert_eq!([0, 1].map(cached), [low - 32, high - 32], "the highest first");
        assert_eq!(cache.cached(0), low + high - 64);
    });
}

#[test]
fn pages_used_twice_outlive_those_used_once() {
    with_cache(&CacheSettings::default(), NodeReclaim::OFF, |cache| {
        let [twice, once] = [(); 2].map(|()| cache.create());
        (0..500).for_each(|index| cache.write(twice, index));
        (0..500).for_each(|index| cache.read(twice, index, 500));
        (0..1500).for_each(|index| cache.write(once, index));
        cache.sync();
        for _ in 0..30 {
            node_reclaim(cache, 32);
        }
        assert_eq!(states(cache, twice).len(), 500);
        assert_eq!(states(cache, once).len(), 1500 - 30 * 32);
    });
}

#[test]
fn memory_never_runs_out_while_pages_can_be_written_and_dropped() {
    for node_reclaim in [NodeReclaim::ON, NodeReclaim::OFF] {
        let settings = CacheSettings { inode_pressure: 0.5, ..CacheSettings::default() };
        with_cache(&settings, node_reclaim, |cache| {
            let limit = cache.managed / 5 + 64;
            let files = [(); 8].map(|()| cache.create());
            for index in 0..FRAMES as u32 {
                for &file in &files {
                    cache.write(file, index);
                    assert!(cache.dirty() <= limit, "{} pages are dirty", cache.dirty());
                }
            }
            let mapped = cache.create();
            (0..6 * FRAMES as u32).for_each(|index| cache.store(mapped, index));
            for file in files {
                cache.close(file);
                cache.delete(file, FRAMES as u32);
            }
            assert_eq!(states(cache, files[0]).iter().filter(|state| !state.has(State::DOOMED)).count(), 0);
        });
    }
}

#[test]
fn a_writer_that_is_throttled_writes_as_fast_as_the_disk() {
    with_cache(&CacheSettings::default(), NodeReclaim::ON, |cache| {
        let pages = 10 * FRAMES as u32;
        let file = cache.create();
        (0..pages).for_each(|index| cache.write(file, index));
        cache.sync();
        let expected = f64::from(pages) * 4096.0 / (DISK_MB_S * 1e6);
        let took = cache.world().now().seconds();
        assert!((took / expected - 1.0).abs() < 0.05, "{took} s, not {expected} s");
        assert_eq!(cache.written_kib(), f64::from(pages) * 4.0);
    });
}

#[test]
fn files_without_readers_lose_their_pages_in_proportion() {
    with_cache(
        &CacheSettings { inode_pressure: 1.0, ..CacheSettings::default() },
        NodeReclaim::OFF,
        |cache| {
            let write = |pages: u32| {
                let file = cache.create();
                (0..pages).for_each(|index| cache.write(file, index));
                file
            };
            let unused = [write(100), write(100)];
            let used = write(2000);
            unused.into_iter().for_each(|file| cache.close(file));
            cache.sync();
            // Reclaim scans 320 pages of the list. The first 200 of them belong to unused files.
            for _ in 0..10 {
                node_reclaim(cache, 32);
            }
            assert!(unused.into_iter().all(|file| states(cache, file).is_empty()));
            assert_eq!(
                cache.counts().with_files() + cache.counts().direct_reclaimed(),
                2200 - states(cache, used).len() as u64
            );
            assert!(cache.counts().with_files() > 0);
        },
    );
}

/// Checks that a writer checks the limits once for every 32 pages that it modifies, and waits at no other time.
#[test]
fn writers_look_at_the_limits_now_and_then() {
    let settings = CacheSettings { background_pct: 100.0, limit_pct: 0.0, ..CacheSettings::default() };
    with_cache(&settings, NodeReclaim::OFF, |cache| {
        let file = cache.create();
        for round in 0..3 {
            (0..31).for_each(|index| cache.write(file, round * 32 + index));
            assert_eq!(cache.dirty(), 31, "round {round}");
            cache.write(file, round * 32 + 31);
            assert_eq!(cache.dirty(), 0, "round {round}");
        }
    });
}

/// Checks that reclaim waits only if pages are dirty and the request may wait.
#[test]
fn reclaim_waits_for_the_disk_where_something_is_dirty() {
    let settings = CacheSettings { background_pct: 100.0, limit_pct: 100.0, ..CacheSettings::default() };
    with_cache(&settings, NodeReclaim::OFF, |cache| {
        let a_wait = Time::from_seconds(0.1);
        let reclaim = |reason| {
            let mut request = wanted(reason, 1000);
            request.order = Order::new(9).unwrap();
            (request.may_write, request.may_unmap) = (true, true);
            let begin = cache.world().now();
            let freed = cache.reclaim(&request).get();
            (freed, cache.world().now().saturating_sub(begin) >= a_wait)
        };
        let file = cache.create();
        (0..100).for_each(|index| cache.write(file, index));
        cache.sync();
        assert_eq!(reclaim(ReclaimReason::Direct), (100, false), "all is clean");
        assert_eq!(cache.hurried.get(), 0, "there is nothing to write");
        (0..100).for_each(|index| cache.write(file, index));
        assert_eq!(reclaim(ReclaimReason::Node), (0, false), "a node is not waited for");
        assert!(cache.hurried.get() > 0, "but the disk is asked to write");
        cache.sync();
        let file = cache.create();
        (0..100).for_each(|index| cache.write(file, index));
        let (freed, has_waited) = reclaim(ReclaimReason::Direct);
        assert!(freed >= 100 && has_waited, "{freed} pages, waited: {has_waited}");
    });
}
