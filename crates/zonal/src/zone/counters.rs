//! Zoned counters: each zone and each node has totals, and each CPU has small differences from them.
//!
//! The counted quantities are called *items*. A CPU has one *word* with eight lanes, each holding the *difference* of
//! one item as an `i8`. To *fold* is to move a difference to the totals. The *threshold* is the largest
//! difference that may stay on a CPU. With an *overstep*, a fold moves half a threshold more than the difference, so
//! that a run in one direction folds only once every one and a half thresholds. Source: Lameter 2006, Linux
//! df9ecaba3f15. Related files: `rules/stat_threshold.rs` has the rules. The words are in the pagesets
//! (`pageset/mod.rs`), whose locks protect them. `zone/mod.rs` and `zone/node.rs` hold the totals.

use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::{Atomic, Platform};
use crate::rules::stat_threshold::{FoldRule, MAX_STAT_THRESHOLD, TotalsRule};

/// Proof that only the caller may write a CPU's word for one zone or node.
///
/// Such a value exists only while the lock of the pageset with the word is held.
pub(crate) trait CpuGuard {}

/// Number of lanes in a word.
const LANES: usize = 8;
/// Number of cells in one zone's or node's totals, which occupy a cache line.
pub(crate) const TOTAL_CELLS: usize = LANES;
/// The totals of a zone, a node or the machine.
type Totals<P> = [<P as Platform>::U64; TOTAL_CELLS];
/// Index of the last cell, which counts folds and is not used by any item.
const FOLDS: usize = LANES - 1;

/// Threshold of the blocks that a pageset served: the largest, whatever the machine.
///
/// No decision depends on the values of these statistics, so reads need not be close, and folds should be rare. Source: Wang 2017,
/// Linux 3a321d2a3dde.
pub(crate) const SERVED_MOST: u8 = MAX_STAT_THRESHOLD;
/// Overstep of the blocks that a pageset served.
pub(crate) const SERVED_OVERSTEP: i64 = SERVED_MOST as i64 / 2;

/// The items of a zone or node.
pub(crate) trait Item: Copy {
    /// Returns the item's lane in the words, which is also its cell in the totals; less than [`FOLDS`].
    fn lane(self) -> usize;
}

/// The items of a zone. `Free` counts frames, and all other items count blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ZoneItem {
    /// Free frames. Linux: `NR_FREE_PAGES`.
    Free,
    /// Blocks served from the preferred node.
    NumaHit,
    /// Blocks served from this zone although another node was preferred.
    NumaMiss,
    /// Blocks served from another node although this node was preferred.
    NumaForeign,
    /// Blocks that an interleaving policy requested from this node and that this zone served.
    InterleaveHit,
    /// Blocks served to a CPU of this node.
    NumaLocal,
    /// Blocks served to a CPU of another node.
    NumaOther,
}

impl ZoneItem {
    /// Returns the two items that count a served block: whether its node was preferred, and whether the CPU is on that node.
    pub(crate) const fn of_served(is_hit: bool, is_local: bool) -> [Self; 2] {
        [
            if is_hit { Self::NumaHit } else { Self::NumaMiss },
            if is_local { Self::NumaLocal } else { Self::NumaOther },
        ]
    }
}

impl Item for ZoneItem {
    fn lane(self) -> usize {
        self as usize
    }
}

/// The items of a node, which all count frames.
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
    fn lane(self) -> usize {
        self as usize
    }
}

const _: () = assert!((ZoneItem::NumaOther as usize) < FOLDS && NodeItem::ALL.len() <= FOLDS);

all_zero! {
    /// The thresholds of one zone or node. Every update of a counter reads them, so they should share a cache line with
    /// data that is rarely written.
    ///
    /// One cell holds everything on which the threshold in force depends. It has two kinds of writers: changes of
    /// settings replace the thresholds, and background reclaim counts its workers. Atomic additions to one cell prevent
    /// each kind from undoing the changes of the other.
    ///
    /// | bits | content |
    /// |---|---|
    /// | 0..8, 8..16 | threshold and overstep while no background worker runs |
    /// | 16..24, 24..32 | threshold and overstep under pressure, while one runs |
    /// | 32..64 | number of running background workers |
    ///
    /// Invariant: `overstep <= threshold / 2` in both pairs.
    #[repr(C)]
    pub(super) struct ThresholdCells<P> {
        word: u64,
    }
}

/// One running background worker in the count.
const AWAKE: u64 = 1 << 32;

impl<P: Platform> ThresholdCells<P> {
    /// Returns the threshold and the overstep in force.
    ///
    /// When a step of one makes a difference exceed the threshold, the fold leaves the overstep with the opposite sign.
    fn in_force(&self) -> (u8, u8) {
        let word = self.word.load(Relaxed);
        let pair = if word < AWAKE { word } else { word >> 16 };
        (pair as u8, (pair >> 8) as u8)
    }
}

all_zero! {
    /// The totals of one process in a zone or node.
    #[repr(C)]
    pub(crate) struct ProcessTotals<P> {
        /// What the process itself has counted.
        pub(crate) counted: (line [u64; TOTAL_CELLS]),
        /// What other processes have added when they took blocks over; changed under the node's handover lock.
        pub(crate) moved: (line [u64; TOTAL_CELLS]),
    }
}

