//! Allocation and free of blocks.

use std::ffi::c_void;

use zonal_linux::{
    AllocError, FrameRange, FreeError, NodeId, Order, PageCount, Pfn, Pool, PoolRequest, SplitError,
    UsedState,
};

use crate::arguments::{check_pointer, sized};
use crate::calls::is_child;
use crate::handle::{is_unmapped, with_pool};
use crate::request::{or_page, order_of, with_request};
use crate::status::{Failure, Status, call, zonal_status};
use crate::types::{zonal_block, zonal_pool, zonal_request};

/// Returns the failure of a request, whose order is that of the block.
#[cold]
fn failure(pool: &Pool, request: &PoolRequest<'_>, error: AllocError) -> Failure {
    let status = match error {
        AllocError::Reentered => Status::ZONAL_REENTERED,
        AllocError::OutOfMemory(_) | AllocError::NotContiguous { .. } => Status::ZONAL_OUT_OF_MEMORY,
        _ => Status::ZONAL_INVALID_ARGUMENT,
    };
    let mut failure = Failure::new(status, error);
    if let AllocError::OutOfMemory(_) = error {
        // SAFETY: this only reads.
        let allocator = unsafe { pool.allocator() };
        allocator.shortage(request, |zone| failure = failure.append(format_args!("\n  {zone}"))).ok();
    }
    failure
}

/// Returns an error if this process has no copy of the pool's memory.
#[inline]
pub(crate) fn check_mapped(pool: &Pool) -> Result<(), Failure> {
    if is_child() { check_copied(pool) } else { Ok(()) }
}

#[cold]
fn check_copied(pool: &Pool) -> Result<(), Failure> {
    let why = "a child process has no copy of the memory of this pool";
    if is_unmapped(pool) { Err(Failure::new(Status::ZONAL_NOT_A_POOL, why)) } else { Ok(()) }
}

#[cold]
fn no_address(frame: Pfn) -> Failure {
    Failure::new(Status::ZONAL_INTERNAL, format_args!("page {frame} has no address in this process"))
}

/// Allocates the block of a request.
#[inline]
fn alloc(pool: &Pool, wanted: &PoolRequest<'_>, request: &zonal_request) -> Result<zonal_block, Failure> {
    check_mapped(pool)?;
    let bytes = request.bytes.max(1);
    let page = pool.page_bytes();
    let order = if bytes <= page { Some(Order::PAGE) } else { pool.order_holding(bytes) };
    let count = PageCount::new(bytes.div_ceil(page) as u64);
    let block = match order {
        // The page count is a power of two, and the block aligned to its size.
        Some(order) if order.pages() == count && request.alignment <= page << order.get() => {
            let block = pool.alloc_raw(&wanted.with_order(order));
            block.map(|block| (block.first, block.node))
        }
        _ => alloc_run(pool, wanted, count),
    };
    let (first, node) = block.map_err(|error| {
        let order = pool.order_holding(bytes.max(request.alignment)).unwrap_or(Order::PAGE);
        failure(pool, &wanted.with_order(order), error)
    })?;
    let Some(address) = pool.ptr_of(first) else {
        // SAFETY: the block was allocated just now, and no other code knows it.
        unsafe { free(pool, first, count) }.ok();
        return Err(no_address(first));
    };
    Ok(zonal_block {
        struct_size: size_of::<zonal_block>(),
        address: address.as_ptr().cast::<c_void>(),
        bytes: count.get() as usize * page,
        frame: first.get(),
        node: node.get(),
        reserved: [0; 3],
    })
}

/// Allocates any number of adjacent pages.
fn alloc_run(pool: &Pool, wanted: &PoolRequest<'_>, count: PageCount) -> Result<(Pfn, NodeId), AllocError> {
    let run = match pool.alloc_frames_raw(wanted, count) {
        // SAFETY: the run is not owned by anything else, and is freed by `zonal_free` only.
        Err(AllocError::Count { .. }) => unsafe { pool.allocator() }.alloc_contiguous(wanted, count),
        other => other,
    }?;
    Ok((run.range.start, run.node))
}

