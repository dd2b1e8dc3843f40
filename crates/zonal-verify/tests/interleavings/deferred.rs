//! Scenarios of frees that a handler defers, while another CPU finishes them.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Order};
use zonal::{Block, Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::world::{Job, World, config, on};

/// Creates a world of two CPUs, and blocks that CPU 0 has allocated. The frees of such blocks in handlers are all deferred.
fn world_with_blocks<C: Checker, const BLOCKS: usize>() -> (Arc<World<C>>, [Block; BLOCKS]) {
    let config = Config { tuning: PagesetTuning::Fixed, ..config(0) };
    let world = World::<C>::new(&[(&[0, 1], 16)], &config, Box::new(NoReclaimer));
    C::set_cpu(0);
    let order = Order::new(2).expect("it is small");
    let blocks = core::array::from_fn(|_| world.alloc(&Request::new(order)).expect("there is memory"));
    (world, blocks)
}

/// Creates a job that does `work` as a handler on CPU 0.
fn in_handler<C: Checker>(work: impl FnOnce(&World<C>) + Send + 'static) -> Job<C> {
    on(0, move |world| {
        C::set_reentered(true);
        work(world);
        C::set_reentered(false);
    })
}

/// Finishes the frees of all CPUs, and allocates and frees what is free then.
fn drain_and_allocate<C: Checker>() -> Job<C> {
    on(1, |world| {
        world.allocator().drain_pagesets();
        let order = Order::new(2).expect("it is small");
        let all = core::iter::from_fn(|| world.alloc(&Request::new(order).no_wait()).ok());
        all.collect::<Vec<_>>().into_iter().for_each(|block| world.free_block(block));
    })
}

/// A handler defers a free while another CPU finishes deferred frees and allocates the frames.
pub(crate) fn deferred_free_against_drain<C: Checker>() {
    let (world, [block]) = world_with_blocks::<C, 1>();
    world.at_once(in_handler(move |world| world.free_block(block)), drain_and_allocate());
    world.check_to_the_last_frame();
}

/// Handlers of two threads on a CPU defer frees while another CPU finishes them and allocates the frames.
pub(crate) fn deferred_frees_against_drain<C: Checker>() {
    let (world, [first, second]) = world_with_blocks::<C, 2>();
    let other = in_handler(move |world| world.free_block(second));
    world.all_at_once(in_handler(move |world| world.free_block(first)), vec![other, drain_and_allocate()]);
    world.check_to_the_last_frame();
}

/// A handler defers the free of a block that another CPU frees too. Exactly one of them succeeds.
pub(crate) fn deferred_free_against_free<C: Checker>() {
    let (world, [block]) = world_with_blocks::<C, 1>();
    world.disown(block.first, block.order);
    let freed = Arc::new(AtomicU64::new(0)); // not part of the model
    let also = Arc::clone(&freed);
    let free = move |world: &World<C>, freed: &AtomicU64| {
        let succeeded = world.allocator().free(block.first, block.order).is_ok();
        freed.fetch_add(u64::from(succeeded), Relaxed); // relaxed: one operating-system thread runs them all
    };
    world.at_once(
        in_handler({
            let freed = Arc::clone(&freed);
            move |world| free(world, &freed)
        }),
        on(1, move |world| free(world, &also)),
    );
    assert_eq!(freed.load(Relaxed), 1, "frees that succeeded");
    world.check_to_the_last_frame();
}

/// Two CPUs finish a deferred free at once. Only one of them may find it.
pub(crate) fn drains_of_a_deferred_free<C: Checker>() {
    let (world, [block]) = world_with_blocks::<C, 1>();
    C::set_reentered(true);
    world.free_block(block);
    C::set_reentered(false);
    let tick = |world: &World<C>| world.allocator().tick_cpu(CpuId::new(0));
    world.at_once(on(0, tick), on(1, tick));
    world.check_to_the_last_frame();
}

/// A CPU finishes two deferred frees while another CPU allocates exactly those frames. Only the block that the first is
/// about to free may be missed.
pub(crate) fn range_of_deferred_frees<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 64)], &config(0), Box::new(NoReclaimer));
    C::set_cpu(0);
    let order = Order::new(4).expect("it is small"); // no pageset, which its owner may have locked, has such blocks
    let blocks = [(); 2].map(|()| world.alloc(&Request::new(order)).expect("there is memory"));
    C::set_reentered(true);
    blocks.iter().for_each(|&block| world.free_block(block));
    C::set_reentered(false);
    world.at_once(
        on(1, move |world| {
            let a = world.allocator();
            let range = |block: Block| FrameRange { start: block.first, count: block.order.pages() };
            let got = blocks.map(|block| a.alloc_range(range(block), PageKind::User).is_ok());
            assert!(got.contains(&true), "a drain hides the blocks that it has not reached");
            for (block, _) in blocks.into_iter().zip(got).filter(|&(_, got)| got) {
                a.free(block.first, block.order).expect("it is allocated");
            }
        }),
        on(0, |world| world.allocator().tick_cpu(CpuId::new(0))),
    );
    world.check_to_the_last_frame();
}
