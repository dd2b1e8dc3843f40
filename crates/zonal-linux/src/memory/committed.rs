//! Counts how much memory all pools of this process together can use.
//!
//! The kernel does not reserve ordinary memory before it is first accessed. Each pool may therefore be small enough for
//! the available memory although all pools together are not.
//!
//! Related files: `memory/zones.rs` counts the memory of its pool, and `pool/builder.rs` adds a warning if the total
//! exceeds the available memory.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering, fence};

use super::mapping::resident_bytes;
use super::range_list::{Entered, RangeList};
use crate::topology::limits::Available;

/// Address ranges of all existing pools, with the bytes of them that are online. In a child made by `fork`, these include the
/// copies of its parent's pools.
static RANGES: RangeList<AtomicI64> = RangeList::new();

/// Memory that a pool can use, counted until this value is dropped.
#[derive(Debug)]
pub(super) struct CommittedMemory {
    /// The ranges of the pool's zones, without those that are not counted.
    ranges: Box<[Option<Entered<AtomicI64>>]>,
}

impl CommittedMemory {
    /// Counts zones, each given by its addresses and its online bytes, or as `None` if it is not counted.
    pub(super) fn count(zones: impl Iterator<Item = Option<(Range<usize>, i64)>>) -> Self {
        let enter = |(range, online)| {
            // relaxed: published with the range
            RANGES.enter(range, |bytes| bytes.store(online, Ordering::Relaxed))
        };
        let ranges = zones.map(|zone| zone.map(enter)).collect();
        // If two threads build pools at the same time, the thread whose fence is later in the total order reads the
        // ranges that the other one entered. Relaxed accesses alone would allow both to miss them.
        // SeqCst: orders this pool's ranges before loads of others; pairs with `CommittedMemory::count`.
        fence(Ordering::SeqCst);
        Self { ranges }
    }

    /// Adds `change` to the bytes of a zone that are online.
    pub(super) fn add(&self, zone: usize, change: i64) {
        if let Some(range) = &self.ranges[zone] {
            range.note().fetch_add(change, Ordering::Relaxed); // relaxed: only a sum
        }
    }
}

/// Returns the bytes that all pools together can use and the bytes that they can have in total, if the pools can use
/// more than they can have.
///
/// The pool that is being built must already be counted. `before` is the available memory when its build began, and
/// `now` returns the current one, which is less if other pools have used memory since then.
pub(crate) fn overcommitment(before: Available, now: impl FnOnce() -> Available) -> Option<(u64, u64)> {
    let total = online();
    if total <= before.bytes {
        return None;
    }
    // Available memory does not include memory that pools already use, so that memory is added.
    let resident: usize = RANGES.ranges().map(|(range, _)| resident_bytes(range).unwrap_or(0)).sum();
    let most = now().bytes.saturating_add(resident as u64);
    (total > most).then_some((total, most))
}

/// Returns the bytes of all pools that are online.
fn online() -> u64 {
    let online = RANGES.ranges().map(|(_, bytes)| bytes.load(Ordering::Relaxed)); // relaxed: only a sum
    online.sum::<i64>().max(0).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::iter::once;
    use std::thread;

    use super::*;
    use crate::error::Limit;
    use crate::memory::origin::Origin;
    use crate::memory::origin::tests::in_a_child;

    const THREADS: usize = 3;
    const ROUNDS: usize = 3000;

    /// Counts addresses, all of which are online.
    fn counted(range: Range<usize>) -> CommittedMemory {
        let bytes = range.len() as i64;
        CommittedMemory::count(once(Some((range, bytes))))
    }

    /// Whether the ranges that concurrent threads count are in the sum until they are dropped.
    fn threads_count_at_once() -> bool {
        let before = online();
        let counts = |thread: usize| {
            (0..ROUNDS).all(|_| {
                // No memory is mapped at these addresses.
                let start = (thread + 1) << 12;
                let bytes = 1 << thread;
                let committed = counted(start..start + bytes);
                let all = online();
                drop(committed);
                all >= before + bytes as u64 && all < before + (1 << THREADS)
            })
        };
        let each = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || counts(at))).collect();
            threads.into_iter().all(|thread| thread.join().unwrap())
        });
        each && online() == before
    }

    #[test]
    fn available_memory_is_read_after_resident_memory() {
        let available = |bytes| Available { bytes, limited_by: Limit::Machine };
        // No memory is mapped at this address.
        let _own = counted(1 << 12..2 << 12);
        assert_eq!(overcommitment(available(0), || available(u64::MAX)), None);
        assert!(overcommitment(available(0), || available(0)).is_some());
    }

    #[test]
    fn pools_of_a_childs_threads_are_all_counted() {
        let _of_parent = Origin::here(); // as pools do
        let own = counted(1 << 12..2 << 12);
        // The child counts its copies of the parent's pools until it drops them.
        let of_parent = || {
            let before = online();
            // SAFETY: the child ends without using `own` again.
            drop(unsafe { std::ptr::read(&raw const own) });
            before == online() + (1 << 12)
        };
        assert_eq!(in_a_child(false, || of_parent() && threads_count_at_once()), 0);
    }
}
