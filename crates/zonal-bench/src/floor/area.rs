//! The *area* that a thread shares with the kernel for restartable sequences. The area contains the thread's CPU, and
//! points to the descriptor of the sequence that the thread executes.
//!
//! Since version 2.35, glibc registers an area for each thread, at a fixed offset from the thread pointer.

use std::ffi::{CStr, c_uint};
use std::ptr::NonNull;

/// The fields of the kernel's `struct rseq` that this crate uses.
#[repr(C, align(32))]
pub(crate) struct Area {
    cpu_id_start: u32,
    cpu_id: i32,
    sequence: u64,
}

/// Returns the CPU that runs the caller.
#[cfg(feature = "peers")]
#[inline]
pub(crate) fn current_cpu() -> usize {
    thread_local! {
        static AREA: Option<NonNull<Area>> = of_this_thread().ok();
    }
    // A thread without an area, or whose thread locals are already destroyed, uses the system call.
    let area = AREA.try_with(|area| *area).ok().flatten();
    area.map_or_else(rustix::thread::sched_getcpu, |area| cpu_of(area) as usize)
}

/// Returns the calling thread's area.
///
/// # Errors
/// Returns the reason why the thread has no area.
pub(crate) fn of_this_thread() -> Result<NonNull<Area>, &'static str> {
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return Err("restartable sequences are not implemented for this processor");
    }
    let offset =
        offset().ok_or("this C library registers no restartable sequences (glibc does since 2.35)")?;
    let area = area_at(offset).ok_or("no thread pointer")?;
    if cpu_of(area) < 0 {
        return Err("the kernel has not registered this thread's restartable sequences");
    }
    Ok(area)
}

/// Returns the CPU that runs the thread of `area`, which must be the calling thread. The number is negative while the
/// area is not registered.
#[inline]
pub(crate) fn cpu_of(area: NonNull<Area>) -> i32 {
    // SAFETY: an area lives as long as its thread, and the caller is that thread.
    let cpu = unsafe { &raw const (*area.as_ptr()).cpu_id };
    // SAFETY: the pointer is valid, as above. The read is volatile because the kernel writes the field at any time.
    unsafe { cpu.read_volatile() }
}

/// Returns the offset of areas from the thread pointer if the C library has areas that are not registered with a
/// kernel.
///
/// # Errors
/// Returns an error if there are no areas, or if they are registered with the kernel.
pub(crate) fn unregistered_offset() -> Result<isize, &'static str> {
    // SAFETY: the symbol, where it exists, is a `ptrdiff_t` that is constant after start-up.
    let offset: Option<isize> = unsafe { symbol(c"__rseq_offset") };
    let offset = offset.ok_or("this C library has no areas for restartable sequences")?;
    match of_this_thread() {
        Ok(_) => Err("the areas are registered with the kernel, so they need no simulation"),
        Err(_) => Ok(offset),
    }
}

/// Sets the calling thread's area to CPU 0. The thread must not start other threads afterwards: the C library would
/// register their areas at the same offset, and a real kernel would refuse that.
///
/// # Safety
/// Areas must be `offset` from the thread pointer, and must not be registered with a kernel. No kernel then restarts
/// a sequence, so threads that use areas must not interrupt each other.
pub(crate) unsafe fn set_simulated_cpu(offset: isize) {
    let area = area_at(offset).expect("threads have thread pointers");
    // SAFETY: the area belongs to this thread, has this layout, and is not accessed by any other code.
    unsafe { area.write(Area { cpu_id_start: 0, cpu_id: 0, sequence: 0 }) };
}

/// Returns the offset of areas from the thread pointer, if the C library has registered them.
fn offset() -> Option<isize> {
    // SAFETY: the symbol, where it exists, is an `unsigned int` that is constant after start-up.
    let size: c_uint = unsafe { symbol(c"__rseq_size") }?;
    // SAFETY: the symbol, where it exists, is a `ptrdiff_t` that is constant after start-up.
    let offset: isize = unsafe { symbol(c"__rseq_offset") }?;
    (size as usize >= std::mem::offset_of!(Area, sequence) + size_of::<u64>()).then_some(offset)
}

/// Returns the address of the calling thread's area, at this offset from the thread pointer.
fn area_at(offset: isize) -> Option<NonNull<Area>> {
    let area = thread_pointer().wrapping_add_signed(offset);
    NonNull::new(std::ptr::with_exposed_provenance_mut(area))
}

/// Returns the value of a variable in the C library, if it exists.
///
/// # Safety
/// If the symbol exists, it must be a `T` that is no longer written.
unsafe fn symbol<T: Copy>(name: &CStr) -> Option<T> {
    // SAFETY: `name` is a valid C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller guarantees that the symbol is a `T`.
    (!found.is_null()).then(|| unsafe { found.cast::<T>().read() })
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the ABI stores the thread pointer's own value at the address to which it points.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the instruction only reads a register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags))
    };
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> usize {
    0 // this architecture has no sequences
}
