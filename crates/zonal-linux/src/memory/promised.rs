//! What all pools of this process may come to use together.
//!
//! The kernel promises nobody ordinary memory before it is touched, so that each pool alone may fit while all
//! of them do not. Neighbours: `zones.rs` counts its pool in, `pool/builder.rs` compares and warns.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::mapping::resident_bytes;
use super::range_list::{Entered, RangeList};
use crate::topology::limits::Available;

/// Addresses of all pools that live, those of a parent included of which a child has copies.
static RANGES: RangeList<()> = RangeList::new();

/// Memory that a pool may use, counted while this lives.
#[derive(Debug)]
pub(super) struct Promised {
    _ranges: Box<[Entered<()>]>,
}

impl Promised {
    pub(super) fn count(ranges: impl Iterator<Item = Range<usize>>) -> Self {
        let ranges = ranges.filter(|range| !range.is_empty());
        let _ranges = ranges.map(|range| RANGES.enter(range, |()| ())).collect();
        // Of two pools built at the same time, the one whose fence comes later finds the other's ranges.
        fence(Ordering::SeqCst);
        Self { _ranges }
    }
}

/// What all pools together may use, and what they can have in all, if that is less. The pool that asks has been
/// counted.
///
/// `now` is what is available: less than `before`, where other pools have taken memory since.
pub(crate) fn excess(before: Available, now: impl FnOnce() -> Available) -> Option<(u64, u64)> {
    let all: Vec<Range<usize>> = RANGES.ranges().map(|(range, ())| range).collect();
    let total: usize = all.iter().map(Range::len).sum();
    if total as u64 <= before.bytes {
        return None;
    }
    // What pools have already is not among what is available.
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

    /// Bytes promised, with those of other tests' pools.
    fn total() -> u64 {
        RANGES.ranges().map(|(range, ())| range.len() as u64).sum()
    }

    /// Of ranges counted by threads at the same time, each is in the sum until it goes.
    fn threads_count_at_once() -> bool {
        let before = total();
        let counts = |thread: usize| {
            (0..ROUNDS).all(|_| {
                // Nothing is mapped there.
                let start = (thread + 1) << 12;
                let bytes = 1 << thread;
                let promised = Promised::count(once(start..start + bytes));
                let all = total();
                drop(promised);
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
    fn what_is_available_is_read_after_what_is_resident() {
        let available = |bytes| Available { bytes, limited_by: Limit::Machine };
        // Nothing is mapped there.
        let _own = Promised::count(once(1 << 12..2 << 12));
        assert_eq!(excess(available(0), || available(u64::MAX)), None);
        assert!(excess(available(0), || available(0)).is_some());
    }

    #[test]
    fn threads_of_a_child_are_all_counted() {
        let _of_parent = Origin::here(); // as pools do
        let own = Promised::count(once(1 << 12..2 << 12));
        // Its parent's pools are the child's too, until it lets go of its copy.
        let of_parent = || {
            let before = total();
            // SAFETY: the child ends without using it again.
            drop(unsafe { std::ptr::read(&raw const own) });
            before == total() + (1 << 12)
        };
        assert_eq!(in_a_child(false, || of_parent() && threads_count_at_once()), 0);
    }
}
