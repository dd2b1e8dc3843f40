//! Records the tracepoints of the running kernel to a file.
//!
//! The order of steps: clean up after killed recorders, create an instance, read the formats, open the file, start a
//! reader for each CPU, enable the events, write the header, trace, run the command, stop tracing, write what is left, write the
//! trailer, and move the file to its place. An error in any step removes the instance and the unfinished file.
//!
//! Related files: `record/tracefs.rs` has the instance, `record/reader.rs` the readers, `record/command.rs` the command,
//! `record/setting.rs` what the header says about the system.

mod command;
mod reader;
mod setting;
mod tracefs;

use std::ffi::OsString;
use std::io::BufWriter;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use zonal::units::{CpuId, Moment};
use zonal_machine::output::{Kind as FileKind, Pending, Replace, WriteError};

use crate::error::TraceError;
use crate::file::TraceWriter;
use crate::header::{CpuTotals, Header, Trailer};

use command::Running;
use reader::{CpuReader, End, Message, now};
use setting::Prepared;
use tracefs::{Instance, Tracefs};

/// Messages that readers may send before the writer must have taken one.
const MESSAGES_MAX: usize = 256;
/// How long the writer waits for a message before it looks whether to end.
const PERIOD: Duration = Duration::from_millis(20);
/// Time between two statements that all events up to a moment are written.
const COMPLETED_EVERY_NS: u64 = 250_000_000;

/// What to record, and where to.
#[derive(Clone, Debug)]
pub struct RecordOptions<'a> {
    /// The file to write.
    pub out: &'a Path,
    /// Which files it may replace.
    pub replace: Replace,
    /// The longest time to record.
    pub duration: Option<Duration>,
    /// The size of each CPU's ring buffer in KiB; by default [`default_buffer_kib`].
    pub buffer_kib: Option<u64>,
    /// The command to run, with its arguments; empty for none. Recording ends with it.
    pub command: &'a [OsString],
}

/// A finished recording.
#[derive(Debug)]
pub struct Recorded {
    /// The header of the trace.
    pub header: Header,
    /// The trailer of the trace.
    pub trailer: Trailer,
    /// The size of the file.
    pub bytes: u64,
    /// How the command ended; `None` without a command, or if it did not end after an interrupt.
    pub status: Option<ExitStatus>,
    /// How many instances were removed that killed recorders had left.
    pub cleaned: usize,
    /// CPUs that are online at the end and were not at the start. Their events are not in the trace.
    pub came_online: Vec<u32>,
}

/// Returns the default size of each CPU's ring buffer in KiB: 16 MiB, or less if all buffers would exceed 1/32 of the
/// memory.
#[must_use]
pub fn default_buffer_kib(memory_kib: u64, cpus: u64) -> u64 {
    (memory_kib / 32 / cpus.max(1)).clamp(256, 16 << 10)
}

/// Records until the command ends, the time is over, or `interrupted` is set.
///
/// # Errors
/// Errors from tracefs, the command and the file. After an error there is no file, and nothing is left in tracefs.
pub fn record(options: &RecordOptions<'_>, interrupted: &AtomicBool) -> Result<Recorded, TraceError> {
    let tracefs = Tracefs::find()?;
    let cleaned = tracefs.clean();
    let file = Pending::begin(options.out, FileKind::Trace, options.replace)?;
    let instance = Instance::create(&tracefs)?;
    let prepared = Prepared::new(&instance, options)?;
    let (messages, received) = sync_channel(MESSAGES_MAX);
    let end = End::default();
    let recorded: Result<_, TraceError> = thread::scope(|scope| {
        // Readers end when this function does, in whichever way.
        let _guard = EndGuard(&end);
        let readers = start(scope, &instance, &prepared, messages, &end)?;
        let recorder = readers.iter().map(|(thread, _)| *thread).collect();
        // This takes a while, in which pagesets change. The header has their state when tracing begins.
        prepared.enable(&instance)?;
        let header = prepared.header(options, recorder);
        let writer = TraceWriter::new(BufWriter::with_capacity(1 << 18, file), &header);
        let writer = writer.map_err(|source| write_failed(options.out, source))?;
        let mut session = Session {
            instance: &instance,
            options,
            interrupted,
            writer,
            untils: vec![Moment::default(); header.cpus.len()],
            completed: Moment::default(),
        };
        let outcome = session.run(&received, &end);
        // Readers that wait for the writer must not wait for ever.
        drop(received);
        let skipped = readers.into_iter().map(|(_, handle)| handle.join().unwrap_or(0)).sum();
        let mut running = outcome?;
        let trailer = session.trailer(&header, skipped, running.as_mut().and_then(Running::status))?;
        let finished = session.writer.finish(trailer);
        let (file, trailer) = finished.map_err(|source| write_failed(options.out, source))?;
        let mut file = file.into_inner().map_err(|error| write_failed(options.out, error.into_error()))?;
        let bytes = file.bytes().map_err(|source| write_failed(options.out, source))?;
        file.place()?;
        Ok((header, trailer, bytes, running))
    });
    drop(instance);
    let (header, trailer, bytes, running) = recorded?;
    let status = running.and_then(|mut running| running.wait(interrupted));
    let mut came_online = setting::online_cpus().unwrap_or_default();
    came_online.retain(|cpu| !header.cpus.contains(cpu));
    Ok(Recorded { header, trailer, bytes, status, cleaned, came_online })
}

