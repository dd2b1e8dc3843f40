//! Tests of M2 as published in 2023. The rule is compared with a model of its text. A further group of tests checks how
//! periods end, which the published rule and the default rule have in common.

use crate::common::scenarios::{one_cpu, order, pages};
use crate::common::{Plan, Random, TestPlatform, World, node, repeats, run_on};
use zonal::error::ConfigError;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::snapshot::PagesetSnapshot;
use zonal::units::{CpuId, PageCount, ZoneKind};
use zonal::{Block, Config, Policy, Request};

const MANAGED: u64 = 1 << 19;
const SECOND_MS: u64 = 1000;

fn tuned(tuning: PagesetTuning) -> Config {
    Config { tuning, ..Config::default() }
}

fn one_node(tuning: PagesetTuning) -> World {
    let world = one_cpu(&[MANAGED], ZoneKind::Normal).build(&tuned(tuning));
    run_on(0);
    world
}

fn pageset_of(world: &World, cpu: u32, id: u16) -> PagesetSnapshot {
    let zone = world.zone(id).id;
    world.allocator.pagesets().find(|set| set.zone == zone && set.cpu == CpuId::new(cpu)).unwrap()
}

fn high(world: &World) -> u64 {
    pageset_of(world, 0, 0).high.get()
}

fn high_min(world: &World) -> u64 {
    world.zone(0).pageset_limits.high_min.get()
}

fn take(world: &World, of: u8, count: usize) -> Vec<Block> {
    (0..count).map(|_| world.allocator.alloc(&Request::new(order(of))).unwrap()).collect()
}

/// Allocates `count` pages with `request` and frees them, in a little more than a second, `rounds` times.
fn waves(world: &World, request: &Request<'_>, count: u64, rounds: usize) {
    for _ in 0..rounds {
        let held: Vec<Block> = (0..count).map(|_| world.allocator.alloc(request).unwrap()).collect();
        world.controls.advance_ms(550);
        world.free(held);
        world.controls.advance_ms(550);
    }
}

/// The published rule, transcribed literally.
struct Model {
    count: i64,
    low: i64,
    top: i64,
    alloc_depth: i64,
    free_depth: i64,
    avg_alloc: i64,
    avg_free: i64,
    start_ms: u64,
    high: i64,
    high_min: i64,
    high_max: i64,
}

impl Model {
    fn new(high_min: u64, high_max: u64) -> Self {
        let (high_min, high_max) = (high_min as i64, high_max as i64);
        Self {
            count: 0,
            low: 0,
            top: 0,
            alloc_depth: 0,
            free_depth: 0,
            avg_alloc: 0,
            avg_free: 0,
            start_ms: 0,
            high: high_min,
            high_min,
            high_max,
        }
    }

    fn take(&mut self, frames: u64) {
        self.count += frames as i64;
        self.top = self.top.max(self.count);
        self.alloc_depth = self.alloc_depth.max(self.count - self.low);
    }

    fn give(&mut self, frames: u64, now_ms: u64) {
        self.count -= frames as i64;
        self.low = self.low.min(self.count);
        self.free_depth = self.free_depth.max(self.top - self.count);
        let elapsed = now_ms - self.start_ms;
        if elapsed <= SECOND_MS {
            return;
        }
        if elapsed > 2 * SECOND_MS {
            (self.avg_alloc, self.avg_free, self.high) = (0, 0, self.high_min);
        } else {
            self.avg_alloc = (self.avg_alloc + self.alloc_depth) / 2;
            self.avg_free = (self.avg_free + self.free_depth) / 2;
            self.high = self.avg_alloc.min(self.avg_free).clamp(self.high_min, self.high_max);
        }
        (self.count, self.low, self.top, self.alloc_depth, self.free_depth) = (0, 0, 0, 0, 0);
        self.start_ms = now_ms;
    }
}

