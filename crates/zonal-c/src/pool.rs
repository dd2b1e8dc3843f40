//! Building, closing and observing pools.

use std::ffi::{c_char, c_void};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;

use zonal_linux::{
    Config, Hardening, HugePages, Order, PageCount, Placement, Pool, PoolError, Prefault, Progress, ZeroOn,
    ZoneSnapshot,
};

use crate::arguments::{Output, check_pointer, node_id, node_numbers, sized, text_of};
use crate::calls::{Call, PASSED_CALLBACK, check_outside_callbacks, is_child};
use crate::handle::{Close, close, is_of_parent, open, with_pool};
use crate::processes::shared;
use crate::status::{Failure, Status, call, check_flags, zonal_status};
use crate::types::{
    ZONAL_CLOSE_WITH_BLOCKS, ZONAL_HUGE_PAGES_1G, ZONAL_HUGE_PAGES_2M, ZONAL_HUGE_PAGES_NEVER,
    ZONAL_HUGE_PAGES_TRANSPARENT, ZONAL_POOL_POISON, ZONAL_POOL_PREFAULT, ZONAL_POOL_REQUIRE_BINDING,
    ZONAL_POOL_REQUIRE_HUGE_PAGES, ZONAL_POOL_SHARED_BY_DESCRIPTOR, ZONAL_POOL_SHARED_MEMORY,
    ZONAL_POOL_ZEROED, zonal_accounting, zonal_pool, zonal_pool_options, zonal_progress,
};

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
        // Without a note, for which there is no memory or which is too deep, the callback could wait for ever.
        let Ok(_noted) = Call::begin(PASSED_CALLBACK) else { return ControlFlow::Continue(()) };
        // SAFETY: the caller passed this function with this context.
        match unsafe { callback(self.context, progress.done, progress.total) } {
            0 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    }
}

/// Pattern with which freed pages are overwritten.
const POISON: u64 = 0x6B6B_6B6B_6B6B_6B6B;

/// Returns the configuration that options describe.
///
/// # Safety
/// The settings must be null, or a text that ends with a zero.
unsafe fn config_of(options: &zonal_pool_options) -> Result<Config, Failure> {
    let mut config = Pool::default_config((options.size != 0).then_some(options.size));
    if options.page_bytes != 0 {
        if !options.page_bytes.is_power_of_two() {
            let bytes = options.page_bytes;
            return Err(Failure::invalid(format_args!("page_bytes is {bytes}; it must be a power of two")));
        }
        config.page_bytes = options.page_bytes;
    }
    let block = options.block_bytes_max;
    if block != 0 {
        let pages = block / u64::from(config.page_bytes);
        let order = u8::try_from(pages.trailing_zeros()).ok().and_then(Order::new);
        let order = order.filter(|_| block.is_power_of_two() && (1 << 10..=1 << 18).contains(&pages));
        config.max_order = order.ok_or_else(|| {
            let page = u64::from(config.page_bytes);
            let (least, most) = (page << 10, page << 18);
            Failure::invalid(format_args!(
                "block_bytes_max is {block}; it must be a power of two from {least} to {most}"
            ))
        })?;
    }
    let has = |flag: u32| options.flags & flag != 0;
    config.hardening = Hardening {
        poison: has(ZONAL_POOL_POISON).then_some(POISON),
        zero: if has(ZONAL_POOL_ZEROED) { ZeroOn::EveryAllocation } else { ZeroOn::Request },
        quarantine: PageCount::new(options.quarantine_pages.into()),
    };
    if !options.settings.is_null() {
        // SAFETY: guaranteed by the caller.
        let text = unsafe { text_of("settings", options.settings) }?;
        for setting in text.split(['\n', ';']).map(str::trim).filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').ok_or_else(|| {
                Failure::invalid(format_args!("settings has `{setting}`, which is not `name=value`"))
            })?;
            config.set(name.trim(), value).map_err(Failure::invalid)?;
        }
    }
    Ok(config)
}

/// Returns the huge pages that options name.
fn huge_pages_of(options: &zonal_pool_options) -> Result<HugePages, Failure> {
    match options.huge_pages {
        ZONAL_HUGE_PAGES_TRANSPARENT => Ok(HugePages::Transparent),
        ZONAL_HUGE_PAGES_NEVER => Ok(HugePages::Never),
        ZONAL_HUGE_PAGES_2M => Ok(HugePages::Explicit),
        ZONAL_HUGE_PAGES_1G => Ok(HugePages::Explicit1G),
        other => Err(Failure::invalid(format_args!(
            "huge_pages is {other}; values are ZONAL_HUGE_PAGES_*, 0 to 3"
        ))),
    }
}

