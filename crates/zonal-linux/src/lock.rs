//! The zone lock of user space: spins briefly, then sleeps, since its holder may be preempted.

use std::fmt;

use parking_lot::lock_api::RawMutex as _;
use zonal::platform::{RawLock, ZeroedCells};

/// A lock of one byte that spins for a few dozen cycles and then waits in the kernel.
pub struct SleepingLock(parking_lot::RawMutex);

impl fmt::Debug for SleepingLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SleepingLock").field("locked", &self.0.is_locked()).finish()
    }
}

impl RawLock for SleepingLock {
    fn new() -> Self {
        Self(parking_lot::RawMutex::INIT)
    }

    #[inline]
    fn lock(&self) {
        self.0.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.try_lock()
    }

    #[inline]
    fn unlock(&self) {
        // SAFETY: the contract of `RawLock::unlock` is that the caller holds the lock.
        unsafe { self.0.unlock() };
    }
}

// That a free lock is a zero byte is not in parking_lot's documentation, so the build asserts it.
const _: () = {
    assert!(size_of::<parking_lot::RawMutex>() == 1 && !std::mem::needs_drop::<parking_lot::RawMutex>());
    // SAFETY: of one byte, as just asserted, and that byte is an initialised atomic.
    let free: u8 = unsafe { std::mem::transmute(parking_lot::RawMutex::INIT) };
    assert!(free == 0);
};

/// Zeroed buffers hold valid cells of this platform.
// SAFETY: the cells are `core` atomics, documented to have the representation of their integer and
// to need no drop; the lock is one byte, zero when free, needing no drop: asserted above.
pub(crate) const ZEROED_CELLS: ZeroedCells = unsafe { ZeroedCells::promise() };

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn excludes() {
        let lock = SleepingLock::new();
        let count = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..10_000 {
                        lock.lock();
                        // Relaxed: the lock orders the two halves.
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                        lock.unlock();
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 40_000);
        assert!(lock.try_lock());
        assert!(!lock.try_lock());
        lock.unlock();
    }
}