/// Runs a random history on one CPU, including ticks. Compares `high` with the model after each step.
fn history(seed: u64) {
    let world = one_node(PagesetTuning::DepthPublished);
    let mut model = Model::new(high_min(&world), MANAGED / 8);
    let (mut random, mut held, mut now_ms, mut raised) = (Random(seed), Vec::new(), 5000, 0);
    world.controls.set_ms(now_ms);
    for step in 0..3000 {
        let of = random.pick(&[0, 0, 0, 0, 0, 1, 2, 3]);
        let most = random.pick(&[60, 60, 60, 3000]);
        let run = random.below(most);
        if random.below(2) == 0 {
            for _ in 0..run.min(40_000 - (held.len() as u64).min(40_000)) {
                held.extend(take(&world, of, 1));
                model.take(1 << of);
                assert_eq!(high(&world), model.high as u64, "seed {seed}, step {step}: a take");
            }
        } else {
            for _ in 0..run.min(held.len() as u64) {
                let block: Block = held.swap_remove(random.below(held.len() as u64) as usize);
                world.free([block]);
                model.give(block.order.pages().get(), now_ms);
                assert_eq!(high(&world), model.high as u64, "seed {seed}, step {step}: a free");
            }
        }
        raised += u64::from(model.high > model.high_min);
        let pause = random.pick(&[0, 1, 7, 60, 300, 999, 1000, 1001, 2000, 2001]);
        now_ms += if random.once_in(8) { pause } else { pause.min(60) };
        world.controls.set_ms(now_ms);
        if random.once_in(6) {
            world.allocator.tick();
            assert_eq!(high(&world), model.high as u64, "seed {seed}, step {step}: a tick");
        }
    }
    assert!(raised > 100, "seed {seed} tests too little");
    world.check();
}

/// Runs a random history of single frames and larger blocks under the default rule. A tick shortly before the end of each
/// period makes the first free after it close the period. Compares `high` with the model after each step.
fn mixed_history(seed: u64) {
    let world = one_node(PagesetTuning::Depth);
    let limits = pageset_of(&world, 0, 0).limits;
    let mut model = Model::new(limits.high_min.get(), limits.high_max.get());
    let (mut random, mut held, mut now_ms, mut raised) = (Random(seed), Vec::new(), 5000, 0);
    for period in 0..60 {
        // In some periods no run is long, so that few frames may move before a depth grows.
        let (most, steps) = random.pick(&[(3, 400), (40, 200), (6000, 12)]);
        for moment in [0, 400, 970, 1001] {
            world.controls.set_ms(now_ms + moment);
            for step in 0..steps {
                let of = random.pick(&[0, 0, 0, 0, 1, 2, 3, 9]);
                let run = if of == 9 { random.below(4) } else { random.below(most) };
                if random.below(2) == 0 && held.len() < 20_000 {
                    for _ in 0..run {
                        held.extend(take(&world, of, 1));
                        model.take(1 << of);
                    }
                } else {
                    for _ in 0..run.min(held.len() as u64) {
                        let block: Block = held.swap_remove(random.below(held.len() as u64) as usize);
                        world.free([block]);
                        model.give(block.order.pages().get(), now_ms + moment);
                        let at = || format!("seed {seed}, period {period}, {moment} ms, step {step}");
                        assert_eq!(high(&world), model.high as u64, "{}", at());
                    }
                }
            }
            world.allocator.tick();
        }
        raised += u64::from(model.high > model.high_min);
        now_ms += 1001;
    }
    assert!(raised > 10, "seed {seed} tests too little: {raised}");
    world.free(held);
    world.check();
}

#[test]
fn high_follows_the_rule_with_larger_blocks() {
    (0..repeats(2, 5)).for_each(|seed| mixed_history(seed + 1));
}

#[test]
fn high_follows_the_text_of_the_rule_step_by_step() {
    (0..repeats(1, 3)).for_each(|seed| history(seed + 1));
}

#[test]
fn the_upper_limit_is_an_eighth_divided_among_the_cpus_of_the_node() {
    // Node 0 has two CPUs and node 1 has one. Node 2 has none, so its zone is divided among all three CPUs.
    let mut plan = Plan::even(3, 1, 1 << 16);
    plan.nodes = vec![(0, vec![0, 1]), (1, vec![2]), (2, vec![])];
    let world = plan.build(&tuned(PagesetTuning::DepthPublished));
    for (id, sharing) in [(0, 2), (1, 1), (2, 3)] {
        let expected = (1 << 16) / 8 / sharing;
        assert_eq!(world.zone(id).pageset_limits.high_max, pages(expected), "node {id}");
        let policy = Policy::preferred(&world.allocator, node(id)).unwrap();
        for cpu in [0, 2] {
            run_on(cpu);
            waves(&world, &Request::page().policy(&policy), 20_000, 6);
            let pageset = pageset_of(&world, cpu, id);
            assert_eq!(pageset.high, pages(expected), "CPU {cpu}, node {id}");
            let batch = world.zone(id).pageset_limits.batch;
            assert!(pageset.count.plus(batch) >= pages(expected), "{} of {expected}", pageset.count);
            world.allocator.drain_pagesets();
        }
    }
    world.check();
}

#[test]
fn larger_blocks_fill_a_pageset_too() {
    let world = one_node(PagesetTuning::DepthPublished);
    for of in [3, 2, 1] {
        waves(&world, &Request::new(order(of)), 30_000 >> of, 6);
        let pageset = pageset_of(&world, 0, 0);
        assert!(pageset.high >= pages(25_000), "high {}", pageset.high);
        assert!(pageset.count.plus(pages(64)) >= pageset.high, "{} of order {of}", pageset.count);
        world.allocator.drain_pagesets();
    }
    world.check();
}

