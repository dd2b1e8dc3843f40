//! Reads the number of the CPU that runs the caller, with one load from memory that the kernel updates.
//!
//! Since version 2.35, glibc registers a restartable-sequence area for each thread, in which the kernel maintains the
//! number of the thread's CPU. Without an area (other C libraries, tunables, old kernels), `sched_getcpu` is called.
//! Related files: `pool/cpu_map.rs` maps the real CPU to a CPU of the pool's machine.

use std::ffi::c_uint;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::ffi::c_void;

/// Offset of `cpu_id` in the area.
const CPU_ID_OFFSET: isize = 4;

/// Fields of the area that are used, with the size that the area must have. Source: Linux `rseq(2)`.
#[derive(Clone, Copy, Debug)]
pub(super) enum AreaUse {
    /// `cpu_id`, which is read only.
    CpuId = 8,
    /// `cpu_id` and `rseq_cs`, which is written.
    Sequences = 16,
}

/// How the current CPU is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CurrentCpu {
    /// Offset of `cpu_id` from the thread pointer; `None` where the C library registers no areas.
    field: Option<isize>,
}

impl CurrentCpu {
    /// Reads the current CPU of the calling thread.
    #[inline]
    pub(crate) fn read(self) -> u32 {
        if let Some(offset) = self.field {
            // The number is negative if the C library did not start this thread, which therefore has no area.
            if let Ok(cpu) = u32::try_from(load_cpu_id(offset)) {
                return cpu;
            }
        }
        ask_the_kernel()
    }

    /// Determines which of the two ways this process supports.
    pub(crate) fn detect() -> Self {
        Self { field: area_offset(AreaUse::CpuId).map(|area| area + CPU_ID_OFFSET) }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn load_cpu_id(offset: isize) -> i32 {
    let cpu: i32;
    // SAFETY: `offset` comes from `area_offset`, so each thread's area is there for the lifetime of the thread. The
    // option `pure` is absent because the kernel changes the field at any time.
    unsafe {
        std::arch::asm!("mov {cpu:e}, fs:[{offset}]", cpu = out(reg) cpu, offset = in(reg) offset,
            options(nostack, preserves_flags, readonly));
    }
    cpu
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn load_cpu_id(offset: isize) -> i32 {
    let cpu: i32;
    // SAFETY: as for x86-64, except that the thread pointer is in a register of its own.
    unsafe {
        std::arch::asm!("mrs {tp}, tpidr_el0", "ldr {cpu:w}, [{tp}, {offset}]", tp = out(reg) _,
            cpu = out(reg) cpu, offset = in(reg) offset, options(nostack, preserves_flags, readonly));
    }
    cpu
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn load_cpu_id(_offset: isize) -> i32 {
    -1 // the thread pointer of this architecture is not supported
}

/// Returns the offset of each thread's area from its thread pointer, or `None` if the C library registers no areas or
/// areas that are too small.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) fn area_offset(area_use: AreaUse) -> Option<isize> {
    let [size, offset] = area_symbols();
    if size.is_null() || offset.is_null() {
        return None;
    }
    // SAFETY: the symbol is an `unsigned int` that is constant after start-up.
    let size: c_uint = unsafe { size.cast::<c_uint>().read() };
    // SAFETY: the symbol is a `ptrdiff_t` that is constant after start-up.
    let offset: isize = unsafe { offset.cast::<isize>().read() };
    (size >= area_use as c_uint).then_some(offset)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) fn area_offset(_area_use: AreaUse) -> Option<isize> {
    None
}

/// Returns the addresses of the C library's variables `__rseq_size` and `__rseq_offset`, null if it does not have them.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(target_feature = "crt-static")))]
fn area_symbols() -> [*const c_void; 2] {
    [c"__rseq_size", c"__rseq_offset"].map(|name| {
        // SAFETY: `name` is a valid C string.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).cast_const() }
    })
}

/// Does the same in static programs, which have no table of symbols to search: the linker fills in the addresses, and
/// weak symbols that it does not find are null.
#[cfg(all(target_arch = "x86_64", target_feature = "crt-static"))]
fn area_symbols() -> [*const c_void; 2] {
    let (size, offset): (*const c_void, *const c_void);
    // SAFETY: the instructions only read the table of addresses that the linker made.
    unsafe {
        std::arch::asm!(
            ".weak __rseq_size", ".weak __rseq_offset",
            "mov {size}, [rip + __rseq_size@GOTPCREL]", "mov {offset}, [rip + __rseq_offset@GOTPCREL]",
            size = out(reg) size, offset = out(reg) offset, options(pure, readonly, nostack, preserves_flags));
    }
    [size, offset]
}

/// Does the same in static programs for aarch64.
#[cfg(all(target_arch = "aarch64", target_feature = "crt-static"))]
fn area_symbols() -> [*const c_void; 2] {
    let (size, offset): (*const c_void, *const c_void);
    // SAFETY: as for x86-64.
    unsafe {
        std::arch::asm!(
            ".weak __rseq_size", ".weak __rseq_offset",
            "adrp {size}, :got:__rseq_size", "ldr {size}, [{size}, :got_lo12:__rseq_size]",
            "adrp {offset}, :got:__rseq_offset", "ldr {offset}, [{offset}, :got_lo12:__rseq_offset]",
            size = out(reg) size, offset = out(reg) offset, options(pure, readonly, nostack, preserves_flags));
    }
    [size, offset]
}

/// Returns the CPU that runs the caller, by a system call; 0 if the kernel does not have that call.
#[cold]
pub(super) fn ask_the_kernel() -> u32 {
    // SAFETY: the function has no preconditions. It fails only if the kernel does not have the system call.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rseq_area_and_system_call_name_the_pinned_cpu() {
        let ways = [CurrentCpu::detect(), CurrentCpu { field: None }];
        if ways[0].field.is_none() {
            zonal_testing::skipped!("no restartable-sequence area here; only sched_getcpu is tested");
        }
        for cpu in zonal_testing::allowed_cpus() {
            let pinned = move || {
                zonal_testing::pin_to(cpu);
                ways.map(CurrentCpu::read)
            };
            assert_eq!(std::thread::spawn(pinned).join().unwrap(), [cpu as u32; 2]);
        }
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn thread_without_rseq_area_reads_its_cpu_by_system_call() {
        let unregistered = -1_i32;
        // This is an offset at which the thread finds a negative number, as in an unregistered area.
        let at = std::ptr::from_ref(&unregistered) as isize;
        let way = CurrentCpu { field: Some(at.wrapping_sub(thread_pointer())) };
        assert!(zonal_testing::allowed_cpus().contains(&(way.read() as usize)));
    }

    #[cfg(target_arch = "x86_64")]
    fn thread_pointer() -> isize {
        let tp: isize;
        // SAFETY: the ABI stores the thread pointer's own value at the address to which it points.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, readonly)) };
        tp
    }

    #[cfg(target_arch = "aarch64")]
    fn thread_pointer() -> isize {
        let tp: isize;
        // SAFETY: the instruction only reads a register.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) tp, options(nostack)) };
        tp
    }
}
