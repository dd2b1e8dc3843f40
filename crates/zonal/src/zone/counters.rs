//! Zoned counters: totals per zone and node, with a small difference on each CPU.
//!
//! Up to eight *items* share one *word* per CPU: eight lanes, each a *difference* of type `i8`. To *fold* is to move
//! differences to the totals. The *threshold* is the largest difference that stays on a CPU. An *overstep* folds half a
//! threshold more than the difference, so that a run in one direction folds only once every one and a half thresholds.
//! Source: Lameter 2006, Linux df9ecaba3f15. Neighbours: `rules/stat_threshold.rs` has the rules; the words are in the
//! pagesets (`pageset/mod.rs`) and guarded with them; `zone/mod.rs` and `zone/node.rs` hold the totals.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};
use crate::rules::stat_threshold::{FoldRule, MAX_STAT_THRESHOLD};

/// Proof that only the caller may write the words of one CPU in one zone or node.
///
/// A value of the type exists only while the lock of that pageset is held.
pub(crate) trait CpuGuard {}

/// Lanes of a word.
const LANES: usize = 8;
/// Cells of the totals of one zone or node: a cache line.
pub(crate) const TOTAL_CELLS: usize = LANES;
/// The last cell counts folds: no item uses it.
const FOLDS: usize = LANES - 1;

/// The items of a zone or of a node.
pub(crate) trait Item: Copy {
    /// Returns its lane in the words and its cell in the totals, below [`FOLDS`].
    fn lane(self) -> usize;
}

/// What is counted per zone: frames in `Free`, blocks in the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZoneItem {
    /// Free frames. Linux: `NR_FREE_PAGES`.
    Free,
    /// Blocks served from the preferred node.
    NumaHit,
    /// Blocks served from this zone although another node was preferred.
    NumaMiss,
    /// Blocks served from another node although this one was preferred.
    NumaForeign,
    /// Blocks that interleaving served from its target.
    InterleaveHit,
    /// Blocks served to a CPU of this node.
    NumaLocal,
    /// Blocks served to a CPU of another node.
    NumaOther,
}

impl ZoneItem {
    /// All items, by lane.
    pub(crate) const ALL: [Self; 7] = [
        Self::Free,
        Self::NumaHit,
        Self::NumaMiss,
        Self::NumaForeign,
        Self::InterleaveHit,
        Self::NumaLocal,
        Self::NumaOther,
    ];
}

impl Item for ZoneItem {
    #[inline]
    fn lane(self) -> usize {
        self as usize
    }
}

/// What is counted per node, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeItem {
    /// Frames allocated as user pages.
    User,
    /// Frames allocated as cache pages.
    Cache,
    /// Frames allocated as kernel pages.
    Kernel,
    /// Frames freed by background reclaim.
    ReclaimedBackground,
    /// Frames freed by direct reclaim.
    ReclaimedDirect,
    /// Frames freed by node reclaim.
    ReclaimedNode,
}

impl NodeItem {
    /// All items, by lane.
    pub(crate) const ALL: [Self; 6] = [
        Self::User,
        Self::Cache,
        Self::Kernel,
        Self::ReclaimedBackground,
        Self::ReclaimedDirect,
        Self::ReclaimedNode,
    ];
}

impl Item for NodeItem {
    #[inline]
    fn lane(self) -> usize {
        self as usize
    }
}

const _: () = assert!(ZoneItem::ALL.len() <= FOLDS && NodeItem::ALL.len() <= FOLDS);

all_zero! {
    /// The thresholds of one zone or node. Read by each update, so it should share a cache line with what is rarely
    /// written.
    ///
    /// One cell holds everything that the threshold in force depends on, so that its two kinds of writers cannot undo
    /// each other's changes: settings replace the values, background reclaim counts its workers.
    ///
    /// | bits | content |
    /// |---|---|
    /// | 0..8, 8..16 | threshold and overstep at rest |
    /// | 16..24, 24..32 | threshold and overstep under pressure |
    /// | 32..64 | number of background workers awake |
    ///
    /// Invariant: `overstep <= threshold / 2` in both pairs.
    #[repr(C)]
    pub(crate) struct ThresholdCells<P> {
        word: u64,
    }
}

