//! Scenarios of restartable sequences: owners run concurrently with drains and ticks from another CPU, or with lock
//! holders that migrate while they hold the lock.
//!
//! The remote CPU runs on the first thread, so that few preemptions suffice to run other threads between two of its
//! steps.
//!
//! Related files: `restartable.rs` has the sequences, `world.rs` the machine. `broken_sequences.rs` runs the same
//! scenarios with orders of accesses that violate the contract.

use std::sync::Arc;

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn};
use zonal::{Block, Config, NodeMask, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::restartable::{CONTRACT, Orders};
use crate::interleavings::world::{NodeShape, World, config, on};

/// Scenarios with the orders of the contract.
macro_rules! under_contract {
    ($($name:ident: $scenario:ident;)*) => {$(
        pub(crate) fn $name<C: Checker>() {
            $scenario::<C>(CONTRACT);
        }
    )*};
}
under_contract! {
    sequences_pop_against_drain: pop_against_drain;
    sequences_push_against_drain: push_against_drain;
    sequences_pop_against_tick: pop_against_tick;
    sequences_push_against_tick: push_against_tick;
    sequences_pop_against_migrating_drain: pop_against_migrating_drain;
    sequences_push_against_migrating_refill: push_against_migrating_refill;
    sequences_lock_against_migrating_drain: lock_against_migrating_drain;
    sequences_first_block_against_push: first_block_against_push;
    sequences_first_block_against_pop: first_block_against_pop;
    sequences_first_block_against_drain: first_block_against_drain;
    sequences_lock_against_tick: lock_against_tick;
}

/// Creates a zone that CPUs 0 and 1 share, in which CPU 0 has just freed a frame.
fn world<C: Checker>(orders: Orders) -> Arc<World<C>> {
    let config = Config { tuning: PagesetTuning::Fixed, ..config(8) };
    let world = World::<C>::of_sequences(&[(&[0, 1], 32)], &config, Box::new(NoReclaimer), orders);
    let warm = world.page();
    world.free(warm);
    world
}

/// Creates a world with an allocated frame that can be pushed without the lock.
fn world_with_a_free_slot<C: Checker>(orders: Orders) -> (Arc<World<C>>, Pfn) {
    let world = world::<C>(orders);
    let held = || world.allocator().pagesets().next().expect("it is there").count;
    while held() > PageCount::new(2) {
        world.page();
    }
    let frame = world.owned()[0];
    (world, frame)
}

fn drain<C: Checker>(world: &World<C>) {
    world.allocator().drain_pagesets();
}

fn pop<C: Checker>(world: &World<C>) {
    world.page();
}

/// A CPU pops a frame while another CPU drains all pagesets.
pub(crate) fn pop_against_drain<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.at_once(on(1, drain), on(0, pop));
    world.check_to_the_last_frame();
}

/// A CPU pushes a frame while another CPU drains all pagesets.
pub(crate) fn push_against_drain<C: Checker>(orders: Orders) {
    let (world, frame) = world_with_a_free_slot::<C>(orders);
    world.at_once(on(1, drain), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// A CPU pops a frame while another CPU folds its counters.
pub(crate) fn pop_against_tick<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.page(); // there is something to fold
    world.at_once(on(1, |world| world.allocator().tick_cpu(CpuId::new(0))), on(0, pop));
    world.check_to_the_last_frame();
}

/// A CPU pushes a frame while another CPU folds its counters.
pub(crate) fn push_against_tick<C: Checker>(orders: Orders) {
    let (world, frame) = world_with_a_free_slot::<C>(orders);
    let tick = |world: &World<C>| world.allocator().tick_cpu(CpuId::new(0));
    world.at_once(on(1, tick), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// A thread pops a frame on a CPU while another thread drains that CPU's pageset and migrates meanwhile.
pub(crate) fn pop_against_migrating_drain<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.at_once(on(0, drain), on(0, pop));
    world.check_to_the_last_frame();
}

/// A thread pushes a frame on a CPU while another thread refills that CPU's pageset and migrates meanwhile.
pub(crate) fn push_against_migrating_refill<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    let frame = world.page();
    drain(&world);
    world.at_once(on(0, pop), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// Two threads lock the pageset of one CPU, and the first migrates while it holds the lock.
pub(crate) fn lock_against_migrating_drain<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.at_once(on(0, drain), on(0, drain));
    world.check_to_the_last_frame();
}

/// Two threads on CPU 0 use its pageset of the other node for the first time: one frees a block of two frames, the
/// other a single frame.
pub(crate) fn first_block_against_push<C: Checker>(orders: Orders) {
    let (world, pair, frame) = world_with_an_unused_pageset::<C>(orders);
    world.at_once(on(0, move |world| world.free_block(pair)), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// Like [`first_block_against_push`], but the other thread allocates a frame.
pub(crate) fn first_block_against_pop<C: Checker>(orders: Orders) {
    let (world, pair, _) = world_with_an_unused_pageset::<C>(orders);
    let pop = |world: &World<C>| {
        let other: NodeMask = NodeId::new(1).into_iter().collect();
        world.alloc(&Request::page().allowed(&other)).expect("there is memory");
    };
    world.at_once(on(0, move |world| world.free_block(pair)), on(0, pop));
    world.check_to_the_last_frame();
}

/// Like [`first_block_against_push`], but the other thread drains the pageset from another CPU.
pub(crate) fn first_block_against_drain<C: Checker>(orders: Orders) {
    let (world, pair, frame) = world_with_an_unused_pageset::<C>(orders);
    let free = move |world: &World<C>| {
        world.free_block(pair);
        world.free(frame);
    };
    world.at_once(on(1, drain), on(0, free));
    world.check_to_the_last_frame();
}

/// Creates a world of two nodes, in which CPU 0 has never used its pageset of node 1. Returns the world with a block of
/// two frames and a frame on node 1.
fn world_with_an_unused_pageset<C: Checker>(orders: Orders) -> (Arc<World<C>>, Block, Pfn) {
    let config = Config { tuning: PagesetTuning::Fixed, ..config(8) };
    let nodes: &[NodeShape] = &[(&[0], 16), (&[1], 32)];
    let world = World::<C>::of_sequences(nodes, &config, Box::new(NoReclaimer), orders);
    C::set_cpu(1);
    let pair = world.alloc(&Request::new(Order::new(1).expect("it is small"))).expect("there is memory");
    let frame = world.page();
    C::set_cpu(0);
    (world, pair, frame)
}

/// A CPU locks its pageset to fold its counters while another CPU locks the pageset for the same purpose. Only one of them
/// may hold the lock.
pub(crate) fn lock_against_tick<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.page(); // there is something to fold
    let tick = |world: &World<C>| world.allocator().tick_cpu(CpuId::new(0));
    world.at_once(on(0, tick), on(1, tick));
    world.check_to_the_last_frame();
}
