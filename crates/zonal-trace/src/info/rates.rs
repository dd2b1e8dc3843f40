//! Counts over time, in at most a fixed number of equal intervals.
//!
//! The length of the trace is not known while it is read. Whenever the intervals do not suffice, pairs of them are merged
//! and their length doubles.
//!
//! Related files: `info/mod.rs` feeds it.

use serde::Serialize;
use zonal::units::Moment;

/// The largest number of intervals.
const INTERVALS_MAX: usize = 512;
/// The first length of an interval.
const FIRST_NS: u64 = 1 << 20;
/// The number of hot spots that are reported.
const HOT_SPOTS: usize = 5;

/// What happened in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Interval {
    /// All events.
    pub events: u64,
    /// Requests that were served.
    pub allocations: u64,
    /// Freed blocks.
    pub frees: u64,
    /// Frames refilled to pagesets.
    pub refilled_pages: u64,
    /// Frames drained from pagesets.
    pub drained_pages: u64,
    /// Blocks taken from another migratetype.
    pub fallbacks: u64,
    /// The thread's name that most events have, if one has more than half of them, as a place in a table.
    #[serde(skip)]
    pub(super) leader: (usize, u64),
}

impl Interval {
    fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.refilled_pages += other.refilled_pages;
        self.drained_pages += other.drained_pages;
        self.fallbacks += other.fallbacks;
        let ((name, count), (other_name, other_count)) = (self.leader, other.leader);
        self.leader = if name == other_name {
            (name, count + other_count)
        } else if count >= other_count {
            (name, count - other_count)
        } else {
            (other_name, other_count - count)
        };
    }

    /// Counts an event of a thread with this name.
    pub(super) fn lead(&mut self, name: usize) {
        self.leader = match self.leader {
            (_, 0) => (name, 1),
            (leader, count) if leader == name => (leader, count + 1),
            (leader, count) => (leader, count - 1),
        };
    }
}

/// Counts over time.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Debug)]
pub struct Rates {
    /// The length of each interval.
    pub interval_ns: u64,
    /// The intervals from the start of the trace.
    pub intervals: Vec<Interval>,
}

/// An interval with far more events than others.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub struct HotSpot {
    /// The beginning, in nanoseconds after the start of the trace.
    pub from_ns: u64,
    /// The end.
    pub to_ns: u64,
    /// Events a second.
    pub events_per_second: f64,
    /// The same, as a multiple of the average.
    pub times_average: f64,
    /// The thread name that most events here belong to, if there is one.
    pub name: Option<String>,
}

/// Collects counts over time.
#[derive(Debug)]
pub(super) struct Collected {
    start: Moment,
    rates: Rates,
}

impl Collected {
    pub(super) fn new(start: Moment) -> Self {
        Self { start, rates: Rates { interval_ns: FIRST_NS, intervals: Vec::new() } }
    }

    /// Returns the interval of a moment. Moments before the start belong to the first one.
    pub(super) fn at(&mut self, moment: Moment) -> &mut Interval {
        let since = moment.ns_since(self.start);
        while since / self.rates.interval_ns >= INTERVALS_MAX as u64 {
            let merge = |pair: &[Interval]| {
                let mut both = pair[0];
                pair.get(1).inspect(|second| both.add(second));
                both
            };
            self.rates.intervals = self.rates.intervals.chunks(2).map(merge).collect();
            self.rates.interval_ns = self.rates.interval_ns.saturating_mul(2);
        }
        let place = (since / self.rates.interval_ns) as usize;
        if self.rates.intervals.len() <= place {
            self.rates.intervals.resize(place + 1, Interval::default());
        }
        &mut self.rates.intervals[place]
    }

    /// Returns the counts and the hot spots: intervals with more than twice the average, the hottest first.
    pub(super) fn finish(self, names: &[String]) -> (Rates, Vec<HotSpot>) {
        let Self { rates, .. } = self;
        let (count, length) = (rates.intervals.len().max(1) as f64, rates.interval_ns as f64 / 1e9);
        let average = rates.intervals.iter().map(|one| one.events).sum::<u64>() as f64 / count;
        let mut places: Vec<usize> = (0..rates.intervals.len()).collect();
        places.sort_by_key(|&place| std::cmp::Reverse(rates.intervals[place].events));
        let hot = places.into_iter().take(HOT_SPOTS).map(|place| (place, &rates.intervals[place]));
        let spot = |(place, interval): (usize, &Interval)| HotSpot {
            from_ns: rates.interval_ns.saturating_mul(place as u64),
            to_ns: rates.interval_ns.saturating_mul(place as u64 + 1),
            events_per_second: interval.events as f64 / length,
            times_average: interval.events as f64 / average,
            name: (interval.leader.1 > 0).then(|| names.get(interval.leader.0).cloned()).flatten(),
        };
        let spots = hot.filter(|(_, interval)| interval.events as f64 > 2.0 * average).map(spot).collect();
        (rates, spots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_double_and_keep_their_sums() {
        let mut collected = Collected::new(Moment::from_ns(1000));
        for at in 0..10_000_u64 {
            let interval = collected.at(Moment::from_ns(1000 + at * FIRST_NS));
            interval.events += 1;
            interval.lead(usize::from(at % 3 == 0));
        }
        let hot = collected.at(Moment::from_ns(1000 + 5000 * FIRST_NS));
        hot.events += 1000;
        collected.at(Moment::from_ns(0)).frees += 1;
        let (rates, spots) = collected.finish(&["a".to_owned(), "b".to_owned()]);
        assert_eq!(rates.interval_ns, 32 * FIRST_NS);
        assert_eq!(rates.intervals.iter().map(|one| one.events).sum::<u64>(), 11_000);
        assert_eq!(rates.intervals[0].frees, 1);
        assert_eq!(spots.len(), 1);
        assert!(spots[0].from_ns <= 5000 * FIRST_NS && 5000 * FIRST_NS < spots[0].to_ns);
        assert_eq!(spots[0].name.as_deref(), Some("a"));
    }

    #[test]
    fn moments_far_away_need_no_memory() {
        let mut collected = Collected::new(Moment::from_ns(0));
        collected.at(Moment::from_ns(u64::MAX)).events += 1;
        assert!(collected.finish(&[]).0.intervals.len() <= INTERVALS_MAX);
    }
}
