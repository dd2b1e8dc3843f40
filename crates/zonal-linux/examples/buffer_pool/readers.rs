//! Threads that read blocks, at random and in sequence, and check each of them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use zonal_linux::Pool;

use crate::cache::{BlockCache, Failure};
use crate::report::Timeline;

/// Blocks of a sequential read. One in as many reads is sequential, so about half of all blocks are.
const SEQUENCE: u64 = 64;
/// Interval between samples of the pool's state.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// How long and with how many threads to read.
pub(crate) struct Run {
    pub duration: Duration,
    pub threads: usize,
}

/// Result of a run.
pub(crate) struct Finished {
    pub timeline: Timeline,
    pub reads: u64,
    /// Blocks whose contents differed from those of the file.
    pub wrong: u64,
}

impl Run {
    /// Runs all threads and records samples in `timeline`.
    pub(crate) fn go(
        &self,
        pool: &Pool,
        cache: &BlockCache,
        mut timeline: Timeline,
    ) -> Result<Finished, Failure> {
        let stop = AtomicBool::new(false);
        let (mut reads, mut wrong) = (0, 0);
        thread::scope(|scope| {
            let read = || {
                // A thread that stops, with or without an error, stops all.
                let done = read_until(&stop, cache);
                stop.store(true, Relaxed); // relaxed: joining orders
                done
            };
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(read)).collect();
            let start = Instant::now();
            while start.elapsed() < self.duration && !stop.load(Relaxed) {
                thread::sleep(LOOK_PERIOD);
                timeline.look(pool, &cache.totals());
            }
            stop.store(true, Relaxed); // relaxed: only a flag
            for thread in threads {
                let (more, more_wrong) = thread.join().expect("a reader panicked")?;
                (reads, wrong) = (reads + more, wrong + more_wrong);
            }
            Ok(Finished { timeline, reads, wrong })
        })
    }
}

/// Reads until stopped; returns the number of blocks read, and how many of them were wrong.
fn read_until(stop: &AtomicBool, cache: &BlockCache) -> Result<(u64, u64), Failure> {
    let mut random = fastrand::Rng::new();
    let (mut reads, mut wrong) = (0, 0);
    while !stop.load(Relaxed) {
        for block in next_blocks(&mut random, cache.blocks()) {
            let pinned = cache.read(block)?;
            reads += 1;
            if !cache.is_block(block, &pinned) {
                eprintln!("block {block} does not hold what was written");
                wrong += 1;
            }
        }
    }
    Ok((reads, wrong))
}

/// Chooses one random block, low numbers more often, or sometimes a sequence from there.
fn next_blocks(random: &mut fastrand::Rng, blocks: u64) -> Range<u64> {
    let skewed = random.f64().powi(2);
    let first = ((skewed * blocks as f64) as u64).min(blocks - 1);
    let count = if random.u64(..SEQUENCE) == 0 { SEQUENCE } else { 1 };
    first..blocks.min(first + count)
}
