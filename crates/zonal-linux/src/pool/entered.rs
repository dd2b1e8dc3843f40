//! The shared pools in which this process takes part.
//!
//! A thread that waits for a lock asks here whether the lock's holder has ended. Related files: `pool/members.rs` has a pool's
//! processes, `threads/lock.rs` asks.

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::RwLock;

use crate::error::SharedError;
use crate::memory::origin::around_forks;
use crate::memory::pool_file::{MEMBERS_MAX, PoolFile};
use crate::pool::members::Membership;
use crate::pool::table::forget_changes;
use crate::shared_name::SharedName;
use crate::threads::lock::{forget_names, name_holders};
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
        let membership = Arc::new(Membership::enter(file, processes, name)?);
        if !name_holders(membership.start(), membership.lock_name(), has_ended) {
            return Err(SharedError::Memberships(MEMBERS_MAX));
        }
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

/// Whether the part with this name, which holds the lock at this address, has ended.
///
/// A process leaves without a lock. The function needs no heap, because signal handlers wait for locks too.
fn has_ended(lock: usize, name: u32) -> bool {
    // A thread that changes the list holds no lock of a pool, is soon done, and counts as inside for its handlers.
    let Some(memberships) = memberships().and_then(RwLock::try_read) else { return false };
    // In a child made by `fork`, the holder may have been a thread of the parent.
    memberships.iter().any(|one| one.is_here() && one.has_lock(lock) && one.has_ended(name))
}

extern "C" fn forget_parent() {
    forget_names();
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
    use zonal::platform::RawLock as _;
    use zonal::units::PageCount;

    use super::*;
    use crate::memory::pool_file::{FilePlace, FileSizes};
    use crate::threads::lock::SleepingLock;

    const PROCESSES: u8 = 4;
    /// Offset of a lock in the file, behind the header.
    const LOCK_AT: usize = 32 << 10;

    fn new_file() -> PoolFile {
        let sizes = FileSizes { huge_page: None, meta: 64 << 10, file: 64 << 10 };
        let file = PoolFile::create(&FilePlace::Memory, sizes, "").unwrap();
        file.publish().unwrap();
        file
    }

    fn join(file: &PoolFile) -> Arc<Entered> {
        let file = PoolFile::of_descriptor(file.descriptor()).unwrap().0;
        Entered::enter(file, PROCESSES, None).unwrap()
    }

    fn leave(part: &Arc<Entered>) {
        part.leave(|_| PageCount::ZERO);
    }

    fn lock(part: &Entered) -> &SleepingLock {
        // SAFETY: the offset is in the mapping.
        let lock = unsafe { part.file().meta().base().byte_add(LOCK_AT) };
        // SAFETY: it is aligned, and an atomic, for which all values are valid; the mapping lives as long as `part`.
        unsafe { lock.cast().as_ref() }
    }

    /// A member that watches: in each order of joins and leaves, a name whose part has ended is never that of another one, in
    /// the same place or another.
    #[test]
    fn no_name_comes_again_in_any_order_of_parts() {
        const STEPS: u32 = 6;
        for order in 0..3_u32.pow(STEPS) {
            let file = new_file();
            let watcher = join(&file);
            let (mut living, mut names) = (Vec::new(), Vec::new());
            for step in 0..STEPS {
                match order / 3_u32.pow(step) % 3 {
                    0 if living.len() + 1 < usize::from(PROCESSES) => {
                        let part = join(&file);
                        assert!(!names.contains(&part.lock_name()), "order {order}, step {step}");
                        names.push(part.lock_name());
                        living.push(part);
                    }
                    1 if !living.is_empty() => leave(&living.remove(0)),
                    2 => living.pop().iter().for_each(leave),
                    _ => {}
                }
                for &name in &names {
                    let lives = living.iter().any(|part| part.lock_name() == name);
                    assert_eq!(watcher.has_ended(name), !lives, "order {order}, step {step}");
                }
            }
        }
    }

    /// What a holder may do while a thread that waits for its lock does not run, before and after that thread asks whether the
    /// holder has ended.
    #[test]
    fn no_waiter_takes_a_lock_from_a_process_that_lives() {
        // It joins in the place that it had, or in an earlier one that has become free.
        let steps = ["unlock", "leave", "join", "lock"];
        for frees_earlier in [false, true] {
            for (end, asks) in (0..=steps.len()).flat_map(|end| (0..=end).map(move |asks| (end, asks))) {
                let file = new_file();
                let (waiter, earlier) = (join(&file), join(&file));
                let mut holder = Some(join(&file));
                assert!(lock(holder.as_ref().unwrap()).try_lock());
                let mut go = |step: &&str| match (*step, &holder) {
                    ("unlock", Some(part)) => lock(part).unlock(),
                    ("lock", Some(part)) => assert!(lock(part).try_lock()),
                    ("leave", Some(part)) => {
                        leave(part);
                        holder = None;
                        if frees_earlier {
                            leave(&earlier);
                        }
                    }
                    _ => holder = Some(join(&file)),
                };
                let mut answer = None;
                let is_taken = lock(&waiter).take_from_the_dead(|at, name| {
                    steps[..asks].iter().for_each(&mut go);
                    answer = Some(has_ended(at, name));
                    steps[asks..end].iter().for_each(&mut go);
                    answer == Some(true)
                });
                assert_eq!(answer, Some(asks >= 2), "it has left after step 2; {asks} of {end}");
                assert!(!is_taken, "asked after {asks} of {end} steps");
            }
        }
    }

    #[test]
    fn a_lock_is_taken_from_a_process_that_ended_with_it() {
        let file = new_file();
        let (waiter, holder) = (join(&file), join(&file));
        assert!(lock(&holder).try_lock());
        assert!(!lock(&waiter).take_from_the_dead(has_ended));
        leave(&holder);
        assert!(lock(&waiter).take_from_the_dead(has_ended) && lock(&waiter).is_torn());
    }
}
