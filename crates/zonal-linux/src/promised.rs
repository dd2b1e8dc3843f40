//! What all pools of this process may come to use together.
//!
//! The kernel promises nobody ordinary memory before it is touched, so that each pool alone may fit while all
//! of them do not. Neighbours: `memory.rs` counts its pool in, `builder.rs` compares and warns.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::limits::Available;
use crate::mapping::resident_bytes;
use crate::origin::Origin;
use crate::sync::held;

/// Addresses of all pools that live.
static RANGES: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());

/// Memory that a pool may use, counted while this lives.
#[derive(Debug)]
pub(crate) struct Promised(Vec<Range<usize>>);

impl Promised {
    pub(crate) fn count(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges: Vec<_> = ranges.collect();
        if let Some(mut all) = all() {
            all.extend(ranges.iter().cloned());
        }
        Self(ranges)
    }
}

impl Drop for Promised {
    fn drop(&mut self) {
        if let Some(mut all) = all() {
            all.retain(|range| !self.0.contains(range));
        }
    }
}

/// `None` in a child where a thread that it does not have holds the lock: what is left out serves a warning.
fn all() -> Option<MutexGuard<'static, Vec<Range<usize>>>> {
    match RANGES.try_lock() {
        Ok(all) => Some(all),
        Err(TryLockError::Poisoned(all)) => Some(all.into_inner()),
        Err(TryLockError::WouldBlock) if Origin::here().is_first() => Some(held(RANGES.lock())),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// What all pools together may use, and what they can have in all, if that is less.
pub(crate) fn excess(available: Available) -> Option<(u64, u64)> {
    let all = all()?;
    let total: usize = all.iter().map(Range::len).sum();
    if total as u64 <= available.bytes {
        return None;
    }
    // What pools have already is not among what is available.
    let resident: usize = all.iter().map(|range| resident_bytes(range.clone())).sum();
    let most = available.bytes.saturating_add(resident as u64);
    (total as u64 > most).then_some((total as u64, most))
}
