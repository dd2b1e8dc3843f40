//! Status codes, and the message of a thread's last failed call.

use std::cell::RefCell;
use std::ffi::c_char;
use std::fmt::{self, Display, Write};
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
    /// The pool could not be built or joined: a size, a node, a setting or a file is not possible, or the kernel refused a call.
    ZONAL_BUILD_FAILED = 3,
    /// What was required (huge pages, binding to nodes) is not available.
    ZONAL_REQUIREMENT_FAILED = 4,
    /// The progress callback stopped the build.
    ZONAL_INTERRUPTED = 5,
    /// Memory ran out. The message has the state of every zone.
    ZONAL_OUT_OF_MEMORY = 6,
    /// The block cannot be freed: it is not allocated, or not as stated. Nothing has changed.
    ZONAL_NOT_ALLOCATED = 7,
    /// Not possible now: blocks are allocated, the call comes from a callback, or another thread was in a call of the pool when
    /// this child was made.
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

/// A status that is not `ZONAL_OK`. Its message is that of the thread.
#[derive(Clone, Copy)]
pub(crate) struct Failure(Status);

impl Failure {
    /// Makes the message the last one of the thread.
    #[cold]
    pub(crate) fn new(status: Status, message: impl Display) -> Self {
        // A thread whose thread-locals are being destroyed has no messages. A text that does not fit is cut.
        MESSAGE
            .try_with(|last| {
                let mut last = last.borrow_mut();
                last.clear();
                write!(last, "{message}").ok();
            })
            .ok();
        Self(status)
    }

    /// Appends to the message.
    pub(crate) fn append(self, more: impl Display) -> Self {
        MESSAGE.try_with(|last| write!(last.borrow_mut(), "{more}").ok()).ok();
        self
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

/// Size of a message with the zero at its end.
const MESSAGE_BYTES: usize = 4096;

/// The message of a thread, which needs no heap: a call may fail because the program has no more memory.
///
/// Invariant: `len < MESSAGE_BYTES`, and the bytes from `len` on are zero.
struct Message {
    len: usize,
    bytes: [u8; MESSAGE_BYTES],
}

impl Message {
    const EMPTY: Self = Self { len: 0, bytes: [0; MESSAGE_BYTES] };

    fn clear(&mut self) {
        self.bytes[..self.len].fill(0);
        self.len = 0;
    }
}

impl Write for Message {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut cut = text.len().min(MESSAGE_BYTES - 1 - self.len);
        while !text.is_char_boundary(cut) {
            cut -= 1;
        }
        let bytes = text.as_bytes()[..cut].iter();
        let places = self.bytes[self.len..].iter_mut();
        places.zip(bytes).for_each(|(place, &byte)| *place = if byte == 0 { b'?' } else { byte });
        self.len += cut;
        if cut == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

thread_local! {
    static MESSAGE: RefCell<Message> = const { RefCell::new(Message::EMPTY) };
}

/// Runs the body of an interface function: stores the message of a failure, and turns a panic into a status.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Failure>) -> Status {
    let Failure(status) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return Status::ZONAL_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown");
            Failure::new(Status::ZONAL_INTERNAL, format_args!("a fault of the library: {text}"))
        }
    };
    status
}

/// Returns the message of this thread's last call that failed: an empty text if none has failed.
///
/// The text has at most 4095 bytes, and is valid until the next call of this thread fails.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_last_error() -> *const c_char {
    MESSAGE.try_with(|last| last.borrow().bytes.as_ptr().cast()).unwrap_or(c"".as_ptr())
}

/// Returns the version of the library, for example `0.1.0`.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
