//! What all pools of this process may come to use together.
//!
//! The kernel promises nobody ordinary memory before it is touched, so that each pool alone may fit while all
//! of them do not. Neighbours: `memory.rs` counts its pool in, `builder.rs` compares and warns.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::limits::Available;
use crate::mapping::os_page_bytes;

/// Bytes of all that live. Relaxed throughout: a sum for a warning.
static TOTAL: AtomicU64 = AtomicU64::new(0);

/// Bytes that a pool may use, counted while this lives.
#[derive(Debug)]
pub(crate) struct Promised(u64);

impl Promised {
    pub(crate) fn count(bytes: u64) -> Self {
        TOTAL.fetch_add(bytes, Relaxed);
        Self(bytes)
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.0, Relaxed);
    }
}

/// What all pools together may use, and what this process can have in all, if that is less.
pub(crate) fn excess(available: Available, root: &Path) -> Option<(u64, u64)> {
    let (total, most) = (TOTAL.load(Relaxed), available.bytes.saturating_add(resident_bytes(root)));
    (total > most).then_some((total, most))
}

/// Bytes that this process has already: it would not need them again. 0 where the system does not say.
fn resident_bytes(root: &Path) -> u64 {
    let text = fs::read_to_string(root.join("proc/self/statm")).unwrap_or_default();
    let mut pages = text.split_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * os_page_bytes() as u64
}
