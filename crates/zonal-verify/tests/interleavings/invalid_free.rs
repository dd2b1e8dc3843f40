//! Scenarios in which frees of one frame race, which must be detected. No frame may be allocated twice.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::config::InvalidFree;
use zonal::machine::FrameRange;
use zonal::request::{PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::world::{World, config, on};

/// With `InvalidFree::Exact`, which uses atomic exchanges, exactly one of two racing frees succeeds.
pub(crate) fn exact<C: Checker>() {
    let (world, freed) = race::<C>(InvalidFree::Exact);
    assert_eq!(freed, 1, "frees that succeeded");
    world.check_to_the_last_frame();
}

/// After such a race, both CPUs may allocate at the same time, because only one copy of the frame is free.
pub(crate) fn exact_and_taken_at_once<C: Checker>() {
    let (world, freed) = race::<C>(InvalidFree::Exact);
    assert_eq!(freed, 1, "frees that succeeded");
    let take = |world: &World<C>| {
        let _ = world.alloc(&Request::page()); // the frame is owned now, or memory is short
    };
    world.at_once(on(0, take), on(1, take));
    world.check_to_the_last_frame();
}

/// An invalid free races with the valid one. After the valid free, the frame's pageset drains, and the frame is merged
/// and allocated in a larger block. The invalid free must not change that block, wherever it was preempted.
pub(crate) fn stale_free<C: Checker>() {
    let (world, frame) = world_with_a_freed_frame::<C>(InvalidFree::default());
    let freed = Arc::new(AtomicU64::new(0)); // not part of the model
    let right = Arc::clone(&freed);
    let wrong = Arc::clone(&freed);
    world.at_once(
        on(0, move |world| {
            free(world, frame, &right);
            world.allocator().drain_pagesets();
            let _ = world.alloc(&Request::new(Order::new(2).expect("it is small")).urgency(Urgency::Reserve));
        }),
        on(1, move |world| free(world, frame, &wrong)),
    );
    assert_eq!(freed.load(Relaxed), 1, "frees that succeeded");
    let larger = Request::new(Order::new(2).expect("it is small")).urgency(Urgency::Reserve);
    while world.alloc(&larger).is_ok() {}
    world.check();
    assert_eq!(world.allocator().events().retired, 0);
}

/// With `InvalidFree::Checked`, both frees may succeed. The second copy is then retired and reported when it would be
/// allocated. Afterwards the accounting is exact again.
pub(crate) fn checked<C: Checker>() {
    let (world, freed) = race::<C>(InvalidFree::Checked);
    assert!(freed >= 1, "a frame that was allocated can be freed");
    // Each CPU may have a copy of the frame. The CPUs allocate the copies one after the other.
    for cpu in [0, 1, 0] {
        C::set_cpu(cpu);
        world.page();
    }
    let all = Request::page().urgency(Urgency::Reserve);
    while world.alloc(&all).is_ok() {}
    world.check();
    let retired = world.allocator().events().retired;
    assert_eq!(retired, freed - 1, "second copies that were retired");
    world.check_to_the_last_frame();
}

/// Frees one frame on two CPUs at once, each into a pageset with free slots. Returns the number of frees that
/// succeeded.
///
/// No thread allocates meanwhile, because a late free of a frame that was allocated again cannot be detected.
fn race<C: Checker>(invalid_free: InvalidFree) -> (Arc<World<C>>, u64) {
    let (world, frame) = world_with_a_freed_frame::<C>(invalid_free);
    let freed = Arc::new(AtomicU64::new(0)); // not part of the model
    let also = Arc::clone(&freed);
    world.at_once(
        on(0, move |world| free(world, frame, &freed)),
        on(1, {
            let freed = Arc::clone(&also);
            move |world| free(world, frame, &freed)
        }),
    );
    let freed = also.load(Relaxed);
    (world, freed)
}

/// Creates a world of two CPUs with few frames in their pagesets, and an allocated frame without an owner.
fn world_with_a_freed_frame<C: Checker>(invalid_free: InvalidFree) -> (Arc<World<C>>, Pfn) {
    let config = Config { invalid_free, tuning: PagesetTuning::Fixed, ..config(8) };
    let world = World::<C>::new(&[(&[0, 1], 32)], &config, Box::new(NoReclaimer));
    for cpu in [1, 0] {
        C::set_cpu(cpu);
        let cached = || world.allocator().pagesets().nth(cpu as usize).expect("it is there").count;
        world.page();
        while cached() > PageCount::new(2) {
            world.page(); // otherwise the free would drain the pageset
        }
    }
    let frame = world.page();
    world.disown(frame, Order::PAGE);
    (world, frame)
}

fn free<C: Checker>(world: &World<C>, frame: Pfn, freed: &AtomicU64) {
    // A refused free is not an error here, because the scenario checks how many frees succeeded.
    if world.allocator().free(frame, Order::PAGE).is_ok() {
        freed.fetch_add(1, Relaxed); // relaxed: one operating-system thread runs them all
    }
}

/// A free with a wrong frame count beside the allocation of a run. The free must be refused: three frames of four are
/// not a run, although they are blocks of the run.
pub(crate) fn new_run_against_wrong_count<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &config(8), Box::new(NoReclaimer));
    let first = Pfn::new(4096 + 5); // blocks of 1, 2 and 1 frames
    world.at_once(
        on(0, move |world| {
            let range = FrameRange { start: first, count: PageCount::new(4) };
            world.allocator().alloc_range(range, PageKind::User).expect("all frames are free");
        }),
        on(1, move |world| {
            let freed = world.allocator().free_frames(first, PageCount::new(3));
            assert!(freed.is_err(), "three of four frames were freed");
        }),
    );
}
