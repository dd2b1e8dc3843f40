//! `zonal machine`: explains a machine by the rules of its kernel.
//!
//! The command finds the machine, chooses the rules, calls `zonal-machine` and prints the report. Related files:
//! `machine/text.rs` formats the report as text, `machine/page.rs` as a page, and `machine/words.rs` has what both say.
//! `machine/beside.rs` compares the reports before and after changes.

mod beside;
mod page;
mod text;
pub(crate) mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use zonal_machine::output::{self, Kind};
use zonal_machine::state::CapturedState;
use zonal_machine::{
    Capture, Excerpt, KernelVersion, MachineModel, PRESETS, Report, Rules, VersionError, capture,
    capture_live, explain, preset,
};

use crate::changes::Changes;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::values::ForceArg;
use crate::values::rules::rule;
use zonal::rules::fallback_order::NodeLoad;

/// Exit code if a check found a difference.
const DIFFERS: u8 = 1;

/// The arguments of `zonal machine`.
#[derive(Args, Clone, Debug)]
#[command(
    about = "Explain a machine: its fallback orders, watermarks and pagesets, with advice",
    after_help = presets_help()
)]
pub(crate) struct MachineArgs {
    #[command(flatten)]
    source: Source,

    /// The rules to apply: auto (those of the machine's own kernel, or the newest known if there is none) or a Linux
    /// version, such as 5.10, 6.1, 6.12 or 7.2
    #[arg(long, value_name = "VERSION", default_value = "auto", value_parser = rules_choice, allow_hyphen_values = true)]
    rules: RulesChoice,

    /// How node load grows, overriding the version's rule: by one (from 5.18), by the number of nodes left (5.16 and
    /// 5.17), or set to that number (2.6.23 to 5.15)
    #[arg(long, value_name = "RULE", value_parser = rule::<NodeLoad>())]
    node_load: Option<NodeLoad>,

    /// Compare predictions with what the machine's kernel reports; exit with 1 if any differs, except values
    /// computed at boot, before all memory was released to the zones
    #[arg(long)]
    check: bool,

    /// Write the machine to a file that --file reads back; with --check, only if nothing differs
    #[arg(long, value_name = "FILE")]
    export: Option<PathBuf>,

    /// Write the report as a page with pictures, which needs no other files; with --check, also if a value differs
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    force: ForceArg,

    #[command(flatten)]
    changes: Changes,

    /// Print the report as one JSON document
    #[arg(long)]
    json: bool,
}

/// Where the machine is read from; by default this machine.
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

    /// A file of `zonal capture`
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

/// The selected rules.
#[derive(Clone, Copy, Debug)]
enum RulesChoice {
    Auto,
    Of(KernelVersion),
}

fn rules_choice(text: &str) -> Result<RulesChoice, VersionError> {
    match text {
        "auto" => Ok(RulesChoice::Auto),
        text => text.parse().and_then(KernelVersion::checked).map(RulesChoice::Of),
    }
}

fn presets_help() -> String {
    let examples = [
        ("zonal machine", "this machine"),
        ("zonal machine --check", "... and whether its kernel agrees"),
        ("zonal machine --preset quad-10-12-32 --rules 5.10", ""),
        ("zonal machine --preset quad-10-12-32 --export quad.json", "writes a machine file"),
        ("zonal machine --file quad.json --json", ""),
        ("zonal machine --html machine.html", "writes a page with pictures"),
        ("zonal machine --sysfs captured", "a copy of another machine's /sys and /proc"),
        ("zonal machine --set min_free_kbytes=1048576", "what another setting would change"),
        ("zonal machine --preset quad-10-12-32 --without 3", "what would change if node 3 left"),
    ];
    let presets = PRESETS.iter().map(|preset| (preset.name, preset.description));
    format!("Presets:\n{}\nExamples:\n{}", layout::entries(presets), layout::entries(examples))
}

/// Explains the selected machine. Returns exit code 1 if `--check` finds a difference that is not explained by values
/// computed at boot from fewer frames, or if a file could not be written although its path is valid. Returns 2 if the
/// arguments, the machine or the path are invalid, and 0 otherwise.
pub(crate) fn run(args: &MachineArgs) -> ExitCode {
    let described = if args.changes.is_empty() { described(args) } else { beside::compared(args) };
    match described {
        Ok((output, report)) => {
            if let Err(failure) = print(&output) {
                return failure.report();
            }
            if fails(args, &report) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS }
        }
        Err(failure) => failure.of("machine").report(),
    }
}

/// Whether a check was requested and found a difference.
fn fails(args: &MachineArgs, report: &Report) -> bool {
    args.check && report.checks.iter().any(zonal_machine::Check::differs)
}

/// The report as a JSON document.
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

/// Returns the output, and the report in it.
fn described(args: &MachineArgs) -> Result<(String, Report), Failure> {
    let model = machine(&args.source)?;
    let rules = rules(args, &model)?;
    let report = explain(&model, &rules);
    if args.check && report.checks.is_empty() {
        let name = Excerpt::name(&model.name);
        let problem = format!(
            "nothing to check: \"{name}\" has no values reported by its kernel; use --live, --sysfs, or a file with \"observed\""
        );
        return Err(Failure::bad_input(problem));
    }
    write(args, &model, &rules, &report)?;
    let output =
        if args.json { json(&report) } else { text::render(&model, &rules, &report, Width::of_output()) };
    Ok((output, report))
}

/// Returns the selected rules.
fn rules(args: &MachineArgs, model: &MachineModel) -> Result<Rules, Failure> {
    let observed = model.observed.as_ref().and_then(|observed| observed.kernel);
    let mut rules = Rules::of(match args.rules {
        RulesChoice::Of(version) => version,
        RulesChoice::Auto => observed.unwrap_or(KernelVersion::NEWEST),
    });
    if let Some(node_load) = args.node_load {
        rules.node_load = node_load;
    }
    Ok(rules)
}

/// Writes the machine file and the page, as far as requested. Both paths are checked before either file is written.
fn write(args: &MachineArgs, model: &MachineModel, rules: &Rules, report: &Report) -> Result<(), Failure> {
    let replace = args.force.replace();
    if let Some(file) = &args.html {
        if args.export.as_ref() == Some(file) {
            let name = Excerpt::name(file.display());
            let problem = format!("--export and --html both name {name}; choose two names");
            return Err(Failure::bad_input(problem));
        }
        output::check(file, Kind::Page, replace)?;
    }
    match &args.export {
        Some(file) if !fails(args, report) => {
            output::write(file, &model.to_json(), Kind::Machine, replace)?;
            print_message(format_args!("wrote machine file {}", file.display()));
        }
        Some(file) => {
            print_message(format_args!("machine file {} not written: a check differs", file.display()));
        }
        None => {}
    }
    if let Some(file) = &args.html {
        output::write(file, &page::render(model, rules, report), Kind::Page, replace)?;
        print_message(format_args!("wrote page {}", file.display()));
    }
    Ok(())
}

fn machine(source: &Source) -> Result<MachineModel, Failure> {
    if let Some(file) = &source.file {
        return MachineModel::read(file).map_err(Failure::bad_input);
    }
    if let Some(name) = &source.preset {
        return preset(name).map_err(Failure::bad_input);
    }
    if let Some(file) = &source.capture {
        return CapturedState::read(file).map(|captured| captured.model).map_err(Failure::bad_input);
    }
    let captured = source.sysfs.as_deref().map_or_else(capture_live, capture).map_err(Failure::bad_input);
    let Capture { model, notes, .. } = captured?;
    for note in notes {
        print_message(format_args!("note: {note}"));
    }
    Ok(model)
}
