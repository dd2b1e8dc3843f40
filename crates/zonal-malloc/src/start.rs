//! The steps before `main`: read the options, build the pool, give its memory to mimalloc.
//!
//! Until the last step, mimalloc serves this library and the constructors of others from the kernel, in single pieces. If
//! a step fails, the program does not start: the message names the variable, and the exit status is 2.

use std::ffi::{c_int, c_long, c_void};
use std::fmt::Display;
use std::{env, mem, thread};
#[cfg(not(test))]
use std::{panic, sync::Once};

use zonal_linux::{HugePages, Pool, Prefault, Warning, available_bytes};

use crate::arenas::{self, Purge, UNIT};
use crate::errno;
use crate::limits;
use crate::mimalloc::{self, MiOption};
use crate::nodes;
use crate::options::{OWNER, Options, WhenFull, this_process};
use crate::report;

/// Exit status of a program that cannot start with these variables.
#[cfg(not(test))]
const REFUSED: c_int = 2;

/// The smallest pool that is built if no size is set: the smallest arena for each zone of a node.
const SMALLEST_DEFAULT: u64 = 4 * UNIT as u64;

/// The size in KiB up to which objects are in arenas: that of the largest arena. mimalloc's default is 2 GiB.
const LARGEST_OBJECT: c_long = 16 << 20;

/// Bytes of a stack beside the least that the system needs: of the thread that builds the pool, and of the one that returns
/// memory.
const STACK_BYTES: usize = 2 << 20;
const PURGER_STACK_BYTES: usize = 256 << 10;

/// Runs before `main` and before the constructors of the program, but after those of the libraries that it uses. Called
/// by `native/zonal.c`; later calls have no effect.
// SAFETY: no other library has a function of this name.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn zonal_malloc_start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(start);
}

#[cfg(not(test))]
fn start() {
    let Err(message) = panic::catch_unwind(run).unwrap_or_else(|_| Err("an internal error".into())) else {
        return;
    };
    eprintln!("zonal-malloc: {message}");
    // SAFETY: the call does not return. Nothing of the program has run, so nothing must be flushed or released.
    unsafe { libc::_exit(REFUSED) };
}

fn run() -> Result<(), String> {
    // mimalloc would use an arena that it maps itself before those of the pool, so it maps none until they exist.
    let reserve = mimalloc::option(MiOption::ArenaReserve);
    mimalloc::set_option(MiOption::ArenaReserve, 0);
    if mimalloc::is_preloading() {
        return Err("the library was linked wrongly: its constructor runs before that of mimalloc".into());
    }
    mimalloc::on_error(set_errno);
    // A user who starts a program with set-user-id may not choose its memory or a file that it writes.
    // SAFETY: the call only reads a number that the kernel passed to the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        mimalloc::set_option(MiOption::ArenaReserve, reserve);
        return Ok(());
    }
    register_barrier();
    let options = Options::read(env::vars_os())?;
    let process = this_process();
    if options.with_children || options.owner.as_ref().is_none_or(|owner| *owner == process) {
        // SAFETY: no other thread runs before `main`, except those of libraries that start threads when they are loaded.
        unsafe { env::set_var(OWNER, process) };
        on_another_thread(&options)?;
    }
    mimalloc::set_option(MiOption::ArenaReserve, reserve);
    Ok(())
}

/// Registers the process for the memory barrier of the pool's sequences. The kernel makes a process with several threads
/// wait several milliseconds for that, and the pool registers it again without effect.
fn register_barrier() {
    let register = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ;
    // SAFETY: the call has no pointers. A failure has the same cause when the pool is built, which handles it.
    unsafe { libc::syscall(libc::SYS_membarrier, register, 0, 0) };
}

/// Builds the pool on a thread that ends before `main`.
///
/// Each thread has memory of its own for small objects, and mimalloc has none of the pool yet. On the main thread, the
/// program would use the rest of the memory that this library needs to build the pool.
fn on_another_thread(options: &Options) -> Result<(), String> {
    thread::scope(|scope| {
        let builder =
            thread::Builder::new().name("zonal-start".into()).stack_size(STACK_BYTES + least_stack());
        let thread = builder.spawn_scoped(scope, || serve(options));
        let thread = match thread {
            Ok(thread) => thread,
            // The limits of the process leave nothing for a pool.
            Err(_) if options.size.is_none() && limits::bytes_left() < 2 * SMALLEST_DEFAULT => return Ok(()),
            Err(error) => return Err(format!("no thread can be started: {error}")),
        };
        thread.join().unwrap_or_else(|_| Err("an internal error".into()))
    })
}

/// Returns the bytes of a stack that the C library needs for itself, above all for the program's thread-locals, which are part
/// of the size that a thread is given.
fn least_stack() -> usize {
    /// Does not read the attributes.
    type LeastStack = extern "C" fn(Option<&libc::pthread_attr_t>) -> usize;
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    // SAFETY: it is null, or this function of glibc, which has this signature.
    unsafe { mem::transmute::<*mut c_void, Option<LeastStack>>(found) }.map_or(0, |least| least(None))
}

