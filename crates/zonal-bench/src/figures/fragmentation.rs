//! How many blocks of 2 MiB are left whole by others' frames.
//!
//! *After the orders mix*: blocks of random orders come and go at 50 to 70 % occupancy, as in the
//! workload `orders`; then the blocks without a frame in use are counted, and as many blocks of 2 MiB
//! taken as there are to be had. *Recovered*: the pool is filled, a random half given back, then some
//! given back and as many taken again, round after round; an allocator that prefers full regions gets
//! whole blocks back.

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

/// Blocks of 2 MiB.
const HUGE: Order = Order::new(9).expect("a small order");
/// Unit of all figures here.
const UNIT: &str = "blocks of 2 MiB";
/// Requests of the mix, preparation included: of 4 GiB with seed 1, the frames then in use would fit
/// so that 944 of 2048 blocks are free.
pub(super) const REQUESTS: usize = 326_144;
/// Part of the held frames that a round of churn gives back.
const CHURN_PART: usize = 10;

/// Adds what is left after the mix of orders, and then what is recovered, of each of `entries`.
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

/// Adds `figures` of what `work` left of each contender's pool, ordered by figure, and the ideal.
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
            return; // half of the work is no figure
        }
        match left {
            Ok(left) => {
                rows.extend(figures(entry.name(), &left));
                // Of the first contender: all hold the same frames, or nearly.
                ideal.get_or_insert(Left { whole: left.ideal, taken: left.ideal, ..left });
            }
            Err(reason) => into.skipped.push(format!("{}: {reason}", entry.name())),
        }
    }
    rows.extend(ideal.iter().flat_map(|ideal| figures(IDEAL, ideal)));
    rows.sort_by(|a, b| a.name.cmp(&b.name)); // stable: contenders stay in order
    into.rows.extend(rows);
}

/// Blocks of 2 MiB in a pool of which some frames are out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// Without a frame that is out.
    whole: u64,
    /// That could then be taken.
    taken: u64,
    /// That would be whole if the frames that are out stood side by side.
    ideal: u64,
}

/// Frames that are out, by the block of 2 MiB they lie in.
#[derive(Default)]
struct Out(HashMap<u64, u64>);

impl Out {
    fn block(first: Pfn) -> u64 {
        first.get() >> HUGE.get()
    }

    fn take(&mut self, first: Pfn, order: Order) {
        *self.0.entry(Self::block(first)).or_default() += order.pages().get();
    }

    fn give(&mut self, first: Pfn, order: Order) {
        let frames = self.0.entry(Self::block(first)).or_default();
        *frames -= order.pages().get();
        if *frames == 0 {
            self.0.remove(&Self::block(first));
        }
    }

    /// What is left of a pool of `frames`; nothing was taken of it.
    fn left_of(&self, frames: PageCount) -> Left {
        let blocks = frames.get() / HUGE.pages().get();
        let least = self.0.values().sum::<u64>().div_ceil(HUGE.pages().get());
        let used = self.0.len() as u64;
        Left { whole: blocks.saturating_sub(used), taken: 0, ideal: blocks.saturating_sub(least) }
    }
}

/// A source that knows what is out, and ends the run after some requests.
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
            self.over.store(true, Ordering::Relaxed); // nothing but the flag itself is read
        }
    }
}

impl PageSource for Watched<'_> {
    type Page = Pfn;

    fn take(&mut self, order: Order) -> Option<Pfn> {
        self.request();
        let first = self.source.take(order)?;
        self.out.take(first, order);
        Some(first)
    }

    fn give(&mut self, first: Pfn, order: Order) {
        self.request();
        self.out.give(first, order);
        self.source.give(first, order);
    }

    fn measuring_ends(&mut self) {
        let huge: Vec<Pfn> = std::iter::from_fn(|| self.source.take(HUGE)).collect();
        let left = Left { taken: huge.len() as u64, ..self.out.left_of(self.sizes.frames) };
        huge.into_iter().for_each(|block| self.source.give(block, HUGE));
        *self.left.lock().expect("one lane, and it lives") = Some(left);
    }
}

/// Runs the workload `orders` for a number of requests, which are the same for every contender.
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
    run(&plan, source, &over, |_| ()).map_err(|error| format!("no thread: {error}"))?;
    left.into_inner().ok().flatten().ok_or_else(|| "it did not run".into())
}

/// Fills the pool, gives half of it back, then churns.
fn churn(source: &mut dyn PageSource<Page = Pfn>, sizes: &Sizes, stop: &AtomicBool) -> Left {
    let mut random = Rng::with_seed(sizes.seed);
    let mut held: Vec<Pfn> = std::iter::from_fn(|| source.take(Order::PAGE)).collect();
    let mut give = |held: &mut Vec<Pfn>, source: &mut dyn PageSource<Page = Pfn>, count: usize| {
        for _ in 0..count {
            let frame = held.swap_remove(random.usize(..held.len()));
            source.give(frame, Order::PAGE);
        }
    };
    let half = held.len() / 2;
    give(&mut held, source, half);
    for _ in 0..sizes.churn_rounds {
        if is_set(stop) {
            break;
        }
        let part = held.len() / CHURN_PART;
        give(&mut held, source, part);
        held.extend((0..part).map_while(|_| source.take(Order::PAGE)));
    }
    let mut out = Out::default();
    held.iter().for_each(|&frame| out.take(frame, Order::PAGE));
    held.into_iter().for_each(|frame| source.give(frame, Order::PAGE));
    out.left_of(sizes.frames)
}

fn is_set(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) // nothing but the flag itself is read
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{floors, peers, zonal};

    /// A pool of 128 blocks of 2 MiB.
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
        out.give(Pfn::new(1024), HUGE);
        out.give(Pfn::new(0), Order::PAGE);
        assert_eq!(out.left_of(PageCount::new(5120)), Left { whole: 7, taken: 0, ideal: 9 });
    }

    #[test]
    fn lowest_first_recovers_all_and_last_first_nothing() {
        let all: Vec<Entry> = peers().into_iter().chain(floors()).collect();
        let chosen: Vec<&Entry> =
            all.iter().filter(|entry| ["bitmap-allocator", "floor-spin"].contains(&entry.name())).collect();
        let found = taken(&chosen);
        assert_eq!(value(&found, "recovered", IDEAL), 64.0);
        assert!(value(&found, "recovered", "bitmap-allocator") > 60.0);
        assert_eq!(value(&found, "recovered", "floor-spin"), 0.0);
    }

    #[test]
    fn the_mix_leaves_no_more_than_the_ideal_and_the_same_each_time() {
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
