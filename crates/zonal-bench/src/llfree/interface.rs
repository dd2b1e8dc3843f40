//! The part of LLFree's C interface that is called. Source: `include/llfree.h` in <https://github.com/luhsra/llfree-c>.
//!
//! Structures are passed by value, so their fields have the order and the types of that header.

use std::ffi::{c_uint, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

/// Largest number of classes.
pub(super) const CLASSES_MAX: usize = 8;
/// All frames are free at the start.
pub(super) const ALL_FREE: u8 = 0;
/// Error code for success.
pub(super) const OK: u8 = 0;

/// A number that may be absent: of a frame, or of a local slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Optional {
    pub(super) is_present: bool,
    pub(super) value: u64,
}

impl Optional {
    pub(super) const NONE: Self = Self { is_present: false, value: 0 };

    pub(super) const fn some(value: u64) -> Self {
        Self { is_present: true, value }
    }
}

/// The result of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    pub(super) frame: u64,
    pub(super) class: u8,
    pub(super) error: u8,
}

/// A block's order, its class, and the caller's local slot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) order: u8,
    pub(super) class: u8,
    pub(super) local: Optional,
}

/// How well a tree suits a request.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Policy {
    pub(super) kind: c_uint,
    pub(super) priority: u8,
}

/// Kinds of a [`Policy`].
pub(super) const MATCH: c_uint = 0;
pub(super) const STEAL: c_uint = 1;
pub(super) const DEMOTE: c_uint = 2;

/// A class and the number of its local slots.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassSlots {
    pub(super) class: u8,
    pub(super) count: usize,
}

/// The classes of an allocator.
#[repr(C)]
pub(super) struct Classes {
    pub(super) classes: [ClassSlots; CLASSES_MAX],
    pub(super) count: usize,
    pub(super) default: u8,
    /// Compares a request's class with a tree's class and free frames.
    pub(super) policy: extern "C" fn(u8, u8, usize) -> Policy,
}

/// Bytes that the allocator and its buffers need.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) allocator: usize,
    pub(super) local: usize,
    pub(super) trees: usize,
    pub(super) lower: usize,
}

/// The buffers of an allocator, each aligned to a cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) local: *mut u8,
    pub(super) trees: *mut u8,
    pub(super) lower: *mut u8,
}

/// Free frames, free blocks of 2 MiB, and free trees.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stats {
    pub(super) frames: usize,
    pub(super) huge: usize,
    pub(super) trees: usize,
}

/// A loaded library's functions.
pub(super) struct Functions {
    // SAFETY: callers pass valid classes.
    pub(super) metadata_size: unsafe extern "C" fn(*const Classes, usize) -> Sizes,
    // SAFETY: callers pass memory and buffers as large as `metadata_size` says.
    pub(super) init: unsafe extern "C" fn(*mut c_void, usize, u8, Buffers, *const Classes) -> Outcome,
    // SAFETY: callers pass an allocator's state.
    pub(super) get: unsafe extern "C" fn(*mut c_void, Optional, Request) -> Outcome,
    // SAFETY: callers pass an allocator's state.
    pub(super) put: unsafe extern "C" fn(*mut c_void, u64, Request) -> Outcome,
    // SAFETY: callers pass an allocator's state.
    pub(super) stats: unsafe extern "C" fn(*const c_void) -> Stats,
    /// The code of the functions. It is dropped last.
    _library: Library,
}

/// Names of the functions, in the order of [`Functions`]. The last one is not called: libraries that lack it have an older
/// interface, with other parameters.
const NAMES: [&str; 6] =
    ["llfree_metadata_size", "llfree_init", "llfree_get", "llfree_put", "llfree_stats", "llfree_change_tree"];

/// Why a library is not LLFree.
#[derive(Debug, thiserror::Error)]
pub enum LlfreeError {
    /// The path does not name a file.
    #[error("{}: {what}; name a shared library with LLFree's C interface", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        what: &'static str,
    },
    /// The system's loader refuses the file.
    #[error("{}: it cannot be loaded as a shared library: {source}", path.display())]
    NotLoaded {
        /// The path.
        path: PathBuf,
        /// The loader's reason.
        source: libloading::Error,
    },
    /// The library lacks functions.
    #[error("{}: it lacks {}; LLFree's C interface (llfree.h) has them", path.display(), names.join(", "))]
    Lacks {
        /// The path.
        path: PathBuf,
        /// The missing functions.
        names: Vec<&'static str>,
    },
}

impl Functions {
    /// Loads a library, which stays loaded while the functions exist.
    ///
    /// # Safety
    /// The library's functions must have LLFree's interface if they have its names.
    pub(super) unsafe fn load(path: &Path) -> Result<Self, LlfreeError> {
        let named = || path.to_owned();
        if !path.is_file() {
            let what = if path.is_dir() { "this is a folder" } else { "there is no such file" };
            return Err(LlfreeError::NotAFile { path: named(), what });
        }
        // The loader searches its own folders for a name without a separator.
        let full = std::path::absolute(path).unwrap_or_else(|_| named());
        // SAFETY: the user names the library; what runs when it is loaded is up to the library.
        let library = unsafe { Library::new(full) };
        let library = library.map_err(|source| LlfreeError::NotLoaded { path: named(), source })?;
        // SAFETY: the address is not used.
        let has = |name: &str| unsafe { library.get::<*const c_void>(name) }.is_ok();
        let names: Vec<&str> = NAMES.into_iter().filter(|name| !has(name)).collect();
        if !names.is_empty() {
            return Err(LlfreeError::Lacks { path: named(), names });
        }
        let of = Symbols { library: &library, path };
        let [metadata_size, init, get, put, stats, _] = NAMES;
        // SAFETY: the caller guarantees the function's type.
        let metadata_size = unsafe { of.get(metadata_size) }?;
        // SAFETY: as above.
        let init = unsafe { of.get(init) }?;
        // SAFETY: as above.
        let get = unsafe { of.get(get) }?;
        // SAFETY: as above.
        let put = unsafe { of.get(put) }?;
        // SAFETY: as above.
        let stats = unsafe { of.get(stats) }?;
        Ok(Self { metadata_size, init, get, put, stats, _library: library })
    }
}

/// The symbols of a library.
struct Symbols<'a> {
    library: &'a Library,
    path: &'a Path,
}

impl Symbols<'_> {
    /// Returns a function.
    ///
    /// # Safety
    /// A function with this name must have the type `F`.
    unsafe fn get<F: Copy>(&self, name: &'static str) -> Result<F, LlfreeError> {
        // SAFETY: the caller guarantees the type.
        let symbol = unsafe { self.library.get::<F>(name) };
        let lacks = |_| LlfreeError::Lacks { path: self.path.to_owned(), names: vec![name] };
        symbol.map(|symbol| *symbol).map_err(lacks)
    }
}
