//! The word of a pageset: the free slots of its stack and four counter differences, in 64 bits.
//!
//! | bits | content |
//! |---|---|
//! | 0..27 | free slots of the single-frame stack |
//! | 28..36, 37..45, 46..54 | differences of the frames allocated as user, cache and kernel pages |
//! | 55..63 | difference of the blocks that the preferred zone served to this CPU |
//!
//! Differences are stored with [`BIAS`] added. The bit above each field is its *guard*: it is zero in the word.
//! Adding a limit to the word, or subtracting the word from a limit, sets the guards of the fields that exceed their
//! limits, so one addition and one mask test all fields.
//!
//! Related files: `platform/pageset_slot.rs` compares words with limits, `pageset/guard.rs` and `pageset/steps.rs`
//! change the word under the lock, and `zone/counters.rs` folds differences.

use crate::units::PageKind;

/// Bits of the free-slot field.
const FREE_SLOTS_BITS: u32 = 27;
/// Largest value of the free-slot field.
const FREE_SLOTS_MAX: u32 = (1 << FREE_SLOTS_BITS) - 1;
/// Largest number of slots in a stack: one less than the maximum of the field. A pop from an empty stack computes the
/// new word before it fails, and this sum must not carry into the guard bit, because adding [`POP_NONE`]
/// would then clear that bit.
pub(crate) const SLOTS_MAX: u32 = FREE_SLOTS_MAX - 1;
const LANE_BITS: u32 = 8;
/// Lane of the blocks served from the preferred zone, where a *lane* is the field of one difference. The lanes before
/// it belong to the page kinds.
pub(crate) const SERVED_LANE: usize = PageKind::COUNT;
/// Number of lanes.
const LANES: usize = PageKind::COUNT + 1;
/// The stored value that means a difference of zero.
const BIAS: u64 = 128;
/// Largest value of a lane.
const LANE_MAX: u64 = (1 << LANE_BITS) - 1;

const fn shift(lane: usize) -> u32 {
    FREE_SLOTS_BITS + 1 + lane as u32 * (LANE_BITS + 1)
}

/// The value 1 in each lane of a page kind.
const KIND_LANES: u64 = 1 << shift(0) | 1 << shift(1) | 1 << shift(2);

/// The value 1 in each lane.
const ALL_LANES: u64 = KIND_LANES | SERVED_STEP;

/// The guard bit of the free slots.
pub(crate) const FREE_SLOTS_GUARD: u64 = 1 << FREE_SLOTS_BITS;

/// All guard bits.
pub(crate) const GUARDS: u64 = FREE_SLOTS_GUARD | ALL_LANES << LANE_BITS;
const _: () = assert!(shift(LANES - 1) + LANE_BITS == 63);

/// The value that a pop adds to the word of a pageset, or that a push subtracts from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Step(u64);

impl Step {
    /// Returns the value to add or subtract with wrapping arithmetic.
    #[inline(always)]
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// The value that the pop of one frame adds to the word, by page kind.
pub(crate) const POP_STEPS: [Step; PageKind::COUNT] = [
    Step(PUSH_STEPS[0].0 | SERVED_STEP),
    Step(PUSH_STEPS[1].0 | SERVED_STEP),
    Step(PUSH_STEPS[2].0 | SERVED_STEP),
];

/// The value that the pop of a block with more than one frame adds to the word, without the difference of its kind.
pub(crate) const SERVED_STEP: u64 = 1 << shift(SERVED_LANE);
/// The guard of the served-block lane.
pub(crate) const SERVED_GUARD: u64 = 1 << (shift(SERVED_LANE) + LANE_BITS);

/// Returns the value that popping `frames` frames of a kind adds to the word, and a push subtracts from it.
///
/// With at most 64 frames, a sum with a limit does not carry beyond the guard of the kind.
#[inline(always)]
pub(crate) const fn kind_step(kind: PageKind, frames: u32) -> u64 {
    (frames as u64) << shift(kind as usize)
}

/// Returns the guard of a kind's lane.
#[inline(always)]
pub(crate) const fn kind_guard(kind: PageKind) -> u64 {
    1 << (shift(kind as usize) + LANE_BITS)
}

/// The value that the push of one frame subtracts from the word, by page kind.
pub(crate) const PUSH_STEPS: [Step; PageKind::COUNT] =
    [Step(1 | 1 << shift(0)), Step(1 | 1 << shift(1)), Step(1 | 1 << shift(2))];

/// Returns the index of the top frame in the slots, which is the number of free slots in a word.
#[inline(always)]
pub(crate) const fn top_of(word: u64) -> usize {
    (word & FREE_SLOTS_MAX as u64) as usize
}

/// The word of a pageset in use.
///
/// Invariant: all guards are zero, and the difference in each lane is within -128..=127.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PagesetWord(pub(crate) u64);

impl PagesetWord {
    /// Returns the word of an empty stack with `slots` slots, with all differences zero.
    pub(crate) const fn empty(slots: u32) -> Self {
        assert!(slots <= SLOTS_MAX);
        Self(slots as u64 | (BIAS * ALL_LANES))
    }

