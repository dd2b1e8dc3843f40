//! The reclaimers of a pool, which are called one after the other.
//!
//! A reclaimer that panics counts as having freed no frames. Related files: `pool/registry.rs` has the list,
//! `pool/platform.rs` passes it to the allocator, which uses it as its only reclaimer.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::units::PageCount;

use super::key::PoolKey;
use super::registry::{Entry, Registration, Registry};
use crate::threads::presence::Presence;

type Shrinker = dyn Reclaimer + Send;

/// All reclaimers of one pool.
pub(super) struct Reclaimers {
    list: Arc<Registry<Shrinker>>,
    /// Index of the reclaimer that the next round calls first. It changes each round, so that all reclaimers are called
    /// equally often.
    first: AtomicUsize,
}

impl Reclaimers {
    pub(super) fn new(key: PoolKey, presence: Arc<Presence>) -> Self {
        Self { list: Arc::new(Registry::new(key, presence)), first: AtomicUsize::new(0) }
    }

    /// Registers a reclaimer, which stays registered until its registration is dropped.
    pub(super) fn register(&self, reclaimer: Arc<Shrinker>) -> Registration {
        self.list.register(reclaimer)
    }

    /// Returns how often a reclaimer panicked.
    pub(super) fn panics(&self) -> u64 {
        self.list.panics()
    }

    /// Calls a reclaimer if it still exists. A call that panics counts as having freed no frames.
    fn guarded(&self, entry: &Entry<Shrinker>, call: impl FnOnce(&Shrinker) -> PageCount) -> PageCount {
        self.list.guarded(entry, belongs_to, call).unwrap_or(PageCount::ZERO)
    }
}

impl Reclaimer for Reclaimers {
    fn count(&self, request: &ReclaimRequest) -> PageCount {
        let entries = self.list.entries().unwrap_or_default();
        if CALLS_NONE.get() && !entries.is_empty() {
            return PageCount::new(u64::MAX);
        }
        let counts = entries.iter().map(|entry| self.guarded(entry, |one| one.count(request)).get());
        PageCount::new(counts.fold(0, u64::saturating_add))
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let entries = self.list.entries().unwrap_or_default();
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
    /// Pools for which this thread reclaims, without gaps from the first place on; rarely more than one.
    static RECLAIMING: Cell<[Option<PoolKey>; NESTED_MOST]> = const { Cell::new([None; NESTED_MOST]) };
    /// Pool that started this thread.
    static POOL_OF_THREAD: Cell<Option<PoolKey>> = const { Cell::new(None) };
    /// Whether this thread must not call reclaimers, even to count.
    static CALLS_NONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which this thread calls no reclaimer to count frames: if there is one, it counts as having enough.
///
/// `work` must not reclaim.
pub(super) fn calling_none<R>(work: impl FnOnce() -> R) -> R {
    let before = CALLS_NONE.replace(true);
    let result = work();
    CALLS_NONE.set(before);
    result
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
    let found = pools.iter().find(|pool| pool.is_none_or(|pool| pool == key));
    found.is_none_or(Option::is_some)
}

/// Whether the calling thread reclaims for any pool.
pub(super) fn is_reclaiming_any() -> bool {
    RECLAIMING.get()[0].is_some()
}

/// Records that the calling thread begins to reclaim for pool `key`.
pub(super) fn begin_reclaiming(key: PoolKey) {
    let mut pools = RECLAIMING.get();
    if let Some(end) = pools.iter_mut().find(|pool| pool.is_none()) {
        *end = Some(key);
    }
    RECLAIMING.set(pools);
}

/// Records that the calling thread has finished reclaiming for pool `key`.
pub(super) fn end_reclaiming(key: PoolKey) {
    let mut pools = RECLAIMING.get();
    if let Some(at) = pools.iter().position(|&pool| pool == Some(key)) {
        pools[at] = None;
        pools[at..].rotate_left(1);
    }
    RECLAIMING.set(pools);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

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
        let all = reclaimers();
        let _registered = [5, 7, 9].map(|n| all.register(Arc::new(Cache(AtomicU64::new(n)))));
        assert_eq!(all.count(&wanted(1)), PageCount::new(21));
        assert_eq!(all.reclaim(&wanted(12)), PageCount::new(12));
        assert_eq!(all.count(&wanted(1)), PageCount::new(9));
        assert_eq!(all.reclaim(&wanted(100)), PageCount::new(9));
    }

    #[test]
    fn registration_keeps_its_reclaimer_alive_until_dropped() {
        let all = reclaimers();
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
        assert_eq!(all.list.entries().unwrap().len(), 1);
        drop(first);
        assert_eq!(all.reclaim(&wanted(9)), PageCount::new(3));
        drop(twice);
        assert_eq!(all.count(&wanted(1)), PageCount::ZERO);
        assert_eq!(all.list.entries().unwrap().len(), 0);
    }

    #[test]
    fn panicking_reclaimer_frees_nothing_and_others_still_run() {
        let all = reclaimers();
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
        let all = reclaimers();
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
        assert!(!is_reclaiming(a) && is_reclaiming(b) && is_reclaiming_any());
        end_reclaiming(b);
        assert!(!is_reclaiming_any());
    }

    #[test]
    fn no_pool_may_reclaim_within_as_many_others_as_are_recorded() {
        let pools = [(); NESTED_MOST].map(|()| PoolKey::fresh());
        let one_more = PoolKey::fresh();
        for &pool in &pools {
            assert!(!is_reclaiming(one_more));
            begin_reclaiming(pool);
        }
        begin_reclaiming(one_more);
        assert!(is_reclaiming(one_more));
        for &pool in pools.iter().rev() {
            end_reclaiming(pool);
            assert!(!is_reclaiming(one_more) && !is_reclaiming(pool));
        }
        assert!(!is_reclaiming_any());
    }
}
