//! Tests that absent memory costs nothing: with little managed memory in a huge span, the start writes few bytes.
//!
//! A watcher counts the bytes written to cells. The buffers are zeroed memory, which the system backs with pages only
//! when it is touched.

use std::cell::Cell;

use crate::common::watched::{Access, Kind};
use crate::common::watching::{Watched, WatchedAllocator, Watcher, watch};
use crate::common::zeroed::ZeroBytes;
use crate::common::{Plan, TestPlatform, range, run_on};
use zonal::error::FreeError;
use zonal::machine::FrameRange;
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, Request};

thread_local! {
    /// Bytes written to cells.
    static WRITTEN: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that this thread writes.
struct Counting;

impl Watcher for Counting {
    fn before(&self, access: Access) {
        if access.kind != Kind::Read {
            self.created(access.bytes);
        }
    }

    fn created(&self, bytes: usize) {
        WRITTEN.set(WRITTEN.get() + bytes);
    }
}

const GIB: u64 = 1 << 18;
/// Start and length of memory that comes online later. The last range begins where managed memory ends.
const ARRIVALS: [(u64, u64); 3] = [(100 * GIB, 4096), (101 * GIB + 5, 3), (4000 * GIB + 77 + GIB - 1000, 10)];

/// Starts an allocator with the ranges `managed` in a zone of 4 TiB. Returns the allocator and the number of bytes that
/// the start wrote.
fn start(managed: &[FrameRange]) -> (WatchedAllocator, u64) {
    let managed = managed.iter().map(|range| (range.start.get(), range.count.get())).collect();
    let plan = Plan {
        nodes: vec![(0, vec![0])],
        distances: vec![vec![10]],
        zones: vec![(0, ZoneKind::Normal, 0, 4096 * GIB, managed)],
        hotplug: ARRIVALS.to_vec(),
        ..Plan::default()
    };
    run_on(0);
    watch(&Counting);
    WRITTEN.set(0);
    let platform = TestPlatform::<Watched>::new(plan.controls());
    let allocator = plan.try_build_from(&Config::default(), platform, |bytes| {
        Box::leak(Box::<ZeroBytes>::default()).lend(bytes)
    });
    (allocator.unwrap(), WRITTEN.get() as u64)
}

#[test]
fn four_gib_within_four_tib_cost_as_much_as_four_gib() {
    // The managed memory is four ranges. The last of them begins and ends inside a section.
    let last = range(4000 * GIB + 77, GIB - 1000);
    let managed = [range(0, GIB), range(7 * GIB, GIB), range(2000 * GIB, GIB), last];
    let (allocator, written) = start(&managed);
    let frames: u64 = managed.iter().map(|range| range.count.get()).sum();
    // The start writes the bitmaps of the managed frames, the words of their sections, the indexes, and one byte for
    // each frame of one section.
    assert!(written < frames / 4 + (1 << 16), "{written} bytes for {frames} frames");

    // These frames are next to managed ranges, in a section that is partly present and in absent sections.
    let absent = [last.start.get() - 1, last.end().get(), 3 * GIB, GIB, 4096 * GIB - 1];
    for frame in absent.map(Pfn::new) {
        assert_eq!(allocator.free(frame, Order::PAGE), Err(FreeError::NotManaged(frame)));
    }
    let blocks: Vec<_> = (0..1000).map(|_| allocator.alloc(&Request::page()).unwrap()).collect();
    assert!(
        blocks
            .iter()
            .all(|block| managed.iter().any(|range| range.contains(&self::range(block.first.get(), 1))))
    );
    blocks.iter().for_each(|block| allocator.free(block.first, block.order).unwrap());

    // Absent memory can come online in whole sections and in parts of sections, and can go offline again.
    for arrival in ARRIVALS.map(|(start, count)| range(start, count)) {
        allocator.online_memory(arrival).unwrap();
        assert!(allocator.online_memory(arrival).is_err());
        assert_eq!(allocator.free(arrival.start, Order::PAGE), Err(FreeError::NotAllocated(arrival.start)));
        allocator.offline_memory(arrival).unwrap();
        assert_eq!(allocator.free(arrival.start, Order::PAGE), Err(FreeError::NotManaged(arrival.start)));
    }
    allocator.drain_pagesets();
    let accounting = allocator.verify().unwrap();
    assert_eq!(accounting.managed, PageCount::new(frames));
    assert_eq!(accounting.free, accounting.managed);
}
