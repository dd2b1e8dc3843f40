//! What is looked at while nothing is under way.

use std::sync::Barrier;
use std::thread;

use fastrand::Rng;
use zonal::config::Misuse;
use zonal::request::Block;

use super::Tally;
use super::ground::Ground;
use super::holder::Holder;
use super::owners::Owners;
use super::shrinkers::Shrinkers;

/// Blocks freed twice at once in a pause.
const RACES: usize = 4;

/// Walks the pool, and holds its books against what threads and the cache have. Where misuse is detected
/// exactly, some blocks are then freed by two threads at once.
pub(super) fn look(
    ground: &Ground,
    holders: &mut [Holder<'_>],
    shrinkers: &Shrinkers,
    random: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let books = ground.pool.verify().map_err(|error| error.to_string())?;
    tally.verified += 1;
    let held = holders.iter().map(Holder::frames).sum::<u64>() + shrinkers.held();
    tally.held_max = tally.held_max.max(held);
    let allocated = books.allocated.get();
    let zones = ground.pool.zones().count() as u64;
    let waiting = ground.config.hardening.quarantine.get() * zones;
    if !books.balance() || allocated < held || allocated > held + waiting {
        return Err(format!("{held} frames are held, {waiting} may wait in quarantine; books: {books:?}"));
    }
    if ground.config.misuse == Misuse::Exact {
        for _ in 0..RACES {
            let holder = random.usize(..holders.len());
            if let Some(block) = holders[holder].hand_over() {
                race(ground, &block)?;
                tally.faults.raced_frees += 1;
            }
        }
    }
    Ok(())
}

/// Two threads free one block: exactly one of them may.
fn race(ground: &Ground, block: &Block) -> Result<(), String> {
    let barrier = Barrier::new(2);
    let free = || {
        barrier.wait();
        // SAFETY: nobody owns the block as `Frames`; one of the two must be refused.
        unsafe { ground.pool.free_raw(block.first, block.order) }
    };
    let (one, other) = thread::scope(|scope| {
        let other = scope.spawn(free);
        (free(), other.join().expect("freeing does not panic"))
    });
    if one.is_ok() == other.is_ok() {
        return Err(format!("{block:?} was freed by two at once: {one:?}, {other:?}"));
    }
    Ok(())
}

/// When everything was given back, nothing is allocated but what waits in quarantine.
pub(super) fn nothing_is_left(ground: &Ground, owners: &Owners) -> Result<(), String> {
    let books = ground.pool.verify().map_err(|error| error.to_string())?;
    let zones = ground.pool.zones().count() as u64;
    let waiting = ground.config.hardening.quarantine.get() * zones;
    if owners.owned() != 0 || books.allocated.get() > waiting || !books.balance() {
        return Err(format!("all was given back, yet {} frames have owners; {books:?}", owners.owned()));
    }
    Ok(())
}
