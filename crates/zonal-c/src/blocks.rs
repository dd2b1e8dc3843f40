//! Allocation and free of blocks.

use std::ffi::c_void;

use zonal_linux::{AllocError, NodeMask, PageCount, Pfn, Pool, PoolPolicy, PoolRequest};

use crate::handle::with_pool;
use crate::pool::{check_pointer, node_list, sized};
use crate::status::{Failure, Status, call, check_flags, zonal_status};
use crate::types::{
    ZONAL_POLICY_BIND, ZONAL_POLICY_LOCAL, ZONAL_POLICY_PREFERRED, ZONAL_REQUEST_NO_WAIT,
    ZONAL_REQUEST_THIS_NODE, ZONAL_REQUEST_ZEROED, zonal_block, zonal_pool, zonal_request,
};

/// Returns the policy of a request.
///
/// # Safety
/// The nodes of the request must be null, or point to as many numbers as it says.
unsafe fn policy_of(pool: &Pool, request: &zonal_request) -> Result<Option<PoolPolicy<'static>>, Failure> {
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { node_list(request.nodes, request.nodes_len) }?;
    let policy = match (request.policy, &nodes[..]) {
        (ZONAL_POLICY_LOCAL, []) => return Ok(None),
        (ZONAL_POLICY_PREFERRED, &[first]) => pool.preferred(first),
        (ZONAL_POLICY_BIND, [_, ..]) => pool.bind(nodes.iter().copied().collect::<NodeMask>()),
        (policy, nodes) => {
            return Err(Failure::invalid(format_args!(
                "policy is {policy} with {} nodes; ZONAL_POLICY_LOCAL (0) has none, ZONAL_POLICY_PREFERRED (1) has \
                 one, and ZONAL_POLICY_BIND (2) has one or more",
                nodes.len()
            )));
        }
    };
    policy.map(Some).map_err(Failure::invalid)
}

fn failure(pool: &Pool, request: &PoolRequest<'_>, error: AllocError) -> Failure {
    let status = match error {
        AllocError::Reentered => Status::ZONAL_REENTERED,
        AllocError::OutOfMemory(_) | AllocError::NotContiguous { .. } => Status::ZONAL_OUT_OF_MEMORY,
        _ => Status::ZONAL_INVALID_ARGUMENT,
    };
    let mut message = error.to_string();
    if let AllocError::OutOfMemory(_) = error {
        // SAFETY: this only reads.
        let allocator = unsafe { pool.allocator() };
        allocator.shortage(request, |zone| message.push_str(&format!("\n  {zone}"))).ok();
    }
    Failure::new(status, message)
}

/// Returns an error if this process has no copy of the pool's memory: a child made by `fork` has none of shared memory and of
/// reserved huge pages.
fn check_mapped(pool: &Pool) -> Result<(), Failure> {
    match pool.ranges().next() {
        Some(zone) if pool.ptr_of(zone.frames.start).is_none() => Err(Failure::new(
            Status::ZONAL_NOT_A_POOL,
            "a child process has no copy of the memory of this pool",
        )),
        _ => Ok(()),
    }
}