/// Allocates a block and stores it in `block`. If it fails, the address of `block` becomes null.
///
/// # Safety
/// `request` must be null, for one page near the calling CPU, or point to a request. `block` must point to a structure whose
/// `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_alloc(
    pool: zonal_pool,
    request: *const zonal_request,
    block: *mut zonal_block,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("block", block) }?;
        // SAFETY: as above, and the size is right.
        let block = unsafe { &mut *block };
        block.address = std::ptr::null_mut();
        // SAFETY: guaranteed by the caller.
        let request = unsafe { or_page(request) }?;
        *block = with_pool(pool, |found| {
            // SAFETY: guaranteed by the caller.
            unsafe { with_request(pool, found, request, |wanted| alloc(found, wanted, request)) }
        })?;
        Ok(())
    })
}

/// Frees a block. `address` and `bytes` must be those of the block.
///
/// A free of memory that is not allocated, or was allocated in another size, is refused with `ZONAL_NOT_ALLOCATED` and changes
/// nothing.
///
/// # Safety
/// No code may access the memory afterwards.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_free(pool: zonal_pool, address: *mut c_void, bytes: usize) -> zonal_status {
    call(|| {
        with_pool(pool, |pool| {
            let (first, count) = whole_pages(pool, address, bytes)?;
            // SAFETY: the interface hands out blocks without an owner, and the caller gives up the memory.
            unsafe { free(pool, first, count) }.map_err(|error| not_allocated(address, bytes, &error))
        })
    })
}

/// Frees pages that were allocated together.
///
/// # Safety
/// The pages must have no owner, and no code may access them afterwards.
#[inline]
unsafe fn free(pool: &Pool, first: Pfn, count: PageCount) -> Result<(), FreeError> {
    if count == PageCount::new(1) {
        // SAFETY: guaranteed by the caller.
        unsafe { pool.free_raw(first, Order::PAGE) }
    } else {
        // SAFETY: as above.
        unsafe { pool.free_frames_raw(first, count) }
    }
}

/// Returns the pages that `bytes` at `address` are.
#[inline]
fn whole_pages(pool: &Pool, address: *mut c_void, bytes: usize) -> Result<(Pfn, PageCount), Failure> {
    let page = pool.page_bytes();
    let first = pool.pfn_of(address.cast_const().cast::<u8>());
    let is_whole = address.addr() & (page - 1) == 0 && bytes != 0 && bytes & (page - 1) == 0;
    match first {
        Some(first) if is_whole => Ok((first, PageCount::new((bytes / page) as u64))),
        _ => Err(not_pages(address, bytes, page, first.is_some())),
    }
}

#[cold]
fn not_pages(address: *mut c_void, bytes: usize, page: usize, is_in_pool: bool) -> Failure {
    let status = Status::ZONAL_NOT_ALLOCATED;
    if is_in_pool {
        Failure::new(status, format_args!("{bytes} bytes at {address:?} are not whole pages of {page} bytes"))
    } else {
        Failure::new(status, format_args!("{address:?} is not memory of the pool"))
    }
}

#[cold]
fn not_allocated(address: *mut c_void, bytes: usize, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Status::ZONAL_NOT_ALLOCATED, format_args!("{bytes} bytes at {address:?}: {error}"))
}

/// Checks that exactly this block, or this piece of a block that was split, is allocated: that `zonal_free` would free it.
///
/// Nothing changes, and other threads may free the block at any time. Fails with `ZONAL_NOT_ALLOCATED` as `zonal_free` does.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_check_block(pool: zonal_pool, address: *mut c_void, bytes: usize) -> zonal_status {
    call(|| {
        with_pool(pool, |pool| {
            let (first, count) = whole_pages(pool, address, bytes)?;
            if is_block(pool, first, count) {
                return Ok(());
            }
            Err(not_allocated(address, bytes, &"they are not exactly one allocated block"))
        })
    })
}

