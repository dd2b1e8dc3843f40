//! Runs random programs on random machines: `stress [SEED [ROUNDS]]`. Ends with 1 and one line when
//! a check has failed.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use zonal_lab::experiment;
use zonal_verify::stress;

/// Rounds, unless the command line says otherwise.
const ROUNDS: u64 = 200;

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).map(|number| number.parse()).collect::<Result<Vec<u64>, _>>()?;
    let seed = numbers.first().copied().unwrap_or(1);
    experiment::silence_faults();
    let rounds = numbers.get(1).copied().unwrap_or(ROUNDS);
    match stress::stress(seed, rounds, |_| (), &AtomicBool::new(false)) {
        Ok(tally) => {
            let stress::Tally { rounds, operations, time } = tally;
            println!("nothing caught in {rounds} rounds, {operations} operations, {time} of virtual time");
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            println!("{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}
