//! `zonal mechanisms`: measures the gain and the cost of each mechanism of the allocator by switching it off and on.
//!
//! The arguments are converted to a list of mechanisms, and the measurements are printed. Related files:
//! `zonal_bench::mechanisms` takes the measurements; `mechanisms/text.rs` and `mechanisms/json.rs` print them.

mod json;
mod text;

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use zonal_bench::mechanisms::{CPUS_MAX, Mechanism, Sizes, measure};

use crate::bench::{warn_of_slow_build, watch_for_interrupt};
use crate::layout::{self, Width};
use crate::outcome::{Failure, print};
use crate::progress::ProgressLine;
use crate::values::seed;

/// Measure what each mechanism of the allocator gains and costs, off and on, on this machine
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct MechanismArgs {
    /// Mechanisms to measure; see below [default: all]
    #[arg(value_name = "M", value_parser = mechanism)]
    mechanisms: Vec<Mechanism>,

    /// Number of emulated CPUs that work at once, each as a thread [default: those of this machine, up to 64]
    #[arg(long, value_name = "N", value_parser = cpus, allow_hyphen_values = true)]
    cpus: Option<NonZeroU32>,

    /// Number of rounds in which each time is measured
    #[arg(long, value_name = "N", value_parser = rounds, default_value = "9", allow_hyphen_values = true)]
    rounds: usize,

    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_hyphen_values = true)]
    seed: u64,

    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    let mechanisms = Mechanism::ALL
        .map(|mechanism| (mechanism.name(), format!("{} ({})", mechanism.summary(), mechanism.source())));
    let about = "The shipped allocator runs natively on the CPUs of this machine, over emulated nodes whose frames have \
                 no memory behind them. Figures that need hundreds of CPUs are simulated and marked as such.";
    let examples = [
        ("zonal mechanisms", "all of them, less than a minute"),
        ("zonal mechanisms M1 M5", "two of them, a few seconds"),
        ("zonal mechanisms M4 --cpus 1", "on one CPU, where every count is exact"),
        ("zonal mechanisms M4 --json", "for scripts: a row for each figure of each variant"),
    ];
    let end = "Ctrl-C ends it and prints the finished mechanisms; a second one ends at once.";
    format!(
        "Mechanisms:\n{}\n{}\nExamples:\n{}\n{end}",
        layout::entries(mechanisms),
        Width::of_output().paragraph("", "", about),
        layout::entries(examples)
    )
}

fn mechanism(name: &str) -> Result<Mechanism, String> {
    let is_it = |mechanism: &Mechanism| mechanism.name().eq_ignore_ascii_case(name);
    Mechanism::ALL.into_iter().find(is_it).ok_or_else(|| {
        let (first, last) = (Mechanism::ALL[0].name(), Mechanism::ALL[Mechanism::ALL.len() - 1].name());
        format!("`{name}` is not a mechanism; mechanisms are {first} to {last}")
    })
}

fn cpus(text: &str) -> Result<NonZeroU32, String> {
    let cpus = text.trim().parse().ok().filter(|cpus: &NonZeroU32| cpus.get() <= CPUS_MAX);
    cpus.ok_or_else(|| format!("`{text}` is not a number of CPUs; allowed are 1 to {CPUS_MAX}"))
}

/// How many rounds are possible. The middle half of fewer rounds says nothing, and more would not improve the result.
const ROUNDS: RangeInclusive<usize> = 3..=1000;

fn rounds(text: &str) -> Result<usize, String> {
    let rounds = text.trim().parse().ok().filter(|rounds| ROUNDS.contains(rounds));
    let (least, most) = (ROUNDS.start(), ROUNDS.end());
    rounds.ok_or_else(|| format!("`{text}` is not a number of rounds; allowed are {least} to {most}"))
}

/// Runs the command. Returns exit code 0 for success, 1 if the system refused a request, 2 if a mechanism is not
/// known, and 130 if the user interrupted the command.
pub(crate) fn run(args: &MechanismArgs) -> ExitCode {
    all(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn all(args: &MechanismArgs) -> Result<(), Failure> {
    let interrupted = watch_for_interrupt()?;
    warn_of_slow_build();
    let is_chosen = |mechanism: &Mechanism| args.mechanisms.is_empty() || args.mechanisms.contains(mechanism);
    let chosen: Vec<Mechanism> = Mechanism::ALL.into_iter().filter(is_chosen).collect();
    let line = ProgressLine::begin();
    let sizes = Sizes::for_this_machine();
    let cpus = args.cpus.unwrap_or(sizes.cpus);
    let sizes = Sizes { cpus, rounds: args.rounds, seed: args.seed, ..sizes };
    let findings = measure(&chosen, &sizes, &interrupted, |now| {
        let doing = format!("{}: {}", now.mechanism.name(), now.mechanism.summary());
        line.show_steps(&doing, now.done as u64, chosen.len() as u64);
    });
    drop(line);
    print(&if args.json {
        json::render(&findings)
    } else {
        text::render(&findings, &sizes, Width::of_output())
    })?;
    judge(&interrupted)
}

fn judge(interrupted: &AtomicBool) -> Result<(), Failure> {
    // Relaxed: no data is published with the flag.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted("interrupted; the finished mechanisms are printed"));
    }
    Ok(())
}
