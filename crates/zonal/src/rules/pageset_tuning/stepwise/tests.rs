//! Checks the stepwise rule with hand-computed traces, and its bounds for all small pagesets.

use super::*;
use crate::testing::Random;

const BATCH: u64 = 63;

const fn pages(count: u64) -> PageCount {
    PageCount::new(count)
}

fn pageset(count: u64, high: u64) -> PagesetFigures {
    let limits = HighLimits::new(pages(4 * BATCH), pages(100 * BATCH));
    PagesetFigures { count: pages(count), high: pages(high), batch: pages(BATCH), limits }
}

fn state(refill_shift: u32, free_count: u64) -> StepwiseState {
    StepwiseState { refill_shift, free_count: free_count as u32 }
}

/// Returns the size and the new `high` for several consecutive refills of an empty pageset, in batches.
fn refills<const N: usize>(level: ZoneLevel, order: Order) -> [(u64, u64); N] {
    let (mut state, mut high) = (StepwiseState::default(), 4 * BATCH);
    core::array::from_fn(|_| {
        let step = state.refill(&pageset(0, high), order, level);
        high = step.high.get();
        (step.size.get() / BATCH, high / BATCH)
    })
}

#[test]
fn refills_double_up_to_32_batches_and_raise_high_by_their_size() {
    let trace = refills(ZoneLevel::Above, Order::PAGE);
    assert_eq!(trace, [(1, 5), (2, 7), (4, 11), (8, 19), (16, 35), (32, 67), (32, 99), (32, 100)]);
}

#[test]
fn below_the_watermark_refills_raise_nothing_and_stay_within_high() {
    let trace = refills(ZoneLevel::Below, Order::PAGE);
    assert_eq!(trace, [(1, 4), (2, 4), (3, 4), (3, 4)]);
}

#[test]
fn larger_blocks_come_in_plain_batches() {
    let mut scaled = state(4, 0);
    let step = scaled.refill(&pageset(0, 700), Order::new(3).unwrap(), ZoneLevel::Above);
    assert_eq!((step.size, step.high), (pages(BATCH), pages(700 + BATCH)));
    assert_eq!(scaled, state(4, 0));
    assert_eq!(refills(ZoneLevel::Above, Order::new(9).unwrap()), [(1, 5), (1, 6), (1, 7)]);
}

#[test]
fn a_free_halves_the_shift_and_an_allocation_the_free_count() {
    let mut run = state(5, 100);
    run.on_push(Order::new(3).unwrap(), pages(BATCH));
    assert_eq!(run, state(2, 108));
    run.on_pop();
    assert_eq!(run, state(2, 54));
    run.on_push(Order::PAGE, pages(BATCH));
    run.on_push(Order::PAGE, pages(BATCH));
    assert_eq!(run, state(0, 56));
    let mut long = state(0, 32 * BATCH - 1);
    long.on_push(Order::new(9).unwrap(), pages(BATCH));
    long.on_push(Order::new(9).unwrap(), pages(BATCH));
    assert_eq!(long, state(0, 32 * BATCH - 1 + 512));
}

#[test]
fn a_drain_at_high_raises_it_to_the_free_count_and_a_batch() {
    let step = |free_count, count, high| state(0, free_count).drain(&pageset(count, high), ZoneLevel::Above);
    assert_eq!(step(1000, 300, 300), Resize { size: pages(300 - BATCH), high: pages(1000 + BATCH) });
    // A drain never lowers `high` and never raises it above the limit. It does not change `high` while the count is
    // below `high`.
    assert_eq!(step(10, 300, 300), Resize { size: pages(BATCH), high: pages(300) });
    assert_eq!(step(100 * BATCH, 300, 300).high, pages(100 * BATCH));
    assert_eq!(step(1000, 299, 300).high, pages(300));
}

#[test]
fn drain_size_follows_the_free_count() {
    let size = |free_count| state(0, free_count).drain(&pageset(1000, 1000), ZoneLevel::Above).size.get();
    assert_eq!([0, 63, 64, 500, 937, 938, 2016].map(size), [63, 63, 64, 500, 937, 937, 937]);
}

#[test]
fn below_the_watermark_high_falls_with_each_drain() {
    let step = |free_count| state(0, free_count).drain(&pageset(1000, 1000), ZoneLevel::Below);
    assert_eq!(step(10), Resize { size: pages(BATCH), high: pages(1000 - BATCH) });
    assert_eq!(step(200), Resize { size: pages(200), high: pages(800) });
    assert_eq!(step(900), Resize { size: pages(900), high: pages(4 * BATCH) });
    // While the count is below `high`, a drain leaves at least one batch of the frames that are present.
    let early = state(0, 900).drain(&pageset(400, 1000), ZoneLevel::Below);
    assert_eq!(early, Resize { size: pages(400 - BATCH), high: pages(4 * BATCH) });
}

#[test]
fn a_drain_is_due_at_high_or_under_pressure_at_the_lower_limit() {
    let due = |count, level| pages(count) >= pageset(count, 1000).drain_threshold(level);
    assert!(due(1000, ZoneLevel::Above) && !due(999, ZoneLevel::Above));
    assert!(due(4 * BATCH, ZoneLevel::Below) && !due(4 * BATCH - 1, ZoneLevel::Below));
}

