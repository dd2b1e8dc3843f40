//! Tests of zoned counters: folds computed by hand, error bounds under random and exhaustive updates, lanes and
//! threads.

use core::sync::atomic::AtomicU64;
use std::vec::Vec;

use super::*;
use crate::platform::cells::AllZero;
use crate::platform::{RawLock, SpinLock};
use crate::testing::{Native, Random, Unshared};

/// The cells of one zone in a machine with `CPUS` CPUs, and the rule for its folds.
struct Zone<const CPUS: usize> {
    fold: FoldRule,
    totals: [AtomicU64; TOTAL_CELLS],
    threshold: ThresholdCells<Native>,
    words: [AtomicU64; CPUS],
}

type Zoned<'m> = ZonedCounters<'m, Native, ZoneItem>;

impl<const CPUS: usize> Zone<CPUS> {
    fn new(threshold: u8) -> Self {
        Self::folding(FoldRule::Overstep, threshold)
    }

    fn folding(fold: FoldRule, threshold: u8) -> Self {
        let words = core::array::from_fn(|_| AtomicU64::new(0));
        let zone = Self { fold, totals: Default::default(), threshold: ThresholdCells::all_zero(), words };
        zone.set_threshold(threshold);
        zone
    }

    fn set_threshold(&self, threshold: u8) {
        self.set_thresholds(threshold, threshold);
    }

    fn set_thresholds(&self, rest: u8, pressed: u8) {
        self.counters().set_thresholds([rest, pressed], self.fold);
    }

    fn counters(&self) -> Zoned<'_> {
        ZonedCounters::new(&self.totals, &self.threshold, None)
    }

    fn difference(&self, cpu: usize, item: ZoneItem) -> i64 {
        Lanes(self.words[cpu].load(Relaxed)).get(item.lane()).into()
    }

    /// Returns the total and the first CPU's difference of free frames.
    fn free(&self) -> (i64, i64) {
        (self.counters().total(ZoneItem::Free), self.difference(0, ZoneItem::Free))
    }

    fn add(&self, cpu: usize, item: ZoneItem, amount: i64) {
        self.counters().add(&self.words[cpu], item, amount, &Unshared);
    }

    fn snapshot(&self, item: ZoneItem) -> u64 {
        self.counters().snapshot(item, self.words.iter()).max(0) as u64
    }
}

#[test]
fn increments_overstep_by_half_a_threshold() {
    let zone = Zone::<1>::new(8);
    let up = || zone.counters().add(&zone.words[0], ZoneItem::Free, 1, &Unshared);
    (0..8).for_each(|_| up());
    assert_eq!(zone.free(), (0, 8));
    up();
    assert_eq!(zone.free(), (13, -4));
    (0..12).for_each(|_| up());
    assert_eq!(zone.free(), (13, 8));
    up();
    assert_eq!((zone.free(), zone.counters().folds()), ((26, -4), 2));
}

#[test]
fn decrements_are_the_mirror_image() {
    let zone = Zone::<1>::new(7);
    let down = || zone.counters().add(&zone.words[0], ZoneItem::Free, -1, &Unshared);
    (0..7).for_each(|_| down());
    assert_eq!(zone.free(), (0, -7));
    down();
    assert_eq!(zone.free(), (-11, 3));
    (0..11).for_each(|_| down());
    assert_eq!(zone.free(), (-22, 3));
}

#[test]
fn other_amounts_fold_whole_and_do_not_overstep() {
    let zone = Zone::<1>::new(8);
    zone.add(0, ZoneItem::Free, 8);
    assert_eq!(zone.free(), (0, 8));
    zone.add(0, ZoneItem::Free, 2);
    assert_eq!(zone.free(), (10, 0));
    zone.add(0, ZoneItem::Free, -8);
    assert_eq!(zone.free(), (10, -8));
    zone.add(0, ZoneItem::Free, -2);
    assert_eq!(zone.free(), (0, 0));
    zone.add(0, ZoneItem::Free, 1 << 40);
    assert_eq!((zone.free(), zone.counters().folds()), ((1 << 40, 0), 3));
    zone.add(0, ZoneItem::Free, 0);
    assert_eq!(zone.free(), (1 << 40, 0));
}

#[test]
fn an_amount_of_one_is_an_increment_or_decrement() {
    let zone = Zone::<1>::new(4);
    (0..5).for_each(|_| zone.add(0, ZoneItem::Free, 1));
    assert_eq!(zone.free(), (7, -2));
    (0..3).for_each(|_| zone.add(0, ZoneItem::Free, -1));
    assert_eq!(zone.free(), (0, 2));
}

