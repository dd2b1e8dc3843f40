//! The description of a run: the kinds of work, and a plan with one of them and its threads, time, size and seed.
//!
//! Related files: the routines in `batches.rs`, `random.rs`, `orders.rs`, `fill.rs` and `handoff.rs` read their share
//! of a plan.

use std::num::NonZeroUsize;
use std::time::Duration;

use zonal::units::PageCount;

/// The kinds of work. Counts are frames per thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workload {
    /// Like [`Workload::Repeat`], with a store to each frame, as a program that uses the memory does.
    #[default]
    Touch,
    /// Allocate one frame and free it.
    Pair,
    /// Allocate 512 frames and free them in reverse order.
    Batch,
    /// Allocate 512 frames and free them in random order.
    BatchRandom,
    /// Allocate 32768 frames and free them in the order of allocation, like page_fault1 of will-it-scale without its
    /// stores.
    Repeat,
    /// Hold half the pool. Repeatedly free a random frame and allocate another.
    Random,
    /// One thread allocates and another frees, with a ring for each couple.
    Handoff,
    /// Allocate and free blocks of random orders 0 to 9 at 50 to 70 % occupancy.
    Orders,
    /// Allocate the whole pool and free it.
    Fill,
}

impl Workload {
    /// All workloads. The default is first.
    pub const ALL: [Self; 9] = [
        Self::Touch,
        Self::Pair,
        Self::Batch,
        Self::BatchRandom,
        Self::Repeat,
        Self::Random,
        Self::Handoff,
        Self::Orders,
        Self::Fill,
    ];

    /// Returns the name that users and scripts use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Touch => "touch",
            Self::Pair => "pair",
            Self::Batch => "batch",
            Self::BatchRandom => "batch-random",
            Self::Repeat => "repeat",
            Self::Random => "random",
            Self::Handoff => "handoff",
            Self::Orders => "orders",
            Self::Fill => "fill",
        }
    }

    /// Returns a one-line summary of each thread's work.
    #[must_use]
    pub const fn summary(self) -> &'static str {
        match self {
            Self::Touch => "32768 frames out, a store to each, all back",
            Self::Pair => "one frame out, one back",
            Self::Batch => "512 frames out, 512 back, the last first",
            Self::BatchRandom => "512 frames out, 512 back in random order",
            Self::Repeat => "32768 frames out, all back",
            Self::Random => "hold half the pool, give one frame at random back and take one",
            Self::Handoff => "one thread takes frames, another gives them back",
            Self::Orders => "blocks of 1 to 512 frames, 50 to 70 % of the pool in use",
            Self::Fill => "the whole pool out, then back",
        }
    }

    /// Returns the workload called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Returns the number of teams in which `threads` threads work. A team does whole pairs, and is a single thread or
    /// a couple of an allocating and a freeing thread. An odd thread is a team of its own.
    #[must_use]
    pub const fn teams(self, threads: NonZeroUsize) -> usize {
        match self {
            Self::Handoff => threads.get().div_ceil(2),
            _ => threads.get(),
        }
    }
}

/// Whether latencies of single operations are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Latencies {
    /// Latencies are measured in one step of 1021.
    #[default]
    Sampled,
    /// No latencies are measured, and the measured part never reads a clock.
    Off,
}

/// The work of a run, its duration and the size of its pool.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Work that each thread does.
    pub workload: Workload,
    /// Number of threads that work at the same time.
    pub threads: NonZeroUsize,
    /// Time of the measured part, not including preparation and the final frees. `fill` continues until its pool is
    /// free again, because a partial round would distort the result if allocating and freeing differ in cost.
    pub duration: Duration,
    /// Time for which the same work runs before the measured part, for allocators that adapt to their load.
    pub warm_up: Duration,
    /// Seed of all random choices. With the same seed, each thread makes the same requests.
    pub seed: u64,
    /// Frames in the pool, shared evenly by the threads. A batch is limited to three quarters of a thread's share,
    /// so that the work fits into small pools.
    pub pages: PageCount,
    /// Whether single operations are timed.
    pub latencies: Latencies,
}

impl Plan {
    /// Returns the frames for one team.
    pub(crate) fn share(&self) -> usize {
        let teams = self.workload.teams(self.threads) as u64;
        usize::try_from(self.pages.get() / teams).unwrap_or(usize::MAX)
    }

    /// Returns the frame count of a batch that should have `wanted` frames.
    pub(crate) fn batch(&self, wanted: usize) -> usize {
        wanted.min(self.share() / 4 * 3).max(1)
    }

    pub(crate) fn random(&self, lane: usize) -> fastrand::Rng {
        let mut all = fastrand::Rng::with_seed(self.seed);
        for _ in 0..lane {
            all.u64(..);
        }
        all.fork()
    }

    pub(crate) fn lanes<R>(&self, make: impl FnMut(usize) -> R) -> Vec<R> {
        (0..self.threads.get()).map(make).collect()
    }
}
