//! `zonal run`: runs a workload on a pool of this machine's memory and checks the accounting at the end.
//!
//! The arguments are converted to checked [`Options`], and the options are used to create a pool. The report of the
//! workload is then printed. Related files: `zonal_bench::run_on_pool` runs the workload. `run/allocator.rs` defines
//! the options that choose the allocator's rules. `run/text.rs`, `run/verbose.rs` and `run/json.rs` print the report. With `--shared`, `run/shared.rs` starts the processes, `run/member.rs` is the work of
//! each, and `run/shared_report.rs` prints the report.

mod allocator;
mod json;
mod member;
mod shared;
mod shared_report;
pub(crate) mod text;
mod verbose;

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use zonal::config::Config;
use zonal::mempolicy::WeightTable;
use zonal::units::NodeId;
use zonal_bench::{PoolReport, run_on_pool};
use zonal_linux::{Pool, PoolError, PoolPolicy, Prefault, Publication, PublishError, Topology};
use zonal_machine::{MachineModel, check_tree, write_tree};
use zonal_workload::{self as workload, Latencies, Plan, Workload};

use allocator::AllocatorArgs;

use crate::interrupt;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message, warn_of_left_over};
use crate::progress::ProgressLine;
use crate::values::{self, ForceArg, Nodes, PolicyChoice, Size};

/// Run a workload on a pool of this machine's memory, and check the accounting
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct RunArgs {
    /// Workload of each thread; see below
    #[arg(value_parser = workload, default_value = Workload::default().name())]
    workload: Workload,

    /// Memory of the pool [default: 1GiB, or half of the available memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pool: Option<Size>,

    /// Number of worker threads [default: one per CPU; with --shared, the CPUs divided among the processes]
    #[arg(long, value_name = "N", value_parser = values::threads, allow_hyphen_values = true)]
    threads: Option<NonZeroUsize>,

    /// Duration of the measurement
    #[arg(long, value_name = "S", value_parser = values::seconds, default_value = "5", allow_hyphen_values = true)]
    seconds: Duration,

    /// Use memory of this node only; can be repeated, or be a list such as 0,2-3
    #[arg(long = "node", value_name = "N", allow_hyphen_values = true)]
    nodes: Vec<Nodes>,

    /// The placement of requests, as in local, preferred:1, preferred-many:2,1, bind:0,2-3, interleave:0-3 or weighted:0=3,1=1
    #[arg(long, value_name = "P", default_value = "local")]
    policy: PolicyChoice,

    /// Split this machine into N emulated nodes; CPU i is on node i modulo N
    #[arg(long, value_name = "N", value_parser = values::fake_nodes, allow_hyphen_values = true,
          conflicts_with = "machine")]
    fake_nodes: Option<usize>,

    /// Emulate the nodes, CPUs and distances of a machine file
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// Run the workload in several processes that share the pool, with --threads in each
    #[arg(long)]
    shared: bool,

    /// Number of processes that share the pool [default: 2]
    #[arg(long, value_name = "N", requires = "shared", value_parser = values::processes, allow_hyphen_values = true)]
    processes: Option<u8>,

    /// Kill one of the processes every S seconds, and start another in its place
    #[arg(long, value_name = "S", requires = "shared", value_parser = values::seconds, allow_hyphen_values = true)]
    kill_every: Option<Duration>,

    /// Take part in the pool of another process, which starts this one for `--shared`
    #[arg(long, value_name = "POOL", hide = true)]
    member_of: Option<String>,

    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::seed, allow_hyphen_values = true)]
    seed: u64,

    /// Write the pool's state as files of /proc and /sys below DIR, which `zonal machine --sysfs DIR` reads
    #[arg(long, value_name = "DIR")]
    export_tree: Option<PathBuf>,

    /// Publish the pool at SOCKET while the workload runs, for `zonal top --pool SOCKET` and the other commands with
    /// `--pool` in another terminal
    #[arg(long, value_name = "SOCKET")]
    publish: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,

    /// After the report, print the settings, the fallback orders, and each zone's threshold and limits
    #[arg(long, conflicts_with = "json")]
    verbose: bool,

    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,

    // These arguments must be last, because their heading applies to all arguments after it.
    #[command(flatten)]
    allocator: AllocatorArgs,
}

