//! Locks that are safe to wait for with interrupts off.
//!
//! A CPU that waits for a lock answers the requests of other CPUs meanwhile, because the holder of the lock may be
//! waiting for this CPU's answer (`smp.rs`).

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use spin::relax::RelaxStrategy;
use zonal::platform::RawLock;

use crate::smp::wait_a_little;

/// Answers other CPUs while the caller waits.
pub(crate) struct Answering;

impl RelaxStrategy for Answering {
    fn relax() {
        wait_a_little();
    }
}

/// A lock around data of the kernel. It is held with interrupts off only.
pub(crate) type Mutex<T> = spin::mutex::SpinMutex<T, Answering>;

/// The lock of the allocator, which does not contain the data that it guards.
pub(crate) struct Lock(AtomicBool);

impl RawLock for Lock {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    // Not inlined, so that a plugin can count the instructions between `lock` and `unlock`.
    #[inline(never)]
    fn lock(&self) {
        while !self.try_lock() {
            // Relaxed: the exchange in `try_lock` acquires the lock.
            while self.0.load(Relaxed) {
                wait_a_little();
            }
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok() // acquire: pairs with the release in `unlock`
    }

    #[inline(never)]
    fn unlock(&self) {
        self.0.store(false, Release); // pairs with the acquire in `try_lock`
    }
}
