//! Turns an experiment file that has been read into a plan: finds the machines, combines the layers of settings, and
//! checks every run before the first one starts.
//!
//! Related files: `experiment/file.rs` reads the file; `experiment/parameters.rs` and `experiment/figures.rs` check
//! the parameters and the published figures.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use zonal::error::ConfigError;
use zonal::{Config, Layout, Machine};
use zonal_machine::state::{CapturedState, Sample};
use zonal_machine::{MachineModel, OwnedMachine, ids};

use super::cases::RUNS_MAX;
use super::choices::{Choices, check_min_free, key_of};
use super::document::{Document, FileError, Span};
use super::figures;
use super::file::{Written, WrittenPart, WrittenVariant};
use super::keys::case_key;
use super::layer::{Group, Layer};
use super::parameters::{self, Part};
use super::plan::{Plan, Run};
use super::published::PART;
use super::question;
use super::results::{CaseValue, CaseValues, VariantInfo, case_text};
use super::source::{MACHINE_BYTES_MAX, MACHINE_FILE, Source};
use crate::sim::{Hardware, Lab, SimulatedMachine};
use crate::workload::{NamedProgram, Together, Workload};

/// Maximum number of CPU IDs in a machine. The lab cannot represent more.
const CPUS_MAX: usize = 0xfffe;
/// Exclusive upper limit of a machine's frame numbers: 256 TiB with 4 KiB pages. The lab needs a limit because it
/// stores one bit for each frame.
const FRAMES_MAX: u64 = 1 << 36;
/// Maximum host memory that a run may need, in bytes.
const HOST_BYTES_MAX: f64 = (64_u64 << 30) as f64;
/// Maximum number of page operations in a run. This number of operations takes about a day on one core.
const OPERATIONS_MAX: f64 = 1e11;

/// Reads an experiment and checks all of its contents.
///
/// # Errors
/// Returns the first error in the file, with its line number.
pub fn load(source: &Source) -> Result<Plan, FileError> {
    plan(source, None)
}

/// Reads an experiment, puts all of its parts on a captured machine, and checks all of its contents. What was in use when
/// the machine was captured is allocated before each run.
///
/// # Errors
/// Returns the first error in the file, with its line number; an error for an experiment with published figures, because
/// these belong to its own machines.
pub fn load_on(source: &Source, captured: &CapturedState) -> Result<Plan, FileError> {
    let start = Start { model: Arc::new(captured.model.clone()), before: Arc::new(captured.sample.clone()) };
    plan(source, Some(&start))
}

/// A machine and what is allocated on it.
struct Start {
    model: Arc<MachineModel>,
    before: Arc<Sample>,
}

fn plan(source: &Source, start: Option<&Start>) -> Result<Plan, FileError> {
    let (name, text) = (source.name(), source.text()?);
    let document = Document { name: &name, text: &text };
    let written = Written::read(document)?;
    if start.is_some() && written.published.is_some() {
        let problem = "its published figures belong to its own machines; take an experiment without them, or write \
             one from `zonal lab example`";
        return Err(FileError { file: name, line: None, problem: problem.to_owned() });
    }
    check_name(document, &written)?;
    check_variants(document, &written)?;
    let parts = parts(document, source, &written, start)?;
    let mut plan = Plan {
        name: written.name.get_ref().clone(),
        title: written.title.clone(),
        source: written.source.clone(),
        about: written.about.clone(),
        assumptions: written.assumptions.clone(),
        machines: Vec::new(),
        variants: written.variants.iter().map(info).collect(),
        parameters: parameters::find(document, &written, &parts)?,
        calibration: None,
        fitted: Vec::new(),
        open: Vec::new(),
        question: Default::default(),
        spread: false,
        runs: Vec::new(),
        published: Default::default(),
    };
    let mut seen = HashSet::new();
    for part in &parts {
        if !plan.machines.contains(&part.model.name) {
            plan.machines.push(part.model.name.clone());
        }
        runs(document, part, &written.variants, &mut seen, &mut plan.runs)?;
    }
    for run in &mut plan.runs {
        run.before = start.map(|start| Arc::clone(&start.before));
    }
    plan.published = figures::published(document, source, &written, &plan)?;
    plan.calibration = figures::calibration(document, &written, &plan)?;
    plan.fitted = figures::named(document, &written.fitted, &mut plan.published, |row| row.fitted = true)?;
    plan.open = figures::named(document, &written.open, &mut plan.published, |row| row.open = true)?;
    plan.question = question::question(document, &written, &plan)?;
    Ok(plan)
}

