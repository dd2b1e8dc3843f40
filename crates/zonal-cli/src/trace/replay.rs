//! `zonal trace replay`: a trace on the allocator that ships, or by the recorded kernel's own rule.
//!
//! Related files: `zonal_lab::replay` does the work, `trace/replay_text.rs` prints.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;
use zonal::config::ZonelistCache;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal_lab::replay::{self, HugePages, KernelReplay, OwnOptions, OwnReplay, ReplayError};
use zonal_lab::sim::RunError;
use zonal_machine::MachineModel;
use zonal_machine::state::CapturedState;
use zonal_trace::TraceError;

use super::{Reading, replay_text};
use crate::layout::{self, Width};
use crate::outcome::{Failure, print};
use crate::values::rules::rule;
use crate::values::{self, seed};

/// Say what other settings would have done, or what the recorded kernel's own rule should have done
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(super) struct ReplayArgs {
    /// A trace
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Which rules: those of the allocator that ships, on a simulated machine, or those of the recorded kernel's pagesets
    #[arg(long, value_name = "RULES", default_value = "ours", allow_hyphen_values = true)]
    rules: RulesArg,

    /// A machine file; by default the machine of the trace
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// A file of `zonal capture`: its machine, as full and as fragmented as it was
    #[arg(long, value_name = "FILE", conflicts_with = "machine")]
    capture: Option<PathBuf>,

    /// How pagesets are adjusted; can be repeated [default: each of depth, stepwise and fixed]
    #[arg(long, value_name = "T", value_parser = rule::<PagesetTuning>())]
    tuning: Vec<PagesetTuning>,

    /// The cache of full zones [default: that of the allocator]
    #[arg(long, value_name = "Z", value_parser = rule::<ZonelistCache>())]
    zonelist_cache: Option<ZonelistCache>,

    /// Seed of all random choices; the same seed gives the same results
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed, allow_hyphen_values = true)]
    seed: u64,

    /// With `--rules kernel`: how many 2 MiB pages a request is for [default: all of the memory]
    #[arg(long, value_name = "N", value_parser = values::whole(1..=1 << 40), allow_hyphen_values = true)]
    huge_pages: Option<u64>,

    /// Print everything as one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum RulesArg {
    Ours,
    Kernel,
}

fn examples() -> String {
    let examples = [
        ("zonal trace replay zonal.trace", "three ways of adjusting pagesets, beside each other"),
        ("zonal trace replay zonal.trace --tuning depth --tuning stepwise --machine two-nodes.json", ""),
        ("zonal trace replay zonal.trace --rules kernel", "predicted refills and drains beside the kernel's"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Trace(error) => error.into(),
            ReplayError::Run(RunError::Interrupted) => {
                Self::interrupted("interrupted before the end of the trace")
            }
            ReplayError::Run(_) => Self::failed(error),
            _ => Self::bad_input(error),
        }
    }
}

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    match args.rules {
        RulesArg::Ours => ours(args),
        RulesArg::Kernel => kernel(args),
    }
}

/// Refuses options that belong to the other rules.
fn refuse(given: &[(bool, &str)], rules: &str) -> Result<(), Failure> {
    match given.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Failure::bad_input(format_args!(
            "{option} has no meaning with --rules {rules}; leave it out"
        ))),
        None => Ok(()),
    }
}

/// A replay by the kernel's rule as a JSON document.
#[derive(Serialize)]
struct KernelDocument<'a> {
    schema: &'static str,
    rules: &'static str,
    #[serde(flatten)]
    replay: &'a KernelReplay,
    error_percent: Vec<Errors>,
    huge_pages: Vec<Huge<'a>>,
}

#[derive(Serialize)]
struct Errors {
    cpu: u32,
    refilled: Option<f64>,
    drained: Option<f64>,
}

#[derive(Serialize)]
struct Huge<'a> {
    at: &'static str,
    wanted: u64,
    before: u64,
    after_at_most: u64,
    #[serde(flatten)]
    figures: &'a HugePages,
}

