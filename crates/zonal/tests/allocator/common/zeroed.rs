//! Metadata in memory that is zero and is touched only where it is used: for large machines.

use core::mem::MaybeUninit;
use std::alloc::{Layout as Bytes, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use zonal::platform::cpu_local::TryLock;
use zonal::platform::{SpinLock, ZeroedCells};
use zonal::units::{CpuId, Moment};
use zonal::{Buffer, Platform};

use super::CPU;

/// A platform whose cells may be born as zeroes.
pub struct Zeroed;

impl Platform for Zeroed {
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = TryLock;

    // SAFETY: these atomics and the lock made of one are plain integers, zero when new.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(0)
    }
}

/// Fresh zero bytes, which the operating system need not touch, given back at the end.
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
        // SAFETY: the bytes were allocated just now and live until `self` is dropped, which every
        // caller does after its allocator.
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
