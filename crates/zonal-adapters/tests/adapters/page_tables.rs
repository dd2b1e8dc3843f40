//! Page tables of the crate `x86_64`, in memory that stands for physical memory. Only the crate itself reads and writes
//! the tables.

use std::collections::BTreeMap;

use x86_64::structures::paging::mapper::{CleanUp, MappedFrame, TranslateResult};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, Mapper, OffsetPageTable, Page, PageSize, PageTable, PageTableFlags,
    PhysFrame, Size1GiB, Size2MiB, Size4KiB, Translate,
};
use x86_64::{PhysAddr, VirtAddr};
use zonal::error::FreeError;
use zonal::units::{Order, Pfn};
use zonal::{Config, Request};
use zonal_adapters::x86_64::{FrameSizeError, TableFrames};

use crate::common::{FRAME_BYTES, Physical, TestAllocator, allocator, check_all_free, range};

/// First frame of the memory, and its number of frames (64 MiB).
const FIRST: u64 = 0x400;
const COUNT: u64 = 0x4000;
const FLAGS: PageTableFlags = PageTableFlags::PRESENT.union(PageTableFlags::WRITABLE);

fn frames<'a>(
    of: &'a TestAllocator,
    request: Request<'a>,
) -> TableFrames<'a, 'static, zonal::platform::one_thread::OneThread> {
    // SAFETY: the tests free only frames that they have allocated, each through the value that allocated it.
    unsafe { TableFrames::new(of, request) }.unwrap()
}

/// Maps a new frame at each of these pages, and returns the frames.
fn map<S: PageSize + core::fmt::Debug>(
    tables: &mut OffsetPageTable<'_>,
    frames: &mut TableFrames<'_, '_, zonal::platform::one_thread::OneThread>,
    pages: impl Iterator<Item = u64>,
) -> BTreeMap<u64, PhysFrame<S>>
where
    for<'a> OffsetPageTable<'a>: Mapper<S>,
{
    let map_one = |page: u64| {
        let frame: PhysFrame<S> = frames.allocate_frame().expect("memory suffices");
        let page = Page::<S>::from_start_address(VirtAddr::new(page)).unwrap();
        // SAFETY: no processor uses the tables.
        unsafe { tables.map_to(page, frame, FLAGS, frames) }.unwrap().ignore();
        (page.start_address().as_u64(), frame)
    };
    pages.map(map_one).collect()
}

/// Checks all translations, unmaps the pages, and deallocates their frames.
fn unmap<S: PageSize + core::fmt::Debug>(
    tables: &mut OffsetPageTable<'_>,
    frames: &mut TableFrames<'_, '_, zonal::platform::one_thread::OneThread>,
    mapped: BTreeMap<u64, PhysFrame<S>>,
) where
    for<'a> OffsetPageTable<'a>: Mapper<S>,
{
    for (&page, frame) in &mapped {
        let inside = S::SIZE / 2 + 24;
        let expected = frame.start_address() + inside;
        assert_eq!(tables.translate_addr(VirtAddr::new(page + inside)), Some(expected));
    }
    for (page, frame) in mapped {
        let page = Page::<S>::from_start_address(VirtAddr::new(page)).unwrap();
        let (unmapped, flush) = tables.unmap(page).unwrap();
        flush.ignore();
        assert_eq!(unmapped, frame);
        // SAFETY: the frame was unmapped just now.
        unsafe { frames.deallocate_frame(frame) };
    }
}

/// Returns an empty table of the highest level, and the frame that it is in.
fn top<'t>(
    memory: &'t Physical,
    frames: &mut impl FrameAllocator<Size4KiB>,
) -> (OffsetPageTable<'t>, PhysFrame<Size4KiB>) {
    let frame = frames.allocate_frame().unwrap();
    let offset = VirtAddr::new(memory.start().addr().get() as u64 - FIRST * FRAME_BYTES as u64);
    let table: *mut PageTable =
        memory.start().as_ptr().with_addr((offset + frame.start_address().as_u64()).as_u64() as usize).cast();
    // SAFETY: the frame is in `memory` and was allocated just now. The tables of a test are its only access to it.
    let table = unsafe { &mut *table };
    table.zero();
    // SAFETY: all frames of a test's allocator that have tables are in `memory`, at this offset.
    (unsafe { OffsetPageTable::new(table, offset) }, frame)
}

