//! Metadata in memory that is zero and is touched only where it is used, for large machines.

use core::mem::MaybeUninit;
use std::alloc::{Layout as Bytes, alloc_zeroed, dealloc};
use zonal::Buffer;

/// New zero bytes that the operating system need not touch; freed when this is dropped.
#[derive(Default)]
pub struct ZeroBytes(Vec<(*mut u8, Bytes)>);

impl ZeroBytes {
    pub fn lend(&mut self, bytes: usize) -> Buffer<'static> {
        // A larger alignment would make the allocator write the zeroes.
        let layout = Bytes::from_size_align(bytes, 16).unwrap();
        // SAFETY: no request is for zero bytes.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        self.0.push((start, layout));
        // SAFETY: the bytes were just allocated and live until `self` is dropped, which every caller does after its
        // allocator.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
        // SAFETY: they are zero.
        unsafe { Buffer::zeroed(bytes) }
    }
}

impl Drop for ZeroBytes {
    fn drop(&mut self) {
        for (start, layout) in self.0.drain(..) {
            // SAFETY: allocated in `lend` with this layout.
            unsafe { dealloc(start, layout) };
        }
    }
}
