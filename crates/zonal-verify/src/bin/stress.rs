//! `stress [SEED [ROUNDS]]` runs random programs on random machines. If a check fails, the program prints one line and
//! exits with code 1.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use zonal_lab::experiment;
use zonal_verify::{nothing_found, stress};

/// Default number of rounds.
const ROUNDS: u64 = 200;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    let seed = numbers.first().copied().unwrap_or(1);
    experiment::silence_faults();
    let rounds = numbers.get(1).copied().unwrap_or(ROUNDS);
    match stress::stress(seed, rounds, |_| (), &AtomicBool::new(false)) {
        Ok(tally) => {
            let stress::Tally { rounds, operations, time } = tally;
            let line =
                format!("nothing caught in {rounds} rounds, {operations} operations, {time} of virtual time");
            Ok(nothing_found(&line, operations))
        }
        Err(failure) => {
            println!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}
