//! `hashbrown` maps and `allocator-api2` vectors, some of them in `bumpalo` arenas, in frames of pools and an
//! embedder's allocator.

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::Allocator as _;
use allocator_api2::vec::Vec as FrameVec;
use bumpalo::Bump;
use hashbrown::{DefaultHashBuilder, HashMap};
use zonal::platform::one_thread::OneThread;
use zonal::units::{Order, Pfn};
use zonal::{Config, Request};
use zonal_adapters::allocator_api2::PageAlloc;
use zonal_adapters::source::{DirectMap, FrameSource};
use zonal_linux::{Pool, PoolRequest};

use crate::common::{FRAME_BYTES, Physical, TestAllocator, allocator, check_all_free, range};

const FIRST: u64 = 0x1000;

fn pool(mib: u64) -> Pool {
    Pool::builder().size(mib << 20).fake_nodes(2).build().unwrap()
}

/// Checks that all frames of a pool are free.
fn check_pool_free(pool: &Pool) {
    let accounting = pool.verify().unwrap();
    assert!(accounting.balance());
    assert_eq!(accounting.allocated.get(), 0);
}

fn mapped<'a>(
    allocator: &'a TestAllocator,
    memory: &'a Physical,
    frames: u64,
) -> DirectMap<'a, 'static, OneThread> {
    // SAFETY: `memory` has so many frames, and the tests free only what they have allocated.
    unsafe { DirectMap::new(allocator, range(FIRST, frames), memory.start()) }
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Returns the bytes of a block, which the caller must own.
fn bytes<'a>(block: NonNull<[u8]>) -> &'a mut [u8] {
    // SAFETY: the caller owns the block and uses only this slice. Pools' and tests' memory is initialized.
    unsafe { &mut *block.as_ptr() }
}

#[test]
fn maps_grow_and_shrink_in_frames_of_a_pool() {
    let pool = pool(256);
    let mut map = HashMap::with_hasher_in(
        DefaultHashBuilder::default(),
        PageAlloc::new(pool.clone(), PoolRequest::page()),
    );
    for number in 0..300_000_u64 {
        map.insert(number, [number; 3]);
    }
    // More than the largest block: 2^19 buckets of 32 bytes.
    assert!(pool.accounting().allocated.get() > 4096, "{:?}", pool.accounting());
    assert!((0..300_000).all(|number| map[&number] == [number; 3]));
    map.retain(|number, _| number % 1000 == 0);
    map.shrink_to_fit();
    assert!(pool.accounting().allocated.get() <= 8, "{:?}", pool.accounting());
    assert!(map.iter().all(|(number, value)| value == &[*number; 3]) && map.len() == 300);
    drop(map);
    check_pool_free(&pool);
}

#[test]
fn arenas_and_their_vectors_use_a_chosen_node() {
    let pool = pool(128);
    let node = pool.memory_nodes().iter().last().unwrap();
    let policy = pool.bind([node].into_iter().collect()).unwrap();
    let frames = PageAlloc::new(&pool, PoolRequest::page().policy(&policy));
    let mut strings = FrameVec::new_in(frames);
    (0..100_000).for_each(|number| strings.push(number));
    assert_eq!(strings.iter().sum::<u64>(), 99_999 * 50_000);
    let frame = pool.pfn_of(strings.as_ptr().cast()).unwrap();
    assert_eq!(pool.ranges().find(|zone| zone.frames.contains(&range(frame.get(), 1))).unwrap().node, node);
    // A list in an arena holds lists in frames: both are allocators of the same trait.
    let arena = Bump::new();
    let mut lists = FrameVec::new_in(&arena);
    lists.extend((0..50).map(|length| {
        let mut list = FrameVec::new_in(frames);
        list.resize(length * 1000, length);
        list
    }));
    assert!(lists.iter().enumerate().all(|(length, list)| list.iter().all(|&value| value == length)));
    drop((lists, strings));
    check_pool_free(&pool);
}

#[test]
fn maps_and_lists_use_frames_of_an_embedder() {
    let frames = 8192;
    let (memory, allocator) = (Physical::new(frames), allocator(range(FIRST, frames), &Config::default()));
    let source = PageAlloc::new(mapped(&allocator, &memory, frames), Request::page());
    let mut map: HashMap<u32, FrameVec<u32, _>, DefaultHashBuilder, _> = HashMap::new_in(source);
    for number in 0..2000 {
        map.entry(number % 40).or_insert_with(|| FrameVec::new_in(source)).push(number);
    }
    assert!(map.iter().all(|(&key, list)| list.len() == 50 && list.iter().all(|value| value % 40 == key)));
    let start = memory.start().addr().get();
    let inside = start..start + frames as usize * FRAME_BYTES;
    assert!(map.values().all(|list| inside.contains(&list.as_ptr().addr())));
    assert_eq!(allocator.accounting().allocated.get(), 42, "40 lists, and a table of two frames");
    drop(map);
    check_all_free(&allocator);
}

#[test]
fn a_map_in_an_arena_holds_lists_in_frames() {
    // The map's own memory is the arena's, through the trait that both crates share.
    let (pool, arena) = (pool(64), Bump::with_capacity(1 << 20));
    let frames = PageAlloc::new(&pool, PoolRequest::page());
    let mut map = HashMap::new_in(&arena);
    for number in 0..500_u32 {
        let mut page = FrameVec::with_capacity_in(1024, frames);
        page.extend(std::iter::repeat_n(number, 1024));
        map.insert(number, page);
    }
    assert_eq!(pool.accounting().allocated.get(), 500);
    assert!(map.iter().all(|(number, page)| page.iter().all(|value| value == number)));
    drop(map);
    check_pool_free(&pool);
}

#[test]
fn threads_share_an_allocator() {
    let pool = pool(128);
    let frames = PageAlloc::new(&pool, PoolRequest::page());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            scope.spawn(move || {
                let mut map = HashMap::new_in(frames);
                for round in 0..20_000_u64 {
                    map.insert(round % 3000, [thread; 9]);
                    if round % 5000 == 4999 {
                        map.clear();
                        map.shrink_to_fit();
                    }
                }
                assert!(map.values().all(|value| value == &[thread; 9]));
            });
        }
    });
    check_pool_free(&pool);
    // A list can be allocated on one thread and freed on another one.
    let owned = PageAlloc::new(pool.clone(), PoolRequest::page());
    let mut list = FrameVec::new_in(owned);
    list.extend(0..10_000_u32);
    std::thread::spawn(move || drop(list)).join().unwrap();
    check_pool_free(&pool);
}

