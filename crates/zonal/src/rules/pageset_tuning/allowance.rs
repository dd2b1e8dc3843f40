//! What may happen to a pageset without its lock until the next session.
//!
//! A tuning rule does not see steps without the lock. The next session *folds* them: it applies the rule once, to the
//! frames popped minus the frames pushed. An allowance permits only steps after which this has the same result as the
//! rule's own steps, one by one:
//!
//! | rule | state | allowed | why the sum is enough |
//! |---|---|---|---|
//! | depth | any | pops and pushes whose sum goes no deeper than `alloc_depth` and `free_depth` | the depths stay, and the two distances change by the sum |
//! | depth | the last step was a pop deeper than all before | pops only | distance and depth grow by the sum, or have saturated |
//! | depth | the last step was a push deeper than all before | pushes only | the same |
//! | depth | the period is nearly over; always under past forms | no pushes | each push must check the time |
//! | stepwise | in the [cycle](super::StepwiseState::leeway) | pops and pushes whose sum stays in the cycle | a pop and a push undo each other |
//! | stepwise | else | the direction of the last step only | n halvings and n additions have a closed form |
//! | fixed | any | everything | there is no state |
//!
//! In every state, the push that reaches `high` takes the lock, because it drains. The sums are exact; which push ends a
//! period depends on ticks (`pageset/depth_cells.rs`).

/// Largest leeway of blocks, so that it cannot overflow.
const BLOCK_LEEWAY_MAX: i64 = 1 << 24;
/// Smallest leeway of single frames that is worth having: they then need the lock once in so many steps.
const SINGLE_LEEWAY_MIN: i64 = 64;
/// A bound that no stack reaches.
const UNBOUNDED: i64 = u32::MAX as i64;

/// How many more frames may be popped than pushed, and pushed than popped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leeway {
    /// Frames that may be popped in excess of those pushed.
    pub pops: u32,
    /// Frames that may be pushed in excess of those popped.
    pub pushes: u32,
}

impl Leeway {
    /// No step may follow.
    pub const NONE: Self = Self { pops: 0, pushes: 0 };

    /// Returns the leeway after a pop of `pages` frames, or `None` if there is too little.
    #[inline]
    #[must_use]
    pub fn after_pop(self, pages: u32) -> Option<Self> {
        Some(Self { pops: self.pops.checked_sub(pages)?, pushes: self.pushes + pages })
    }

    /// Returns the leeway after a push of `pages` frames, or `None` if there is too little.
    #[inline]
    #[must_use]
    pub fn after_push(self, pages: u32) -> Option<Self> {
        Some(Self { pops: self.pops + pages, pushes: self.pushes.checked_sub(pages)? })
    }

    #[inline]
    pub(crate) const fn from_word(word: u64) -> Self {
        Self { pops: word as u32, pushes: (word >> 32) as u32 }
    }

    #[inline]
    pub(crate) const fn word(self) -> u64 {
        self.pops as u64 | (self.pushes as u64) << 32
    }
}

/// Bounds on what may happen to a pageset without its lock until the next session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// Single frames that may be popped in excess of those pushed; `None` if the first pop takes the lock.
    pub pops: Option<i64>,
    /// Single frames that may be pushed in excess of those popped; `None` if the first push takes the lock. A negative
    /// number allows pushes only after pops.
    pub pushes: Option<i64>,
    /// The part for blocks with more than one frame, which the other bounds exclude.
    pub blocks: Leeway,
}

impl Allowance {
    /// Allows every step.
    pub const ALL: Self = Self { pops: Some(UNBOUNDED), pushes: Some(UNBOUNDED), blocks: Leeway::NONE };

    /// Allows steps in the direction of a step that popped `frames` frames, or pushed them if the number is negative.
    #[must_use]
    pub fn run(frames: i64) -> Self {
        let bound = |is_allowed: bool| is_allowed.then_some(UNBOUNDED);
        Self { pops: bound(frames > 0), pushes: bound(frames < 0), ..Self::ALL }
    }

    /// Allows steps whose sum is within `leeway`.
    #[must_use]
    pub fn within(leeway: Leeway) -> Self {
        Self { pops: Some(leeway.pops.into()), pushes: Some(leeway.pushes.into()), ..Self::ALL }
    }

    /// Returns the allowance of a pageset that may gain `growth` frames before it drains.
    #[must_use]
    pub fn with_growth(self, growth: i64) -> Self {
        Self { pushes: self.pushes.map(|pushes| pushes.min(growth)), ..self }
    }

    /// Returns the allowance with a part for blocks, the last of which had `pages` frames, or 0 if there were no blocks.
    ///
    /// The part is half of what is allowed, or one block if that is more. If this leaves too little for single frames,
    /// all is for what took the lock now: for blocks if that was a block (`is_block`), or else for single frames.
    #[inline]
    #[must_use]
    pub fn shared_with_blocks(self, pages: u32, is_block: bool) -> Self {
        let (Some(pops), Some(pushes)) = (self.pops, self.pushes) else { return self };
        let share = |all: i64| {
            let share = all.min(i64::from(pages).max(all / 2)).clamp(0, BLOCK_LEEWAY_MAX);
            if pages != 0 && (is_block || all - share >= SINGLE_LEEWAY_MIN) { share } else { 0 }
        };
        let [of_pops, of_pushes] = [share(pops), share(pushes)];
        let blocks = Leeway { pops: of_pops as u32, pushes: of_pushes as u32 };
        Self { pops: Some(pops - of_pops), pushes: Some(pushes - of_pushes), blocks }
    }
}

#[cfg(test)]
mod tests;
