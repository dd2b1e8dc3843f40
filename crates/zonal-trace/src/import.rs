//! Imports files that `perf record` wrote.
//!
//! The file is read twice: first for its CPUs, formats and names, which the header of a trace has, and then for its events
//! in the order of their moments. The machine of such a file is not known, so its zones are not either.
//!
//! Related files: `tracepoint.rs` reads the records.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use tracepoint_decode::{PerfEventBytes, PerfEventHeaderType, PerfSampleEventInfo};
use tracepoint_perf::{PerfDataFileEventOrder, PerfDataFileReader, PerfHeaderIndex};
use zonal::units::{CpuId, Moment};
use zonal_machine::input;
use zonal_machine::output::{self, Kind as FileKind, Pending, Replace, WriteError};

use crate::error::TraceError;
use crate::event::{Action, Event, Kind, Tid};
use crate::file::TraceWriter;
use crate::flags::flags;
use crate::header::{CPUS_MAX, CpuTotals, FormatText, Header, KernelTexts, Origin, Trailer};
use crate::tracepoint::{Endian, Layout, Tracepoint};

/// What is needed, for errors.
const NEEDED: &str =
    "record one with: perf record -a -e 'kmem:mm_page_*' -e task:task_newtask -e task:task_rename";

/// Imports a perf.data file. Returns the trailer of the trace and its size.
///
/// # Errors
/// [`TraceError::Read`] for a file that cannot be read, [`TraceError::Import`] for one that perf did not write or that has no
/// page-allocator events, and the errors of writing. After an error there is no file.
///
/// The first call sets a panic hook that is silent during imports and otherwise calls the one before it.
pub fn import(from: &Path, to: &Path, replace: Replace) -> Result<(Trailer, u64), TraceError> {
    let origin = from.display().to_string();
    input::stream(from).map_err(|source| TraceError::Read { origin: origin.clone(), source })?;
    let wrong = |problem: String| TraceError::Import { origin: origin.clone(), problem };
    let path = from.to_str().ok_or_else(|| wrong("its path is not UTF-8; rename the file".to_owned()))?;
    // The reader of such files checks them with assertions in places.
    let imported = quietly(|| catch_unwind(AssertUnwindSafe(|| Import::read(path, to, replace))));
    imported.unwrap_or_else(|_| Err(Problem::Content("the file is malformed".to_owned()))).map_err(
        |problem| match problem {
            Problem::Content(problem) => wrong(problem),
            Problem::Input(source) => TraceError::Read { origin: origin.clone(), source },
            Problem::Output(error) => TraceError::Write(error),
        },
    )
}

