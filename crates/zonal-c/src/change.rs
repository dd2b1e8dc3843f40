//! Changes of a pool at run time: its size, and its settings by name.

use std::error::Error;
use std::ffi::{c_char, c_void};

use zonal_linux::{GrowError, ShrinkError, TrimError};

use crate::arguments::{store, text_of, write_text};
use crate::calls::{Call, PASSED_CALLBACK, check_outside_callbacks};
use crate::handle::with_pool;
use crate::status::{Failure, Status, call, zonal_status};
use crate::types::{zonal_pool, zonal_while_paused};

/// Returns how many bytes changed, and the failure with which the call then ends.
fn outcome<E: Error>(result: Result<u64, E>, done: fn(&E) -> u64) -> (u64, Option<Failure>) {
    match result {
        Ok(changed) => (changed, None),
        Err(error) => (done(&error), Some(Failure::new(Status::ZONAL_RESIZE_FAILED, error))),
    }
}

fn grown(error: &GrowError) -> u64 {
    if let GrowError::NoMemory { done, .. } = error { *done } else { 0 }
}

fn shrunk(error: &ShrinkError) -> u64 {
    let (ShrinkError::InUse { done, .. } | ShrinkError::NotReturned { done, .. }) = error;
    *done
}

fn trimmed(error: &TrimError) -> u64 {
    if let TrimError::Refused { done, .. } = error { *done } else { 0 }
}

/// Brings `bytes` more of a pool's `max_size` into use, and stores in `done` how many, if that is not null.
///
/// If the kernel has less memory, the call fails with `ZONAL_RESIZE_FAILED`. What came into use stays in use.
///
/// # Safety
/// `done` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_grow(pool: zonal_pool, bytes: u64, done: *mut u64) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store("done", done, 0) }?;
        let (grown, failure) = with_pool(pool, |pool| Ok(outcome(pool.grow(bytes), grown)))?;
        // SAFETY: as above.
        unsafe { store("done", done, grown) }?;
        failure.map_or(Ok(()), Err)
    })
}

/// Returns `bytes` of a pool's free memory to the kernel, and stores in `done` how many, if that is not null.
///
/// If less could be returned, because too much is in use, the call fails with `ZONAL_RESIZE_FAILED`. What was returned stays
/// returned. `zonal_pool_grow` brings it back.
///
/// # Safety
/// `done` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_shrink(pool: zonal_pool, bytes: u64, done: *mut u64) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store("done", done, 0) }?;
        let (returned, failure) = with_pool(pool, |pool| Ok(outcome(pool.shrink(bytes), shrunk)))?;
        // SAFETY: as above.
        unsafe { store("done", done, returned) }?;
        failure.map_or(Ok(()), Err)
    })
}

/// Writes the value of a setting as text into `buffer`, and stores the length of the whole text in `needed` if that is not
/// null.
///
/// Settings have the names of Linux's sysctls where Linux has them, such as `min_free_kbytes`. A wrong name is answered with
/// all names.
///
/// # Safety
/// `name` must be a text that ends with a zero. `buffer` must be null, or have room for `len` bytes. `needed` must be null, or
/// point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_setting(
    pool: zonal_pool,
    name: *const c_char,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text_of("name", name) }?;
        let value = with_pool(pool, |pool| pool.setting(name).map_err(Failure::invalid))?;
        // SAFETY: guaranteed by the caller.
        unsafe { write_text(&value, buffer, len, needed) }
    })
}

/// Changes a setting, whose value is given as text. A wrong name or value is refused with the right ones, and changes
/// nothing. A callback cannot set `stat_refresh`, which fails with `ZONAL_BUSY`.
///
/// # Safety
/// `name` and `value` must be texts that end with a zero.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_set_setting(
    pool: zonal_pool,
    name: *const c_char,
    value: *const c_char,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text_of("name", name) }?;
        // SAFETY: guaranteed by the caller.
        let value = unsafe { text_of("value", value) }?;
        if name == "stat_refresh" {
            check_outside_callbacks("set stat_refresh")?;
        }
        with_pool(pool, |pool| pool.set_setting(name, value).map_err(Failure::invalid))
    })
}

/// Returns the memory of a pool's free pages to the kernel, and stores in `bytes` how many bytes, if that is not null. The pages
/// stay free for the pool, and the kernel provides zeroed memory on their next use. Explicit huge pages are not returned. In a
/// shared pool, the number is 0 while another thread of any process trims. If the kernel refuses to take some of it, the call
/// fails with `ZONAL_RESIZE_FAILED`; what was returned before stays returned.
///
/// # Safety
/// `bytes` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_trim(pool: zonal_pool, bytes: *mut u64) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store("bytes", bytes, 0) }?;
        let (returned, failure) = with_pool(pool, |pool| Ok(outcome(pool.trim(), trimmed)))?;
        // SAFETY: as above.
        unsafe { store("bytes", bytes, returned) }?;
        failure.map_or(Ok(()), Err)
    })
}

/// Runs a function while the threads of a pool pause, so that it can `fork` a child that uses the pool.
///
/// The child may use the pool if `in_reclaimers` is 0 and no other thread is in a call of the pool. Otherwise the pool's
/// functions fail there with `ZONAL_BUSY`, and the child can only close it.
///
/// # Safety
/// `function` must be null, which is refused, or do what its type says with `context`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_pause_threads(
    pool: zonal_pool,
    function: zonal_while_paused,
    context: *mut c_void,
) -> zonal_status {
    call(|| {
        let function = function.ok_or_else(|| Failure::invalid("function is null"))?;
        with_pool(pool, |pool| {
            let _noted = Call::begin(PASSED_CALLBACK)?;
            // SAFETY: guaranteed by the caller.
            pool.with_threads_paused(|in_reclaimers| unsafe { function(context, in_reclaimers) });
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Only a kernel that is short of memory makes a pool grow in part.
    #[test]
    fn a_part_that_came_into_use_is_reported() {
        let why = || io::Error::from_raw_os_error(libc::ENOMEM);
        let (done, failure) =
            outcome(Err(GrowError::NoMemory { asked: 8 << 20, done: 2 << 20, why: why() }), grown);
        assert!(done == 2 << 20 && failure.is_some());
        let (done, failure) =
            outcome(Err(GrowError::NotAvailable { asked: 8 << 20, available: 4096 }), grown);
        assert!(done == 0 && failure.is_some());
        let (done, failure) = outcome(Ok(8 << 20), grown);
        assert!(done == 8 << 20 && failure.is_none());
    }
}
