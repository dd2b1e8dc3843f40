//! Tests every kind of invalid free, for every order up to the largest, by one thread and by two threads at the same
//! time. Each free fails with the exact error and changes nothing, and afterwards the same blocks can be allocated as
//! before.
//!
//! Related files: `single.rs` tests the options and single cases. `races.rs` tests the races that the plain checks do
//! not detect.

use std::sync::Barrier;

use crate::common::{Plan, World, order, range, run_on};
use zonal::config::{Hardening, InvalidFree};
use zonal::error::FreeError;
use zonal::request::{Block, Urgency};
use zonal::units::{Order, PageCount, Pfn, ZoneKind};
use zonal::{Config, Request};

/// An invalid free and the expected error.
#[derive(Clone, Copy, Debug)]
struct InvalidAttempt {
    way: &'static str,
    frame: Pfn,
    given: Order,
    error: FreeError,
}

/// A machine of two nodes. Each node has memory for `blocks` blocks of the largest order, a hole, and unmanaged frames
/// at both ends.
struct TwoNodes {
    world: World,
    max: u8,
    start: u64,
    hole: u64,
    end: u64,
}

const RIM: u64 = 100;
const HOLE: u64 = 64;

impl TwoNodes {
    fn new(max: u8, invalid_free: InvalidFree, hardening: Hardening) -> Self {
        run_on(0);
        let block = 1_u64 << max;
        let (start, end) = (4 * block, 8 * block);
        let hole = start + 2 * block + block / 2;
        let mut plan = Plan::even(2, 2, block);
        let zone = |node: u16, at: u64| {
            let ranges = vec![(start + at, hole - start), (hole + at + HOLE, end - hole - HOLE)];
            (node, ZoneKind::Normal, start + at - RIM, end - start + 2 * RIM, ranges)
        };
        plan.zones = vec![zone(0, 0), zone(1, 8 * block)];
        let config = Config { invalid_free, hardening, max_order: order(max), ..Config::default() };
        Self { world: plan.build(&config), max, start, hole, end }
    }

    fn orders(&self) -> impl Iterator<Item = Order> + use<> {
        (0..=self.max).map(order)
    }

    fn alloc(&self, order: Order) -> Block {
        let block = self.world.allocator.alloc(&Request::new(order)).unwrap();
        assert_eq!(block.node, crate::common::node(0));
        block
    }

    fn free(&self, block: Block) {
        self.world.allocator.free(block.first, block.order).unwrap();
    }

    /// Returns every invalid free of the allocated block `block`.
    fn of_allocated(&self, block: Block) -> Vec<InvalidAttempt> {
        let Block { first, order: allocated, .. } = block;
        let mut all = Vec::new();
        for given in self.orders().filter(|&given| given != allocated) {
            let way = if given < allocated { "order too small" } else { "order too large" };
            let error = FreeError::WrongOrder { frame: first, allocated, given };
            all.push(InvalidAttempt { way, frame: first, given, error });
        }
        // The offsets are those of every possible block inside this block, and a few that are not aligned.
        let pages = allocated.pages().get();
        let parts = (0..allocated.get()).map(|part| 1_u64 << part);
        let odd = [3, 5, pages.saturating_sub(1)].into_iter().filter(|at| (1..pages).contains(at));
        for inside in parts.chain(odd) {
            let frame = first.plus(PageCount::new(inside));
            for given in self.orders() {
                let error = FreeError::InsideBlock { frame, block: first, order: allocated };
                all.push(InvalidAttempt { way: "inside a block", frame, given, error });
            }
        }
        all
    }

    /// Returns frees of `frame` with every order. All of them are invalid.
    fn of_free(&self, way: &'static str, frame: Pfn) -> impl Iterator<Item = InvalidAttempt> + use<> {
        self.orders().map(move |given| InvalidAttempt {
            way,
            frame,
            given,
            error: FreeError::NotAllocated(frame),
        })
    }