/// Allocates the block of a request.
///
/// # Safety
/// As for [`policy_of`].
unsafe fn alloc(pool: &Pool, request: &zonal_request) -> Result<zonal_block, Failure> {
    let known = ZONAL_REQUEST_NO_WAIT | ZONAL_REQUEST_THIS_NODE | ZONAL_REQUEST_ZEROED;
    check_flags(request.flags, known)?;
    check_mapped(pool)?;
    // SAFETY: guaranteed by the caller.
    let policy = unsafe { policy_of(pool, request) }?;
    let mut wanted = PoolRequest::page();
    if let Some(policy) = &policy {
        wanted = wanted.policy(policy);
    }
    let has = |flag: u32| request.flags & flag != 0;
    if has(ZONAL_REQUEST_NO_WAIT) {
        wanted = wanted.no_wait();
    }
    if has(ZONAL_REQUEST_THIS_NODE) {
        wanted = wanted.this_node();
    }
    if has(ZONAL_REQUEST_ZEROED) {
        wanted = wanted.zeroed();
    }
    let count = PageCount::new(request.bytes.max(1).div_ceil(pool.page_bytes()) as u64);
    let run = match pool.alloc_frames_raw(&wanted, count) {
        // SAFETY: the run is not owned by anything else, and is freed by `zonal_free` only.
        Err(AllocError::Count { .. }) => unsafe { pool.allocator() }.alloc_contiguous(&wanted, count),
        other => other,
    };
    let run = run.map_err(|error| failure(pool, &wanted, error))?;
    let Some(address) = pool.ptr_of(run.range.start) else {
        let first = run.range.start;
        return Err(Failure::new(Status::ZONAL_INTERNAL, format_args!("page {first} has no address")));
    };
    Ok(zonal_block {
        struct_size: size_of::<zonal_block>(),
        address: address.as_ptr().cast::<c_void>(),
        bytes: run.range.count.get() as usize * pool.page_bytes(),
        frame: run.range.start.get(),
        node: run.node.get(),
        reserved: [0; 3],
    })
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
    const PAGE: zonal_request = zonal_request {
        struct_size: size_of::<zonal_request>(),
        bytes: 0,
        flags: 0,
        policy: ZONAL_POLICY_LOCAL,
        nodes: std::ptr::null(),
        nodes_len: 0,
    };
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("block", block) }?;
        // SAFETY: as above, and the size is right.
        let block = unsafe { &mut *block };
        block.address = std::ptr::null_mut();
        let request = if request.is_null() {
            &PAGE
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { sized("request", request) }?
        };
        // SAFETY: guaranteed by the caller.
        *block = with_pool(pool, |pool| unsafe { alloc(pool, request) })?;
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
            let refused = |why: String| Err(Failure::new(Status::ZONAL_NOT_ALLOCATED, why));
            let page = pool.page_bytes();
            let Some(first) = pool.pfn_of(address.cast_const().cast::<u8>()) else {
                return refused(format!("{address:?} is not memory of the pool"));
            };
            if !address.addr().is_multiple_of(page) || bytes == 0 || !bytes.is_multiple_of(page) {
                return refused(format!("{bytes} bytes at {address:?} are not whole pages of {page} bytes"));
            }
            let count = PageCount::new((bytes / page) as u64);
            // SAFETY: the interface hands out blocks without an owner, and the caller gives up the memory.
            let freed = unsafe { pool.free_frames_raw(first, count) };
            freed.or_else(|error| refused(format!("{bytes} bytes at {address:?}: {error}")))
        })
    })
}

/// Allocates up to `len` single pages near the calling CPU, stores their addresses in `addresses`, and stores how many it
/// allocated in `count`.
///
/// It allocates fewer only if memory is short, and fails if there is none.
///
/// # Safety
/// `addresses` must have room for `len` addresses, and `count` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_alloc_pages(
    pool: zonal_pool,
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
        with_pool(pool, |pool| {
            check_mapped(pool)?;
            let mut frames = [Pfn::default(); 64];
            let mut done = 0;
            while done < len {
                let most = frames.len().min(len - done);
                let came = match pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames[..most]) {
                    Ok(came) => came,
                    Err(error) if done == 0 => return Err(failure(pool, &PoolRequest::page(), error)),
                    Err(_) => break,
                };
                for frame in &frames[..came] {
                    let address = pool.ptr_of(*frame).map_or(std::ptr::null_mut(), |at| at.as_ptr().cast());
                    let place = addresses.wrapping_add(done);
                    // SAFETY: `done` is less than `len`, for which the caller has room.
                    unsafe { place.write(address) };
                    done += 1;
                }
                if came < most {
                    break;
                }
            }
            // SAFETY: guaranteed by the caller.
            unsafe { count.write(done) };
            Ok(())
        })
    })
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
                    let place = addresses.wrapping_add(done);
                    // SAFETY: guaranteed by the caller.
                    let address = unsafe { place.read() };
                    let frame = pool.pfn_of(address.cast_const().cast::<u8>());
                    let frame = frame.filter(|_| address.addr().is_multiple_of(pool.page_bytes()));
                    let Some(frame) = frame else {
                        return Err(Failure::new(
                            Status::ZONAL_NOT_ALLOCATED,
                            format_args!("addresses[{done}] is {address:?}, which is no page of the pool"),
                        ));
                    };
                    // SAFETY: as in `zonal_free`.
                    unsafe { pool.free_frames_raw(frame, PageCount::new(1)) }.map_err(|error| {
                        Failure::new(
                            Status::ZONAL_NOT_ALLOCATED,
                            format_args!("addresses[{done}] is {address:?}: {error}"),
                        )
                    })?;
                    done += 1;
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
