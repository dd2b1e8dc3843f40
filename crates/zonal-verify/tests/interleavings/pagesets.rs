//! Scenarios of pagesets: the owning CPU runs concurrently with remote drains, two CPUs refill and drain at once, large
//! blocks are allocated concurrently with batches, and a CPU goes offline while threads use it.
//!
//! Related files: `world.rs` is the machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Order, PageCount, Pfn};
use zonal::{Config, Request};

use crate::interleavings::checker::Checker;
use crate::interleavings::model::NoReclaimer;
use crate::interleavings::restartable::CONTRACT;
use crate::interleavings::world::{World, config, on};

/// A CPU allocates and frees frames while another CPU drains all pagesets. Tuning is off, so that the owner takes the
/// lock as rarely as possible.
pub(crate) fn owner_against_drain<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::new(&[(&[0, 1], 32)], &config, Box::new(NoReclaimer));
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

/// Like [`owner_against_drain`], in a kernel, whose CPUs access their pagesets without atomic instructions and handle
/// interrupts.
pub(crate) fn pinned_owner_against_drain<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::of_kernel(&[(&[0, 1], 32)], &config, Box::new(NoReclaimer));
    let warm = world.page();
    world.free(warm);
    world.at_once(
        on(0, |world| {
            let first = world.page();
            world.free(first);
        }),
        on(1, |world| world.allocator().drain_pagesets()),
    );
    // Without contention, a remote drain frees all frames in pagesets.
    C::set_cpu(1);
    world.allocator().drain_pagesets();
    assert_eq!(world.check().in_pagesets, PageCount::ZERO);
    world.check_to_the_last_frame();
}

/// Two CPUs of a kernel drain a third one's pageset at once. At most one of them may hold its lock.
pub(crate) fn pinned_drains_at_once<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::of_kernel(&[(&[0, 1, 2], 32)], &config, Box::new(NoReclaimer));
    let warm = world.page();
    world.free(warm);
    let drain = |world: &World<C>| world.allocator().drain_pagesets();
    let user = on(0, |world: &World<C>| {
        world.page();
    });
    world.all_at_once(user, vec![on(1, drain), on(2, drain)]);
    world.check_to_the_last_frame();
}

/// A CPU of a kernel locks its pageset to fold its counters while another CPU locks the pageset for the same purpose. The
/// owner may overwrite the remote lock before it is interrupted, and then the remote lock must fail.
pub(crate) fn pinned_lock_against_tick<C: Checker>() {
    let config = Config { tuning: PagesetTuning::Fixed, ..small() };
    let world = World::<C>::of_kernel_with_checked_locks(&[(&[0, 1], 32)], &config);
    world.page(); // there is something to fold
    let tick = |world: &World<C>| world.allocator().tick_cpu(CpuId::new(0));
    world.at_once(on(0, move |world| world.undisturbed(|| tick(world))), on(1, tick));
    world.check_to_the_last_frame();
}

/// Frames move from one CPU to another through a drain and a refill.
pub(crate) fn hand_over<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 16)], &config(0), Box::new(NoReclaimer));
    world.page();
    world.at_once(
        on(0, |world| {
            world.owned().into_iter().for_each(|frame| world.free(frame));
            world.allocator().drain_pagesets();
        }),
        on(1, |world| {
            // A failure is allowed here, because the other CPU may temporarily hold all frames.
            let _taken = world.alloc(&Request::page());
        }),
    );
    world.check_to_the_last_frame();
}

/// Two CPUs refill and drain their pagesets from the same zone at the same time.
pub(crate) fn refill_and_drain<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &small(), Box::new(NoReclaimer));
    fn turn<C: Checker>(world: &World<C>) {
        let frame = world.page();
        world.free(frame);
        world.allocator().tick_cpu(CpuId::new(C::cpu()));
        world.allocator().drain_pagesets();
    }
    world.at_once(on(0, turn), on(1, turn));
    world.check_to_the_last_frame();
}

/// One CPU splits and merges blocks under the lock of their free area, while the other one refills and drains batches.
pub(crate) fn blocks_beside_batches<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 64)], &small(), Box::new(NoReclaimer));
    world.at_once(
        on(0, |world| {
            let order = Order::new(4).expect("it is small");
            if let Ok(block) = world.alloc(&Request::new(order)) {
                world.free_block(block);
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

/// A CPU goes offline while a thread still runs on it. No frame may remain in its pageset.
pub(crate) fn offline_in_use<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 32)], &small(), Box::new(NoReclaimer));
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

/// A CPU allocates and frees frames in bulk while another CPU drains its pageset and folds its counters.
pub(crate) fn bulk_against_drain<C: Checker>() {
    bulk_against(World::<C>::new(&[(&[0, 1], 32)], &small(), Box::new(NoReclaimer)), 1);
}

/// Runs [`bulk_against_drain`] in the world of a kernel.
pub(crate) fn pinned_bulk_against_drain<C: Checker>() {
    bulk_against(World::<C>::of_kernel(&[(&[0, 1], 32)], &small(), Box::new(NoReclaimer)), 1);
}

/// Like [`bulk_against_drain`], with restartable sequences. The other thread is on the same CPU.
pub(crate) fn sequenced_bulk_against_its_cpu<C: Checker>() {
    bulk_against(World::<C>::of_sequences(&[(&[0, 1], 32)], &small(), Box::new(NoReclaimer), CONTRACT), 0);
}

fn bulk_against<C: Checker>(world: Arc<World<C>>, cpu: u32) {
    let warm = world.page();
    world.free(warm);
    let served = Arc::new(AtomicU64::new(1)); // not part of the model
    let [of_bulk, of_single] = [0; 2].map(|_| Arc::clone(&served));
    world.at_once(
        on(0, move |world| {
            let mut frames = [Pfn::new(0); 3];
            let allocator = world.allocator();
            // A failure is allowed here, because the other CPU may temporarily hold all frames.
            let got = world.undisturbed(|| allocator.alloc_bulk(&Request::page(), &mut frames)).unwrap_or(0);
            let frames = &frames[..got];
            frames.iter().for_each(|&frame| world.own(frame, Order::PAGE));
            frames.iter().for_each(|&frame| world.disown(frame, Order::PAGE));
            world.undisturbed(|| allocator.free_bulk(frames)).expect("the frees are valid");
            of_bulk.fetch_add(got as u64, Relaxed); // relaxed: one operating-system thread runs them all
        }),
        on(cpu, move |world| {
            if let Ok(block) = world.alloc(&Request::page()) {
                world.free(block.first);
                of_single.fetch_add(1, Relaxed); // relaxed, as above
            }
            world.allocator().tick_cpu(CpuId::new(0));
            world.allocator().drain_pagesets();
        }),
    );
    let (locality, served) = (world.allocator().locality(), served.load(Relaxed));
    assert_eq!((locality.miss, locality.other), (0, 0), "{locality:?}");
    assert_eq!((locality.hit, locality.local), (served, served), "{locality:?}");
    world.check_to_the_last_frame();
}

fn small() -> Config {
    config(8)
}

/// All free frames form one block. A CPU refills its pageset from it while another CPU requests a block. There is memory
/// for both, although the block is counted nowhere while it moves.
pub(crate) fn block_beside_refill<C: Checker>() {
    let world = World::<C>::new(&[(&[0, 1], 128)], &config(4), Box::new(NoReclaimer));
    let pair = Request::new(Order::new(1).expect("it is small")).no_wait();
    world.at_once(
        on(0, |world| {
            world.page();
        }),
        on(1, move |world| {
            world.alloc(&pair).expect("there is memory");
        }),
    );
    world.check();
}
