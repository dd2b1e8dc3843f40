//! Scenarios of the zonelist cache, in which CPUs set full bits, wipe them and scan concurrently. A stale full bit may
//! cause a fallback, but never a failed request.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;

use zonal::config::ZonelistCache;
use zonal::machine::FrameRange;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::restartable::CONTRACT;
use crate::interleavings::world::{NodeShape, World, config, on, start};

const SECOND_NS: u64 = 1_000_000_000;

/// Checks the cache in its published form.
pub(crate) fn published_full_bits_and_wipes<C: Checker>() {
    full_bits_and_wipes::<C>(ZonelistCache::Published);
}

/// Checks the cache whose full bits record a reason, and apply only to requests that this reason concerns.
pub(crate) fn full_bits_and_wipes_by_reason<C: Checker>() {
    full_bits_and_wipes::<C>(ZonelistCache::On);
}

/// Checks a full bit that becomes stale. Node 0 is full. One of its CPUs scans past it, and another one wipes old full
/// bits and scans too. A CPU of node 1 frees a frame on node 0, which clears full bits early.
fn full_bits_and_wipes<C: Checker>(zonelist_cache: ZonelistCache) {
    let config = Config { zonelist_cache, past: zonal_history::PAST, ..config(8) };
    let world = World::<C>::new(&[(&[0, 1], 16), (&[2], 64)], &config, Box::new(NoReclaimer));
    let node = |id| NodeId::new(id).expect("it is small");
    while world.alloc(&Request::page().this_node().no_wait()).is_ok() {}
    let fallback = world.alloc(&Request::new(Order::PAGE)).expect("there is memory");
    assert_eq!(fallback.node, node(1));
    C::table(|table| table.set_now(2 * SECOND_NS)); // the full bits are more than a second old now
    world.all_at_once(
        on(0, |world| {
            world.page();
        }),
        vec![
            on(1, |world| {
                world.page();
            }),
            on(2, |world| {
                world.free(Pfn::new(start(0)));
                world.allocator().drain_pagesets();
            }),
        ],
    );
    // Remaining full bits expire within a second.
    let of_first: Vec<_> = world.owned().into_iter().filter(|frame| frame.get() < start(1)).collect();
    of_first.into_iter().for_each(|frame| world.free(frame));
    world.allocator().drain_pagesets();
    C::table(|table| table.set_now(4 * SECOND_NS));
    let mut nodes = (0..4).map(|_| world.alloc(&Request::page()).expect("there is memory").node);
    assert!(nodes.any(|at| at == node(0)), "node 0 is free again, but no request is served by it");
    world.check_to_the_last_frame();
}

/// Node 0 is full, so node 1 serves its CPU 0. CPU 1 then frees node 0's frames, which makes CPU 0 return to node 0
/// while it allocates and frees frames.
pub(crate) fn served_elsewhere_against_recall<C: Checker>() {
    against_recall(World::<C>::new(NEAR_AND_FAR, &config(8), Box::new(NoReclaimer)));
}

/// Runs [`served_elsewhere_against_recall`] in the world of a kernel.
pub(crate) fn pinned_served_elsewhere_against_recall<C: Checker>() {
    against_recall(World::<C>::of_kernel(NEAR_AND_FAR, &config(8), Box::new(NoReclaimer)));
}

/// Runs [`served_elsewhere_against_recall`] with restartable sequences.
pub(crate) fn sequenced_served_elsewhere_against_recall<C: Checker>() {
    against_recall(World::<C>::of_sequences(NEAR_AND_FAR, &config(8), Box::new(NoReclaimer), CONTRACT));
}

const NEAR_AND_FAR: &[NodeShape] = &[(&[0], 16), (&[1], 64)];

fn against_recall<C: Checker>(world: Arc<World<C>>) {
    while world.alloc(&Request::page().this_node().no_wait()).is_ok() {}
    let near = world.owned();
    for _ in 0..3 {
        let block = world.alloc(&Request::page()).expect("there is memory");
        assert_eq!(block.node.get(), 1);
    }
    let served = world.owned().len() as u64;
    world.at_once(
        on(0, |world| {
            let first = world.page();
            let _second = world.page();
            world.free(first);
        }),
        on(1, move |world| {
            near.iter().for_each(|&frame| world.free(frame));
            world.allocator().drain_pagesets();
        }),
    );
    let locality = world.allocator().locality();
    assert_eq!(locality.hit + locality.miss, served + 2, "{locality:?}");
    assert_eq!(locality.local + locality.other, served + 2, "{locality:?}");
    assert_eq!((locality.miss, locality.other), (locality.foreign, locality.miss), "{locality:?}");
    let block = world.alloc(&Request::page()).expect("there is memory");
    assert_eq!(block.node.get(), 0, "node 0 is free again, but CPU 0 is not served by it");
    world.check_to_the_last_frame();
}

/// CPU 0, whose node is full, allocates and frees frames of node 1. Meanwhile the memory of node 1 goes offline, except
/// the frames in use.
pub(crate) fn served_elsewhere_against_offline<C: Checker>() {
    let world = World::<C>::new(NEAR_AND_FAR, &config(8), Box::new(NoReclaimer));
    while world.alloc(&Request::page().this_node().no_wait()).is_ok() {}
    let far = (0..3).map(|_| world.page()).collect::<Vec<_>>();
    world.free(far[2]);
    world.at_once(
        on(0, |world| {
            if let Ok(block) = world.alloc(&Request::page()) {
                world.free(block.first);
            }
        }),
        on(1, |world| {
            let range = FrameRange { start: Pfn::new(start(1) + 2), count: PageCount::new(62) };
            let _may_be_in_use = world.allocator().offline_memory(range);
        }),
    );
    world.check_to_the_last_frame();
}
