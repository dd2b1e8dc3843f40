//! Pools that processes share: joining them, handing blocks over, and who holds how much.
//!
//! Related files: `pool.rs` builds pools, shared ones included, and `state.rs` finds the address of a page number.

use std::ffi::{c_char, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};

use zonal_linux::{
    FrameRange, FreeError, PageCount, Pfn, Pool, PoolBuilder, PoolOwner, SharedError, SharedName,
};

use crate::arguments::{check_pointer, sized, store, text_of};
use crate::handle::{open, with_pool};
use crate::status::{Failure, Status, call, zonal_status};
use crate::types::{
    ZONAL_POOL_SHARED_BY_DESCRIPTOR, zonal_block, zonal_owner, zonal_pool, zonal_pool_options,
};

/// The most processes that can share a pool.
const PROCESSES_MAX: u32 = 64;

/// Adds to a builder what options say about sharing.
///
/// # Safety
/// The path and the name must be null, or texts that end with a zero.
pub(crate) unsafe fn shared<'a>(
    builder: PoolBuilder<'a>,
    options: &zonal_pool_options,
) -> Result<PoolBuilder<'a>, Failure> {
    let by_descriptor = options.flags & ZONAL_POOL_SHARED_BY_DESCRIPTOR != 0;
    let builder = match (options.shared_path.is_null(), by_descriptor) {
        (true, false) if options.processes == 0 && options.process_name.is_null() => return Ok(builder),
        (true, false) => {
            return Err(Failure::invalid(format_args!(
                "processes is {} or process_name set, but the pool is not shared; set shared_path or ZONAL_POOL_SHARED_BY_DESCRIPTOR",
                options.processes
            )));
        }
        (true, true) => builder.shared_by_descriptor(),
        // SAFETY: guaranteed by the caller.
        (false, false) => builder.shared(unsafe { text_of("shared_path", options.shared_path) }?),
        (false, true) => {
            let why =
                "shared_path and ZONAL_POOL_SHARED_BY_DESCRIPTOR are set; only one of the two is possible";
            return Err(Failure::invalid(why));
        }
    };
    let builder = match options.process_name.is_null() {
        true => builder,
        // SAFETY: guaranteed by the caller.
        false => builder.process_name(unsafe { text_of("process_name", options.process_name) }?),
    };
    match options.processes {
        0 => Ok(builder),
        count @ 1..=PROCESSES_MAX => Ok(builder.processes(count as u8)),
        count => Err(Failure::invalid(format_args!(
            "processes is {count}; it must be at most {PROCESSES_MAX}, or 0 for the default"
        ))),
    }
}

/// Joins a pool, and stores its handle.
///
/// # Safety
/// `pool` must point to a handle.
pub(crate) unsafe fn join(
    pool: *mut zonal_pool,
    join: impl FnOnce() -> Result<Result<Pool, zonal_linux::PoolError>, Failure>,
) -> Result<(), Failure> {
    check_pointer("pool", pool)?;
    // SAFETY: guaranteed by the caller.
    unsafe { pool.write(zonal_pool::default()) };
    let joined = join()?.map_err(|error| Failure::new(Status::ZONAL_BUILD_FAILED, error))?;
    let handle = open(joined)?;
    // SAFETY: guaranteed by the caller.
    unsafe { pool.write(handle) };
    Ok(())
}

/// Joins the pool that another process shares at `path`, or has published on a socket there, and stores its handle in `pool`. If
/// it fails, `pool` becomes no pool.
///
/// Every process allocates and frees as in a pool of its own, and may free what another has allocated. When a process ends, in
/// whatever way, what it holds is freed. Pages have the same numbers in all processes, and other addresses:
/// `zonal_pool_locate` and `zonal_pool_locate_frame` convert them.
///
/// # Safety
/// `path` must be a text that ends with a zero. `pool` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_join(path: *const c_char, pool: *mut zonal_pool) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let joined = || unsafe { text_of("path", path) }.map(Pool::join);
        // SAFETY: guaranteed by the caller.
        unsafe { join(pool, joined) }
    })
}

/// Joins the pool whose file a descriptor of `zonal_pool_shared_fd` has, which this process has inherited or received, like
/// `zonal_pool_join`. The descriptor may be closed afterwards.
///
/// # Safety
/// `pool` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_join_fd(fd: i32, pool: *mut zonal_pool) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { join(pool, || descriptor(fd).map(Pool::join_file)) }
    })
}

pub(crate) fn descriptor<'a>(fd: i32) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::invalid(format_args!("fd is {fd}, which is no descriptor")));
    }
    // SAFETY: the number is not negative. Calls open its file by number, and fail if there is none.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Stores in `fd` the descriptor of a shared pool's file, with which other processes can join, or -1 for a pool that is not
/// shared. The pool owns the descriptor, which a program that is executed does not inherit (`FD_CLOEXEC`).
///
/// # Safety
/// `fd` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_shared_fd(pool: zonal_pool, fd: *mut i32) -> zonal_status {
    call(|| {
        check_pointer("fd", fd)?;
        let found = with_pool(pool, |pool| Ok(pool.shared_file().map_or(-1, |file| file.as_raw_fd())))?;
        // SAFETY: guaranteed by the caller.
        unsafe { fd.write(found) };
        Ok(())
    })
}

