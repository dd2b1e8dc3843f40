//! Building, closing and observing pools.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ops::ControlFlow;

use zonal_linux::{HugePages, NodeId, Placement, Pool, PoolError, Prefault, Progress};

use crate::handle::{close, open, with_pool};
use crate::status::{Failure, Status, call, check_flags, zonal_status};
use crate::types::{
    ZONAL_CLOSE_WITH_BLOCKS, ZONAL_HUGE_PAGES_1G, ZONAL_HUGE_PAGES_2M, ZONAL_HUGE_PAGES_NEVER,
    ZONAL_HUGE_PAGES_TRANSPARENT, ZONAL_POOL_PREFAULT, ZONAL_POOL_REQUIRE_BINDING,
    ZONAL_POOL_REQUIRE_HUGE_PAGES, ZONAL_POOL_SHARED_MEMORY, zonal_accounting, zonal_pool,
    zonal_pool_options, zonal_progress,
};

/// Number of node ids.
const NODES_MAX: usize = 1024;

/// The progress callback of the caller.
struct OnProgress {
    callback: zonal_progress,
    context: *mut c_void,
}

// SAFETY: the interface says that several threads call the callback, so the caller's context allows it.
unsafe impl Sync for OnProgress {}

impl OnProgress {
    fn report(&self, progress: Progress) -> ControlFlow<()> {
        let Some(callback) = self.callback else { return ControlFlow::Continue(()) };
        // SAFETY: the caller passed this function with this context.
        match unsafe { callback(self.context, progress.done, progress.total) } {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

/// Returns the nodes of a list, in its order.
///
/// # Safety
/// `nodes` must be null, or point to `len` numbers.
pub(crate) unsafe fn node_list(nodes: *const u16, len: usize) -> Result<Vec<NodeId>, Failure> {
    if len == 0 {
        return Ok(Vec::new());
    }
    if nodes.is_null() || !nodes.is_aligned() || len > NODES_MAX {
        let most = NODES_MAX;
        return Err(Failure::invalid(format_args!(
            "nodes is {nodes:?} with nodes_len {len}; it must point to 1 to {most} numbers"
        )));
    }
    // SAFETY: guaranteed by the caller.
    let numbers = unsafe { std::slice::from_raw_parts(nodes, len) };
    let id = |&number: &u16| {
        NodeId::new(number)
            .ok_or_else(|| Failure::invalid(format_args!("there is no node {number}; nodes are 0 to 1023")))
    };
    numbers.iter().map(id).collect()
}

fn build(options: &zonal_pool_options) -> Result<Pool, Failure> {
    let known = ZONAL_POOL_PREFAULT
        | ZONAL_POOL_REQUIRE_HUGE_PAGES
        | ZONAL_POOL_REQUIRE_BINDING
        | ZONAL_POOL_SHARED_MEMORY;
    check_flags(options.flags, known)?;
    if options.reserved != 0 {
        return Err(Failure::invalid(format_args!("reserved is {}, and must be 0", options.reserved)));
    }
    let huge_pages = match options.huge_pages {
        ZONAL_HUGE_PAGES_TRANSPARENT => HugePages::Transparent,
        ZONAL_HUGE_PAGES_NEVER => HugePages::Never,
        ZONAL_HUGE_PAGES_2M => HugePages::Explicit,
        ZONAL_HUGE_PAGES_1G => HugePages::Explicit1G,
        other => {
            return Err(Failure::invalid(format_args!(
                "huge_pages is {other}; values are ZONAL_HUGE_PAGES_*, 0 to 3"
            )));
        }
    };
    let on_progress = OnProgress { callback: options.progress, context: options.progress_context };
    let report = |progress: Progress| on_progress.report(progress);
    let has = |flag: u32| options.flags & flag != 0;
    let mut builder = Pool::builder().huge_pages(huge_pages).on_progress(&report);
    // SAFETY: `zonal_pool_build` requires it.
    let nodes = unsafe { node_list(options.nodes, options.nodes_len) }?;
    if !nodes.is_empty() {
        builder = builder.nodes(nodes);
    }
    if options.size != 0 {
        builder = builder.size(options.size);
    }
    if options.max_size != 0 {
        builder = builder.max_size(options.max_size);
    }
    if options.fake_nodes != 0 {
        builder = builder.fake_nodes(options.fake_nodes as usize);
    }
    if has(ZONAL_POOL_PREFAULT) {
        builder = builder.prefault(Prefault::AtOnce);
    }
    if has(ZONAL_POOL_REQUIRE_HUGE_PAGES) {
        builder = builder.require_huge_pages();
    }
    if has(ZONAL_POOL_REQUIRE_BINDING) {
        builder = builder.require_binding();
    }
    if has(ZONAL_POOL_SHARED_MEMORY) {
        builder = builder.shared_memory();
    }
    builder.build().map_err(|error| {
        let status = match error {
            PoolError::Required(_) => Status::ZONAL_REQUIREMENT_FAILED,
            PoolError::Interrupted => Status::ZONAL_INTERRUPTED,
            _ => Status::ZONAL_BUILD_FAILED,
        };
        Failure::new(status, error)
    })
}

/// Checks a pointer of the caller for null and alignment.
pub(crate) fn check_pointer<T>(name: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::invalid(format_args!("{name} is {pointer:?}, which points to no value")));
    }
    Ok(())
}

/// Returns a structure of the caller, after checking its size.
///
/// # Safety
/// `pointer` must be null, or point to a structure of this kind of any version, which begins with its size.
pub(crate) unsafe fn sized<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check_pointer(name, pointer)?;
    // SAFETY: guaranteed by the caller. No reference to more than the size exists before the size is checked.
    let found = unsafe { pointer.cast::<usize>().read() };
    let expected = size_of::<T>();
    if found != expected {
        return Err(Failure::invalid(format_args!("{name}->struct_size is {found}, but must be {expected}")));
    }
    // SAFETY: guaranteed by the caller, now that the version is that of this library.
    Ok(unsafe { &*pointer })
}

