//! `zonal lab`: experiments on simulated machines.
//!
//! The arguments are converted to plans, all of which are checked before the first plan runs. Results are written and
//! printed as soon as each experiment completes. Related files: `zonal_lab::experiment` runs the experiments,
//! `lab/text.rs` formats results as text, `lab/listing.rs` lists the experiments.

mod listing;
mod text;
mod what_if;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

use clap::{Args, Subcommand};
use zonal_lab::experiment::results::{CaseValue, Results};
use zonal_lab::experiment::{
    self, BUILT_IN, CaseFilter, EXAMPLE, Options, Plan, Progress, ResultDocument, Source, built_in,
};
use zonal_lab::report;
use zonal_machine::Escaped;
use zonal_machine::output;
use zonal_machine::state::CapturedState;

use crate::interrupt;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::progress::ProgressLine;
use crate::values::{self, ForceArg};

/// The name that selects all built-in experiments.
const ALL: &str = "all";
/// Extension of experiment files, which distinguishes them from names of built-in experiments.
const FILE: &str = ".toml";
/// Default directory for results.
const OUT_DEFAULT: &str = "lab-results";
/// Longest estimated time of a spread that is run without being asked for, in seconds.
const SPREAD_SECONDS: f64 = 120.0;
/// Host memory for concurrent runs, in bytes, if the available memory of the host is not known.
const MEMORY_DEFAULT: u64 = 4 << 30;

/// Run experiments on simulated machines: built-in ones and your own
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum LabCommand {
    List(ListArgs),
    Run(RunArgs),
    WhatIf(what_if::WhatIfArgs),
    Show(ShowArgs),
    Example(ExampleArgs),
}

/// Print an experiment as a file, with the costs and settings that its runs have
#[derive(Args, Clone, Debug)]
struct ShowArgs {
    /// Name of a built-in experiment, or a file of your own
    #[arg(value_name = "NAME|FILE")]
    experiment: String,
}

/// Print a commented file as a template for an experiment of your own
#[derive(Args, Clone, Debug)]
struct ExampleArgs {
    /// Kind of the workload, with all of its keys, or `programs` for several at the same time; without it, a file with
    /// everything that experiments can have
    #[arg(value_name = "KIND", value_parser = experiment::example_kinds())]
    kind: Option<String>,
}

/// List the built-in experiments
#[derive(Args, Clone, Debug)]
struct ListArgs {
    /// Print the list as one JSON document
    #[arg(long)]
    json: bool,
}

/// Run experiments, write their results, and compare predictions with published figures
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
struct RunArgs {
    /// Names of built-in experiments, files of your own, or `all` for all built-in experiments
    #[arg(value_name = "NAME|FILE", required = true)]
    experiments: Vec<String>,

    /// Directory of results: DIR/NAME/result.json, report.html and its charts [default: lab-results, which
    /// must not be a link]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,

    /// Seed of all random choices; the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::seed, allow_hyphen_values = true)]
    seed: u64,

    /// Number of concurrent runs [default: one per core]
    #[arg(long, value_name = "N", value_parser = values::threads, allow_hyphen_values = true)]
    jobs: Option<NonZeroUsize>,

    /// Run only this variant; can be repeated
    #[arg(long = "variant", value_name = "V")]
    variants: Vec<String>,

    /// Run only the cases that have one of these values, as in cpus=4,16; can be repeated
    #[arg(long = "case", value_name = "KEY=VALUE", value_parser = case_choice)]
    cases: Vec<(String, Vec<CaseValue>)>,

    /// Run the experiments on the machine in a file of `zonal capture`, as full and as fragmented as it was
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Repeat with four other seeds, and with each cost 20 % lower and higher, to show how sure the answer is
    /// [default for files of your own, if it takes less than about two minutes]
    #[arg(long)]
    spread: bool,

    /// Run each case with one seed only
    #[arg(long, conflicts_with = "spread")]
    no_spread: bool,

    /// Print the results as one JSON document
    #[arg(long)]
    json: bool,
}

