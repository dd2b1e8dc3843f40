//! `zonal bench`: compares the allocator with other allocators and with *floors*, the limits of this machine.
//!
//! The arguments are converted to a checked bench, and the report of the bench is printed. Related files:
//! `zonal_bench` takes the measurements. `bench/text.rs` and `bench/json.rs` print the report; `bench/figures.rs` is
//! the subcommand `figures`.

mod figures;
mod forms;
mod json;
mod text;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use zonal::units::PageCount;
use zonal_bench::{Bench, Entry, KERNEL_PAGES, Report, Workload};
use zonal_linux::PoolError;
use zonal_machine::output::{self, Kind};

use crate::interrupt;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::progress::ProgressLine;
use crate::run::refused;
use crate::values::{self, ForceArg, Size};

/// Default frame count of a pool: 4 GiB.
const FRAMES_DEFAULT: PageCount = PageCount::new(1 << 20);
/// Bytes per frame.
const PAGE_BYTES: u64 = 4096;

/// Compare zonal with other allocators, and with the limit of this machine
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = examples())]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    other: Option<Other>,

    #[command(flatten)]
    pairs: PairArgs,
}

#[derive(Subcommand, Clone, Debug)]
enum Other {
    Figures(figures::FigureArgs),
}

/// Arguments of the pair measurement.
#[derive(Args, Clone, Debug)]
struct PairArgs {
    /// Workload of each thread; see below [default: all]
    #[arg(value_name = "WORKLOAD", value_parser = workload)]
    workloads: Vec<Workload>,

    /// Measure the forms of requests instead: zone limits, nodes, policies, orders, owned blocks
    #[arg(long, conflicts_with_all = ["workloads", "svg", "peers", "llfree"])]
    forms: bool,

    #[command(flatten)]
    peers: PeerArgs,

    /// Compare with LLFree too, from a shared library with its C interface (llfree.h)
    #[arg(long, value_name = "PATH")]
    llfree: Option<PathBuf>,

    /// Number of worker threads; can be repeated, or be a list such as 1,2
    #[arg(long, value_name = "N", value_parser = values::threads, value_delimiter = ',', default_value = "1",
          allow_hyphen_values = true)]
    threads: Vec<NonZeroUsize>,

    /// Number of measured rounds
    #[arg(long, value_name = "N", value_parser = rounds, default_value = "7", allow_hyphen_values = true)]
    rounds: NonZeroUsize,

    /// Duration of each allocator's part in a round
    #[arg(long, value_name = "S", value_parser = values::seconds, default_value = "0.1", allow_hyphen_values = true)]
    seconds: Duration,

    /// Duration of unmeasured rounds before each workload; allocators that adapt to their load need a few
    /// seconds
    #[arg(long, value_name = "S", value_parser = values::seconds, default_value = "5", allow_hyphen_values = true)]
    warm_up: Duration,

    /// Memory of each pool, which is reserved and not touched [default: 4GiB, or half of the available
    /// memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pool: Option<Size>,

    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::seed, allow_hyphen_values = true)]
    seed: u64,

    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,

    /// Write the result as a bar chart (SVG) to a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,
}

/// Arguments that select peers.
#[derive(Args, Clone, Debug)]
struct PeerArgs {
    /// Compare with this allocator only; can be repeated, or be `none` [default: all in this build]
    #[arg(long = "peer", value_name = "NAME", value_parser = peer)]
    peers: Vec<String>,
}

/// The value of `--peer` that selects no peer.
const NO_PEER: &str = "none";