    /// Returns frees that are invalid whatever is allocated on node 0. Nothing is allocated on node 1.
    fn elsewhere(&self, block: Block) -> Vec<InvalidAttempt> {
        let twin = Pfn::new(block.first.get() + (8 << self.max));
        let last = Pfn::new(self.end - block.order.pages().get());
        let mut all: Vec<_> = self.of_free("the same place in another zone", twin).collect();
        all.extend(self.of_free("never allocated", last));
        let nowhere: [(&'static str, &[u64]); 4] = [
            ("in a hole", &[self.hole, self.hole + 1, self.hole + HOLE - 1]),
            ("in the rim of a zone", &[self.start - RIM, self.start - 1, self.end, self.end + RIM - 1]),
            ("between zones", &[self.end + RIM, self.end + (4 << self.max) - RIM - 1]),
            (
                "beyond the machine",
                &[0, self.start - RIM - 1, self.end + (8 << self.max) + RIM, 1 << 40, u64::MAX],
            ),
        ];
        for (way, frames) in nowhere {
            for (&frame, given) in
                frames.iter().flat_map(|frame| self.orders().map(move |given| (frame, given)))
            {
                let frame = Pfn::new(frame);
                all.push(InvalidAttempt { way, frame, given, error: FreeError::NotManaged(frame) });
            }
        }
        all
    }

    /// Tries every attempt. Each of them is refused and changes nothing.
    fn refuses(&self, attempts: &[InvalidAttempt]) {
        let a = &self.world.allocator;
        let state = || (a.accounting(), a.zones().collect::<Vec<_>>(), a.events());
        let before = state();
        for attempt in attempts {
            assert_eq!(
                a.free(attempt.frame, attempt.given),
                Err(attempt.error),
                "{}: {attempt:?}",
                attempt.way
            );
            assert_eq!(state(), before, "{}: {attempt:?}", attempt.way);
        }
        assert_eq!(a.verify().unwrap(), before.0);
    }

    /// Works like [`TwoNodes::refuses`], but two threads try all attempts at the same time.
    fn refuses_at_once(&self, attempts: &[InvalidAttempt]) {
        let a = &self.world.allocator;
        let (before, barrier) = (a.verify().unwrap(), Barrier::new(2));
        std::thread::scope(|scope| {
            for cpu in [0, 2] {
                let barrier = &barrier;
                scope.spawn(move || {
                    run_on(cpu);
                    barrier.wait();
                    attempts.iter().for_each(|attempt| {
                        assert_eq!(
                            a.free(attempt.frame, attempt.given),
                            Err(attempt.error),
                            "{}: {attempt:?}",
                            attempt.way
                        );
                    });
                });
            }
        });
        assert_eq!(a.verify().unwrap(), before);
    }

    /// Allocates everything in the largest blocks available. Returns the blocks.
    fn all_blocks(&self) -> Vec<(u64, u8)> {
        self.world.allocator.drain_pagesets();
        let mut blocks = Vec::new();
        for of in self.orders().collect::<Vec<_>>().into_iter().rev() {
            let request = Request::new(of).urgency(Urgency::Reserve);
            blocks.extend(std::iter::from_fn(|| self.world.allocator.alloc(&request).ok()));
        }
        blocks.iter().for_each(|&block| self.free(block));
        self.world.allocator.drain_pagesets();
        let mut places: Vec<_> = blocks.iter().map(|block| (block.first.get(), block.order.get())).collect();
        places.sort_unstable();
        places
    }
}

fn for_all(mut test: impl FnMut(&TwoNodes)) {
    for max in [10, 18] {
        for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
            let world_of_two = TwoNodes::new(max, invalid_free, Hardening::default());
            let fresh = world_of_two.all_blocks();
            test(&world_of_two);
            assert_eq!(world_of_two.all_blocks(), fresh, "what can be allocated is what it was");
            let accounting = world_of_two.world.allocator.verify().unwrap();
            assert_eq!(accounting.free, accounting.managed);
        }
    }
}

#[test]
fn invalid_frees_of_an_allocated_block() {
    for_all(|world_of_two| {
        for of in world_of_two.orders() {
            let block = world_of_two.alloc(of);
            world_of_two.refuses(&world_of_two.of_allocated(block));
            world_of_two.refuses(&world_of_two.elsewhere(block));
            world_of_two.free(block);
        }
    });
}

