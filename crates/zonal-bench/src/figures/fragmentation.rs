//! Measures how many blocks of 2 MiB remain free, or become free again, despite smaller allocations.
//!
//! *After the mix of orders*: blocks of random orders are allocated and freed at 50 to 70 % occupancy, as in the
//! workload `orders`. Then the blocks without an allocated frame are counted, and as many blocks of 2 MiB as possible
//! are allocated. *Recovered*: the pool is filled and a random half of it is freed. Then each round of *churn* frees
//! some frames and allocates the same number. An allocator that prefers free areas that are nearly full recovers
//! whole blocks.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::{Latencies, PageSource, Plan, Workload, run};

use super::{Figure, Figures, Goal, IDEAL, Sizes};
use crate::contender::{Entry, Ready, Reason};

/// Order of a 2 MiB block.
const HUGE: Order = Order::new(9).expect("a small order");
/// Unit of all figures in this file.
const UNIT: &str = "blocks of 2 MiB";
/// Number of requests in the mix, including the preparation. With 4 GiB and seed 1, the frames then in use could be
/// arranged so that 944 of 2048 blocks are free.
pub(super) const REQUESTS: usize = 326_144;
/// A round of churn frees the held frames divided by this number.
const CHURN_PART: usize = 10;

/// Adds two figures for each of `entries`: the blocks that remain after the mix of orders, and the blocks recovered
/// by churn.
pub(super) fn take(entries: &[&Entry], sizes: &Sizes, stop: &AtomicBool, into: &mut Figures) {
    let after_orders = |ready: Box<dyn Ready>| mix(&*ready, sizes, stop);
    each(entries.iter().filter(|entry| entry.has_orders()), sizes, stop, into, after_orders, |name, left| {
        let whole = Figure::new("free_after_orders", name, left.whole as f64, UNIT);
        vec![
            whole.with_goal(Goal::AtLeast(927.0, 940.0)),
            Figure::new("taken_after_orders", name, left.taken as f64, UNIT),
        ]
    });
    let recovered = |ready: Box<dyn Ready>| Ok(churn(&mut *ready.open(), sizes, stop));
    each(entries.iter(), sizes, stop, into, recovered, |name, left| {
        let whole = Figure::new("recovered", name, left.whole as f64, UNIT);
        vec![whole.with_goal(Goal::AtLeast(960.0, 1015.0))]
    });
}

/// Measures what `work` leaves of each contender's pool, and adds the resulting `figures` and those of the ideal,
/// ordered by figure.
fn each<'e>(
    entries: impl Iterator<Item = &'e &'e Entry>,
    sizes: &Sizes,
    stop: &AtomicBool,
    into: &mut Figures,
    work: impl Fn(Box<dyn Ready>) -> Result<Left, Reason>,
    figures: impl Fn(&str, &Left) -> Vec<Figure>,
) {
    let mut rows = Vec::new();
    let mut ideal = None;
    for entry in entries {
        let left = entry.make(sizes.frames).and_then(&work);
        if is_set(stop) {
            return; // an incomplete measurement yields no figure
        }
        match left {
            Ok(left) => {
                rows.extend(figures(entry.name(), &left));
                // The ideal is that of the first contender, because all contenders hold the same frames or nearly the
                // same.
                ideal.get_or_insert(Left { whole: left.ideal, taken: left.ideal, ..left });
            }
            Err(reason) => into.skipped.push(format!("{}: {reason}", entry.name())),
        }
    }
    rows.extend(ideal.iter().flat_map(|ideal| figures(IDEAL, ideal)));
    rows.sort_by(|a, b| a.name.cmp(&b.name)); // the sort is stable, so the contenders stay in order
    into.rows.extend(rows);
}

/// Counts of 2 MiB blocks in a partly allocated pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// Blocks without an allocated frame.
    whole: u64,
    /// Blocks that could then be allocated.
    taken: u64,
    /// Blocks that would be free if the allocated frames were contiguous.
    ideal: u64,
}

/// Allocated frames in each 2 MiB block.
#[derive(Default)]
struct Out(HashMap<u64, u64>);

