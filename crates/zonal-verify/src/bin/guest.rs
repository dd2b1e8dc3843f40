//! `guest [WORD...] [--may-change-machine]` checks pools on a machine with several nodes.
//!
//! The program prints one line for each check: `ok NAME`, `not ok NAME: why` or `skipped NAME: why`. Its exit code is 1
//! if a check failed. It is designed for a virtual machine, such as the one that `cargo xtask numa` boots.
//!
//! Related files: `guest/` has the checks.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use zonal_verify::guest::{CHECKS, Check, Effect, Found, PREDICTIONS, Verdict, without_membarrier};

/// Exit code for invalid command-line arguments.
const BAD_USAGE: u8 = 2;

/// Checks on which nodes of this machine the pools' pages are, and how pools work if the kernel refuses system calls.
#[derive(Parser)]
struct Options {
    /// Only checks with one of these words in their names
    words: Vec<String>,
    /// Also run checks that take CPUs and memory offline, or write settings of the kernel
    #[arg(long)]
    may_change_machine: bool,
    /// Check only pools for which `membarrier` fails with this error number
    #[arg(long, value_name = "ERRNO")]
    refuse_membarrier: Option<i32>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(error) = options.refuse_membarrier {
        return ended(print_verdict("without membarrier", without_membarrier(error), Instant::now()));
    }
    let is_named = |check: &Check| {
        options.words.is_empty() || options.words.iter().any(|word| check.name.contains(word.as_str()))
    };
    let checks: Vec<Check> = [PREDICTIONS].into_iter().chain(CHECKS).filter(is_named).collect();
    if checks.is_empty() {
        eprintln!("guest: no check has one of {:?} in its name", options.words);
        return ExitCode::from(BAD_USAGE);
    }
    let mut holds = true;
    for check in checks {
        let begin = Instant::now();
        let verdict = if check.effect == Effect::ChangesTheMachine && !options.may_change_machine {
            Ok(Found::Skipped("it changes the machine, which --may-change-machine allows".into()))
        } else {
            check.run()
        };
        holds &= print_verdict(check.name, verdict, begin);
    }
    ended(holds)
}

/// Prints the result of a check, and returns whether the check passed.
fn print_verdict(name: &str, verdict: Verdict, begin: Instant) -> bool {
    let one_line = |text: String| text.replace('\n', " ");
    let seconds = begin.elapsed().as_secs_f64();
    match verdict {
        Ok(Found::Holds(detail)) => println!("ok {name} ({seconds:.1} s): {}", one_line(detail)),
        Ok(Found::Skipped(why)) => println!("skipped {name}: {}", one_line(why)),
        Err(why) => {
            println!("not ok {name}: {}", one_line(why));
            return false;
        }
    }
    true
}

fn ended(holds: bool) -> ExitCode {
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