#[test]
fn nothing_holds_high_down_while_large_blocks_are_scarce() {
    let world = one_node(PagesetTuning::DepthPublished);
    let _large = take(&world, 9, (MANAGED / 512 - MANAGED / 512 / 64 + 2) as usize);
    waves(&world, &Request::page(), 4000, 6);
    assert!(high(&world) > 3800 && high_min(&world) < 3000, "high {}", high(&world));
    world.check();
}

#[test]
fn an_idle_pageset_keeps_the_frames_of_its_own_node() {
    for (tuning, keeps) in [(PagesetTuning::DepthPublished, true), (PagesetTuning::Depth, false)] {
        // Node 1 has no CPU.
        let world = one_cpu(&[MANAGED, MANAGED], ZoneKind::Normal).build(&tuned(tuning));
        run_on(0);
        let far = Policy::preferred(&world.allocator, node(1)).unwrap();
        let count = |id| pageset_of(&world, 0, id).count.get();
        let mut before = [0; 2];
        for (id, request) in [(1, Request::page().policy(&far)), (0, Request::page())] {
            waves(&world, &request, 5000, 6);
            before[usize::from(id)] = count(id);
        }
        assert!(before[0] > 2000 && before[1] > 0, "{tuning:?}: {before:?}");
        for _ in 0..5 {
            world.controls.advance_ms(1000);
            world.allocator.tick();
        }
        assert_eq!((count(0) == before[0], count(1)), (keeps, 0), "{tuning:?}: {before:?}");
    }
}

#[test]
fn refills_and_drains_are_batches() {
    let world = one_node(PagesetTuning::DepthPublished);
    let batch = world.zone(0).pageset_limits.batch.get();
    let count = || pageset_of(&world, 0, 0).count.get();
    let mut held = take(&world, 0, 1);
    assert_eq!(count(), batch - 1);
    held.extend(take(&world, 0, batch as usize));
    assert_eq!(count(), batch - 1);
    held.extend(take(&world, 0, 5000));
    let high = high(&world);
    while count() + 1 < high {
        world.free(held.pop());
    }
    for _ in 0..3 {
        world.free(held.pop());
        assert_eq!(count(), high - batch);
        world.free(held.drain(..batch as usize - 1));
        assert_eq!(count(), high - 1);
    }
}

#[test]
fn a_high_that_fell_is_reached_batch_by_batch() {
    let world = one_node(PagesetTuning::DepthPublished);
    waves(&world, &Request::page(), 8192, 6);
    let mut held = take(&world, 0, 10);
    let (before, batch) = (pageset_of(&world, 0, 0).count.get(), world.zone(0).pageset_limits.batch.get());
    world.controls.advance_ms(2500);
    for drained in 1..10 {
        world.free(held.pop());
        assert_eq!(high(&world), high_min(&world));
        assert_eq!(pageset_of(&world, 0, 0).count.get(), before + drained - drained * batch);
    }
}

const BY_DEPTH: [PagesetTuning; 2] = [PagesetTuning::Depth, PagesetTuning::DepthPublished];

#[test]
fn only_a_free_ends_a_period() {
    for tuning in BY_DEPTH {
        for with_ticks in [false, true] {
            let world = one_node(tuning);
            waves(&world, &Request::page(), 8192, 6);
            let grown = high(&world);
            assert!(grown > 4 * high_min(&world), "{tuning:?}: high {grown}");
            // For more than two seconds, the CPU only allocates, in single frames.
            let mut held = Vec::new();
            for _ in 0..25 {
                held.extend(take(&world, 0, 300));
                world.controls.advance_ms(100);
                if with_ticks {
                    world.allocator.tick();
                }
                assert_eq!(high(&world), grown, "{tuning:?}: no free has come");
            }
            world.free(held.pop());
            assert_eq!(high(&world), high_min(&world), "{tuning:?}, ticks {with_ticks}: averages were reset");
        }
    }
}

#[test]
fn the_first_free_after_a_tick_ends_a_period_that_is_over() {
    let world = one_node(PagesetTuning::Depth);
    waves(&world, &Request::page(), 8192, 6);
    // The pageset stays within known depths from now on, so that no step leaves the fast path because of the depth.
    let held = take(&world, 0, 4000);
    world.free(held);
    let pair = || world.free(take(&world, 0, 1));
    for _ in 0..3 {
        let before = high(&world);
        world.controls.advance_ms(1200);
        world.allocator.tick();
        assert_eq!(high(&world), before);
        pair();
        assert!(high(&world) <= before / 2 + 2001, "{} after {before}", high(&world));
        assert!(high(&world) < before || before == high_min(&world));
    }
}

