//! `zonal lab what-if`: what each mechanism would change on a machine.
//!
//! Related files: `zonal_lab::what_if` simulates.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::available_parallelism;

use clap::Args;
use serde::Serialize;
use zonal_lab::experiment;
use zonal_lab::replay::OwnTrace;
use zonal_lab::what_if::{
    Asked, Effect, Figure, LoadKind, Mechanism, Question, Verdict, WhatIf, WhatIfError, what_if,
};
use zonal_machine::state::CapturedState;
use zonal_machine::{Escaped, MachineModel, preset};

use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};
use crate::outcome::{Failure, print};
use crate::progress::ProgressLine;
use crate::values::whole;

/// Operations of each run by default, with which all runs together take less than a minute.
const OPERATIONS: u64 = 60_000;
/// The same for traces, in which pagesets adapt only if they have seconds.
const EVENTS: u64 = 1_000_000;

/// Say what each mechanism would change on a machine, how sure that is, and from how many CPUs it pays
#[derive(Args, Clone, Debug)]
pub(super) struct WhatIfArgs {
    /// A machine file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["preset", "capture"])]
    machine: Option<PathBuf>,

    /// A well-known machine
    #[arg(long, value_name = "NAME", conflicts_with = "capture")]
    preset: Option<String>,

    /// A file of `zonal capture`: its machine, as full and as fragmented as it was
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// What runs: a recorded trace; by default also its machine
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    trace: Option<PathBuf>,

    /// What runs: a program that suits the machine
    #[arg(long, value_name = "KIND", value_parser = kind, default_value = "page-faults")]
    workload: LoadKind,

    /// About how many operations each run has [default: 60000, and 1000000 events of a trace]
    #[arg(long, value_name = "N", value_parser = whole(1..=1_000_000_000), allow_hyphen_values = true)]
    operations: Option<u64>,

    /// Print everything as one JSON document
    #[arg(long)]
    json: bool,
}

fn kind(name: &str) -> Result<LoadKind, String> {
    LoadKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = LoadKind::ALL.map(LoadKind::name).join(", ");
        format!("there is no such program; programs are {names}")
    })
}

impl From<WhatIfError> for Failure {
    fn from(error: WhatIfError) -> Self {
        match error {
            WhatIfError::Interrupted => Self::interrupted(error),
            WhatIfError::Unfit(..) => Self::bad_input(error),
            WhatIfError::Replay(error) => error.into(),
            WhatIfError::Run(_) => Self::failed(error),
        }
    }
}

pub(super) fn run(args: &WhatIfArgs, stop: &AtomicBool) -> Result<(), Failure> {
    let captured =
        args.capture.as_deref().map(CapturedState::read).transpose().map_err(Failure::bad_input)?;
    let named = match (&args.machine, &args.preset, &captured) {
        (Some(file), ..) => Some(MachineModel::read(file).map_err(Failure::bad_input)?),
        (_, Some(name), _) => Some(preset(name).map_err(Failure::bad_input)?),
        (.., Some(captured)) => Some(captured.model.clone()),
        _ => None,
    };
    let before = captured.as_ref().map(|captured| &captured.sample);
    let trace = args.trace.as_deref().map(|file| OwnTrace::open(file, named.as_ref(), before)).transpose()?;
    let machine = match (&trace, named) {
        (Some(trace), _) => trace.model().clone(),
        (None, Some(named)) => named,
        (None, None) => zonal_machine::capture_live().map_err(Failure::failed)?.model,
    };
    let jobs = available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let load = trace.as_ref().map_or(Asked::Kind(args.workload), Asked::Trace);
    let operations = args.operations.unwrap_or(if trace.is_some() { EVENTS } else { OPERATIONS });
    let question = Question { machine: &machine, before, load, operations, jobs };
    let found = simulated(&question, stop)?;
    let shown = if args.json { json(&found) } else { text(&found, Width::of_output()) };
    print(&shown)
}

fn simulated(question: &Question<'_>, stop: &AtomicBool) -> Result<WhatIf, Failure> {
    experiment::silence_faults();
    let line = ProgressLine::begin();
    Ok(what_if(question, stop, &|share| line.show("what-if", share))?)
}

/// The answer as a JSON document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    machine: &'a str,
    load: &'a str,
    runs: usize,
    mechanisms: Vec<Row<'a>>,
    scaling: Vec<ScalingRow<'a>>,
    answer: &'a str,
}