#[test]
fn exhaustion_is_an_error_and_loses_nothing() {
    let pool = pool(16);
    let frames = PageAlloc::new(&pool, PoolRequest::page());
    let (mut held, size) = (Vec::new(), 3 * FRAME_BYTES);
    while let Ok(block) = frames.allocate(layout(size, 8)) {
        bytes(block).fill(held.len() as u8);
        held.push(block.cast::<u8>());
    }
    assert!(held.len() > 1000, "{}", held.len());
    let taken = pool.accounting().allocated;
    assert_eq!(taken.get(), held.len() as u64 * 3);
    // Growing fails, and the block keeps its contents.
    // SAFETY: the block is allocated with this layout.
    let grown = unsafe { frames.grow(held[7], layout(size, 8), layout(8 * size, 8)) };
    assert!(grown.is_err());
    assert!(bytes(NonNull::slice_from_raw_parts(held[7], size)).iter().all(|&byte| byte == 7));
    let mut list = FrameVec::<u8, _>::new_in(frames);
    assert!(list.try_reserve(1 << 20).is_err() && list.try_reserve(usize::MAX / 4).is_err());
    let mut map = HashMap::<u64, [u64; 64], DefaultHashBuilder, _>::new_in(frames);
    assert!(map.try_reserve(1000).is_err());
    assert_eq!(pool.accounting().allocated, taken, "failed requests take nothing");
    for (at, block) in held.into_iter().enumerate() {
        assert!(bytes(NonNull::slice_from_raw_parts(block, size)).iter().all(|&byte| byte == at as u8));
        // SAFETY: the block is allocated with this layout, and not used after this.
        unsafe { frames.deallocate(block, layout(size, 8)) };
    }
    check_pool_free(&pool);
    assert!(map.try_reserve(1000).is_ok());
}

#[test]
fn sizes_and_alignments() {
    let pool = pool(64);
    let frames = PageAlloc::new(&pool, PoolRequest::page());
    for size in [1, 4095, 4096, 4097, 12 << 10, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20] {
        for align in [1, 64, 4096, 8192, 1 << 20, 4 << 20] {
            let block = frames.allocate_zeroed(layout(size, align)).unwrap();
            let count = size.div_ceil(FRAME_BYTES);
            assert_eq!(block.len(), count * FRAME_BYTES);
            assert_eq!(pool.accounting().allocated.get(), count as u64);
            assert!(block.cast::<u8>().addr().get().is_multiple_of(align), "{size} bytes aligned to {align}");
            assert!(bytes(block).iter().all(|&byte| byte == 0));
            bytes(block).fill(0xa5);
            // Every size up to that of the block fits it.
            // SAFETY: the block is allocated with a layout that this one fits, and not used after this.
            unsafe { frames.deallocate(block.cast(), layout(block.len(), align)) };
        }
    }
    assert!(frames.allocate(layout(1, 8 << 20)).is_err(), "no block is aligned to 8 MiB");
    assert!(frames.allocate(layout(1 << 40, 8)).is_err());
    let nothing = frames.allocate(layout(0, 1 << 20)).unwrap();
    assert!(nothing.is_empty() && nothing.cast::<u8>().addr().get().is_multiple_of(1 << 20));
    // SAFETY: blocks of no bytes were allocated with this layout.
    unsafe { frames.deallocate(nothing.cast(), layout(0, 1 << 20)) };
    check_pool_free(&pool);
}

