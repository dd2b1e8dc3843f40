//! The zonelist cache under marks, wipes and scans at once: a hint may cost a detour, never a request.
//!
//! Neighbours: `world.rs`.

use zonal::config::ZonelistCache;
use zonal::units::{NodeId, Order};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::world::{Nobody, World, config, on, start};

const SECOND_NS: u64 = 1_000_000_000;

/// The cache as published.
pub(crate) fn published_marks_and_wipes<C: Checker>() {
    marks_and_wipes::<C>(ZonelistCache::Published);
}

/// The cache with marks that bind by reason.
pub(crate) fn marks_and_wipes_by_reason<C: Checker>() {
    marks_and_wipes::<C>(ZonelistCache::On);
}

/// Node 0 is full. One thread there scans past it, another one wipes old marks and scans too, and on node
/// 1 a frame of node 0 comes back, which drops marks early.
fn marks_and_wipes<C: Checker>(zonelist_cache: ZonelistCache) {
    let config = Config { zonelist_cache, ..config(8) };
    let world = World::<C>::new(&[(&[0, 1], 16), (&[2], 64)], &config, Box::new(Nobody));
    let node = |id| NodeId::new(id).expect("it is small");
    while world.alloc(&Request::page().this_node().no_wait()).is_ok() {}
    let fallback = world.alloc(&Request::new(Order::PAGE)).expect("there is memory");
    assert_eq!(fallback.node, node(1));
    C::table(|table| table.set_now(2 * SECOND_NS)); // the marks are old now
    world.all_at_once(
        on(0, |world| {
            world.page();
        }),
        vec![
            on(1, |world| {
                world.page();
            }),
            on(2, |world| {
                world.free(zonal::units::Pfn::new(start(0)));
                world.allocator().drain_pagesets();
            }),
        ],
    );
    // Whatever marks are left, they go within a second.
    let of_first: Vec<_> = world.owned().into_iter().filter(|frame| frame.get() < start(1)).collect();
    of_first.into_iter().for_each(|frame| world.free(frame));
    world.allocator().drain_pagesets();
    C::table(|table| table.set_now(4 * SECOND_NS));
    let mut nodes = (0..4).map(|_| world.alloc(&Request::page()).expect("there is memory").node);
    assert!(nodes.any(|at| at == node(0)), "node 0 is free again and nobody sees it");
    world.check_to_the_last_frame();
}
