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
            let cpu = Some(event.cpu.get()).filter(|cpu| import.cpus.contains(cpu));
            if let Action::Lost { events } = &event.action {
                // Records without a CPU count for the first one.
                let of = cpu.or(header.cpus.first().copied()).unwrap_or_default();
                let lost = lost.entry(of).or_default();
                *lost = lost.saturating_add(events.unwrap_or(1));
            }
            // Records without a moment have no place in the trace.
            if cpu.is_some() && event.at > Moment::default() {
                writer.push(&event).map_err(failed)?;
            }
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

    /// Returns the current event, if it is one of ours. The moment is zero if it has none.
    fn event(&mut self, reader: &PerfDataFileReader) -> Option<Event> {
        let event = reader.current_event();
        if event.header.ty != PerfEventHeaderType::Sample {
            let (cpu, at) = moment(reader, &event);
            let action = match comm(reader, &event) {
                Some((id, name)) => Action::Named { thread: Tid(id), name: name.into() },
                None => Action::Lost { events: Some(lost(reader, &event)?) },
            };
            return Some(Event { at: Moment::from_ns(at), cpu: CpuId::new(cpu), thread: Tid(0), action });
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tracepoint_decode::{
        PerfEventAttr, PerfEventAttrSampleType as Sample, PerfEventAttrSize, PerfEventAttrType,
        PerfEventFormat,
    };
    use tracepoint_perf::PerfDataFileWriter;

    use super::*;
    use crate::file::TraceReader;

    const FORMAT: &str = "\
name: mm_page_alloc
ID: 1
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long pfn;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned int order;\toffset:16;\tsize:4;\tsigned:0;
\tfield:int migratetype;\toffset:20;\tsize:4;\tsigned:1;
\tfield:unsigned long gfp_flags;\toffset:24;\tsize:8;\tsigned:0;

print fmt: \"pfn=0x%lx\", REC->pfn
";

    /// Returns a record of perf: its type and size, and its words.
    fn record(kind: PerfEventHeaderType, words: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * words.len() as u64;
        let header = u64::from(kind.0) | size << 48;
        [&[header], words].concat().iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Programs other than perf write records of losses without a moment and a CPU.
    #[test]
    fn losses_without_a_moment_count() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["perf.data", "p.trace"].map(|name| folder.path().join(name));
        let mut writer = PerfDataFileWriter::new();
        writer.create_file(from.to_str().unwrap()).unwrap();
        let (id, thread, at, cpu, page) = (5, 7, 1000, 3, 42);
        // The kernel's record begins in the second half of the word with its length.
        let raw = [36 | 1 << 32, thread, page, 0, 0];
        let sample = [&[id, thread, at, cpu], &raw[..]].concat();
        let lost = [(PerfEventHeaderType::Lost, vec![id, 5]), (PerfEventHeaderType::LostSamples, vec![2])];
        writer.write_event_data(&record(PerfEventHeaderType::Sample, &sample)).unwrap();
        for (kind, words) in &lost {
            writer.write_event_data(&record(*kind, words)).unwrap();
        }
        let attr = PerfEventAttr {
            attr_type: PerfEventAttrType::Tracepoint,
            size: PerfEventAttrSize(size_of::<PerfEventAttr>() as u32),
            config: 1,
            sample_type: Sample(
                Sample::Identifier.0 | Sample::Tid.0 | Sample::Time.0 | Sample::Cpu.0 | Sample::Raw.0,
            ),
            ..PerfEventAttr::default()
        };
        let format = PerfEventFormat::parse(true, "kmem", FORMAT).unwrap();
        assert!(writer.add_tracepoint_event_desc(&[id], &attr, "kmem:mm_page_alloc", &Arc::new(format)));
        writer.set_tracing_data_required(8, 4096);
        writer.finalize_and_close().unwrap();

        let (trailer, _) = import(&from, &to, Replace::Own).unwrap();
        let cpus: Vec<_> = trailer.cpus.iter().map(|cpu| (cpu.cpu, cpu.events, cpu.lost)).collect();
        assert_eq!(cpus, [(3, 1, 7)]);
        assert_eq!(TraceReader::open(&to).unwrap().count(), 1);
    }
}