/// One background worker awake.
const AWAKE: u64 = 1 << 32;

/// The thresholds of a zone; with zero every count goes to the totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thresholds {
    /// Threshold at rest.
    pub(crate) rest: u8,
    /// Threshold while background reclaim of the node is awake.
    pub(crate) pressed: u8,
}

/// A threshold with its overstep: how far beyond zero a step of one leaves a difference that exceeded the threshold.
#[derive(Clone, Copy)]
struct InForce(u64);

impl InForce {
    const fn most(self) -> u8 {
        self.0 as u8
    }

    const fn overstep(self) -> u8 {
        (self.0 >> 8) as u8
    }
}

impl<P: Platform> ThresholdCells<P> {
    #[inline]
    fn in_force(&self) -> InForce {
        let word = self.word.load(Relaxed);
        InForce(if word < AWAKE { word } else { word >> 16 })
    }
}

/// The counters of one zone or node: a view of its cells. All zero is the initial state.
///
/// Invariant, item by item, between updates: the value = `totals + Σ differences of all CPUs`. After each update
/// `|difference| <= threshold`, unless the threshold has fallen since. Totals of the machine, if any, = `Σ totals` of
/// all views that share them.
///
/// Every access is relaxed: a word has one writer at a time, ordered by the lock that its guard represents; totals
/// change by atomic additions that commute; readers may be out of date.
pub(crate) struct ZonedCounters<'m, P: Platform, I> {
    /// Written by folds; shared by all CPUs.
    totals: &'m [P::U64; TOTAL_CELLS],
    threshold: &'m ThresholdCells<P>,
    /// Also written by folds.
    machine: Option<&'m [P::U64; TOTAL_CELLS]>,
    items: PhantomData<I>,
}

impl<P: Platform, I> Clone for ZonedCounters<'_, P, I> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, I> Copy for ZonedCounters<'_, P, I> {}

impl<'m, P: Platform, I: Item> ZonedCounters<'m, P, I> {
    pub(crate) const fn new(totals: &'m [P::U64; TOTAL_CELLS], threshold: &'m ThresholdCells<P>) -> Self {
        Self { totals, threshold, machine: None, items: PhantomData }
    }

    /// Returns the same counters, with the totals of the whole machine added.
    pub(crate) const fn with_machine(self, machine: Option<&'m [P::U64; TOTAL_CELLS]>) -> Self {
        Self { machine, ..self }
    }

    /// Adds one in the CPU's word.
    #[inline]
    pub(crate) fn increment(&self, word: &P::U64, item: I, guard: &impl CpuGuard) {
        self.update(word, guard, |counts| counts.increment(item));
    }

    /// Adds `amount` in the CPU's word.
    #[inline]
    pub(crate) fn add(&self, word: &P::U64, item: I, amount: i64, guard: &impl CpuGuard) {
        self.update(word, guard, |counts| counts.add(item, amount));
    }