#[test]
fn blocks_stay_in_place_while_their_frames_number_the_same() {
    let pool = pool(64);
    let frames = PageAlloc::new(&pool, PoolRequest::page());
    let block = frames.allocate(layout(5000, 8)).unwrap();
    bytes(block).fill(7);
    let start = block.cast::<u8>();
    // SAFETY: the block is allocated with the first layout; so it is with the second one after the call.
    let grown = unsafe { frames.grow_zeroed(start, layout(5000, 8), layout(8192, 8)) }.unwrap();
    assert_eq!((grown.cast(), grown.len()), (start, 8192));
    assert!(bytes(grown).iter().enumerate().all(|(at, &byte)| byte == if at < 5000 { 7 } else { 0 }));
    // SAFETY: as above.
    let shrunk = unsafe { frames.shrink(start, layout(8192, 8), layout(4097, 8)) }.unwrap();
    assert_eq!(shrunk.cast(), start);
    // SAFETY: as above.
    let moved = unsafe { frames.grow_zeroed(start, layout(4097, 8), layout(8193, 8)) }.unwrap();
    assert!(moved.cast() != start && moved.len() == 3 * FRAME_BYTES);
    assert!(bytes(moved)[..4097].iter().all(|&byte| byte == 7));
    assert!(bytes(moved)[4097..].iter().all(|&byte| byte == 0));
    assert_eq!(pool.accounting().allocated.get(), 3);
    // SAFETY: as above.
    let small = unsafe { frames.shrink(moved.cast(), layout(8193, 8), layout(100, 8)) }.unwrap();
    assert!(small.len() == FRAME_BYTES && bytes(small)[..100].iter().all(|&byte| byte == 7));
    assert_eq!(pool.accounting().allocated.get(), 1);
    // SAFETY: as above.
    let aligned = unsafe { frames.grow(small.cast(), layout(100, 8), layout(100, 2 << 20)) }.unwrap();
    assert!(aligned.cast::<u8>().addr().get().is_multiple_of(2 << 20) && bytes(aligned)[..100] == [7; 100]);
    // SAFETY: as above.
    let none = unsafe { frames.shrink(aligned.cast(), layout(100, 2 << 20), layout(0, 8)) }.unwrap();
    assert_eq!(pool.accounting().allocated.get(), 0);
    // SAFETY: as above.
    let some = unsafe { frames.grow(none.cast(), layout(0, 8), layout(1, 8)) }.unwrap();
    // SAFETY: as above.
    unsafe { frames.deallocate(some.cast(), layout(1, 8)) };
    check_pool_free(&pool);
}

#[test]
fn frames_that_are_not_mapped_are_freed_at_once() {
    // Less than the first half of the frames is mapped; the last block that begins there ends beyond.
    let (memory, allocator) = (Physical::new(2048), allocator(range(FIRST, 4096), &Config::default()));
    let source = mapped(&allocator, &memory, 2000);
    let frames = PageAlloc::new(source, Request::page());
    let results: Vec<_> = (0..16).map(|_| frames.allocate(layout(1 << 20, 8))).collect();
    let served = results.iter().flatten().count();
    assert!((6..=7).contains(&served), "{served} of 7 MiB that are mapped");
    assert_eq!(allocator.accounting().allocated.get(), served as u64 * 256);
    for block in results.into_iter().flatten() {
        // SAFETY: the block is allocated with this layout.
        unsafe { frames.deallocate(block.cast(), layout(1 << 20, 8)) };
    }
    // A request with an address limit gets only mapped frames.
    let low = PageAlloc::new(source, Request::page().below(Pfn::new(FIRST + 2000)));
    let block = low.allocate(layout(1 << 20, 8)).unwrap();
    // SAFETY: as above.
    unsafe { low.deallocate(block.cast(), layout(1 << 20, 8)) };
    assert_eq!(source.address_of(Pfn::new(FIRST + 2000)), None);
    assert_eq!(source.frame_at(memory.start()), Some(Pfn::new(FIRST)));
    check_all_free(&allocator);
    allocator.free(Pfn::new(FIRST), Order::PAGE).unwrap_err();
}
