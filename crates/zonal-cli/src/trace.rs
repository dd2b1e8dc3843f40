//! `zonal trace`: what the kernel's page allocator did.
//!
//! Related files: `zonal-trace` records, reads and writes traces; `trace/tables.rs` has the tables of `info`, which
//! `trace/text.rs` prints and `trace/page.rs` puts on a page; `trace/replay.rs` is the command `replay`.

mod page;
mod replay;
mod replay_text;
mod tables;
mod text;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use zonal_machine::output::{self, Kind};
use zonal_trace::{Format, Header, Info, RecordOptions, Recorded, TraceError, TraceReader};

use crate::interrupt;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message, warn_of_left_over};
use crate::progress::ProgressLine;
use crate::values::{ForceArg, whole};

/// The file that `record` writes by default.
const OUT_DEFAULT: &str = "zonal.trace";

/// Record what the kernel's page allocator does, say what a recording holds, and replay it
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum TraceCommand {
    Record(RecordArgs),
    Info(InfoArgs),
    Replay(replay::ReplayArgs),
    Import(ImportArgs),
    Export(ExportArgs),
}

/// Record the kernel's page-allocator tracepoints, until the command ends, the time is over, or Ctrl-C
///
/// Needs root and tracefs. The exit code is that of the command.
#[derive(Args, Clone, Debug)]
#[command(after_help = record_examples())]
struct RecordArgs {
    /// Record at most so long
    #[arg(long, value_name = "S", value_parser = seconds, allow_hyphen_values = true)]
    seconds: Option<Duration>,

    /// Write the trace to this file
    #[arg(long, value_name = "FILE", default_value = OUT_DEFAULT)]
    out: PathBuf,

    #[command(flatten)]
    force: ForceArg,

    /// Size of each CPU's ring buffer, from 64 KiB to 1 GiB [default: 16 MiB, or less if all buffers would exceed
    /// 1/32 of the memory]
    #[arg(long, value_name = "KB", value_parser = whole(64..=1 << 20), allow_hyphen_values = true)]
    buffer_kb: Option<u64>,

    /// The command to run, after `--`
    #[arg(value_name = "COMMAND", last = true)]
    command: Vec<OsString>,
}

/// Say what a trace holds: rates, orders, zones, CPUs, names, lifetimes, refills and drains, hot spots
#[derive(Args, Clone, Debug)]
struct InfoArgs {
    /// A trace
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Print everything as one JSON document
    #[arg(long)]
    json: bool,

    /// Write a page with pictures, which needs no other files
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,
}

/// Make a trace of a file that `perf record` wrote
#[derive(Args, Clone, Debug)]
#[command(after_help = import_examples())]
struct ImportArgs {
    /// A perf.data file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the trace to this file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    #[command(flatten)]
    force: ForceArg,
}

/// Write a trace for other programs
#[derive(Args, Clone, Debug)]
#[command(after_help = export_examples())]
struct ExportArgs {
    /// A trace
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The format: a table with a row for each event, or a trace for https://ui.perfetto.dev
    #[arg(long, value_name = "FORMAT")]
    to: FormatArg,

    /// Write to this file [default: the name of the trace, ending in .csv or .pftrace]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum FormatArg {
    Csv,
    Perfetto,
}