    /// Returns the number of free slots.
    pub(crate) const fn free_slots(self) -> u32 {
        top_of(self.0) as u32
    }

    /// Returns the word with another number of free slots.
    pub(crate) const fn with_free_slots(self, free_slots: u32) -> Self {
        debug_assert!(free_slots <= FREE_SLOTS_MAX);
        Self(self.0 & !(FREE_SLOTS_MAX as u64) | free_slots as u64)
    }

    /// Returns the difference in a lane.
    pub(crate) const fn difference(self, lane: usize) -> i64 {
        (self.0 >> shift(lane) & LANE_MAX) as i64 - BIAS as i64
    }

    /// Returns the word with another difference in a lane, within -128..=127.
    pub(crate) const fn with_difference(self, lane: usize, difference: i64) -> Self {
        let value = (difference + BIAS as i64) as u64;
        debug_assert!(value <= LANE_MAX);
        Self(self.0 & !(LANE_MAX << shift(lane)) | value << shift(lane))
    }

    /// Whether all differences are zero.
    pub(crate) const fn is_clean(self) -> bool {
        let all = FREE_SLOTS_MAX as u64;
        self.0 & !all == Self::empty(0).0
    }
}

/// The limit at which every pop fails.
pub(crate) const POP_NONE: u64 = FREE_SLOTS_GUARD;
/// The limit at which every push fails, also on a full stack, where the field of free slots underflows into its guard.
pub(crate) const PUSH_NONE: u64 = 2 * FREE_SLOTS_GUARD - 2;

/// Returns the value to add to the word after a pop. In the sum, a guard is set if its field is above its limit.
///
/// `free_slots_max` is the largest number of free slots that a pop may leave, `kinds` the largest absolute value of the
/// differences by page kind, and `served` that of the blocks served from the preferred zone. A field that no word can exceed
/// sets no limit.
pub(crate) const fn limit_of_pops(free_slots_max: u32, kinds: u8, served: u8) -> u64 {
    let most = KIND_LANES * kinds as u64 + ((served as u64) << shift(SERVED_LANE));
    (FREE_SLOTS_MAX - free_slots_max) as u64 | (ALL_LANES * (LANE_MAX - BIAS) - most)
}

/// Returns the value from which to subtract the word after a push. In the result, a guard is set if its field is below its
/// limit: `free_slots_min` free slots, and differences of -`kinds` by page kind.
pub(crate) const fn limit_of_pushes(free_slots_min: u32, kinds: u8) -> u64 {
    // Pushes do not change the last lane, so its guard must never be set.
    let shows = KIND_LANES * (LANE_MAX + BIAS - kinds as u64) + (LANE_MAX << shift(SERVED_LANE));
    (FREE_SLOTS_MAX as u64 + free_slots_min as u64) | shows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn fields_are_apart() {
        let mut random = Random::new(3);
        let (mut word, mut differences) = (PagesetWord::empty(7), [0_i64; LANES]);
        for _ in 0..10_000 {
            let lane = random.index(LANES);
            differences[lane] = random.below(251) as i64 - 125;
            let free_slots = random.below(1 << FREE_SLOTS_BITS) as u32;
            word = word.with_difference(lane, differences[lane]).with_free_slots(free_slots);
            assert_eq!(word.free_slots(), free_slots);
            assert_eq!(core::array::from_fn(|lane| word.difference(lane)), differences);
            assert_eq!(word.is_clean(), differences == [0; LANES]);
            assert_eq!(word.0 & GUARDS, 0);
        }
    }

    #[test]
    fn a_pop_of_an_empty_stack_of_the_maximum_depth_returns_nothing() {
        let word = PagesetWord::empty(SLOTS_MAX);
        for step in POP_STEPS {
            let next = word.0.wrapping_add(step.0);
            assert_ne!(next.wrapping_add(limit_of_pops(SLOTS_MAX, 125, 125)) & GUARDS, 0);
            assert_ne!(next.wrapping_add(POP_NONE) & GUARDS, 0);
        }
    }

    /// Code under the lock tests only the guard of the free slots, so that guard must show both limits for every word.
    #[test]
    fn limits_of_none_refuse_full_and_empty_stacks() {
        for free_slots in [0, 1, 2, FREE_SLOTS_MAX / 2, SLOTS_MAX - 1, SLOTS_MAX] {
            let word = PagesetWord::empty(free_slots).0;
            for (pop, push) in POP_STEPS.into_iter().zip(PUSH_STEPS) {
                let popped = word.wrapping_add(pop.0).wrapping_add(POP_NONE);
                assert_ne!(popped & FREE_SLOTS_GUARD, 0, "a pop from {free_slots} free slots");
                let pushed = PUSH_NONE.wrapping_sub(word.wrapping_sub(push.0));
                assert_ne!(pushed & FREE_SLOTS_GUARD, 0, "a push onto {free_slots} free slots");
            }
        }
    }

    /// Compares the sums with the definition of the limits, for words around all limits.
    #[test]
    fn guards_show_what_is_beyond_a_limit() {
        let mut random = Random::new(11);
        for _ in 0..20_000 {
            let free_slots_max = random.below(1 << FREE_SLOTS_BITS) as u32;
            let free_slots_min = random.below(u64::from(free_slots_max) + 1) as u32;
            let [kinds, served] = [0; 2].map(|_| random.below(126) as u8);
            let kind = random.index(PageKind::COUNT);
            let near =
                |random: &mut Random, limit: i64| (limit + random.below(5) as i64 - 2).clamp(-126, 126);
            let mut word = PagesetWord::empty(0);
            for lane in 0..SERVED_LANE {
                let within = i64::from(kinds);
                let sign = if random.below(2) == 0 { 1 } else { -1 };
                word = word.with_difference(lane, near(&mut random, sign * within).clamp(-within, within));
            }
            word = word
                .with_difference(SERVED_LANE, near(&mut random, i64::from(served)).min(i64::from(served)));
            let edge = if random.below(2) == 0 { free_slots_max } else { free_slots_min };
            let free_slots =
                (i64::from(edge) + random.below(5) as i64 - 2).clamp(0, i64::from(SLOTS_MAX)) as u32;
            word = word.with_free_slots(free_slots);

            let beyond = free_slots + 1 > free_slots_max
                || word.difference(kind) + 1 > i64::from(kinds)
                || word.difference(SERVED_LANE) + 1 > i64::from(served);
            let next = word.0.wrapping_add(POP_STEPS[kind].0);
            assert_eq!(
                next.wrapping_add(limit_of_pops(free_slots_max, kinds, served)) & GUARDS != 0,
                beyond,
                "{word:?}"
            );
            assert_ne!(next.wrapping_add(POP_NONE) & GUARDS, 0);

            let beyond = i64::from(free_slots) - 1 < i64::from(free_slots_min)
                || word.difference(kind) - 1 < -i64::from(kinds);
            let next = word.0.wrapping_sub(PUSH_STEPS[kind].0);
            assert_eq!(
                limit_of_pushes(free_slots_min, kinds).wrapping_sub(next) & GUARDS != 0,
                beyond,
                "{word:?}"
            );
            assert_ne!(PUSH_NONE.wrapping_sub(next) & GUARDS, 0);
        }
    }
}