    /// Performs several counts for the cost of one: the word is read and written once.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        word: &P::U64,
        _guard: &impl CpuGuard,
        count: impl FnOnce(&mut Counts<'_, 'm, P, I>),
    ) {
        let mut counts = Counts { lanes: Lanes(word.load(Relaxed)), counters: self };
        count(&mut counts);
        word.store(counts.lanes.0, Relaxed);
    }

    /// Adds `amount` to a CPU's `difference`; returns what stays of it and moves the rest to the totals.
    #[inline]
    pub(crate) fn leave(&self, item: I, difference: i64, amount: i64) -> i64 {
        let sum = difference.wrapping_add(amount);
        let left = self.remainder_of(sum, amount);
        if left != sum {
            self.fold_lane(item.lane(), sum.wrapping_sub(left));
        }
        left
    }

    /// As [`Self::leave`] for items that are counted together, with `most` as the largest difference.
    #[inline]
    pub(crate) fn leave_all(&self, items: [I; 2], difference: i64, amount: i64, most: i64) -> i64 {
        let sum = difference + amount;
        let left = remainder_of(sum, amount, most, self.overstep().min(most / 2));
        if left != sum {
            items.into_iter().for_each(|item| self.fold_lane(item.lane(), sum - left));
        }
        left
    }

    /// Returns what stays on a CPU of a difference that has become `sum` by adding `amount`.
    #[inline]
    pub(crate) fn remainder_of(&self, sum: i64, amount: i64) -> i64 {
        let threshold = self.threshold.in_force();
        remainder_of(sum, amount, i64::from(threshold.most()), i64::from(threshold.overstep()))
    }

    /// Returns how far beyond zero a step of one leaves a difference that exceeded the threshold.
    #[inline]
    pub(crate) fn overstep(&self) -> i64 {
        i64::from(self.threshold.in_force().overstep())
    }

    /// Returns a CPU's difference of one item.
    pub(crate) fn difference(&self, word: &P::U64, item: I) -> i64 {
        i64::from(Lanes(word.load(Relaxed)).get(item.lane()))
    }

    /// Adds `amount` to the totals without a guard, for callers that cannot have one now.
    pub(crate) fn add_total(&self, item: I, amount: i64) {
        self.add_to_totals(item.lane(), amount);
    }

    fn add_to_totals(&self, lane: usize, amount: i64) {
        self.totals[lane].fetch_add(amount as u64, Relaxed);
        if let Some(machine) = self.machine {
            machine[lane].fetch_add(amount as u64, Relaxed);
        }
    }

    /// Moves a CPU's differences to the totals; a word without differences costs one read.
    ///
    /// Callers do it from time to time, when the CPU goes offline, and after the threshold fell.
    pub(crate) fn fold(&self, word: &P::U64, _guard: &impl CpuGuard) {
        let lanes = Lanes(word.load(Relaxed));
        if lanes.0 == 0 {
            return;
        }
        for lane in 0..FOLDS {
            if lanes.get(lane) != 0 {
                self.fold_lane(lane, i64::from(lanes.get(lane)));
            }
        }
        word.store(0, Relaxed);
    }

    /// Moves a difference that was stored elsewhere to the totals of `items`.
    pub(crate) fn fold_difference(&self, items: &[I], difference: i64) {
        if difference != 0 {
            items.iter().for_each(|item| self.fold_lane(item.lane(), difference));
        }
    }

    #[cold]
    fn fold_lane(&self, lane: usize, amount: i64) {
        self.add_to_totals(lane, amount);
        // A separate load and store: two folds at the same time may count as one, but it costs a third of an atomic
        // addition.
        let folds = &self.totals[FOLDS];
        folds.store(folds.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Sets the thresholds under a rule, whether workers are awake or not.
    ///
    /// One caller at a time.
    pub(crate) fn set_thresholds(&self, thresholds: Thresholds, fold: FoldRule) {
        let pair = |most: u8| {
            assert!(most <= MAX_STAT_THRESHOLD, "a threshold of {most} does not fit its lane");
            let overstep = match fold {
                FoldRule::Overstep => most / 2,
                FoldRule::ToZero => 0,
            };
            u64::from(most) | u64::from(overstep) << 8
        };
        let values = pair(thresholds.rest) | pair(thresholds.pressed) << 16;
        // An addition preserves the worker count above, even if it changes at the same time.
        let before = self.threshold.word.load(Relaxed) % AWAKE;
        self.threshold.word.fetch_add(values.wrapping_sub(before), Relaxed);
    }

    /// Counts a background worker that wakes; the thresholds under pressure are in force from now on.
    pub(crate) fn pressure_begins(&self) {
        self.threshold.word.fetch_add(AWAKE, Relaxed);
    }

    /// Counts a background worker that ends.
    pub(crate) fn pressure_ends(&self) {
        self.threshold.word.fetch_add(AWAKE.wrapping_neg(), Relaxed);
    }

    /// Returns the threshold in force.
    #[inline]
    pub(crate) fn threshold(&self) -> u8 {
        self.threshold.in_force().most()
    }

    /// Returns the total without the differences; it can be negative for a moment.
    pub(crate) fn total(&self, item: I) -> i64 {
        self.totals[item.lane()].load(Relaxed) as i64
    }

    /// Returns an approximate value for the cost of one load, wrong by at most CPUs * threshold.
    #[inline]
    pub(crate) fn approximate(&self, item: I) -> u64 {
        not_negative(self.total(item))
    }

    /// Returns the value including the differences in `words`, those of all CPUs.
    ///
    /// Exact if no count is under way; it can be negative for a moment.
    pub(crate) fn snapshot<'w>(&self, item: I, words: impl Iterator<Item = &'w P::U64>) -> i64
    where
        P::U64: 'w,
    {
        let differences = words.map(|word| i64::from(Lanes(word.load(Relaxed)).get(item.lane())));
        self.total(item) + differences.sum::<i64>()
    }

    /// Returns how often a difference was moved to the totals since the start.
    ///
    /// Folds of two CPUs at the same time may count as one.
    pub(crate) fn folds(&self) -> u64 {
        self.totals[FOLDS].load(Relaxed)
    }
}