/// Builds the pool of this process.
fn serve(options: &Options) -> Result<(), String> {
    let output = options.report.as_ref().map(report::open).transpose()?;
    let Some(pool) = build(options)? else {
        output.iter().for_each(report::write_without_pool);
        return Ok(());
    };
    if options.huge_pages.is_none() {
        continue_with_huge_pages(&pool);
    }
    // Memory outside the pool is what the kernel decides. With advice, mimalloc's own data and each large block there would
    // need a huge page at least.
    mimalloc::set_default(MiOption::AllowThp, 0);
    let keeps_pages = options.is_prefaulted || is_explicit(options);
    let purge = if keeps_pages { Purge::Never } else { Purge::Allowed };
    // SAFETY: this function has the only handle to the pool, and allocates nothing.
    unsafe { arenas::give_all(&pool, purge) }?;
    if !keeps_pages && options.huge_pages != Some(HugePages::Never) {
        // Whole huge pages, which the kernel would split otherwise.
        mimalloc::set_option(MiOption::MinimalPurgeSize, 2 << 10);
    }
    if !keeps_pages && !options.has_no_purge_thread {
        mimalloc::purge_when_idle(PURGER_STACK_BYTES + least_stack());
    }
    mimalloc::set_option(MiOption::ArenaMaxObjectSize, LARGEST_OBJECT);
    if options.when_full == WhenFull::Fail {
        mimalloc::set_option(MiOption::DisallowOsAlloc, 1);
    }
    nodes::follow(&pool);
    if let Some(output) = output {
        report::at_exit(&pool, output)?;
    }
    // Dropping the handle stops the pool's threads. The memory stays, because its owners were forgotten.
    drop(pool);
    Ok(())
}

/// Advises huge pages for the pool's memory, except for the first part of each zone: with small pages, a small program needs
/// less memory.
fn continue_with_huge_pages(pool: &Pool) {
    for zone in pool.ranges() {
        let bytes = zone.frames.count.get() as usize * pool.page_bytes();
        if let Some(start) = pool.ptr_of(zone.frames.start)
            && bytes > UNIT
        {
            let rest = start.as_ptr().wrapping_add(UNIT).cast();
            // SAFETY: the advice does not change the memory. A kernel without huge pages refuses it, which has no effect.
            unsafe { libc::madvise(rest, bytes - UNIT, libc::MADV_HUGEPAGE) };
        }
    }
}

fn is_explicit(options: &Options) -> bool {
    matches!(options.huge_pages, Some(HugePages::Explicit | HugePages::Explicit1G))
}

/// Builds the pool, or returns `None` if no size is set and too little memory is known to be available and allowed.
fn build(options: &Options) -> Result<Option<Pool>, String> {
    let failed = |error: &dyn Display| format!("the pool cannot be built: {error}; {}", described(options));
    let size = match options.size {
        Some(size) => size,
        // Unknown without `/proc`.
        None => available_bytes().unwrap_or(0).min(limits::bytes_left()) / 2,
    };
    if options.size.is_none() && size < SMALLEST_DEFAULT {
        return Ok(None);
    }
    let mut builder = Pool::builder().size(size);
    // What a variable asks for is required. Defaults are used as far as the machine has them.
    if let Some(count) = options.fake_nodes {
        builder = builder.fake_nodes(count);
    }
    if let Some(nodes) = &options.nodes {
        builder = builder.nodes(nodes.iter().copied()).require_binding();
    }
    // By default, only a part of the memory has huge pages, and the pool's metadata, which is hardly used, has none.
    builder = builder.huge_pages(options.huge_pages.unwrap_or(HugePages::Never));
    if options.huge_pages.is_some_and(|huge_pages| huge_pages != HugePages::Never) {
        builder = builder.require_huge_pages();
    }
    if options.is_prefaulted {
        builder = builder.prefault(Prefault::AtOnce);
    }
    let pool = builder.build().map_err(|error| failed(&error))?;
    match pool.warnings().iter().find(|warning| matches!(warning, Warning::Overcommitted { .. })) {
        Some(warning) => Err(failed(warning)),
        None => Ok(Some(pool)),
    }
}

/// Returns the variables on which a failure to build the pool depends.
fn described(options: &Options) -> String {
    let size =
        options.size.map_or("not set (half of the available memory)".into(), |size| format!("{size} bytes"));
    let nodes = options.nodes.as_ref().map_or("not set (all nodes)".into(), |nodes| {
        let nodes: Vec<_> = nodes.iter().map(|node| node.get().to_string()).collect();
        nodes.join(",")
    });
    format!("ZONAL_MALLOC_SIZE is {size}, ZONAL_MALLOC_NODES is {nodes}")
}

/// Handles errors of mimalloc, which returns null for a failed request but does not always set `errno`.
// SAFETY: it may be called with any arguments.
unsafe extern "C" fn set_errno(error: c_int, _argument: *mut c_void) {
    if matches!(error, libc::ENOMEM | libc::EOVERFLOW) {
        errno::set(libc::ENOMEM);
    }
    if cfg!(feature = "secure") && matches!(error, libc::EAGAIN | libc::EFAULT | libc::EINVAL) {
        mimalloc::die(c"a block was freed twice, is invalid, or was written to while it was free\n");
    }
}