/// Builds a pool, and stores its handle in `pool`. If it fails, `pool` becomes no pool.
///
/// # Safety
/// `options` must be null, for the defaults, or point to options. `pool` must point to a handle. The progress callback
/// must return, and may be called by several threads.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_build(
    options: *const zonal_pool_options,
    pool: *mut zonal_pool,
) -> zonal_status {
    call(|| {
        check_pointer("pool", pool)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pool.write(zonal_pool::default()) };
        let built = if options.is_null() {
            Pool::builder().build().map_err(|error| Failure::new(Status::ZONAL_BUILD_FAILED, error))?
        } else {
            // SAFETY: guaranteed by the caller.
            build(unsafe { sized("options", options) }?)?
        };
        let handle = open(built)?;
        // SAFETY: guaranteed by the caller.
        unsafe { pool.write(handle) };
        Ok(())
    })
}

/// Closes a pool, after other threads' calls of it have ended, and unmaps its memory. The handle is refused afterwards.
///
/// Fails with `ZONAL_BUSY`, and changes nothing, if blocks are allocated and `flags` has no `ZONAL_CLOSE_WITH_BLOCKS`, or if
/// a callback of the pool makes the call.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_pool_close(pool: zonal_pool, flags: u32) -> zonal_status {
    call(|| {
        check_flags(flags, ZONAL_CLOSE_WITH_BLOCKS)?;
        close(pool, |pool| {
            if flags & ZONAL_CLOSE_WITH_BLOCKS != 0 {
                return Ok(());
            }
            // The pool's own threads fold counters, so the count is exact only while they pause.
            let allocated = pool.with_threads_paused(|_| pool.accounting().allocated);
            let why = || format!("{allocated} pages of the pool are allocated");
            if allocated.get() == 0 { Ok(()) } else { Err(Failure::new(Status::ZONAL_BUSY, why())) }
        })
    })
}

/// Stores the numbers of pages of a pool. They balance if no thread allocates or frees during the call.
///
/// # Safety
/// `accounting` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_accounting(
    pool: zonal_pool,
    accounting: *mut zonal_accounting,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("accounting", accounting) }?;
        // SAFETY: as above, and the size is right.
        let out = unsafe { &mut *accounting };
        with_pool(pool, |pool| {
            let found = pool.accounting();
            *out = zonal_accounting {
                struct_size: out.struct_size,
                page_bytes: pool.page_bytes() as u64,
                managed: found.managed.get(),
                free: found.free.get(),
                in_pagesets: found.in_pagesets.get(),
                allocated: found.allocated.get(),
            };
            Ok(())
        })
    })
}

/// Checks all structures of a pool. No thread may allocate or free during the call.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_pool_verify(pool: zonal_pool) -> zonal_status {
    call(|| {
        with_pool(pool, |pool| {
            pool.verify().map_err(|error| Failure::new(Status::ZONAL_INCONSISTENT, error)).map(|_| ())
        })
    })
}

/// Stores whether the memory of a pool is bound to its nodes: 1 if so, 0 if the kernel refused it, 2 if the nodes are
/// emulated.
///
/// # Safety
/// `placement` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_placement(pool: zonal_pool, placement: *mut u32) -> zonal_status {
    call(|| {
        check_pointer("placement", placement)?;
        with_pool(pool, |pool| {
            let number = match pool.placement() {
                Placement::NotBound => 0,
                Placement::OnNodes => 1,
                _ => 2,
            };
            // SAFETY: guaranteed by the caller.
            unsafe { placement.write(number) };
            Ok(())
        })
    })
}

/// Writes a text for the caller: as much as fits, with a zero at its end, and the length of the whole text.
///
/// # Safety
/// `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
pub(crate) unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> Result<(), Failure> {
    if !needed.is_null() {
        check_pointer("needed", needed)?;
        // SAFETY: guaranteed by the caller.
        unsafe { needed.write(text.len()) };
    }
    if !buffer.is_null() && len > 0 {
        let cut = text.len().min(len - 1);
        // SAFETY: the buffer has room for `len` bytes, which the caller guarantees.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<MaybeUninit<u8>>(), cut + 1) };
        let ended = text.as_bytes()[..cut].iter().chain([&0]);
        buffer.iter_mut().zip(ended).for_each(|(to, &from)| *to = MaybeUninit::new(from));
    }
    Ok(())
}

/// Writes the warnings of building a pool as text, a line for each, and stores the length of the whole text in `needed`
/// if that is not null.
///
/// The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
///
/// # Safety
/// `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_warnings(
    pool: zonal_pool,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> zonal_status {
    call(|| {
        let text = with_pool(pool, |pool| {
            Ok(pool.warnings().iter().map(|warning| format!("{warning}\n")).collect::<String>())
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { write_text(&text, buffer, len, needed) }
    })
}
