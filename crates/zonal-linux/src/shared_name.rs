//! Names in the file of a shared pool: those of processes whose blocks outlive them, and those of roots.
//!
//! Related files: `memory/pool_file.rs` has the cells, `pool/members.rs` names processes, `pool/keeping.rs` has the interface.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

const WORDS: usize = 4;

/// The name of a process or a root in a shared pool: 1 to 32 bytes of UTF-8 without control characters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SharedName([u8; SharedName::BYTES_MAX]);

impl SharedName {
    /// The most bytes that a name can have.
    pub const BYTES_MAX: usize = 8 * WORDS;

    /// Creates a name; returns `None` if the text is empty, too long, or has control characters.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::BYTES_MAX];
        let is_name = (1..=bytes.len()).contains(&text.len()) && !text.chars().any(char::is_control);
        if !is_name {
            return None;
        }
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..end]).unwrap_or_default() // another process may have damaged it
    }
}

impl fmt::Display for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// A name in the file. Who may write it, and when it is valid, other cells say.
#[repr(C)]
pub(crate) struct NameCells([AtomicU64; WORDS]);

impl NameCells {
    pub(crate) fn load(&self) -> SharedName {
        let mut bytes = [0; SharedName::BYTES_MAX];
        for (part, cell) in bytes.as_chunks_mut().0.iter_mut().zip(&self.0) {
            *part = cell.load(Ordering::Relaxed).to_ne_bytes(); // relaxed: other cells order the name
        }
        SharedName(bytes)
    }

    pub(crate) fn store(&self, name: SharedName) {
        for (&part, cell) in name.0.as_chunks().0.iter().zip(&self.0) {
            cell.store(u64::from_ne_bytes(part), Ordering::Relaxed); // relaxed: as above
        }
    }
}
