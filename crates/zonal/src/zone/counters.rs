//! Zoned counters: totals per zone and node, with a small difference on each CPU.
//!
//! Vocabulary: an *item* is what is counted; a *group* is the eight items at most that share one
//! *word* per CPU, eight lanes of an `i8` *difference* each; to *fold* is to move differences to
//! the totals; the *threshold* is the largest difference that stays on a CPU; a *clean* word
//! holds no difference. An *overstep* folds half a threshold more than there is, so that a run in
//! one direction folds only every one and a half thresholds. Source: Lameter 2006, Linux
//! df9ecaba3f15. Neighbours: `threshold.rs` has the rules, the words lie in the pagesets of
//! `pageset.rs` and are guarded with them, `zone.rs` and `node.rs` hold the totals.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};
use crate::rules::stat_threshold::{FoldRule, MAX_STAT_THRESHOLD};

/// Proof that the caller alone may write the words of one CPU in one zone or node: a value of the
/// type exists only while the lock of that pageset is held.
pub(crate) trait CpuGuard {}

/// Lanes of a word.
const LANES: usize = 8;
/// Cells of a group's totals: a cache line.
pub(crate) const TOTAL_CELLS: usize = LANES;
/// The last cell counts folds: no group has an item there.
const FOLDS: usize = LANES - 1;

/// The items of a group.
pub(crate) trait Item: Copy {
    /// Its lane in the words and its cell in the totals, below [`FOLDS`].
    fn lane(self) -> usize;
}

/// What is counted of a zone. Frames in `Free`, blocks in the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZoneItem {
    /// Free frames. Linux: `NR_FREE_PAGES`.
    Free,
    /// Served from the preferred node.
    NumaHit,
    /// Served from here although another node was preferred.
    NumaMiss,
    /// Served from another node although this one was preferred.
    NumaForeign,
    /// Interleaving got its target here.
    InterleaveHit,
    /// Served to a CPU of this node.
    NumaLocal,
    /// Served to a CPU of another node.
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

/// What is counted of a node, in frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeItem {
    /// Allocated as user pages.
    User,
    /// Allocated as cache pages.
    Cache,
    /// Allocated as kernel pages.
    Kernel,
    /// Freed by background reclaim.
    ReclaimedBackground,
    /// Freed by direct reclaim.
    ReclaimedDirect,
    /// Freed by node reclaim.
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
    /// The thresholds of one zone or node. Read by each update: it should lie beside what is rarely written.
    ///
    /// One cell holds all that the threshold in force depends on, so that neither of those who change it
    /// can undo what the other did: settings replace the values, background reclaim counts itself in
    /// and out.
    ///
    /// | bits | what |
    /// |---|---|
    /// | 0..8, 8..16 | threshold and overstep at rest |
    /// | 16..24, 24..32 | threshold and overstep under pressure |
    /// | 32..64 | background workers awake |
    ///
    /// Invariant: `overstep <= threshold / 2` in both pairs.
    #[repr(C)]
    pub(crate) struct ThresholdCells<P> {
        word: u64,
    }
}

/// One background worker awake.
const AWAKE: u64 = 1 << 32;

/// The thresholds of a zone: with zero every count goes to the totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thresholds {
    /// At rest.
    pub(crate) rest: u8,
    /// While background reclaim of the node is awake.
    pub(crate) pressed: u8,
}

/// A threshold with its overstep: how far beyond zero a step of one that exceeds it leaves a difference.
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

