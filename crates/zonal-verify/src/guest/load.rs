//! Threads that allocate, stamp and free while something happens to the machine.
//!
//! A frame's stamp is its holder's; a frame that two holders have, or that lost its contents, is found when its
//! holder frees it. Neighbours: `cpus.rs` and `memory_blocks.rs` make things happen.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use zonal_linux::{Frames, Pool, PoolRequest};

use super::pages::all_free;
use super::verdict::{ensure, text};

/// Frames that a thread holds at most.
const HELD_MAX: usize = 200;
/// Rounds that each thread goes at least after what happened, so that it was seen to go on.
const ROUNDS_AFTER: u64 = 20;

/// Lets `threads` threads use `pool` by `request` while `happens` runs. Returns what `happens` does, and how
/// many frames were allocated meanwhile.
pub(super) fn while_used<R>(
    pool: &Pool,
    request: &PoolRequest<'_>,
    threads: usize,
    happens: impl FnOnce() -> Result<R, String>,
) -> Result<(R, u64), String> {
    let stop = AtomicBool::new(false);
    let (happened, used) = thread::scope(|scope| {
        let work = |id: usize| {
            let stop = &stop;
            move || use_frames(pool, request, id, stop)
        };
        let running: Vec<_> = (0..threads).map(|id| scope.spawn(work(id))).collect();
        let happened = happens();
        // Relaxed: it only ends loops.
        stop.store(true, Relaxed);
        let used: Result<Vec<u64>, String> = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (happened, used)
    });
    let (happened, used) = (happened?, used?.into_iter().sum());
    all_free(pool)?;
    ensure!(pool.events().retired == 0, "frames were doubled");
    Ok((happened, used))
}

/// Allocates and frees until `stop` is set, and a few rounds more. Returns how many frames were allocated.
fn use_frames(pool: &Pool, request: &PoolRequest<'_>, id: usize, stop: &AtomicBool) -> Result<u64, String> {
    let mut random = fastrand::Rng::with_seed(id as u64);
    let mut held: Vec<(Frames, u64)> = Vec::new();
    let (mut used, mut after) = (0, 0);
    while after < ROUNDS_AFTER {
        // Relaxed: the flag only ends the loop.
        after += u64::from(stop.load(Relaxed));
        for _ in 0..random.usize(1..HELD_MAX) {
            let mut frames = pool.alloc(request).map_err(text)?;
            used += 1;
            let stamp = (id as u64) << 48 | used;
            frames[..8].copy_from_slice(&stamp.to_ne_bytes());
            let end = frames.len() - 8;
            frames[end..].copy_from_slice(&stamp.to_ne_bytes());
            held.push((frames, stamp));
            if held.len() > HELD_MAX {
                check(&held.swap_remove(random.usize(..HELD_MAX)))?;
            }
        }
        for _ in 0..random.usize(..=held.len()) {
            check(&held.swap_remove(random.usize(..held.len())))?;
        }
    }
    held.iter().try_for_each(check)?;
    Ok(used)
}

/// Checks that the stamp is still there.
fn check((frames, stamp): &(Frames, u64)) -> Result<(), String> {
    let (start, end) = (&frames[..8], &frames[frames.len() - 8..]);
    let is_there = start == stamp.to_ne_bytes() && end == stamp.to_ne_bytes();
    ensure!(is_there, "frame {:?} of stamp {stamp:#x} holds {start:?} and {end:?}", frames.first());
    Ok(())
}
