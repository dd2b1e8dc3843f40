//! The area that a thread shares with the kernel for restartable sequences. It holds the thread's CPU and
//! points to the sequence that the thread is in.
//!
//! Since 2.35 glibc registers one for each thread, at a fixed distance from the thread pointer.

use std::ffi::{CStr, c_uint};
use std::ptr::NonNull;

/// The part of the kernel's `struct rseq` that is used here.
#[repr(C, align(32))]
pub(crate) struct Area {
    cpu_id_start: u32,
    cpu_id: i32,
    sequence: u64,
}

/// Returns the CPU that runs the caller.
#[inline]
pub(crate) fn current_cpu() -> usize {
    thread_local! {
        static AREA: Option<NonNull<Area>> = of_this_thread().ok();
    }
    // Threads without an area, and threads that are ending, ask the kernel.
    let area = AREA.try_with(|area| *area).ok().flatten();
    area.map_or_else(rustix::thread::sched_getcpu, |area| cpu_of(area) as usize)
}

/// Returns the calling thread's area.
///
/// # Errors
/// Returns the reason why there is none.
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

/// Returns the CPU that runs the thread of `area`, which must be the caller's; negative while the area is not
/// registered.
#[inline]
pub(crate) fn cpu_of(area: NonNull<Area>) -> i32 {
    // SAFETY: areas live as long as their thread, which is the caller.
    let cpu = unsafe { &raw const (*area.as_ptr()).cpu_id };
    // SAFETY: as above. Volatile: the kernel writes the field at any time.
    unsafe { cpu.read_volatile() }
}

/// Returns the distance from the thread pointer of areas that the C library has but that are not registered
/// with a kernel.
///
/// # Errors
/// Returns an error if there are no areas, or if they are registered with the kernel.
pub(crate) fn unregistered_offset() -> Result<isize, &'static str> {
    // SAFETY: where it exists the symbol is a `ptrdiff_t` that is constant after start-up.
    let offset: Option<isize> = unsafe { symbol(c"__rseq_offset") };
    let offset = offset.ok_or("this C library has no areas for restartable sequences")?;
    match of_this_thread() {
        Ok(_) => Err("the areas are registered with the kernel, so they need no simulation"),
        Err(_) => Ok(offset),
    }
}

/// Sets the calling thread's area to CPU 0. The thread must not start other threads: their areas would be
/// registered in the same way, and the kernel would refuse.
///
/// # Safety
/// Areas must be `offset` from the thread pointer and not registered with a kernel. Nothing restarts a
/// sequence then, so threads that use areas must not interrupt each other.
pub(crate) unsafe fn set_simulated_cpu(offset: isize) {
    let area = area_at(offset).expect("threads have thread pointers");
    // SAFETY: the area is this thread's, has this layout, and is not accessed by any other code.
    unsafe { area.write(Area { cpu_id_start: 0, cpu_id: 0, sequence: 0 }) };
}

/// Returns the distance of areas from the thread pointer, if the C library has registered them.
fn offset() -> Option<isize> {
    // SAFETY: where it exists the symbol is an `unsigned int` that is constant after start-up.
    let size: c_uint = unsafe { symbol(c"__rseq_size") }?;
    // SAFETY: likewise a `ptrdiff_t`.
    let offset: isize = unsafe { symbol(c"__rseq_offset") }?;
    (size as usize >= std::mem::offset_of!(Area, sequence) + size_of::<u64>()).then_some(offset)
}

/// Returns the calling thread's area at this distance from its thread pointer.
fn area_at(offset: isize) -> Option<NonNull<Area>> {
    let area = thread_pointer().wrapping_add_signed(offset);
    NonNull::new(std::ptr::with_exposed_provenance_mut(area))
}

/// Returns the value of a variable of the C library, if it exists.
///
/// # Safety
/// If the symbol exists it must be a `T` that is no longer written.
unsafe fn symbol<T: Copy>(name: &CStr) -> Option<T> {
    // SAFETY: looks up a valid name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: the caller promised the type.
    (!found.is_null()).then(|| unsafe { found.cast::<T>().read() })
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: the ABI keeps the thread pointer's own address at its start.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags))
    };
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> usize {
    0 // no sequences on this architecture
}
