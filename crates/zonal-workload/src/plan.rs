//! What is run: the kinds of work, and a plan of one of them with its threads, time, size and seed.
//!
//! Neighbours: the routines (`batches.rs`, `random.rs`, `orders.rs`, `fill.rs`, `handoff.rs`) read their share of a plan.

use std::num::NonZeroUsize;
use std::time::Duration;

use zonal::units::PageCount;

/// The kinds of work. Counts are frames per thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Workload {
    /// As [`Workload::Repeat`], with a store to each frame: what users feel.
    #[default]
    Touch,
    /// One out, one back.
    Pair,
    /// 512 out, 512 back, the last first.
    Batch,
    /// 512 out, 512 back in random order.
    BatchRandom,
    /// 32768 out, all back in the order taken; will-it-scale's page_fault1 without the touching.
    Repeat,
    /// Half the pool is held; one at random goes back, one comes out.
    Random,
    /// One thread takes, another gives back, through a ring of their own.
    Handoff,
    /// Blocks of random orders 0..=9 at 50 to 70 % occupancy.
    Orders,
    /// The whole pool out, then back.
    Fill,
}

impl Workload {
    /// All workloads, the default first.
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

    /// The name people and scripts use.
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

    /// What each thread does, in a line.
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

    /// The workload called `name`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// In how many teams that each do whole pairs `threads` threads work: alone, or as couples where
    /// one takes and one gives; an odd one out is a team of its own.
    #[must_use]
    pub const fn teams(self, threads: NonZeroUsize) -> usize {
        match self {
            Self::Handoff => threads.get().div_ceil(2),
            _ => threads.get(),
        }
    }
}

/// Whether latencies of single operations are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Latencies {
    /// Of one step in 1021.
    #[default]
    Sampled,
    /// Of none: the measured part reads no clock at all.
    Off,
}

/// What to run, for how long and on how much.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The work each thread does.
    pub workload: Workload,
    /// Threads that work at the same time.
    pub threads: NonZeroUsize,
    /// Time of the measured part; preparing and giving everything back come on top. `fill` goes on
    /// until its pool is back: taking and giving cost differently, so that half of them would lie.
    pub duration: Duration,
    /// Time of the same work before the measured part. Whatever adapts to its load needs some.
    pub warm_up: Duration,
    /// Start of all random choices: the same seed makes each thread ask for the same.
    pub seed: u64,
    /// Frames in the pool, shared evenly by the threads. A batch is cut to three quarters of a
    /// thread's share, so that the work fits into small pools.
    pub pages: PageCount,
    /// Whether single operations are timed.
    pub latencies: Latencies,
}

impl Plan {
    /// Frames for one team.
    pub(crate) fn share(&self) -> usize {
        let teams = self.workload.teams(self.threads) as u64;
        usize::try_from(self.pages.get() / teams).unwrap_or(usize::MAX)
    }

    /// Blocks of a batch that would like to have `wanted` frames.
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
