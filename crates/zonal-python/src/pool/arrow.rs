//! Arrow's C data and C stream interfaces (<https://arrow.apache.org/docs/format/CStreamInterface.html>).
//!
//! A table is a stream of one record batch, whose columns have the type `uint64` or `utf8` and no nulls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use pyo3::ffi;

use super::table::{Column, Values};

/// The name of the capsule, which Arrow prescribes.
pub(crate) const NAME: &CStr = c"arrow_array_stream";

#[repr(C)]
pub(crate) struct Schema {
    format: *const c_char,
    name: *const c_char,
    metadata: *const c_char,
    flags: i64,
    children_count: i64,
    children: *mut *mut Schema,
    dictionary: *mut Schema,
    // SAFETY: a consumer calls it once, with the structure.
    release: Option<unsafe extern "C" fn(*mut Schema)>,
    private: *mut c_void,
}

#[repr(C)]
pub(crate) struct Array {
    length: i64,
    null_count: i64,
    offset: i64,
    buffers_count: i64,
    children_count: i64,
    buffers: *mut *const c_void,
    children: *mut *mut Array,
    dictionary: *mut Array,
    // SAFETY: as above.
    release: Option<unsafe extern "C" fn(*mut Array)>,
    private: *mut c_void,
}

#[repr(C)]
pub(crate) struct Stream {
    // SAFETY: consumers call the functions with the stream until they release it.
    get_schema: unsafe extern "C" fn(*mut Stream, *mut Schema) -> c_int,
    // SAFETY: as above.
    get_next: unsafe extern "C" fn(*mut Stream, *mut Array) -> c_int,
    // SAFETY: as above.
    get_last_error: unsafe extern "C" fn(*mut Stream) -> *const c_char,
    // SAFETY: as above; once.
    release: Option<unsafe extern "C" fn(*mut Stream)>,
    private: *mut c_void,
}

/// The end of a stream, which owns nothing.
const END: Array = Array {
    length: 0,
    null_count: 0,
    offset: 0,
    buffers_count: 0,
    children_count: 0,
    buffers: ptr::null_mut(),
    children: ptr::null_mut(),
    dictionary: ptr::null_mut(),
    release: None,
    private: ptr::null_mut(),
};

/// What a stream owns.
struct Source {
    columns: Vec<Column>,
    rows: usize,
    is_read: bool,
}

/// What a schema owns: the names, and the schemas of its columns.
struct SchemaParts {
    _name: CString,
    children: Vec<*mut Schema>,
}

/// What an array owns: its buffers and its columns.
struct ArrayParts {
    _values: Buffers,
    buffers: Vec<*const c_void>,
    children: Vec<*mut Array>,
}

enum Buffers {
    None,
    Numbers(#[expect(dead_code, reason = "keeps what `buffers` point to")] Vec<u64>),
    Texts(
        #[expect(dead_code, reason = "as above")] Vec<i32>,
        #[expect(dead_code, reason = "as above")] String,
    ),
}

/// Returns a stream of the table. The caller or a consumer must release it.
pub(crate) fn stream(columns: &[Column], rows: usize) -> Stream {
    let source = Box::new(Source { columns: columns.to_vec(), rows, is_read: false });
    Stream {
        get_schema,
        get_next,
        get_last_error,
        release: Some(release_stream),
        private: Box::into_raw(source).cast(),
    }
}

// SAFETY: the interpreter calls this once, with a capsule of `stream`.
pub(crate) unsafe extern "C" fn destroy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule has this name.
    let stream = unsafe { ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()) }.cast::<Stream>();
    if stream.is_null() {
        return;
    }
    // SAFETY: the pointer comes from a box. Consumers move the contents out and leave no release function.
    let mut stream = unsafe { Box::from_raw(stream) };
    if let Some(release) = stream.release {
        // SAFETY: the stream has not been released.
        unsafe { release(&raw mut *stream) };
    }
}

/// Returns what a stream owns.
///
/// # Safety
/// The stream must not be released.
unsafe fn source<'a>(stream: *mut Stream) -> &'a mut Source {
    // SAFETY: guaranteed by the caller.
    let private = unsafe { (*stream).private };
    // SAFETY: `private` is the box of `stream`, which one consumer uses at a time.
    unsafe { &mut *private.cast::<Source>() }
}

