//! The lock of user space: spins briefly, then sleeps, since its holder may be preempted.
//!
//! Taking it is one exchange and freeing it one plain store, which is what regions of zones pay
//! on each visit. A lock that wakes its waiters (futex, parking lot) needs a second exchange to
//! learn of them; here those who wait long look again by themselves after a short sleep.

use std::ffi::c_long;
use std::sync::atomic::{AtomicU32, Ordering};

use zonal::platform::RawLock;

use super::reentrancy;

/// Looks at a held lock that only spin: longer than zones are held, shorter than a time slice.
const LOOKS_SPINNING: u32 = 100;
/// Looks after which the processor was offered to others and the holder is off its own.
const LOOKS_YIELDING: u32 = 110;
/// Sleep between all further looks, in nanoseconds.
const NAP_NS: c_long = 50_000;

/// A lock for short sections whose holder may lose its processor at any time. For pools alone: while a thread holds
/// any, its requests do not wait, as if they came from a signal handler.
///
/// Invariant: 1 while held, else 0. Zero bytes are a free lock: the platform promises it to the core.
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
            // Relaxed: a look only; the exchange acquires.
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

/// Sleeps for a moment, or until a signal: to sleep for what is left then, as `std` does, adds the kernel's
/// slack again each time, and never ends under signals that come faster.
pub(crate) fn nap() {
    let moment = libc::timespec { tv_sec: 0, tv_nsec: NAP_NS };
    // SAFETY: the time is lawful and outlives the call; what is left of it is not asked for.
    unsafe { libc::nanosleep(&moment, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    #[test]
    fn a_lock_that_is_freed_too_often_hinders_no_request() {
        SleepingLock::new().unlock();
        assert!(!reentrancy::is_inside());
        let lock = SleepingLock::new();
        lock.lock();
        assert!(reentrancy::is_inside());
        lock.unlock();
        assert!(!reentrancy::is_inside());
    }

    #[test]
    fn excludes() {
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
    fn waits_for_a_holder_that_sleeps() {
        let lock = SleepingLock::new();
        lock.lock();
        std::thread::scope(|s| {
            let waiter = s.spawn(|| {
                lock.lock();
                lock.unlock();
            });
            // Long enough for the waiter to go through all ways of waiting; nothing depends on it.
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiter.is_finished());
            lock.unlock();
        });
    }
}
