//! Scenarios of memory that goes offline, is fenced or is retired while a CPU allocates and frees its frames.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use zonal::config::Hardening;
use zonal::machine::FrameRange;
use zonal::request::{PageKind, Urgency};
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, Pfn};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::world::{World, config, on, start};

const FRAMES: u64 = 32;
const LEAVING: FrameRange = FrameRange { start: Pfn::new(start(0)), count: PageCount::new(16) };

/// A range, whose frames the allocator prefers, goes offline while a CPU allocates and frees frames. The range must go
/// offline completely, or not at all.
pub(crate) fn offline_against_allocation<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(4), Box::new(NoReclaimer));
    let has_left = Arc::new(AtomicBool::new(false)); // not part of the model
    let leaves = Arc::clone(&has_left);
    world.at_once(
        on(0, |world| {
            let frame = world.page();
            world.free(frame);
        }),
        on(1, move |world| {
            let left = world.allocator().offline_memory(LEAVING).is_ok();
            leaves.store(left, Relaxed); // relaxed: one operating-system thread runs them all
        }),
    );
    world.check_to_the_last_frame();
    let left = has_left.load(Relaxed);
    let is_leaving = |frame: &Pfn| *frame >= LEAVING.start && *frame < LEAVING.end();
    let there = world.owned().iter().filter(|frame| is_leaving(frame)).count() as u64;
    assert_eq!(there, if left { 0 } else { LEAVING.count.get() });
    if left {
        world.allocator().online_memory(LEAVING).expect("it is offline");
        world.check_to_the_last_frame();
    }
    assert_eq!(world.check().managed.get(), FRAMES);
}

/// All frames are in use. A CPU frees one while another CPU fences it and then allocates. A free that begins after the fence
/// exists must leave the frame to the fence.
pub(crate) fn fence_against_free<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(4), Box::new(NoReclaimer));
    C::set_cpu(0);
    let all = || world.alloc(&Request::page().urgency(Urgency::Reserve));
    while all().is_ok() {}
    let frame = Pfn::new(start(0) + 9);
    // Not part of the model: one operating-system thread runs all threads, so relaxed accesses are in order.
    let (is_fenced, is_late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (fenced, late) = (Arc::clone(&is_fenced), Arc::clone(&is_late));
    world.at_once(
        on(1, move |world| {
            let range = FrameRange { start: Pfn::new(frame.get() - 1), count: PageCount::new(3) };
            let fence = world.allocator().fence(range).expect("there is no other fence");
            fenced.store(true, Relaxed);
            // No other frame is free.
            let page = world.alloc(&Request::page().urgency(Urgency::Reserve));
            assert!(page.is_err() || !late.load(Relaxed), "a fenced frame was allocated");
            drop(fence);
        }),
        on(0, move |world| {
            is_late.store(is_fenced.load(Relaxed), Relaxed);
            world.free(frame);
        }),
    );
    world.check_to_the_last_frame();
}

/// A CPU frees a frame while another CPU fences it. The fence must have the frame then, not the quarantine.
pub(crate) fn fence_against_quarantine<C: Checker>() {
    let hardening = Hardening { quarantine: PageCount::new(1), ..Hardening::default() };
    let world =
        World::<C>::new(&[(&[0, 1], FRAMES)], &Config { hardening, ..config(4) }, Box::new(NoReclaimer));
    C::set_cpu(0);
    let frame = world.page();
    world.at_once(
        on(0, move |world| world.free(frame)),
        on(1, move |world| {
            let range = FrameRange { start: frame, count: PageCount::new(1) };
            let fence = world.allocator().fence(range).expect("there is no other fence");
            core::mem::forget(fence); // it stays
        }),
    );
    let zone = world.allocator().zones().next().expect("there is one zone");
    assert_eq!((zone.fenced.get(), zone.quarantined.get()), (1, 0));
}