// SAFETY: consumers call this with a stream that is not released, and a place for a schema.
unsafe extern "C" fn get_schema(stream: *mut Stream, place: *mut Schema) -> c_int {
    // SAFETY: as above.
    let source = unsafe { source(stream) };
    let child = |column: &Column| {
        let format = if matches!(column.values, Values::Numbers(_)) { c"L" } else { c"u" };
        Box::into_raw(Box::new(schema(format, column.name, Vec::new())))
    };
    let whole = schema(c"+s", "", source.columns.iter().map(child).collect());
    // SAFETY: as above.
    unsafe { place.write(whole) };
    0
}

fn schema(format: &'static CStr, name: &str, children: Vec<*mut Schema>) -> Schema {
    let name = CString::new(name).unwrap_or_default();
    let mut parts = Box::new(SchemaParts { _name: name, children });
    Schema {
        format: format.as_ptr(),
        name: parts._name.as_ptr(),
        metadata: ptr::null(),
        flags: 0,
        children_count: parts.children.len() as i64,
        children: parts.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_schema),
        private: Box::into_raw(parts).cast(),
    }
}

// SAFETY: consumers call this with a stream that is not released, and a place for an array.
unsafe extern "C" fn get_next(stream: *mut Stream, place: *mut Array) -> c_int {
    // SAFETY: as above.
    let source = unsafe { source(stream) };
    let next = if source.is_read {
        END
    } else {
        source.is_read = true;
        let child = |column: &Column| Box::into_raw(Box::new(column_array(column)));
        let children = source.columns.iter().map(child).collect();
        array(source.rows, Buffers::None, vec![ptr::null()], children)
    };
    // SAFETY: as above.
    unsafe { place.write(next) };
    0
}

fn column_array(column: &Column) -> Array {
    match &column.values {
        Values::Numbers(numbers) => {
            let numbers = numbers.clone();
            let buffers = vec![ptr::null(), numbers.as_ptr().cast()];
            array(numbers.len(), Buffers::Numbers(numbers), buffers, Vec::new())
        }
        Values::Texts(texts) => {
            let (mut ends, mut all) = (vec![0_i32], String::new());
            for text in texts {
                all.push_str(text);
                ends.push(all.len() as i32);
            }
            let buffers = vec![ptr::null(), ends.as_ptr().cast(), all.as_ptr().cast()];
            array(texts.len(), Buffers::Texts(ends, all), buffers, Vec::new())
        }
    }
}

fn array(length: usize, values: Buffers, buffers: Vec<*const c_void>, children: Vec<*mut Array>) -> Array {
    let mut parts = Box::new(ArrayParts { _values: values, buffers, children });
    Array {
        length: length as i64,
        null_count: 0,
        offset: 0,
        buffers_count: parts.buffers.len() as i64,
        children_count: parts.children.len() as i64,
        buffers: parts.buffers.as_mut_ptr(),
        children: parts.children.as_mut_ptr(),
        dictionary: ptr::null_mut(),
        release: Some(release_array),
        private: Box::into_raw(parts).cast(),
    }
}

// SAFETY: consumers call this with a stream.
unsafe extern "C" fn get_last_error(_stream: *mut Stream) -> *const c_char {
    ptr::null()
}

// SAFETY: consumers call this once, with a stream.
unsafe extern "C" fn release_stream(stream: *mut Stream) {
    // SAFETY: as above.
    let stream = unsafe { &mut *stream };
    stream.release = None;
    // SAFETY: `private` is the box of `stream`.
    drop(unsafe { Box::from_raw(stream.private.cast::<Source>()) });
}

// SAFETY: consumers call this once, with a schema.
unsafe extern "C" fn release_schema(schema: *mut Schema) {
    // SAFETY: as above.
    let schema = unsafe { &mut *schema };
    schema.release = None;
    // SAFETY: `private` is the box of `schema`.
    let parts = unsafe { Box::from_raw(schema.private.cast::<SchemaParts>()) };
    for &child in &parts.children {
        // SAFETY: children come from boxes.
        let mut child = unsafe { Box::from_raw(child) };
        if let Some(release) = child.release {
            // SAFETY: the child has not been released.
            unsafe { release(&raw mut *child) };
        }
    }
}

// SAFETY: consumers call this once, with an array.
unsafe extern "C" fn release_array(array: *mut Array) {
    // SAFETY: as above.
    let array = unsafe { &mut *array };
    array.release = None;
    // SAFETY: `private` is the box of `array`.
    let parts = unsafe { Box::from_raw(array.private.cast::<ArrayParts>()) };
    for &child in &parts.children {
        // SAFETY: children come from boxes.
        let mut child = unsafe { Box::from_raw(child) };
        if let Some(release) = child.release {
            // SAFETY: the child has not been released; consumers that move a child out leave none.
            unsafe { release(&raw mut *child) };
        }
    }
}
