//! The functions that replace those of the C library. Each calls the function of mimalloc.
//!
//! The operators of C++ are not among them: those of the C++ library call these functions, and throw `std::bad_alloc` when
//! memory is short, which functions in C cannot do. `docs/decisions/0024-malloc-through-mimalloc.md` has the reasons.

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use crate::arenas::node_of;
use crate::errno;
use crate::mimalloc;

/// Allocates zeroed memory. Sets `errno`, which mimalloc does not set if the number of bytes overflows.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    // SAFETY: any numbers are allowed.
    let block = unsafe { mimalloc::mi_calloc(count, bytes) };
    if block.is_null() {
        return refuse(libc::ENOMEM);
    }
    block
}

/// Changes the size of a block. As in glibc, the size 0 frees it.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    if bytes == 0 && !old.is_null() {
        // SAFETY: the caller passes a block that it owns.
        unsafe { mimalloc::mi_free(old) };
        return ptr::null_mut();
    }
    // SAFETY: the caller passes a block that it owns, or null.
    unsafe { mimalloc::mi_realloc(old, bytes) }
}

/// Changes the size of an array, as [`realloc`].
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: the conditions are the same.
        Some(bytes) => unsafe { realloc(old, bytes) },
        None => refuse(libc::ENOMEM),
    }
}

/// Allocates an aligned block. As in glibc, an alignment is rounded up to a power of two.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    match alignment.checked_next_power_of_two() {
        // SAFETY: any powers of two and sizes are allowed.
        Some(alignment) => unsafe { mimalloc::mi_memalign(alignment, bytes) },
        None => refuse(libc::EINVAL),
    }
}

/// Allocates an aligned block. Since glibc 2.38, an alignment that is no power of two is refused.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    if !alignment.is_power_of_two() && is_strict() {
        return refuse(libc::EINVAL);
    }
    // SAFETY: any numbers are allowed.
    unsafe { memalign(alignment, bytes) }
}

/// Whether the C library of the process is glibc 2.38 or later.
#[cold]
fn is_strict() -> bool {
    // SAFETY: the call has no conditions.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: the text lives forever.
    let version = unsafe { CStr::from_ptr(version) };
    let minor = version.to_str().ok().and_then(|version| version.split('.').nth(1)?.parse::<u32>().ok());
    minor.is_none_or(|minor| minor >= 38)
}

/// Allocates an aligned block. Without memory for a block of no bytes, mimalloc would store null and report success.
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    // SAFETY: the caller passes a place for a pointer. Any numbers are allowed.
    unsafe { mimalloc::mi_posix_memalign(place, alignment, bytes.max(1)) }
}

/// Allocates pages. Sets `errno`, as [`calloc`].
// SAFETY: the function replaces that of the C library, with the same contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    // SAFETY: any size is allowed.
    let block = unsafe { mimalloc::mi_pvalloc(bytes) };
    if block.is_null() {
        return refuse(libc::ENOMEM);
    }
    block
}

/// Sets `errno`, and returns null.
#[cold]
fn refuse(error: c_int) -> *mut c_void {
    errno::set(error);
    ptr::null_mut()
}

/// Defines functions with the names of the C library, each of which jumps to another function.
///
/// A call would load the address of the other function, because the compiler does not know that it is in this library.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $function:path;)*) => {$(
        // SAFETY: the function replaces that of the C library, with the same contract. The other function has the same
        // arguments and result.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            const _: unsafe extern "C" fn($($type),*) $(-> $result)? = $function;
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {}", sym $function);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("b {}", sym $function);
        }
    )*};
}

forward! {
    malloc(bytes: usize) -> *mut c_void = mimalloc::zonal_malloc;
    free(block: *mut c_void) = mimalloc::mi_free;
    cfree(block: *mut c_void) = mimalloc::mi_free;
    malloc_usable_size(block: *const c_void) -> usize = mimalloc::mi_usable_size;
    valloc(bytes: usize) -> *mut c_void = mimalloc::mi_valloc;
    __libc_malloc(bytes: usize) -> *mut c_void = mimalloc::zonal_malloc;
    __libc_calloc(count: usize, bytes: usize) -> *mut c_void = calloc;
    __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void = realloc;
    __libc_free(block: *mut c_void) = mimalloc::mi_free;
    __libc_memalign(alignment: usize, bytes: usize) -> *mut c_void = memalign;
    __libc_valloc(bytes: usize) -> *mut c_void = mimalloc::mi_valloc;
    __libc_pvalloc(bytes: usize) -> *mut c_void = pvalloc;
    __posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int = posix_memalign;
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
