//! The copy routines that the compiler calls. A program without a C library must supply them.
//!
//! `rep movsb` and `rep stosb` are fast for long runs of bytes on every processor with 64-bit mode in use today.

use core::arch::asm;

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller passes two runs of `bytes` bytes that do not overlap.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= bytes {
        // SAFETY: copying upwards reads each byte before it is overwritten.
        return unsafe { memcpy(to, from, bytes) };
    }
    // SAFETY: copying downwards, from the last byte, does so here. The direction flag is clear again at the end.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") bytes => _,
            inout("rdi") to.wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(bytes).wrapping_sub(1) => _, options(nostack));
    }
    to
}

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller passes a run of `bytes` bytes.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") value as u8,
            options(nostack, preserves_flags));
    }
    to
}

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
    for at in 0..bytes {
        // SAFETY: the caller passes two runs of `bytes` bytes. The reads are volatile so that the loop does not become
        // a call of this function.
        let (left, right) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, bytes: usize) -> i32 {
    // SAFETY: the contract is that of `memcmp`, except that the sign of the result has no meaning.
    unsafe { memcmp(left, right, bytes) }
}

// SAFETY: this is the C function of this name, with its contract.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    // SAFETY: the caller passes a text that ends with a zero. The reads are volatile as in `memcmp`.
    (0..).find(|&at| unsafe { text.add(at).read_volatile() } == 0).unwrap_or_default()
}
