//! Checks on random runs that steps within an allowance may be folded.

use super::*;
use crate::rules::pageset_tuning::{DepthState, Depths, StepwiseState};
use crate::testing::Random;
use crate::units::{Order, PageCount};

const BATCH: PageCount = PageCount::new(63);

/// A rule under test: its steps one by one, each of which may begin a run, and their fold.
trait Rule: Copy + PartialEq + core::fmt::Debug + Default {
    fn step(&mut self, frames: i64, order: Order) -> bool;
    fn fold(&mut self, frames: i64);
    fn leeway(&self) -> Leeway;
}

impl Rule for DepthState {
    fn step(&mut self, frames: i64, _: Order) -> bool {
        let before = self.deepest;
        self.fold(frames);
        self.position.is_deeper(before)
    }

    fn fold(&mut self, frames: i64) {
        self.position = self.position.after(frames);
        self.deepest = self.deepest.deepest(self.position);
    }

    fn leeway(&self) -> Leeway {
        self.position.leeway(self.deepest)
    }
}

impl Rule for StepwiseState {
    fn step(&mut self, frames: i64, order: Order) -> bool {
        self.on_step(frames, order, || BATCH)
    }

    fn fold(&mut self, frames: i64) {
        self.moved(frames, || BATCH);
    }

    fn leeway(&self) -> Leeway {
        StepwiseState::leeway(*self)
    }
}

/// Runs sessions from `state` on. Between them, single frames and blocks are popped and pushed at random as far as the
/// allowance goes.
fn runs_fold<R: Rule>(mut state: R, orders: &[u8], has_blocks: bool) {
    let mut random = Random::new(5);
    let step = |random: &mut Random| {
        let order = Order::new(orders[random.index(orders.len())]).unwrap();
        ([1, -1][random.index(2)] * order.pages().get() as i64, order)
    };
    let (mut steps, mut bail_outs) = (0, 0);
    for _ in 0..3000 {
        let mut run = None;
        for _ in 0..random.index(4) {
            let (frames, order) = step(&mut random);
            run = state.step(frames, order).then(|| Allowance::run(frames));
        }
        let growth = random.index(200) as i64 - 20;
        let mut allowance = run.unwrap_or(Allowance::within(state.leeway())).with_growth(growth);
        if has_blocks {
            allowance = allowance.shared_with_blocks([0, 4, 512][random.index(3)], random.index(2) == 0);
        }
        let (mut folded, mut singles, mut blocks) = (state, 0_i64, allowance.blocks);
        let (mut sum, mut most) = (0_i64, 0_i64);
        for _ in 0..random.index(300) {
            let (frames, order) = step(&mut random);
            let pages = frames.unsigned_abs() as u32;
            if order != Order::PAGE {
                let after = if frames > 0 { blocks.after_pop(pages) } else { blocks.after_push(pages) };
                let Some(after) = after else { continue };
                blocks = after;
            } else {
                let next = singles + frames;
                let bound = if frames > 0 { allowance.pops } else { allowance.pushes };
                if bound.is_none_or(|bound| next * frames > bound) {
                    bail_outs += 1;
                    continue;
                }
                singles = next;
            }
            state.step(frames, order);
            sum += frames;
            most = most.max(if frames < 0 { -sum } else { 0 });
            steps += 1;
        }
        assert!(most <= growth.max(0), "the pageset grew by {most} frames of {growth}");
        folded.fold(sum);
        assert_eq!(folded, state, "{allowance:?} with {run:?}, {sum} frames");
    }
    assert!(steps > 3000 && bail_outs > 3000, "{steps} steps, {bail_outs} refused");
}

#[test]
fn folds_of_the_depth_rule_are_its_steps() {
    runs_fold(DepthState::default(), &[0], false);
    runs_fold(DepthState::default(), &[0, 0, 1, 2, 9], true);
}

#[test]
fn folds_of_the_stepwise_rule_are_its_steps() {
    runs_fold(StepwiseState::default(), &[0], false);
}

/// Near the width of a depth, in which direction either, the same holds.
#[test]
fn folds_of_saturated_depths_are_their_steps() {
    for near in [Depths { alloc: u32::MAX - 40, free: 7 }, Depths { alloc: 7, free: u32::MAX - 40 }] {
        let state = DepthState { position: near, deepest: near, ..DepthState::default() };
        runs_fold(state, &[0], false);
        runs_fold(state, &[0, 0, 1, 2, 9], true);
    }
}

/// A run of pops, or of pushes, needs one session, however deep it goes.
#[test]
fn a_saturated_depth_has_a_run_as_any_other() {
    for frames in [1, -1] {
        let mut state = DepthState::default();
        state.fold(frames * (i64::from(u32::MAX) - 2));
        for step in 0..5 {
            assert!(state.step(frames, Order::PAGE), "step {step} of {frames}: {state:?}");
        }
    }
}

#[test]
fn blocks_share_or_the_leeway_is_for_what_took_the_lock() {
    let share = |all: u32, pages, is_block| {
        let allowance = Allowance::within(Leeway { pops: all, pushes: all });
        let shared = allowance.shared_with_blocks(pages, is_block);
        assert_eq!(shared.pops.unwrap() + i64::from(shared.blocks.pops), i64::from(all));
        (shared.blocks.pops == shared.blocks.pushes).then_some(shared.blocks.pops).unwrap()
    };
    assert_eq!((share(1000, 0, true), share(1000, 0, false)), (0, 0), "there are no blocks");
    for is_block in [false, true] {
        assert_eq!(share(1000, 4, is_block), 500);
        assert_eq!(share(1000, 512, is_block), 512);
    }
    assert_eq!((share(512, 512, true), share(512, 512, false)), (512, 0));
    assert_eq!((share(2, 2, true), share(2, 2, false)), (2, 0));
    assert_eq!(i64::from(share(u32::MAX, 512, true)), BLOCK_LEEWAY_MAX);
    let one_way = Allowance::run(1);
    assert_eq!(one_way.shared_with_blocks(512, true), one_way);
}