#[test]
fn tables_over_thousands_of_pages_of_all_sizes() {
    let memory = Physical::new(COUNT);
    // The memory that the tables are in is accessible. The rest, which only has addresses, has frames of 1 GiB.
    let config = Config { max_order: Order::new(18).unwrap(), ..Config::default() };
    let allocator = allocator(range(FIRST, 4 << 18), &config);
    let low = Pfn::new(FIRST + COUNT);
    let mut tables_in = frames(&allocator, Request::page().below(low));
    let mut anywhere = frames(&allocator, Request::page());
    let (mut tables, root) = top(&memory, &mut tables_in);

    // The pages are scattered, so that they need hundreds of tables.
    let small = (0..6000).map(|at| 0x1000_0000 + at * 0x1_3000);
    let small = map::<Size4KiB>(&mut tables, &mut tables_in, small);
    let used = allocator.accounting().allocated.get();
    assert!(used > 6000 + 200, "{used} frames: 6000 pages, and a table for each 2 MiB of addresses");
    let huge = map::<Size2MiB>(&mut tables, &mut tables_in, (0..8).map(|at| (0x40 << 30) + at * (6 << 20)));
    let giant: PhysFrame<Size1GiB> = anywhere.allocate_frame().unwrap();
    let page = Page::<Size1GiB>::from_start_address(VirtAddr::new(0x7000 << 30 >> 2)).unwrap();
    // SAFETY: no processor uses the tables.
    unsafe { tables.map_to(page, giant, FLAGS, &mut tables_in) }.unwrap().ignore();

    let found = tables.translate(page.start_address() + 0x1234_5678);
    assert!(
        matches!(found, TranslateResult::Mapped { frame: MappedFrame::Size1GiB(frame), offset: 0x1234_5678, .. } if frame == giant)
    );
    assert!(small.values().all(|frame| frame.start_address().as_u64() < low.get() * FRAME_BYTES as u64));
    assert!(
        small.len() == 6000 && huge.values().all(|frame| frame.start_address().is_aligned(Size2MiB::SIZE))
    );

    unmap(&mut tables, &mut tables_in, small);
    unmap(&mut tables, &mut tables_in, huge);
    tables.unmap(page).unwrap().1.ignore();
    // SAFETY: the frame was unmapped just now.
    unsafe { anywhere.deallocate_frame(giant) };
    assert!(allocator.accounting().allocated.get() > 200, "the empty tables remain");
    // SAFETY: each table is used once, and no processor uses the tables.
    unsafe { tables.clean_up(&mut tables_in) };
    assert_eq!(allocator.accounting().allocated.get(), 1, "the table of the highest level remains");
    // SAFETY: `tables` is not used after this.
    unsafe { tables_in.deallocate_frame(root) };
    assert_eq!((tables_in.refused(), anywhere.refused()), (None, None));
    check_all_free(&allocator);
}

#[test]
fn tables_fail_cleanly_when_frames_run_out() {
    let memory = Physical::new(COUNT);
    let allocator = allocator(range(FIRST, COUNT), &Config::default());
    let mut few = frames(&allocator, Request::page().below(Pfn::new(FIRST + 64)).no_wait());
    let (mut tables, root) = top(&memory, &mut few);
    let mut mapped = BTreeMap::new();
    for at in 0_u64.. {
        let Some(frame) = FrameAllocator::<Size4KiB>::allocate_frame(&mut few) else { break };
        let page = Page::from_start_address(VirtAddr::new(at << 21)).unwrap();
        // SAFETY: no processor uses the tables.
        match unsafe { tables.map_to(page, frame, FLAGS, &mut few) } {
            Ok(flush) => {
                flush.ignore();
                mapped.insert(at << 21, frame);
            }
            // SAFETY: the frame was not mapped.
            Err(_) => unsafe { few.deallocate_frame(frame) },
        }
        if allocator.accounting().allocated.get() >= 63 {
            break;
        }
    }
    assert!((20..=40).contains(&mapped.len()), "{} pages, and a table for each", mapped.len());
    unmap(&mut tables, &mut few, mapped);
    // SAFETY: each table is used once, and no processor uses the tables.
    unsafe { tables.clean_up(&mut few) };
    // SAFETY: `tables` is not used after this.
    unsafe { few.deallocate_frame(root) };
    assert_eq!(few.refused(), None);
    check_all_free(&allocator);
}

#[test]
fn wrong_deallocations_are_refused_and_reported() {
    let allocator = allocator(range(FIRST, COUNT), &Config::default());
    let mut frames = frames(&allocator, Request::page());
    let huge: PhysFrame<Size2MiB> = frames.allocate_frame().unwrap();
    let first = Pfn::new(huge.start_address().as_u64() / FRAME_BYTES as u64);
    let part = PhysFrame::<Size4KiB>::from_start_address(huge.start_address()).unwrap();
    // SAFETY: nothing uses the frames; the allocator refuses the wrong size.
    unsafe { frames.deallocate_frame(part) };
    assert!(matches!(frames.refused(), Some(FreeError::WrongOrder { frame, .. }) if frame == first));
    assert_eq!(allocator.accounting().allocated.get(), 512);
    // SAFETY: as above.
    unsafe { frames.deallocate_frame(huge) };
    // 1 GiB is more than the largest block of this configuration.
    assert_eq!(FrameAllocator::<Size1GiB>::allocate_frame(&mut frames), None);
    check_all_free(&allocator);
}

#[test]
fn frames_beyond_physical_addresses_are_not_returned() {
    // The last frames below address 2^52 can be mapped, and the next ones cannot.
    let border = 1_u64 << 40;
    let allocator = allocator(range(border - 1024, 2048), &Config::default());
    let mut frames = frames(&allocator, Request::page());
    let mut held = Vec::new();
    while let Some(frame) = FrameAllocator::<Size2MiB>::allocate_frame(&mut frames) {
        held.push(frame);
    }
    assert!(
        !held.is_empty() && held.iter().all(|frame| frame.start_address() < PhysAddr::new((1 << 52) - 1))
    );
    assert_eq!(allocator.accounting().allocated.get(), held.len() as u64 * 512);
    for frame in held {
        // SAFETY: nothing uses the frame.
        unsafe { frames.deallocate_frame(frame) };
    }
    assert_eq!(frames.refused(), None);
    check_all_free(&allocator);
}

#[test]
fn frames_of_another_size_are_refused() {
    let config = Config { page_bytes: 16 << 10, ..Config::default() };
    let allocator = allocator(range(FIRST, COUNT), &config);
    // SAFETY: nothing is allocated.
    let refused = unsafe { TableFrames::new(&allocator, Request::page()) }.unwrap_err();
    assert_eq!(refused, FrameSizeError { page_bytes: 16384 });
    assert!(refused.to_string().contains("16384 bytes"));
}