fn examples() -> String {
    let about = "Times are CPU time per pair: one allocation and one free. Every round runs every allocator once, and \
                 starts with a different one. Threads are not pinned. `floor-rseq` and `floor-spin` are the cost of \
                 a bare per-CPU array of frame numbers on this machine; `floor-exact` is `floor-rseq` with a \
                 state for each frame, so that it refuses invalid frees; `model` is `floor-rseq` with small \
                 arrays that are refilled in bulk. `harness` is the cost of the measurement itself, and `exchange` \
                 adds one atomic exchange to each pair. `kernel-mmap` and `kernel-memfd` are what a program pays \
                 without a pool: a mapping for each page, or a page of a file in memory, and back.";
    let examples = [
        ("zonal bench", "all workloads and peers on one thread; takes minutes"),
        ("zonal bench pair batch --threads 1,2", "two workloads on one and on two threads"),
        ("zonal bench random --peer frame-alloc --json", ""),
        (
            "zonal bench pair --peer kernel-mmap --llfree ./libllfree.so",
            "against mmap, and LLFree as you built it",
        ),
        ("zonal bench --svg bench.svg", "also writes a chart"),
        ("zonal bench --forms", "requests with limits, nodes, policies and orders"),
        ("zonal bench figures", "other figures: fragmentation, start-up, ..."),
    ];
    let end = "Ctrl-C ends the bench and prints the finished measurements; a second one ends at once.";
    format!(
        "Workloads, for each thread:\n{}\nPeers: {}{}\n\n{}\nExamples:\n{}\n{end}",
        layout::entries(workloads().map(|workload| (workload.name(), workload.summary()))),
        built_peers(),
        missing_peers(),
        Width::of_output().paragraph("", "", about),
        layout::entries(examples)
    )
}

/// Returns the names of the peers in this build.
fn built_peers() -> String {
    let built = zonal_bench::peers();
    let names: Vec<&str> = built.iter().map(Entry::name).chain(KERNEL_PAGES).collect();
    names.join(", ")
}

/// Returns the end of a peer list, which names the peers that this build does not contain.
fn missing_peers() -> String {
    let built = zonal_bench::peers();
    let is_missing = |name: &str| !built.iter().any(|entry| entry.name() == name);
    let of = |feature: &str| -> String {
        let found = zonal_bench::PEERS.into_iter().filter(|&(name, of)| of == feature && is_missing(name));
        let names: Vec<&str> = found.map(|(name, _)| name).collect();
        if names.is_empty() {
            return String::new();
        }
        format!("; {} with {}", names.join(", "), build_with(feature))
    };
    of("peers") + &of("c-peers")
}

fn build_with(feature: &str) -> String {
    format!("`cargo build --profile dist --features {feature}`")
}

/// Returns all workloads except `touch`, which measures memory.
fn workloads() -> impl Iterator<Item = Workload> {
    Workload::ALL.into_iter().filter(|workload| *workload != Workload::Touch)
}

fn workload(name: &str) -> Result<Workload, String> {
    workloads().find(|workload| workload.name() == name).ok_or_else(|| {
        let names = workloads().map(Workload::name).collect::<Vec<_>>().join(", ");
        format!(
            "`{name}` is not a workload of bench; workloads are {names}; `zonal bench figures` measures the rest"
        )
    })
}

fn peer(name: &str) -> Result<String, String> {
    let built = zonal_bench::peers();
    if name == NO_PEER || KERNEL_PAGES.contains(&name) || built.iter().any(|one| one.name() == name) {
        return Ok(name.to_owned());
    }
    if let Some((_, feature)) = zonal_bench::PEERS.iter().find(|(known, _)| *known == name) {
        return Err(format!("`{name}` is not in this build; build with {}", build_with(feature)));
    }
    let names = built_peers();
    Err(format!("`{name}` is not a peer; peers are {names}, or {NO_PEER}{}", missing_peers()))
}

fn rounds(text: &str) -> Result<NonZeroUsize, String> {
    let rounds = text.trim().parse().ok().filter(|rounds: &NonZeroUsize| rounds.get() <= ROUNDS_MAX);
    rounds.ok_or_else(|| format!("`{text}` is not a number of rounds; allowed are 1 to {ROUNDS_MAX}"))
}

/// Maximum number of rounds. More rounds would not improve the result.
const ROUNDS_MAX: usize = 100_000;

