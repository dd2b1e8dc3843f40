//! The hunt: random programs on small random machines, with every check on, until one of them fails.
//!
//! A *round* is one machine and its programs, all of it from one seed. Threads allocate and free in
//! *bouts*; at the *pause* after each, nothing is under way and everything is looked at. Some pauses
//! are *rests*: programs have given everything back before. Neighbours: `ground.rs` makes machines,
//! `yard.rs` is what threads share, `player.rs` what they do, `tinker.rs` changes settings under
//! them; `pause.rs`, `squeeze.rs` and `ledger.rs` check.

mod ground;
mod ledger;
mod pause;
mod player;
mod squeeze;
mod tinker;
mod yard;

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicBool;

use thiserror::Error;

use self::ground::Ground;
use self::yard::Yard;
use crate::checks::{Fault, panic_text};
use crate::hands::Hands;
use crate::sim::{RunError, SimulateError, Time};

/// What a hunt did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Rounds that ended without a fault.
    pub rounds: u64,
    /// Page operations in all of them.
    pub operations: u64,
    /// Their virtual time.
    pub time: Time,
}

/// Why a hunt ended early.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Failure {
    /// Something is wrong with the allocator. The same seed stops at the same operation again.
    #[error("hunt, seed {seed}: {fault}")]
    Caught {
        /// Seed of the round.
        seed: u64,
        /// What, and when it was noticed.
        fault: Fault,
    },
    /// The host cannot run a round.
    #[error("hunt, seed {seed}: {reason}")]
    NotRun {
        /// Seed of the round.
        seed: u64,
        /// Why.
        reason: SimulateError,
    },
}

/// Plays `rounds` rounds, the first with `seed` and each with the next one, or fewer when `stop` becomes
/// true. `progress` is told after each round what was done.
///
/// # Errors
/// The first fault.
pub fn hunt(
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
    let ground = Ground::new(seed);
    ground.machine.simulate(&ground.config, seed, |sim| {
        let hands = Hands::new(sim);
        let played = panic::catch_unwind(AssertUnwindSafe(|| Yard::new(&ground, &hands).play(stop)));
        let what = match played {
            Ok(Ok(time)) => return Ok(Ended::Done { operations: hands.operations(), time }),
            Ok(Err(RunError::Interrupted)) => return Ok(Ended::Interrupted),
            Ok(Err(error @ RunError::NoMemory { .. })) => return Err(error.into()),
            Ok(Err(error @ (RunError::Deadlock { .. } | RunError::TooLong))) => error.to_string(),
            Err(payload) => match payload.downcast::<Fault>() {
                Ok(fault) => return Ok(Ended::Fault(*fault)),
                Err(payload) => panic_text(&*payload),
            },
        };
        Ok(Ended::Fault(Fault { operation: hands.operation(), what }))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_that_ships_has_nothing_to_be_caught_at() {
        let tally = hunt(1, 12, |_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(tally.rounds, 12);
        assert!(tally.operations > 100_000 && tally.time > Time::from_seconds(12.0), "{tally:?}");
    }

    #[test]
    fn one_seed_is_one_run() {
        let run = |seed| hunt(seed, 1, |_| (), &AtomicBool::new(false)).unwrap();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn a_hunt_can_be_stopped() {
        let stop = AtomicBool::new(true);
        assert_eq!(hunt(1, 3, |_| (), &stop).unwrap().rounds, 0);
    }
}
