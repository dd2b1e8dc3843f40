//! The list of a pool's reclaimers, which calls them one after the other and catches their panics.
//!
//! A cache that is a reclaimer usually owns frames of its pool, and each of these holds a reference to the pool. The
//! pool therefore holds only a weak reference to the reclaimer, to avoid a reference cycle. A [`Registration`] holds a
//! strong reference. A reclaimer that panics counts as having freed no frames.
//!
//! Related file: `pool/platform.rs` passes the list to the allocator, which uses the list as its only reclaimer.

use std::cell::Cell;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError, Weak};

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::PageCount;

use super::callback::contained;
use super::key::PoolKey;
use crate::threads::presence::Presence;
use crate::threads::reentrancy::Inside;
use crate::threads::sync::held;

type Shrinker = dyn Reclaimer + Send;

/// A reclaimer's registration with a pool. Dropping it unregisters the reclaimer; see
/// [`Pool::register_reclaimer`](crate::Pool::register_reclaimer).
///
/// ```
/// use std::sync::Arc;
/// use zonal_linux::{Pool, Reclaimer, Registration};
///
/// /// A cache in use, stored together with its registration.
/// struct Service<C> {
///     cache: Arc<C>,
///     _registration: Registration,
/// }
///
/// fn start<C: Reclaimer + Send + 'static>(pool: &Pool, cache: C) -> Service<C> {
///     let cache = Arc::new(cache);
///     Service { _registration: pool.register_reclaimer(&cache), cache }
/// }
/// ```
///
/// The registration holds a strong reference to the reclaimer, but none to the pool. If the reclaimer is running when
/// the registration is dropped, that call may finish later. A reclaimer that owns its own registration is never
/// dropped.
#[must_use = "a reclaimer is no longer called once its registration is dropped"]
pub struct Registration {
    id: ReclaimerId,
    reclaimers: Arc<Reclaimers>,
    _reclaimer: Arc<Shrinker>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.reclaimers.unregister(self.id);
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Identifies a registered reclaimer, to unregister it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ReclaimerId(u64);

#[derive(Clone)]
struct Entry {
    id: ReclaimerId,
    reclaimer: Weak<Shrinker>,
}

/// All reclaimers of one pool.
///
/// Invariant: `entries` have distinct ids and are in the order of registration.
pub(super) struct Reclaimers {
    key: PoolKey,
    /// Updated when a thread of the pool enters a reclaimer.
    presence: Arc<Presence>,
    /// The list, which is replaced as a whole. A caller copies the reference, and so holds no lock while a reclaimer
    /// runs.
    entries: Mutex<Arc<[Entry]>>,
    next_id: AtomicU64,
    /// Index of the reclaimer that the next round calls first. It changes each round, so that all reclaimers are called
    /// equally often.
    first: AtomicUsize,
    panics: AtomicU64,
}

impl Reclaimers {
    pub(super) fn new(key: PoolKey, presence: Arc<Presence>) -> Self {
        Self {
            key,
            presence,
            entries: Mutex::new(Arc::new([])),
            next_id: AtomicU64::new(0),
            first: AtomicUsize::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// Registers a reclaimer, which stays registered until its registration is dropped.
    pub(super) fn register(self: &Arc<Self>, reclaimer: Arc<Shrinker>) -> Registration {
        // Relaxed: the numbers must only be unique, and they order no other memory accesses.
        let id = ReclaimerId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let entry = Entry { id, reclaimer: Arc::downgrade(&reclaimer) };
        self.replace(|entries| entries.iter().chain([&entry]).cloned().collect());
        Registration { id, reclaimers: Arc::clone(self), _reclaimer: reclaimer }
    }

    fn unregister(&self, id: ReclaimerId) {
        self.replace(|entries| entries.iter().filter(|entry| entry.id != id).cloned().collect());
    }

    /// Replaces the list with the result of `change`.
    ///
    /// The function does not use the heap while it holds the lock of the list, so that a signal handler never
    /// interrupts a thread that holds both this lock and a lock of the heap.
    fn replace(&self, change: impl Fn(&[Entry]) -> Arc<[Entry]>) {
        loop {
            let Some(before) = self.entries() else { return };
            let changed = change(&before);
            let _inside = Inside::enter();
            let Some(mut entries) = self.lock() else { return };
            if Arc::ptr_eq(&entries, &before) {
                // `_before`, the old list, is dropped at the end of the scope, after the lock has been released.
                let _before = mem::replace(&mut *entries, changed);
                drop(entries);
                return;
            }
        }
    }

    /// Locks the list. In a child made by `fork`, returns `None` if the lock is held.
    ///
    /// A child does not wait for the lock, because the holder may be a thread of the parent that does not exist in the
    /// child. Without the lock, the child can neither read nor change the list: it calls no reclaimer, and an entry
    /// whose registration is dropped stays in the list.
    fn lock(&self) -> Option<MutexGuard<'_, Arc<[Entry]>>> {
        if self.presence.is_here() {
            return Some(held(self.entries.lock()));
        }
        match self.entries.try_lock() {
            Ok(entries) => Some(entries),
            Err(TryLockError::Poisoned(entries)) => Some(entries.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn entries(&self) -> Option<Arc<[Entry]>> {
        let _inside = Inside::enter();
        self.lock().map(|entries| Arc::clone(&entries))
    }

    /// Returns how often a reclaimer panicked.
    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed) // relaxed: a statistic
    }

    /// Calls a reclaimer if it still exists, and catches its panics. A call that panics counts as having freed no
    /// frames.
    fn guarded(&self, entry: &Entry, call: impl FnOnce(&Shrinker) -> PageCount) -> PageCount {
        let is_ours = belongs_to(self.key);
        let in_reclaimer = if is_ours { self.presence.enter_reclaimer() } else { None };
        if is_ours && in_reclaimer.is_none() {
            return PageCount::ZERO; // the pool is being dropped
        }
        let Some(reclaimer) = entry.reclaimer.upgrade() else { return PageCount::ZERO };
        let called = contained(|| call(&*reclaimer));
        // If this is the last reference, the destructor of the reclaimer runs here, and it may panic too.
        let dropped = contained(|| drop(reclaimer));
        let panics = u64::from(called.is_err()) + u64::from(dropped.is_err());
        self.panics.fetch_add(panics, Ordering::Relaxed); // relaxed: a statistic
        called.unwrap_or(PageCount::ZERO)
    }
}

impl Reclaimer for Reclaimers {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let entries = self.entries().unwrap_or_default();
        let counts = entries.iter().map(|entry| self.guarded(entry, |one| one.count(request)).get());
        PageCount::new(counts.fold(0, u64::saturating_add))
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let entries = self.entries().unwrap_or_default();
        // Relaxed: every start index is correct.
        let first = self.first.fetch_add(1, Ordering::Relaxed);
        let mut freed = 0_u64;
        for turn in 0..entries.len() {
            let mut rest = *request;
            rest.target = request.target.saturating_minus(PageCount::new(freed));
            if rest.target == PageCount::ZERO {
                break;
            }
            let entry = &entries[(first.wrapping_add(turn)) % entries.len()];
            let more = self.guarded(entry, |one| one.reclaim(&rest));
            freed = freed.saturating_add(more.get());
        }
        PageCount::new(freed)
    }
}

/// Largest number of pools for which a thread can reclaim at the same time. A thread reclaims for several pools if a
/// reclaimer of one pool allocates from a second pool, whose reclaimer may in turn allocate from a third.
const NESTED_MOST: usize = 8;

// These have no destructors and do not use the heap, because signal handlers and destructors of other thread locals
// read them.
thread_local! {
    /// Pools for which this thread reclaims, rarely more than one.
    static RECLAIMING: Cell<[Option<PoolKey>; NESTED_MOST]> = const { Cell::new([None; NESTED_MOST]) };
    /// Pool that started this thread.
    static POOL_OF_THREAD: Cell<Option<PoolKey>> = const { Cell::new(None) };
}

/// Records permanently that the calling thread belongs to pool `key`.
pub(super) fn join_pool(key: PoolKey) {
    POOL_OF_THREAD.set(Some(key));
}

/// Whether the calling thread belongs to pool `key`.
pub(super) fn belongs_to(key: PoolKey) -> bool {
    POOL_OF_THREAD.get() == Some(key)
}

/// Whether the calling thread must not start to reclaim for pool `key`, because it already reclaims for that pool or
/// for `NESTED_MOST` pools.
pub(super) fn is_reclaiming(key: PoolKey) -> bool {
    let pools = RECLAIMING.get();
    pools.contains(&Some(key)) || !pools.contains(&None)
}

/// Records that the calling thread begins to reclaim for pool `key`.
pub(super) fn begin_reclaiming(key: PoolKey) {
    replace_reclaiming(None, Some(key));
}

/// Records that the calling thread has finished reclaiming for pool `key`.
pub(super) fn end_reclaiming(key: PoolKey) {
    replace_reclaiming(Some(key), None);
}

fn replace_reclaiming(from: Option<PoolKey>, to: Option<PoolKey>) {
    let mut pools = RECLAIMING.get();
    if let Some(place) = pools.iter_mut().find(|pool| **pool == from) {
        *place = to;
    }
    RECLAIMING.set(pools);
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal::platform::reclaimer::ReclaimReason;
    use zonal::units::NodeId;

    struct Cache(AtomicU64);
    impl Reclaimer for Cache {
        fn count(&self, _request: &ReclaimRequest) -> PageCount {
            PageCount::new(self.0.load(Ordering::Relaxed)) // one thread
        }
        fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
            let given = self.count(request).get().min(request.target.get());
            self.0.fetch_sub(given, Ordering::Relaxed); // one thread
            PageCount::new(given)
        }
    }

