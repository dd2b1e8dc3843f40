//! The race: tasks on all CPUs allocate and free blocks of all sizes and under all conditions, and check what they get.
//!
//! `owners.rs` checks every frame. `upkeep.rs` has the tasks that drain, reclaim, exhaust, and change the machine at the
//! same time.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;
use fastrand::Rng;
use zonal::machine::FrameRange;
use zonal::units::{NodeId, Order, PageCount, PageKind, Pfn, ZoneKind};
use zonal::{Allocator, NodeMask, Policy, Request};

use crate::console::println;
use crate::page_cache::CACHE;
use crate::platform::{self, Kernel, pinned};
use crate::{cpu, owners, tasks};

/// What a task counts. The last is the number of the others.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Allocated,
    Runs,
    Ranges,
    Split,
    Bulk,
    Cached,
    Refused,
    Failed,
    Drained,
    Reclaimed,
    Exhausted,
    MemoryLeft,
    CpusLeft,
    Mapped,
    Kinds,
}

/// The names of the counts.
const NAMES: [&str; Count::Kinds as usize] = [
    "blocks allocated",
    "runs allocated",
    "ranges allocated",
    "blocks split",
    "bulk allocations",
    "frames given to the page cache",
    "wrong frees refused",
    "requests failed",
    "drains of all pagesets",
    "frames reclaimed in the background",
    "times all memory was allocated",
    "ranges that left and came back",
    "CPUs that left and came back",
    "pages mapped",
];

impl Count {
    /// Returns the name of the count.
    pub(crate) const fn name(self) -> &'static str {
        NAMES[self as usize]
    }
}

static COUNTS: [AtomicU64; Count::Kinds as usize] = [const { AtomicU64::new(0) }; Count::Kinds as usize];
/// Time at which the race ends, in milliseconds.
static END_MS: AtomicU64 = AtomicU64::new(0);

/// First frame above 4 GiB.
const DMA32_END: Pfn = Pfn::new(1 << 20);

/// The largest number of blocks, and of frames, that a task has at a time.
const HELD_MAX: usize = 48;
const FRAMES_MAX: u64 = 4096;

/// Adds to a count.
pub(crate) fn count(kind: Count, by: u64) {
    COUNTS[kind as usize].fetch_add(by, Relaxed); // relaxed: a statistic
}

/// Returns the counts with their names.
pub(crate) fn counts() -> impl Iterator<Item = (&'static str, u64)> {
    NAMES.into_iter().zip(COUNTS.iter().map(|count| count.load(Relaxed))) // relaxed: a statistic
}

/// Lets the race end after some seconds.
pub(crate) fn end_after(seconds: u64) {
    END_MS.store(tasks::now_ms() + 1000 * seconds, Relaxed); // relaxed: only the number itself is read
}

/// Prints every ten seconds how far the race is. It is called about once a second.
pub(crate) fn print_progress() {
    let left = END_MS.load(Relaxed).saturating_sub(tasks::now_ms()) / 1000; // relaxed: as in `end_after`
    if left.is_multiple_of(10) {
        println!("{left} s left, {} blocks allocated", COUNTS[Count::Allocated as usize].load(Relaxed));
    }
}

/// Whether the tasks should end.
pub(crate) fn should_stop() -> bool {
    tasks::now_ms() >= END_MS.load(Relaxed) // relaxed: as above
}

/// Frames that a task has.
#[derive(Clone, Copy)]
enum Held {
    Block(Pfn, Order),
    Run(Pfn, PageCount),
}

