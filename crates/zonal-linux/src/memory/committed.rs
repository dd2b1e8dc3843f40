//! How much memory all pools of this process together may come to use.
//!
//! The kernel does not reserve ordinary memory before it is touched, so each pool may fit alone although all of
//! them together do not. Neighbours: `memory/zones.rs` adds its pool's memory, `pool/builder.rs` compares and
//! warns.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::mapping::resident_bytes;
use super::range_list::{Entered, RangeList};
use crate::topology::limits::Available;

/// Address ranges of all existing pools, including a parent's pools of which a child has copies.
static RANGES: RangeList<()> = RangeList::new();

/// Memory that a pool may use, counted while this value exists.
#[derive(Debug)]
pub(super) struct CommittedMemory {
    _ranges: Box<[Entered<()>]>,
}

impl CommittedMemory {
    pub(super) fn count(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges = ranges.filter(|range| !range.is_empty());
        let _ranges = ranges.map(|range| RANGES.enter(range, |()| ())).collect();
        // Of two pools built at the same time, the one whose fence (SeqCst) comes later finds the other's ranges.
        fence(Ordering::SeqCst);
        Self { _ranges }
    }
}

/// Returns what all pools together may use, and what they can have in total, if that is less. The calling pool is
/// already counted.
///
/// `now` returns what is available now; that is less than `before` if other pools have used memory since.
pub(crate) fn overcommitment(before: Available, now: impl FnOnce() -> Available) -> Option<(u64, u64)> {
    let all: Vec<Range<usize>> = RANGES.ranges().map(|(range, ())| range).collect();
    let total: usize = all.iter().map(Range::len).sum();
    if total as u64 <= before.bytes {
        return None;
    }
    // The memory that pools already use is not part of what is available.
    let resident: usize = all.into_iter().map(resident_bytes).sum();
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

    /// Returns the bytes that all pools may use, including those of other tests.
    fn total() -> u64 {
        RANGES.ranges().map(|(range, ())| range.len() as u64).sum()
    }

    /// Whether ranges counted by concurrent threads are each in the sum until they are dropped.
    fn threads_count_at_once() -> bool {
        let before = total();
        let counts = |thread: usize| {
            (0..ROUNDS).all(|_| {
                // Nothing is mapped there.
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
        // Nothing is mapped there.
        let _own = CommittedMemory::count(once(1 << 12..2 << 12));
        assert_eq!(overcommitment(available(0), || available(u64::MAX)), None);
        assert!(overcommitment(available(0), || available(0)).is_some());
    }

    #[test]
    fn pools_of_a_childs_threads_are_all_counted() {
        let _of_parent = Origin::here(); // as pools do
        let own = CommittedMemory::count(once(1 << 12..2 << 12));
        // The parent's pools are also the child's, until it drops its copies.
        let of_parent = || {
            let before = total();
            // SAFETY: the child ends without using it again.
            drop(unsafe { std::ptr::read(&raw const own) });
            before == total() + (1 << 12)
        };
        assert_eq!(in_a_child(false, || of_parent() && threads_count_at_once()), 0);
    }
}
