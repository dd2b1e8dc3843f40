//! The start and end of the programs on Linux, without a C library.

use core::arch::{asm, global_asm};
use core::panic::PanicInfo;

// A called function expects an aligned stack pointer, but the kernel does not align it.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "and rsp, -16", "call {start}", "ud2", start = sym start);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "bl {start}", "udf #0", start = sym start);

extern "C" fn start() -> ! {
    with(crate::main())
}

/// Ends the program with `status`.
pub(crate) fn with(status: u8) -> ! {
    // SAFETY: `exit_group` ends the process. It takes one number and accesses no memory.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", in("rax") 231, in("rdi") u64::from(status), options(noreturn, nostack));
    }
    // SAFETY: `exit_group` ends the process. It takes one number and accesses no memory.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc #0", in("x8") 94, in("x0") u64::from(status), options(noreturn, nostack));
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    with(101)
}

/// Provides the symbol to which the unwind tables of the prebuilt `core` refer. This program never unwinds.
// SAFETY: this is the name of Rust's unwinding helper. A program that aborts on panic never calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
