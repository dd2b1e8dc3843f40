//! The word of a pageset: room of its stack and four counter differences, in 64 bits.
//!
//! | bits | what |
//! |---|---|
//! | 0..27 | room: empty slots of the stack of single frames |
//! | 28..36, 37..45, 46..54 | differences of the frames allocated as user, cache and kernel pages |
//! | 55..63 | difference of the blocks that the home zone served to this CPU |
//!
//! Differences are kept plus [`BIAS`]. The bit above each
//! field is its *guard*: zero in the word, set by the sums below when a field is beyond its limit.
//! A take adds to all fields that it changes and a give subtracts, so that one addition and one
//! mask tell whether any of them went too far. Neighbours: `cpu_local.rs` compares, `pageset.rs`
//! keeps the word, `counters.rs` says what is left of a difference beyond its limit.

use crate::units::PageKind;

/// Bits of the room.
const ROOM_BITS: u32 = 27;
/// Largest value of the room.
const FREE_SLOTS_MAX: u32 = (1 << ROOM_BITS) - 1;
/// Most slots that a stack can have. One less than the field holds: a take from an empty stack is
/// computed before it is refused, and must not carry into the guard bit, which [`Limits::POP_NONE`]
/// would then clear.
pub(crate) const SLOTS_MAX: u32 = FREE_SLOTS_MAX - 1;
const LANE_BITS: u32 = 8;
/// Lane of the blocks served from home; those before it are of the page kinds.
pub(crate) const SERVED_LANE: usize = PageKind::COUNT;
/// Number of lanes.
const LANES: usize = PageKind::COUNT + 1;
/// What a difference of zero is kept as.
const BIAS: u64 = 128;
/// Largest value of a lane.
const LANE_MAX: u64 = (1 << LANE_BITS) - 1;

const fn shift(lane: usize) -> u32 {
    ROOM_BITS + 1 + lane as u32 * (LANE_BITS + 1)
}

/// One in each lane of a page kind.
const KIND_LANES: u64 = {
    let mut lanes = 0;
    let mut kind = 0;
    while kind < PageKind::COUNT {
        lanes |= 1 << shift(kind);
        kind += 1;
    }
    lanes
};

/// The guard bit of the room.
pub(crate) const FREE_SLOTS_GUARD: u64 = 1 << ROOM_BITS;

/// The guard bits.
pub(crate) const GUARDS: u64 = {
    let mut guards = FREE_SLOTS_GUARD;
    let mut lane = 0;
    while lane < LANES {
        guards |= 1 << (shift(lane) + LANE_BITS);
        lane += 1;
    }
    guards
};
const _: () = assert!(shift(LANES - 1) + LANE_BITS == 63);

/// What the take of one frame adds to the word, by page kind.
pub(crate) const POP_STEPS: [u64; PageKind::COUNT] = {
    let mut steps = PUSH_STEPS;
    let mut kind = 0;
    while kind < PageKind::COUNT {
        steps[kind] += 1 << shift(SERVED_LANE);
        kind += 1;
    }
    steps
};

/// What the give of one frame subtracts from the word, by page kind.
pub(crate) const PUSH_STEPS: [u64; PageKind::COUNT] =
    [1 | 1 << shift(0), 1 | 1 << shift(1), 1 | 1 << shift(2)];

/// Room in a word.
#[inline(always)]
pub(crate) const fn free_slots_of(word: u64) -> usize {
    (word & FREE_SLOTS_MAX as u64) as usize
}

/// A word in use. Invariant: guards are zero, lanes hold -128..=127.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// The word of an empty stack of `slots`, all differences zero.
    pub(crate) const fn empty(slots: u32) -> Self {
        assert!(slots <= SLOTS_MAX);
        let mut bits = slots as u64;
        let mut lane = 0;
        while lane < LANES {
            bits |= BIAS << shift(lane);
            lane += 1;
        }
        Self(bits)
    }

    /// The word with these bits, which are of one in use.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Empty slots.
    pub(crate) const fn free_slots(self) -> u32 {
        free_slots_of(self.0) as u32
    }

    /// The word with another room.
    pub(crate) const fn with_free_slots(self, free_slots: u32) -> Self {
        debug_assert!(free_slots <= FREE_SLOTS_MAX);
        Self(self.0 & !(FREE_SLOTS_MAX as u64) | free_slots as u64)
    }

    /// The difference in a lane.
    pub(crate) const fn difference(self, lane: usize) -> i64 {
        (self.0 >> shift(lane) & LANE_MAX) as i64 - BIAS as i64
    }

    /// The word with another difference in a lane, within -128..=127.
    pub(crate) const fn with_difference(self, lane: usize, difference: i64) -> Self {
        let value = (difference + BIAS as i64) as u64;
        debug_assert!(value <= LANE_MAX);
        Self(self.0 & !(LANE_MAX << shift(lane)) | value << shift(lane))
    }

    /// Whether all differences are zero.
    pub(crate) const fn is_clean(self) -> bool {
        let rooms = FREE_SLOTS_MAX as u64;
        self.0 & !rooms == Self::empty(0).0
    }
}

