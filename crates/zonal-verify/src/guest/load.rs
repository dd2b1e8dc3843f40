//! Threads that allocate, stamp and free frames while a check changes the machine.
//!
//! The *stamp* of a frame is a number that identifies the allocation. A thread checks it before it frees the frame, and
//! so notices a frame that was allocated twice or that lost its contents.
//!
//! Related files: `cpus.rs` and `memory_blocks.rs` change the machine meanwhile.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use zonal_linux::{Frames, Pool, PoolRequest};

use super::pages::all_free;
use super::verdict::{ensure, text};

/// Maximum number of frames that a thread holds.
const HELD_MAX: usize = 200;
/// Minimum number of each thread's rounds after the change, so that the pool is used afterwards too.
const ROUNDS_AFTER: u64 = 20;

/// Runs `happens` while `threads` threads allocate from `pool` with `request`. Returns the result of `happens`, and the
/// number of frames that the threads allocated meanwhile.
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
        // Relaxed: the flag only ends loops and publishes no data.
        stop.store(true, Relaxed);
        let used: Result<Vec<u64>, String> = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        (happened, used)
    });
    let (happened, used) = (happened?, used?.into_iter().sum());
    all_free(pool)?;
    ensure!(pool.events().retired == 0, "frames were allocated twice");
    Ok((happened, used))
}

/// Allocates and frees until `stop` is set, and for a few more rounds. Returns the number of frames allocated.
fn use_frames(pool: &Pool, request: &PoolRequest<'_>, id: usize, stop: &AtomicBool) -> Result<u64, String> {
    let mut random = fastrand::Rng::with_seed(id as u64);
    let mut held: Vec<(Frames, u64)> = Vec::new();
    let (mut used, mut after) = (0, 0);
    while after < ROUNDS_AFTER {
        // Relaxed: the flag only ends the loop and publishes no data.
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

/// Checks that both copies of the stamp, at the start and at the end of the frames, are unchanged.
fn check((frames, stamp): &(Frames, u64)) -> Result<(), String> {
    let (start, end) = (&frames[..8], &frames[frames.len() - 8..]);
    let is_there = start == stamp.to_ne_bytes() && end == stamp.to_ne_bytes();
    ensure!(is_there, "frame {:?} of stamp {stamp:#x} holds {start:?} and {end:?}", frames.first());
    Ok(())
}