/// Whether exactly these frames are allocated together: a block, or a run with all its parts.
fn is_block(pool: &Pool, first: Pfn, count: PageCount) -> bool {
    // One frame more, to see whether the run goes on.
    let Some(around) = count.get().checked_add(1).filter(|_| count <= pool.frames()) else { return false };
    let end = first.get() + count.get();
    let (mut next, mut is_one) = (first.get(), true);
    // SAFETY: this only reads.
    let allocator = unsafe { pool.allocator() };
    allocator.for_each_used(FrameRange { start: first, count: PageCount::new(around) }, |used| {
        let start = used.block.start.get();
        is_one &= match used.state {
            UsedState::Allocated(_) => start == first.get() || start >= end,
            UsedState::InRun => start == next && start != first.get() && start < end,
            _ => start >= end,
        };
        if start < end {
            next = start + used.block.count.get();
        }
    });
    is_one && next == end
}

/// Splits a block into pieces of `piece_bytes`, which must be a power of two and at least a page. Each piece is then freed on
/// its own. If the block is not a multiple of `piece_bytes`, or is not aligned to it, there are smaller pieces, as many as
/// necessary so that each is aligned to its size.
///
/// A wrong block is refused with `ZONAL_NOT_ALLOCATED`, and a block that would be a single piece with
/// `ZONAL_INVALID_ARGUMENT`. Nothing has changed then.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_split(
    pool: zonal_pool,
    address: *mut c_void,
    bytes: usize,
    piece_bytes: usize,
) -> zonal_status {
    call(|| {
        with_pool(pool, |pool| {
            let order = order_of("piece_bytes", pool, piece_bytes)?;
            if piece_bytes < pool.page_bytes() {
                let page = pool.page_bytes();
                return Err(Failure::invalid(format_args!(
                    "piece_bytes is {piece_bytes}; a page has {page}"
                )));
            }
            let (first, count) = whole_pages(pool, address, bytes)?;
            // SAFETY: the interface hands out blocks without an owner.
            let split = unsafe { pool.split_frames_raw(first, count, order) };
            split.map_err(|error| match error {
                SplitError::NotLower { .. } => Failure::invalid(format_args!(
                    "piece_bytes is {piece_bytes}, so the block of {bytes} bytes would be a single piece"
                )),
                SplitError::NotAllocated(_) => not_allocated(address, bytes, &error),
            })
        })
    })
}