fn info(variant: &WrittenVariant<'_>) -> VariantInfo {
    VariantInfo {
        name: variant.name.get_ref().clone(),
        role: *variant.role.get_ref(),
        about: variant.about.clone(),
    }
}

/// Checks the name of an experiment, which is also used as the name of its results directory.
fn check_name(document: Document<'_>, written: &Written<'_>) -> Result<(), FileError> {
    let name = written.name.get_ref();
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.chars().all(fit) && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let problem = format!(
        "name = {name:?}: must be letters, digits, `-`, `_` and `.`, starting with a letter or digit"
    );
    Err(document.error(written.name.span(), problem))
}

fn check_variants(document: Document<'_>, written: &Written<'_>) -> Result<(), FileError> {
    for (at, variant) in written.variants.iter().enumerate() {
        let name = variant.name.get_ref();
        if name.is_empty() {
            return Err(document.error(variant.name.span(), "the variant has no name; add one"));
        }
        if written.variants[..at].iter().any(|other| other.name.get_ref() == name) {
            let problem = format!("variant `{name}` is defined twice; names must be unique");
            return Err(document.error(variant.name.span(), problem));
        }
    }
    Ok(())
}

fn parts<'w, 't>(
    document: Document<'t>,
    source: &Source,
    written: &'w Written<'t>,
    start: Option<&Start>,
) -> Result<Vec<Part<'w, 't>>, FileError> {
    let mut parts: Vec<Part<'w, 't>> = Vec::new();
    // Models by preset name or by normalized file path.
    let (mut models, mut bytes_left) = (HashMap::new(), MACHINE_BYTES_MAX);
    for part in &written.parts {
        match &part.name {
            None if written.parts.len() > 1 => {
                return Err(document
                    .error(part.span.clone(), "the part has no `name`; each of several parts needs one"));
            }
            Some(name) if parts.iter().any(|other| other.written.name.as_ref() == Some(name)) => {
                let problem = format!("part `{}` is defined twice; names must be unique", name.get_ref());
                return Err(document.error(name.span(), problem));
            }
            _ => {}
        }
        let model = match (start, models.entry(plain(part.machine.get_ref()))) {
            (Some(start), _) => {
                check_size(document, part, &start.model)?;
                Arc::clone(&start.model)
            }
            (None, Entry::Occupied(known)) => Arc::clone(known.get()),
            (None, Entry::Vacant(new)) => {
                Arc::clone(new.insert(Arc::new(machine(document, source, part, &mut bytes_left)?)))
            }
        };
        let hardware = part.layer.read(document, Group::Hardware, part.span.clone())?;
        parts.push(Part { written: part, model, hardware });
    }
    Ok(parts)
}

/// Removes redundant components from a path: `./a//b.json` becomes `a/b.json`. Preset names are unchanged.
fn plain(path: &str) -> PathBuf {
    if !path.ends_with(MACHINE_FILE) {
        return path.into();
    }
    Path::new(path).components().filter(|part| *part != Component::CurDir).collect()
}

fn machine(
    document: Document<'_>,
    source: &Source,
    part: &WrittenPart<'_>,
    bytes_left: &mut usize,
) -> Result<MachineModel, FileError> {
    let model = source.machine(part.machine.get_ref(), bytes_left);
    let model = model.map_err(|error| document.error(part.machine.span(), format!("machine: {error}")))?;
    check_size(document, part, &model)?;
    Ok(model)
}

