//! The lock for user space. It spins briefly and then sleeps, because its holder may be preempted.
//!
//! Every operation on a zone's free areas locks and unlocks once, so both must be cheap: locking is one
//! compare-exchange, and unlocking is one plain store. A lock that wakes its waiters (futex, parking lot) needs a
//! second exchange to detect them. The waiters of this lock instead check again after a short sleep.

use std::ffi::c_long;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use zonal::platform::RawLock;

use super::reentrancy;

/// Checks of a held lock that spin. They take longer than a zone is usually locked, but less than a time slice.
const LOOKS_SPINNING: u32 = 100;
/// Checks after which waiters sleep instead of yielding, because the holder is evidently not running.
const LOOKS_YIELDING: u32 = 110;
/// Sleep between all later checks, in nanoseconds.
const NAP_NS: c_long = 50_000;
/// Number of looks between two checks whether the holder has died: about 2 ms.
const LOOKS_A_DEATH: u32 = 40;

/// A lock for short sections whose holder may be preempted at any time. Only pools use it. While a thread holds any
/// such lock, its requests do not wait, as if they came from a signal handler.
///
/// Invariant: 1 while held, else 0. Zeroed memory is an unlocked lock, as the core requires of a platform.
#[derive(Debug)]
#[repr(transparent)]
pub struct SleepingLock(AtomicU32);

impl RawLock for SleepingLock {
    fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    fn lock(&self) {
        reentrancy::enter();
        if !self.take() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        reentrancy::enter();
        let taken = self.take();
        if !taken {
            reentrancy::leave();
        }
        taken
    }

    #[inline]
    fn unlock(&self) {
        // Release: publishes the holder's writes; pairs with `take`, `take_from_the_dead`.
        self.0.store(0, Ordering::Release);
        reentrancy::leave();
    }

    fn is_torn(&self) -> bool {
        self.0.load(Ordering::Relaxed) & TORN != 0 // relaxed: only the holder asks
    }

    fn set_repaired(&self) {
        self.0.fetch_and(!TORN, Ordering::Relaxed); // relaxed: a later holder takes it with the lock
    }
}

/// Bit of a lock whose holder died, until what it guards is repaired. The other bits are the holder's process.
const TORN: u32 = 1 << 31;
/// The holder's name in a process that shares no pool. All other names are larger, and below [`TORN`].
const UNNAMED: u32 = 1;

/// The name with which this process holds locks.
static NAME: AtomicU32 = AtomicU32::new(UNNAMED);
/// Whether the process with this name, which holds a lock that this process waits for, has died.
static HAS_DIED: OnceLock<fn(u32) -> bool> = OnceLock::new();

/// Returns the name with which this process holds locks from now on, made from a random number at the first call. Waits for a
/// lock then call `has_died` now and then with the name of the lock's holder.
pub(crate) fn name_holders(random: u32, has_died: fn(u32) -> bool) -> u32 {
    HAS_DIED.get_or_init(|| has_died);
    let name = (random & !TORN).max(UNNAMED + 1);
    // Relaxed: a lock taken before has the other name, for which no thread waits long.
    NAME.compare_exchange(UNNAMED, name, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|found| found, |_| name)
}

/// Takes this process's name away, in a child made by `fork`.
pub(crate) fn forget_name() {
    NAME.store(UNNAMED, Ordering::Relaxed); // relaxed: the child has one thread
}

impl SleepingLock {
    #[inline]
    fn take(&self) -> bool {
        let name = NAME.load(Ordering::Relaxed); // relaxed: it does not change while the process shares a pool
        // Acquire: takes the last holder's writes; pairs with `SleepingLock::unlock`.
        self.0.compare_exchange(0, name, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock from a process that died while it held it. The lock is then torn.
    fn take_from_the_dead(&self) -> bool {
        let Some(has_died) = HAS_DIED.get() else { return false };
        let found = self.0.load(Ordering::Relaxed); // relaxed: the exchange compares it
        let (holder, own) = (found & !TORN, NAME.load(Ordering::Relaxed));
        if holder <= UNNAMED || holder == own || !has_died(holder) {
            return false;
        }
        let torn = own | TORN;
        // Acquire: takes what the dead process has written; pairs with `SleepingLock::unlock`.
        self.0.compare_exchange(found, torn, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0_u32;
        loop {
            // Relaxed: only a check; the exchange in `take` acquires.
            if self.0.load(Ordering::Relaxed) == 0 && self.take() {
                return;
            }
            match looks {
                0..LOOKS_SPINNING => std::hint::spin_loop(),
                LOOKS_SPINNING..LOOKS_YIELDING => std::thread::yield_now(),
                _ if looks.is_multiple_of(LOOKS_A_DEATH) && self.take_from_the_dead() => return,
                _ => nap(),
            }
            looks = looks.checked_add(1).unwrap_or(LOOKS_YIELDING); // never stops to look for deaths
        }
    }
}

/// Sleeps for a moment, or until a signal. Unlike `std`, this does not resume the sleep after a signal. Resuming adds
/// the kernel's timer slack each time, and never ends if signals arrive faster than that.
pub(crate) fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: the time is valid and outlives the call. A null pointer means that the remaining time is not requested.
    unsafe { libc::nanosleep(&moment, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    #[test]
    fn unlocking_twice_does_not_block_later_requests() {
        SleepingLock::new().unlock();
        assert!(!reentrancy::is_inside());
        let lock = SleepingLock::new();
        lock.lock();
        assert!(reentrancy::is_inside());
        lock.unlock();
        assert!(!reentrancy::is_inside());
    }

    #[test]
    fn lock_excludes_other_threads() {
        const ROUNDS: u64 = if cfg!(miri) { 100 } else { 10_000 };
        let lock = SleepingLock::new();
        let count = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..ROUNDS {
                        lock.lock();
                        // Relaxed: the lock orders the load and the store.
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                        lock.unlock();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * ROUNDS);
        assert!(lock.try_lock());
        assert!(!lock.try_lock());
        lock.unlock();
    }

    #[test]
    fn lock_waits_for_a_holder_that_sleeps() {
        let lock = SleepingLock::new();
        lock.lock();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                lock.lock();
                lock.unlock();
            });
            // This is long enough for the waiter to spin, yield and sleep. The result of the test does not depend on
            // it.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            lock.unlock();
        });
    }
}