#[test]
fn the_largest_threshold_fits_and_zero_folds_at_once() {
    let zone = Zone::<1>::new(MAX_STAT_THRESHOLD);
    (0..125).for_each(|_| zone.add(0, ZoneItem::Free, 1));
    assert_eq!(zone.free(), (0, 125));
    zone.add(0, ZoneItem::Free, 1);
    assert_eq!(zone.free(), (126 + 62, -62));
    let none = Zone::<1>::new(0);
    for amount in [1, 1, -1, 64] {
        none.add(0, ZoneItem::Free, amount);
        assert_eq!(none.words[0].load(Relaxed), 0);
    }
    assert_eq!(none.free(), (65, 0));
}

#[test]
#[should_panic(expected = "a threshold of 126")]
fn a_threshold_beyond_the_lane_is_refused() {
    Zone::<1>::new(0).set_threshold(MAX_STAT_THRESHOLD + 1);
}

#[test]
fn thresholds_and_workers_change_without_undoing_each_other() {
    let zone = Zone::<1>::new(0);
    let (counters, in_force) =
        (zone.counters(), || (zone.counters().threshold(), zone.counters().threshold.in_force().1));
    zone.set_thresholds(40, 3);
    assert_eq!(in_force(), (40, 20));
    counters.pressure_begins();
    assert_eq!(in_force(), (3, 1));
    zone.set_thresholds(125, 10);
    assert_eq!(in_force(), (10, 5), "still awake");
    counters.pressure_begins(); // the next worker begins before the previous worker has ended
    counters.pressure_ends();
    assert_eq!(in_force(), (10, 5), "one is awake");
    zone.set_thresholds(0, 125);
    counters.pressure_ends();
    assert_eq!(in_force(), (0, 0));
    zone.set_thresholds(7, 7);
    assert_eq!(in_force(), (7, 3));
}

#[test]
fn negative_readings_are_zero() {
    let zone = Zone::<2>::new(8);
    (0..9).for_each(|_| zone.add(0, ZoneItem::Free, -1));
    assert_eq!(zone.free().0, -13);
    assert_eq!((zone.counters().approximate(ZoneItem::Free), zone.snapshot(ZoneItem::Free)), (0, 0));
    zone.counters().add_total(ZoneItem::Free, 20);
    assert_eq!((zone.counters().approximate(ZoneItem::Free), zone.snapshot(ZoneItem::Free)), (7, 11));
}

#[test]
fn a_fold_moves_all_lanes_and_skips_clean_words() {
    let zone = Zone::<1>::new(10);
    for item in ZoneItem::ALL {
        (0..=item.lane()).for_each(|_| zone.add(0, item, 1));
    }
    let counters = zone.counters();
    counters.fold(&zone.words[0], &Unshared);
    assert_eq!(ZoneItem::ALL.map(|item| counters.total(item)), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((zone.words[0].load(Relaxed), counters.folds()), (0, 7));
    counters.fold(&zone.words[0], &Unshared);
    assert_eq!(counters.folds(), 7);
}

#[test]
fn several_counts_in_one_update() {
    let zone = Zone::<1>::new(2);
    let counts = [(ZoneItem::NumaHit, 1), (ZoneItem::Free, -3), (ZoneItem::NumaOther, -1)];
    zone.counters().update(&zone.words[0], &Unshared, counts.into_iter().chain([(ZoneItem::NumaHit, 1); 3]));
    assert_eq!(zone.free(), (-3, 0));
    assert_eq!(zone.counters().total(ZoneItem::NumaHit), 4);
    assert_eq!((zone.difference(0, ZoneItem::NumaHit), zone.difference(0, ZoneItem::NumaOther)), (0, -1));
}

#[test]
fn lanes_do_not_touch_each_other() {
    for background in [0, u64::MAX, 0x80ff_7f01_8000_ff7f] {
        for lane in 0..LANES {
            for value in i8::MIN..=i8::MAX {
                let with = Lanes(background).with(lane, value);
                assert_eq!(with.get(lane), value);
                let others = (0..LANES).filter(|other| *other != lane);
                others.for_each(|other| assert_eq!(with.get(other), Lanes(background).get(other)));
            }
        }
    }
}

#[test]
fn items_have_lanes_of_their_own() {
    let zone = ZoneItem::ALL.map(Item::lane);
    assert_eq!(zone, core::array::from_fn(|lane| lane));
    let node = NodeItem::ALL.map(Item::lane);
    assert_eq!(node, core::array::from_fn(|lane| lane));
}

/// A simple implementation of the published rules for one difference.
fn model(fold: FoldRule, difference: &mut i64, total: &mut i64, threshold: i64, amount: i64) {
    *difference += amount;
    if fold == FoldRule::Overstep && amount == 1 && *difference > threshold {
        *total += *difference + threshold / 2;
        *difference = -(threshold / 2);
    } else if fold == FoldRule::Overstep && amount == -1 && *difference < -threshold {
        *total += *difference - threshold / 2;
        *difference = threshold / 2;
    } else if difference.abs() > threshold {
        *total += *difference;
        *difference = 0;
    }
}

/// Checks that every sequence of five updates by two CPUs follows the published rules under small thresholds.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn exhaustive_for_small_thresholds() {
    for fold in [FoldRule::Overstep, FoldRule::ToZero] {
        (0..=4).for_each(|threshold| exhaustive(fold, threshold));
    }
}