fn examples() -> String {
    let examples = [
        ("zonal lab list", "the built-in experiments"),
        ("zonal lab run zoned-counters-2006 --case cpus=1,4", "two of its cases"),
        ("zonal lab run all --out results --jobs 4", "everything, four runs at a time"),
        ("zonal lab what-if --preset xeon224", "what each mechanism would change there"),
        ("zonal lab show zonelist-cache-worth > mine.toml", "a built-in experiment to start from"),
        ("zonal lab example exchange", "a workload with all of its keys"),
        ("zonal lab example > mine.toml", "an experiment of your own ..."),
        ("zonal lab run mine.toml --variant areas --json", "... and one of its variants"),
        ("zonal lab run zonelist-cache-worth --spread", "how sure the answer is"),
        ("zonal lab run mine.toml --capture state.json", "... on a machine as full as it was captured"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn case_choice(text: &str) -> Result<(String, Vec<CaseValue>), String> {
    match text.split_once('=') {
        Some((key, values)) if !key.is_empty() && !values.is_empty() => {
            Ok((key.to_owned(), values.split(',').map(CaseValue::of).collect()))
        }
        _ => Err(format!(
            "`{text}` is not KEY=VALUE; write the name of a column and its values, as in cpus=4 or cpus=4,16"
        )),
    }
}

/// Runs the command. Returns exit code 0 for success, 1 if a run failed, 2 if an experiment does not exist or its
/// file is invalid, and 130 if the user interrupted the command.
pub(crate) fn run(args: &LabArgs) -> ExitCode {
    let done = match &args.command {
        LabCommand::List(args) => list(args),
        LabCommand::Run(args) => run_all(args),
        LabCommand::WhatIf(args) => stop().and_then(|stop| what_if::run(args, &stop)),
        LabCommand::Show(args) => show(args),
        LabCommand::Example(args) => {
            let kind = args.kind.as_deref().and_then(experiment::example);
            print(&kind.unwrap_or_else(|| EXAMPLE.to_owned()))
        }
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let plans = BUILT_IN.iter().map(|known| load(&Source::BuiltIn(known)));
    let plans = plans.collect::<Result<Vec<_>, _>>()?;
    print(&if args.json { listing::json(&plans) } else { listing::text(&plans, Width::of_output()) })
}

fn show(args: &ShowArgs) -> Result<(), Failure> {
    let sources = sources(std::slice::from_ref(&args.experiment))?;
    let [source] = &sources[..] else {
        return Err(Failure::bad_input(format!("{ALL} is several experiments; show one by its name")));
    };
    let text = source.texts().map_err(Failure::bad_input)?.text;
    let text = if let Source::BuiltIn(_) = source { experiment::standalone(&text) } else { text };
    print(&(text + &text::costs_as_comments(&load(source)?)))
}

fn run_all(args: &RunArgs) -> Result<(), Failure> {
    let mut plans = plans(args)?;
    if args.out.is_none() {
        output::check_folder(Path::new(OUT_DEFAULT)).map_err(Failure::bad_input)?;
    }
    let out = args.out.as_deref().unwrap_or(Path::new(OUT_DEFAULT));
    for plan in &plans {
        report::check(out, &plan.name, args.force.replace()).map_err(Failure::bad_input)?;
    }
    let options = options(args)?;
    choose_spread(args, &mut plans, &options);
    for plan in &plans {
        plan.check_memory(options.memory_bytes).map_err(Failure::failed)?;
    }
    let stop = stop()?;
    experiment::silence_faults();
    let (mut all, mut failed) = (Vec::new(), None);
    for plan in &plans {
        let results = match run_one(plan, &options, &stop) {
            Ok(results) => results,
            // The results of the earlier experiments are still printed.
            Err(failure) => {
                failed = Some(failure);
                break;
            }
        };
        if results.runs.is_empty() {
            break;
        }
        let files = write_files(args, out, &results).unwrap_or_else(|failure| {
            failed = Some(failure);
            Vec::new()
        });
        let missing = plan.not_simulated(&results);
        if let Some(first) = missing.first() {
            let (name, count) = (&plan.name, missing.len());
            print_message(format_args!(
                "note: {name}: {count} published figures are not simulated; the first is in line {first} of their table"
            ));
        }
        if !args.json {
            print(&text::render(plan, &results, &files, Width::of_output()))?;
        }
        all.push(results);
        // Relaxed: no data is published with the flag.
        if failed.is_some() || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if args.json {
        let documents: Vec<ResultDocument<'_>> = all.iter().map(ResultDocument).collect();
        print(&(serde_json::to_string(&documents).expect("names and numbers are always JSON") + "\n"))?;
    }
    failed.map_or_else(|| judge(&plans, &all), Err)
}

/// Returns the flag that Ctrl-C sets.
fn stop() -> Result<Arc<AtomicBool>, Failure> {
    interrupt::flag_on_interrupt().map_err(|error| Failure::failed(format!("cannot handle Ctrl-C: {error}")))
}

/// Returns the checked plans of all selected experiments.
fn plans(args: &RunArgs) -> Result<Vec<Plan>, Failure> {
    let mut plans: Vec<Plan> = Vec::new();
    let captured = args.capture.as_deref().map(CapturedState::read).transpose();
    let captured = captured.map_err(Failure::bad_input)?;
    for source in sources(&args.experiments)? {
        let mut plan = match &captured {
            Some(captured) => experiment::load_on(&source, captured).map_err(Failure::bad_input)?,
            None => load(&source)?,
        };
        plan.keep(&args.variants, &CaseFilter(args.cases.clone())).map_err(Failure::bad_input)?;
        plan.spread = matches!(source, Source::File(_));
        if plans.iter().any(|other| other.name == plan.name) {
            let name = &plan.name;
            let problem = format!(
                "two experiments have the name {name}; their results would overwrite each other, so rename one"
            );
            return Err(Failure::bad_input(problem));
        }
        plans.push(plan);
    }
    Ok(plans)
}

fn sources(names: &[String]) -> Result<Vec<Source>, Failure> {
    let mut sources = Vec::new();
    for name in names {
        if name == ALL {
            sources.extend(BUILT_IN.iter().map(Source::BuiltIn));
        } else if name.ends_with(FILE) {
            sources.push(Source::File(name.into()));
        } else if let Some(known) = built_in(name) {
            sources.push(Source::BuiltIn(known));
        } else {
            let known: Vec<&str> = BUILT_IN.iter().map(|known| known.name).collect();
            let known = known.join(", ");
            let problem = format!(
                "there is no experiment {name:?}; the experiments are {known}, {ALL}, and your own files FILE{FILE}"
            );
            return Err(Failure::bad_input(problem));
        }
    }
    Ok(sources)
}

fn load(source: &Source) -> Result<Plan, Failure> {
    experiment::load(source).map_err(Failure::bad_input)
}

fn options(args: &RunArgs) -> Result<Options, Failure> {
    let jobs = match args.jobs {
        Some(jobs) => jobs,
        None => available_parallelism()
            .map_err(|error| Failure::failed(format!("cannot count cores: {error}; use --jobs")))?,
    };
    // The other quarter is left for memory that the estimates of the runs do not include, and for other processes.
    let memory_bytes = zonal_linux::available_bytes().map_or(MEMORY_DEFAULT, |bytes| bytes / 4 * 3);
    Ok(Options { seed: args.seed, jobs, memory_bytes })
}

/// Chooses which experiments have a spread: all if the user asks for it, else the user's own, which are marked, if it is
/// quick.
fn choose_spread(args: &RunArgs, plans: &mut [Plan], options: &Options) {
    for plan in plans {
        let is_own = plan.spread && plan.variants.len() > 1;
        let seconds = if is_own && !args.no_spread { plan.spread_seconds(options.jobs.get()) } else { 0.0 };
        plan.spread = args.spread || (is_own && !args.no_spread && seconds <= SPREAD_SECONDS);
        if is_own && !args.no_spread && !plan.spread {
            let (name, minutes) = (Escaped(&plan.name), (seconds / 60.0).ceil());
            print_message(format_args!(
                "note: {name}: one seed only; other seeds and costs would take about {minutes} minutes, with --spread"
            ));
        }
    }
}

fn run_one(plan: &Plan, options: &Options, stop: &AtomicBool) -> Result<Results, Failure> {
    let line = ProgressLine::begin();
    let show = |now: &Progress| {
        let running = Escaped(now.running.join("; "));
        line.show(&format!("{} {}/{}: {running}", plan.name, now.done, now.total), now.share);
    };
    experiment::run(plan, options, show, stop).map_err(Failure::failed)
}

/// Writes all files of a result.
fn write_files(args: &RunArgs, directory: &Path, results: &Results) -> Result<Vec<PathBuf>, Failure> {
    if args.out.is_none() {
        // A directory that the user names may be a link. The default directory must not be a link.
        output::folder(Path::new(""), OUT_DEFAULT).map_err(Failure::failed)?;
    }
    let replace = args.force.replace();
    let mut written = vec![experiment::write(directory, results, replace).map_err(Failure::failed)?];
    written.extend(report::write(directory, results, replace).map_err(Failure::failed)?);
    Ok(written)
}

fn judge(plans: &[Plan], all: &[Results]) -> Result<(), Failure> {
    let runs: usize = plans.iter().map(|plan| plan.runs.len()).sum();
    let done: usize = all.iter().map(|results| results.runs.len()).sum();
    if done < runs || all.iter().any(|results| results.missing > 0) {
        return Err(Failure::interrupted(interrupted(done, runs)));
    }
    Ok(())
}

fn interrupted(done: usize, runs: usize) -> String {
    let results = if done == 0 { "" } else { ", and their results are written" };
    format!("interrupted; {done} of {runs} runs completed{results}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_mentioned_only_if_there_are_some() {
        assert_eq!(interrupted(0, 28), "interrupted; 0 of 28 runs completed");
        assert!(interrupted(1, 28).ends_with("1 of 28 runs completed, and their results are written"));
    }
}