/// A view of one zone's or node's counters. Initially, all cells are zero.
///
/// Invariants for each item: between updates, the value = `totals + Σ differences of all CPUs`. After each update
/// `|difference| <= threshold`, unless the threshold has fallen since then; for served blocks in the words of pagesets, the
/// threshold is [`SERVED_MOST`]. The totals of the machine, if present, are `Σ totals` of all views that share them.
///
/// Every access is relaxed. A word has one writer at a time, and the lock that the writer's guard represents orders the
/// writers. Totals change by atomic additions, which commute. Values that are read may be out of date.
pub(crate) struct ZonedCounters<'m, P: Platform, I> {
    /// Totals of the zone or node, which folds of all CPUs write; those of this process if several share the allocator.
    totals: &'m Totals<P>,
    /// What was counted before the first process began to allocate, and the totals of each process, if several share the
    /// allocator.
    shared: Option<(&'m Totals<P>, &'m [ProcessTotals<P>])>,
    threshold: &'m ThresholdCells<P>,
    /// Totals of the machine, which folds of all CPUs write too.
    machine: Option<&'m Totals<P>>,
    items: PhantomData<I>,
}

copy_view!(ZonedCounters<I>);

impl<'m, P: Platform, I: Item> ZonedCounters<'m, P, I> {
    pub(super) const fn new(
        totals: &'m Totals<P>,
        threshold: &'m ThresholdCells<P>,
        machine: Option<&'m Totals<P>>,
    ) -> Self {
        Self { totals, shared: None, threshold, machine, items: PhantomData }
    }

    /// Returns these counters for `process`, one of those that share them.
    pub(crate) fn of_process(self, process: u8, all: &'m [ProcessTotals<P>]) -> Self {
        match usize::from(process).checked_sub(1).and_then(|at| all.get(at)) {
            Some(own) => Self { totals: &own.counted.0, shared: Some((self.totals, all)), ..self },
            None => self,
        }
    }

    /// Adds what this process has counted to what was there before all processes, so that it stays when the process ends.
    pub(crate) fn settle(&self) {
        if let Some((base, _)) = self.shared {
            for (cell, own) in base.iter().zip(self.totals) {
                cell.fetch_add(own.swap(0, Relaxed), Relaxed);
            }
        }
    }

