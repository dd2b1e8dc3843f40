//! Drain and refill sizes in whole words of 64 frames.
//!
//! The batch depends on the size of the zone, and below 64 MiB it is a single frame. A refill still moves a word of
//! 64 frames, because a zone stores its free frames in words. If the pageset drained at four batches of one frame, it
//! would return that word frame by frame. This file prevents that: the *drain threshold*, which is the count at which
//! a pageset drains, is at least one and a half words; a drain moves about one word; and a refill stops half a word
//! below the threshold. At least [`HALF_WORD`] frees therefore separate two drains, or a refill and a drain.
//!
//! Related files: `pageset/refill.rs` and `pageset/drain.rs` move the frames.

use crate::units::PageCount;

/// Half a word, the smallest number of frees between two drains.
pub(crate) const HALF_WORD: PageCount = PageCount::new(32);

/// The minimum drain threshold.
pub(crate) const THRESHOLD_MIN: PageCount = PageCount::new(96);

/// Number of frames in a word.
const WORD: u64 = 64;

/// Maximum number of words that move at once, because a lock is held for 512 frames at most.
const WORDS_MAX: u64 = 8;

/// The smallest target size of a drain, equal to the batch of a 1 GiB zone.
/// [`until_whole_words`](crate::pageset::PagesetGuard::until_whole_words) rounds the size up to a whole word.
const DRAIN_MIN: PageCount = PageCount::new(63);

/// Returns the count at which a pageset with this `high` and this many slots drains.
pub(crate) fn threshold(high: PageCount, slots: PageCount) -> PageCount {
    high.max(THRESHOLD_MIN.min(slots))
}

/// Returns the distance that the count has from the drain threshold after a refill or a drain.
fn headroom(threshold: PageCount) -> PageCount {
    HALF_WORD.min(PageCount::new(threshold.get() / 2))
}

/// Returns the maximum number of frames that a refill may add to a pageset with `count` frames.
pub(crate) fn refill_most(threshold: PageCount, count: PageCount) -> PageCount {
    threshold.saturating_minus(headroom(threshold)).saturating_minus(count)
}

/// Returns the target refill size after a run of `run` allocations.
pub(crate) fn refill_size(batch: PageCount, run: PageCount) -> PageCount {
    batch.max(HALF_WORD).max(PageCount::new(WORD * words_of(run)))
}

/// Returns the target drain size for a pageset with `count` frames after a run of `run` frees.
pub(crate) fn drain_size(batch: PageCount, run: PageCount, count: PageCount) -> PageCount {
    let words = words_of(run).min(count.get() / 2 / WORD);
    batch.max(DRAIN_MIN).max(PageCount::new((WORD * words).saturating_sub(WORD - 1)))
}

/// Returns how many words to move after a run of `run` frames in one direction: a quarter of the run.
///
/// The frames that move early are then few compared with those that the run moved, and the overhead of a refill or a
/// drain is shared by many.
const fn words_of(run: PageCount) -> u64 {
    let words = run.get() / 4 / WORD;
    if words < WORDS_MAX { words } else { WORDS_MAX }
}

/// Returns the minimum number of frames that a drain moves from a pageset with `count` frames.
pub(crate) fn drain_least(threshold: PageCount, count: PageCount) -> PageCount {
    count.saturating_minus(threshold).plus(headroom(threshold))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pageset::HOLD_MAX;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    #[test]
    fn half_a_word_of_frees_lies_between_moves() {
        for high in [1, 4, 28, 60, 96, 124, 252, 10_000] {
            for slots in [65, 96, 128, 20_000] {
                let threshold = threshold(pages(high), pages(slots));
                assert!(threshold >= pages(64) && threshold >= pages(high));
                assert!(refill_most(threshold, pages(0)).plus(HALF_WORD) <= threshold);
                for count in [threshold, threshold.plus(pages(500))] {
                    let left = count.saturating_minus(drain_least(threshold, count));
                    assert!(left.plus(HALF_WORD) <= threshold, "{left} left of {count} at {threshold}");
                }
            }
        }
    }

    #[test]
    fn long_runs_move_up_to_eight_words_at_once() {
        let runs = [0, 255, 256, 511, 512, 1024, 2047, 2048, 1 << 20].map(pages);
        let refills = runs.map(|run| refill_size(pages(63), run).get());
        assert_eq!(refills, [63, 63, 64, 64, 128, 256, 448, 512, 512]);
        let drains = runs.map(|run| drain_size(pages(63), run, pages(10_000)).get());
        assert_eq!(drains, [63, 63, 63, 63, 65, 193, 385, 449, 449]);
        // Rounded up to a whole word, the largest drain still moves under one hold of the lock, and half stays.
        assert_eq!(drains[8].next_multiple_of(WORD), u64::from(HOLD_MAX));
        let at_once = |count| drain_size(pages(63), pages(1 << 20), pages(count)).get();
        assert_eq!([96, 252, 600].map(at_once), [63, 63, 193]);
    }

    #[test]
    fn thresholds_below_a_word_are_halved() {
        for threshold in [4, 12, 28, 60] {
            assert_eq!(refill_most(pages(threshold), pages(1)), pages(threshold - threshold / 2 - 1));
            assert_eq!(drain_least(pages(threshold), pages(threshold)), pages(threshold / 2));
        }
        assert_eq!(refill_most(pages(60), pages(40)), pages(0));
    }

    #[test]
    fn batches_of_large_zones_stay_as_they_are() {
        let none = pages(0);
        assert_eq!([1, 7, 31, 63].map(|batch| refill_size(pages(batch), none).get()), [32, 32, 32, 63]);
        assert_eq!([1, 7, 31, 63].map(|batch| drain_size(pages(batch), none, none).get()), [63; 4]);
        assert_eq!(threshold(pages(252), pages(400)), pages(252));
    }
}