/// Makes this process the holder of a block that any process in a shared pool has allocated, and stores in `block` where it
/// is in this process, if that is not null. The block is then not freed when its former holder ends.
///
/// `frame` and `bytes` are those of the block. Another block, or a part of one, is refused with `ZONAL_NOT_ALLOCATED` and
/// changes nothing. In a pool that is not shared, nothing changes either.
///
/// # Safety
/// `block` must be null, or point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_take_over(
    pool: zonal_pool,
    frame: u64,
    bytes: usize,
    block: *mut zonal_block,
) -> zonal_status {
    call(|| {
        if !block.is_null() {
            // SAFETY: guaranteed by the caller.
            unsafe { sized("block", block) }?;
        }
        let taken = with_pool(pool, |pool| take_over(pool, Pfn::new(frame), bytes))?;
        if !block.is_null() {
            // SAFETY: as above, and the size is right.
            unsafe { block.write(taken) };
        }
        Ok(())
    })
}

fn take_over(pool: &Pool, first: Pfn, bytes: usize) -> Result<zonal_block, Failure> {
    let range = range_of(pool, first, bytes)?;
    pool.take_over(range.start, range.count).map_err(|error| match error {
        FreeError::Reentered(_) => Failure::new(Status::ZONAL_REENTERED, error),
        _ => not_allocated(first, bytes, &error),
    })?;
    block_of(pool, range).ok_or_else(|| not_allocated(first, bytes, &"the pool has no such page"))
}

fn not_allocated(first: Pfn, bytes: usize, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(Status::ZONAL_NOT_ALLOCATED, format_args!("{bytes} bytes from page {first}: {why}"))
}

/// Returns the pages of a block that a caller names by its first page and its bytes.
pub(crate) fn range_of(pool: &Pool, first: Pfn, bytes: usize) -> Result<FrameRange, Failure> {
    let page = pool.page_bytes();
    if bytes == 0 || !bytes.is_multiple_of(page) {
        return Err(not_allocated(first, bytes, &format_args!("they are not whole pages of {page} bytes")));
    }
    let range = FrameRange { start: first, count: PageCount::new((bytes / page) as u64) };
    match block_of(pool, range) {
        Some(_) => Ok(range),
        None => Err(not_allocated(first, bytes, &"the pool has no such page")),
    }
}

/// Returns where a block is in this process.
pub(crate) fn block_of(pool: &Pool, range: FrameRange) -> Option<zonal_block> {
    let zone = |zone: &zonal_linux::ZoneRange| {
        range.start.offset_from(zone.frames.start).is_some_and(|offset| offset < zone.frames.count)
    };
    Some(zonal_block {
        struct_size: size_of::<zonal_block>(),
        address: pool.ptr_of(range.start)?.as_ptr().cast::<c_void>(),
        bytes: range.count.get() as usize * pool.page_bytes(),
        frame: range.start.get(),
        node: pool.ranges().find(zone)?.node.get(),
        reserved: [0; 3],
    })
}

/// Stores how many processes take part in a shared pool: 0 for a pool that is not shared. A process that has died counts until
/// what it held is freed.
///
/// # Safety
/// `count` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_owners(pool: zonal_pool, count: *mut usize) -> zonal_status {
    call(|| {
        check_pointer("count", count)?;
        let mut owners = 0;
        with_pool(pool, |pool| {
            pool.for_each_owner(|_| owners += 1);
            Ok(())
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { count.write(owners) };
        Ok(())
    })
}

/// Stores what a process in a shared pool holds. Processes have the indices from 0, which change when one joins or leaves;
/// beyond the last one, the call fails with `ZONAL_INVALID_ARGUMENT` and a message with their number. It reads a byte for each
/// page of the pool.
///
/// # Safety
/// `owner` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_owner(
    pool: zonal_pool,
    index: usize,
    owner: *mut zonal_owner,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("owner", owner) }?;
        let (mut found, mut count) = (None, 0);
        with_pool(pool, |pool| {
            pool.for_each_owner(|one| {
                found = found.or_else(|| (count == index).then(|| owner_of(&one)));
                count += 1;
            });
            Ok(())
        })?;
        let found = found.ok_or_else(|| {
            Failure::invalid(format_args!("there is no process {index}; {count} share the pool"))
        })?;
        // SAFETY: as above, and the size is right.
        unsafe { owner.write(found) };
        Ok(())
    })
}

fn owner_of(owner: &PoolOwner) -> zonal_owner {
    let mut name = [0; 40];
    let text = owner.name.as_ref().map_or("", SharedName::as_str);
    name.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    zonal_owner {
        struct_size: size_of::<zonal_owner>(),
        process: owner.process.into(),
        pid: owner.pid,
        epoch: owner.epoch,
        held: owner.held.get(),
        is_this: owner.is_this.into(),
        is_alive: owner.is_alive.into(),
        name,
    }
}

/// Frees what processes of a shared pool held that have died, and stores in `pages` how many pages, if that is not null:
/// 0 if another thread or process has done so, for which the call waits. The pool does so itself once the kernel has torn down the process.
/// Fails with `ZONAL_BUSY` if another process has the table of processes locked for ten seconds.
///
/// # Safety
/// `pages` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_recover_dead(pool: zonal_pool, pages: *mut u64) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store("pages", pages, 0) }?;
        let freed = with_pool(pool, |pool| Ok(pool.recover_dead().map_err(failure)?.get()))?;
        // SAFETY: as above.
        unsafe { store("pages", pages, freed) }
    })
}

/// Returns the failure for what a shared pool refuses.
pub(crate) fn failure(error: SharedError) -> Failure {
    match error {
        SharedError::Root { source: FreeError::Reentered(_), .. } => {
            Failure::new(Status::ZONAL_REENTERED, error)
        }
        SharedError::Root { .. } => Failure::new(Status::ZONAL_NOT_ALLOCATED, error),
        SharedError::FullRoots(_) => Failure::new(Status::ZONAL_OUT_OF_MEMORY, error),
        SharedError::NameInUse { .. } | SharedError::Busy => Failure::new(Status::ZONAL_BUSY, error),
        error => Failure::invalid(error),
    }
}