/// A task of the race.
struct Worker {
    owner: u32,
    random: Rng,
    held: ArrayVec<Held, HELD_MAX>,
    frames: u64,
    nodes: usize,
    policies: ArrayVec<(Policy<'static, Kernel>, NodeMask), 4>,
}

/// Runs a task of the race.
pub(crate) fn work(owner: u32) {
    let nodes = pinned(|allocator| allocator.nodes().count());
    let random = Rng::with_seed(u64::from(owner));
    let (held, policies) = (ArrayVec::new(), ArrayVec::new());
    let mut worker = Worker { owner, random, held, frames: 0, nodes, policies };
    pinned(|allocator| worker.make_policies(allocator));
    while !should_stop() {
        worker.step();
    }
    while !worker.held.is_empty() {
        worker.free(0);
    }
}

fn mask(nodes: impl Iterator<Item = usize>) -> NodeMask {
    nodes.filter_map(|node| NodeId::new(node as u16)).collect()
}

impl Worker {
    fn make_policies(&mut self, allocator: &'static Allocator<'static, Kernel>) {
        let all = mask(0..self.nodes);
        let some =
            mask((0..self.nodes).filter(|node| self.nodes == 1 || node % 2 == self.owner as usize % 2));
        let first = NodeId::new(0).expect("node 0");
        let policies = [
            (Policy::bind(allocator, some), some),
            (Policy::preferred(allocator, first), all),
            // When its nodes are full, an interleaving policy uses others.
            (Policy::interleave(allocator, some), all),
            (Ok(Policy::local()), all),
        ];
        self.policies.extend(policies.map(|(policy, nodes)| (policy.expect("nodes with memory"), nodes)));
    }

    fn step(&mut self) {
        let room = self.held.len() < HELD_MAX && self.frames < FRAMES_MAX;
        match self.random.u32(0..64) {
            0 => self.alloc_run(),
            1 => self.alloc_range(),
            2 => self.split(),
            3 => self.bulk(),
            4 => self.fill_page_cache(),
            5 => self.free_wrongly(),
            6..34 if room => self.alloc(),
            _ if !self.held.is_empty() => {
                let at = self.random.usize(0..self.held.len());
                self.free(at);
            }
            _ => tasks::yield_now(),
        }
    }

    /// Allocates a block under a random condition.
    fn alloc(&mut self) {
        let order = if self.random.bool() { 0 } else { self.random.u8(0..=10) };
        let request = Request::new(Order::new(order).expect("at most the largest order"));
        let kinds = [PageKind::User, PageKind::Kernel];
        let request = request.kind(self.random.choice(kinds).expect("there are kinds"));
        let nodes = self.nodes;
        let some = mask((0..nodes).filter(|_| nodes == 1 || self.random.bool()));
        let all = mask(0..nodes);
        let form = self.random.u32(0..10);
        let (request, nodes) = match form {
            0 => (request.this_node(), all),
            1 if !some.is_empty() => (request.allowed(&some), some),
            2 => (request.zone_limit(ZoneKind::Dma32), all),
            3 => (request.no_wait(), all),
            4 => (request.zeroed(), all),
            at @ 5..9 => {
                let (policy, nodes) = &self.policies[at as usize - 5];
                (request.policy(policy), *nodes)
            }
            _ => (request, all),
        };
        let (block, own_node) =
            pinned(|allocator| (allocator.alloc(&request), allocator.node_of_cpu(cpu::current_id())));
        match block {
            Ok(block) => {
                assert!(form != 0 || Some(block.node) == own_node, "{block:?} is not of node {own_node:?}");
                assert!(form != 2 || block.range().end() <= DMA32_END, "{block:?} is above 4 GiB");
                assert!(form != 4 || platform::is_zero(block.range()), "{block:?} has not only zeros");
                assert!(nodes.contains(block.node), "{block:?} is not of one of the nodes {nodes:?}");
                owners::claim(block.range(), block.node, self.owner);
                self.hold(Held::Block(block.first, block.order));
                count(Count::Allocated, 1);
            }
            Err(_) => self.give_way(),
        }
    }

    /// Frees half of the frames after a failure, so that memory is not exhausted for ever.
    fn give_way(&mut self) {
        count(Count::Failed, 1);
        for _ in 0..self.held.len() / 2 {
            self.free(0);
        }
        tasks::yield_now();
    }

    fn hold(&mut self, held: Held) {
        self.frames += size(held).get();
        self.held.push(held);
    }

    fn free(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        self.frames -= size(held).get();
        let (Held::Block(first, _) | Held::Run(first, _)) = held;
        owners::release(first, size(held), self.owner);
        let freed = pinned(|allocator| match held {
            Held::Block(first, order) => allocator.free(first, order),
            Held::Run(first, count) => allocator.free_frames(first, count),
        });
        freed.expect("a task can free what it has");
    }

