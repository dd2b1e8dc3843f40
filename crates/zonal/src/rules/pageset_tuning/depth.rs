//! `Depth`: `pageset.high` follows how deep allocation and freeing went in the last periods.
//!
//! Vocabulary: `alloc_count` is frames taken minus frames given since the period began, and
//! `alloc_low`, `alloc_high` are its extremes; the *allocation depth* is the most that it rose
//! above its low, the *free depth* the most that it fell below its high. What is kept is only
//! where the count stands between its extremes (`alloc_count - alloc_low` and
//! `alloc_high - alloc_count`): depths need no more, and so a take or a give works on two words.
//! Source: Huang 2023, RFC "alloc/free depth based PCP high auto-tuning".

use core::sync::atomic::Ordering::Relaxed;

use super::HighLimits;
use crate::zone::counters::CpuGuard;
use crate::platform::{Atomic, Platform};
use crate::units::{Moment, Order, PageCount, SECOND_NS};

/// Length of a period.
const PERIOD_NS: u64 = SECOND_NS;
/// From when on frees are watched, so that the first after the end of the period closes it.
const WATCH_NS: u64 = PERIOD_NS - PERIOD_NS / 16;

/// A depth, in frames, of allocation and one of freeing; each stops at 2^32 - 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Depths {
    alloc: u32,
    free: u32,
}

impl Depths {
    /// Depth of allocation.
    #[must_use]
    pub const fn alloc(self) -> PageCount {
        PageCount::new(self.alloc as u64)
    }

    /// Depth of freeing.
    #[must_use]
    pub const fn free(self) -> PageCount {
        PageCount::new(self.free as u64)
    }

    /// Where the count stands after it rose by some frames: the same low, the high pushed up.
    const fn after_take(self, pages: u32) -> Self {
        Self { alloc: self.alloc.saturating_add(pages), free: self.free.saturating_sub(pages) }
    }

    /// Where the count stands after it fell by some frames: the same high, the low pushed down.
    const fn after_give(self, pages: u32) -> Self {
        Self { alloc: self.alloc.saturating_sub(pages), free: self.free.saturating_add(pages) }
    }

    fn deepest(self, other: Self) -> Self {
        Self { alloc: self.alloc.max(other.alloc), free: self.free.max(other.free) }
    }

    const fn midpoint(self, other: Self) -> Self {
        Self { alloc: self.alloc.midpoint(other.alloc), free: self.free.midpoint(other.free) }
    }

    const fn from_word(word: u64) -> Self {
        Self { alloc: word as u32, free: (word >> 32) as u32 }
    }

    const fn word(self) -> u64 {
        self.alloc as u64 | (self.free as u64) << 32
    }
}

/// What the rule remembers of one pageset. Zero is the state before the first period.
/// Invariant: within a period `deepest >= position`, direction by direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DepthState {
    /// `alloc_count - alloc_low` and `alloc_high - alloc_count`.
    position: Depths,
    /// `alloc_depth` and `free_depth`, of this period.
    deepest: Depths,
    /// `avg_alloc` and `avg_free`, of the periods before.
    average: Depths,
    /// When the period began.
    start: Moment,
}

impl DepthState {
    /// Counts a block that was taken from the pageset.
    pub fn on_take(&mut self, order: Order) {
        self.position = self.position.after_take(pages(order));
        self.deepest = self.deepest.deepest(self.position);
    }

    /// Counts a block that was given to the pageset, and closes a period that is over: then a new
    /// `pageset.high` is returned.
    pub fn on_give(&mut self, order: Order, now: Moment, limits: HighLimits) -> Option<PageCount> {
        self.position = self.position.after_give(pages(order));
        self.deepest = self.deepest.deepest(self.position);
        is_period_over(self.start, now).then(|| self.close_period(now, limits))
    }

    /// Ends the period and says what `pageset.high` is from now on.
    fn close_period(&mut self, now: Moment, limits: HighLimits) -> PageCount {
        if limits.is_disabled() {
            self.start = Moment::default(); // so that the first free once enabled starts afresh
            return PageCount::ZERO;
        }
        let average = self.average.midpoint(self.deepest);
        if ns_apart(self.start, now) > 2 * PERIOD_NS {
            *self = Self { start: now, ..Self::default() }; // what was averaged is too old
            return limits.min();
        }
        *self = Self { average, start: now, ..Self::default() };
        limits.clamp(PageCount::new(u64::from(average.alloc.min(average.free))))
    }

    /// The deepest of this period: `alloc_depth` and `free_depth`.
    #[must_use]
    pub const fn deepest(&self) -> Depths {
        self.deepest
    }

    /// The averages that `high` comes from: `avg_alloc` and `avg_free`.
    #[must_use]
    pub const fn average(&self) -> Depths {
        self.average
    }

    /// When the period began; zero before the first and when disabled.
    #[must_use]
    pub const fn start(&self) -> Moment {
        self.start
    }
}

const fn is_period_over(start: Moment, now: Moment) -> bool {
    ns_apart(start, now) > PERIOD_NS
}

/// A clock that went backwards by more than a period must not keep one open until it has caught up.
const fn ns_apart(start: Moment, now: Moment) -> u64 {
    now.ns().abs_diff(start.ns())
}

const fn pages(order: Order) -> u32 {
    order.pages().get() as u32
}

