//! Soak test: uses pools of this machine's memory with all operations and faults at once, for any length of time.
//!
//! A *round* is a pool with random settings, its threads, its reclaimers and a mutator that changes settings meanwhile,
//! all generated from one seed. Threads work in *phases*, and after each phase is a *pause*. At the start of a pause,
//! two threads contend for one CPU's pageset, which is called a *duel*. Then no operation is in progress: `verify`
//! walks the pool, the accounting must agree with the frames that threads hold, and pairs of threads free some blocks
//! at once. Every few rounds on the host are followed by a round of `stress` on a simulated machine.
//!
//! Related files: `round.rs` makes pools, `worker.rs` is a thread, and `owners.rs` records the owner of each frame.
//! `mutator.rs` changes settings, `resizer.rs` shrinks, grows and trims pools, `remote.rs` works on other CPUs' pagesets,
//! and `shrinkers.rs` has the reclaimers. `second_mapping.rs` maps shared memory again. `pause.rs` has the checks of a pause.

mod mutator;
mod owners;
mod pause;
mod remote;
mod resizer;
mod round;
mod second_mapping;
mod shrinkers;
mod tally;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use fastrand::Rng;

use self::mutator::Mutator;
use self::owners::Owners;
use self::remote::RemoteWorker;
use self::resizer::Resizer;
use self::round::Round;
use self::shrinkers::Shrinkers;
pub use self::tally::{Faults, Tally};
use self::worker::Worker;
use crate::stress;

/// The amount of work in a round on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Number of phases in a round.
    pub phases: u32,
    /// Operations of a thread in a phase.
    pub steps: u32,
    /// Duration of a duel.
    pub duel: Duration,
}

impl Pace {
    /// The pace of a run that takes hours.
    pub const LONG: Self = Self { phases: 12, steps: 20_000, duel: Duration::from_millis(500) };
    /// The pace of a run that takes seconds.
    pub const SHORT: Self = Self { phases: 3, steps: 1000, duel: Duration::from_millis(20) };
}

/// Rounds on the host for each round of `stress`.
const HOST_ROUNDS: u64 = 4;

/// Runs rounds until `stop` becomes true. The first round uses `seed`, and each later one the next number. Calls
/// `progress` after each round.
///
/// # Errors
/// Returns the first failed check, with the round's seed. The scheduling of threads on the host differs between runs,
/// so the same seed may need several runs to fail again. Failures on simulated machines are exactly reproducible.
pub fn soak(
    seed: u64,
    pace: Pace,
    stop: &AtomicBool,
    mut progress: impl FnMut(&Tally),
) -> Result<Tally, String> {
    let mut tally = Tally::default();
    // Relaxed: the flag only ends the loop and publishes no data.
    for round in (0..).take_while(|_| !stop.load(Relaxed)) {
        let seed = seed.wrapping_add(round);
        if round % (HOST_ROUNDS + 1) == HOST_ROUNDS {
            let done = stress::stress(seed, 1, |_| (), stop).map_err(|failure| failure.to_string())?;
            tally.simulated += done.operations;
            tally.rounds += done.rounds;
        } else {
            let played = catch_unwind(AssertUnwindSafe(|| host_round(seed, pace, stop, &mut tally)));
            played.map_err(|_| format!("soak, seed {seed}: a check failed, see above"))??;
            tally.rounds += 1;
        }
        progress(&tally);
    }
    Ok(tally)
}

/// Runs a round on a pool of this machine's memory.
fn host_round(seed: u64, pace: Pace, stop: &AtomicBool, tally: &mut Tally) -> Result<(), String> {
    let round = Round::new(seed).map_err(|error| format!("soak, seed {seed}: no pool: {error}"))?;
    let found = |what: String| format!("soak, seed {seed}, {round}: {what}");
    let owners = Owners::new(&round.pool, round.is_shared);
    let owners = Arc::new(owners.map_err(|error| found(format!("no second mapping: {error}")))?);
    let shrinkers = Shrinkers::register(&round.pool, &owners, seed);
    let mut workers: Vec<Worker<'_>> =
        (0..round.threads).map(|at| Worker::new(&round, &owners, &shrinkers, seed, at)).collect();
    let mut mutator = Mutator::new(&round, seed);
    let mut remote = RemoteWorker::new(&round, seed);
    let mut resizer = Resizer::new(&round, seed);
    let mut random = Rng::with_seed(!seed);
    for _ in 0..pace.phases {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let others = [
                scope.spawn(|| mutator.work_until(&over)),
                scope.spawn(|| remote.work_until(&over)),
                scope.spawn(|| resizer.work_until(&over)),
            ];
            let working: Vec<_> =
                workers.iter_mut().map(|worker| scope.spawn(|| worker.phase(pace.steps))).collect();
            let ended: Vec<_> = working.into_iter().map(thread::ScopedJoinHandle::join).collect();
            over.store(true, Relaxed); // relaxed: it only ends a loop
            let others = others.map(thread::ScopedJoinHandle::join);
            ended.into_iter().chain(others).collect::<Result<(), _>>()
        })
        .map_err(|_| found("a thread's check failed, see above".to_owned()))?;
        remote.duel(pace.duel);
        pause::look(&round, &mut workers, &shrinkers, &mut random, tally).map_err(&found)?;
        if stop.load(Relaxed) {
            break;
        }
    }
    mutator.restore().map_err(&found)?;
    resizer.restore().map_err(&found)?;
    for worker in &mut workers {
        worker.give_all();
        tally.operations += worker.operations();
        tally.faults.add(worker.faults());
    }
    shrinkers.give_all();
    tally.faults.add(&shrinkers.faults());
    tally.faults.add(mutator.faults());
    tally.faults.add(resizer.faults());
    tally.shared_rounds += u64::from(round.is_shared);
    tally.visits += remote.visits();
    tally.faults.panics += round.pool.reclaimer_panics();
    pause::nothing_is_left(&round, &owners).map_err(found)
}
