//! Threads that read blocks, at random and in sequence, and check each block.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use zonal_linux::Pool;

use crate::cache::{BlockCache, Failure};
use crate::report::Timeline;

/// Length of a sequential read in blocks. One read in this many is sequential, so about half of all blocks are read
/// in sequence.
const SEQUENCE: u64 = 64;
/// Interval between samples of the pool's state.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Duration and thread count of a run.
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
    /// Durations of all requests for a frame, in nanoseconds.
    pub requests: Histogram<u64>,
}

/// What one thread read.
struct Read {
    blocks: u64,
    wrong: u64,
    requests: Histogram<u64>,
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
        let (mut reads, mut wrong, mut requests) = (0, 0, durations());
        thread::scope(|scope| {
            let read = || {
                // A thread that stops, with or without an error, stops all threads.
                let done = read_until(&stop, cache);
                stop.store(true, Relaxed); // relaxed: the join orders the results
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
                let read = thread.join().expect("a reader panicked")?;
                (reads, wrong) = (reads + read.blocks, wrong + read.wrong);
                requests.add(&read.requests).expect("both have the same bounds");
            }
            Ok(Finished { timeline, reads, wrong, requests })
        })
    }
}

/// Returns an empty histogram of durations up to 10 s, with an error of at most 1 %.
fn durations() -> Histogram<u64> {
    Histogram::new_with_max(10_000_000_000, 2).expect("the bounds are valid")
}

/// Reads until stopped.
fn read_until(stop: &AtomicBool, cache: &BlockCache) -> Result<Read, Failure> {
    let mut random = fastrand::Rng::new();
    let mut read = Read { blocks: 0, wrong: 0, requests: durations() };
    while !stop.load(Relaxed) {
        for block in next_blocks(&mut random, cache.blocks()) {
            let pinned = cache.read(block, &mut read.requests)?;
            read.blocks += 1;
            if !cache.is_block(block, &pinned) {
                eprintln!("block {block} does not hold what was written");
                read.wrong += 1;
            }
        }
    }
    Ok(read)
}

/// Chooses a random block, preferring low numbers, or sometimes a sequence of blocks that starts there.
fn next_blocks(random: &mut fastrand::Rng, blocks: u64) -> Range<u64> {
    let skewed = random.f64().powi(2);
    let first = ((skewed * blocks as f64) as u64).min(blocks - 1);
    let count = if random.u64(..SEQUENCE) == 0 { SEQUENCE } else { 1 };
    first..blocks.min(first + count)
}
