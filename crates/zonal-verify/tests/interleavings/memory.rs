//! Scenario of memory that goes offline while a CPU allocates and frees its frames.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};

use crate::interleavings::checker::Checker;
use crate::interleavings::world::{NoReclaimer, World, config, on, start};

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
