//! `deaths [--stride N] [--most N] [--only NAME]` kills processes that share a pool at every Nth instruction of what they do. If a
//! survivor finds a fault, the program prints it and exits with code 1. `deaths --histories N` runs random histories of simulated
//! processes that die at any write instead, and `deaths --worlds` kills simulated processes at each write of their operations.
//! Related files: `deaths/` and `mortal/` have the tests.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::process::ExitCode;

use clap::Parser;
use zonal_linux::{Order, Pfn};
use zonal_verify::{deaths, mortal, nothing_found};

/// Operations of a history.
const OPERATIONS: u64 = 1000;

/// Kills processes that share a pool at every instruction of their operations, and checks what the others find.
#[derive(Parser)]
struct Options {
    /// Kill at every Nth instruction, or write.
    #[arg(long, default_value = "1")]
    stride: NonZeroUsize,
    /// At most this many deaths in an operation, spread over its instructions.
    #[arg(long, default_value_t = NonZeroUsize::MAX)]
    most: NonZeroUsize,
    /// Leave out operations with more instructions.
    #[arg(long, default_value_t = usize::MAX - 1)]
    longest: usize,
    /// Number of the first instruction.
    #[arg(long, default_value_t = 0)]
    from: usize,
    /// Only operations whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Run this many random histories instead, with seeds from --from on.
    #[arg(long, default_value_t = 0)]
    histories: usize,
    /// Kill simulated processes at the writes of their operations instead, from a few states, and others that recover from this.
    #[arg(long)]
    worlds: bool,
    /// With --worlds: kill the others at every Nth write.
    #[arg(long, default_value = "997")]
    second_stride: NonZeroUsize,
    #[arg(long, hide = true)]
    child: Option<String>,
    #[arg(long, hide = true)]
    file: Option<RawFd>,
    #[arg(long, hide = true)]
    named: bool,
    #[arg(long, hide = true)]
    given: Vec<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(name), Some(file)) = (&options.child, options.file) {
        // SAFETY: the parent has passed the open descriptor on.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let given: Option<Vec<_>> = options.given.iter().map(|text| block(text)).collect();
        deaths::child(name, file, options.named, &given.expect("the parent gives frames and orders"));
        return ExitCode::SUCCESS;
    }
    if options.histories > 0 {
        return histories(options.from as u64..(options.from + options.histories) as u64);
    }
    if options.worlds {
        return worlds(&options);
    }
    let sample = deaths::Sample {
        only: &options.only,
        from: options.from,
        stride: options.stride.get(),
        most: options.most.get(),
        longest: options.longest,
    };
    let died = deaths::run(&sample, |name, instructions, deaths| {
        println!(
            "{name}: {instructions} instructions, {} deaths, {} in sequences, {} frames given back",
            deaths.others, deaths.in_sequences, deaths.given_back
        );
    });
    match died {
        Ok(all) => {
            let line = format!(
                "deaths: nothing found after {} deaths, and {} in sequences ({} instructions not reached)",
                all.others, all.in_sequences, all.unreached
            );
            nothing_found(&line, all.others + all.in_sequences)
        }
        Err(found) => {
            eprintln!("deaths: {found}");
            ExitCode::FAILURE
        }
    }
}

fn histories(seeds: Range<u64>) -> ExitCode {
    let mut all = mortal::Sums::default();
    for seed in seeds {
        match mortal::run_random(seed, OPERATIONS) {
            Ok(one) => all.add(one),
            Err(found) => {
                eprintln!("deaths: {found}");
                return ExitCode::FAILURE;
            }
        }
    }
    nothing_found(&format!("histories: nothing found: {all}"), all.deaths)
}

fn worlds(options: &Options) -> ExitCode {
    let worlds = mortal::Worlds {
        only: &options.only,
        stride: options.stride.get(),
        most: options.most.get(),
        second_stride: options.second_stride.get(),
    };
    match worlds.run() {
        Ok(all) => nothing_found(&format!("worlds: nothing found: {all}"), all.first_deaths),
        Err(found) => {
            eprintln!("deaths: {found}");
            ExitCode::FAILURE
        }
    }
}

fn block(text: &str) -> Option<(Pfn, Order)> {
    let (first, order) = text.split_once(':')?;
    Some((Pfn::new(first.parse().ok()?), Order::new(order.parse().ok()?)?))
}