#[derive(Serialize)]
struct Row<'a> {
    mechanism: &'static str,
    without: &'static str,
    figure: &'static str,
    off: f64,
    on: f64,
    spread: f64,
    verdict: &'static str,
    flips_with: &'a [String],
    idle: Option<&'a str>,
    note: Option<&'a str>,
}

#[derive(Serialize)]
struct ScalingRow<'a> {
    mechanism: &'static str,
    saved_percent: &'a [(usize, f64)],
    pays_from: Option<usize>,
    not_at: Option<usize>,
}

const fn named(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Gain => "gain",
        Verdict::Loss => "cost",
        Verdict::Same => "same",
    }
}

fn rows(found: &WhatIf) -> Vec<Row<'_>> {
    fn row<'a>(found: &'a WhatIf, effect: &'a Effect) -> Row<'a> {
        let Effect { mechanism, figure, off, on, spread, flips_with, verdict } = effect;
        let of = |all: &'a [(Mechanism, String)]| {
            all.iter().find(|(known, _)| known == mechanism).map(|(_, why)| why.as_str())
        };
        Row {
            mechanism: mechanism.name(),
            without: mechanism.without(),
            figure: figure.name(),
            off: *off,
            on: *on,
            spread: *spread,
            verdict: named(*verdict),
            flips_with,
            idle: of(&found.idle),
            note: of(&found.notes),
        }
    }
    found.effects.iter().map(|effect| row(found, effect)).collect()
}

fn json(found: &WhatIf) -> String {
    let scaling = found.scaling.iter().map(|scaling| ScalingRow {
        mechanism: scaling.mechanism.name(),
        saved_percent: &scaling.saved,
        pays_from: scaling.pays.map(|(from, _)| from),
        not_at: scaling.pays.map(|(_, below)| below).filter(|&below| below > 0),
    });
    let document = Document {
        schema: "zonal.lab-what-if.v1",
        machine: &found.machine,
        load: &found.load,
        runs: found.runs,
        mechanisms: rows(found),
        scaling: scaling.collect(),
        answer: &found.answer,
    };
    serde_json::to_string(&document).expect("names and numbers are always JSON") + "\n"
}

fn text(found: &WhatIf, width: Width) -> String {
    let mut text = width.paragraph("", "", &Escaped(&found.answer).to_string());
    let about = format!("Simulated on {}, {} runs: {}.", found.machine, found.runs, found.load);
    text += &format!("\n{}\n", width.paragraph("", "", &Escaped(about).to_string()));
    for figure in Figure::ALL {
        let columns = [
            ("mechanism", Text),
            ("off", Numbers),
            ("on", Numbers),
            ("spread", Numbers),
            ("verdict", Text),
            ("changes with", Text),
        ];
        let mut grid = Grid::new(1, columns);
        for row in rows(found).into_iter().filter(|row| row.figure == figure.name()) {
            grid.row([
                row.mechanism.to_owned(),
                format!("{:.2}", row.off),
                format!("{:.2}", row.on),
                format!("{:.2}", row.spread),
                if row.idle.is_some() { "cannot act".to_owned() } else { row.verdict.to_owned() },
                row.flips_with.join(", "),
            ]);
        }
        let mut name = figure.name().to_owned();
        name[..1].make_ascii_uppercase();
        text += &format!("{name}\n{}\n", grid.render("  ", width));
    }
    for (mechanism, why) in &found.idle {
        text += &width.paragraph("", "", &format!("{} cannot act: {why}.", mechanism.name()));
    }
    for (mechanism, note) in &found.notes {
        text += &width.paragraph("", "", &format!("{}: {note}.", mechanism.name()));
    }
    text += &width.paragraph(
        "",
        "",
        "Costs are assumed: each of four was also taken a fifth lower and higher, and a verdict that differs then is named.",
    );
    let columns = [("mechanism", Text), ("CPUs", Numbers), ("saves %", Numbers)];
    let mut grid = Grid::new(1, columns);
    for scaling in &found.scaling {
        for (cpus, saved) in &scaling.saved {
            grid.row([scaling.mechanism.name().to_owned(), cpus.to_string(), format!("{saved:.1}")]);
        }
    }
    text += &format!(
        "\nPage faults on one zone: time in the allocator that a mechanism saves\n{}",
        grid.render("  ", width)
    );
    text
}
