//! The operations of jobs: on a CPU's own pagesets, on those of others, and on the whole machine.
//!
//! Related files: `pagesets.rs` lets two jobs run at once, `load.rs` any number.

use zonal::error::OnlineError;
use zonal::machine::FrameRange;
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::{Allocator, Request};

use crate::duel::Actor;
use crate::harness::Harness;
use crate::world::{World, frames_of, on_node};

/// Order of a block of two frames.
const PAIR: Order = Order::new(1).expect("a small order");

/// Puts frames into a CPU's pageset, with slots for others, and holds frames that were not in these slots.
pub(crate) fn warm<H: Harness>(world: &World<'_, H>, me: Actor) {
    (0..6).for_each(|_| pop(world, me));
    (0..3).for_each(|_| _ = world.free(me.lane));
    (0..2).for_each(|_| pop(world, me));
}

pub(crate) fn pop<H: Harness>(world: &World<'_, H>, me: Actor) {
    world.alloc(me.lane, &Request::page());
}

pub(crate) fn push<H: Harness>(world: &World<'_, H>, me: Actor) {
    if !world.free(me.lane) {
        pop(world, me); // in a free round, the frames that were prepared are used up
    }
}

pub(crate) fn bulk<H: Harness>(world: &World<'_, H>, me: Actor) {
    let mut frames = [Pfn::new(0); 3];
    let request = Request::page().no_wait();
    match world.call(|allocator| allocator.alloc_bulk(&request, &mut frames)) {
        Ok(count) => frames[..count].iter().for_each(|&frame| world.keep(me.lane, frame, Order::PAGE)),
        Err(error) => {
            world.note.write(format_args!("a bulk request failed although frames are free: {error}"));
        }
    }
}

/// Allocates more than a pageset holds, so that it is refilled.
pub(crate) fn refill<H: Harness>(world: &World<'_, H>, me: Actor) {
    (0..20).for_each(|_| pop(world, me));
}

pub(crate) fn drain<H: Harness>(world: &World<'_, H>, _: Actor) {
    world.call(Allocator::drain_pagesets);
}

/// Folds the counters of all CPUs, whose pagesets it locks.
pub(crate) fn fold<H: Harness>(world: &World<'_, H>, _: Actor) {
    world.call(Allocator::stat_refresh);
}

/// Holds the lock for run-time changes.
pub(crate) fn change<H: Harness>(world: &World<'_, H>, _: Actor) {
    world.call(|allocator| allocator.set_high_fraction(8));
}

/// Holds a block and two frames of node 1, which other CPUs have never freed.
pub(crate) fn hold_other_node<H: Harness>(world: &World<'_, H>, me: Actor) {
    world.alloc(me.lane, &Request::new(PAIR));
    on_node(1, |request| (0..2).for_each(|_| _ = world.alloc(me.lane, request)));
}

pub(crate) fn pop_other_node<H: Harness>(world: &World<'_, H>, me: Actor) {
    on_node(1, |request| world.alloc(me.lane, request));
}

pub(crate) fn take_offline<H: Harness>(world: &World<'_, H>, cpu: CpuId) {
    world.harness.set_online(world.allocator.platform(), cpu, false);
    match world.call(|allocator| allocator.offline_cpu(cpu)) {
        Ok(()) | Err(OnlineError::CpuUnchanged(_) | OnlineError::LastCpu(_)) => {}
        Err(error) => world.note.write(format_args!("CPU {cpu} cannot go offline: {error}")),
    }
}

pub(crate) fn bring_online<H: Harness>(world: &World<'_, H>, cpu: CpuId) {
    match world.call(|allocator| allocator.online_cpu(cpu)) {
        Ok(()) | Err(OnlineError::CpuUnchanged(_)) => {}
        Err(error) => world.note.write(format_args!("CPU {cpu} cannot come online: {error}")),
    }
    world.harness.set_online(world.allocator.platform(), cpu, true);
}

pub(crate) fn other_leaves<H: Harness>(world: &World<'_, H>, me: Actor) {
    take_offline(world, me.other);
}

pub(crate) fn other_returns<H: Harness>(world: &World<'_, H>, me: Actor) {
    bring_online(world, me.other);
}

/// Brings all CPUs online.
pub(crate) fn all_return<H: Harness>(world: &World<'_, H>, _: Actor) {
    world.harness.cpus().iter().for_each(|&cpu| bring_online(world, cpu));
}

/// Returns the frames that leave: the second half of node 0.
pub(crate) fn leaving() -> FrameRange {
    let all = frames_of(0);
    let half = PageCount::new(all.count.get() / 2);
    FrameRange { start: all.start.plus(half), count: half }
}

pub(crate) fn memory_leaves<H: Harness>(world: &World<'_, H>, _: Actor) {
    // It stays if one of its frames is in use.
    let left = world.call(|allocator| allocator.offline_memory(leaving())).is_ok();
    if left {
        memory_returns(world);
    }
}

pub(crate) fn memory_returns<H: Harness>(world: &World<'_, H>) {
    if let Err(error) = world.call(|allocator| allocator.online_memory(leaving())) {
        world.note.write(format_args!("memory cannot come online: {error}"));
    }
}

/// Operates on other CPUs' pagesets, or on the whole machine. `choice` is below 64.
pub(crate) fn disturb<H: Harness>(world: &World<'_, H>, me: Actor, choice: u64) {
    match choice {
        0..30 => drain(world, me),
        30..40 => world.call(Allocator::tick),
        40..50 => world.call(|allocator| allocator.tick_cpu(me.other)),
        50..54 => change(world, me),
        54..56 => other_leaves(world, me),
        56..62 => other_returns(world, me),
        _ => memory_leaves(world, me),
    }
}
