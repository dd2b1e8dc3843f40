//! Checks the depth rule with hand-computed examples, and against a literal model of the published rule.

use super::*;
use crate::testing::Random;
use crate::units::Order;

const START: Moment = Moment::from_ns(10 * SECOND_NS);

const fn pages(count: u64) -> PageCount {
    PageCount::new(count)
}

fn limits() -> HighLimits {
    HighLimits::new(pages(100), pages(10_000))
}

const fn periods(count: u64) -> Moment {
    Moment::from_ns(START.ns() + count * PERIOD_NS)
}

/// Returns the moment that is `count` whole periods and `ns` nanoseconds after `START`.
const fn after(count: u64, ns: u64) -> Moment {
    Moment::from_ns(periods(count).ns() + ns)
}

/// Returns a state whose period began at `START`, with zero depths.
fn fresh() -> DepthState {
    DepthState { start: START, ..DepthState::default() }
}

fn take(state: &mut DepthState, count: u64) {
    (0..count).for_each(|_| state.on_pop(Order::PAGE));
}

/// Frees `count` frames at one moment and returns the last new `high`, if any.
fn give(state: &mut DepthState, count: u64, now: Moment) -> Option<PageCount> {
    (0..count).filter_map(|_| state.on_push(Order::PAGE, now, limits())).last()
}

fn depths(alloc: u64, free: u64) -> Depths {
    Depths { alloc: alloc as u32, free: free as u32 }
}

#[test]
fn depths_are_measured_from_the_extremes() {
    let mut state = fresh();
    take(&mut state, 300); // count 300: 300 above its low
    assert_eq!(state.deepest, depths(300, 0));
    give(&mut state, 100, START); // count 200: 100 below its high
    assert_eq!(state.deepest, depths(300, 100));
    take(&mut state, 50); // count 250: not deeper in either direction
    assert_eq!(state.deepest, depths(300, 100));
    give(&mut state, 400, START); // count -150, high 300
    assert_eq!(state.deepest, depths(300, 450));
    take(&mut state, 500); // count 350, low -150
    assert_eq!(state.deepest, depths(500, 450));
}

#[test]
fn blocks_count_by_their_frames() {
    let mut state = fresh();
    let large = Order::new(9).unwrap();
    state.on_pop(large);
    state.on_pop(Order::new(3).unwrap());
    state.on_push(large, START, limits());
    assert_eq!(state.deepest, depths(520, 512));
}

#[test]
fn up_to_one_period_nothing_happens() {
    let mut state = fresh();
    take(&mut state, 300);
    assert_eq!(give(&mut state, 300, periods(1)), None);
    assert_eq!(state, DepthState { deepest: depths(300, 300), position: depths(0, 300), ..fresh() });
}

#[test]
fn a_period_is_closed_by_a_free_that_is_counted_first() {
    let mut state = fresh();
    take(&mut state, 400);
    give(&mut state, 399, START);
    // The free that closes the period makes the depth 400, half of which is added to half the previous average.
    assert_eq!(give(&mut state, 1, after(1, 1)), Some(pages(200)));
    let expected = DepthState { average: depths(200, 200), start: after(1, 1), ..DepthState::default() };
    assert_eq!(state, expected);
}

#[test]
fn allocations_never_close_a_period() {
    let mut state = fresh();
    take(&mut state, 400);
    assert_eq!((state.start, state.deepest), (START, depths(400, 0)));
}

#[test]
fn exactly_two_periods_average_and_more_forget() {
    let seen = DepthState { average: depths(600, 600), ..fresh() };
    let (mut at_two, mut beyond) = (seen, seen);
    for state in [&mut at_two, &mut beyond] {
        take(state, 400);
        give(state, 399, START);
    }
    assert_eq!(give(&mut at_two, 1, periods(2)), Some(pages(500)));
    assert_eq!(at_two.average, depths(500, 500));
    assert_eq!(give(&mut beyond, 1, after(2, 1)), Some(limits().min()));
    assert_eq!(beyond, DepthState { start: after(2, 1), ..DepthState::default() });
}

