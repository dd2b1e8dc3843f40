//! The memory routines that compiled code calls, which a C library would provide.
//!
//! They work byte by byte, because only their presence matters. The crate is `no_builtins`, so that the compiler does
//! not turn these loops into calls of themselves.

/// Copies `count` bytes between areas that do not overlap.
// SAFETY: C's `memcpy` by name and behaviour, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: the caller owns `count` bytes at both places.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

/// Copies `count` bytes between areas that may overlap.
// SAFETY: C's `memmove` by name and behaviour, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.cast_const() <= from {
        // SAFETY: an upward copy to a lower address reads each byte before it is overwritten.
        return unsafe { memcpy(to, from, count) };
    }
    for at in (0..count).rev() {
        // SAFETY: the caller owns `count` bytes at both places.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

/// Sets `count` bytes to `value`.
// SAFETY: C's `memset` by name and behaviour, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: the caller owns `count` bytes.
        unsafe { *to.add(at) = value as u8 };
    }
    to
}

/// Compares `count` bytes; the result is negative, zero or positive like the first difference.
// SAFETY: C's `memcmp` by name and behaviour, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: the caller may read `count` bytes at both places.
        let (left, right) = unsafe { (*left.add(at), *right.add(at)) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}