/// A replay on the allocator as a JSON document.
#[derive(Serialize)]
struct OwnDocument<'a> {
    schema: &'static str,
    rules: &'static str,
    zonelist_cache: &'static str,
    #[serde(flatten)]
    replay: &'a OwnReplay,
}

const SCHEMA: &str = "zonal.trace-replay.v1";

fn kernel(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    let given = [
        (args.machine.is_some(), "--machine"),
        (args.capture.is_some(), "--capture"),
        (!args.tuning.is_empty(), "--tuning"),
        (args.zonelist_cache.is_some(), "--zonelist-cache"),
    ];
    refuse(&given, "kernel")?;
    let shown = Reading::start(&args.file, 2)?;
    let replay = replay::replay_kernel(&args.file, |bytes| shown.show(bytes));
    shown.end()?;
    let replay = replay?;
    let wanted = args.huge_pages.unwrap_or(u64::MAX);
    let shown = if args.json {
        let of = |at, figures: &'_ HugePages| (at, figures.before(wanted), figures.after_at_most(wanted));
        let moments = [("start", &replay.huge_at_start), ("end", &replay.huge_at_end)];
        let huge_pages = moments.iter().filter_map(|(at, figures)| {
            let figures = figures.as_ref()?;
            let (at, before, after_at_most) = of(*at, figures);
            let wanted = wanted.min(figures.all());
            Some(Huge { at, wanted, before, after_at_most, figures })
        });
        let error_percent = replay.cpus.iter().map(|cpu| Errors {
            cpu: cpu.cpu,
            refilled: cpu.refilled.error_percent(),
            drained: cpu.drained.error_percent(),
        });
        let document = KernelDocument {
            schema: SCHEMA,
            rules: "kernel",
            error_percent: error_percent.collect(),
            huge_pages: huge_pages.collect(),
            replay: &replay,
        };
        serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
    } else {
        replay_text::kernel(&replay, &args.file, args.huge_pages, Width::of_output())
    };
    print(&shown)?;
    whole(args, replay.is_complete, replay.events)
}

fn ours(args: &ReplayArgs) -> Result<ExitCode, Failure> {
    refuse(&[(args.huge_pages.is_some(), "--huge-pages")], "ours")?;
    let machine = args.machine.as_deref().map(MachineModel::read).transpose().map_err(Failure::bad_input)?;
    let captured =
        args.capture.as_deref().map(CapturedState::read).transpose().map_err(Failure::bad_input)?;
    let default = [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed];
    let tunings = if args.tuning.is_empty() { &default[..] } else { &args.tuning };
    let zonelist_cache = args.zonelist_cache.unwrap_or_default();
    let options = OwnOptions {
        tunings,
        zonelist_cache,
        machine: captured.as_ref().map(|captured| &captured.model).or(machine.as_ref()),
        before: captured.as_ref().map(|captured| &captured.sample),
        seed: args.seed,
    };
    let shown = Reading::start(&args.file, tunings.len() as u64)?;
    let replay = replay::replay_ours(&args.file, &options, shown.flag(), |bytes| {
        shown.show(bytes);
    });
    shown.end()?;
    let replay = replay?;
    let shown = if args.json {
        let document = OwnDocument {
            schema: SCHEMA,
            rules: "ours",
            zonelist_cache: zonal::settings::NamedRule::name(zonelist_cache),
            replay: &replay,
        };
        serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
    } else {
        replay_text::ours(&replay, &args.file, Width::of_output())
    };
    print(&shown)?;
    whole(args, replay.is_complete, replay.events)
}

/// Returns success for a whole trace.
fn whole(args: &ReplayArgs, is_complete: bool, events: u64) -> Result<ExitCode, Failure> {
    if is_complete {
        return Ok(ExitCode::SUCCESS);
    }
    let origin = args.file.display().to_string();
    Err(Failure::failed(TraceError::Cut { origin, events }))
}