/// Requests the end of the readers when it is dropped.
struct EndGuard<'e>(&'e End);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// A reader's thread, as the kernel and as this process know it.
type Reader<'s> = (i32, thread::ScopedJoinHandle<'s, u64>);

/// Starts a reader for each CPU.
fn start<'s, 'e>(
    scope: &'s thread::Scope<'s, 'e>,
    instance: &Instance,
    prepared: &'e Prepared,
    messages: SyncSender<Message>,
    end: &'e End,
) -> Result<Vec<Reader<'s>>, TraceError> {
    let mut readers = Vec::new();
    for (place, &cpu) in prepared.cpus.iter().enumerate() {
        let reader = CpuReader {
            place,
            cpu: CpuId::new(cpu),
            pages: instance.pages(cpu)?,
            layout: prepared.page,
            layouts: &prepared.layouts,
            to: messages.clone(),
        };
        let (started, id) = sync_channel(1);
        let run = move || {
            let _ = started.send(reader::begin());
            reader.run(end)
        };
        let name = format!("zonal-trace-{cpu}");
        let thread = thread::Builder::new().name(name).spawn_scoped(scope, run);
        let thread = thread.map_err(|source| TraceError::System { what: "start a thread", source })?;
        readers.push((id.recv().unwrap_or(0), thread));
    }
    Ok(readers)
}

fn write_failed(path: &Path, source: std::io::Error) -> TraceError {
    TraceError::Write(WriteError { path: path.to_owned(), source })
}

/// A recording in progress.
struct Session<'r> {
    instance: &'r Instance,
    options: &'r RecordOptions<'r>,
    interrupted: &'r AtomicBool,
    writer: TraceWriter<BufWriter<Pending>>,
    /// For each CPU, the moment before which all its events were received.
    untils: Vec<Moment>,
    /// The last such moment of all CPUs that the file states.
    completed: Moment,
}

impl Session<'_> {
    /// Traces, runs the command and writes until the end. Returns the command if there is one.
    fn run(&mut self, received: &Receiver<Message>, end: &End) -> Result<Option<Running>, TraceError> {
        let started = Instant::now();
        self.instance.write("tracing_on", "1")?;
        let mut running = Running::start(self.options.command)?;
        loop {
            self.write_next(received)?;
            // Relaxed: the flag carries no other data.
            let is_over = self.interrupted.load(Ordering::Relaxed)
                || self.options.duration.is_some_and(|duration| started.elapsed() >= duration)
                || running.as_mut().is_some_and(|running| running.status().is_some());
            if is_over {
                break;
            }
        }
        self.instance.write("tracing_on", "0")?;
        end.request();
        while self.write_next(received)? {}
        Ok(running)
    }

    /// Writes the next message, if one comes soon. Returns whether readers still run.
    fn write_next(&mut self, received: &Receiver<Message>) -> Result<bool, TraceError> {
        let message = match received.recv_timeout(PERIOD) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => return Ok(true),
            Err(RecvTimeoutError::Disconnected) => return Ok(false),
        };
        let written = match message {
            Message::Block(block) => self.writer.block(&block),
            Message::Complete { place, until } => {
                self.untils[place] = self.untils[place].max(until);
                let until = self.untils.iter().copied().min().unwrap_or_default();
                let is_due = until.ns_since(self.completed) >= COMPLETED_EVERY_NS;
                if (is_due || self.writer.must_complete()) && until > Moment::default() {
                    self.completed = until;
                    self.writer.complete(until)
                } else {
                    Ok(())
                }
            }
            Message::Failed(source) => {
                let path = self.instance.path("per_cpu");
                return Err(tracefs::failed(path, source));
            }
        };
        written.map_err(|source| write_failed(self.options.out, source))?;
        Ok(true)
    }

    fn trailer(
        &self,
        header: &Header,
        skipped: u64,
        status: Option<ExitStatus>,
    ) -> Result<Trailer, TraceError> {
        let totals = |&cpu: &u32| Ok(CpuTotals { cpu, events: 0, lost: self.instance.lost(cpu)? });
        Ok(Trailer {
            ended_ns: now().ns(),
            cpus: header.cpus.iter().map(totals).collect::<Result<_, TraceError>>()?,
            kinds: Default::default(),
            skipped,
            command_status: status.and_then(|status| status.code()),
            after: setting::texts(),
        })
    }
}