#[test]
fn a_tick_decays_high_by_an_eighth_down_to_the_limit() {
    let decay = |count, high| {
        let decay = pageset(count, high).decay();
        (decay.high.get(), decay.surplus.get())
    };
    assert_eq!(decay(0, 4000), (3500, 0));
    assert_eq!(decay(3600, 4000), (3500, 100));
    assert_eq!(decay(0, 260), (252, 0));
    // The decay never lowers `high` so far that one tick drains more than 32 batches.
    assert_eq!(decay(6000, 4000), (6000 - 32 * BATCH, 32 * BATCH));
    let mut high = 4000;
    for _ in 0..30 {
        high = decay(0, high).0;
    }
    assert_eq!(high, 252);
}

#[test]
fn disabled_pagesets_move_single_frames_and_cache_none() {
    let off = PagesetFigures { limits: HighLimits::DISABLED, ..pageset(1, 500) };
    let mut run = state(3, 1000);
    let expected = Resize { size: pages(1), high: PageCount::ZERO };
    for level in [ZoneLevel::Above, ZoneLevel::Below] {
        assert_eq!(run.refill(&off, Order::PAGE, level), expected);
        assert_eq!(run.drain(&off, level), expected);
    }
    assert_eq!(off.decay(), Decay { high: PageCount::ZERO, surplus: pages(1) });
}

/// Checks all pagesets with small figures: sizes are never zero, and highs stay within their limits.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn sizes_are_at_least_one_and_high_stays_within_its_limits() {
    let small = |value: u64| pages([0, 1, 2, 3, 7, 12, 63, 252, 2016][value as usize]);
    for code in 0..9_u64.pow(5) {
        let digit = |place: u32| small(code / 9_u64.pow(place) % 9);
        let limits = HighLimits::new(digit(0), digit(0).plus(digit(1)));
        let batch = digit(2).max(pages(1));
        let pageset = PagesetFigures { count: digit(3), high: limits.clamp(digit(4)), batch, limits };
        for level in [ZoneLevel::Above, ZoneLevel::Below] {
            for mut run in [state(0, 0), state(2, 63), state(5, 2016)] {
                for step in [run.refill(&pageset, Order::PAGE, level), run.drain(&pageset, level)] {
                    assert!(step.size > PageCount::ZERO, "{pageset:?} {level:?}");
                    assert_eq!(step.high, limits.clamp(step.high));
                }
                assert!(run.refill_shift <= SHIFT_MAX);
            }
        }
        assert_eq!(pageset.decay().high, limits.clamp(pageset.decay().high));
    }
}

/// Compares runs of steps in one direction with single steps, for states on both sides of every bound.
#[test]
fn runs_equal_single_steps() {
    for shift in 0..=5 {
        for free_count in [0, 1, 2, 3, 7, 63, 500, 2010, 2015, 2016, 2017, 2600] {
            let (mut pops, mut pushes) = (state(shift, free_count), state(shift, free_count));
            for steps in 0..40 {
                let mut run = state(shift, free_count);
                run.moved(steps, || pages(BATCH));
                assert_eq!(run, pops, "{steps} pops");
                let mut run = state(shift, free_count);
                run.moved(-steps, || pages(BATCH));
                assert_eq!(run, pushes, "{steps} pushes");
                pops.on_pop();
                pushes.on_push(Order::PAGE, pages(BATCH));
            }
        }
    }
}

/// Checks for all orders of 12 steps that the state depends only on pops minus pushes, as long as all steps stay within
/// the cycle.
#[test]
fn the_order_of_steps_within_the_cycle_has_no_effect() {
    let (mut within, mut outside) = (0, 0);
    for free_count in 0..4 {
        for steps in 0..1_u32 << 12 {
            let (mut single, mut moved) = (state(0, free_count), 0_i64);
            let Leeway { pops, pushes } = single.leeway();
            for step in 0..12 {
                let pop = steps >> step & 1 == 1;
                moved += if pop { 1 } else { -1 };
                if moved > pops.into() || -moved > pushes.into() {
                    outside += 1;
                    break;
                }
                if pop {
                    single.on_pop();
                } else {
                    single.on_push(Order::PAGE, pages(BATCH));
                }
                let mut summed = state(0, free_count);
                summed.moved(moved, || pages(BATCH));
                assert_eq!(single, summed);
                within += 1;
            }
        }
    }
    assert!(within > 1000 && outside > 1000, "{within} {outside}");
    assert_eq!([state(0, 3), state(1, 0)].map(StepwiseState::leeway), [Leeway::NONE; 2]);
}

/// Steps one by one, against rows of steps at once on a state that is kept in a word.
#[test]
fn rows_of_steps_and_words_lose_nothing() {
    let (mut word, mut plain) = (StepwiseState::default().word(), StepwiseState::default());
    let mut random = Random::new(3);
    for _ in 0..10_000 {
        let its = pageset(random.index(3000) as u64, 252 + random.index(3000) as u64);
        let level = [ZoneLevel::Above, ZoneLevel::Below][random.index(2)];
        let mut kept = StepwiseState::from_word(word);
        match random.index(5) {
            0 => {
                let frames = random.index(2) as i64 * 2 - 1;
                kept.on_step(frames, Order::PAGE, || its.batch);
                if frames > 0 { plain.on_pop() } else { plain.on_push(Order::PAGE, its.batch) }
            }
            1 | 2 => {
                let frames = random.index(21) as i64 - 10;
                kept.moved(frames, || its.batch);
                (0..frames).for_each(|_| plain.on_pop());
                (frames..0).for_each(|_| plain.on_push(Order::PAGE, its.batch));
            }
            3 => assert_eq!(kept.refill(&its, Order::PAGE, level), plain.refill(&its, Order::PAGE, level)),
            _ => assert_eq!(kept.drain(&its, level), plain.drain(&its, level)),
        }
        word = kept.word();
        assert_eq!(StepwiseState::from_word(word), plain);
    }
}
