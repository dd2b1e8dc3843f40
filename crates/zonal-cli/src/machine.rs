//! `zonal machine`: explains a machine under the rules of its kernel.
//!
//! Finds the machine, chooses the rules, lets `zonal-machine` explain and prints the report.
//! Neighbours: `machine/text.rs` lays the report out for people.

mod text;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use zonal_machine::output::WriteError;
use zonal_machine::{
    Capture, Excerpt, KernelVersion, MachineError, MachineModel, PRESETS, Report, Rules, VersionError,
    capture, capture_live, explain, preset,
};

use crate::outcome::{print, tell};
use crate::values::ForceArg;
use crate::values::rules::NodeLoadArg;

/// A check differs.
const DIFFERS: u8 = 1;
/// A file was not written.
const FAILED: u8 = 1;
/// Bad usage or bad input.
const BAD_INPUT: u8 = 2;

/// What `zonal machine` is asked.
#[derive(Args, Clone, Debug)]
#[command(
    about = "Explain a machine: fallback orders, watermarks, pagesets, and what its kernel makes of them",
    after_help = presets_help()
)]
pub(crate) struct MachineArgs {
    #[command(flatten)]
    source: Source,

    /// Whose rules: auto (the machine's own kernel, else the newest known) or a Linux version, such
    /// as 5.10, 6.1, 6.12 or 7.2
    #[arg(long, value_name = "VERSION", default_value = "auto", value_parser = rules_choice)]
    rules: RulesChoice,

    /// How node load grows, whatever the version's rule
    #[arg(long, value_name = "RULE")]
    node_load: Option<NodeLoadArg>,

    /// Hold predictions against what the machine's kernel reports; exit with 1 if any differs, other than
    /// those computed at boot, before all memory was given to the zones
    #[arg(long)]
    check: bool,

    /// Write the machine to a file that --file reads back; with --check, only if nothing differs
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,

    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
}

/// Where the machine comes from; this one, if nothing is said.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct Source {
    /// This machine (the default)
    #[arg(long)]
    live: bool,

    /// A machine file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// A captured tree: DIR/sys and DIR/proc (and DIR/dmesg) of another machine
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,

    /// A well-known machine; see below
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
}

/// The rules asked for.
#[derive(Clone, Copy, Debug)]
enum RulesChoice {
    Auto,
    Of(KernelVersion),
}

fn rules_choice(text: &str) -> Result<RulesChoice, VersionError> {
    if text == "auto" { Ok(RulesChoice::Auto) } else { text.parse().map(RulesChoice::Of) }
}

fn presets_help() -> String {
    let widest = PRESETS.iter().map(|preset| preset.name.len()).max().unwrap_or(0);
    let line = |name: &str, description: &str| format!("  {name:widest$}  {description}\n");
    let presets: String = PRESETS.iter().map(|preset| line(preset.name, preset.description)).collect();
    format!(
        "Presets:\n{presets}\nExamples:\n  \
         zonal machine                                  this machine\n  \
         zonal machine --check                          ... and whether its kernel agrees\n  \
         zonal machine --preset quad-10-12-32 --rules 5.10\n  \
         zonal machine --sysfs captured --export server.json\n  \
         zonal machine --file server.json --json"
    )
}

/// Explains the machine asked for. Exits with 0; with 1 if asked to check and a value differs that was not
/// computed at boot from fewer frames, or a file could not be written that may be; with 2 if there is no such machine.
pub(crate) fn run(args: &MachineArgs) -> ExitCode {
    match report(args) {
        Ok((model, rules, report)) => {
            let output = if args.json { json(&report) } else { text::render(&model, &rules, &report) };
            if let Err(failure) = print(&output) {
                return failure.report();
            }
            if fails(args, &report) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS }
        }
        Err((code, message)) => {
            tell(format_args!("machine: {message}"));
            ExitCode::from(code)
        }
    }
}

/// Whether a check was asked for and differs.
fn fails(args: &MachineArgs, report: &Report) -> bool {
    args.check && report.checks.iter().any(zonal_machine::Check::differs)
}

/// The report as a document of its own.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    report: &'a Report,
}

fn json(report: &Report) -> String {
    let document = Document { schema: "zonal.machine.v1", report };
    serde_json::to_string(&document).expect("numbers and names are always JSON") + "\n"
}

/// The report, or an exit code and why there is none.
fn report(args: &MachineArgs) -> Result<(MachineModel, Rules, Report), (u8, String)> {
    let model = machine(&args.source).map_err(|error| (BAD_INPUT, error.to_string()))?;
    let observed = model.observed.as_ref().and_then(|observed| observed.kernel);
    let mut rules = Rules::of(match args.rules {
        RulesChoice::Of(version) => version,
        RulesChoice::Auto => observed.unwrap_or(KernelVersion::NEWEST),
    });
    if let Some(node_load) = args.node_load {
        rules.node_load = node_load.into();
    }
    let report = explain(&model, &rules);
    if args.check && report.checks.is_empty() {
        let name = Excerpt::name(&model.name);
        let problem = format!("nothing to check: \"{name}\" has no value that its kernel reported");
        return Err((BAD_INPUT, problem));
    }
    match &args.export {
        Some(file) if !fails(args, &report) => {
            model.write(file, args.force.replace()).map_err(|error| (code_of(&error), error.to_string()))?;
            tell(format_args!("wrote {}", file.display()));
        }
        Some(file) => tell(format_args!("did not write {}: a check differs", file.display())),
        None => {}
    }
    Ok((model, rules, report))
}

/// A name that is no place for a file is bad input; a disk that refuses it is not.
fn code_of(error: &WriteError) -> u8 {
    match error.source.kind() {
        ErrorKind::AlreadyExists
        | ErrorKind::InvalidInput
        | ErrorKind::NotADirectory
        | ErrorKind::NotFound
        | ErrorKind::PermissionDenied => BAD_INPUT,
        _ => FAILED,
    }
}

fn machine(source: &Source) -> Result<MachineModel, MachineError> {
    if let Some(file) = &source.file {
        return MachineModel::read(file);
    }
    if let Some(name) = &source.preset {
        return preset(name);
    }
    let Capture { model, notes } = source.sysfs.as_deref().map_or_else(capture_live, capture)?;
    for note in notes {
        tell(format_args!("note: {note}"));
    }
    Ok(model)
}
