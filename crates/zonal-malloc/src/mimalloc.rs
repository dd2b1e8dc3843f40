//! The functions of mimalloc that this library calls, and those that `native/zonal.c` adds to it. The build script compiles
//! both from the sources in `libmimalloc-sys`.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::io;
use std::os::fd::AsRawFd;

// SAFETY: the types of functions that mimalloc calls are those in `mimalloc.h`.
/// Commits (`true`) or decommits a part of an arena. Called while a program allocates, so it must not allocate.
pub(crate) type CommitFunction = unsafe extern "C" fn(
    commit: bool,
    start: *mut c_void,
    bytes: usize,
    is_zero: *mut bool,
    arena: *mut c_void,
) -> bool;
/// Receives every error of mimalloc.
pub(crate) type ErrorFunction = unsafe extern "C" fn(error: c_int, argument: *mut c_void);

/// An option of mimalloc, by its number in `mimalloc.h`.
#[derive(Clone, Copy)]
pub(crate) enum MiOption {
    /// Whether mimalloc may only use its arenas.
    DisallowOsAlloc = 17,
    /// KiB that mimalloc maps at once when its arenas are full, or 0 to map single pieces.
    ArenaReserve = 23,
    /// Whether mimalloc advises huge pages for memory that it maps.
    AllowThp = 43,
    /// Smallest number of KiB that mimalloc returns to the kernel at once.
    MinimalPurgeSize = 44,
    /// Largest object in arenas in KiB.
    ArenaMaxObjectSize = 45,
}

// SAFETY: the declarations are those of `mimalloc.h` and `native/zonal.c`. Safe functions accept every argument.
unsafe extern "C" {
    pub(crate) fn zonal_malloc(bytes: usize) -> *mut c_void;
    pub(crate) fn mi_calloc(count: usize, bytes: usize) -> *mut c_void;
    pub(crate) fn mi_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
    pub(crate) fn mi_free(block: *mut c_void);
    pub(crate) fn mi_usable_size(block: *const c_void) -> usize;
    pub(crate) fn mi_posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int;
    pub(crate) fn mi_memalign(alignment: usize, bytes: usize) -> *mut c_void;
    pub(crate) fn mi_valloc(bytes: usize) -> *mut c_void;
    pub(crate) fn mi_pvalloc(bytes: usize) -> *mut c_void;
    safe fn mi_version() -> c_int;
    safe fn _mi_preloading() -> bool;
    safe fn mi_option_get(option: c_int) -> c_long;
    safe fn mi_option_set(option: c_int, value: c_long);
    safe fn mi_option_set_default(option: c_int, value: c_long);
    safe fn zonal_malloc_purge_when_idle(stack: usize);
    safe fn zonal_malloc_is_child() -> bool;
    fn zonal_malloc_write(descriptor: c_int, text: *const c_char, bytes: usize) -> bool;
    fn zonal_malloc_die(message: *const c_char) -> !;
    fn zonal_malloc_set_nodes(nodes: *const c_int, count: usize);
    fn mi_register_error(handler: Option<ErrorFunction>, argument: *mut c_void);
    fn mi_manage_memory(
        start: *mut c_void,
        bytes: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        node: c_int,
        is_exclusive: bool,
        commit: Option<CommitFunction>,
        argument: *mut c_void,
        arena: *mut *mut c_void,
    ) -> bool;
}

/// Memory that becomes an arena. The memory is zero, and nothing else uses it from then on.
pub(crate) struct Piece {
    pub(crate) start: *mut c_void,
    pub(crate) bytes: usize,
    pub(crate) node: c_int,
    /// Whether mimalloc keeps the pages of free memory.
    pub(crate) is_pinned: bool,
}

/// Whether mimalloc's constructor has not run. Until then it does not release the memory of threads that end.
pub(crate) fn is_preloading() -> bool {
    _mi_preloading()
}

/// Returns the version of mimalloc, for example 3.3.2.
pub(crate) fn version() -> String {
    let packed = mi_version();
    format!("{}.{}.{}", packed / 10000, packed / 100 % 100, packed % 100)
}

/// Returns the value of an option.
pub(crate) fn option(option: MiOption) -> c_long {
    mi_option_get(option as c_int)
}

/// Sets an option. Called before the program has threads, because options are not synchronised.
pub(crate) fn set_option(option: MiOption, value: c_long) {
    mi_option_set(option as c_int, value);
}

/// Sets an option that the environment does not set. Called as [`set_option`].
pub(crate) fn set_default(option: MiOption, value: c_long) {
    mi_option_set_default(option as c_int, value);
}

/// Registers a handler of errors, which replaces that of mimalloc.
pub(crate) fn on_error(handler: ErrorFunction) {
    // SAFETY: the handler is a function of this library, which is never unloaded. It ignores its argument.
    unsafe { mi_register_error(Some(handler), std::ptr::null_mut()) };
}

/// Makes an arena of memory, from which all threads allocate. Returns whether mimalloc accepted it.
///
/// # Safety
/// The memory is readable, writable and zero, stays mapped, and is used by nothing else from now on. `argument` is what
/// `commit` requires, and stays valid.
pub(crate) unsafe fn manage(piece: &Piece, commit: CommitFunction, argument: *mut c_void) -> bool {
    let &Piece { start, bytes, node, is_pinned } = piece;
    let mut arena = std::ptr::null_mut();
    // SAFETY: the caller guarantees what mimalloc requires of the memory and the function.
    unsafe {
        mi_manage_memory(
            start,
            bytes,
            false,
            is_pinned,
            true,
            node,
            false,
            Some(commit),
            argument,
            &raw mut arena,
        )
    }
}

/// Makes mimalloc prefer arenas on the CPU's node for new pages. `nodes` has the node of each CPU, or -1.
///
/// Called before the program has threads.
pub(crate) fn prefer_nodes(nodes: &'static [c_int]) {
    // SAFETY: the slice lives forever.
    unsafe { zonal_malloc_set_nodes(nodes.as_ptr(), nodes.len()) };
}

/// Makes a thread return free memory of arenas to the kernel while the program does not allocate. The thread, with a stack of
/// `stack` bytes, is started when the program has used some memory.
pub(crate) fn purge_when_idle(stack: usize) {
    zonal_malloc_purge_when_idle(stack);
}

/// Whether this process is a child, made by `fork`, of the one that loaded the library.
pub(crate) fn is_child() -> bool {
    zonal_malloc_is_child()
}

/// Writes a message to standard error, and aborts the program.
pub(crate) fn die(message: &CStr) -> ! {
    // SAFETY: the message ends with a zero.
    unsafe { zonal_malloc_die(message.as_ptr()) }
}

/// Writes to a file without the signals that end a program when a write fails.
///
/// # Errors
/// That of the system call.
pub(crate) fn write_quietly(file: &impl AsRawFd, text: &str) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of the text.
    if unsafe { zonal_malloc_write(file.as_raw_fd(), text.as_ptr().cast(), text.len()) } {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
