//! Drains and refills of whole words of 64 frames, so that a pageset of a small zone moves as many frames at a
//! time as a pageset of a large zone.
//!
//! The batch depends on the size of the zone: below 64 MiB it is a single frame. A refill still moves a word of 64
//! frames, because the free frames of a zone are stored in words. A pageset that drains at four such batches would
//! return a word frame by frame. Therefore the *drain bar*, the count at which a pageset drains, has space for one
//! and a half words; a drain moves a word; and a refill stops half a word below the bar. So there are at least
//! [`HALF_WORD`] frees between two drains, and between a refill and a drain. Neighbours: `pageset/refill.rs` and
//! `pageset/drain.rs` move the frames.

use crate::units::PageCount;

/// Half a word: the least number of frees between two drains.
pub(crate) const HALF_WORD: PageCount = PageCount::new(32);

/// The least drain bar.
pub(crate) const BAR_MIN: PageCount = PageCount::new(96);

/// The least number of frames that a drain aims to move: the batch of a zone of 1 GiB.
/// [`until_whole_words`](crate::pageset::PagesetGuard::until_whole_words) rounds it up.
const DRAIN_MIN: PageCount = PageCount::new(63);

/// Returns the count at which a pageset with this `high` and this many slots drains.
pub(crate) fn bar(high: PageCount, slots: PageCount) -> PageCount {
    high.max(BAR_MIN.min(slots))
}

/// Returns the part of a drain bar that remains free after a refill and after a drain.
fn headroom(bar: PageCount) -> PageCount {
    HALF_WORD.min(PageCount::new(bar.get() / 2))
}

/// Returns the most frames that a refill may add to a pageset of `count` frames.
pub(crate) fn refill_most(bar: PageCount, count: PageCount) -> PageCount {
    bar.saturating_minus(headroom(bar)).saturating_minus(count)
}

/// Returns the number of frames that a refill aims to add.
pub(crate) fn refill_size(batch: PageCount) -> PageCount {
    batch.max(HALF_WORD)
}

/// Returns the number of frames that a drain aims to move.
pub(crate) fn drain_size(batch: PageCount) -> PageCount {
    batch.max(DRAIN_MIN)
}

/// Returns the least number of frames that a drain moves from a pageset of `count` frames.
pub(crate) fn drain_least(bar: PageCount, count: PageCount) -> PageCount {
    count.saturating_minus(bar).plus(headroom(bar))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    #[test]
    fn half_a_word_of_frees_lies_between_moves() {
        for high in [1, 4, 28, 60, 96, 124, 252, 10_000] {
            for slots in [65, 96, 128, 20_000] {
                let bar = bar(pages(high), pages(slots));
                assert!(bar >= pages(64) && bar >= pages(high));
                assert!(refill_most(bar, pages(0)).plus(HALF_WORD) <= bar);
                for count in [bar, bar.plus(pages(500))] {
                    let left = count.saturating_minus(drain_least(bar, count));
                    assert!(left.plus(HALF_WORD) <= bar, "{left} left of {count} at {bar}");
                }
            }
        }
    }

    #[test]
    fn bars_below_a_word_are_halved() {
        for bar in [4, 12, 28, 60] {
            assert_eq!(refill_most(pages(bar), pages(1)), pages(bar - bar / 2 - 1));
            assert_eq!(drain_least(pages(bar), pages(bar)), pages(bar / 2));
        }
        assert_eq!(refill_most(pages(60), pages(40)), pages(0));
    }

    #[test]
    fn batches_of_large_zones_stay_as_they_are() {
        assert_eq!([1, 7, 31, 63].map(|batch| refill_size(pages(batch)).get()), [32, 32, 32, 63]);
        assert_eq!([1, 7, 31, 63].map(|batch| drain_size(pages(batch)).get()), [63; 4]);
        assert_eq!(bar(pages(252), pages(400)), pages(252));
    }
}