fn exhaustive(fold: FoldRule, threshold: u8) {
    const UPDATES: [i64; 6] = [1, -1, 2, -2, 5, -5];
    for code in 0..12_usize.pow(5) {
        let (zone, limit) = (Zone::<2>::folding(fold, threshold), i64::from(threshold));
        let (mut differences, mut total, mut exact, mut rest) = ([0; 2], 0, 0, code);
        for _ in 0..5 {
            let (cpu, amount) = (rest % 2, UPDATES[rest / 2 % 6]);
            rest /= 12;
            zone.add(cpu, ZoneItem::NumaMiss, amount);
            model(fold, &mut differences[cpu], &mut total, limit, amount);
            exact += amount;
            let seen = [0, 1].map(|cpu| zone.difference(cpu, ZoneItem::NumaMiss));
            assert_eq!((zone.counters().total(ZoneItem::NumaMiss), seen), (total, differences));
            assert_eq!(total + differences[0] + differences[1], exact);
            assert!((total - exact).abs() <= 2 * limit, "{fold:?} t {threshold}, sequence {code}");
        }
    }
}

/// Checks that |approximate - exact| <= CPUs * threshold holds for all items at any time while thresholds change.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn the_error_is_bounded_by_cpus_times_threshold() {
    const CPUS: usize = 16;
    let (zone, mut random) = (Zone::<CPUS>::new(125), Random::new(11));
    let (mut exact, mut widest) = ([0_i64; 7], 0);
    for step in 0..300_000 {
        if step % 50_000 == 49_999 {
            zone.set_threshold([1, 125, 10, 60, 0, 125][step / 50_000]);
            zone.words.iter().for_each(|word| zone.counters().fold(word, &Unshared));
        }
        let item = ZoneItem::ALL[random.index(7)];
        // Most updates are steps of one, mostly up in half of the rounds and mostly down in the other half.
        let drift = if step % 20_000 < 10_000 { 1 } else { -1 };
        let amount = [drift, drift, drift, -drift, 63, -63, 9][random.index(7)];
        zone.add(random.index(CPUS), item, amount);
        exact[item.lane()] += amount;
        let error = (zone.counters().total(item) - exact[item.lane()]).abs();
        assert!(error <= CPUS as i64 * i64::from(zone.counters().threshold()), "step {step}");
        widest = widest.max(error);
    }
    assert!(widest > 125, "several CPUs must have differed at once: {widest}");
    let signed = |item: ZoneItem| {
        let differences = (0..CPUS).map(|cpu| zone.difference(cpu, item));
        zone.counters().total(item) + differences.sum::<i64>()
    };
    assert_eq!(ZoneItem::ALL.map(signed), exact);
}

#[test]
fn without_an_overstep_folds_leave_nothing() {
    let zone = Zone::<1>::folding(FoldRule::ToZero, 8);
    (0..8).for_each(|_| zone.add(0, ZoneItem::Free, 1));
    assert_eq!(zone.free(), (0, 8));
    zone.add(0, ZoneItem::Free, 1);
    assert_eq!(zone.free(), (9, 0));
    (0..9).for_each(|_| zone.add(0, ZoneItem::Free, -1));
    assert_eq!(zone.free(), (0, 0));
}

#[test]
fn served_blocks_fold_as_rarely_as_their_lane_allows() {
    let zone = Zone::<1>::new(8);
    let items = [ZoneItem::NumaHit, ZoneItem::NumaLocal];
    let left = [(124, 1), (125, 1), (-62, 1), (100, 26)];
    assert_eq!(
        left.map(|(before, more)| zone.counters().leave_served(items, before, more)),
        [125, -62, -61, 0]
    );
    assert_eq!(items.map(|item| zone.counters().total(item)), [126 + 62 + 126; 2]);
}

