//! Stress test: runs random programs on small random machines, with all checks enabled, until a check fails.
//!
//! A *round* is one machine and its programs, all generated from one seed. Threads allocate and free in *phases*. After
//! each phase is a *pause*, in which no operation is in progress and everything is checked. Before some pauses, called
//! *rests*, the programs free everything.
//!
//! Related files: `round.rs` generates machines and `world.rs` has the state that threads share. `course.rs` runs the
//! threads, `worker.rs` has their work, `mutator.rs` changes settings meanwhile, and `fences.rs` fences ranges and retires
//! frames. `pause.rs`, `full_nodes.rs`, `accounting.rs` and `unused_counts.rs` contain the checks.

mod accounting;
mod course;
mod fences;
mod full_nodes;
mod mutator;
mod pause;
pub(crate) mod round;
mod unused;
mod unused_counts;
mod worker;
mod world;

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;

use thiserror::Error;
use zonal_lab::checks::{Fault, panic_text};
use zonal_lab::sim::{RunError, SimulateError, Time};
use zonal_lab::system::System;

use self::round::Round;
use self::world::World;

/// The amount of work that a run does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Rounds that ended without a fault.
    pub rounds: u64,
    /// Page operations in all these rounds.
    pub operations: u64,
    /// Total virtual time of these rounds.
    pub time: Time,
}

/// Why a run ended early.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Failure {
    /// A check of the allocator failed. The same seed fails at the same operation again.
    #[error("stress, seed {seed}: {fault}")]
    Caught {
        /// Seed of the round.
        seed: u64,
        /// The failed check, and the operation at which it failed.
        fault: Fault,
    },
    /// The host could not run a round.
    #[error("stress, seed {seed}: {reason}")]
    NotRun {
        /// Seed of the round.
        seed: u64,
        /// Reason of the failure.
        reason: SimulateError,
    },
}

/// Runs `rounds` rounds, or fewer if `stop` becomes true. The first round uses `seed`, and each later one the next
/// number. Calls `progress` after each round with the totals so far.
///
/// # Errors
/// Returns the first fault, or the reason why the host could not run a round.
pub fn stress(
    seed: u64,
    rounds: u64,
    mut progress: impl FnMut(&Tally),
    stop: &AtomicBool,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    for seed in (0..rounds).map(|round| seed.wrapping_add(round)) {
        match round(seed, stop) {
            Ok(Ended::Done { operations, time }) => {
                tally.rounds += 1;
                tally.operations += operations;
                tally.time += time;
                progress(&tally);
            }
            Ok(Ended::Interrupted) => break,
            Ok(Ended::Fault(fault)) => return Err(Failure::Caught { seed, fault }),
            Err(reason) => return Err(Failure::NotRun { seed, reason }),
        }
    }
    Ok(tally)
}

/// How a round ended.
enum Ended {
    Done { operations: u64, time: Time },
    Interrupted,
    Fault(Fault),
}

fn round(seed: u64, stop: &AtomicBool) -> Result<Ended, SimulateError> {
    play(seed, stop, |_| ())
}

/// Plays a round. Calls `harm` before the checks of each pause, with which tests do what a fault of the allocator would do.
fn play(seed: u64, stop: &AtomicBool, harm: fn(&World<'_, '_, '_, '_>)) -> Result<Ended, SimulateError> {
    let round = Round::new(seed);
    round.machine.simulate(&round.config, seed, |sim| {
        let system = System::new(sim);
        let played = panic::catch_unwind(AssertUnwindSafe(|| World::new(&round, &system).run(stop, harm)));
        let what = match played {
            Ok(Ok(time)) => return Ok(Ended::Done { operations: system.operations(), time }),
            Ok(Err(RunError::Interrupted)) => return Ok(Ended::Interrupted),
            Ok(Err(error @ RunError::NoMemory { .. })) => return Err(error.into()),
            Ok(Err(error @ (RunError::Deadlock { .. } | RunError::TooLong))) => error.to_string(),
            Err(payload) => match payload.downcast::<Fault>() {
                Ok(fault) => return Ok(Ended::Fault(*fault)),
                Err(payload) => panic_text(&*payload),
            },
        };
        Ok(Ended::Fault(Fault { operation: system.operation(), what }))
    })?
}

#[cfg(test)]
mod tests {
    use zonal::Request;

    use super::*;

    #[test]
    fn the_unchanged_allocator_passes() {
        let tally = stress(1, 8, |_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(tally.rounds, 8);
        assert!(tally.operations > 100_000 && tally.time > Time::from_seconds(8.0), "{tally:?}");
    }

    #[test]
    fn a_frame_that_is_lost_or_taken_back_is_noticed() {
        let [lost, taken_back]: [fn(&World<'_, '_, '_, '_>); 2] = [
            |world| assert!(world.allocator().alloc(&Request::page()).is_ok()),
            |world| {
                if let Some(held) = world.left.borrow().first() {
                    assert!(world.allocator().free(held.block.first, held.block.order).is_ok());
                }
            },
        ];
        for harm in [lost, taken_back] {
            let ended = play(1, &AtomicBool::new(false), harm).unwrap();
            let Ended::Fault(fault) = ended else { panic!("nothing was noticed") };
            // Not a harm that could not be done, whose panic is a fault, too.
            assert!(fault.what.contains("but the allocator counts"), "{fault}");
        }
    }

    #[test]
    fn one_seed_is_one_run() {
        let run = |seed| stress(seed, 1, |_| (), &AtomicBool::new(false)).unwrap();
        let first = run(7);
        assert_eq!(first, run(7));
        assert_ne!(first, run(8));
    }

    #[test]
    fn a_run_can_be_stopped() {
        let stop = AtomicBool::new(true);
        assert_eq!(stress(1, 3, |_| (), &stop).unwrap().rounds, 0);
    }
}