impl Out {
    fn block(first: Pfn) -> u64 {
        first.get() >> HUGE.get()
    }

    fn take(&mut self, first: Pfn, order: Order) {
        *self.0.entry(Self::block(first)).or_default() += order.pages().get();
    }

    fn free(&mut self, first: Pfn, order: Order) {
        let frames = self.0.entry(Self::block(first)).or_default();
        *frames -= order.pages().get();
        if *frames == 0 {
            self.0.remove(&Self::block(first));
        }
    }

    /// Returns the numbers for a pool of `frames`, before any block of 2 MiB is allocated.
    fn left_of(&self, frames: PageCount) -> Left {
        let blocks = frames.get() / HUGE.pages().get();
        let least = self.0.values().sum::<u64>().div_ceil(HUGE.pages().get());
        let used = self.0.len() as u64;
        Left { whole: blocks.saturating_sub(used), taken: 0, ideal: blocks.saturating_sub(least) }
    }
}

/// A source that tracks the allocated frames, and ends the run after a number of requests.
struct Watched<'a> {
    source: Box<dyn PageSource<Page = Pfn> + 'a>,
    out: Out,
    requests_left: usize,
    sizes: &'a Sizes,
    over: &'a AtomicBool,
    left: &'a Mutex<Option<Left>>,
}

impl Watched<'_> {
    fn request(&mut self) {
        self.requests_left = self.requests_left.saturating_sub(1);
        if self.requests_left == 0 {
            self.over.store(true, Ordering::Relaxed); // relaxed: only the flag itself is read
        }
    }
}

impl PageSource for Watched<'_> {
    type Page = Pfn;

    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.request();
        let first = self.source.alloc(order)?;
        self.out.take(first, order);
        Some(first)
    }

    fn free(&mut self, first: Pfn, order: Order) {
        self.request();
        self.out.free(first, order);
        self.source.free(first, order);
    }

    fn measuring_ends(&mut self) {
        let huge: Vec<Pfn> = std::iter::from_fn(|| self.source.alloc(HUGE)).collect();
        let left = Left { taken: huge.len() as u64, ..self.out.left_of(self.sizes.frames) };
        huge.into_iter().for_each(|block| self.source.free(block, HUGE));
        *self.left.lock().expect("one lane, and it lives") = Some(left);
    }
}

/// Runs the workload `orders` for a number of requests, which is the same for every contender.
fn mix(ready: &dyn Ready, sizes: &Sizes, stop: &AtomicBool) -> Result<Left, Reason> {
    let (over, left) = (AtomicBool::new(is_set(stop)), Mutex::new(None));
    let plan = Plan {
        workload: Workload::Orders,
        threads: NonZeroUsize::MIN,
        duration: Duration::MAX,
        warm_up: Duration::ZERO,
        seed: sizes.seed,
        pages: sizes.frames,
        latencies: Latencies::Off,
    };
    let source = |_| Watched {
        source: ready.open(),
        out: Out::default(),
        requests_left: sizes.requests,
        sizes,
        over: &over,
        left: &left,
    };
    run(&plan, source, &over, |_| ()).map_err(|error| format!("cannot start a thread: {error}"))?;
    left.into_inner().ok().flatten().ok_or_else(|| "it did not run".into())
}