/// Runs deep waves, and then only pairs of an allocation and a free, about one every 20 ms, with a tick every
/// `tick_ms`. `high` must be halved once per period. Frees check the period only now and then, but no period may count
/// twice.
fn decay(tick_ms: u64) {
    let world = one_node(PagesetTuning::Depth);
    waves(&world, &Request::page(), 30_000, 8);
    let (mut before, least) = (high(&world), high_min(&world));
    assert!(before > 12 * least, "high {before}");
    let start_ms = 8 * 1100;
    let mut next_tick = start_ms + tick_ms;
    let (mut random, mut now_ms) = (Random(tick_ms), start_ms);
    while now_ms < start_ms + 12_000 {
        now_ms += random.below(40);
        while next_tick <= now_ms {
            world.controls.set_ms(next_tick);
            world.allocator.tick();
            next_tick += tick_ms;
        }
        world.controls.set_ms(now_ms);
        world.free(take(&world, 0, 1));
        let now = high(&world);
        assert!(now == before || now.max(before / 2 + 1) <= now + 1, "{now} after {before}, ticks {tick_ms}");
        before = now;
    }
    assert_eq!(before, least, "a tick every {tick_ms} ms");
}

#[test]
fn ticks_of_any_rhythm_forget_by_halves() {
    [250, 700, 930, 990, 1000, 1010, 1100].into_iter().for_each(decay);
}

#[test]
fn an_allocator_made_with_another_rule_refuses_it() {
    for frames in [MANAGED, 1 << 14] {
        let world = Plan::even(2, 1, frames).build(&Config::default());
        let refused = world.allocator.set_tuning(PagesetTuning::DepthPublished).unwrap_err();
        let ConfigError::PagesetSlots { node: id, kind, slots, needed } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((id, kind, needed), (node(0), ZoneKind::Normal, pages(frames / 8)));
        assert!(PageCount::ZERO < slots && slots < needed);
        let text = refused.to_string();
        for part in ["Normal", "node 0", &slots.to_string(), &needed.to_string(), "depth-published"] {
            assert!(text.contains(part), "{text}");
        }
        run_on(0);
        waves(&world, &Request::page(), frames / 4, 5);
        assert!(high(&world) > high_min(&world), "the rule before is still in force");
        world.check();
    }
}

#[test]
fn an_allocator_that_does_not_link_it_refuses_it() {
    let plan = Plan::even(1, 1, 1 << 14);
    let refused = ConfigError::NotLinked { setting: "pageset_tuning", name: "depth-published" };
    let build = |tuning| plan.try_build(&tuned(tuning), TestPlatform::default());
    assert_eq!(build(PagesetTuning::DepthPublished).err(), Some(refused));
    let allocator = build(PagesetTuning::Fixed).unwrap();
    assert_eq!(allocator.set_tuning(PagesetTuning::DepthPublished), Err(refused));
    let by_name = allocator.set_setting("pageset_tuning", "depth-published").unwrap_err().to_string();
    assert!(
        by_name.ends_with("past form, which this program does not link (crate zonal-history)"),
        "{by_name}"
    );
    assert_eq!(allocator.settings().tuning, PagesetTuning::Fixed);
}

#[test]
fn an_allocator_made_with_it_changes_there_and_back() {
    let world = Plan::even(2, 2, 1 << 17).build(&tuned(PagesetTuning::DepthPublished));
    run_on(0);
    let policy = Policy::preferred(&world.allocator, node(1)).unwrap();
    let far = Request::page().policy(&policy);
    let cap = 4 * world.zone(1).pageset_limits.batch.get();
    for _ in 0..2 {
        waves(&world, &far, 8000, 6);
        assert!(pageset_of(&world, 0, 1).high > pages(7000));
        for other in [PagesetTuning::Depth, PagesetTuning::Fixed, PagesetTuning::Stepwise] {
            world.allocator.set_tuning(other).unwrap();
            assert!(pageset_of(&world, 0, 1).high <= pages(cap), "{other:?}");
            waves(&world, &far, 8000, 2);
            assert!(pageset_of(&world, 0, 1).high <= pages(cap), "{other:?}");
        }
        world.allocator.set_tuning(PagesetTuning::DepthPublished).unwrap();
    }
    // With fewer CPUs, each share would be larger. The slots suffice only for the shares with all CPUs online.
    let share = (1 << 17) / 8 / 2;
    world.allocator.offline_cpu(CpuId::new(1)).unwrap();
    let bounded = world.zone(0).pageset_limits.high_max.get();
    assert!((share..=share + 64).contains(&bounded), "{bounded}");
    world.check();
}