/// Frames that may be taken, and given, before a depth grows; see [`DepthCells::leeway`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leeway {
    pub(crate) takes: u32,
    pub(crate) gives: u32,
}

/// What the last step was part of: a run of takes or of gives, each deeper than any step in that
/// direction before in the period, or neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Run {
    Climb,
    Dive,
    None,
}

/// Cells that a [`DepthState`] takes.
pub(crate) const DEPTH_CELLS: usize = 4;
const POSITION: usize = 0;
const DEEPEST: usize = 1;
const AVERAGE: usize = 2;
const START: usize = 3;

/// A [`DepthState`] in cells, guarded by the pageset's lock. All zero is the fresh state.
///
/// Most frees within the known depths are not looked at one by one. When a period is nearly over the
/// next tick has them *watched* until one of them closes it: only a free can, as in the rule.
///
/// Every access is relaxed: the lock that the guard stands for orders the holders, and others
/// only look at values that may be out of date.
pub(crate) struct DepthCells<'a, P: Platform>(&'a [P::U64; DEPTH_CELLS]);

impl<'a, P: Platform> DepthCells<'a, P> {
    pub(crate) const fn new(cells: &'a [P::U64; DEPTH_CELLS]) -> Self {
        Self(cells)
    }

    /// [`DepthState::on_take`]; says whether allocation is now deeper than ever in its period.
    #[inline]
    pub(crate) fn on_take(&self, order: Order, _guard: &impl CpuGuard) -> Run {
        let before = self.moved_to(self.depths(POSITION).after_take(pages(order)));
        if self.depths(DEEPEST).alloc > before.alloc { Run::Climb } else { Run::None }
    }

    /// Takes of so many single frames, or below zero gives, of which each but the last few in one
    /// direction stayed within what [`DepthCells::leeway`] allowed.
    pub(crate) fn moved(&self, frames: i64, _guard: &impl CpuGuard) {
        let (position, pages) = (self.depths(POSITION), frames.unsigned_abs() as u32);
        let moved = if frames > 0 { position.after_take(pages) } else { position.after_give(pages) };
        self.moved_to(moved);
    }

    /// How far takes and gives of single frames may go from here before one of them reaches
    /// deeper than any in this period.
    pub(crate) fn leeway(&self, _guard: &impl CpuGuard) -> Leeway {
        let (position, deepest) = (self.depths(POSITION), self.depths(DEEPEST));
        let left = |deepest: u32, position: u32| deepest.saturating_sub(position);
        Leeway { takes: left(deepest.alloc, position.alloc), gives: left(deepest.free, position.free) }
    }

    /// The first half of [`DepthState::on_give`]; says whether freeing is now deeper than ever in its
    /// period. [`Self::end_period`] is the other half.
    #[inline]
    pub(crate) fn on_give(&self, order: Order, _guard: &impl CpuGuard) -> Run {
        let before = self.moved_to(self.depths(POSITION).after_give(pages(order)));
        if self.depths(DEEPEST).free > before.free { Run::Dive } else { Run::None }
    }

    /// Closes a period that is over: then a new `pageset.high` is returned.
    #[inline]
    pub(crate) fn end_period(&self, now: Moment, limits: impl FnOnce() -> HighLimits) -> Option<PageCount> {
        self.is_period_over(now).then(|| self.close_period(now, limits()))
    }

    /// Whether a period is over, as of some moment.
    pub(crate) fn is_period_over(&self, now: Moment) -> bool {
        is_period_over(self.start(), now)
    }

    /// Whether a period is over or nearly so, as of some moment.
    pub(crate) fn is_period_nearly_over(&self, now: Moment) -> bool {
        ns_apart(self.start(), now) > WATCH_NS
    }

    fn start(&self) -> Moment {
        Moment::from_ns(self.0[START].load(Relaxed))
    }

    /// Notes the position; gives the deepest ones before.
    #[inline]
    fn moved_to(&self, position: Depths) -> Depths {
        self.0[POSITION].store(position.word(), Relaxed);
        let before = self.depths(DEEPEST);
        let deepest = before.deepest(position);
        if deepest != before {
            self.0[DEEPEST].store(deepest.word(), Relaxed);
        }
        before
    }

    #[cold]
    fn close_period(&self, now: Moment, limits: HighLimits) -> PageCount {
        let mut state = self.load();
        let high = state.close_period(now, limits);
        self.store(state);
        high
    }

    /// Forgets everything, as when the pageset's CPU goes or comes or the tuning changes.
    pub(crate) fn reset(&self, _guard: &impl CpuGuard) {
        self.store(DepthState::default());
    }

    /// A copy for people to look at; torn when the pageset is in use.
    pub(crate) fn load(&self) -> DepthState {
        DepthState {
            position: self.depths(POSITION),
            deepest: self.depths(DEEPEST),
            average: self.depths(AVERAGE),
            start: self.start(),
        }
    }

    fn store(&self, state: DepthState) {
        self.0[POSITION].store(state.position.word(), Relaxed);
        self.0[DEEPEST].store(state.deepest.word(), Relaxed);
        self.0[AVERAGE].store(state.average.word(), Relaxed);
        self.0[START].store(state.start.ns(), Relaxed);
    }

    #[inline]
    fn depths(&self, cell: usize) -> Depths {
        Depths::from_word(self.0[cell].load(Relaxed))
    }
}

#[cfg(test)]
mod tests;
