//! The functions that replace those of the C library. Each calls the function of mimalloc.
//!
//! The operators of C++ are not among them: those of the C++ library call these functions, and throw `std::bad_alloc` when
//! memory is short, which functions in C cannot do. `docs/decisions/0024-malloc-through-mimalloc.md` has the reasons.

use std::ffi::{c_int, c_void};

use crate::arenas::node_of;
use crate::errno;
use crate::mimalloc;

/// Allocates zeroed memory.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    let block = unsafe { mimalloc::mi_calloc(count, bytes) };
    if block.is_null() {
        no_memory();
    }
    block
}

/// Changes the size of an array.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: the caller passes a block that it owns, or null.
    let block = unsafe { mimalloc::mi_reallocarray(old, count, bytes) };
    if block.is_null() {
        no_memory();
    }
    block
}

/// Sets `errno`, which mimalloc does not set if the number of bytes overflows.
#[cold]
fn no_memory() {
    errno::set(libc::ENOMEM);
}

/// Defines functions with the names of the C library, each of which calls a function of mimalloc.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $function:ident;)*) => {$(
        // SAFETY: the function replaces that of the C library, with the same contract.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the caller keeps to the contract of the C library, which is that of mimalloc's function.
            unsafe { mimalloc::$function($($argument),*) }
        }
    )*};
}

forward! {
    malloc(bytes: usize) -> *mut c_void = mi_malloc;
    free(block: *mut c_void) = mi_free;
    realloc(old: *mut c_void, bytes: usize) -> *mut c_void = mi_realloc;
    cfree(block: *mut c_void) = mi_free;
    malloc_usable_size(block: *mut c_void) -> usize = mi_usable_size;
    posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int = mi_posix_memalign;
    aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void = mi_aligned_alloc;
    memalign(alignment: usize, bytes: usize) -> *mut c_void = mi_memalign;
    valloc(bytes: usize) -> *mut c_void = mi_valloc;
    pvalloc(bytes: usize) -> *mut c_void = mi_pvalloc;
    __libc_malloc(bytes: usize) -> *mut c_void = mi_malloc;
    __libc_calloc(count: usize, bytes: usize) -> *mut c_void = mi_calloc;
    __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void = mi_realloc;
    __libc_free(block: *mut c_void) = mi_free;
    __libc_memalign(alignment: usize, bytes: usize) -> *mut c_void = mi_memalign;
    __libc_valloc(bytes: usize) -> *mut c_void = mi_valloc;
    __libc_pvalloc(bytes: usize) -> *mut c_void = mi_pvalloc;
    __posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int = mi_posix_memalign;
}

/// Frees a block of a known size (C23).
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(block: *mut c_void, _bytes: usize) {
    // SAFETY: the caller passes a block that it owns, or null.
    unsafe { mimalloc::mi_free(block) };
}

/// Frees a block of a known alignment and size (C23).
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(block: *mut c_void, _alignment: usize, _bytes: usize) {
    // SAFETY: the caller passes a block that it owns, or null.
    unsafe { mimalloc::mi_free(block) };
}

/// Returns the node of the pool's memory at `address`, or -1 if it is not in the pool. The address is not accessed.
// SAFETY: no other library has a function of this name.
#[unsafe(no_mangle)]
extern "C" fn zonal_malloc_node_of(address: *const c_void) -> c_int {
    node_of(address.addr()).map_or(-1, c_int::from)
}
