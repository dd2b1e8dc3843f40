//! The error number of the calling thread, which the functions of the C library set.

use std::ffi::c_int;

/// Returns the number.
pub(crate) fn get() -> c_int {
    let place = place();
    // SAFETY: the word belongs to this thread.
    unsafe { *place }
}

/// Sets the number.
pub(crate) fn set(number: c_int) {
    let place = place();
    // SAFETY: the word belongs to this thread.
    unsafe { *place = number };
}

fn place() -> *mut c_int {
    // SAFETY: the call only returns an address.
    unsafe { libc::__errno_location() }
}
