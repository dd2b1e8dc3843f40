//! The check-up, which `zonal` alone does: this machine in a few lines, a short run of a pool, and the cost of cleared pages
//! from it and from the kernel.
//!
//! Related files: `checkup/report.rs` has the document that can be sent, `checkup/text.rs` the text.

mod report;
mod text;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use zonal_bench::{PageCost, PoolReport, page_cost, run_on_pool};
use zonal_linux::{Pool, Prefault};
use zonal_machine::output::{self, Kind};
use zonal_machine::state::{Sample, SystemState};
use zonal_machine::{Capture, KernelVersion, MachineModel, Report, Rules, capture_live, explain};
use zonal_workload::{Latencies, Plan, Workload};

use crate::interrupt;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::progress::ProgressLine;
use crate::run::refused;
use crate::values::ForceArg;

/// Bytes of the pool, if the machine has that much to spare.
const POOL_BYTES: u64 = 512 << 20;
/// Duration of the run on the pool.
const ON_POOL: Duration = Duration::from_secs(2);
/// How long cleared pages are measured.
const CLEARED: Duration = Duration::from_secs(2);

/// The arguments of the check-up.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CheckupArgs {
    /// Write the figures to a file that can be sent to others: it has no names, addresses or paths, and is shown first
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,

    /// Print the figures as one JSON document
    #[arg(long)]
    json: bool,
}

/// Everything that the check-up found.
struct Checkup {
    model: MachineModel,
    rules: Rules,
    report: Report,
    sample: Sample,
    pool: PoolReport,
    pool_bytes: u64,
    cleared: PageCost,
}

/// Returns examples for the help.
pub(crate) fn examples() -> String {
    let examples = [
        ("zonal", "a check-up of this machine, about five seconds"),
        ("zonal --report checkup.json", "... and a file to send"),
        ("zonal run", "a workload on a pool of this machine's memory"),
        ("zonal explain", "which zones a request would try now"),
        ("zonal machine", "fallback orders, watermarks and pagesets of this machine"),
        ("zonal top --system", "this machine, live"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

/// Runs the check-up. Returns exit code 0 for success, 1 if something could not be measured or the accounting does not
/// balance, 2 for bad input, and 130 if the user interrupted it.
pub(crate) fn run(args: &CheckupArgs) -> ExitCode {
    checked(args).map_or_else(|failure| failure.of("check-up").report(), |()| ExitCode::SUCCESS)
}

fn checked(args: &CheckupArgs) -> Result<(), Failure> {
    if let Some(file) = &args.report {
        output::check(file, Kind::Checkup, args.force.replace())?;
    }
    let interrupted = interrupt::flag_on_interrupt()
        .map_err(|error| Failure::failed(format!("cannot handle Ctrl-C: {error}")))?;
    let checkup = examine(&interrupted)?;
    if is_interrupted(&interrupted) {
        return Err(ended_early(args, &checkup.pool)?);
    }
    let document = report::document(&checkup);
    match (&args.report, args.json) {
        (None, false) => print(&text::render(&checkup, Width::of_output()))?,
        _ => print(&document)?,
    }
    if let Some(file) = &args.report {
        output::write(file, &document, Kind::Checkup, args.force.replace())?;
        print_message(format_args!("wrote what is shown above to {}; nothing was sent", file.display()));
    }
    if checkup.pool.is_balanced() { Ok(()) } else { Err(Failure::failed("the accounting does not balance")) }
}

fn is_interrupted(interrupted: &AtomicBool) -> bool {
    // Relaxed: no data is published with the flag.
    interrupted.load(Ordering::Relaxed)
}

/// Prints the accounting of the pool; returns the failure of a check-up that the user has interrupted.
fn ended_early(args: &CheckupArgs, pool: &PoolReport) -> Result<Failure, Failure> {
    let balance = text::balance(pool, Width::of_output());
    if args.json {
        print_message(format_args!("{}", balance.trim_end()));
    } else {
        print(&balance)?;
    }
    Ok(Failure::interrupted("interrupted; what the pool did until then is accounted for"))
}

fn examine(interrupted: &AtomicBool) -> Result<Checkup, Failure> {
    let Capture { model, notes, .. } = capture_live().map_err(Failure::failed)?;
    notes.iter().for_each(|note| print_message(format_args!("note: {note}")));
    let own = model.observed.as_ref().and_then(|observed| observed.kernel);
    let rules = Rules::of(own.unwrap_or(KernelVersion::NEWEST));
    let report = explain(&model, &rules);
    let sample = SystemState::live().read().map_err(Failure::failed)?;
    let line = ProgressLine::begin();
    line.show("building a pool", 0.0);
    let bytes =
        POOL_BYTES.min(sample.zones.iter().map(|zone| zone.free).sum::<u64>() * sample.page_bytes / 4);
    let pool = Pool::builder().size(bytes).prefault(Prefault::AtOnce).build().map_err(refused)?;
    line.show("taking cleared pages from the pool and from the kernel", 0.3);
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let cleared = page_cost(&pool, threads.get(), CLEARED)
        .map_err(|error| Failure::failed(format!("cannot measure the cost of pages: {error}")))?;
    line.show("running on the pool", 0.6);
    let plan = Plan {
        workload: Workload::Touch,
        threads,
        duration: ON_POOL,
        warm_up: Duration::ZERO,
        seed: 1,
        pages: pool.frames(),
        latencies: Latencies::Sampled,
    };
    let measured = run_on_pool(&pool, &zonal_linux::PoolPolicy::local(), &plan, interrupted, &mut |_| ())
        .map_err(|error| Failure::failed(format!("cannot start {threads} threads: {error}")))?;
    Ok(Checkup { model, rules, report, sample, pool: measured, pool_bytes: bytes, cleared })
}
