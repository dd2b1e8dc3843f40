//! Changes of a pool at run time: its size, and its settings by name.

use std::ffi::{CStr, c_char};

use zonal_linux::ShrinkError;

use crate::handle::with_pool;
use crate::pool::{check_pointer, write_text};
use crate::status::{Failure, Status, call, zonal_status};
use crate::types::zonal_pool;

/// Stores a number of bytes for the caller, if it wants it.
///
/// # Safety
/// `place` must be null, or point to a number.
unsafe fn store(place: *mut u64, number: u64) -> Result<(), Failure> {
    if !place.is_null() {
        check_pointer("done", place)?;
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(number) };
    }
    Ok(())
}

/// Brings `bytes` more of a pool's `max_size` into use, and stores in `done` how many, if that is not null.
///
/// # Safety
/// `done` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_grow(pool: zonal_pool, bytes: u64, done: *mut u64) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { store(done, 0) }?;
        let grown = with_pool(pool, |pool| {
            pool.grow(bytes).map_err(|error| Failure::new(Status::ZONAL_RESIZE_FAILED, error))
        })?;
        // SAFETY: as above.
        unsafe { store(done, grown) }
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
        unsafe { store(done, 0) }?;
        let (returned, failure) = with_pool(pool, |pool| {
            Ok(match pool.shrink(bytes) {
                Ok(returned) => (returned, None),
                Err(error) => {
                    let (ShrinkError::InUse { done, .. } | ShrinkError::NotReturned { done, .. }) = error;
                    (done, Some(Failure::new(Status::ZONAL_RESIZE_FAILED, error)))
                }
            })
        })?;
        // SAFETY: as above.
        unsafe { store(done, returned) }?;
        failure.map_or(Ok(()), Err)
    })
}

/// Returns a text of the caller.
///
/// # Safety
/// `text` must be null, or a text that ends with a zero and does not change during the call.
unsafe fn text_of<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    check_pointer(name, text)?;
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Failure::invalid(format_args!("{name} is not UTF-8: {error}")))
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
        unsafe { write_text(&value.to_string(), buffer, len, needed) }
    })
}

/// Changes a setting, whose value is given as text. A wrong name or value is refused with the right ones, and changes
/// nothing.
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
        with_pool(pool, |pool| pool.set_setting(name, value).map_err(Failure::invalid))
    })
}
