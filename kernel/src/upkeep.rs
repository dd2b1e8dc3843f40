//! Tasks that change the machine while others allocate: drains, background reclaim, exhaustion, and memory and CPUs
//! that leave and come back.

use core::sync::atomic::Ordering::Acquire;

use fastrand::Rng;
use zonal::machine::FrameRange;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn};
use zonal::{Allocator, Request};

use crate::cpu;
use crate::firmware::FRAME_BYTES;
use crate::platform::{Kernel, pinned};
use crate::race::{self, Count, count, should_stop};
use crate::{owners, paging, smp, tasks};

/// Time between two drains of all pagesets, and between two exhaustions, in milliseconds.
const DRAIN_MS: u64 = 20;
const EXHAUST_MS: u64 = 3000;
/// Frames of a range that leaves: 4 MiB.
const LEAVING: PageCount = PageCount::new(1024);

/// Waits until the clock has advanced by `ms`, or the tasks should end.
fn sleep_ms(ms: u64) {
    let start = tasks::now_ms();
    while tasks::now_ms() - start < ms && !should_stop() {
        tasks::yield_now();
    }
}

/// Calls the allocator as every embedder does: a tick each second, and reclaim of the nodes that ask for it. Also drains
/// all pagesets again and again, which interrupts all CPUs.
pub(crate) fn keep_house(_: u32) {
    let mut last_tick = tasks::now_ms();
    while !should_stop() {
        if tasks::now_ms() - last_tick >= 1000 {
            pinned(Allocator::tick);
            last_tick = tasks::now_ms();
            race::print_progress();
        }
        let nodes = pinned(|allocator| allocator.platform().take_nodes_to_reclaim());
        for node in (0..64).filter(|node| nodes >> node & 1 != 0).filter_map(NodeId::new) {
            let freed = pinned(|allocator| allocator.background_reclaim(node));
            count(Count::Reclaimed, freed.get());
        }
        pinned(Allocator::drain_pagesets);
        count(Count::Drained, 1);
        sleep_ms(DRAIN_MS);
    }
}

/// Allocates all memory, frame by frame, and frees it again. The frames form a list, each with the number of the next.
pub(crate) fn exhaust(owner: u32) {
    while !should_stop() {
        sleep_ms(EXHAUST_MS);
        let mut list = None;
        while !should_stop() {
            let Ok(block) = pinned(|allocator| allocator.alloc(&Request::page())) else {
                count(Count::Exhausted, 1);
                break;
            };
            owners::claim(block.range(), block.node, owner);
            // SAFETY: this task has the frame. The place is not one of the stamps.
            unsafe { link(block.first).write(list) };
            list = Some(block.first);
        }
        while let Some(frame) = list {
            // SAFETY: this task has the frame, and has written the place.
            list = unsafe { link(frame).read() };
            owners::release(frame, Order::PAGE.pages(), owner);
            pinned(|allocator| allocator.free(frame, Order::PAGE)).expect("a task can free what it has");
        }
    }
}

/// Returns the place in a frame for the number of the next frame.
fn link(frame: Pfn) -> *mut Option<Pfn> {
    (frame.get() * FRAME_BYTES + 64) as *mut Option<Pfn>
}

/// Takes ranges of memory offline and brings them online again. A range with frames in use stays.
pub(crate) fn move_memory(owner: u32) {
    let mut random = Rng::with_seed(u64::from(owner));
    while !should_stop() {
        sleep_ms(50);
        let zones = pinned(|allocator| allocator.zones().count());
        let zone = pinned(|allocator| allocator.zones().nth(random.usize(0..zones))).expect("a zone");
        let first = zone.span.start.get().next_multiple_of(LEAVING.get());
        let blocks = zone.span.end().get().saturating_sub(first) / LEAVING.get();
        if blocks == 0 {
            continue;
        }
        let start = Pfn::new(first + random.u64(0..blocks) * LEAVING.get());
        let range = FrameRange { start, count: LEAVING };
        let online = pinned(|allocator| allocator.online_frames(range));
        if online != LEAVING || pinned(|allocator| allocator.offline_memory(range)).is_err() {
            continue;
        }
        owners::claim(range, zone.node, owner); // the contents of memory that is offline change
        sleep_ms(30);
        owners::release(range.start, range.count, owner);
        pinned(|allocator| allocator.online_memory(range)).expect("the range can come back");
        count(Count::MemoryLeft, 1);
    }
}

/// Takes CPUs other than the first out of use: the allocator first, then the CPU itself, which stops running tasks.
pub(crate) fn move_cpus(owner: u32) {
    let mut random = Rng::with_seed(u64::from(owner));
    let cpus = pinned(|allocator| allocator.pagesets().map(|pageset| pageset.cpu.get()).max()).unwrap_or(0);
    while !should_stop() && cpus > 0 {
        sleep_ms(100);
        let id = CpuId::new(random.u32(1..=cpus));
        let cpu = cpu::of(id);
        pinned(|allocator| allocator.offline_cpu(id)).expect("the CPU is online");
        for parked in [true, false] {
            smp::set_parked(cpu, parked);
            // Acquire: takes the writes of the parked CPU; pairs with `park`.
            while cpu.is_parked.load(Acquire) != parked {
                tasks::yield_now();
            }
            sleep_ms(50);
        }
        pinned(|allocator| allocator.online_cpu(id)).expect("the CPU is offline");
        count(Count::CpusLeft, 1);
    }
}

/// Maps and unmaps pages of all sizes.
pub(crate) fn map_pages(_: u32) {
    let mut area = paging::Area::new();
    while !should_stop() {
        match pinned(|allocator: &Allocator<'static, Kernel>| area.use_pages(allocator)) {
            Some(pages) => count(Count::Mapped, pages),
            None => count(Count::Failed, 1),
        }
        sleep_ms(10);
    }
}