/// Checks that the lab can represent a machine.
fn check_size(document: Document<'_>, part: &WrittenPart<'_>, model: &MachineModel) -> Result<(), FileError> {
    let refused = |problem| document.error(part.machine.span(), problem);
    let cpus = model.nodes.iter().flat_map(|node| &node.cpus).map(|cpu| cpu.index() + 1).max().unwrap_or(0);
    if cpus > CPUS_MAX {
        return Err(refused(format!(
            "machine: it has CPU ids of {CPUS_MAX} or more; ids must be below {CPUS_MAX}"
        )));
    }
    let end = model.zones.iter().map(|zone| zone.start.get() + zone.spanned.get()).max().unwrap_or(0);
    if end > FRAMES_MAX {
        let problem =
            format!("machine: {} has frame {}; frames must be below {FRAMES_MAX}", model.name, end - 1);
        return Err(refused(problem));
    }
    Ok(())
}

/// Returns the runs of a part. The machine is prepared for the allocator only once, because it is far larger than the
/// settings that differ between cases.
fn runs<'t>(
    document: Document<'t>,
    part: &Part<'_, 't>,
    variants: &[WrittenVariant<'t>],
    seen: &mut HashSet<String>,
    runs: &mut Vec<Run>,
) -> Result<(), FileError> {
    let ready = OwnedMachine::from(&*part.model);
    let done = ready.with(|described| runs_on(document, described, part, variants, seen, runs));
    done.unwrap_or_else(|error| Err(document.error(part.written.machine.span(), format!("machine: {error}"))))
}

fn runs_on<'t>(
    document: Document<'t>,
    described: &Machine<'_>,
    part: &Part<'_, 't>,
    variants: &[WrittenVariant<'t>],
    seen: &mut HashSet<String>,
    runs: &mut Vec<Run>,
) -> Result<(), FileError> {
    let count = runs.len() + part.written.cases.len() * variants.len();
    if count > RUNS_MAX {
        let problem =
            format!("{count} runs of cases and variants up to this part; the maximum is {RUNS_MAX}");
        return Err(document.error(part.written.span.clone(), problem));
    }
    let mut sizes = Sizes { described, bytes: HashMap::new() };
    let mut machine =
        SimulatedMachine { model: MachineModel::clone(&part.model), hardware: part.hardware.clone() };
    for case in &part.written.cases {
        let name = part.written.name.iter().map(|name| {
            let name = CaseValue::Text(name.get_ref().clone());
            (PART.to_owned(), name)
        });
        let values: CaseValues = name.chain(case.values.iter().cloned()).collect();
        if !seen.insert(case_key(&values)) {
            let text = case_text(&values);
            let text = if text.is_empty() { "without values".to_owned() } else { text };
            let problem = format!("the case {text} is listed twice; cases must be unique");
            return Err(document.error(case.span.clone(), problem));
        }
        let case_place = (runs.len() / variants.len()) as u64;
        let layer = part.written.layer.under(&case.layer);
        let workload = workload(document, part.written, &layer)?;
        for variant in variants {
            let layer = layer.under(&variant.layer);
            machine.hardware = hardware(document, part.written, &layer)?;
            let (config, machine_bytes) = config(document, part.written, &machine, &layer, &mut sizes)?;
            check_workload(document, part.written, &layer, &workload, &machine)?;
            let operations = workload.program().operations(&machine);
            if operations > OPERATIONS_MAX {
                let problem = format!(
                    "workload: about {operations:.0e} page operations; the maximum is {OPERATIONS_MAX:e}"
                );
                return Err(document.error(part.written.workload.clone(), problem));
            }
            let host_bytes = host_bytes(document, part.written, &layer, machine_bytes, &workload, &machine)?;
            runs.push(Run {
                case: values.clone(),
                case_place,
                variant: variant.name.get_ref().clone(),
                model: Arc::clone(&part.model),
                before: None,
                hardware: machine.hardware.clone(),
                config,
                workload: workload.clone(),
                host_bytes,
                operations,
            });
        }
    }
    Ok(())
}