/// A CPU frees its frame while another CPU retires it. The frame must then be retired once, and no other is lost.
pub(crate) fn retire_against_free<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(4), Box::new(NoReclaimer));
    C::set_cpu(0);
    let frame = world.page();
    world.at_once(on(0, move |world| world.free(frame)), on(1, move |world| retire(world, frame)));
    check_retired(&world, frame);
}

/// A CPU frees a run while another CPU retires one of its frames.
pub(crate) fn retire_against_free_of_a_run<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(4), Box::new(NoReclaimer));
    let run = FrameRange { start: Pfn::new(start(0) + 5), count: PageCount::new(4) }; // blocks of 1, 2 and 1 frames
    world.allocator().alloc_range(run, PageKind::User).expect("all frames are free");
    let frame = run.start.plus(PageCount::new(2));
    world.at_once(
        on(0, move |world| world.allocator().free_frames(run.start, run.count).expect("it is allocated")),
        on(1, move |world| retire(world, frame)),
    );
    check_retired(&world, frame);
}

/// A CPU splits a block and frees one part while another CPU retires a frame of that part.
pub(crate) fn retire_against_split<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config(4), Box::new(NoReclaimer));
    let block = FrameRange { start: Pfn::new(start(0) + 4), count: PageCount::new(2) };
    world.allocator().alloc_range(block, PageKind::User).expect("all frames are free");
    let order = Order::new(1).expect("it is small");
    world.at_once(
        on(0, move |world| {
            world.allocator().split(block.start, order, Order::PAGE).expect("it is allocated");
            for frame in [block.start, block.start.plus(PageCount::new(1))] {
                world.allocator().free(frame, Order::PAGE).expect("it was split");
            }
        }),
        on(1, move |world| retire(world, block.start)),
    );
    check_retired(&world, block.start);
}

/// A CPU retires a frame in quarantine, while the frame leaves the quarantine, is allocated and enters it again.
pub(crate) fn retire_against_quarantine<C: Checker>() {
    let hardening = Hardening { quarantine: PageCount::new(1), ..Hardening::default() };
    let config = Config { hardening, tuning: PagesetTuning::Fixed, ..config(4) };
    let world = World::<C>::new(&[(&[0, 1], FRAMES)], &config, Box::new(NoReclaimer));
    C::set_cpu(0);
    let [frame, other] = [(); 2].map(|()| world.page());
    world.free(frame);
    world.at_once(
        on(1, move |world| retire(world, frame)),
        on(0, move |world| {
            world.free(other); // the frame leaves the quarantine, and is the next to be allocated
            if let Ok(block) = world.alloc(&Request::page()) {
                world.free_block(block);
            }
        }),
    );
    world.allocator().drain_pagesets();
    check_others(&world, frame);
}

pub(crate) fn retire<C: Checker>(world: &World<C>, frame: Pfn) {
    let retired = world.allocator().retire(frame);
    assert!(retired.is_ok(), "{retired:?}");
}

/// Checks that a frame is retired, and that all others can be allocated.
pub(crate) fn check_others<C: Checker>(world: &World<C>, frame: Pfn) {
    let all = Request::page().urgency(Urgency::Reserve);
    while world.alloc(&all).is_ok() {}
    let zone = world.allocator().zones().next().expect("there is one zone");
    assert_eq!((zone.retired.get(), zone.retiring.get()), (1, 0));
    assert_eq!(world.owned().len() as u64, FRAMES - 1);
    assert!(!world.owned().contains(&frame), "a retired frame was allocated");
}

/// Checks what [`check_others`] does. Then forgets that the frame is retired.
fn check_retired<C: Checker>(world: &World<C>, frame: Pfn) {
    check_others(world, frame);
    let alone = FrameRange { start: frame, count: PageCount::new(1) };
    world.allocator().offline_memory(alone).expect("it is retired");
    world.allocator().online_memory(alone).expect("it is offline");
    world.check_to_the_last_frame();
}