/// Runs the command. Returns exit code 0 for success, 1 if the system refused a request, 2 if the arguments are not
/// valid on this machine, and 130 if the user interrupted the command.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    let done = match &args.other {
        None => pairs(&args.pairs),
        Some(Other::Figures(args)) => figures::run(args),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn pairs(args: &PairArgs) -> Result<(), Failure> {
    let interrupted = watch_for_interrupt()?;
    warn_of_slow_build();
    if let Some(file) = &args.svg {
        output::check(file, Kind::Drawing, args.force.replace())?;
    }
    let llfree = args.llfree.as_deref().map(llfree).transpose()?;
    let bench = bench(args)?;
    if args.forms {
        return forms::run(&bench, args.json, &interrupted);
    }
    if args.peers.peers.is_empty() && zonal_bench::peers().is_empty() {
        print_message(format_args!(
            "note: other allocators are not in this build; build with {}",
            build_with("peers")
        ));
    }
    let mut entries = entries(&args.peers);
    entries.extend(llfree);
    let line = ProgressLine::begin();
    let report = bench.run(&entries, &interrupted, |now| {
        let doing = format!("{}: {}", now.workload.name(), now.contender);
        line.show_steps(&doing, now.done as u64, now.total as u64);
    });
    drop(line);
    let report = report.map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    if args.json {
        text::remarks(&report).iter().for_each(|line| print_message(format_args!("note: {line}")));
    }
    print(&if args.json {
        json::render(&report)
    } else {
        text::render(&bench, &report, Width::of_output())
    })?;
    if let Some(file) = &args.svg {
        let chart = zonal_bench::chart(&report);
        output::write(file, &chart, Kind::Drawing, args.force.replace())?;
    }
    judge(&report, &interrupted)
}

fn bench(args: &PairArgs) -> Result<Bench, Failure> {
    let mut requested = Vec::new();
    for &workload in &args.workloads {
        if !requested.contains(&workload) {
            requested.push(workload);
        }
    }
    let mut threads = args.threads.clone();
    threads.sort_unstable();
    threads.dedup();
    Ok(Bench {
        workloads: if requested.is_empty() { workloads().collect() } else { requested },
        threads,
        rounds: args.rounds,
        round_time: args.seconds,
        warm_up: args.warm_up,
        frames: frames(args.pool)?,
        seed: args.seed,
    })
}

/// Returns the frame count of a pool that fits into this machine's memory.
fn frames(requested: Option<Size>) -> Result<PageCount, Failure> {
    let wanted = requested.map_or(FRAMES_DEFAULT, |Size(bytes)| PageCount::new(bytes / PAGE_BYTES));
    match zonal_bench::pool(wanted) {
        Ok(pool) => Ok(pool.frames()),
        Err(PoolError::TooLarge { available, .. }) if requested.is_none() => {
            let half = PageCount::new(available / 2 / PAGE_BYTES);
            zonal_bench::pool(half).map(|pool| pool.frames()).map_err(refused)
        }
        Err(error) => Err(refused(error)),
    }
}

/// Returns the entry of LLFree in the library that the user names.
fn llfree(path: &Path) -> Result<Entry, Failure> {
    // SAFETY: the user names a library with this interface. Files without its functions are refused.
    let entry = unsafe { zonal_bench::llfree(path) };
    entry.map_err(|error| Failure::bad_input(format!("--llfree: {error}")))
}

/// Returns the entries of the harness, one exchange, zonal, the floors and the selected peers.
fn entries(args: &PeerArgs) -> Vec<Entry> {
    let limits = [zonal_bench::harness(), zonal_bench::exchange()];
    let ours = [zonal_bench::zonal(), zonal_bench::zonal_locked()];
    let others = zonal_bench::peers().into_iter().chain(zonal_bench::kernel_pages());
    let others = others.filter(|entry| args.select(entry));
    limits.into_iter().chain(ours).chain(zonal_bench::floors()).chain(others).collect()
}

impl PeerArgs {
    /// Whether the user has selected an allocator.
    fn select(&self, entry: &Entry) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|name| name == entry.name())
    }
}

pub(crate) fn watch_for_interrupt() -> Result<std::sync::Arc<AtomicBool>, Failure> {
    interrupt::flag_on_interrupt().map_err(|error| Failure::failed(format!("cannot handle Ctrl-C: {error}")))
}

pub(crate) fn warn_of_slow_build() {
    if cfg!(debug_assertions) {
        print_message("warning: this is not a release build; its times are meaningless");
    }
}

fn judge(report: &Report, interrupted: &AtomicBool) -> Result<(), Failure> {
    // Relaxed: no data is published with the flag.
    if interrupted.load(Ordering::Relaxed) {
        return Err(Failure::interrupted("interrupted; the finished measurements are printed"));
    }
    if report.rows.is_empty() {
        return Err(Failure::failed("nothing was measured; use a larger --pool or fewer --threads"));
    }
    Ok(())
}