    fn alloc_run(&mut self) {
        if self.held.is_full() {
            return;
        }
        let frames = PageCount::new(self.random.u64(1..200));
        if let Ok(run) = pinned(|allocator| allocator.alloc_frames(&Request::page(), frames)) {
            owners::claim(run.range, run.node, self.owner);
            self.hold(Held::Run(run.range.start, run.range.count));
            count(Count::Runs, 1);
        }
    }

    /// Tries to allocate given frames, near one that this task has.
    fn alloc_range(&mut self) {
        let Some(&(Held::Block(near, _) | Held::Run(near, _))) = self.held.first() else { return };
        if self.held.is_full() {
            return;
        }
        let start = Pfn::new(near.get().saturating_sub(self.random.u64(0..2000)));
        let range = FrameRange { start, count: PageCount::new(self.random.u64(1..100)) };
        if let Ok(run) = pinned(|allocator| allocator.alloc_range(range, PageKind::Kernel)) {
            owners::claim(run.range, run.node, self.owner);
            self.hold(Held::Run(run.range.start, run.range.count));
            count(Count::Ranges, 1);
        }
    }

    /// Splits a block into smaller ones, which are then freed one by one.
    fn split(&mut self) {
        let is_block = |held: &Held| matches!(held, Held::Block(_, order) if order.get() > 0);
        let Some(at) = self.held.iter().position(is_block) else { return };
        let Held::Block(first, order) = self.held.swap_remove(at) else { unreachable!("a block was found") };
        self.frames -= order.pages().get();
        let to = Order::new(self.random.u8(0..order.get())).expect("a smaller order");
        pinned(|allocator| allocator.split(first, order, to)).expect("a task can split what it has");
        owners::release(first, order.pages(), self.owner);
        for part in (first.get()..first.get() + order.pages().get()).step_by(to.pages().get() as usize) {
            pinned(|allocator| allocator.free(Pfn::new(part), to))
                .expect("a part of a split block can be freed");
        }
        count(Count::Split, 1);
    }

    fn bulk(&mut self) {
        let mut frames = [Pfn::default(); 64];
        let Ok(came) = pinned(|allocator| allocator.alloc_bulk(&Request::page(), &mut frames)) else {
            return;
        };
        let frames = &frames[..came];
        for &frame in frames {
            let node = pinned(|allocator| node_of(allocator, frame));
            owners::claim(FrameRange { start: frame, count: Order::PAGE.pages() }, node, self.owner);
        }
        frames.iter().for_each(|&frame| owners::release(frame, Order::PAGE.pages(), self.owner));
        pinned(|allocator| allocator.free_bulk(frames)).expect("a task can free what it has");
        count(Count::Bulk, 1);
    }

    fn fill_page_cache(&mut self) {
        for _ in 0..64 {
            let Ok(block) = pinned(|allocator| allocator.alloc(&Request::page().no_wait())) else { return };
            owners::claim(block.range(), block.node, owners::PAGE_CACHE);
            if !pinned(|_| CACHE.insert(block.node, block.first)) {
                owners::release(block.first, Order::PAGE.pages(), owners::PAGE_CACHE);
                pinned(|allocator| allocator.free(block.first, block.order)).expect("the cache had no room");
                return;
            }
            count(Count::Cached, 1);
        }
    }

    /// Frees what this task has in wrong ways, which the allocator must refuse.
    fn free_wrongly(&mut self) {
        let Some(&Held::Block(first, order)) = self.held.first() else { return };
        let wrong = Order::new((order.get() + 1) % 11).expect("at most the largest order");
        let inside = Pfn::new(first.get() + 1);
        let refused = pinned(|allocator| {
            let wrong_order = allocator.free(first, wrong).is_err();
            wrong_order && (order == Order::PAGE || allocator.free(inside, Order::PAGE).is_err())
        });
        assert!(refused, "a wrong free of {first} (order {order}) was accepted");
        count(Count::Refused, 1);
    }
}

fn size(held: Held) -> PageCount {
    match held {
        Held::Block(_, order) => order.pages(),
        Held::Run(_, count) => count,
    }
}

/// Returns the node of a frame, as the allocator says.
fn node_of(allocator: &Allocator<'static, Kernel>, frame: Pfn) -> NodeId {
    let zone = allocator.zones().find(|zone| (zone.span.start..zone.span.end()).contains(&frame));
    zone.expect("an allocated frame is of a zone").node
}