/// Returns the workloads and some examples, for the help.
pub(crate) fn examples() -> String {
    let workloads = Workload::ALL.map(|workload| (workload.name(), workload.summary()));
    let examples = [
        ("zonal run", "the default workload on all CPUs for 5 seconds"),
        ("zonal run batch --threads 1 --json", "one thread, the result as JSON"),
        ("zonal run orders --fake-nodes 4 --policy interleave:0-3", ""),
        ("zonal machine --preset quad-10-12-32 --export quad.json", ""),
        ("zonal run fill --machine quad.json --node-load assign --verbose", ""),
        ("zonal run random --seconds 600 --publish /tmp/run.zonal", "a pool whose settings can be changed:"),
        ("zonal set --pool /tmp/run.zonal zone_reclaim_mode=1", "... from another terminal"),
        (
            "zonal run orders --shared --processes 4 --kill-every 0.5",
            "4 processes, one killed twice a second",
        ),
        ("zonal run pair --counters fixed:32,to-zero --high-fraction 8 --invalid-free checked", ""),
    ];
    let end = "Ctrl-C ends the run early and still checks the accounting; a second one ends at once.";
    format!(
        "Workloads, for each thread:\n{}\nExamples:\n{}\n{end}",
        layout::entries(workloads),
        layout::entries(examples)
    )
}

fn workload(name: &str) -> Result<Workload, String> {
    Workload::from_name(name).ok_or_else(|| {
        let names = Workload::ALL.map(Workload::name).join(", ");
        format!("`{name}` is neither a workload nor a command; workloads are {names}")
    })
}