    /// Adds amounts to items with one read and one write of the word.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        word: &P::U64,
        _guard: &impl CpuGuard,
        counts: impl IntoIterator<Item = (I, i64)>,
    ) {
        let mut lanes = Lanes(word.load(Relaxed));
        for (item, amount) in counts {
            let left = self.leave(item, i64::from(lanes.get(item.lane())), amount);
            lanes = lanes.with(item.lane(), left as i8);
        }
        word.store(lanes.0, Relaxed);
    }

    /// Adds `amount` to a CPU's `difference`, moves the excess to the totals, and returns the new difference.
    pub(crate) fn leave(&self, item: I, difference: i64, amount: i64) -> i64 {
        let (sum, (most, overstep)) = (difference.wrapping_add(amount), self.threshold.in_force());
        let left = remainder_of(sum, amount, most.into(), overstep.into());
        if left != sum {
            self.fold_lane(item.lane(), sum.wrapping_sub(left));
        }
        left
    }

    /// Performs [`Self::leave`] for the two items of served blocks, which share a difference.
    pub(crate) fn leave_served(&self, items: [I; 2], difference: i64, amount: i64) -> i64 {
        let sum = difference + amount;
        let left = remainder_of(sum, amount, SERVED_MOST.into(), SERVED_OVERSTEP);
        if left != sum {
            items.into_iter().for_each(|item| self.fold_lane(item.lane(), sum - left));
        }
        left
    }

    /// Adds `amount` directly to the totals, for callers that do not hold a guard.
    pub(crate) fn add_total(&self, item: I, amount: i64) {
        self.add_to_totals(item.lane(), amount);
    }

    fn add_to_totals(&self, lane: usize, amount: i64) {
        self.totals[lane].fetch_add(amount as u64, Relaxed);
        let has_machine =
            |_: &_| P::CONFIG.is_none_or(|config| config.counters.totals == TotalsRule::AndMachine);
        if let Some(machine) = self.machine.filter(has_machine) {
            machine[lane].fetch_add(amount as u64, Relaxed);
        }
    }

    /// Moves a CPU's differences to the totals; only reads the word if it has no differences.
    ///
    /// Called periodically, when the CPU goes offline, and after the threshold has fallen.
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

    /// Moves a difference that no word of this type stores to the `items` totals.
    pub(crate) fn fold_difference(&self, items: &[I], difference: i64) {
        if difference != 0 {
            items.iter().for_each(|item| self.fold_lane(item.lane(), difference));
        }
    }

    #[cold]
    fn fold_lane(&self, lane: usize, amount: i64) {
        self.add_to_totals(lane, amount);
        // A separate load and store cost a third of an atomic addition, but may count two concurrent folds as one.
        let folds = &self.totals[FOLDS];
        folds.store(folds.load(Relaxed).wrapping_add(1), Relaxed);
    }

    /// Sets the threshold at rest and the one under pressure, with the oversteps of `fold`, regardless of running workers.
    ///
    /// Only one thread at a time may call this function.
    pub(crate) fn set_thresholds(&self, [rest, pressed]: [u8; 2], fold: FoldRule) {
        let pair = |most: u8| {
            assert!(most <= MAX_STAT_THRESHOLD, "a threshold of {most} does not fit its lane");
            let overstep = match fold {
                FoldRule::Overstep => most / 2,
                FoldRule::ToZero => 0,
            };
            u64::from(most) | u64::from(overstep) << 8
        };
        let values = pair(rest) | pair(pressed) << 16;
        // An addition preserves the worker count in the upper bits, even if that count changes concurrently.
        let before = self.threshold.word.load(Relaxed) % AWAKE;
        self.threshold.word.fetch_add(values.wrapping_sub(before), Relaxed);
    }

    /// Counts a background worker that begins; the thresholds under pressure are now in force.
    pub(crate) fn pressure_begins(&self) {
        self.threshold.word.fetch_add(AWAKE, Relaxed);
    }

    /// Counts a background worker that ends.
    pub(crate) fn pressure_ends(&self) {
        subtract::<P>(&self.threshold.word, AWAKE, !(AWAKE - 1));
    }

    /// Records that no background worker runs, because a worker's process may have died.
    pub(super) fn forget_pressure(&self) {
        self.threshold.word.fetch_and(AWAKE - 1, Relaxed);
    }

    /// Returns the threshold in force.
    pub(crate) fn threshold(&self) -> u8 {
        self.threshold.in_force().0
    }

    /// Returns the total without the differences, which can be temporarily negative.
    pub(crate) fn total(&self, item: I) -> i64 {
        match self.shared.filter(|_| P::IS_SHARED) {
            None => self.totals[item.lane()].load(Relaxed) as i64,
            Some((base, each)) => {
                let cells = each.iter().flat_map(|one| [&one.counted.0, &one.moved.0]).chain([base]);
                cells.fold(0, |sum, cells| sum.wrapping_add(cells[item.lane()].load(Relaxed) as i64))
            }
        }
    }

    /// Returns an approximate value for the cost of one load; the error is at most CPUs * threshold, except for NUMA events.
    pub(crate) fn approximate(&self, item: I) -> u64 {
        self.total(item).max(0) as u64
    }

    /// Returns the value including the differences in `words`, which must be the words of all CPUs.
    ///
    /// The value is exact if no update is under way. During updates it can be temporarily negative.
    pub(crate) fn snapshot<'w>(&self, item: I, words: impl Iterator<Item = &'w P::U64>) -> i64
    where
        P::U64: 'w,
    {
        let differences = words.map(|word| i64::from(Lanes(word.load(Relaxed)).get(item.lane())));
        self.total(item) + differences.sum::<i64>()
    }

    /// Returns how many differences have been moved to the totals since the start.
    ///
    /// Concurrent folds of two CPUs may count as one.
    pub(crate) fn folds(&self) -> u64 {
        self.totals[FOLDS].load(Relaxed)
    }
}

/// Subtracts `amount` from the bits `field` of a cell, unless they hold less: a recovery may have made them 0.
pub(super) fn subtract<P: Platform>(cell: &P::U64, amount: u64, field: u64) {
    let mut found = cell.load(Relaxed); // relaxed, as below: the fields are hints
    while found & field >= amount
        && let Err(now) = cell.compare_exchange(found, found - amount, Relaxed, Relaxed)
    {
        found = now;
    }
}

/// Returns the difference that stays on a CPU when the addition of `amount` has made it `sum` and at most `most` may
/// stay.
///
/// If a step of one exceeds `most`, the result is the overstep with the opposite sign. If any other amount exceeds
/// `most`, the result is zero.
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

/// Eight `i8` in a word, with lane 0 in the lowest byte. Lanes are extracted and replaced as a whole and never added in
/// place, so no carry can reach the next lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lanes(u64);

impl Lanes {
    const fn get(self, lane: usize) -> i8 {
        (self.0 >> (lane * 8)) as i8
    }

    const fn with(self, lane: usize, value: i8) -> Self {
        let shift = lane * 8;
        Self(self.0 & !(0xff << shift) | (value as u8 as u64) << shift)
    }
}

#[cfg(test)]
impl ZoneItem {
    /// All items, by lane.
    const ALL: [Self; 7] = [
        Self::Free,
        Self::NumaHit,
        Self::NumaMiss,
        Self::NumaForeign,
        Self::InterleaveHit,
        Self::NumaLocal,
        Self::NumaOther,
    ];
}

#[cfg(test)]
impl<P: Platform, I: Item> ZonedCounters<'_, P, I> {
    /// Adds `amount` to the item in the CPU's word.
    fn add(&self, word: &P::U64, item: I, amount: i64, guard: &impl CpuGuard) {
        self.update(word, guard, [(item, amount)]);
    }
}

#[cfg(test)]
mod tests;
