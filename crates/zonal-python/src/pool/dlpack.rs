//! The structures of DLPack 1.0 (<https://dmlc.github.io/dlpack/latest/c_api.html>), and capsules with them.

use std::ffi::{CStr, c_void};
use std::sync::Arc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::block::Block;
use super::buffer::Buffer;

/// The device type of CPUs, and its only device.
pub(crate) const CPU: (i32, i32) = (1, 0);

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    // SAFETY: a consumer calls it once with the structure that it is part of.
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    // SAFETY: as above.
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What a capsule keeps until its deleter runs, on any thread, with or without the interpreter lock.
struct Kept<T> {
    managed: T,
    /// The length and the stride, to which `managed` points.
    numbers: [i64; 2],
    block: Arc<Block>,
}

impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        self.block.release();
    }
}

trait Form: Sized {
    const NAME: &'static CStr;
    fn new(tensor: Tensor) -> Self;
    fn tensor(&mut self) -> &mut Tensor;
    fn set_context(&mut self, context: *mut c_void);
    fn context(&self) -> *mut c_void;
}

impl Form for Managed {
    const NAME: &'static CStr = c"dltensor";

    fn new(tensor: Tensor) -> Self {
        Self { tensor, context: std::ptr::null_mut(), deleter: Some(delete::<Self>) }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Form for Versioned {
    const NAME: &'static CStr = c"dltensor_versioned";

    fn new(tensor: Tensor) -> Self {
        Self {
            version: [1, 0],
            context: std::ptr::null_mut(),
            deleter: Some(delete::<Self>),
            flags: 0,
            tensor,
        }
    }

    fn tensor(&mut self) -> &mut Tensor {
        &mut self.tensor
    }

    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }

    fn context(&self) -> *mut c_void {
        self.context
    }
}

// SAFETY: a consumer, or the destructor of an unused capsule, calls this once.
unsafe extern "C" fn delete<T: Form>(managed: *mut T) {
    // SAFETY: consumers pass the structure that the capsule had, or null.
    let Some(managed) = (unsafe { managed.as_ref() }) else { return };
    // SAFETY: the context is the box that `fill` made, and this runs once.
    drop(unsafe { Box::from_raw(managed.context().cast::<Kept<T>>()) });
}

// SAFETY: the interpreter calls this once, with the capsule.
unsafe extern "C" fn destroy<T: Form>(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is valid; a consumer has renamed it if it owns the memory.
    if unsafe { ffi::PyCapsule_IsValid(capsule, T::NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: the capsule has this name.
    let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, T::NAME.as_ptr()) };
    // SAFETY: no consumer has taken the structure.
    unsafe { delete(managed.cast::<T>()) };
}

/// Returns a capsule with the memory of a buffer, which stays allocated until the deleter runs.
pub(crate) fn capsule<'py>(py: Python<'py>, buffer: &Buffer, versioned: bool) -> PyResult<Bound<'py, PyAny>> {
    if versioned { fill::<Versioned>(py, buffer) } else { fill::<Managed>(py, buffer) }
}

fn fill<'py, T: Form>(py: Python<'py>, buffer: &Buffer) -> PyResult<Bound<'py, PyAny>> {
    buffer.block.export()?;
    let tensor = Tensor {
        data: buffer.start(),
        device: [CPU.0, CPU.1],
        dimensions: 1,
        code: 1, // unsigned integers
        bits: 8,
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let numbers = [buffer.nbytes() as i64, 1];
    let kept =
        Box::into_raw(Box::new(Kept { managed: T::new(tensor), numbers, block: Arc::clone(&buffer.block) }));
    // SAFETY: the box was just made, and nothing else refers to it.
    let owner = unsafe { &mut *kept };
    let numbers = owner.numbers.as_mut_ptr();
    owner.managed.tensor().shape = numbers;
    owner.managed.tensor().strides = numbers.wrapping_add(1);
    owner.managed.set_context(kept.cast());
    let pointer = (&raw mut owner.managed).cast::<c_void>();
    // SAFETY: the name is static, and the destructor fits the structure.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, T::NAME.as_ptr(), Some(destroy::<T>)) };
    if capsule.is_null() {
        // SAFETY: no capsule has the box.
        drop(unsafe { Box::from_raw(kept) });
    }
    // SAFETY: a new reference, or null with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}