/// Runs the command. Returns exit code 0 for success, 1 if the accounting does not balance or the work failed, 2 if
/// the arguments are not valid on this machine, and 130 if the user interrupted the command.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let done = match &args.member_of {
        Some(pool) => member::work(args, pool),
        None => measure(args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The options, as far as they can be checked without a pool.
struct Options {
    topology: Topology,
    config: Config,
    nodes: Vec<NodeId>,
    threads: NonZeroUsize,
}

fn measure(args: &RunArgs) -> Result<(), Failure> {
    shared::check(args)?;
    let options = resolve(args)?;
    if let Some(root) = &args.export_tree {
        check_tree(root, args.force.replace()).map_err(Failure::bad_input)?;
    }
    let interrupted = interrupt::flag_on_interrupt()
        .map_err(|error| Failure::failed(format!("cannot handle Ctrl-C: {error}")))?;
    let pool = build(args, &options, &interrupted)?;
    for warning in pool.warnings() {
        print_message(format_args!("warning: {warning}"));
    }
    if args.shared {
        return measure_shared(args, &pool, options.threads, &interrupted);
    }
    let plan = Plan {
        workload: args.workload,
        threads: options.threads,
        duration: args.seconds,
        warm_up: Duration::ZERO,
        seed: args.seed,
        pages: pool.frames(),
        latencies: Latencies::Sampled,
    };
    let weights = WeightTable::new();
    let policy = policy(&pool, &args.policy, &weights)?;
    let published = publish(args, &pool)?;
    let line = ProgressLine::begin();
    let report = run_on_pool(&pool, &policy, &plan, &interrupted, &mut |now| show(&line, args, now))
        .map_err(|error| Failure::failed(format!("cannot start {} threads: {error}", plan.threads)))?;
    drop(line);
    drop(published);
    export(args, &pool)?;
    print(&rendered(args, &pool, &report))?;
    judge(&report, &interrupted)
}

/// Runs the workload in several processes, and prints their report.
fn measure_shared(
    args: &RunArgs,
    pool: &Pool,
    threads: NonZeroUsize,
    interrupted: &AtomicBool,
) -> Result<(), Failure> {
    let published = publish(args, pool)?;
    let report = shared::run(args, pool, threads, interrupted)?;
    drop(published);
    export(args, pool)?;
    print(&if args.json {
        shared_report::json(pool, &report)
    } else {
        let width = Width::of_output();
        let details = if args.verbose { verbose::render(pool, width) } else { String::new() };
        shared_report::text(pool, &report, width) + &details
    })?;
    report.judge(interrupted)
}

fn export(args: &RunArgs, pool: &Pool) -> Result<(), Failure> {
    if let Some(root) = &args.export_tree {
        write_tree(pool.snapshot(), root, args.force.replace()).map_err(Failure::failed)?;
        print_message(format_args!("wrote {}", root.display()));
        warn_of_left_over(root);
    }
    Ok(())
}

fn rendered(args: &RunArgs, pool: &Pool, report: &PoolReport) -> String {
    if args.json {
        return json::render(pool, report);
    }
    let width = Width::of_output();
    let details = if args.verbose { verbose::render(pool, width) } else { String::new() };
    text::render(pool, report, width) + &details
}

fn resolve(args: &RunArgs) -> Result<Options, Failure> {
    let mut config = args.allocator.config(args.pool.map(|Size(bytes)| bytes));
    let topology = match (&args.machine, args.fake_nodes) {
        (Some(file), _) => {
            let model = MachineModel::read(file).map_err(Failure::bad_input)?;
            config.page_bytes = model.page_bytes;
            Topology::of_machine(&model).map_err(refused)?
        }
        (None, Some(count)) => Topology::fake(count).map_err(refused)?,
        (None, None) => Topology::live(),
    };
    for node in args.policy.nodes() {
        if !topology.nodes().iter().any(|one| one.id == node) {
            let existing = Nodes(topology.nodes().iter().map(|one| one.id).collect());
            let message = format!("--policy: node {node} does not exist; the machine has {existing}");
            return Err(Failure::bad_input(message));
        }
    }
    let nodes = args.nodes.iter().flat_map(|list| list.0.iter().copied()).collect();
    Ok(Options { topology, config, nodes, threads: threads(args) })
}

/// Returns the requested number of threads in each process, or one per CPU in all of them.
fn threads(args: &RunArgs) -> NonZeroUsize {
    let cpus = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let processes = if args.shared { shared::processes(args) } else { 1 };
    let share = || NonZeroUsize::new(cpus().get() / usize::from(processes)).unwrap_or(NonZeroUsize::MIN);
    args.threads.unwrap_or_else(share)
}

fn build(args: &RunArgs, options: &Options, interrupted: &AtomicBool) -> Result<Pool, Failure> {
    let line = ProgressLine::begin();
    let on_progress = |now: zonal_linux::Progress| {
        line.show_steps("mapping memory", now.done, now.total);
        // Relaxed: no data is published with the flag.
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut builder = Pool::builder().topology(options.topology.clone()).config(options.config);
    if !options.nodes.is_empty() {
        builder = builder.nodes(options.nodes.iter().copied());
    }
    if let Some(Size(bytes)) = args.pool {
        builder = builder.size(bytes);
    }
    if args.shared {
        builder = builder.shared_by_descriptor().processes(shared::processes(args) + 1);
    } else if args.workload == Workload::Touch {
        // Without prefaulting, the kernel's time for page faults would be measured as time of the allocator.
        builder = builder.prefault(Prefault::AtOnce);
    }
    builder.on_progress(&on_progress).build().map_err(refused)
}

/// Shows the progress of a run.
fn show(line: &ProgressLine, args: &RunArgs, now: workload::Progress) {
    let seconds = now.elapsed.as_secs_f64().max(1e-9);
    let doing = format!("{}: {} pairs/s", args.workload.name(), text::si(now.pairs as f64 / seconds));
    line.show(&doing, seconds / args.seconds.as_secs_f64());
}

/// Converts an error in the creation of a pool. Most of these errors are bad input; the others are failures of the
/// system.
pub(crate) fn refused(error: PoolError) -> Failure {
    match error {
        PoolError::Interrupted => Failure::interrupted("interrupted before the pool was ready"),
        PoolError::Unreadable { .. }
        | PoolError::Map { .. }
        | PoolError::Prefault { .. }
        | PoolError::Thread(_) => Failure::failed(error),
        _ => Failure::bad_input(error),
    }
}

/// Publishes the pool if the arguments name a socket.
fn publish(args: &RunArgs, pool: &Pool) -> Result<Option<Publication>, Failure> {
    let published = args.publish.as_ref().map(|path| pool.publish(path)).transpose();
    published.map_err(|error| match error {
        PublishError::Thread { .. } => Failure::failed(error),
        _ => Failure::bad_input(format!("--publish: {error}")),
    })
}

fn policy<'w>(
    pool: &Pool,
    choice: &'w PolicyChoice,
    weights: &'w WeightTable<zonal_linux::LinuxPlatform>,
) -> Result<PoolPolicy<'w>, Failure> {
    let policy = match choice {
        PolicyChoice::Local => Ok(PoolPolicy::local()),
        PolicyChoice::Preferred(node) => pool.preferred(*node),
        PolicyChoice::PreferredMany(nodes) => pool.preferred_many(nodes),
        PolicyChoice::Bind(nodes) => pool.bind(nodes.0.iter().copied().collect()),
        PolicyChoice::Interleave(nodes) => pool.interleave(nodes.0.iter().copied().collect()),
        PolicyChoice::Weighted(pairs) => {
            pairs.iter().for_each(|&(node, weight)| weights.set(node, weight));
            pool.weighted_interleave(pairs.iter().map(|&(node, _)| node).collect(), weights)
        }
    };
    policy.map_err(|error| Failure::bad_input(format!("--policy: {error}")))
}

fn judge(report: &PoolReport, interrupted: &AtomicBool) -> Result<(), Failure> {
    if !report.is_balanced() {
        let fault =
            report.fault.map_or_else(|| text::accounting(&report.accounting), |fault| fault.to_string());
        return Err(Failure::failed(format!("the accounting does not balance: {fault}")));
    }
    // Relaxed: no data is published with the flag.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted("interrupted; the accounting balances"));
    }
    if report.measured.pairs == 0 {
        return Err(Failure::failed(format!(
            "no pair completed and {} requests failed; use a larger --pool or fewer --threads",
            report.measured.failed
        )));
    }
    Ok(())
}
