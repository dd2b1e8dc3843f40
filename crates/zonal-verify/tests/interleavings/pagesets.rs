//! Pagesets: their owner against one who drains them, refills and drains of two CPUs at once, large
//! blocks beside batches, and a CPU that goes offline under its users.
//!
//! Neighbours: `world.rs`.

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Order, PageCount};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::world::{Nobody, World, config, on};

/// A CPU takes and gives frames while another CPU drains all pagesets. Nothing is tuned: the owner goes
/// without the lock as far as it can.
pub(crate) fn owner_against_drain<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::new(&[(&[0, 1], 32)], &config, Box::new(Nobody));
    let warm = world.page();
    world.free(warm);
    world.at_once(
        on(0, |world| {
            let first = world.page();
            let _second = world.page();
            world.free(first);
        }),
        on(1, |world| world.allocator().drain_pagesets()),
    );
    world.check_to_the_last_frame();
}

/// The same in a kernel, whose owners go without atomic instructions and answer interrupts.
pub(crate) fn pinned_owner_against_drain<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::of_kernel(&[(&[0, 1], 32)], &config, Box::new(Nobody));
    let warm = world.page();
    world.free(warm);
    world.at_once(
        on(0, |world| {
            let first = world.page();
            world.free(first);
        }),
        on(1, |world| world.allocator().drain_pagesets()),
    );
    // With nobody in the way a drain from another CPU reaches all there is.
    C::set_cpu(1);
    world.allocator().drain_pagesets();
    assert_eq!(world.check().in_pagesets, PageCount::ZERO);
    world.check_to_the_last_frame();
}

/// Two CPUs of a kernel drain the pageset of a third at once: one of them at most has it.
pub(crate) fn pinned_drains_at_once<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::of_kernel(&[(&[0, 1, 2], 32)], &config, Box::new(Nobody));
    let warm = world.page();
    world.free(warm);
    let drain = |world: &World<C>| world.allocator().drain_pagesets();
    let user = on(0, |world: &World<C>| {
        world.page();
    });
    world.all_at_once(user, vec![on(1, drain), on(2, drain)]);
    world.check_to_the_last_frame();
}

/// Frames go from one CPU's hands to another's through a drain and a refill.
pub(crate) fn hand_over<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 16)], &config(0), Box::new(Nobody));
    world.page();
    world.at_once(
        on(0, |world| {
            world.owned().into_iter().for_each(|frame| world.free(frame));
            world.allocator().drain_pagesets();
        }),
        on(1, |world| {
            // All there is may be in the other's hands for a moment.
            let _taken = world.alloc(&Request::page());
        }),
    );
    world.check_to_the_last_frame();
}

/// Two CPUs refill and drain their pagesets from the one zone at the same time.
pub(crate) fn refill_and_drain<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &small(), Box::new(Nobody));
    fn turn<C: Checker>(world: &World<C>) {
        let frame = world.page();
        world.free(frame);
        world.allocator().tick_cpu(CpuId::new(C::cpu()));
        world.allocator().drain_pagesets();
    }
    world.at_once(on(0, turn), on(1, turn));
    world.check_to_the_last_frame();
}

/// Blocks that are split and merged under the region's lock, while frames come and go in batches.
pub(crate) fn blocks_beside_batches<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 64)], &small(), Box::new(Nobody));
    world.at_once(
        on(0, |world| {
            let order = Order::new(4).expect("it is small");
            if let Ok(block) = world.alloc(&Request::new(order)) {
                world.disown(block.first, order);
                world.allocator().free(block.first, order).expect("the free is right");
            }
        }),
        on(1, |world| {
            let frame = world.page();
            world.free(frame);
            world.allocator().drain_pagesets();
        }),
    );
    world.check_to_the_last_frame();
}

/// A CPU goes offline while a thread still runs on it: nothing stays behind in its pageset.
pub(crate) fn offline_in_use<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &small(), Box::new(Nobody));
    let warm = world.page();
    world.free(warm);
    world.at_once(
        on(0, |world| {
            let frame = world.page();
            world.page();
            world.free(frame);
        }),
        on(1, |world| world.allocator().offline_cpu(CpuId::new(0)).expect("another is online")),
    );
    let kept = world.allocator().pagesets().filter(|pageset| pageset.cpu == CpuId::new(0));
    assert_eq!(kept.map(|pageset| pageset.count).sum::<PageCount>(), PageCount::ZERO);
    world.check_to_the_last_frame();
    world.allocator().online_cpu(CpuId::new(0)).expect("it is offline");
    world.check_to_the_last_frame();
}

fn small() -> Config {
    config(8)
}
