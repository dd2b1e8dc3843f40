//! The lock for user space: it spins briefly, then sleeps, because its holder may be preempted.
//!
//! Locking is one exchange and unlocking one plain store, which every operation on a zone's free areas pays. A lock
//! that wakes its waiters (futex, parking lot) needs a second exchange to detect them; here waiters check again
//! after a short sleep.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use zonal::platform::RawLock;

use super::reentrancy;

/// Checks of a held lock that spin: longer than zones are locked, shorter than a time slice.
const LOOKS_SPINNING: u32 = 100;
/// Checks after which waiters no longer yield the processor but sleep, because the holder is not running.
const LOOKS_YIELDING: u32 = 110;
/// Sleep between all further checks, in nanoseconds.
const NAP_NS: c_long = 50_000;

/// A lock for short sections whose holder may be preempted at any time. Only for pools: while a thread holds any
/// such lock, its requests do not wait, as if they came from a signal handler.
///
/// Invariant: 1 while held, else 0. Zero bytes are a free lock, as the platform guarantees to the core.
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
        self.0.store(0, Ordering::Release); // pairs with the acquire in `take`
        reentrancy::leave();
    }
}

impl SleepingLock {
    #[inline]
    fn take(&self) -> bool {
        // Acquire pairs with the release in `unlock`.
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0_u32;
        loop {
            // Relaxed: only a check; the exchange acquires.
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

/// Sleeps for a moment, or until a signal. It does not resume the sleep after a signal as `std` does, because that
/// adds the kernel's timer slack each time, and never ends if signals come faster.
pub(crate) fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: the time is valid and outlives the call; the remaining time is not requested.
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
                        // Relaxed: the lock orders the two halves.
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
            // Long enough for the waiter to go through all ways of waiting; no check depends on it.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            lock.unlock();
        });
    }
}
