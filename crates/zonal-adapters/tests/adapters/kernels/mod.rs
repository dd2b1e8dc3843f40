//! Adapters to the traits of kernels, as `docs/adapters.md` shows them.
//!
//! Each other file in this folder is code of that page.
#![allow(unreachable_pub)] // the page shows public items

mod ax_allocator;
mod ax_page_table;
mod ostd;

use core::alloc::Layout;
use std::sync::OnceLock;

use ::ax_allocator::{AllocError, BaseAllocator, PageAllocator};
use ax_memory_addr::{PhysAddr, VirtAddr};
use ax_page_table_entry::x86_64::X64PTE;
use ax_page_table_multiarch::{MappingFlags, PageSize, PageTable64, PagingHandler, PagingMetaData};
use zonal::platform::one_thread::OneThread;
use zonal::units::{Order, Pfn};
use zonal::{Config, Request};

use self::ax_page_table::{Kernel, TableFrames};
use crate::common::{FRAME_BYTES, Physical, TestAllocator, allocator, check_all_free, late_memory, range};

/// The types and the trait of ostd 0.19 that its adapter uses. ostd itself builds only for kernels, with a nightly
/// compiler.
mod stand_in {
    pub(crate) mod mm {
        pub(crate) type Paddr = usize;

        pub(crate) mod frame {
            use super::Paddr;
            use core::alloc::Layout;

            pub(crate) trait GlobalFrameAllocator: Sync {
                fn alloc(&self, layout: Layout) -> Option<Paddr>;
                fn dealloc(&self, addr: Paddr, size: usize);
                fn add_free_memory(&self, addr: Paddr, size: usize);
            }
        }
    }
}

#[test]
fn the_page_shows_the_code_of_these_tests() {
    let page = include_str!("../../../../../docs/adapters.md");
    for code in [include_str!("ax_allocator.rs"), include_str!("ax_page_table.rs"), include_str!("ostd.rs")] {
        let (_, code) = code.split_once("shows the rest of this file.\n").unwrap();
        assert!(page.contains(code), "docs/adapters.md does not show this code:\n{code}");
    }
}

/// First frame of the memory, and its number of frames (64 MiB).
const FIRST: u64 = 0x1000;
const COUNT: u64 = 0x4000;
const START: usize = FIRST as usize * FRAME_BYTES;
const MIB: usize = 1 << 20;

#[test]
fn ax_pages_of_any_number_and_at_addresses() {
    let allocator = late_memory(range(FIRST, COUNT));
    let mut pages = ax_allocator::Pages(&allocator);
    assert!(matches!(pages.alloc_pages(1, FRAME_BYTES), Err(AllocError::NoMemory)));
    // Parts of pages are left out.
    pages.init(START + 1, 32 * MIB);
    assert_eq!((pages.total_pages(), pages.used_pages()), (8191, 0));
    pages.add_memory(START + 32 * MIB, 32 * MIB).unwrap();
    assert!(matches!(pages.add_memory(START + 40 * MIB, MIB), Err(AllocError::MemoryOverlap)));
    assert!(matches!(pages.add_memory(START + 80 * MIB, MIB), Err(AllocError::InvalidParam)));

    let mut held = Vec::new();
    for (count, align) in [(1, 4096), (3, 4096), (5, 65536), (1024, 4096), (3000, 2 * MIB), (1, 4 * MIB)] {
        let start = pages.alloc_pages(count, align).unwrap();
        assert!(start.is_multiple_of(align) && (START..START + 64 * MIB).contains(&start));
        held.push((start, count));
    }
    let used: usize = held.iter().map(|(_, count)| count).sum();
    assert_eq!((pages.used_pages(), pages.available_pages()), (used, 16383 - used));
    // The last pages are free, so they can be had by their address, once.
    let last = START + 60 * MIB;
    held.push((pages.alloc_pages_at(last, 777, MIB).unwrap(), 777));
    assert!(matches!(pages.alloc_pages_at(last + FRAME_BYTES, 1, FRAME_BYTES), Err(AllocError::NoMemory)));
    assert!(matches!(pages.alloc_pages_at(last + FRAME_BYTES, 1, MIB), Err(AllocError::InvalidParam)));
    assert!(matches!(pages.alloc_pages(1, 3000), Err(AllocError::InvalidParam)));
    assert!(matches!(pages.alloc_pages(20_000, 4096), Err(AllocError::NoMemory)));
    held.sort_unstable();
    assert!(held.windows(2).all(|pair| pair[0].0 + pair[0].1 * FRAME_BYTES <= pair[1].0));
    held.into_iter().for_each(|(start, count)| pages.dealloc_pages(start, count));
    assert_eq!(pages.used_pages(), 0);
    check_all_free(&allocator);
}