fn examples() -> String {
    let examples = [
        ("zonal trace record -- make -j4", "what a build allocates and frees"),
        ("zonal trace info zonal.trace", "what the recording holds ..."),
        ("zonal trace info zonal.trace --html trace.html", "... as a page with pictures"),
        ("zonal trace replay zonal.trace", "what other ways of adjusting pagesets would have done"),
        ("zonal trace export zonal.trace --to perfetto", "for https://ui.perfetto.dev"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn record_examples() -> String {
    let examples = [
        ("zonal trace record --seconds 10", "the whole system, for ten seconds"),
        ("zonal trace record --out tar.trace -- tar xf linux.tar", "while a command runs"),
        ("zonal trace record --buffer-kb 65536", "until Ctrl-C, with larger buffers against losses"),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn import_examples() -> String {
    let examples = [
        ("perf record -a -e 'kmem:mm_page_*' -e task:task_newtask -e task:task_rename sleep 5", ""),
        ("zonal trace import perf.data --out perf.trace", ""),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn export_examples() -> String {
    let examples = [
        ("zonal trace export zonal.trace --to csv", "writes zonal.csv"),
        ("zonal trace export zonal.trace --to perfetto --out build.pftrace", ""),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=1e9).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}` is not a number of seconds from 0.001 to 1000000000"))
}

impl From<TraceError> for Failure {
    fn from(error: TraceError) -> Self {
        match error.command_status() {
            Some(status) => Self::with_code(status, error),
            None if error.is_bad_input() => Self::bad_input(error),
            None => Self::failed(error),
        }
    }
}

/// Runs the command. Returns exit code 0 for success, 1 if the work failed or a trace is cut off, 2 for bad usage or
/// input, and 130 if the user interrupted reading. `record` returns the exit code of its command.
pub(crate) fn run(args: &TraceArgs) -> ExitCode {
    let done = match &args.command {
        TraceCommand::Record(args) => record(args),
        TraceCommand::Info(args) => info(args),
        TraceCommand::Replay(args) => replay::run(args),
        TraceCommand::Import(args) => import(args),
        TraceCommand::Export(args) => export(args),
    };
    done.unwrap_or_else(|failure| failure.of("trace").report())
}

fn record(args: &RecordArgs) -> Result<ExitCode, Failure> {
    warn_of_left_over(&args.out);
    let interrupted = interrupt::flag_without_exit().map_err(Failure::failed)?;
    let options = RecordOptions {
        out: &args.out,
        replace: args.force.replace(),
        duration: args.seconds,
        buffer_kib: args.buffer_kb,
        command: &args.command,
    };
    let recorded = zonal_trace::record(&options, &interrupted)?;
    print_message(text::recorded(&recorded, &args.out));
    text::losses(&recorded).into_iter().for_each(print_message);
    Ok(exit_code(&recorded))
}

/// Returns the exit code of the command as shells have it, or success if there was none.
fn exit_code(recorded: &Recorded) -> ExitCode {
    let code = |status: ExitStatus| status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    let code = recorded.status.and_then(code).unwrap_or(0);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// A summary of a trace as a JSON document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    origin: zonal_trace::Origin,
    kernel: &'a Option<String>,
    clock: &'a str,
    started_unix_ns: u64,
    command: &'a [String],
    absent: &'a [String],
    #[serde(flatten)]
    info: &'a Info,
}

fn json(header: &Header, info: &Info) -> String {
    let document = Document {
        schema: "zonal.trace.info.v1",
        origin: header.origin,
        kernel: &header.kernel,
        clock: &header.clock,
        started_unix_ns: header.started_unix_ns,
        command: &header.command,
        absent: &header.absent,
        info,
    };
    serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
}

fn info(args: &InfoArgs) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.html {
        output::check(file, Kind::Page, args.force.replace())?;
    }
    let mut reader = TraceReader::open(&args.file)?;
    let shown = Reading::start(&args.file, 1)?;
    let origin = args.file.display().to_string();
    let info = zonal_trace::info(&mut reader, &origin, |bytes| shown.show(bytes));
    shown.end()?;
    let (info, header) = (info?, reader.header());
    if let Some(file) = &args.html {
        let page = page::render(header, &info, &args.file);
        output::write(file, &page, Kind::Page, args.force.replace())?;
        print_message(format_args!("wrote page {}", file.display()));
    }
    let shown = if args.json {
        json(header, &info)
    } else {
        text::info(header, &info, &args.file, Width::of_output())
    };
    print(&shown)?;
    if info.is_complete {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::failed(TraceError::Cut { origin, events: info.events }))
}

fn import(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let (trailer, bytes) = zonal_trace::import(&args.file, &args.out, args.force.replace())?;
    print_message(text::written(trailer.events(), bytes, &args.out));
    Ok(ExitCode::SUCCESS)
}

fn export(args: &ExportArgs) -> Result<ExitCode, Failure> {
    let (format, extension) = match args.to {
        FormatArg::Csv => (Format::Csv, "csv"),
        FormatArg::Perfetto => (Format::Perfetto, "pftrace"),
    };
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension(extension));
    let shown = Reading::start(&args.file, 1)?;
    let replace = args.force.replace();
    let events = zonal_trace::export(&args.file, &out, format, replace, |bytes| shown.show(bytes));
    shown.end()?;
    if let Some(events) = events? {
        print_message(format_args!("wrote {events} events to {}", out.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how much of a file was read, until Ctrl-C.
struct Reading {
    line: ProgressLine,
    /// Bytes to read.
    length: u64,
    interrupted: std::sync::Arc<AtomicBool>,
}

impl Reading {
    /// Starts to read a file a number of times.
    fn start(file: &std::path::Path, times: u64) -> Result<Self, Failure> {
        let length = file.metadata().map_or(0, |about| about.len()).saturating_mul(times);
        let interrupted = interrupt::flag_on_interrupt().map_err(Failure::failed)?;
        Ok(Self { line: ProgressLine::begin(), length, interrupted })
    }

    /// Returns the flag that Ctrl-C sets.
    fn flag(&self) -> &AtomicBool {
        &self.interrupted
    }

    /// Returns whether to go on.
    fn show(&self, bytes: u64) -> bool {
        self.line.show_steps("reading", bytes, self.length);
        // Relaxed: the flag carries no other data.
        !self.interrupted.load(Ordering::Relaxed)
    }

    fn end(self) -> Result<(), Failure> {
        drop(self.line);
        // Relaxed: as above.
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(Failure::interrupted("interrupted before the end of the trace"));
        }
        Ok(())
    }
}
