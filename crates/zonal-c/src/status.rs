//! Status codes, and the message of the last failed call of a thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::upper_case_acronyms, non_camel_case_types)]
pub enum zonal_status {
    /// The call succeeded.
    ZONAL_OK = 0,
    /// An argument is not valid: null, a wrong structure size, an unknown value.
    ZONAL_INVALID_ARGUMENT = 1,
    /// The handle is not that of a pool, or the pool has been closed.
    ZONAL_NOT_A_POOL = 2,
    /// The pool could not be built: a size, a node or a setting is not possible, or the kernel refused a call.
    ZONAL_BUILD_FAILED = 3,
    /// What was required (huge pages, binding to nodes) is not available.
    ZONAL_REQUIREMENT_FAILED = 4,
    /// The progress callback stopped the build.
    ZONAL_INTERRUPTED = 5,
    /// Memory ran out. The message has the state of every zone.
    ZONAL_OUT_OF_MEMORY = 6,
    /// The block cannot be freed: it is not allocated, or not as stated. Nothing has changed.
    ZONAL_NOT_ALLOCATED = 7,
    /// The pool cannot be closed now: blocks are allocated, or the call comes from within a call of the pool.
    ZONAL_BUSY = 8,
    /// The structures of the pool do not agree.
    ZONAL_INCONSISTENT = 9,
    /// Too many calls of this thread are in progress: calls from callbacks of calls.
    ZONAL_REENTERED = 10,
    /// A fault of the library itself. The pool may be unusable.
    ZONAL_INTERNAL = 11,
    /// The pool cannot grow or shrink as much as was asked for.
    ZONAL_RESIZE_FAILED = 12,
    /// The kernel does not say what was asked for.
    ZONAL_UNKNOWN = 13,
    /// The pool cannot be published at the path.
    ZONAL_PUBLISH_FAILED = 14,
}

pub(crate) use zonal_status as Status;

/// A status that is not `ZONAL_OK`, with its message.
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: Status, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }

    pub(crate) fn invalid(message: impl Display) -> Self {
        Self::new(Status::ZONAL_INVALID_ARGUMENT, message)
    }
}

/// Returns an error if flags other than the known ones are set.
pub(crate) fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(Failure::invalid(format_args!("flags is {flags:#x}, of which {known:#x} are known")))
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

fn set_message(message: String) {
    let text = CString::new(message.replace('\0', "?")).unwrap_or_default();
    // A thread whose thread-locals are being destroyed has no messages.
    MESSAGE.try_with(|last| *last.borrow_mut() = text).ok();
}

/// Runs the body of a function of the interface: stores the message of a failure, and turns a panic into a status.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::ZONAL_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Failure::new(Status::ZONAL_INTERNAL, format_args!("a fault of the library: {text}"))
        }
    };
    set_message(failure.message);
    failure.status
}

/// Returns the message of the last call of this thread that failed: an empty text if none has failed.
///
/// The text is valid until the next call of this thread fails.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_last_error() -> *const c_char {
    MESSAGE.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, for example `0.1.0`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
