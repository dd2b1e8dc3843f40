//! The lock for user space. It spins briefly and then sleeps, because its holder may be preempted.
//!
//! Every operation on a zone's free areas locks and unlocks once, so both must be cheap: locking is one
//! compare-exchange, and unlocking is one plain store. A lock that wakes its waiters (futex, parking lot) needs a
//! second exchange to detect them. The waiters of this lock instead check again after a short sleep.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use zonal::platform::RawLock;

use super::reentrancy;

/// Checks of a held lock that spin. They take longer than a zone is usually locked, but less than a time slice.
const LOOKS_SPINNING: u32 = 100;
/// Checks after which waiters sleep instead of yielding, because the holder is evidently not running.
const LOOKS_YIELDING: u32 = 110;
/// Sleep between all later checks, in nanoseconds.
const NAP_NS: c_long = 50_000;

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
        // Release: publishes the holder's writes; pairs with `SleepingLock::take`.
        self.0.store(0, Ordering::Release);
        reentrancy::leave();
    }
}

impl SleepingLock {
    #[inline]
    fn take(&self) -> bool {
        // Acquire: takes the last holder's writes; pairs with `SleepingLock::unlock`.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
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
                _ => nap(),
            }
            looks = looks.saturating_add(1);
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
