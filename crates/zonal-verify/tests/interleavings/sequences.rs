//! Restartable sequences: owners against drains and ticks from another CPU, and against holders of a lock
//! that migrate while they hold it.
//!
//! The remote CPU runs on the first thread, so that few preemptions suffice to run other threads between two of
//! its steps. Neighbours: `restartable.rs` has the sequences, `broken_sequences.rs` runs the same scenarios with
//! orders of accesses that break the contract, `world.rs`.

use std::sync::Arc;

use zonal::Config;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, PageCount, Pfn};

use crate::interleavings::checker::Checker;
use crate::interleavings::restartable::{CONTRACT, Orders};
use crate::interleavings::world::{NoReclaimer, World, config, on};

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
}

/// Creates a zone that CPUs 0 and 1 share; CPU 0 has just freed a frame.
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

/// Another CPU drains all pagesets while a CPU pops a frame.
pub(crate) fn pop_against_drain<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.at_once(on(1, drain), on(0, pop));
    world.check_to_the_last_frame();
}

/// Another CPU drains all pagesets while a CPU pushes a frame.
pub(crate) fn push_against_drain<C: Checker>(orders: Orders) {
    let (world, frame) = world_with_a_free_slot::<C>(orders);
    world.at_once(on(1, drain), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// Another CPU folds the counters of a CPU that pops a frame.
pub(crate) fn pop_against_tick<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.page(); // there is something to fold
    world.at_once(on(1, |world| world.allocator().tick_cpu(CpuId::new(0))), on(0, pop));
    world.check_to_the_last_frame();
}

/// Another CPU folds the counters of a CPU that pushes a frame.
pub(crate) fn push_against_tick<C: Checker>(orders: Orders) {
    let (world, frame) = world_with_a_free_slot::<C>(orders);
    let tick = |world: &World<C>| world.allocator().tick_cpu(CpuId::new(0));
    world.at_once(on(1, tick), on(0, move |world| world.free(frame)));
    world.check_to_the_last_frame();
}

/// A thread migrates while it drains its CPU's pageset; another thread of that CPU pops.
pub(crate) fn pop_against_migrating_drain<C: Checker>(orders: Orders) {
    let world = world::<C>(orders);
    world.at_once(on(0, drain), on(0, pop));
    world.check_to_the_last_frame();
}

/// A thread migrates while it refills its CPU's pageset; another thread of that CPU pushes.
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