fn workload<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    layer: &Layer<'t>,
) -> Result<Workload, FileError> {
    let mut programs = Vec::new();
    for program in &part.programs {
        let kind = program.kind.get_ref();
        if !Workload::KINDS.contains(&kind.as_str()) {
            let known = Workload::KINDS.join(", ");
            let problem = format!("unknown kind of workload `{kind}`; kinds are {known}");
            return Err(document.error(program.kind.span(), problem));
        }
        let Some((name, cpus)) = &program.named else {
            return layer.read_kind(document, kind, part.workload.clone());
        };
        let workload: Workload =
            layer.of_program(name.get_ref()).read_kind(document, kind, program.span.clone())?;
        if matches!(workload, Workload::FallbackList(_)) {
            let problem = "fallback-list has no threads, so nothing can run at the same time";
            return Err(document.error(program.kind.span(), problem));
        }
        let Some(on_cpus) = ids::parse(cpus.get_ref(), CPUS_MAX as u64) else {
            let problem = format!("on_cpus = {:?}: must be ids of CPUs, as in \"0-31,64\"", cpus.get_ref());
            return Err(document.error(cpus.span(), problem));
        };
        programs.push(NamedProgram { name: name.get_ref().clone(), on_cpus, workload });
    }
    check_programs(document, part, layer, &programs)?;
    Ok(Workload::Together(Together { programs }))
}

/// Refuses programs on the same CPU, several programs with a page cache, and fields of programs that do not exist.
fn check_programs<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    layer: &Layer<'t>,
    programs: &[NamedProgram],
) -> Result<(), FileError> {
    for (key, _) in layer.group(Group::Workload) {
        let name = key.get_ref().split_once('.').map_or("", |(name, _)| name);
        if !programs.iter().any(|program| program.name == name) {
            let known: Vec<&str> = programs.iter().map(|program| &*program.name).collect();
            let problem = format!(
                "unknown key `{}`; write PROGRAM.KEY, config.KEY or hardware.KEY; programs are {}",
                key.get_ref(),
                known.join(", ")
            );
            return Err(document.error(key.span(), problem));
        }
    }
    let cpus = part.programs.iter().filter_map(|program| Some(program.named.as_ref()?.1.span()));
    let mut taken: HashMap<u64, &str> = HashMap::new();
    for (program, span) in programs.iter().zip(cpus) {
        for cpu in &program.on_cpus {
            if let Some(other) = taken.insert(*cpu, &program.name) {
                let problem = format!(
                    "CPU {cpu} is also that of program `{other}`; each program must have CPUs of its own"
                );
                return Err(document.error(span, problem));
            }
        }
    }
    if programs.iter().filter(|program| program.workload.uses_disk()).count() > 1 {
        let problem = "only one of several programs can use files, because the machine has one page cache and each \
                       of these programs brings its own";
        return Err(document.error(part.workload.clone(), problem));
    }
    Ok(())
}

/// Checks that a workload can run on a machine. An error has the location of the field.
fn check_workload<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    layer: &Layer<'t>,
    workload: &Workload,
    machine: &SimulatedMachine,
) -> Result<(), FileError> {
    let check = |prefix: &str, workload: &Workload, machine: &SimulatedMachine| {
        workload.program().check(machine).map_err(|unfit| {
            let field = format!("{prefix}{}", unfit.field);
            let place = layer.place(Group::Workload, &field).unwrap_or_else(|| part.workload.clone());
            document.error(place, format!("{field}: {}", unfit.problem))
        })
    };
    let Workload::Together(together) = workload else { return check("", workload, machine) };
    for (at, program) in together.programs.iter().enumerate() {
        let view = program.view(machine);
        let there: usize = view.model.nodes.iter().map(|node| node.cpus.len()).sum();
        if there < program.on_cpus.len() {
            let span =
                part.programs[at].named.as_ref().map_or(part.workload.clone(), |(_, cpus)| cpus.span());
            let problem = format!(
                "on_cpus names {} CPUs, of which machine {} has {there}",
                program.on_cpus.len(),
                machine.model.name
            );
            return Err(document.error(span, problem));
        }
        check(&format!("{}.", program.name), &program.workload, &view)?;
    }
    Ok(())
}

