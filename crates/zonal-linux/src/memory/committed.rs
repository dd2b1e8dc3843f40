//! Counts how much memory all pools of this process together can use.
//!
//! The kernel does not reserve ordinary memory before it is first accessed. Each pool may therefore be small enough for
//! the available memory although all pools together are not.
//!
//! Related files: `memory/zones.rs` counts the memory of its pool, and `pool/builder.rs` adds a warning if the total
//! exceeds the available memory.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::mapping::resident_bytes;
use super::range_list::{Entered, RangeList};
use crate::topology::limits::Available;

/// Address ranges of all existing pools. In a child made by `fork`, these include the copies of its parent's pools.
static RANGES: RangeList<()> = RangeList::new();

/// Memory that a pool can use, counted until this value is dropped.
#[derive(Debug)]
pub(super) struct CommittedMemory {
    _ranges: Box<[Entered<()>]>,
}

impl CommittedMemory {
    pub(super) fn count(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges = ranges.filter(|range| !range.is_empty());
        let _ranges = ranges.map(|range| RANGES.enter(range, |()| ())).collect();
        // If two threads build pools at the same time, the thread whose fence is later in the total order reads the
        // ranges that the other one entered. Relaxed accesses alone would allow both to miss them.
        // SeqCst: orders this pool's ranges before loads of others; pairs with `CommittedMemory::count`.
        fence(Ordering::SeqCst);
        Self { _ranges }
    }
}

/// Returns the bytes that all pools together can use and the bytes that they can have in total, if the pools can use
/// more than they can have.
///
/// The pool that is being built must already be counted. `before` is the available memory when its build began, and
/// `now` returns the current one, which is less if other pools have used memory since then.
pub(crate) fn overcommitment(before: Available, now: impl FnOnce() -> Available) -> Option<(u64, u64)> {
    let all: Vec<Range<usize>> = RANGES.ranges().map(|(range, ())| range).collect();
    let total: usize = all.iter().map(Range::len).sum();
    if total as u64 <= before.bytes {
        return None;
    }
    // Available memory does not include memory that pools already use, so that memory is added.
    let resident: usize = all.into_iter().map(|range| resident_bytes(range).unwrap_or(0)).sum();
    let most = now().bytes.saturating_add(resident as u64);
    (total as u64 > most).then_some((total as u64, most))
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

    /// Returns the bytes that all pools can use, including pools of other tests.
    fn total() -> u64 {
        RANGES.ranges().map(|(range, ())| range.len() as u64).sum()
    }

    /// Whether the ranges that concurrent threads count are in the sum until they are dropped.
    fn threads_count_at_once() -> bool {
        let before = total();
        let counts = |thread: usize| {
            (0..ROUNDS).all(|_| {
                // No memory is mapped at these addresses.
                let start = (thread + 1) << 12;
                let bytes = 1 << thread;
                let committed = CommittedMemory::count(once(start..start + bytes));
                let all = total();
                drop(committed);
                all >= before + bytes as u64 && all < before + (1 << THREADS)
            })
        };
        let each = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|at| scope.spawn(move || counts(at))).collect();
            threads.into_iter().all(|thread| thread.join().unwrap())
        });
        each && total() == before
    }

    #[test]
    fn available_memory_is_read_after_resident_memory() {
        let available = |bytes| Available { bytes, limited_by: Limit::Machine };
        // No memory is mapped at this address.
        let _own = CommittedMemory::count(once(1 << 12..2 << 12));
        assert_eq!(overcommitment(available(0), || available(u64::MAX)), None);
        assert!(overcommitment(available(0), || available(0)).is_some());
    }

    #[test]
    fn pools_of_a_childs_threads_are_all_counted() {
        let _of_parent = Origin::here(); // as pools do
        let own = CommittedMemory::count(once(1 << 12..2 << 12));
        // The child counts its copies of the parent's pools until it drops them.
        let of_parent = || {
            let before = total();
            // SAFETY: the child ends without using `own` again.
            drop(unsafe { std::ptr::read(&raw const own) });
            before == total() + (1 << 12)
        };
        assert_eq!(in_a_child(false, || of_parent() && threads_count_at_once()), 0);
    }
}