/// Builds the pool that options describe.
///
/// # Safety
/// As for [`zonal_pool_build`].
unsafe fn build(options: &zonal_pool_options) -> Result<Pool, Failure> {
    let known = ZONAL_POOL_PREFAULT
        | ZONAL_POOL_REQUIRE_HUGE_PAGES
        | ZONAL_POOL_REQUIRE_BINDING
        | ZONAL_POOL_SHARED_MEMORY
        | ZONAL_POOL_SHARED_BY_DESCRIPTOR
        | ZONAL_POOL_POISON
        | ZONAL_POOL_ZEROED;
    check_flags(options.flags, known)?;
    let on_progress = OnProgress { callback: options.progress, context: options.progress_context };
    let report = |progress: Progress| on_progress.report(progress);
    let has = |flag: u32| options.flags & flag != 0;
    // SAFETY: guaranteed by the caller.
    let config = unsafe { config_of(options) }?;
    let mut builder = Pool::builder().config(config).huge_pages(huge_pages_of(options)?).on_progress(&report);
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { node_numbers(options.nodes, options.nodes_len) }?;
    if !nodes.is_empty() {
        let ids = nodes.iter().map(|&number| node_id(number));
        builder = builder.nodes(ids.collect::<Result<Vec<_>, _>>()?);
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
    if let Some(threads) = NonZeroUsize::new(options.prefault_threads as usize) {
        builder = builder.prefault_threads(threads);
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
    // SAFETY: guaranteed by the caller.
    builder = unsafe { shared(builder, options) }?;
    builder.build().map_err(|error| {
        let status = match error {
            PoolError::Required(_) => Status::ZONAL_REQUIREMENT_FAILED,
            PoolError::Interrupted => Status::ZONAL_INTERRUPTED,
            _ => Status::ZONAL_BUILD_FAILED,
        };
        Failure::new(status, error)
    })
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
            let options = unsafe { sized("options", options) }?;
            // SAFETY: as above.
            unsafe { build(options) }?
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
/// a callback makes the call. While it waits, calls of other threads are delayed by up to 2 ms. In a child made by `fork`, a
/// pool that other threads were using can only be closed with `ZONAL_CLOSE_WITH_BLOCKS`. In a pool that processes share, only the
/// blocks that this process holds count, and are freed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_pool_close(pool: zonal_pool, flags: u32) -> zonal_status {
    call(|| {
        check_flags(flags, ZONAL_CLOSE_WITH_BLOCKS)?;
        let which = if flags & ZONAL_CLOSE_WITH_BLOCKS == 0 { Close::IfUnused } else { Close::Always };
        close(pool, which, |pool| {
            if is_child() && is_of_parent(pool) {
                return Ok(());
            }
            // The pool's own threads fold counters, so the count is exact only while they pause.
            let here = || pool.allocated_here().map(PageCount::get);
            let count = |_| here().unwrap_or_else(|| pages_of(pool).allocated);
            let allocated = pool.with_threads_paused(count);
            if allocated == 0 {
                return Ok(());
            }
            let why = format_args!("{allocated} pages of the pool are allocated");
            Err(Failure::new(Status::ZONAL_BUSY, why))
        })
    })
}

fn pages_of(pool: &Pool) -> zonal_accounting {
    let found = pool.accounting();
    let kept = |zone: ZoneSnapshot| zone.quarantined.get() + zone.retired.get() + zone.fenced.get();
    // The allocator counts these pages as allocated.
    let (zones, events) = (pool.zones().map(kept).sum::<u64>(), pool.events());
    let unavailable = (zones + events.retired).min(found.allocated.get());
    zonal_accounting {
        struct_size: size_of::<zonal_accounting>(),
        page_bytes: pool.page_bytes() as u64,
        managed: found.managed.get(),
        free: found.free.get(),
        in_pagesets: found.in_pagesets.get(),
        allocated: found.allocated.get() - unavailable,
        unavailable,
    }
}

/// Stores a pool's page counts, for all processes if it is shared. They balance if no thread allocates or frees during the
/// call.
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
            *out = pages_of(pool);
            Ok(())
        })
    })
}

/// Checks all structures of a pool. No thread, of any process, may allocate or free during the call. Fails with `ZONAL_BUSY` from within a
/// callback.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_pool_verify(pool: zonal_pool) -> zonal_status {
    call(|| {
        check_outside_callbacks("verify pools")?;
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
        // SAFETY: guaranteed by the caller.
        let mut output = unsafe { Output::new(buffer, len) };
        with_pool(pool, |pool| {
            // No text that is displayed fails.
            pool.warnings().iter().try_for_each(|warning| writeln!(output, "{warning}")).ok();
            Ok(())
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { output.end(needed) }
    })
}