/// Allocates up to `len` single pages, stores their addresses in `addresses`, and stores how many it
/// allocated in `count`.
///
/// It allocates fewer only if memory is short, and fails if there is none. The request says where and how; its size must be that
/// of a page.
///
/// # Safety
/// `request` must be null, for pages near the calling CPU, or point to a request. `addresses` must have room for `len` addresses, and `count` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_alloc_pages(
    pool: zonal_pool,
    request: *const zonal_request,
    addresses: *mut *mut c_void,
    len: usize,
    count: *mut usize,
) -> zonal_status {
    call(|| {
        check_pointer("count", count)?;
        // SAFETY: guaranteed by the caller.
        unsafe { count.write(0) };
        if len > 0 {
            check_pointer("addresses", addresses)?;
        }
        // SAFETY: guaranteed by the caller.
        let request = unsafe { or_page(request) }?;
        let done = with_pool(pool, |found| {
            let page = found.page_bytes();
            if request.bytes > page || request.alignment > page {
                let (bytes, alignment) = (request.bytes, request.alignment);
                return Err(Failure::invalid(format_args!(
                    "bytes is {bytes} and alignment {alignment}; pages have {page} bytes"
                )));
            }
            // SAFETY: the caller has room for the addresses.
            let pages = |wanted: &PoolRequest<'_>| unsafe { alloc_pages(found, wanted, addresses, len) };
            // SAFETY: guaranteed by the caller.
            unsafe { with_request(pool, found, request, pages) }
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { count.write(done) };
        Ok(())
    })
}

/// Allocates up to `len` pages, and returns how many.
///
/// # Safety
/// `addresses` must have room for `len` addresses.
unsafe fn alloc_pages(
    pool: &Pool,
    wanted: &PoolRequest<'_>,
    addresses: *mut *mut c_void,
    len: usize,
) -> Result<usize, Failure> {
    check_mapped(pool)?;
    let mut frames = [Pfn::default(); BATCH];
    let mut done = 0;
    while done < len {
        let most = frames.len().min(len - done);
        let came = match pool.alloc_bulk_raw(wanted, &mut frames[..most]) {
            Ok(came) => came,
            Err(error) if done == 0 => return Err(failure(pool, wanted, error)),
            Err(_) => break,
        };
        for (frame, at) in frames[..came].iter().zip(done..) {
            let Some(address) = pool.ptr_of(*frame) else {
                // SAFETY: these pages were allocated just now, and no other code knows them.
                unsafe { pool.free_bulk_raw(&frames[..came]) }.ok();
                return if done == 0 { Err(no_address(*frame)) } else { Ok(done) };
            };
            // SAFETY: `at` is less than `len`, for which the caller has room.
            unsafe { addresses.wrapping_add(at).write(address.as_ptr().cast()) };
        }
        done += came;
        if came < most {
            break;
        }
    }
    Ok(done)
}

/// Frees single pages, in order, and stores in `freed` how many it freed if that is not null.
///
/// It stops at the first page that is not an allocated page of the pool.
///
/// # Safety
/// `addresses` must point to `len` addresses, and `freed` must be null or point to a number. No code may access the memory
/// afterwards.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_free_pages(
    pool: zonal_pool,
    addresses: *const *mut c_void,
    len: usize,
    freed: *mut usize,
) -> zonal_status {
    call(|| {
        let mut done = 0;
        if !freed.is_null() {
            check_pointer("freed", freed)?;
            // SAFETY: guaranteed by the caller.
            unsafe { freed.write(0) };
        }
        let list = if len > 0 { check_pointer("addresses", addresses) } else { Ok(()) };
        let result = list.and_then(|()| {
            with_pool(pool, |pool| {
                while done < len {
                    let most = len.min(done + BATCH) - done;
                    // SAFETY: guaranteed by the caller.
                    let batch = unsafe { std::slice::from_raw_parts(addresses.wrapping_add(done), most) };
                    let (count, refused) = free_batch(pool, batch);
                    done += count;
                    refused.map_err(|why| {
                        let failure = Failure::new(
                            Status::ZONAL_NOT_ALLOCATED,
                            format_args!("addresses[{done}] is {:?}, which ", batch[count]),
                        );
                        match why {
                            Some(error) => failure.append(format_args!("cannot be freed: {error}")),
                            None => failure.append("is no page of the pool"),
                        }
                    })?;
                }
                Ok(())
            })
        });
        if !freed.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { freed.write(done) };
        }
        result
    })
}

/// Number of pages that are allocated or freed at a time.
const BATCH: usize = 64;

/// Frees up to [`BATCH`] pages, in order, and returns how many were freed and why the next one was not: `None` if it is no page
/// of the pool.
fn free_batch(pool: &Pool, addresses: &[*mut c_void]) -> (usize, Result<(), Option<FreeError>>) {
    let mut frames = [Pfn::default(); BATCH];
    let mut valid = 0;
    for (frame, address) in frames.iter_mut().zip(addresses) {
        let found = pool.pfn_of(address.cast_const().cast::<u8>());
        let Some(found) = found.filter(|_| address.addr() & (pool.page_bytes() - 1) == 0) else { break };
        *frame = found;
        valid += 1;
    }
    // SAFETY: as in `zonal_free`.
    match unsafe { pool.free_bulk_raw(&frames[..valid]) } {
        Err(error) => (error.freed, Err(Some(error.error))),
        Ok(()) if valid < addresses.len() => (valid, Err(None)),
        Ok(()) => (valid, Ok(())),
    }
}
