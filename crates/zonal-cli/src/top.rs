//! `zonal top`: the live state of this system, or of a program's pool, in the terminal or once for scripts.
//!
//! Related files: `zonal-live` reads the sources and has the view; `top/once.rs` prints one reading as text.

mod once;

use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use zonal_live::top::{self, Colours, End, Options, Reading, check_node};
use zonal_live::{PoolSource, Rates, Sample, Source, SystemSource, Watch};

use crate::layout::{self, Width};
use crate::outcome::{Failure, print};
use crate::values::Nodes;

/// Allowed intervals in seconds.
const INTERVALS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Show free memory, watermarks, pagesets, rates and free blocks while they change
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct TopArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Seconds between two readings
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,

    /// Show these nodes only; can be repeated, or be a list such as 0,2-3
    #[arg(long = "node", value_name = "N", allow_hyphen_values = true)]
    nodes: Vec<Nodes>,

    /// Print one reading as text: two are made, one interval apart, and rates are the changes between them
    #[arg(long)]
    once: bool,

    /// Print the same as one JSON document
    #[arg(long)]
    json: bool,
}

/// What is watched; by default this system.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct SourceArgs {
    /// Socket of a program that publishes its pool with `Pool::publish`, or of `zonal run --publish`
    #[arg(long, value_name = "SOCKET")]
    pool: Option<PathBuf>,

    /// This system, from /proc and /sys (the default)
    #[arg(long)]
    system: bool,

    /// A tree with `proc` and `sys` of another system
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,
}

/// What scripts receive.
#[derive(Serialize)]
struct Document<'r> {
    schema: &'static str,
    source: &'r str,
    sample: &'r Sample,
    rates: Option<&'r Rates>,
}

fn examples() -> String {
    let examples = [
        ("zonal top", "this system"),
        ("zonal run random --seconds 600 --publish /tmp/run.zonal", "a pool to watch ..."),
        ("zonal top --pool /tmp/run.zonal --interval 0.5", "... from another terminal"),
        ("zonal top --node 0,2-3", "three nodes of this system"),
        ("zonal top --once", "one reading as text"),
        ("zonal top --json --interval 10", "one reading with rates over 10 seconds"),
    ];
    let about = "Press ? for the keys. No hardware counters and no privileges are needed; only root can read free \
                 blocks by migrate type. NO_COLOR turns colours off. A signal ends the view with exit code 128 plus \
                 its number.";
    format!("{}\nExamples:\n{}", Width::of_output().paragraph("", "", about), layout::entries(examples))
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.trim().parse().ok().filter(|seconds| INTERVALS.contains(seconds));
    let (first, last) = (INTERVALS.start(), INTERVALS.end());
    let wrong = || format!("`{text}` is not an interval; allowed are {first} to {last} seconds");
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// Runs the command. Returns exit code 0 for success, 1 if the source does not answer, 2 for bad usage, 130 after
/// Ctrl-C, and 128 plus its number after another signal.
pub(crate) fn run(args: &TopArgs) -> ExitCode {
    show(args).unwrap_or_else(Failure::report)
}

fn show(args: &TopArgs) -> Result<ExitCode, Failure> {
    let is_once = args.once || args.json;
    if !is_once {
        check_terminal()?;
    }
    let watch = Watch::start(source(&args.source))?;
    let nodes = nodes(args, &Reading::of(&watch).nodes())?;
    if is_once {
        return print_once(args, watch, &nodes).map(|()| ExitCode::SUCCESS);
    }
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = if is_plain { Colours::Off } else { Colours::On };
    let options = Options { interval: args.interval, nodes, colours };
    let cannot =
        |error| Failure::failed(format!("cannot use the terminal: {error}; --once prints one reading"));
    Ok(match top::run(watch, options).map_err(cannot)? {
        End::Quit => ExitCode::SUCCESS,
        End::Interrupted => ExitCode::from(130),
        End::Signal(signal) => ExitCode::from(128_u8.saturating_add(u8::try_from(signal).unwrap_or(127))),
    })
}

fn check_terminal() -> Result<(), Failure> {
    let instead = "--once prints one reading as text, and --json as a document";
    if !stdout().is_terminal() {
        return Err(Failure::bad_input(format!("standard output is not a terminal; {instead}")));
    }
    match std::env::var("TERM") {
        Ok(term) if term == "dumb" => Err(Failure::bad_input(format!(
            "TERM is dumb, a terminal that cannot move its cursor; {instead}"
        ))),
        _ => Ok(()),
    }
}

fn source(args: &SourceArgs) -> Box<dyn Source> {
    match (&args.pool, &args.sysfs) {
        (Some(path), _) => Box::new(PoolSource::new(path.clone())),
        (None, Some(root)) => Box::new(SystemSource::tree(root)),
        (None, None) => Box::new(SystemSource::live()),
    }
}

/// Returns the ids of the nodes to show, which must exist.
fn nodes(args: &TopArgs, existing: &[u64]) -> Result<Vec<u64>, Failure> {
    let mut nodes: Vec<u64> =
        args.nodes.iter().flat_map(|list| &list.0).map(|node| u64::from(node.get())).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for &node in &nodes {
        check_node(node, existing).map_err(|why| Failure::bad_input(format!("--node: {why}")))?;
    }
    Ok(nodes)
}

fn print_once(args: &TopArgs, mut watch: Watch, nodes: &[u64]) -> Result<(), Failure> {
    thread::sleep(args.interval);
    watch.tick();
    let reading = Reading::of(&watch).only(nodes);
    if let Some(why) = reading.problem {
        return Err(Failure::failed(format!("no second reading, which rates need: {why}")));
    }
    if !args.json {
        return print(&once::text(&reading, Width::of_output()));
    }
    let document = Document {
        schema: "zonal.top.v1",
        source: &reading.title,
        sample: &reading.sample,
        rates: reading.rates.as_ref(),
    };
    let text = serde_json::to_string(&document).map_err(Failure::failed)?;
    print(&format!("{text}\n"))
}