    struct Panics;
    impl Reclaimer for Panics {
        fn count(&self, _request: &ReclaimRequest) -> PageCount {
            panic!("a reclaimer's own mistake, on purpose")
        }
        fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
            panic!("a reclaimer's own mistake, on purpose")
        }
    }

    fn reclaimers() -> Reclaimers {
        Reclaimers::new(PoolKey::fresh(), Arc::new(Presence::new()))
    }

    /// Returns a request for `target` frames.
    fn wanted(target: u64) -> ReclaimRequest {
        let node = NodeId::new(0).expect("it is small");
        ReclaimRequest::new(ReclaimReason::Direct, node, PageCount::new(target))
    }

    #[test]
    fn reclaimers_are_called_until_the_target_is_met() {
        let all = Arc::new(reclaimers());
        let _registered = [5, 7, 9].map(|n| all.register(Arc::new(Cache(AtomicU64::new(n)))));
        assert_eq!(all.count(&wanted(1)), PageCount::new(21));
        assert_eq!(all.reclaim(&wanted(12)), PageCount::new(12));
        assert_eq!(all.count(&wanted(1)), PageCount::new(9));
        assert_eq!(all.reclaim(&wanted(100)), PageCount::new(9));
    }

    #[test]
    fn registration_keeps_its_reclaimer_alive_until_dropped() {
        let all = Arc::new(reclaimers());
        let (first, second) = (Arc::new(Cache(AtomicU64::new(3))), Arc::new(Cache(AtomicU64::new(4))));
        let [kept, gone, twice] = [&first, &second, &first].map(|one| all.register(one.clone()));
        // After this, only the registration holds a reference to the second reclaimer.
        let seen = Arc::downgrade(&second);
        drop(second);
        assert_eq!(all.count(&wanted(1)), PageCount::new(3 + 4 + 3));
        drop(gone);
        assert!(seen.upgrade().is_none());
        assert_eq!(all.count(&wanted(1)), PageCount::new(3 + 3));
        drop(kept);
        assert_eq!(all.count(&wanted(1)), PageCount::new(3), "each registration for itself");
        assert_eq!(all.entries.lock().unwrap().len(), 1);
        drop(first);
        assert_eq!(all.reclaim(&wanted(9)), PageCount::new(3));
        drop(twice);
        assert_eq!(all.count(&wanted(1)), PageCount::ZERO);
        assert_eq!(all.entries.lock().unwrap().len(), 0);
    }