/// The counters of one zone or node: a view of its cells. All zero is the fresh state.
///
/// Invariant: what is counted = `totals + Σ differences of all CPUs`, item by item, between
/// updates; and after each update `|difference| <= threshold` unless the threshold fell since. Totals
/// of the machine, where there are any, = `Σ totals` of all views that share them.
/// Every access is relaxed: a word has one writer at a time, ordered by the lock its guard stands
/// for, totals change by atomic additions that commute, and readers may be out of date.
pub(crate) struct ZonedCounters<'m, P: Platform, I> {
    /// Written by folds; shared by all CPUs.
    totals: &'m [P::U64; TOTAL_CELLS],
    threshold: &'m ThresholdCells<P>,
    /// Written by folds as well.
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

    /// The same counters with totals of the whole machine beside their own.
    pub(crate) const fn with_machine(self, machine: Option<&'m [P::U64; TOTAL_CELLS]>) -> Self {
        Self { machine, ..self }
    }

    /// Counts one up in the CPU's word.
    #[inline]
    pub(crate) fn increment(&self, word: &P::U64, item: I, guard: &impl CpuGuard) {
        self.update(word, guard, |counts| counts.increment(item));
    }

    /// Counts `amount` in the CPU's word.
    #[inline]
    pub(crate) fn add(&self, word: &P::U64, item: I, amount: i64, guard: &impl CpuGuard) {
        self.update(word, guard, |counts| counts.add(item, amount));
    }

    /// Several counts at the price of one: the word is read and written once.
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

    /// What stays of a CPU's `difference` when `amount` is counted; the rest goes to the totals.
    #[inline]
    pub(crate) fn leave(&self, item: I, difference: i64, amount: i64) -> i64 {
        let sum = difference.wrapping_add(amount);
        let left = self.kept_of(sum, amount);
        if left != sum {
            self.fold_lane(item.lane(), sum.wrapping_sub(left));
        }
        left
    }

    /// As [`Self::leave`] for items that are counted together, when each may differ by `most`.
    #[inline]
    pub(crate) fn leave_all(&self, items: [I; 2], difference: i64, amount: i64, most: i64) -> i64 {
        let sum = difference + amount;
        let left = kept_of(sum, amount, most, self.overstep().min(most / 2));
        if left != sum {
            items.into_iter().for_each(|item| self.fold_lane(item.lane(), sum - left));
        }
        left
    }

    /// What stays on a CPU of a difference that has become `sum` by counting `amount`.
    #[inline]
    pub(crate) fn kept_of(&self, sum: i64, amount: i64) -> i64 {
        let threshold = self.threshold.in_force();
        kept_of(sum, amount, i64::from(threshold.most()), i64::from(threshold.overstep()))
    }

    /// How far beyond zero a step of one that exceeds the threshold leaves a difference.
    #[inline]
    pub(crate) fn overstep(&self) -> i64 {
        i64::from(self.threshold.in_force().overstep())
    }

    /// A CPU's difference of one item.
    pub(crate) fn difference(&self, word: &P::U64, item: I) -> i64 {
        i64::from(Lanes(word.load(Relaxed)).get(item.lane()))
    }

    /// Counts `amount` without a guard, for callers that cannot have one now.
    pub(crate) fn add_total(&self, item: I, amount: i64) {
        self.add_to_totals(item.lane(), amount);
    }

    fn add_to_totals(&self, lane: usize, amount: i64) {
        self.totals[lane].fetch_add(amount as u64, Relaxed);
        if let Some(machine) = self.machine {
            machine[lane].fetch_add(amount as u64, Relaxed);
        }
    }

    /// Moves a CPU's differences to the totals; a clean word costs one read. Callers do it from
    /// time to time, when the CPU goes, and after the threshold fell.
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

    /// Moves a difference that was kept elsewhere to the totals of `items`.
    pub(crate) fn fold_difference(&self, items: &[I], difference: i64) {
        if difference != 0 {
            items.iter().for_each(|item| self.fold_lane(item.lane(), difference));
        }
    }

    #[cold]
    fn fold_lane(&self, lane: usize, amount: i64) {
        self.add_to_totals(lane, amount);
        // Load and store apart: two at once may count as one, for a third of the price of a fold.
        let folds = &self.totals[FOLDS];
        folds.store(folds.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Sets the thresholds under a rule, whoever is awake. One caller at a time.
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
        // An addition leaves the count above as it is, also when it changes at the same time.
        let before = self.threshold.word.load(Relaxed) % AWAKE;
        self.threshold.word.fetch_add(values.wrapping_sub(before), Relaxed);
    }

    /// Counts a background worker that wakes: thresholds are those under pressure from now on.
    pub(crate) fn pressure_begins(&self) {
        self.threshold.word.fetch_add(AWAKE, Relaxed);
    }

    /// Counts a background worker that rests.
    pub(crate) fn pressure_ends(&self) {
        self.threshold.word.fetch_add(AWAKE.wrapping_neg(), Relaxed);
    }

    /// The threshold in force.
    #[inline]
    pub(crate) fn threshold(&self) -> u8 {
        self.threshold.in_force().most()
    }

    /// The total without the differences; it can be below zero for a moment.
    pub(crate) fn total(&self, item: I) -> i64 {
        self.totals[item.lane()].load(Relaxed) as i64
    }

    /// A cheap reading, wrong by at most CPUs * threshold.
    #[inline]
    pub(crate) fn approximate(&self, item: I) -> u64 {
        not_negative(self.total(item))
    }

    /// A reading with the differences of all CPUs, whose words are `words`; exact when no count
    /// is under way. It can be below zero for a moment.
    pub(crate) fn snapshot<'w>(&self, item: I, words: impl Iterator<Item = &'w P::U64>) -> i64
    where
        P::U64: 'w,
    {
        let differences = words.map(|word| i64::from(Lanes(word.load(Relaxed)).get(item.lane())));
        self.total(item) + differences.sum::<i64>()
    }

    /// How often a difference was moved to the totals, since the start; those of two CPUs at the very
    /// same time may count as one.
    pub(crate) fn folds(&self) -> u64 {
        self.totals[FOLDS].load(Relaxed)
    }
}

/// A reading over all of `zones`. There is no machine-wide total of what zones count: each fold of each
/// CPU would write it, and the line that holds it would be the one line the whole machine contends for.
pub(crate) fn approximate_over<'m, P: Platform + 'm, I: Item + 'm>(
    zones: impl Iterator<Item = ZonedCounters<'m, P, I>>,
    item: I,
) -> u64 {
    not_negative(zones.map(|zone| zone.total(item)).sum())
}

fn not_negative(count: i64) -> u64 {
    count.max(0) as u64
}

/// What stays on a CPU of a difference that has become `sum` by counting `amount`, when `most` may stay. A
/// step of one beyond that oversteps to the other side; of any other amount beyond it nothing stays.
#[inline]
fn kept_of(sum: i64, amount: i64, most: i64, overstep: i64) -> i64 {
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
    /// One up.
    #[inline]
    pub(crate) fn increment(&mut self, item: I) {
        self.add(item, 1);
    }

    /// Any amount.
    #[inline]
    pub(crate) fn add(&mut self, item: I, amount: i64) {
        let left = self.counters.leave(item, i64::from(self.lanes.get(item.lane())), amount);
        self.lanes = self.lanes.with(item.lane(), left as i8);
    }
}

/// Eight `i8` in a word, lane 0 in the lowest byte. Lanes are cut out and put in whole, never
/// added in place, so nothing carries from one to the next.
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
