//! The memory routines that compiled code calls and that a C library would provide.
//!
//! They work byte by byte, because their speed does not matter here. The crate is `no_builtins`, so that the compiler
//! does not turn these loops into calls of the same routines.

/// Copies `count` bytes between areas that do not overlap.
// SAFETY: this function has the name and behaviour of C's `memcpy`, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: the caller owns `count` bytes at both places.
        unsafe { *to.add(at) = *from.add(at) };
    }
    to
}

/// Copies `count` bytes between areas that may overlap.
// SAFETY: this function has the name and behaviour of C's `memmove`, as the compiler expects.
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
// SAFETY: this function has the name and behaviour of C's `memset`, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, count: usize) -> *mut u8 {
    for at in 0..count {
        // SAFETY: the caller owns `count` bytes.
        unsafe { *to.add(at) = value as u8 };
    }
    to
}

/// Compares `count` bytes. The result is 0 if they are equal, and otherwise has the sign of the first difference.
// SAFETY: this function has the name and behaviour of C's `memcmp`, as the compiler expects.
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

/// Compares `count` bytes, and returns 0 if they are equal.
// SAFETY: this function has the name and behaviour of C's `bcmp`, as the compiler expects.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(left, right, count) }
}