#[test]
fn the_smaller_average_counts_and_limits_clamp() {
    let mut shallow_free = DepthState { average: depths(9000, 0), ..fresh() };
    take(&mut shallow_free, 9000);
    assert_eq!(give(&mut shallow_free, 1000, START), None);
    assert_eq!(give(&mut shallow_free, 1, after(1, 1)), Some(pages(500)));
    let mut tiny = fresh();
    take(&mut tiny, 10);
    assert_eq!(give(&mut tiny, 10, after(1, 1)), Some(limits().min()));
    let mut huge = fresh();
    take(&mut huge, 50_000);
    give(&mut huge, 49_999, START);
    assert_eq!(give(&mut huge, 1, after(1, 1)), Some(limits().max()));
}

#[test]
fn disabled_is_zero_high_and_zero_start() {
    let mut state = fresh();
    assert_eq!(state.on_push(Order::PAGE, after(1, 1), HighLimits::DISABLED), Some(PageCount::ZERO));
    assert_eq!(state.start, Moment::default());
    // The first free after pagesets are enabled again is more than two periods later, so it starts a new period.
    assert_eq!(give(&mut state, 1, after(1, 2)), Some(limits().min()));
    assert_eq!(state, DepthState { start: after(1, 2), ..DepthState::default() });
}

#[test]
fn a_clock_that_steps_back_closes_nothing() {
    let mut state = fresh();
    assert_eq!(give(&mut state, 5, Moment::from_ns(START.ns() - PERIOD_NS)), None);
    assert_eq!(state.start, START);
}

#[test]
fn a_clock_that_leaps_back_by_more_than_two_periods_starts_afresh() {
    let mut state = fresh();
    let back = Moment::from_ns(START.ns() - 2 * PERIOD_NS - 1);
    assert_eq!(give(&mut state, 1, back), Some(limits().min()));
    assert_eq!(state, DepthState { start: back, ..DepthState::default() });
}

#[test]
fn freeing_alone_never_raises_high() {
    let mut state = fresh();
    for period in 1..20 {
        let high = give(&mut state, 1000, after(period, period));
        assert_eq!(high, Some(limits().min()));
    }
    assert_eq!(state.average.alloc(), PageCount::ZERO);
}

/// Allocates on one CPU, with only one free per period, which closes the period.
#[test]
fn allocation_alone_never_raises_high() {
    let mut state = fresh();
    for period in 1..20 {
        take(&mut state, 5000);
        let high = give(&mut state, 1, after(period, period));
        assert_eq!(high, Some(limits().min()));
    }
    assert!(state.average.alloc() > pages(4000));
}

