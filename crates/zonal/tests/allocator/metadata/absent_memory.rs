//! Tests that absent memory costs nothing: with little managed memory in a huge span, the start writes few bytes.
//!
//! The platform's cells count the bytes written to them. The buffers are zeroed memory, which the system backs with
//! pages only when it is touched.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::alloc::{Layout as Bytes, alloc_zeroed};
use std::mem::MaybeUninit;

use zonal::error::FreeError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::{Cells, OneThread};
use zonal::platform::{Atomic, SpinLock, ZeroedCells};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Request};

/// Bytes written to cells. The tests of this program write to them from one thread only.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

fn count(bytes: usize) {
    WRITTEN.fetch_add(bytes as u64, Ordering::Relaxed); // relaxed: only one thread writes to the cells
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

    // SAFETY: the cells are plain integers in transparent wrappers, and so is the lock. All of them are zero when new.
    const ZEROED_CELLS: Option<ZeroedCells<OneThread<Self>>> = Some(unsafe { ZeroedCells::promise() });
}

/// Returns zeroed memory that is never freed.
fn zeroed(bytes: usize) -> Buffer<'static> {
    let layout = Bytes::from_size_align(bytes.max(1), 64).unwrap();
    // SAFETY: the size in `layout` is at least 1.
    let start = unsafe { alloc_zeroed(layout) };
    assert!(!start.is_null(), "no addresses for {bytes} bytes");
    // SAFETY: the memory was just allocated with at least `bytes` bytes. It is never freed, and no other code uses it.
    let all = unsafe { std::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
    // SAFETY: `alloc_zeroed` returned zeroed memory, and nothing has written to it since.
    unsafe { Buffer::zeroed(all) }
}

const GIB: u64 = 1 << 18;
/// Start and length of memory that comes online later. The last range begins where managed memory ends.
const ARRIVALS: [(u64, u64); 3] = [(100 * GIB, 4096), (101 * GIB + 5, 3), (4000 * GIB + 77 + GIB - 1000, 10)];

/// Starts an allocator with the ranges `managed` in a zone of 4 TiB. Returns the allocator and the number of bytes that
/// the start wrote.
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

/// This is a single test because [`WRITTEN`] counts the writes of the whole program.
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
