//! The lock that guards the processes in a shared pool's table: processes join and leave only under it.
//!
//! It is a lock of a byte in the pool's file, which the kernel releases when its process ends. Related files: `pool/members.rs`
//! has the table.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::SharedError;
use crate::pool::between::{TABLE_AT, set_lock, try_lock};
use crate::threads::lock::nap;

/// How long a process waits for the table before it gives up.
const TABLE_WAIT: Duration = Duration::from_secs(10);

/// The table of processes, locked until dropped.
pub(super) struct Table<'a> {
    life: BorrowedFd<'a>,
    _alone: Alone,
}

/// Whether a thread of this process changes a table; the file's locks are those of the process. A child made by `fork`, which
/// does not have that thread, begins with `false`.
static CHANGES: AtomicBool = AtomicBool::new(false);

/// The right to change tables in this process, until dropped.
struct Alone;

impl Alone {
    fn try_begin() -> Option<Self> {
        // Acquire: takes what the last thread has changed; pairs with `Alone::drop`.
        (!CHANGES.swap(true, Ordering::Acquire)).then(|| Self) // not `then_some`: dropping it ends it
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        CHANGES.store(false, Ordering::Release); // Release: publishes what changed; pairs with `Alone::try_begin`.
    }
}

impl<'a> Table<'a> {
    /// Waits for the lock.
    pub(super) fn lock(life: BorrowedFd<'a>) -> Result<Self, SharedError> {
        let until = Instant::now() + TABLE_WAIT;
        loop {
            if let Some(table) = Self::try_lock(life)? {
                return Ok(table);
            }
            if Instant::now() > until {
                return Err(SharedError::Busy);
            }
            nap();
        }
    }

    /// Returns `None` while another thread of any process has the table.
    pub(super) fn try_lock(life: BorrowedFd<'a>) -> Result<Option<Self>, SharedError> {
        let Some(alone) = Alone::try_begin() else { return Ok(None) };
        let is_locked = try_lock(life, TABLE_AT).map_err(|source| SharedError::Unusable { source })?;
        Ok(is_locked.then(|| Self { life, _alone: alone }))
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        _ = set_lock(self.life, TABLE_AT, libc::F_UNLCK);
    }
}

/// Lets this process change tables again, in a child made by `fork`.
pub(super) fn forget_changes() {
    CHANGES.store(false, Ordering::Relaxed); // relaxed: the child has one thread
}
