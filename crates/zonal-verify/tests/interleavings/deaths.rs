//! Scenarios of processes that share an allocator, of which process 1 dies while others go on.
//!
//! Related files: `processes.rs` is the world; `mortal` in the sources of this crate has longer histories, but runs one process at
//! a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use zonal::Request;
use zonal::units::{Order, PageCount, Pfn};

use crate::interleavings::cells::has_died;
use crate::interleavings::checker::Checker;
use crate::interleavings::processes::{Processes, Shared, Work};

fn order(order: u8) -> Order {
    Order::new(order).expect("it is small")
}

fn process<C: Checker>(number: u8, work: impl FnOnce(&Processes<C>) + Send + 'static) -> (u8, Work<C>) {
    (number, Box::new(work))
}

/// A process dies while it refills its pageset and drains it, and another one meets the locks that it held.
pub(crate) fn death_in_refill<C: Checker>() {
    let world = Processes::<C>::new();
    let doomed = |world: &Processes<C>| {
        world.alloc_and_free(1, Order::PAGE);
        world.allocator(1).drain_pagesets();
    };
    let other = process(2, |world| {
        world.alloc_and_free(2, Order::PAGE);
        world.recover_if_dead(2);
    });
    world.at_once(doomed, vec![other]);
    world.check(None);
}

/// A process dies while it splits a large block and merges it; another one allocates from the same area while a third recovers.
pub(crate) fn death_in_split_and_merge<C: Checker>() {
    let world = Processes::<C>::new();
    let allocates = process(2, |world| _ = world.alloc(2, order(5)));
    let recovers = process(3, |world| world.recover_if_dead(3));
    world.at_once(|world| world.alloc_and_free(1, order(5)), vec![allocates, recovers]);
    world.check(None);
}

/// A process dies while it frees a block of another one, which goes on.
pub(crate) fn death_in_free_for_another<C: Checker>() {
    let world = Processes::<C>::new();
    let block = world.given(2, order(2));
    let other = process(2, |world| world.alloc_and_free(2, Order::PAGE));
    world.at_once(move |world| world.free(1, block, order(2)), vec![other]);
    world.check(Some(block));
}

/// A process dies while it frees a block of another one, and a third needs the same lock to free another block of that one.
pub(crate) fn death_in_free_beside_another<C: Checker>() {
    let world = Processes::<C>::new();
    let [block, other] = [(); 2].map(|()| world.given(2, order(2)));
    let heir = process(3, move |world| {
        world.free(3, other, order(2));
        world.recover_if_dead(3);
    });
    world.at_once(move |world| world.free(1, block, order(2)), vec![heir]);
    world.check(Some(block));
}

/// A process dies while another one frees a block of it.
pub(crate) fn death_against_free_for_it<C: Checker>() {
    let world = Processes::<C>::new();
    let block = world.given(1, order(2));
    let other = process(2, move |world| {
        world.free(2, block, order(2));
        world.recover_if_dead(2);
    });
    world.at_once(|world| world.alloc_and_free(1, Order::PAGE), vec![other]);
    world.check(None);
}

/// A process dies while it recovers another one, and the next recovers both.
pub(crate) fn death_in_recovery<C: Checker>() {
    let world = Processes::<C>::new();
    world.given(3, Order::PAGE);
    world.given(3, order(3));
    world.kill(3);
    let other = process(2, |world| {
        world.alloc(2, order(3));
        if has_died::<C>(0) {
            world.recover(2, 1);
            world.recover(2, 3);
        }
    });
    world.at_once(|world| world.recover(1, 3), vec![other]);
    world.check(None);
}

/// What a dead process held is given back while another process frees a block of it.
pub(crate) fn recovery_against_free_for_the_dead<C: Checker>() {
    let world = Processes::<C>::new();
    let block = world.given(1, order(2));
    let is_recovered = Arc::new(AtomicU32::new(0));
    let may_be_refused = Arc::clone(&is_recovered);
    let recovers = process(2, move |world| {
        if has_died::<C>(0) {
            is_recovered.store(1, Relaxed); // relaxed: the recovery publishes it
            world.recover(2, 1);
        }
    });
    let frees = process(3, move |world| {
        world.disown(block);
        let is_freed = world.allocator(3).free(block, order(2)).is_ok();
        assert!(is_freed || may_be_refused.load(Relaxed) == 1, "it is refused only if it was given back");
    });
    world.at_once(|world| world.alloc_and_free(1, Order::PAGE), vec![recovers, frees]);
    world.check(None);
}

/// Two processes free a block of a third, which may die meanwhile; exactly one succeeds.
pub(crate) fn frees_of_a_block_at_once<C: Checker>() {
    frees_at_once::<C>(4, |allocator, first| allocator.free(first, order(2)).is_ok());
}

/// As [`frees_of_a_block_at_once`], for a run.
pub(crate) fn frees_of_a_run_at_once<C: Checker>() {
    frees_at_once::<C>(3, |allocator, first| allocator.free_frames(first, PageCount::new(3)).is_ok());
}

/// A process frees its page while another one does, and a third may die meanwhile; exactly one succeeds.
pub(crate) fn frees_of_a_page_at_once<C: Checker>() {
    let world = Processes::<C>::new();
    let page = world.given(2, Order::PAGE);
    world.disown(page);
    frees_by_two(&world, move |allocator| allocator.free(page, Order::PAGE).is_ok());
}

fn frees_at_once<C: Checker>(count: u64, free: fn(&Shared<C>, Pfn) -> bool) {
    let world = Processes::<C>::new();
    C::set_cpu(0);
    let run =
        world.allocator(1).alloc_frames(&Request::page(), PageCount::new(count)).expect("there is memory");
    frees_by_two(&world, move |allocator| free(allocator, run.range.start));
}

/// Lets processes 2 and 3 free the same while process 1 may die; exactly one succeeds.
fn frees_by_two<C: Checker>(
    world: &Arc<Processes<C>>,
    free: impl Fn(&Shared<C>) -> bool + Copy + Send + 'static,
) {
    let freed = Arc::new(AtomicU32::new(0));
    let frees = |number| {
        let freed = Arc::clone(&freed);
        process(number, move |world: &Processes<C>| {
            freed.fetch_add(free(world.allocator(number)).into(), Relaxed); // relaxed: the threads are joined
        })
    };
    world.at_once(|world| world.alloc_and_free(1, Order::PAGE), vec![frees(2), frees(3)]);
    assert_eq!(freed.load(Relaxed), 1);
    world.check(None);
}
