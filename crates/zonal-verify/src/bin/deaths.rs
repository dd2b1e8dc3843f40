//! `deaths [--stride N] [--most N] [--only NAME]` kills processes that share a pool at every Nth instruction of what they do. If a
//! survivor finds a fault, the program prints it and exits with code 1. Related files: `deaths/` has the test.

use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, RawFd};
use std::process::ExitCode;

use clap::Parser;
use zonal_linux::{Order, Pfn};
use zonal_verify::deaths;

/// Kills processes that share a pool at every instruction of their operations, and checks what the others find.
#[derive(Parser)]
struct Options {
    /// Kill at every Nth instruction.
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
    if let (Some(name), Some(file)) = (options.child, options.file) {
        // SAFETY: the parent has passed the open descriptor on.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        let given: Option<Vec<_>> = options.given.iter().map(|text| block(text)).collect();
        deaths::child(&name, file, options.named, &given.expect("the parent gives frames and orders"));
        return ExitCode::SUCCESS;
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
            println!(
                "deaths: nothing found after {} deaths, and {} in sequences ({} instructions not reached)",
                all.others, all.in_sequences, all.unreached
            );
            ExitCode::SUCCESS
        }
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