/// Returns an approximate value over all of `zones`.
///
/// There is no machine-wide total of the zones' counters: each fold of each CPU would write it, and the whole machine
/// would contend for its cache line.
pub(crate) fn approximate_over<'m, P: Platform + 'm, I: Item + 'm>(
    zones: impl Iterator<Item = ZonedCounters<'m, P, I>>,
    item: I,
) -> u64 {
    not_negative(zones.map(|zone| zone.total(item)).sum())
}

fn not_negative(count: i64) -> u64 {
    count.max(0) as u64
}

/// Returns what stays on a CPU of a difference that has become `sum` by adding `amount`, if at most `most` may stay.
///
/// A step of one beyond `most` oversteps to the other side; after any other amount beyond it nothing stays.
#[inline]
fn remainder_of(sum: i64, amount: i64, most: i64, overstep: i64) -> i64 {
    match amount {
        0 => sum,
        1 if sum > most => -overstep,
        -1 if sum < -most => overstep,
        1 | -1 => sum,
        _ if -most <= sum && sum <= most => sum,
        _ => 0,
    }
}

/// A CPU's word while it is being updated.
pub(crate) struct Counts<'c, 'm, P: Platform, I> {
    lanes: Lanes,
    counters: &'c ZonedCounters<'m, P, I>,
}

impl<P: Platform, I: Item> Counts<'_, '_, P, I> {
    /// Adds one.
    #[inline]
    pub(crate) fn increment(&mut self, item: I) {
        self.add(item, 1);
    }

    /// Adds any amount.
    #[inline]
    pub(crate) fn add(&mut self, item: I, amount: i64) {
        let left = self.counters.leave(item, i64::from(self.lanes.get(item.lane())), amount);
        self.lanes = self.lanes.with(item.lane(), left as i8);
    }
}

/// Eight `i8` in a word, lane 0 in the lowest byte. Lanes are extracted and replaced as a whole, never added in place,
/// so nothing carries from one to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lanes(u64);

impl Lanes {
    #[inline]
    const fn get(self, lane: usize) -> i8 {
        (self.0 >> (lane * 8)) as i8
    }

    #[inline]
    const fn with(self, lane: usize, value: i8) -> Self {
        let shift = lane * 8;
        Self(self.0 & !(0xff << shift) | (value as u8 as u64) << shift)
    }
}

#[cfg(test)]
mod tests;
