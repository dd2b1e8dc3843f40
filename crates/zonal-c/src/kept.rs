//! Processes whose blocks outlive them, in pools that processes share: names, roots, and what is kept.
//!
//! Related files: `processes.rs` joins pools, and says who holds how much.

use std::ffi::{c_char, c_void};

use zonal_linux::{Pfn, Pool};

use crate::arguments::{sized, store, text_of};
use crate::calls::{Call, PASSED_CALLBACK};
use crate::handle::with_pool;
use crate::processes::{block_of, descriptor, failure, join, range_of};
use crate::status::{Failure, call, zonal_status};
use crate::types::{zonal_block, zonal_on_block, zonal_pool};

/// Joins a pool like `zonal_pool_join`, under a name with which blocks outlive the process: they stay allocated, with their
/// contents, when it ends in whatever way, and the next process that joins under the name has them.
///
/// It finds them by `zonal_pool_root` and `zonal_pool_for_each_held`. An operation that was under way when the process died may be
/// done or not. A name has 1 to 32 bytes; while a process of this name lives, no other can join under it.
///
/// # Safety
/// `path` and `name` must be texts that end with a zero. `pool` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_join_as(
    path: *const c_char,
    name: *const c_char,
    pool: *mut zonal_pool,
) -> zonal_status {
    call(|| {
        let joined = || {
            // SAFETY: guaranteed by the caller, here and below.
            let path = unsafe { text_of("path", path) }?;
            // SAFETY: as above.
            let name = unsafe { text_of("name", name) }?;
            Ok(Pool::join_as(path, name))
        };
        // SAFETY: guaranteed by the caller.
        unsafe { join(pool, joined) }
    })
}

/// Joins the pool of a descriptor like `zonal_pool_join_fd`, under a name like `zonal_pool_join_as`.
///
/// # Safety
/// `name` must be a text that ends with a zero. `pool` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_join_fd_as(
    fd: i32,
    name: *const c_char,
    pool: *mut zonal_pool,
) -> zonal_status {
    call(|| {
        let joined = || {
            // SAFETY: guaranteed by the caller.
            let name = unsafe { text_of("name", name) }?;
            Ok(Pool::join_file_as(descriptor(fd)?, name))
        };
        // SAFETY: guaranteed by the caller.
        unsafe { join(pool, joined) }
    })
}

/// Names a block of a shared pool, so that other processes find it with `zonal_pool_root`; with 0 `bytes`, removes the name. This process becomes the holder of the block.
///
/// The root lasts until it is set again, or until this process ends; if the process has a name, until what is kept for it is
/// discarded. Remove a root before its block is freed. A pool has at most 127 roots.
///
/// # Safety
/// `name` must be a text that ends with a zero.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_set_root(
    pool: zonal_pool,
    name: *const c_char,
    frame: u64,
    bytes: usize,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text_of("name", name) }?;
        with_pool(pool, |pool| {
            let block = match bytes {
                0 => None,
                bytes => Some(range_of(pool, Pfn::new(frame), bytes)?),
            };
            pool.set_root(name, block).map_err(failure)
        })
    })
}

/// Stores where the block of a root is in this process; 0 bytes, and a null address, if there is no such root.
///
/// # Safety
/// `name` must be a text that ends with a zero. `block` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_root(
    pool: zonal_pool,
    name: *const c_char,
    block: *mut zonal_block,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller, here and below.
        let name = unsafe { text_of("name", name) }?;
        // SAFETY: as above.
        unsafe { sized("block", block) }?;
        let found = with_pool(pool, |pool| {
            let root = pool.root(name).map_err(failure)?;
            Ok(root.and_then(|range| block_of(pool, range)))
        })?;
        // SAFETY: as above, and the size is right.
        unsafe { block.write(found.unwrap_or_default()) };
        Ok(())
    })
}

/// Calls `each` with each block that this process has allocated or taken over in a shared pool and not freed, those of processes
/// that had its name before included; with none for a pool that is not shared. Complete if no other thread allocates or frees.
///
/// # Safety
/// `each` must not be null, and may be called with `context`. It may free the block with which it is called.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_for_each_held(
    pool: zonal_pool,
    each: zonal_on_block,
    context: *mut c_void,
) -> zonal_status {
    call(|| {
        let each = each.ok_or_else(|| Failure::invalid("each is null"))?;
        with_pool(pool, |pool| {
            let _noted = Call::begin(PASSED_CALLBACK)?;
            pool.for_each_held(|range| {
                if let Some(block) = block_of(pool, range) {
                    // SAFETY: guaranteed by the caller.
                    unsafe { each(context, &raw const block) };
                }
            });
            Ok(())
        })
    })
}

/// Frees what a shared pool keeps for a process of this name that has ended, and stores in `pages` how many pages, if that is not
/// null. Fails with `ZONAL_BUSY` while a process of this name lives.
///
/// # Safety
/// `name` must be a text that ends with a zero. `pages` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_discard(
    pool: zonal_pool,
    name: *const c_char,
    pages: *mut u64,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller, here and below.
        let name = unsafe { text_of("name", name) }?;
        // SAFETY: as above.
        unsafe { store("pages", pages, 0) }?;
        let freed = with_pool(pool, |pool| pool.discard(name).map_err(failure))?;
        // SAFETY: as above.
        unsafe { store("pages", pages, freed.get()) }
    })
}