    #[test]
    fn panicking_reclaimer_frees_nothing_and_others_still_run() {
        let all = Arc::new(reclaimers());
        let _bad = all.register(Arc::new(Panics));
        let _good = all.register(Arc::new(Cache(AtomicU64::new(6))));
        for left in [4, 2] {
            assert_eq!(all.reclaim(&wanted(2)), PageCount::new(2));
            assert_eq!(all.count(&wanted(1)), PageCount::new(left));
        }
        assert!(all.panics() >= 3);
    }

    /// A panic payload whose destructor panics with a new payload until its number is 0.
    struct Payload(u32);
    impl Drop for Payload {
        fn drop(&mut self) {
            if let Some(left) = self.0.checked_sub(1) {
                std::panic::panic_any(Self(left));
            }
        }
    }

    struct PanicsWithPayload;
    impl Reclaimer for PanicsWithPayload {
        fn count(&self, _request: &ReclaimRequest) -> PageCount {
            std::panic::panic_any(Payload(2))
        }
        fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
            std::panic::panic_any(Payload(1))
        }
    }

    #[test]
    fn panicking_payload_frees_nothing_and_others_still_run() {
        let all = Arc::new(reclaimers());
        let _bad = all.register(Arc::new(PanicsWithPayload));
        let _good = all.register(Arc::new(Cache(AtomicU64::new(6))));
        for left in [4, 2] {
            assert_eq!(all.reclaim(&wanted(2)), PageCount::new(2));
            assert_eq!(all.count(&wanted(1)), PageCount::new(left));
        }
    }

    #[test]
    fn reclaiming_is_per_pool_and_thread() {
        let (a, b) = (PoolKey::fresh(), PoolKey::fresh());
        begin_reclaiming(a);
        assert!(is_reclaiming(a) && !is_reclaiming(b));
        std::thread::spawn(move || assert!(!is_reclaiming(a))).join().unwrap();
        begin_reclaiming(b);
        end_reclaiming(a);
        assert!(!is_reclaiming(a) && is_reclaiming(b));
        end_reclaiming(b);
    }
}