/// Returns `high` at the end of each period in which `out` frames are allocated and freed.
fn highs_of_repeats(out: u64) -> [u64; 8] {
    let mut state = fresh();
    core::array::from_fn(|period| {
        let now = after(period as u64 + 1, period as u64 + 1);
        take(&mut state, out);
        let began = state.start;
        give(&mut state, out - 1, began);
        give(&mut state, 1, now).expect("the period is over").get()
    })
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn repeats_converge_by_halves() {
    assert_eq!(highs_of_repeats(8000), [4000, 6000, 7000, 7500, 7750, 7875, 7937, 7968]);
    // The distance to the final value halves in every period, so after 5 periods it is one thirty-second.
    assert!(highs_of_repeats(8000)[4] >= 8000 - 8000 / 32);
    assert_eq!(highs_of_repeats(30_000)[..2], [10_000, 10_000]);
    assert_eq!(highs_of_repeats(50), [100; 8]);
}

#[test]
fn high_falls_by_halves_when_the_load_does() {
    let mut state = DepthState { average: depths(6400, 6400), ..fresh() };
    let highs = [1, 2, 3, 4, 5].map(|period| give(&mut state, 1, after(period, period)).unwrap().get());
    assert_eq!(highs, [3200, 1600, 800, 400, 200]);
}

#[test]
fn depths_stop_at_their_width() {
    let near = Depths { alloc: u32::MAX - 1, free: 3 };
    let expected = Depths { alloc: u32::MAX, free: 0 };
    assert_eq!(near.after(1 << 18), expected);
    assert_eq!(Depths::from_word(expected.word()), expected);
    assert_eq!(expected.midpoint(Depths { alloc: 0, free: 0 }), Depths { alloc: u32::MAX / 2, free: 0 });
}

/// The rule as published, which stores the count and its extremes.
#[derive(Default)]
struct Model {
    alloc_count: i64,
    alloc_low: i64,
    alloc_high: i64,
    alloc_depth: i64,
    free_depth: i64,
    avg_alloc: i64,
    avg_free: i64,
    start: u64,
}

impl Model {
    fn on_pop(&mut self, order: Order) {
        self.alloc_count += 1 << order.get();
        self.alloc_high = self.alloc_high.max(self.alloc_count);
        self.alloc_depth = self.alloc_depth.max(self.alloc_count - self.alloc_low);
    }

    fn on_push(&mut self, order: Order, now: u64, min: i64, max: i64) -> Option<i64> {
        self.alloc_count -= 1 << order.get();
        self.alloc_low = self.alloc_low.min(self.alloc_count);
        self.free_depth = self.free_depth.max(self.alloc_high - self.alloc_count);
        let elapsed = now - self.start;
        if elapsed <= PERIOD_NS {
            return None;
        }
        if elapsed > 2 * PERIOD_NS {
            *self = Self { start: now, ..Self::default() };
            return Some(min);
        }
        let avg_alloc = (self.avg_alloc + self.alloc_depth) / 2;
        let avg_free = (self.avg_free + self.free_depth) / 2;
        *self = Self { avg_alloc, avg_free, start: now, ..Self::default() };
        Some(avg_alloc.min(avg_free).clamp(min, max))
    }
}

/// Checks that the rule and its literal model agree on every `high` of long random runs.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn plain_state_and_model_agree() {
    let (mut plain, mut model, mut random) = (DepthState::default(), Model::default(), Random::new(7));
    let (mut now, mut highs) = (0, 0);
    for _ in 0..200_000 {
        let order = Order::new([0, 0, 0, 1, 2, 3, 9][random.index(7)]).unwrap();
        now += [0, PERIOD_NS / 900, PERIOD_NS / 300][random.index(3)];
        if random.index(5000) == 0 {
            now += PERIOD_NS * (1 + random.index(2) as u64);
        }
        // Long runs in one direction make depths larger than single steps.
        if random.index(100) < if (now / PERIOD_NS).is_multiple_of(2) { 70 } else { 30 } {
            plain.on_pop(order);
            model.on_pop(order);
        } else {
            let moment = Moment::from_ns(now);
            let high = plain.on_push(order, moment, limits());
            let literal = model.on_push(order, now, 100, 10_000);
            assert_eq!(high.map(|high| high.get() as i64), literal);
            highs += usize::from(literal.is_some_and(|high| high > 100));
        }
    }
    assert!(highs > 50, "the run must tune: {highs}");
}

/// The rule step by step.
impl DepthState {
    /// Records the allocation of a block from the pageset.
    pub(crate) fn on_pop(&mut self, order: Order) {
        self.position = self.position.after(order.pages().get() as i64);
        self.deepest = self.deepest.deepest(self.position);
    }

    /// Records the free of a block to the pageset and closes the period if it is over.
    ///
    /// Returns the new `pageset.high` if this call closed the period.
    pub(crate) fn on_push(&mut self, order: Order, now: Moment, limits: HighLimits) -> Option<PageCount> {
        self.position = self.position.after(-(order.pages().get() as i64));
        self.deepest = self.deepest.deepest(self.position);
        Self::is_period_over(self.start, now).then(|| self.close_period(now, limits))
    }
}