#[test]
fn double_frees_in_the_pageset_and_in_the_buddy() {
    for_all(|world_of_two| {
        for of in world_of_two.orders() {
            run_on(0);
            let block = world_of_two.alloc(of);
            world_of_two.free(block);
            world_of_two.refuses(&world_of_two.of_free("freed before", block.first).collect::<Vec<_>>());
            run_on(1); // the pageset of another CPU has free slots for the frame
            world_of_two.refuses(
                &world_of_two.of_free("freed before, by another CPU", block.first).collect::<Vec<_>>(),
            );
            world_of_two.world.allocator.drain_pagesets();
            world_of_two
                .refuses(&world_of_two.of_free("freed before, and merged", block.first).collect::<Vec<_>>());
            run_on(0);
        }
    });
}

#[test]
fn frees_into_memory_that_went_offline() {
    for_all(|world_of_two| {
        let a = &world_of_two.world.allocator;
        for of in world_of_two.orders() {
            let block = world_of_two.alloc(of);
            world_of_two.free(block);
            let gone = range(block.first.get(), of.pages().get());
            a.offline_memory(gone).unwrap();
            let frames = [gone.start.get(), gone.end().get() - 1].map(Pfn::new);
            let attempts: Vec<_> = frames
                .into_iter()
                .flat_map(|frame| world_of_two.orders().map(move |given| (frame, given)))
                .map(|(frame, given)| InvalidAttempt {
                    way: "offline",
                    frame,
                    given,
                    error: FreeError::NotManaged(frame),
                })
                .collect();
            world_of_two.refuses(&attempts);
            a.online_memory(gone).unwrap();
            world_of_two.refuses(&world_of_two.of_free("online again", gone.start).collect::<Vec<_>>());
        }
    });
}

#[test]
fn frees_of_blocks_in_quarantine() {
    for max in [10, 18] {
        for invalid_free in [InvalidFree::Checked, InvalidFree::Exact] {
            let quarantine = PageCount::new(1 << max);
            let world_of_two =
                TwoNodes::new(max, invalid_free, Hardening { quarantine, ..Hardening::default() });
            for of in world_of_two.orders() {
                let block = world_of_two.alloc(of);
                world_of_two.free(block);
                let error = FreeError::Quarantined(block.first);
                let attempts: Vec<_> = world_of_two
                    .orders()
                    .map(|given| InvalidAttempt { way: "in quarantine", frame: block.first, given, error })
                    .collect();
                world_of_two.refuses(&attempts);
                world_of_two.refuses_at_once(&attempts);
            }
            world_of_two.world.allocator.drain_pagesets();
            let accounting = world_of_two.world.allocator.verify().unwrap();
            assert_eq!(accounting.free, accounting.managed);
        }
    }
}

#[test]
fn invalid_frees_by_two_threads_at_once() {
    for_all(|world_of_two| {
        for of in world_of_two.orders() {
            run_on(0);
            let block = world_of_two.alloc(of);
            world_of_two.refuses_at_once(&world_of_two.of_allocated(block));
            world_of_two.refuses_at_once(&world_of_two.elsewhere(block));
            world_of_two.free(block);
            world_of_two
                .refuses_at_once(&world_of_two.of_free("freed before", block.first).collect::<Vec<_>>());
        }
    });
}

/// One thread frees a block correctly while another thread frees it with another order. The valid free succeeds. The
/// invalid free's error reports the block's order, or that it is not allocated.
#[test]
fn an_invalid_free_during_a_valid_one() {
    for_all(|world_of_two| {
        let a = &world_of_two.world.allocator;
        for (of, given) in
            world_of_two.orders().flat_map(|of| world_of_two.orders().map(move |given| (of, given)))
        {
            if of == given {
                continue;
            }
            run_on(0);
            let block = world_of_two.alloc(of);
            let (frame, barrier) = (block.first, Barrier::new(2));
            let attempt = std::thread::scope(|scope| {
                let attempt = scope.spawn(|| {
                    run_on(1);
                    barrier.wait();
                    a.free(frame, given)
                });
                barrier.wait();
                world_of_two.free(block);
                attempt.join().unwrap()
            });
            let while_allocated = FreeError::WrongOrder { frame, allocated: of, given };
            let possible = [while_allocated, FreeError::NotAllocated(frame)];
            assert!(attempt.is_err_and(|error| possible.contains(&error)), "{attempt:?}, {of} as {given}");
            assert_eq!(a.accounting().allocated, PageCount::ZERO);
        }
        assert_eq!(a.events().retired, 0);
    });
}
