//! `zonal mechanisms`: measures what each of the allocator's mechanisms gains and costs, off and on.
//!
//! The arguments are converted to a list of mechanisms, and the measurements are printed. Neighbours:
//! `zonal_bench::mechanisms` does the work; `mechanisms/text.rs` and `mechanisms/json.rs` print.

mod json;
mod text;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use zonal_bench::mechanisms::{Mechanism, Sizes, measure};

use crate::bench::{warn_of_slow_build, watch_for_interrupt};
use crate::outcome::{Failure, print};
use crate::progress;

/// Measure what each mechanism of the allocator gains and costs, off and on, on this machine
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct MechanismArgs {
    /// The mechanisms to measure; see below [default: all]
    #[arg(value_name = "M", value_parser = mechanism)]
    mechanisms: Vec<Mechanism>,

    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    let mut text = String::from("Mechanisms:\n");
    for mechanism in Mechanism::ALL {
        text.push_str(&format!("  {}  {} ({})\n", mechanism.name(), mechanism.summary(), mechanism.source()));
    }
    text.push_str(
        "\nThe allocator that ships runs natively on the CPUs of this machine, over nodes that are emulated:\n\
         there is no memory behind their frames. What needs hundreds of CPUs is simulated, and says so.\n\n\
         Examples:\n  \
         zonal mechanisms              all of them, less than a minute\n  \
         zonal mechanisms M1 M5        two of them, a few seconds\n  \
         zonal mechanisms M4 --json    for scripts: a row for each figure of each variant\n\n\
         Ctrl-C ends it and prints the mechanisms that were finished; a second one ends at once.",
    );
    text
}

fn mechanism(name: &str) -> Result<Mechanism, String> {
    let is_it = |mechanism: &Mechanism| mechanism.name().eq_ignore_ascii_case(name);
    Mechanism::ALL.into_iter().find(is_it).ok_or_else(|| {
        let (first, last) = (Mechanism::ALL[0].name(), Mechanism::ALL[Mechanism::ALL.len() - 1].name());
        format!("there is no such mechanism; mechanisms are {first} to {last}")
    })
}

/// Runs the command. Exits with 0; 1 if the system refused a request; 2 for an unknown mechanism; 130 if
/// interrupted.
pub(crate) fn run(args: &MechanismArgs) -> ExitCode {
    all(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn all(args: &MechanismArgs) -> Result<(), Failure> {
    let interrupted = watch_for_interrupt()?;
    warn_of_slow_build();
    let is_chosen = |mechanism: &Mechanism| args.mechanisms.is_empty() || args.mechanisms.contains(mechanism);
    let chosen: Vec<Mechanism> = Mechanism::ALL.into_iter().filter(is_chosen).collect();
    let bar = progress::bar(chosen.len() as u64, "{prefix} {bar:24} {elapsed}  {wide_msg}");
    bar.enable_steady_tick(Duration::from_millis(250));
    let findings = measure(&chosen, &Sizes::for_this_machine(), &interrupted, |now| {
        bar.set_prefix(now.mechanism.name());
        bar.set_message(now.mechanism.summary());
        bar.set_position(now.done as u64);
    });
    bar.finish_and_clear();
    print(&if args.json { json::render(&findings) } else { text::render(&findings) })?;
    judge(&interrupted)
}

fn judge(interrupted: &AtomicBool) -> Result<(), Failure> {
    // Relaxed: only the flag itself is read.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted("interrupted; the mechanisms that were finished are printed"));
    }
    Ok(())
}
