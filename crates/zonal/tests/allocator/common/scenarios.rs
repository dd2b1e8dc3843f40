//! Steps that tests of the mechanisms share: machines on which only node 0 has a CPU, nodes with every frame allocated,
//! and scripted reclaimers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{Plan, TestPlatform, World, node, run_on};
use zonal::machine::FrameRange;
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::{Events, ZoneSnapshot};
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Block, Config, Platform, Policy, Request};

pub type TestAllocator = Allocator<'static, TestPlatform>;
pub type TestRequest<'a> = Request<'a>;

pub fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

pub fn pages(count: u64) -> PageCount {
    PageCount::new(count)
}

/// Drains the pagesets, and checks that all memory is then free.
pub fn all_free(world: &World) {
    world.allocator.drain_pagesets();
    let accounting = world.allocator.verify().unwrap();
    assert_eq!(accounting.free, accounting.managed);
    world.controls.traced.check(&world.allocator);
}

/// Returns a plan with one zone of `kind` for each node. Node 0 has CPU 0, and the other nodes have no CPUs.
pub fn one_cpu(frames: &[u64], kind: ZoneKind) -> Plan {
    let mut plan = Plan::default();
    let mut start = 4096;
    for (at, &frames) in frames.iter().enumerate() {
        let id = at as u16;
        plan.nodes.push((id, if at == 0 { vec![0] } else { vec![] }));
        plan.zones.push((id, kind, start, frames, vec![(start, frames)]));
        start += frames.next_multiple_of(4096);
    }
    let nodes = plan.nodes.len();
    plan.distances = (0..nodes).map(|a| (0..nodes).map(|b| if a == b { 10 } else { 20 }).collect()).collect();
    plan
}

/// Returns a configuration in which the `min` watermarks of all zones add up to `min` frames.
pub fn with_min(min: u64) -> Config {
    let watermarks = WatermarkSettings { min_free: Some(pages(min)), ..WatermarkSettings::default() };
    Config { watermarks, ..Config::default() }
}

impl World {
    /// Leaks the world, so that a reclaimer can use the allocator.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// Allocates a block with `request` and returns the node that served it.
    pub fn server(&self, request: &TestRequest<'_>) -> u16 {
        self.allocator.alloc(request).unwrap().node.get()
    }

    /// Returns the result of `work` and the events that were counted during it.
    pub fn during<R>(&self, work: impl FnOnce() -> R) -> (R, Events) {
        let before = self.allocator.events();
        let result = work();
        (result, minus(&self.allocator.events(), &before))
    }

    /// Returns the number of zones that one request probes.
    pub fn probes(&self, request: &TestRequest<'_>) -> u64 {
        self.during(|| self.allocator.alloc(request).unwrap()).1.probes
    }

    /// Allocates every frame of node `id`, including the reserve.
    pub fn alloc_node(&self, id: u16) -> Vec<Block> {
        let policy = Policy::preferred(&self.allocator, node(id)).unwrap();
        self.allocator.platform().begin_reclaiming();
        let mut held = Vec::new();
        for at in (0..=10).rev() {
            let request = Request::new(order(at)).policy(&policy).this_node().no_wait();
            while let Ok(block) = self.allocator.alloc(&request) {
                held.push(block);
            }
        }
        self.allocator.platform().end_reclaiming();
        self.controls.take_woken();
        held
    }

    /// Allocates all frames of node `id` as single pages, then returns the first `free` frames to the buddy allocator.
    pub fn leave_free(&self, id: u16, free: usize) -> Vec<Block> {
        let policy = Policy::preferred(&self.allocator, node(id)).unwrap();
        let request = Request::page().policy(&policy).this_node().no_wait();
        self.allocator.platform().begin_reclaiming();
        let mut held = self.alloc_all(&request);
        self.allocator.platform().end_reclaiming();
        self.controls.take_woken();
        held.sort_by_key(|block| block.first);
        self.free(held.drain(..free));
        self.allocator.drain_pagesets();
        assert_eq!(self.zone(id).free, pages(free as u64));
        held
    }

    /// Allocates pages with `request` until it fails.
    pub fn alloc_all(&self, request: &TestRequest<'_>) -> Vec<Block> {
        std::iter::from_fn(|| self.allocator.alloc(request).ok()).collect()
    }

    pub fn free(&self, blocks: impl IntoIterator<Item = Block>) {
        blocks.into_iter().for_each(|block| self.allocator.free(block.first, block.order).unwrap());
    }

    /// Returns the first zone of a node.
    pub fn zone(&self, id: u16) -> ZoneSnapshot {
        self.allocator.zones().find(|zone| zone.node == node(id)).unwrap()
    }

    /// Returns how often the counters of nodes were folded.
    pub fn node_folds(&self) -> u64 {
        self.allocator.nodes().map(|node| node.counter_folds).sum()
    }

    pub fn check(&self) {
        assert!(self.allocator.verify().unwrap().balance());
        self.controls.traced.check(&self.allocator);
    }
}

