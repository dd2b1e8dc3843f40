//! The shared pools in which this process takes part.
//!
//! A thread that waits for a lock asks here whether the lock's holder has died. Related files: `pool/members.rs` has a pool's
//! processes, `threads/lock.rs` asks.

use std::io;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::RwLock;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::SharedError;
use crate::memory::origin::around_forks;
use crate::memory::pool_file::PoolFile;
use crate::pool::members::{Membership, forget_changes};
use crate::shared_name::SharedName;
use crate::threads::lock::{forget_name, name_holders};
use crate::threads::reentrancy::Inside;

type Memberships = RwLock<Vec<Arc<Membership>>>;

/// The memberships of this process. A child made by `fork` begins another list, because a thread that it does not have may
/// have been changing this one.
static MEMBERSHIPS: AtomicPtr<Memberships> = AtomicPtr::new(ptr::null_mut());

/// A membership that is listed until its last owner drops it. Readers of the list, which may be signal handlers, therefore
/// never drop a membership.
#[derive(Debug)]
pub(super) struct Entered(Arc<Membership>);

impl Entered {
    /// Takes part in the pool of a file, as [`Membership::enter`] does.
    pub(super) fn enter(
        file: PoolFile,
        processes: u8,
        name: Option<SharedName>,
    ) -> Result<Arc<Self>, SharedError> {
        static IS_DONE: AtomicBool = AtomicBool::new(false);
        // Before the table is locked for the first time, which a child must not inherit.
        // SAFETY: the handler only stores to atomics, which is async-signal-safe and can be repeated.
        unsafe { around_forks(None, None, forget_parent, &IS_DONE) };
        let lock_name = name_holders(random().map_err(|source| SharedError::Unusable { source })?, has_died);
        let membership = Arc::new(Membership::enter(file, processes, name, lock_name, is_own)?);
        let _inside = Inside::enter(); // a handler that waits for a dead process's lock could not read the list
        made_memberships().write().push(Arc::clone(&membership));
        Ok(Arc::new(Self(membership)))
    }
}

impl Deref for Entered {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.0
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if !self.is_here() {
            // SAFETY: the reference is that of the parent's list, which a child made by `fork` never reads or drops.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(&self.0)) };
        } else if let Some(memberships) = memberships() {
            let _inside = Inside::enter(); // as in `enter`
            memberships.write().retain(|one| !Arc::ptr_eq(one, &self.0));
        }
    }
}

/// Whether the process with this name, which holds a lock that this process waits for, has died: no living member has the name.
///
/// A process writes its name before it takes its first lock, and leaves without one. The function needs no heap, because signal
/// handlers wait for locks too.
fn has_died(lock_name: u32) -> bool {
    // A thread that changes the list holds no lock of a pool, is soon done, and counts as inside for its handlers.
    let Some(memberships) = memberships().and_then(RwLock::try_read) else { return false };
    let mut here = memberships.iter().filter(|one| one.is_here()).peekable();
    // In a child made by `fork`, the holder may have been a thread of the parent.
    here.peek().is_some() && !here.any(|one| one.has_living(lock_name))
}

/// Whether this process is the one at `at` in a pool's file, by an earlier membership.
fn is_own(file: &PoolFile, at: usize) -> bool {
    let Some(memberships) = memberships().map(RwLock::read) else { return false };
    memberships.iter().any(|one| one.is_here() && one.is_at(file, at))
}

/// Returns a random number. Random states of the standard library would be the same in all children of a thread.
fn random() -> io::Result<u32> {
    let mut bytes = [0; size_of::<u32>()];
    // So few bytes come at once.
    retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()))?;
    Ok(u32::from_ne_bytes(bytes))
}

extern "C" fn forget_parent() {
    forget_name();
    forget_changes();
    MEMBERSHIPS.store(ptr::null_mut(), Ordering::Relaxed); // relaxed: the child has one thread
}

/// Returns the memberships of this process, if it has had any.
fn memberships() -> Option<&'static Memberships> {
    // Acquire: takes the list; pairs with `made_memberships`.
    let list = MEMBERSHIPS.load(Ordering::Acquire);
    // SAFETY: it is null, or a list that is never freed.
    unsafe { list.as_ref() }
}

/// Returns the memberships of this process, in a list that the first call makes.
fn made_memberships() -> &'static Memberships {
    memberships().unwrap_or_else(|| {
        let made = ptr::from_ref::<Memberships>(Box::leak(Box::default())).cast_mut();
        // AcqRel: takes the list that another thread has made first, publishes this one; pairs with `memberships`.
        _ = MEMBERSHIPS.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        memberships().expect("a list was made")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn only_this_process_may_have_its_number_in_a_file() {
        let pool = Pool::builder().size(16 << 20).shared_by_descriptor().build().unwrap();
        let file = || PoolFile::of_descriptor(pool.shared_file().unwrap()).unwrap().0;
        let name = name_holders(0, has_died); // the number that the pool has drawn
        let enter = |is_own| Membership::enter(file(), 8, None, name, is_own);
        assert!(matches!(enter(|_, _| false), Err(SharedError::SameNumber)));
        drop(enter(is_own).unwrap());
        assert_eq!([0, 1].map(|at| is_own(&file(), at)), [true, false]);
    }
}
