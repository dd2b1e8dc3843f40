//! What a request costs when the nearest nodes are full, in accesses to cells: the same however many
//! are full, but for one word of marks for each 64.

mod common;
#[path = "../examples/shared_lines/watched.rs"]
mod watched;

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use common::effects::{one_cpu, order, with_min};
use common::node;
use zonal::config::ZonelistCache;
use zonal::cpu_local::TryLock;
use zonal::units::{CpuId, Moment, Order, ZoneKind};
use zonal::{Allocator, Block, Config, Platform, Request};

thread_local! {
    static ACCESSES: Cell<u64> = const { Cell::new(0) };
}

/// Counts the accesses of this thread.
struct Count;

impl watched::Watch for Count {
    fn saw(_access: watched::Access) {
        ACCESSES.set(ACCESSES.get() + 1);
    }
}

/// A platform whose cells are counted, with one CPU and no time.
struct Counted;

impl Platform for Counted {
    type U8 = watched::Cell<AtomicU8, Count>;
    type U32 = watched::Cell<AtomicU32, Count>;
    type U64 = watched::Cell<AtomicU64, Count>;
    type Lock = watched::Lock<Count>;
    type CpuLocal = TryLock;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(0)
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(0)
    }
}

type World = Allocator<'static, Counted>;

/// `full` nodes at their watermark before a large one that serves.
fn filled(full: u16, mode: ZonelistCache) -> World {
    let mut frames = vec![128; full.into()];
    frames.push(1 << 14);
    let config = Config { zonelist_cache: mode, ..with_min(8 * u64::from(full) + 64) };
    let world = one_cpu(&frames, ZoneKind::Normal).try_build(&config, Counted).unwrap();
    while world.alloc(&Request::page()).unwrap().node != node(full) {}
    world
}

/// Probes and accesses of `count` requests, served by the last node.
fn costs(world: &World, full: u16, order: Order, count: usize) -> (u64, u64) {
    let request = Request::new(order);
    let (probes, accesses) = (world.events().probes, ACCESSES.get());
    let blocks: Vec<Block> = (0..count).map(|_| world.alloc(&request).unwrap()).collect();
    let accesses = ACCESSES.get() - accesses;
    let probes = world.events().probes - probes;
    assert!(blocks.iter().all(|block| block.node == node(full)));
    blocks.iter().for_each(|block| world.free(block.first, block.order).unwrap());
    (probes, accesses)
}

#[test]
fn requests_cost_the_same_however_many_nodes_are_full() {
    const REQUESTS: usize = 200;
    for (mode, order) in [ZonelistCache::On, ZonelistCache::Published]
        .into_iter()
        .flat_map(|mode| [0, 3, 9].map(|at| (mode, order(at))))
    {
        let mut one_full = None;
        for full in [1, 2, 15, 63, 255, 1023] {
            let world = filled(full, mode);
            let requests = if order == Order::new(9).unwrap() { 10 } else { REQUESTS };
            costs(&world, full, order, requests); // marks what is full for this order
            let (probes, accesses) = costs(&world, full, order, requests);
            let requests = requests as u64;
            assert!(probes <= 3 * requests, "{full} full nodes, {mode:?}, {order}: {probes} probes");
            let words = requests * u64::from(full / 64);
            let most = words + *one_full.get_or_insert(accesses) * 11 / 10;
            assert!(accesses <= most, "{full} full nodes, {mode:?}, {order}: {accesses} accesses, {most}");
        }
    }
}