/// Runs `what`, which must catch its panics. Panics of this thread print no message meanwhile.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    thread_local! {
        static IS_QUIET: Cell<bool> = const { Cell::new(false) };
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            // A thread that is ending has no flag any more, and does not import.
            if !IS_QUIET.try_with(Cell::get).unwrap_or(false) {
                before(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = what();
    IS_QUIET.set(false);
    done
}

/// What went wrong, without the name of the file.
enum Problem {
    Content(String),
    Input(io::Error),
    Output(WriteError),
}

/// What the first reading finds.
#[derive(Default)]
struct Import {
    cpus: BTreeSet<u32>,
    names: BTreeMap<i32, String>,
    layouts: HashMap<u32, Option<Layout>>,
    formats: Vec<FormatText>,
    gfp_names: Vec<(u64, String)>,
    first_ns: Option<u64>,
    last_ns: u64,
    skipped: u64,
}

impl Import {
    fn read(path: &str, to: &Path, replace: Replace) -> Result<(Trailer, u64), Problem> {
        output::check(to, FileKind::Trace, replace).map_err(Problem::Output)?;
        let mut import = Self::default();
        let mut reader = open(path, PerfDataFileEventOrder::File)?;
        while next(&mut reader)? {
            import.look(&reader)?;
        }
        if import.gfp_names.is_empty() && import.formats.is_empty() {
            return Err(Problem::Content(format!("it has no events of the page allocator; {NEEDED}")));
        }
        let header = import.header(&reader);
        reader.close();
        let failed = |source| Problem::Output(WriteError { path: to.to_owned(), source });
        let file = Pending::begin(to, FileKind::Trace, replace).map_err(Problem::Output)?;
        let mut writer = TraceWriter::new(io::BufWriter::new(file), &header).map_err(failed)?;
        let mut reader = open(path, PerfDataFileEventOrder::Time)?;
        let mut lost: BTreeMap<u32, u64> = BTreeMap::new();
        while next(&mut reader)? {
            let Some(event) = import.event(&reader) else { continue };
            if let Action::Lost { events } = &event.action {
                let lost = lost.entry(event.cpu.get()).or_default();
                *lost = lost.saturating_add(events.unwrap_or(1));
            }
            writer.push(&event).map_err(failed)?;
        }
        let total = |&cpu: &u32| CpuTotals { cpu, events: 0, lost: lost.get(&cpu).copied().unwrap_or(0) };
        let trailer = Trailer {
            ended_ns: import.last_ns,
            cpus: header.cpus.iter().map(total).collect(),
            kinds: [0; Kind::COUNT],
            skipped: import.skipped,
            command_status: None,
            after: KernelTexts::default(),
        };
        let (file, trailer) = writer.finish(trailer).map_err(failed)?;
        let mut file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        let bytes = file.bytes().map_err(failed)?;
        file.place().map_err(Problem::Output)?;
        Ok((trailer, bytes))
    }

    /// Notes what the header needs of an event.
    fn look(&mut self, reader: &PerfDataFileReader) -> Result<(), Problem> {
        let event = reader.current_event();
        if event.header.ty != PerfEventHeaderType::Sample {
            if let (Some((id, name)), 0) = (comm(reader, &event), moment(reader, &event).1) {
                self.names.insert(id, name);
            }
            self.note(moment(reader, &event));
            return Ok(());
        }
        let Ok(info) = reader.get_sample_event_info(&event) else { return Ok(()) };
        if self.layout(&info)?.is_some() {
            self.note((info.cpu, info.time));
        }
        if self.cpus.len() > CPUS_MAX {
            return Err(Problem::Content(format!("it has events of more than {CPUS_MAX} CPUs")));
        }
        Ok(())
    }

    fn note(&mut self, (cpu, at): (u32, u64)) {
        if at > 0 {
            self.cpus.insert(cpu);
            self.first_ns = Some(self.first_ns.map_or(at, |first| first.min(at)));
            self.last_ns = self.last_ns.max(at);
        }
    }

    /// Returns the layout of a sample's records, if the trace records its tracepoint.
    fn layout(&mut self, info: &PerfSampleEventInfo<'_>) -> Result<Option<&Layout>, Problem> {
        let Some(format) = info.format() else { return Ok(None) };
        if !self.layouts.contains_key(&format.id()) {
            let endian = if info.source_big_endian() { Endian::Big } else { Endian::Little };
            let tracepoint = Tracepoint::find(format.system_name(), format.name());
            let layout = tracepoint.map(|one| Layout::new(one, format, endian)).transpose();
            let wrong = |problem| Problem::Content(format!("{}: {problem}", format.name()));
            let layout = layout.map_err(wrong)?;
            if let Some(layout) = &layout {
                let mut text = String::new();
                // Writing to a text does not fail.
                let _ = format.write_to(&mut text);
                self.formats.push(layout.described(format, &text));
                if format.name() == Kind::Alloc.name() {
                    self.gfp_names = flags(format.print_fmt());
                }
            }
            self.layouts.insert(format.id(), layout);
        }
        Ok(self.layouts.get(&format.id()).and_then(Option::as_ref))
    }

    /// Returns the current event, if it is one of ours.
    fn event(&mut self, reader: &PerfDataFileReader) -> Option<Event> {
        let event = reader.current_event();
        if event.header.ty != PerfEventHeaderType::Sample {
            let (cpu, at) = moment(reader, &event);
            let action = match comm(reader, &event) {
                Some((id, name)) => Action::Named { thread: Tid(id), name: name.into() },
                None => Action::Lost { events: Some(lost(reader, &event)?) },
            };
            let is_timed = at > 0 && self.cpus.contains(&cpu);
            let event = Event { at: Moment::from_ns(at), cpu: CpuId::new(cpu), thread: Tid(0), action };
            return is_timed.then_some(event);
        }
        let info = reader.get_sample_event_info(&event).ok()?;
        let layout = self.layouts.get(&info.format()?.id())?.as_ref()?;
        let Some((thread, action)) = layout.read(info.raw_data()).filter(|_| info.time > 0) else {
            self.skipped += 1;
            return None;
        };
        Some(Event { at: Moment::from_ns(info.time), cpu: CpuId::new(info.cpu), thread, action })
    }

    fn header(&self, reader: &PerfDataFileReader) -> Header {
        let text = |index| String::from_utf8_lossy(reader.header_string(index)).into_owned();
        let release = text(PerfHeaderIndex::OSRelease);
        let seen = |name: &str| self.formats.iter().any(|format| format.name == name);
        let absent = crate::tracepoint::TRACEPOINTS.iter().map(|one| one.name).filter(|name| !seen(name));
        Header {
            origin: Origin::PerfData,
            writer: format!("zonal {}", env!("CARGO_PKG_VERSION")),
            kernel: (!release.is_empty()).then_some(release),
            machine: None,
            command: Vec::new(),
            clock: "perf".to_owned(),
            started_ns: self.first_ns.unwrap_or(0),
            started_unix_ns: 0,
            cpus: self.cpus.iter().copied().collect(),
            buffer_kib: 0,
            recorder: Vec::new(),
            names: self.names.clone(),
            gfp_names: self.gfp_names.clone(),
            formats: self.formats.clone(),
            absent: absent.map(str::to_owned).collect(),
            before: KernelTexts::default(),
        }
    }
}

fn open(path: &str, order: PerfDataFileEventOrder) -> Result<PerfDataFileReader, Problem> {
    let mut reader = PerfDataFileReader::new();
    match reader.open_file(path, order) {
        Ok(()) => Ok(reader),
        Err(error) => Err(problem(error)),
    }
}

fn next(reader: &mut PerfDataFileReader) -> Result<bool, Problem> {
    reader.move_next_event().map_err(problem)
}

/// Distinguishes malformed contents, which the reader reports as invalid data or as a missing end, from system errors.
fn problem(error: io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput => {
            Problem::Content(format!("it is no complete file of perf ({error}); {NEEDED}"))
        }
        _ => Problem::Input(error),
    }
}

/// Returns the CPU and the moment of an event that is no sample. The moment is zero if it has none.
fn moment(reader: &PerfDataFileReader, event: &PerfEventBytes<'_>) -> (u32, u64) {
    reader.get_non_sample_event_info(event).map_or((0, 0), |info| (info.cpu, info.time))
}

/// Returns the thread and the name of an event that names a thread.
fn comm(reader: &PerfDataFileReader, event: &PerfEventBytes<'_>) -> Option<(i32, String)> {
    if event.header.ty != PerfEventHeaderType::Comm {
        return None;
    }
    let thread = reader.byte_reader().read_u32(event.data.get(12..16)?);
    let name = event.data.get(16..)?.split(|&byte| byte == 0).next()?;
    Some((thread as i32, String::from_utf8_lossy(name).into_owned()))
}

/// Returns the number of lost events that an event reports.
fn lost(reader: &PerfDataFileReader, event: &PerfEventBytes<'_>) -> Option<u64> {
    let at = match event.header.ty {
        PerfEventHeaderType::Lost => 16..24,
        PerfEventHeaderType::LostSamples => 8..16,
        _ => return None,
    };
    Some(reader.byte_reader().read_u64(event.data.get(at)?))
}