#[test]
fn totals_of_the_machine_get_what_all_nodes_get() {
    let (zones, machine) = ([Zone::<1>::new(3), Zone::<1>::new(8)], Default::default());
    let nodes = zones.each_ref().map(|zone| ZonedCounters { machine: Some(&machine), ..zone.counters() });
    let alone = Zone::<1>::new(3);
    let mut random = Random::new(5);
    for _ in 0..1000 {
        let (at, item) = (random.index(2), ZoneItem::ALL[random.index(7)]);
        let amount = [1, 1, -1, 7, -40][random.index(5)];
        match random.index(3) {
            0 => nodes[at].add_total(item, amount),
            1 => nodes[at].fold(&zones[at].words[0], &Unshared),
            _ => nodes[at].add(&zones[at].words[0], item, amount, &Unshared),
        }
        alone.add(0, item, amount); // `alone` has no totals of the machine
    }
    let sums = ZoneItem::ALL.map(|item| nodes.iter().map(|node| node.total(item)).sum::<i64>());
    assert_eq!(ZoneItem::ALL.map(|item| machine[item.lane()].load(Relaxed) as i64), sums);
    assert!(sums.iter().all(|&sum| sum != 0));
    assert_eq!(machine[FOLDS].load(Relaxed), 0);
}

/// Returns the number of folds in 1000 updates by one CPU that follow `step`.
fn folds_per_1000(threshold: u8, step: impl Fn(usize) -> i64) -> u64 {
    folds_by(FoldRule::Overstep, threshold, step)
}

fn folds_by(fold: FoldRule, threshold: u8, step: impl Fn(usize) -> i64) -> u64 {
    let zone = Zone::<1>::folding(fold, threshold);
    (0..1000).for_each(|update| zone.add(0, ZoneItem::Free, step(update)));
    zone.counters().folds()
}

#[test]
fn folds_fall_as_thresholds_rise() {
    let thresholds = [0, 2, 8, 32, 125];
    assert_eq!(thresholds.map(|t| folds_per_1000(t, |_| 1)), [1000, 250, 77, 20, 5]);
    assert_eq!(thresholds.map(|t| folds_per_1000(t, |_| -1)), [1000, 250, 77, 20, 5]);
    // Without an overstep there are one and a half times as many folds.
    let to_zero = thresholds.map(|t| folds_by(FoldRule::ToZero, t, |_| 1));
    assert_eq!(to_zero, [1000, 333, 111, 30, 7]);
    // Alternating updates never fold if the threshold covers their range.
    let alternating = |update: usize| if update.is_multiple_of(2) { 1 } else { -1 };
    assert_eq!(thresholds.map(|t| folds_per_1000(t, alternating)), [1000, 0, 0, 0, 0]);
    let swinging = |update: usize| if update % 40 < 20 { 1 } else { -1 };
    assert_eq!(
        thresholds.map(|t| folds_per_1000(t, swinging)).map(|folds| folds.min(200)),
        [200, 200, 50, 0, 0]
    );
}

/// The lock of one CPU's words, which stands for the lock of a pageset.
struct Locked<'a>(&'a SpinLock);

impl CpuGuard for Locked<'_> {}

impl<'a> Locked<'a> {
    fn attempt(lock: &'a SpinLock) -> Option<Self> {
        lock.try_lock().then(|| Self(lock))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// Checks that no counts are lost when threads share CPUs and count in the totals while a CPU is locked.
#[test]
fn nothing_is_lost_between_threads() {
    let rounds = if cfg!(miri) { 200 } else { 20_000 };
    let (zone, locks) = (Zone::<2>::new(5), [SpinLock::new(), SpinLock::new()]);
    let count = |thread: usize| {
        let (counters, mut random) = (zone.counters(), Random::new(thread as u64));
        let mut sums = [0; 7];
        for _ in 0..rounds {
            let (cpu, item) = (random.index(2), ZoneItem::ALL[random.index(7)]);
            let amount = [1, 1, 1, -1, 3, 64][random.index(6)];
            match Locked::attempt(&locks[cpu]) {
                Some(guard) if random.index(50) == 0 => {
                    counters.fold(&zone.words[cpu], &guard);
                    counters.add(&zone.words[cpu], item, amount, &guard);
                }
                Some(guard) => counters.add(&zone.words[cpu], item, amount, &guard),
                None => counters.add_total(item, amount),
            }
            sums[item.lane()] += amount;
        }
        sums
    };
    let sums: Vec<[i64; 7]> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(move || count(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for item in ZoneItem::ALL {
        let exact = sums.iter().map(|sums| sums[item.lane()]).sum::<i64>();
        assert_eq!(zone.snapshot(item), exact as u64);
    }
    zone.words.iter().for_each(|word| zone.counters().fold(word, &Unshared));
    let exact = |item| sums.iter().map(|sums| sums[Item::lane(item)]).sum::<i64>() as u64;
    assert_eq!(ZoneItem::ALL.map(|item| zone.counters().approximate(item)), ZoneItem::ALL.map(exact));
}
