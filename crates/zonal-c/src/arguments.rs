//! Checks of what callers pass: pointers, structures, nodes and texts.

use std::ffi::{CStr, c_char};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;

use zonal_linux::NodeId;

use crate::status::Failure;

/// Number of node ids.
const NODES_MAX: usize = 1024;

/// Returns the numbers in a list of nodes.
///
/// # Safety
/// `nodes` must be null, or point to `len` numbers that do not change while the result is used.
#[inline]
pub(crate) unsafe fn node_numbers<'a>(nodes: *const u16, len: usize) -> Result<&'a [u16], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if nodes.is_null() || !nodes.is_aligned() || len > NODES_MAX {
        let most = NODES_MAX;
        return Err(Failure::invalid(format_args!(
            "nodes is {nodes:?} with nodes_len {len}; it must point to 1 to {most} numbers"
        )));
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts(nodes, len) })
}

/// Returns the node with this number, if numbers go that far.
pub(crate) fn node_id(number: u16) -> Result<NodeId, Failure> {
    let unknown = || Failure::invalid(format_args!("there is no node {number}; nodes are 0 to 1023"));
    NodeId::new(number).ok_or_else(unknown)
}

/// Checks a pointer of the caller for null and alignment.
pub(crate) fn check_pointer<T>(name: &str, pointer: *const T) -> Result<(), Failure> {
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::invalid(format_args!("{name} is {pointer:?}, which points to no value")));
    }
    Ok(())
}

/// Returns a structure of the caller, after checking its size.
///
/// # Safety
/// `pointer` must be null, or point to a structure of this kind in any version, which begins with its size.
pub(crate) unsafe fn sized<'a, T>(name: &str, pointer: *const T) -> Result<&'a T, Failure> {
    check_pointer(name, pointer)?;
    // SAFETY: guaranteed by the caller. No reference to more than the size exists before the size is checked.
    let found = unsafe { pointer.cast::<usize>().read() };
    let expected = size_of::<T>();
    if found != expected {
        return Err(Failure::invalid(format_args!("{name}->struct_size is {found}, but must be {expected}")));
    }
    // SAFETY: guaranteed by the caller, now that the version is that of this library.
    Ok(unsafe { &*pointer })
}

/// A text that is written into a buffer of the caller, as far as it fits, and needs no heap.
pub(crate) struct Output<'a> {
    buffer: &'a mut [MaybeUninit<u8>],
    /// Bytes of the whole text.
    len: usize,
}

impl<'a> Output<'a> {
    /// Returns an empty text in `buffer`.
    ///
    /// # Safety
    /// `buffer` must be null, or have room for `len` bytes that no other code uses meanwhile.
    pub(crate) unsafe fn new(buffer: *mut c_char, len: usize) -> Self {
        let buffer = if buffer.is_null() || len == 0 {
            &mut []
        } else {
            // SAFETY: guaranteed by the caller.
            unsafe { std::slice::from_raw_parts_mut(buffer.cast(), len) }
        };
        Self { buffer, len: 0 }
    }

    /// Puts a zero at the end of what fits, and stores the length of the whole text in `needed`.
    ///
    /// # Safety
    /// `needed` must be null, or point to a number.
    pub(crate) unsafe fn end(self, needed: *mut usize) -> Result<(), Failure> {
        if !needed.is_null() {
            check_pointer("needed", needed)?;
            // SAFETY: guaranteed by the caller.
            unsafe { needed.write(self.len) };
        }
        if let Some(last) = self.buffer.len().checked_sub(1) {
            self.buffer[self.len.min(last)] = MaybeUninit::new(0);
        }
        Ok(())
    }
}

impl Write for Output<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let places = self.buffer.iter_mut().skip(self.len);
        places.zip(text.bytes()).for_each(|(place, byte)| *place = MaybeUninit::new(byte));
        self.len += text.len();
        Ok(())
    }
}

/// Writes a text for the caller: as much as fits, with a zero at its end, and the length of the whole text.
///
/// # Safety
/// `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
pub(crate) unsafe fn write_text(
    text: &dyn fmt::Display,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: guaranteed by the caller.
    let mut output = unsafe { Output::new(buffer, len) };
    write!(output, "{text}").ok(); // nothing that is displayed fails
    // SAFETY: guaranteed by the caller.
    unsafe { output.end(needed) }
}

/// Returns a text of the caller.
///
/// # Safety
/// `text` must be null, or a text that ends with a zero and does not change during the call.
pub(crate) unsafe fn text_of<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    check_pointer(name, text)?;
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Failure::invalid(format_args!("{name} is not UTF-8: {error}")))
}

/// Stores a number for the caller, if it wants it.
///
/// # Safety
/// `place` must be null, or point to a number.
pub(crate) unsafe fn store(name: &str, place: *mut u64, number: u64) -> Result<(), Failure> {
    if !place.is_null() {
        check_pointer(name, place)?;
        // SAFETY: guaranteed by the caller.
        unsafe { place.write(number) };
    }
    Ok(())
}
