//! `zonal capture`: writes this machine and its state to a file, from which other commands start.
//!
//! Related files: `zonal_machine::state` captures the state and has the file's format.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use zonal_machine::output::{self, Kind};
use zonal_machine::state::{CaptureError, CapturedState};

use crate::layout;
use crate::outcome::{Failure, print_message};
use crate::values::ForceArg;

/// Write this machine and its state to a file: settings, zones, free blocks, pagesets and the limits of the cgroup
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct CaptureArgs {
    /// The file to write, as JSON
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    force: ForceArg,
}

fn examples() -> String {
    let examples = [
        ("zonal capture now.json", "free blocks by migrate type and ranges of 1 GiB need the superuser"),
        ("zonal explain --capture now.json --order 9", "what a request finds on the machine as it was"),
        ("zonal machine --capture now.json", ""),
    ];
    format!("Examples:\n{}", layout::entries(examples))
}

/// Runs the command. Returns exit code 0 for success, 1 if the state cannot be read, and 2 for bad input.
pub(crate) fn run(args: &CaptureArgs) -> ExitCode {
    write(args).map_or_else(|failure| failure.of("capture").report(), |()| ExitCode::SUCCESS)
}

fn write(args: &CaptureArgs) -> Result<(), Failure> {
    let replace = args.force.replace();
    output::check(&args.file, Kind::Capture, replace)?;
    let (captured, notes) = CapturedState::live().map_err(|error: CaptureError| Failure::failed(error))?;
    notes.iter().for_each(|note| print_message(format_args!("note: {note}")));
    output::write(&args.file, &captured.to_json(), Kind::Capture, replace)?;
    let (zones, pagesets) = (captured.sample.zones.len(), captured.sample.pagesets.len());
    print_message(format_args!("wrote {zones} zones and {pagesets} pagesets to {}", args.file.display()));
    Ok(())
}