fn minus(now: &Events, before: &Events) -> Events {
    Events {
        probes: now.probes - before.probes,
        marks: now.marks - before.marks,
        wipes: now.wipes - before.wipes,
        early_clears: now.early_clears - before.early_clears,
        node_reclaim_no_scan: now.node_reclaim_no_scan - before.node_reclaim_no_scan,
        node_reclaim_full: now.node_reclaim_full - before.node_reclaim_full,
        node_reclaim_some: now.node_reclaim_some - before.node_reclaim_some,
        node_reclaim_success: now.node_reclaim_success - before.node_reclaim_success,
        background_wakes: now.background_wakes - before.background_wakes,
        background_rounds: now.background_rounds - before.background_rounds,
        background_reclaimed: now.background_reclaimed - before.background_reclaimed,
        direct_stalls: now.direct_stalls - before.direct_stalls,
        direct_reclaimed: now.direct_reclaimed - before.direct_reclaimed,
        direct_ns: now.direct_ns - before.direct_ns,
        retired: now.retired - before.retired,
        poison_found: now.poison_found - before.poison_found,
        failures: now.failures - before.failures,
        bad_frames: now.bad_frames - before.bad_frames,
        refills: now.refills - before.refills,
        drains: now.drains - before.drains,
        remote_drains: now.remote_drains - before.remote_drains,
    }
}

/// A scripted reclaimer's action in one of its calls.
type Script = Box<dyn Fn(&ReclaimRequest) -> u64 + Send + Sync>;

/// A reclaimer that runs functions of the test, and records its requests.
pub struct Scripted {
    count: Script,
    reclaim: Script,
    requests: Mutex<Vec<ReclaimRequest>>,
}

impl Scripted {
    /// Creates a reclaimer that reports `could_free` reclaimable frames on any node. `work` returns how many frames it
    /// freed.
    pub fn new(
        could_free: u64,
        work: impl Fn(NodeId, PageCount) -> u64 + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::by_request(move |_| could_free, move |request| work(request.node, request.target))
    }

    /// Creates a reclaimer that runs `count` and `reclaim` when these methods are called.
    pub fn by_request(
        count: impl Fn(&ReclaimRequest) -> u64 + Send + Sync + 'static,
        reclaim: impl Fn(&ReclaimRequest) -> u64 + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { count: Box::new(count), reclaim: Box::new(reclaim), requests: Mutex::default() })
    }

    /// Returns the number of recorded requests.
    pub fn calls(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Returns the node and target of each recorded request, and clears the record.
    pub fn take_targets(&self) -> Vec<(u16, u64)> {
        let requests = self.take_requests().into_iter();
        requests.map(|request| (request.node.get(), request.target.get())).collect()
    }

    /// Returns the recorded requests, and clears the record.
    pub fn take_requests(&self) -> Vec<ReclaimRequest> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }
}

impl Reclaimer for Scripted {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        pages((self.count)(request))
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.requests.lock().unwrap().push(*request);
        pages((self.reclaim)(request))
    }
}

/// Frames that can be reclaimed, like a page cache.
#[derive(Default)]
pub struct Cache {
    held: Mutex<Vec<(NodeId, Pfn)>>,
    freed: AtomicU64,
}

impl Cache {
    /// Adds single frames.
    pub fn keep(&self, blocks: impl IntoIterator<Item = Block>) {
        self.held.lock().unwrap().extend(blocks.into_iter().map(|block| (block.node, block.first)));
    }

    pub fn len(&self) -> usize {
        self.held.lock().unwrap().len()
    }

    /// Frees up to `target` frames of `node`. Returns the number of frames freed.
    pub fn reclaim(&self, allocator: &TestAllocator, node: NodeId, target: PageCount) -> u64 {
        self.reclaim_where(allocator, target, |of, _| of == node)
    }

    /// Frees up to `target` frames of `range`. Returns the number of frames freed.
    pub fn reclaim_in(&self, allocator: &TestAllocator, range: &FrameRange, target: PageCount) -> u64 {
        self.reclaim_where(allocator, target, |_, frame| range.start <= frame && frame < range.end())
    }

    fn reclaim_where(
        &self,
        allocator: &TestAllocator,
        target: PageCount,
        is_wanted: impl Fn(NodeId, Pfn) -> bool,
    ) -> u64 {
        let mut left = target.get();
        let mut held = self.held.lock().unwrap();
        held.retain(|&(of, frame)| {
            let goes = left > 0 && is_wanted(of, frame);
            if goes {
                allocator.free(frame, Order::PAGE).unwrap();
                left -= 1;
            }
            !goes
        });
        self.freed.fetch_add(target.get() - left, Relaxed);
        target.get() - left
    }
}

/// Creates an empty [`Cache`] and a reclaimer that frees its frames.
pub fn caching(world: &'static World, could_free: u64) -> (Arc<Cache>, Arc<Scripted>) {
    let cache = Arc::new(Cache::default());
    let keeper = Arc::clone(&cache);
    let scripted =
        Scripted::new(could_free, move |node, target| keeper.reclaim(&world.allocator, node, target));
    world.controls.set_reclaimer(scripted.clone());
    run_on(0);
    (cache, scripted)
}

/// Pseudo-random numbers (xorshift): the same seed gives the same history.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
