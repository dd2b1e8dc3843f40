//! The lock for user space. It spins briefly and then sleeps, because its holder may be preempted.
//!
//! Every operation on a zone's free areas locks and unlocks once, so both must be cheap: locking is one
//! compare-exchange, and unlocking is one plain store. A lock that wakes its waiters (futex, parking lot) needs a
//! second exchange to detect them. The waiters of this lock instead check again after a short sleep.

use std::ffi::c_long;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use zonal::platform::RawLock;

use super::reentrancy;
use crate::memory::pool_file::MEMBERS_MAX;

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
/// Invariant: while held, the holder's name, with the highest bit set while torn; else 0. Zeroed memory is an unlocked lock, as the
/// core requires of a platform.
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

/// Bit of a lock whose holder died, until what it guards is repaired. The other bits are the holder's name.
const TORN: u32 = 1 << 31;
/// Bits of a name that are a process's number in its pool.
const PROCESS_BITS: u32 = u8::BITS;
/// The holder's name of a lock that processes do not share: that of no process.
const UNNAMED: u32 = holder_name(0, 1);

/// A membership of this process in a shared pool, in whose memory it holds locks with a name.
struct Holder {
    /// Address at which the memory begins; 0 if there is no membership, [`Holder::COMES`] while one begins.
    start: AtomicUsize,
    name: AtomicU32,
}

/// The memberships that this process has. Threads that lock read them, also in signal handlers.
static HOLDERS: [Holder; MEMBERS_MAX] =
    [const { Holder { start: AtomicUsize::new(0), name: AtomicU32::new(UNNAMED) } }; MEMBERS_MAX];
/// Number of entries that have been used.
static HOLDERS_USED: AtomicUsize = AtomicUsize::new(0);
/// Whether the membership with this name, which holds the lock at this address, has ended.
static HAS_ENDED: OnceLock<fn(usize, u32) -> bool> = OnceLock::new();

impl Holder {
    /// No lock has a higher address.
    const COMES: usize = usize::MAX;
}

/// Returns the name with which a process holds a pool's locks during one of its memberships, which `epoch` counts.
pub(crate) const fn holder_name(process: u8, epoch: u64) -> u32 {
    ((epoch as u32) << PROCESS_BITS | process as u32) & !TORN
}

/// Returns the process that holds locks with this name; 0 for none.
pub(crate) const fn process_of(name: u32) -> u8 {
    name as u8
}

/// Returns whether `name` is that of a later (greater), the same (equal) or an earlier membership than `other`, in the same slot.
/// Epochs wrap, but a recovery takes all locks of a membership that has ended long before that.
pub(crate) fn compare_epochs(name: u32, other: u32) -> std::cmp::Ordering {
    // Without the bit of `TORN`, so that the sign is that of the difference.
    (name.wrapping_sub(other) << 1).cast_signed().cmp(&0)
}

/// Lets this process hold the locks in a pool's memory, which begins at `start`, with a name; returns whether there was room. Waits
/// for these locks then call `has_ended` now and then with the lock's address and its holder's name.
pub(crate) fn name_holders(start: usize, name: u32, has_ended: fn(usize, u32) -> bool) -> bool {
    HAS_ENDED.get_or_init(|| has_ended);
    // Relaxed, as below: threads lock there only after this call, and others do not lock there.
    let is_put = |holder: &Holder| {
        holder.start.compare_exchange(0, Holder::COMES, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let Some(at) = HOLDERS.iter().position(is_put) else { return false };
    HOLDERS[at].name.store(name, Ordering::Relaxed);
    HOLDERS[at].start.store(start, Ordering::Relaxed);
    HOLDERS_USED.fetch_max(at + 1, Ordering::Relaxed);
    true
}

/// Takes the name away with which locks in the memory at `start` were held, which no thread of this process locks any more.
pub(crate) fn forget_name(start: usize) {
    for holder in &HOLDERS {
        _ = holder.start.compare_exchange(start, 0, Ordering::Relaxed, Ordering::Relaxed); // relaxed: as in `name_holders`
    }
}

/// Takes all names away, in a child made by `fork`.
pub(crate) fn forget_names() {
    HOLDERS.iter().for_each(|holder| holder.start.store(0, Ordering::Relaxed)); // relaxed: the child has one thread
}

impl SleepingLock {
    /// Returns the name with which this process holds this lock.
    #[inline]
    fn own_name(&self) -> u32 {
        let (mut start, mut name) = (0, UNNAMED);
        // Memory of pools does not overlap: if the lock is in a shared one, it is the one that begins last before the lock. If
        // it is in none, its name does not matter.
        // Relaxed: a membership does not change while the process locks in its pool.
        for holder in HOLDERS.iter().take(HOLDERS_USED.load(Ordering::Relaxed)) {
            let begins = holder.start.load(Ordering::Relaxed);
            if begins > start && begins <= self.address() {
                (start, name) = (begins, holder.name.load(Ordering::Relaxed));
            }
        }
        name
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    #[inline]
    fn take(&self) -> bool {
        // Acquire: takes the last holder's writes; pairs with `SleepingLock::unlock`.
        self.0.compare_exchange(0, self.own_name(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Takes the lock from a process that died while it held it, as `has_ended` says. The lock is then torn.
    ///
    /// Between the answer and the exchange, the holder may unlock, leave the pool and join it again. It then has another name,
    /// so the exchange takes the lock only from a membership that has ended.
    pub(crate) fn take_from_the_dead(&self, has_ended: impl FnOnce(usize, u32) -> bool) -> bool {
        let found = self.0.load(Ordering::Relaxed); // relaxed: the exchange compares it
        let (holder, own) = (found & !TORN, self.own_name());
        if process_of(holder) == 0 || holder == own || !has_ended(self.address(), holder) {
            return false;
        }
        let torn = own | TORN;
        // Acquire: takes what the dead process has written; pairs with `SleepingLock::unlock`.
        self.0.compare_exchange(found, torn, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        let has_ended = |lock, name| HAS_ENDED.get().is_some_and(|has_ended| has_ended(lock, name));
        let mut looks = 0_u32;
        loop {
            // Relaxed: only a check; the exchange in `take` acquires.
            if self.0.load(Ordering::Relaxed) == 0 && self.take() {
                return;
            }
            match looks {
                0..LOOKS_SPINNING => std::hint::spin_loop(),
                LOOKS_SPINNING..LOOKS_YIELDING => std::thread::yield_now(),
                _ if looks.is_multiple_of(LOOKS_A_DEATH) && self.take_from_the_dead(has_ended) => return,
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
