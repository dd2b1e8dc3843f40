//! Zeroed metadata for large machines. The system backs it with pages only where it is touched.

use core::mem::MaybeUninit;
use std::alloc::{Layout as Bytes, alloc_zeroed, dealloc};
use zonal::Buffer;

/// Zeroed memory that the operating system allocates lazily. It is freed when this value is dropped.
#[derive(Default)]
pub struct ZeroBytes(Vec<(*mut u8, Bytes)>);

impl ZeroBytes {
    pub fn lend(&mut self, bytes: usize) -> Buffer<'static> {
        // A larger alignment would make the allocator write the zeroes.
        let layout = Bytes::from_size_align(bytes, 16).unwrap();
        // SAFETY: the allocator requests no buffer of zero bytes, so the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        self.0.push((start, layout));
        // SAFETY: the bytes were just allocated, and live until `self` is dropped. Every caller drops its allocator
        // before `self`.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start.cast::<MaybeUninit<u8>>(), bytes) };
        // SAFETY: `alloc_zeroed` returned zeroed memory, and nothing has written to it since.
        unsafe { Buffer::zeroed(bytes) }
    }
}

impl Drop for ZeroBytes {
    fn drop(&mut self) {
        for (start, layout) in self.0.drain(..) {
            // SAFETY: `lend` allocated this memory with this layout, and `drain` removes the entry, so it is freed only
            // once.
            unsafe { dealloc(start, layout) };
        }
    }
}
