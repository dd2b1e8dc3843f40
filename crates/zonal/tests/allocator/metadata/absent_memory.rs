//! Absent memory costs nothing: little managed memory in a huge span starts with few writes.
//!
//! The platform's cells count the bytes written to them, and the buffers are zeroed memory that the system provides
//! only when it is touched.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::alloc::{Layout as Bytes, alloc_zeroed};
use std::mem::MaybeUninit;

use zonal::error::FreeError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::{Cells, OneThread};
use zonal::platform::{Atomic, SpinLock, ZeroedCells};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Request};

/// Bytes written to cells by the one thread of this test program.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    WRITTEN.fetch_add(bytes as u64, Ordering::Relaxed); // one thread
}

macro_rules! counting_cell {
    ($name:ident, $inner:ident, $int:ty) => {
        #[repr(transparent)]
        struct $name($inner);

        impl Atomic<$int> for $name {
            fn new(value: $int) -> Self {
                count(size_of::<$int>());
                Self($inner::new(value))
            }
            fn load(&self, order: Ordering) -> $int {
                self.0.load(order)
            }
            fn store(&self, value: $int, order: Ordering) {
                count(size_of::<$int>());
                self.0.store(value, order);
            }
            fn swap(&self, value: $int, order: Ordering) -> $int {
                count(size_of::<$int>());
                self.0.swap(value, order)
            }
            fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$int, $int> {
                count(size_of::<$int>());
                self.0.compare_exchange(current, new, ok, failed)
            }
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                count(size_of::<$int>());
                self.0.fetch_add(value, order)
            }
            fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                count(size_of::<$int>());
                self.0.fetch_or(value, order)
            }
            fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                count(size_of::<$int>());
                self.0.fetch_and(value, order)
            }
        }
    };
}
counting_cell!(Byte, AtomicU8, u8);
counting_cell!(Half, AtomicU32, u32);
counting_cell!(Whole, AtomicU64, u64);

struct Counting;

impl Cells for Counting {
    type U8 = Byte;
    type U32 = Half;
    type U64 = Whole;
    type Lock = SpinLock;

    // SAFETY: the cells are plain integers in a transparent wrapper and the lock is one too; zero when new.
    const ZEROED_CELLS: Option<ZeroedCells<OneThread<Self>>> = Some(unsafe { ZeroedCells::promise() });
}

/// Returns zeroed memory that lives as long as the program.
fn zeroed(bytes: usize) -> Buffer<'static> {
    let layout = Bytes::from_size_align(bytes.max(1), 64).unwrap();
    // SAFETY: the size is not zero.
    let start = unsafe { alloc_zeroed(layout) };
    assert!(!start.is_null(), "no addresses for {bytes} bytes");
    // SAFETY: just allocated, of that size, never freed and used by nothing else.
    let all = unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
    // SAFETY: it is zeroed.
    unsafe { Buffer::zeroed(all) }
}

const GIB: u64 = 1 << 18;
/// Start and length of memory that comes later; the last range follows on managed memory.
const ARRIVALS: [(u64, u64); 3] = [(100 * GIB, 4096), (101 * GIB + 5, 3), (4000 * GIB + 77 + GIB - 1000, 10)];

/// Starts over `managed` in a zone of 4 TiB; returns the allocator and the bytes that its start wrote.
fn start(managed: &[FrameRange]) -> (Allocator<'static, OneThread<Counting>>, u64) {
    let id = NodeId::new(0).unwrap();
    let span = range(0, 4096 * GIB);
    let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span, managed }];
    let hotplug = ARRIVALS.map(|(start, count)| range(start, count));
    let machine = Machine::new(&nodes, &zones).unwrap().with_hotplug(&hotplug).unwrap();
    let before = WRITTEN.load(Ordering::Relaxed);
    let allocator = Allocator::new(OneThread::with_cells(), &machine, &Config::default(), |request| {
        Some(zeroed(request.bytes))
    });
    (allocator.unwrap(), WRITTEN.load(Ordering::Relaxed) - before)
}

fn range(start: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
}

/// One test, because the count is per program.
#[test]
fn four_gib_within_four_tib_cost_as_much_as_four_gib() {
    // In four ranges, the last of which begins and ends within sections.
    let last = range(4000 * GIB + 77, GIB - 1000);
    let managed = [range(0, GIB), range(7 * GIB, GIB), range(2000 * GIB, GIB), last];
    let (allocator, written) = start(&managed);
    let frames: u64 = managed.iter().map(|range| range.count.get()).sum();
    // Bitmaps of what is managed, words of sections, and indexes; one byte for each frame of one section.
    assert!(written < frames / 4 + (1 << 16), "{written} bytes for {frames} frames");

    // Frames next to what is managed, in a present section and in absent ones.
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

    // Absent memory can come online, whole sections and parts of them, and go offline again.
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