/// How far a word may go by takes and gives alone. The fields may be beyond what any word can
/// reach, which is no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Largest room that a take may leave.
    pub(crate) free_slots_max: u32,
    /// Smallest room that a give may leave.
    pub(crate) free_slots_min: u32,
    /// Largest size of the differences by page kind.
    pub(crate) kinds: u8,
    /// Largest difference of the blocks served from home.
    pub(crate) served: u8,
}

impl Limits {
    /// The limit of takes that no take keeps.
    pub(crate) const POP_NONE: u64 = FREE_SLOTS_GUARD;
    /// The limit of gives that no give keeps.
    pub(crate) const PUSH_NONE: u64 = 2 * FREE_SLOTS_GUARD - 1;

    /// What is added to the word after a take: a guard shows when a field is above its limit.
    pub(crate) const fn for_pops(self) -> u64 {
        let most = KIND_LANES * self.kinds as u64 + ((self.served as u64) << shift(SERVED_LANE));
        (FREE_SLOTS_MAX - self.free_slots_max) as u64
            | ((KIND_LANES | 1 << shift(SERVED_LANE)) * (LANE_MAX - BIAS) - most)
    }

    /// What the word after a give is subtracted from: a guard shows when a field is below its limit.
    pub(crate) const fn for_pushes(self) -> u64 {
        // The last lane does not change by gives: its guard never shows.
        let shows = KIND_LANES * (LANE_MAX + BIAS - self.kinds as u64) + (LANE_MAX << shift(SERVED_LANE));
        (FREE_SLOTS_MAX as u64 + self.free_slots_min as u64) | shows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn fields_are_apart() {
        let mut random = Random::new(3);
        let (mut word, mut differences) = (Word::empty(7), [0_i64; LANES]);
        for _ in 0..10_000 {
            let lane = random.index(LANES);
            differences[lane] = random.below(251) as i64 - 125;
            let free_slots = random.below(1 << ROOM_BITS) as u32;
            word = word.with_difference(lane, differences[lane]).with_free_slots(free_slots);
            assert_eq!(word.free_slots(), free_slots);
            assert_eq!(core::array::from_fn(|lane| word.difference(lane)), differences);
            assert_eq!(word.is_clean(), differences == [0; LANES]);
            assert_eq!(word.bits() & GUARDS, 0);
        }
    }

    #[test]
    fn an_empty_stack_of_most_slots_gives_nothing() {
        let word = Word::empty(SLOTS_MAX);
        let limits = Limits { free_slots_max: SLOTS_MAX, free_slots_min: 0, kinds: 125, served: 125 };
        for step in POP_STEPS {
            let next = word.bits().wrapping_add(step);
            assert_ne!(next.wrapping_add(limits.for_pops()) & GUARDS, 0);
            assert_ne!(next.wrapping_add(Limits::POP_NONE) & GUARDS, 0);
        }
    }

    /// What the sums say, against what the limits mean, for words around all limits.
    #[test]
    fn guards_show_what_is_beyond_a_limit() {
        let mut random = Random::new(11);
        for _ in 0..20_000 {
            let free_slots_max = random.below(1 << ROOM_BITS) as u32;
            let limits = Limits {
                free_slots_max,
                free_slots_min: random.below(u64::from(free_slots_max) + 1) as u32,
                kinds: random.below(126) as u8,
                served: random.below(126) as u8,
            };
            let kind = random.index(PageKind::COUNT);
            let near =
                |random: &mut Random, limit: i64| (limit + random.below(5) as i64 - 2).clamp(-126, 126);
            let mut word = Word::empty(0);
            for lane in 0..SERVED_LANE {
                let within = i64::from(limits.kinds);
                let sign = if random.below(2) == 0 { 1 } else { -1 };
                word = word.with_difference(lane, near(&mut random, sign * within).clamp(-within, within));
            }
            word = word.with_difference(
                SERVED_LANE,
                near(&mut random, i64::from(limits.served)).min(i64::from(limits.served)),
            );
            let edge = if random.below(2) == 0 { limits.free_slots_max } else { limits.free_slots_min };
            let free_slots =
                (i64::from(edge) + random.below(5) as i64 - 2).clamp(0, i64::from(SLOTS_MAX)) as u32;
            word = word.with_free_slots(free_slots);

            let beyond = free_slots + 1 > limits.free_slots_max
                || word.difference(kind) + 1 > i64::from(limits.kinds)
                || word.difference(SERVED_LANE) + 1 > i64::from(limits.served);
            let next = word.bits().wrapping_add(POP_STEPS[kind]);
            assert_eq!(next.wrapping_add(limits.for_pops()) & GUARDS != 0, beyond, "{limits:?} {word:?}");
            assert_ne!(next.wrapping_add(Limits::POP_NONE) & GUARDS, 0);

            let beyond = i64::from(free_slots) - 1 < i64::from(limits.free_slots_min)
                || word.difference(kind) - 1 < -i64::from(limits.kinds);
            let next = word.bits().wrapping_sub(PUSH_STEPS[kind]);
            assert_eq!(limits.for_pushes().wrapping_sub(next) & GUARDS != 0, beyond, "{limits:?} {word:?}");
            assert_ne!(Limits::PUSH_NONE.wrapping_sub(next) & GUARDS, 0);
        }
    }
}
