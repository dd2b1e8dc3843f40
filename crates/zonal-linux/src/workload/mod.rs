//! Workloads: what `run` and `bench` do to an allocator of pages, ours or another.
//!
//! Vocabulary: a *source* is one thread's way to an allocator; an *operation* is one take or one
//! give of a block; a *pair* is two operations, normally a take and its give; a *lane* is one
//! thread at work with its tally; a *routine* is what a lane repeats. Everything is generic over
//! the source and compiled for it: the measured path has no dynamic call.
//!
//! Neighbours: `driver.rs` starts and stops the lanes, `lane.rs` counts and times, `held.rs` moves frames, `batches.rs`,
//! `random.rs`, `orders.rs`, `fill.rs` and `handoff.rs` are the routines;
//! `pool_run.rs` is the source over our own pools.

mod batches;
mod cpu_time;
mod driver;
mod fill;
mod handoff;
mod held;
mod lane;
mod orders;
mod pool_run;
mod random;
#[cfg(test)]
mod tests;

use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use zonal::units::{Order, PageCount};

pub use self::driver::{Measurement, Progress};
pub use self::lane::Latency;
pub use self::pool_run::{PoolReport, run_on_pool};

/// One thread's way to an allocator of pages.
pub trait PageSource {
    /// What is held of a block: its number or its address. Another thread may give it back.
    type Page: Copy + Default + Send;

    /// Takes a block of `order`, or `None` when there is none.
    fn take(&mut self, order: Order) -> Option<Self::Page>;

    /// Gives back a block that was taken with this `order`.
    fn give(&mut self, page: Self::Page, order: Order);

    /// Stores to the first frame of a block. Only [`Workload::Touch`] asks for it.
    ///
    /// # Panics
    /// When there is no memory behind the pages, as with allocators that only keep numbers.
    fn touch(&mut self, _page: Self::Page) {
        panic!("this source has no memory behind its pages, so it cannot run `touch`");
    }

    /// Called on the source's own thread just before its measured part.
    fn measuring_begins(&mut self) {}

    /// Called on the source's own thread just after its measured part.
    fn measuring_ends(&mut self) {}
}

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
    fn share(&self) -> usize {
        let teams = self.workload.teams(self.threads) as u64;
        usize::try_from(self.pages.get() / teams).unwrap_or(usize::MAX)
    }

    /// Blocks of a batch that would like to have `wanted` frames.
    fn batch(&self, wanted: usize) -> usize {
        wanted.min(self.share() / 4 * 3).max(1)
    }

    fn random(&self, lane: usize) -> fastrand::Rng {
        let mut all = fastrand::Rng::with_seed(self.seed);
        for _ in 0..lane {
            all.u64(..);
        }
        all.fork()
    }

    fn lanes<R>(&self, make: impl FnMut(usize) -> R) -> Vec<R> {
        (0..self.threads.get()).map(make).collect()
    }
}

/// Runs `plan` until its time is over or `stop` becomes true, on one thread for each source that
/// `make_source` makes there; `on_progress` is called about twenty times a second. Everything taken
/// has been given back when this returns.
///
/// # Errors
/// When the system refuses a thread.
///
/// # Panics
/// When a source panics, or when the number of threads does not suit the workload.
pub fn run<S, M>(
    plan: &Plan,
    make_source: M,
    stop: &AtomicBool,
    on_progress: impl FnMut(Progress),
) -> io::Result<Measurement>
where
    S: PageSource,
    M: Fn(usize) -> S + Sync,
{
    let run = driver::Run { plan, make_source: &make_source, stop };
    match plan.workload {
        Workload::Pair => run.drive(plan.lanes(|_| batches::Pair), on_progress),
        Workload::Batch => run.drive(plan.lanes(|_| batches::Batch::last_first(plan)), on_progress),
        Workload::BatchRandom => {
            run.drive(plan.lanes(|lane| batches::Batch::shuffled(plan, lane)), on_progress)
        }
        Workload::Repeat => run.drive(plan.lanes(|_| batches::Repeat::<_, false>::new(plan)), on_progress),
        Workload::Touch => run.drive(plan.lanes(|_| batches::Repeat::<_, true>::new(plan)), on_progress),
        Workload::Random => run.drive(plan.lanes(|lane| random::Random::new(plan, lane)), on_progress),
        Workload::Orders => run.drive(plan.lanes(|lane| orders::Orders::new(plan, lane)), on_progress),
        Workload::Fill => run.drive(plan.lanes(|_| fill::Fill::new(plan)), on_progress),
        Workload::Handoff => run.drive(handoff::couples(plan), on_progress),
    }
}