fn hardware<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    layer: &Layer<'t>,
) -> Result<Hardware, FileError> {
    let hardware: Hardware = layer.read(document, Group::Hardware, part.span.clone())?;
    hardware.check().map_err(|problem| {
        let field = problem.split(' ').next().unwrap_or_default();
        let place = layer.place(Group::Hardware, field).unwrap_or_else(|| part.span.clone());
        document.error(place, &problem)
    })?;
    Ok(hardware)
}

/// Returns the host memory that a run needs for the machine and for the pages that the program holds, in bytes.
fn host_bytes<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    layer: &Layer<'t>,
    machine_bytes: u64,
    workload: &Workload,
    machine: &SimulatedMachine,
) -> Result<u64, FileError> {
    let refused = |what: &str, place: Span, bytes: f64| {
        let [needed, most] = [bytes, HOST_BYTES_MAX].map(|bytes| (bytes / f64::from(1 << 30)).ceil());
        let problem = format!("{what}: needs {needed} GiB of the host's memory; the maximum is {most} GiB");
        Err(document.error(place, problem))
    };
    if machine_bytes as f64 > HOST_BYTES_MAX {
        let place = layer.place(Group::Hardware, "cache_lines").unwrap_or_else(|| part.machine.span());
        return refused("machine", place, machine_bytes as f64);
    }
    let bytes = machine_bytes as f64 + workload.program().held_bytes(machine);
    if bytes > HOST_BYTES_MAX {
        return refused("workload", part.workload.clone(), bytes);
    }
    Ok(bytes as u64)
}

/// A cache of one machine's metadata sizes.
struct Sizes<'d, 'm> {
    described: &'d Machine<'m>,
    /// Sizes in bytes, by the settings that determine them. All other inputs are the same in all runs on the machine.
    bytes: HashMap<String, usize>,
}

impl Sizes<'_, '_> {
    /// Returns the size of the metadata, in bytes.
    ///
    /// # Errors
    /// Returns an error if the configuration is not valid for the machine.
    fn metadata(&mut self, config: &Config) -> Result<usize, ConfigError> {
        let layout = Layout::new(self.described, config)?;
        let choices = format!("{:?} {:?}", config.tuning, config.free_area_min);
        let bytes = self.bytes.entry(choices);
        Ok(*bytes.or_insert_with(|| layout.requests::<Lab>().map(|request| request.bytes).sum()))
    }
}

/// Returns the configuration of a run, and the host memory that the machine needs with this configuration, in bytes.
fn config<'t>(
    document: Document<'t>,
    part: &WrittenPart<'t>,
    machine: &SimulatedMachine,
    layer: &Layer<'t>,
    sizes: &mut Sizes<'_, '_>,
) -> Result<(Config, u64), FileError> {
    let choices: Choices = layer.read(document, Group::Config, part.span.clone())?;
    let config = choices.config(&machine.model);
    let refused = |place: Option<Span>, problem: String| {
        document.error(place.unwrap_or_else(|| part.machine.span()), problem)
    };
    let misfit = |error: ConfigError| {
        let key = key_of(&error);
        let place = key.and_then(|key| layer.place(Group::Config, key));
        refused(place, format!("{}: {error}", key.unwrap_or("config")))
    };
    check_min_free(&config, &machine.model).map_err(misfit)?;
    // The directory has 16 bytes for each line of 64 bytes. A simulated cache has one word for each of its lines.
    let metadata = sizes.metadata(&config).map_err(misfit)?;
    let caches = sizes.described.cpu_ids() * machine.hardware.cache_lines * size_of::<u64>();
    let bytes = (metadata + metadata / 4 + caches) as u64;
    let frames: u64 = machine.model.zones.iter().map(|zone| zone.spanned.get()).sum();
    Ok((config, bytes + frames / 8))
}