/// Fills the pool, frees half of it, and runs the rounds of churn.
fn churn(source: &mut dyn PageSource<Page = Pfn>, sizes: &Sizes, stop: &AtomicBool) -> Left {
    let mut random = Rng::with_seed(sizes.seed);
    let mut held: Vec<Pfn> = std::iter::from_fn(|| source.alloc(Order::PAGE)).collect();
    let mut free = |held: &mut Vec<Pfn>, source: &mut dyn PageSource<Page = Pfn>, count: usize| {
        for _ in 0..count {
            let frame = held.swap_remove(random.usize(..held.len()));
            source.free(frame, Order::PAGE);
        }
    };
    let half = held.len() / 2;
    free(&mut held, source, half);
    for _ in 0..sizes.churn_rounds {
        if is_set(stop) {
            break;
        }
        let part = held.len() / CHURN_PART;
        free(&mut held, source, part);
        held.extend((0..part).map_while(|_| source.alloc(Order::PAGE)));
    }
    let mut out = Out::default();
    held.iter().for_each(|&frame| out.take(frame, Order::PAGE));
    held.into_iter().for_each(|frame| source.free(frame, Order::PAGE));
    out.left_of(sizes.frames)
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) // relaxed: only the flag itself is read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{floors, peers, zonal};

    /// Returns sizes with a pool that has 128 blocks of 2 MiB.
    fn small() -> Sizes {
        Sizes { frames: PageCount::new(1 << 16), requests: 20_000, churn_rounds: 150, ..Sizes::default() }
    }

    fn value(found: &Figures, figure: &str, contender: &str) -> f64 {
        let is_it = |row: &&Figure| (&*row.name, &*row.contender) == (figure, contender);
        found.rows.iter().find(is_it).unwrap_or_else(|| panic!("no {figure} of {contender}")).value
    }

    fn taken(entries: &[&Entry]) -> Figures {
        let mut figures = Figures::default();
        take(entries, &small(), &AtomicBool::new(false), &mut figures);
        figures
    }

    #[test]
    fn blocks_are_counted_by_the_frames_in_them() {
        let mut out = Out::default();
        for frame in [0, 511, 512, 5000] {
            out.take(Pfn::new(frame), Order::PAGE);
        }
        out.take(Pfn::new(1024), HUGE);
        assert_eq!(out.left_of(PageCount::new(5120)), Left { whole: 6, taken: 0, ideal: 8 });
        out.free(Pfn::new(1024), HUGE);
        out.free(Pfn::new(0), Order::PAGE);
        assert_eq!(out.left_of(PageCount::new(5120)), Left { whole: 7, taken: 0, ideal: 9 });
    }

    /// The goal of the full figure, relative to the ideal, holds for a small pool too.
    #[test]
    fn most_blocks_that_could_be_free_are() {
        let zonal = zonal();
        let mut found = Figures::default();
        super::super::on_one_cpu(|| take(&[&zonal], &small(), &AtomicBool::new(false), &mut found));
        let [whole, ideal] = [zonal.name(), IDEAL].map(|name| value(&found, "free_after_orders", name));
        assert!(whole > 0.9 * ideal, "{whole} of {ideal}");
    }

    #[cfg_attr(not(feature = "peers"), ignore = "needs the feature `peers`")]
    #[test]
    fn freeing_lowest_first_recovers_all_blocks_and_last_first_none() {
        let all: Vec<Entry> = peers().into_iter().chain(floors()).collect();
        let chosen: Vec<&Entry> =
            all.iter().filter(|entry| ["bitmap-allocator", "floor-spin"].contains(&entry.name())).collect();
        let found = taken(&chosen);
        assert_eq!(value(&found, "recovered", IDEAL), 64.0);
        assert!(value(&found, "recovered", "bitmap-allocator") > 60.0);
        assert_eq!(value(&found, "recovered", "floor-spin"), 0.0);
    }

    #[cfg_attr(not(feature = "peers"), ignore = "needs the feature `peers`")]
    #[test]
    fn fragmentation_is_reproducible_and_no_better_than_ideal() {
        let all: Vec<Entry> = peers().into_iter().chain([zonal()]).collect();
        let chosen: Vec<&Entry> = all.iter().filter(|entry| entry.has_pool()).collect();
        let [first, second] = [0, 1].map(|_| taken(&chosen));
        let ideal = value(&first, "free_after_orders", IDEAL);
        assert!((38.0..=64.0).contains(&ideal), "{ideal} of 128 at 50 to 70 %");
        for entry in chosen {
            let whole = value(&first, "free_after_orders", entry.name());
            assert!(whole > 0.0 && whole <= ideal, "{}: {whole} of {ideal}", entry.name());
            assert!(value(&first, "taken_after_orders", entry.name()) <= whole, "{}", entry.name());
        }
        assert_eq!(
            value(&second, "free_after_orders", "bitmap-allocator"),
            value(&first, "free_after_orders", "bitmap-allocator")
        );
    }
}
