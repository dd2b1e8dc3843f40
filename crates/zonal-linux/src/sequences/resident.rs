//! Keeps the library that contains this code in memory until the process ends.
//!
//! A restartable sequence leaves the address of its descriptor in the thread's area. The kernel reads that address at
//! the next preemption, perhaps long after the sequence ended. If the library had been unloaded meanwhile, the
//! address would be invalid and the kernel would kill the thread. Clearing the address after each sequence would cost
//! two more stores for each allocation and free, so the library stays loaded instead.
//!
//! Related files: `sequences/mod.rs` uses no sequences where unloading cannot be prevented. Source: Linux `rseq(2)`,
//! `dlopen(3)`.

use std::ffi::{c_int, c_void};

use super::once::Once;

/// Whether this code stays in memory, either because it is part of the program itself or because its library could be
/// marked as never to be unloaded.
pub(crate) fn stays_in_memory() -> bool {
    static STAYS: Once = Once::new();
    STAYS.is(|| is_in_the_program() || mark_never_unloaded())
}

/// Returns an address within this module's code.
fn here() -> usize {
    stays_in_memory as *const () as usize
}

/// Whether this code is linked into the program itself, which is never unloaded.
fn is_in_the_program() -> bool {
    let mut found = false;
    // SAFETY: the callback receives objects that stay valid while it runs, and a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(first_object_has_us), (&raw mut found).cast()) };
    found
}

/// Checks whether the first loaded object, which is the program, contains this code. Then ends the iteration.
///
/// # Safety
/// `object` must describe a loaded object, and `found` must point to a `bool`.
unsafe extern "C" fn first_object_has_us(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the caller guarantees that `object` describes a loaded object.
    let object = unsafe { &*object };
    // SAFETY: the loader provides the address and the number of the object's headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let has_us = headers.iter().any(|header| {
        let start = object.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        header.p_type == libc::PT_LOAD && (start..start + header.p_memsz as usize).contains(&here())
    });
    // SAFETY: the caller guarantees that `found` points to a `bool`.
    unsafe { found.cast::<bool>().write(has_us) };
    1
}

/// Marks the library that contains this code as never to be unloaded, and returns whether that succeeded.
fn mark_never_unloaded() -> bool {
    // SAFETY: `Dl_info` consists of pointers and addresses, for which zeros are valid.
    let mut library: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the call looks up an address and fills in the structure.
    if unsafe { libc::dladdr(here() as *const c_void, &raw mut library) } == 0 || library.dli_fname.is_null()
    {
        return false;
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the name comes from the loader and names a loaded library, so loading runs none of its code.
    let handle = unsafe { libc::dlopen(library.dli_fname, flags) };
    // The handle is leaked, which is a second reason why the library stays loaded.
    !handle.is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_code_is_always_resident() {
        assert!(is_in_the_program());
        assert!(stays_in_memory());
        assert!(!mark_never_unloaded(), "the program is no library");
    }
}