/// A kernel whose physical memory is a buffer of the test.
struct TestKernel;

static ALLOCATOR: OnceLock<TestAllocator> = OnceLock::new();
static MEMORY: OnceLock<usize> = OnceLock::new();

impl Kernel for TestKernel {
    type Platform = OneThread;

    fn frames() -> &'static TestAllocator {
        ALLOCATOR.get_or_init(|| allocator(range(FIRST, COUNT), &Config::default()))
    }

    fn address_of(physical: usize) -> usize {
        // The memory is leaked: page tables may use it until the process ends.
        let memory = MEMORY.get_or_init(|| {
            let memory = Physical::new(COUNT);
            let start = memory.start().as_ptr().expose_provenance();
            core::mem::forget(memory);
            start
        });
        memory + (physical - START)
    }
}

/// Page tables as those of x86-64, which no processor uses, so that there is nothing to flush.
struct Unused;

impl PagingMetaData for Unused {
    const LEVELS: usize = 4;
    const PA_MAX_BITS: usize = 52;
    const VA_MAX_BITS: usize = 48;
    type VirtAddr = VirtAddr;

    fn flush_tlb(_: Option<VirtAddr>) {}
}

#[test]
fn ax_page_tables_map_thousands_of_pages() {
    type Tables = PageTable64<Unused, X64PTE, TableFrames<TestKernel>>;
    let allocator = TestKernel::frames();
    let mut tables = Tables::try_new().unwrap();
    let flags = MappingFlags::READ | MappingFlags::WRITE;
    let mut mapped = Vec::new();
    for at in 0..5000 {
        let (size, count, step) = match at % 1000 {
            0 => (PageSize::Size2M, 512, 2 * MIB),
            _ => (PageSize::Size4K, 1, FRAME_BYTES),
        };
        let frame = TableFrames::<TestKernel>::alloc_frames(count, step).unwrap();
        let page = VirtAddr::from(0x4000_0000 + at * (4 * MIB));
        tables.cursor().map(page, frame, size, flags).unwrap();
        mapped.push((page, frame, size, count));
    }
    let frames: usize = mapped.iter().map(|(.., count)| count).sum();
    assert!(allocator.accounting().allocated.get() as usize > frames + 4000, "a table for each page");
    for (page, frame, size, count) in mapped {
        let (found, _, found_size) = tables.query(page + 24).unwrap();
        assert_eq!((found, found_size), (PhysAddr::from(frame.as_usize() + 24), size));
        assert_eq!(tables.cursor().unmap(page).unwrap().0, frame);
        TableFrames::<TestKernel>::dealloc_frames(frame, count);
    }
    drop(tables);
    assert!(TableFrames::<TestKernel>::alloc_frames(1, 1 << 40).is_none());
    check_all_free(allocator);
}

#[test]
fn ostd_frees_allocations_in_parts() {
    use self::stand_in::mm::frame::GlobalFrameAllocator as _;

    let frames = ostd::Frames(late_memory(range(FIRST, COUNT)));
    let layout = |frames: usize, align: usize| Layout::from_size_align(frames * FRAME_BYTES, align).unwrap();
    assert_eq!(frames.alloc(layout(1, FRAME_BYTES)), None);
    // Memory arrives in pieces, some of them before their neighbours.
    for piece in [3, 0, 1, 2, 7, 5, 4, 6] {
        frames.add_free_memory(START + piece * 8 * MIB, 8 * MIB);
    }
    let single = frames.alloc(layout(1, FRAME_BYTES)).unwrap();
    let odd = frames.alloc(layout(13, 8 * FRAME_BYTES)).unwrap();
    let large = frames.alloc(layout(2500, 2 * MIB)).unwrap();
    assert!(odd.is_multiple_of(8 * FRAME_BYTES) && large.is_multiple_of(2 * MIB));
    frames.dealloc(odd + 5 * FRAME_BYTES, 2 * FRAME_BYTES);
    frames.dealloc(large + 2499 * FRAME_BYTES, FRAME_BYTES);
    assert_eq!(frames.0.accounting().allocated.get(), 1 + 11 + 2499);
    frames.dealloc(large, 2499 * FRAME_BYTES);
    frames.dealloc(odd, 5 * FRAME_BYTES);
    frames.dealloc(odd + 7 * FRAME_BYTES, 6 * FRAME_BYTES);
    frames.dealloc(single, FRAME_BYTES);
    check_all_free(&frames.0);
    // The parts have merged again.
    frames.0.drain_pagesets();
    let largest = frames.0.alloc(&Request::new(Order::DEFAULT_MAX)).unwrap();
    assert!(largest.first >= Pfn::new(FIRST));
}
