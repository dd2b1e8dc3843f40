//! Locks that are safe to wait for with interrupts off.
//!
//! A CPU that waits for a lock answers the requests of other CPUs meanwhile, because the holder of the lock may be
//! waiting for this CPU's answer (`smp.rs`).

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use spin::relax::RelaxStrategy;
use zonal::platform::RawLock;

use crate::smp::wait_a_little;

/// A wait for another CPU with interrupts off, which ends the machine if it takes too long.
pub(crate) struct Wait {
    what: &'static str,
    rounds: u32,
}

impl Wait {
    /// Number of rounds after which a wait is a fault: seconds, while the longest waits take milliseconds.
    const ROUNDS_MAX: u32 = 10_000_000;

    /// Creates a wait for something with this name.
    pub(crate) const fn new(what: &'static str) -> Self {
        Self { what, rounds: 0 }
    }

    /// Waits for a short time.
    pub(crate) fn a_little(&mut self) {
        assert!(self.rounds < Self::ROUNDS_MAX, "waited too long for {}", self.what);
        self.rounds += 1;
        wait_a_little();
    }
}

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
        let mut wait = Wait::new("a lock of the allocator");
        while !self.try_lock() {
            // Relaxed: the exchange in `try_lock` acquires the lock.
            while self.0.load(Relaxed) {
                wait.a_little();
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire: takes the last holder's writes; pairs with `Lock::unlock`.
        self.0.compare_exchange(false, true, Acquire, Relaxed).is_ok()
    }

    #[inline(never)]
    fn unlock(&self) {
        self.0.store(false, Release); // Release: publishes the holder's writes; pairs with `Lock::try_lock`.
    }
}
