//! Checks of the pool while no operation is in progress.

use std::sync::Barrier;
use std::thread;

use fastrand::Rng;
use zonal::config::InvalidFree;
use zonal::request::Block;
use zonal::rules::watermarks::Urgency;
use zonal::units::Order;
use zonal_linux::PoolRequest;

use super::owners::Owners;
use super::round::Round;
use super::shrinkers::Shrinkers;
use super::tally::Tally;
use super::worker::Worker;
use crate::stress::round::one_of;

/// Number of blocks in a pause that two threads free at once.
const RACES: usize = 16;
/// Rounds in which a race's third thread allocates and frees blocks.
const ROUNDS_BESIDE: usize = 4;
/// Maximum number of blocks that it allocates in each round.
const BLOCKS_BESIDE: usize = 64;

/// Walks the pool, and compares its accounting with the frames that threads and the cache hold. If the pool detects
/// invalid frees exactly, pairs of threads then free some blocks at once.
pub(super) fn look(
    round: &Round,
    workers: &mut [Worker<'_>],
    shrinkers: &Shrinkers,
    random: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let accounting = round.pool.verify().map_err(|error| error.to_string())?;
    tally.verified += 1;
    let held = workers.iter().map(Worker::frames).sum::<u64>() + shrinkers.held();
    tally.held_max = tally.held_max.max(held);
    let allocated = accounting.allocated.get();
    let zones = round.pool.zones().count() as u64;
    let waiting = round.config.hardening.quarantine.get() * zones;
    if !accounting.balance() || allocated < held || allocated > held + waiting {
        return Err(format!(
            "{held} frames are held, {waiting} may wait in quarantine; accounting: {accounting:?}"
        ));
    }
    if round.config.invalid_free == InvalidFree::Exact {
        for _ in 0..RACES {
            let worker = random.usize(..workers.len());
            if let Some(block) = workers[worker].hand_over() {
                race(round, &block, random)?;
                tally.faults.raced_frees += 1;
            }
        }
    }
    Ok(())
}

/// Frees one block on two threads, while a third one drains pagesets and allocates blocks, which may contain the freed
/// block. Exactly one of the two frees must succeed, even if the other one comes much later, and the third thread's
/// blocks must stay intact.
///
/// The third thread allocates no block of the same order, because a late free of such a block could not be
/// distinguished from the free by its owner.
fn race(round: &Round, block: &Block, random: &mut Rng) -> Result<(), String> {
    let barrier = Barrier::new(3);
    let free = || {
        barrier.wait();
        // SAFETY: no `Frames` owns the block, and the pool refuses one of the two frees.
        unsafe { round.pool.free_raw(block.first, block.order) }
    };
    let orders: Vec<_> = (0..=round.config.max_order.get()).filter_map(Order::new).collect();
    let others: Vec<_> = orders.into_iter().filter(|&order| order != block.order).collect();
    let order = one_of(random, &others);
    let (one, other) = thread::scope(|scope| {
        let (one, other) = (scope.spawn(free), scope.spawn(free));
        barrier.wait();
        for _ in 0..ROUNDS_BESIDE {
            round.pool.drain_pagesets();
            take_and_free(round, order);
        }
        (one.join().expect("freeing does not panic"), other.join().expect("freeing does not panic"))
    });
    if one.is_ok() == other.is_ok() {
        return Err(format!("{block:?} was freed by two at once: {one:?}, {other:?}"));
    }
    Ok(())
}

/// Allocates some blocks of an order, or as many as the pool has, and frees each.
fn take_and_free(round: &Round, order: Order) {
    let request = PoolRequest::new(order).urgency(Urgency::High).no_wait();
    let taken: Vec<_> = (0..BLOCKS_BESIDE).map_while(|_| round.pool.alloc_raw(&request).ok()).collect();
    for block in taken {
        // SAFETY: this function allocated the block without `Frames`, and this is its only free.
        let freed = unsafe { round.pool.free_raw(block.first, block.order) };
        freed.unwrap_or_else(|error| panic!("a live block was touched by a free of another: {error}"));
    }
}

/// Checks that only blocks in quarantine are allocated, after all owners have freed their blocks.
pub(super) fn nothing_is_left(round: &Round, owners: &Owners) -> Result<(), String> {
    let accounting = round.pool.verify().map_err(|error| error.to_string())?;
    let zones = round.pool.zones().count() as u64;
    let waiting = round.config.hardening.quarantine.get() * zones;
    let owned = owners.ledger.owned().count();
    if owned != 0 || accounting.allocated.get() > waiting || !accounting.balance() {
        return Err(format!("all blocks were freed, but {owned} frames have owners; {accounting:?}"));
    }
    Ok(())
}
