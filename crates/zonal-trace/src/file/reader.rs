//! Reads traces: an iterator over the events of all CPUs, merged by time.
//!
//! A reader holds one unpacked block of each CPU, and the packed blocks that follow until the next record that says up to
//! which moment all blocks are there.
//!
//! Related files: `writer.rs` writes them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use zonal::units::Moment;
use zonal_machine::input;

use super::records::{Found, RecordSource, document, fill};
use super::{ACTIVE_BYTES_MAX, FIRST_LINE, FIRST_WORDS, RecordKind, WAITING_BYTES_MAX};
use crate::block::{BlockDecoder, BlockHead};
use crate::error::TraceError;
use crate::event::{Event, Kind};
use crate::header::{Header, Trailer};

/// The blocks of a CPU that were read and whose events were not all returned.
#[derive(Debug, Default)]
struct Cpu {
    active: Option<BlockDecoder>,
    /// The next event, which is in the heap.
    next: Option<Event>,
    waiting: VecDeque<Vec<u8>>,
    events: u64,
}

/// Reads a trace.
///
/// As an iterator it returns the events of all CPUs, merged by time, and those of equal moments by CPU. An
/// event that its CPU delivered more than a moment late comes late, which [`TraceReader::late`] counts. After the last
/// event of a complete trace, [`TraceReader::trailer`] has the trailer; a trace that is cut off or damaged ends with an
/// error instead.
#[derive(Debug)]
pub struct TraceReader<R> {
    records: RecordSource<R>,
    origin: String,
    header: Header,
    cpus: Vec<Cpu>,
    /// The moments of the CPUs' next events, with the CPU's place.
    heap: BinaryHeap<Reverse<(Moment, usize)>>,
    waiting_bytes: usize,
    /// The sum of the active blocks' memory.
    active_bytes: usize,
    active_bytes_max: usize,
    /// All events before this moment were read.
    until: Moment,
    latest: Moment,
    late: u64,
    kinds: [u64; Kind::COUNT],
    end: End,
}

/// Whether a reader has reached the end, and how it ends.
#[derive(Debug)]
enum End {
    NotYet,
    Trailer(Box<Trailer>),
    /// The events before the error were not all returned.
    Error(Option<TraceError>),
}

impl TraceReader<BufReader<File>> {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`TraceError::Read`] for a file that cannot be read or is not a regular file, and the errors of
    /// [`TraceReader::new`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let origin = path.display().to_string();
        let file = match input::stream(path) {
            Ok(file) => file,
            Err(source) => return Err(TraceError::Read { origin, source }),
        };
        Self::new(BufReader::with_capacity(1 << 16, file), origin)
    }
}

impl<R: Read> TraceReader<R> {
    /// Reads the header. `origin` names the input in errors.
    ///
    /// # Errors
    /// [`TraceError::Foreign`], [`TraceError::Version`], [`TraceError::Cut`] and [`TraceError::Damaged`] for what is no
    /// trace or a part of one, and [`TraceError::Read`] for errors of the input.
    pub fn new(mut from: R, origin: String) -> Result<Self, TraceError> {
        match first_line(&mut from) {
            Ok(line) if line == FIRST_LINE.as_bytes() => {}
            Ok(line) => return Err(not_ours(&line, origin)),
            Err(source) => return Err(TraceError::Read { origin, source }),
        }
        let mut records = RecordSource::new(from);
        let at = records.at;
        let damaged = |origin: String, problem| Err(TraceError::Damaged { origin, at, problem });
        let header: Header = match records.next() {
            Err(source) => return Err(TraceError::Read { origin, source }),
            Ok(Found::Record(RecordKind::Header, packed)) => match document(&packed) {
                Ok(header) => header,
                Err(problem) => return damaged(origin, problem),
            },
            Ok(Found::Record(..)) => return damaged(origin, "the first record is not a header".to_owned()),
            Ok(Found::End | Found::Cut) => return Err(TraceError::Cut { origin, events: 0 }),
            Ok(Found::Damaged(problem)) => return damaged(origin, problem),
        };
        if !header.cpus.is_sorted_by(|a, b| a < b) {
            return damaged(origin, "the CPUs of the header are not ascending".to_owned());
        }
        let cpus = header.cpus.iter().map(|_| Cpu::default()).collect();
        Ok(Self {
            records,
            origin,
            header,
            cpus,
            heap: BinaryHeap::new(),
            waiting_bytes: 0,
            active_bytes: 0,
            active_bytes_max: ACTIVE_BYTES_MAX,
            until: Moment::default(),
            latest: Moment::default(),
            late: 0,
            kinds: [0; Kind::COUNT],
            end: End::NotYet,
        })
    }

    /// Returns the header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the trailer, once the last event was returned.
    #[must_use]
    pub fn trailer(&self) -> Option<&Trailer> {
        match &self.end {
            End::Trailer(trailer) if self.heap.is_empty() => Some(trailer),
            _ => None,
        }
    }

    /// Returns the number of returned events that were older than the event before.
    #[must_use]
    pub const fn late(&self) -> u64 {
        self.late
    }

    /// Returns the number of returned events.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Returns the bytes read, in whole records.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.records.at
    }

    fn damaged(&self, at: u64, problem: impl Into<String>) -> TraceError {
        TraceError::Damaged { origin: self.origin.clone(), at, problem: problem.into() }
    }

    /// Reads the next record.
    fn advance(&mut self) {
        let at = self.records.at;
        let read = match self.records.next() {
            Err(source) => Err(TraceError::Read { origin: self.origin.clone(), source }),
            Ok(Found::Record(kind, contents)) => self.take(at, kind, contents),
            Ok(Found::End | Found::Cut) => {
                let waiting: usize = self.cpus.iter().map(Cpu::known_events).sum();
                Err(TraceError::Cut { origin: self.origin.clone(), events: self.events() + waiting as u64 })
            }
            Ok(Found::Damaged(problem)) => Err(self.damaged(at, problem)),
        };
        if let Err(error) = read {
            self.end = End::Error(Some(error));
        }
    }

    fn take(&mut self, at: u64, kind: RecordKind, contents: Vec<u8>) -> Result<(), TraceError> {
        match kind {
            RecordKind::Header => Err(self.damaged(at, "there is a second header")),
            RecordKind::Block => {
                let head =
                    BlockHead::take(&mut &contents[..]).map_err(|problem| self.damaged(at, problem))?;
                let Some(place) = self.header.place(head.cpu) else {
                    let problem = format!("there is a block of CPU {}, which is not in the header", head.cpu);
                    return Err(self.damaged(at, problem));
                };
                self.waiting_bytes += contents.len();
                if self.waiting_bytes > WAITING_BYTES_MAX {
                    let problem = "there are too many blocks without a record that completes them";
                    return Err(self.damaged(at, problem));
                }
                self.cpus[place].waiting.push_back(contents);
                if self.cpus[place].next.is_none() { self.load(place, at) } else { Ok(()) }
            }
            RecordKind::Complete => {
                let until = contents.try_into().map(u64::from_le_bytes);
                let until = until.map_err(|_| self.damaged(at, "a moment does not have eight bytes"))?;
                self.until = self.until.max(Moment::from_ns(until));
                Ok(())
            }
            RecordKind::Trailer => {
                let trailer: Trailer = document(&contents).map_err(|problem| self.damaged(at, problem))?;
                match self.records.next() {
                    Err(source) => return Err(TraceError::Read { origin: self.origin.clone(), source }),
                    Ok(Found::End) => {}
                    Ok(_) => return Err(self.damaged(at, "there are bytes after the trailer")),
                }
                self.until = Moment::from_ns(u64::MAX);
                self.end = End::Trailer(Box::new(trailer));
                Ok(())
            }
        }
    }

    /// Puts the next event of a CPU into the heap, if one was read.
    fn load(&mut self, place: usize, at: u64) -> Result<(), TraceError> {
        let cpu = &mut self.cpus[place];
        loop {
            let next = match &mut cpu.active {
                Some(active) => active.next(),
                None => Ok(None),
            };
            match next {
                Err(problem) => {
                    self.active_bytes -= cpu.active.take().map_or(0, |active| active.memory());
                    return Err(self.damaged(at, problem));
                }
                Ok(Some(event)) => {
                    self.heap.push(Reverse((event.at, place)));
                    cpu.next = Some(event);
                    return Ok(());
                }
                Ok(None) => self.active_bytes -= cpu.active.take().map_or(0, |active| active.memory()),
            }
            let Some(block) = cpu.waiting.pop_front() else { return Ok(()) };
            self.waiting_bytes -= block.len();
            match BlockDecoder::new(&block) {
                Ok(active) => {
                    self.active_bytes += active.memory();
                    cpu.active = Some(active);
                }
                Err(problem) => return Err(self.damaged(at, problem)),
            }
            if self.active_bytes > self.active_bytes_max {
                let problem =
                    format!("blocks of one time need more than {} MiB", self.active_bytes_max >> 20);
                return Err(self.damaged(at, problem));
            }
        }
    }

    /// Returns the next event that no event in later records can precede.
    fn pop(&mut self) -> Option<Event> {
        let Reverse((moment, place)) = *self.heap.peek()?;
        if matches!(self.end, End::NotYet) && moment >= self.until {
            return None;
        }
        self.heap.pop();
        let event = self.cpus[place].next.take()?;
        if let Err(error) = self.load(place, self.records.at) {
            self.end = End::Error(Some(error));
        }
        self.cpus[place].events += 1;
        self.kinds[event.action.kind().index()] += 1;
        self.late += u64::from(event.at < self.latest);
        self.latest = self.latest.max(event.at);
        Some(event)
    }

    /// Compares the trailer with the events that were returned.
    fn differs(&self, trailer: &Trailer) -> bool {
        let counts = |cpu: &Cpu| cpu.events;
        trailer.kinds != self.kinds
            || !trailer.cpus.iter().map(|cpu| cpu.events).eq(self.cpus.iter().map(counts))
            || !trailer.cpus.iter().map(|cpu| cpu.cpu).eq(self.header.cpus.iter().copied())
    }
}

impl Cpu {
    fn known_events(&self) -> usize {
        let waiting = self.waiting.iter().filter_map(|block| BlockHead::take(&mut &block[..]).ok());
        let active = self.active.as_ref().map_or(0, BlockDecoder::left);
        usize::from(self.next.is_some()) + active + waiting.map(|head| head.events).sum::<usize>()
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(event) = self.pop() {
                return Some(Ok(event));
            }
            match &mut self.end {
                End::NotYet => self.advance(),
                End::Error(error) => return error.take().map(Err),
                End::Trailer(trailer) => {
                    let trailer = trailer.clone();
                    if !self.differs(&trailer) {
                        return None;
                    }
                    let problem = "the totals at the end are not those of the events";
                    let error = self.damaged(self.records.at, problem);
                    self.end = End::Error(None);
                    return Some(Err(error));
                }
            }
        }
    }
}

/// Reads as many bytes as the first line has, or fewer if the input has fewer.
fn first_line(from: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut line = vec![0; FIRST_LINE.len()];
    let read = fill(from, &mut line)?;
    line.truncate(read);
    Ok(line)
}

fn not_ours(line: &[u8], origin: String) -> TraceError {
    if FIRST_LINE.as_bytes().starts_with(line) && !line.is_empty() {
        return TraceError::Cut { origin, events: 0 };
    }
    let line = String::from_utf8_lossy(line);
    match line.strip_prefix(FIRST_WORDS).and_then(|rest| rest.split('\n').next()) {
        Some(version) if version.starts_with(|first: char| first.is_ascii_digit()) => {
            TraceError::Version { origin, version: version.to_owned() }
        }
        _ => TraceError::Foreign { origin },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use zonal::units::{CpuId, Order, Pfn};

    use super::*;
    use crate::event::{Action, Tid};
    use crate::file::TraceWriter;
    use crate::header::{KernelTexts, Origin};

    /// Returns a trace with two blocks for each of four CPUs.
    fn trace() -> Vec<u8> {
        let cpus: Vec<u32> = (0..4).collect();
        let header = Header {
            origin: Origin::Tracefs,
            writer: "test".to_owned(),
            kernel: None,
            machine: None,
            command: Vec::new(),
            clock: "mono".to_owned(),
            started_ns: 0,
            started_unix_ns: 0,
            cpus: cpus.clone(),
            buffer_kib: 0,
            recorder: Vec::new(),
            names: BTreeMap::new(),
            gfp_names: Vec::new(),
            formats: Vec::new(),
            absent: Vec::new(),
            before: KernelTexts::default(),
        };
        let mut writer = TraceWriter::new(Vec::new(), &header).unwrap();
        for (at, cpu) in cpus.iter().chain(&cpus).enumerate() {
            let mut encoder = crate::block::BlockEncoder::new(CpuId::new(*cpu));
            let action = Action::Free { page: Pfn::new(at as u64), order: Order::PAGE };
            assert!(encoder.push(Moment::from_ns(1), Tid(1), action).is_none());
            writer.block(&encoder.finish().unwrap()).unwrap();
        }
        let (ended_ns, after) = (1, KernelTexts::default());
        let kinds = [0; Kind::COUNT];
        let trailer = Trailer { ended_ns, cpus: Vec::new(), kinds, skipped: 0, command_status: None, after };
        writer.finish(trailer).unwrap().0
    }

    #[test]
    fn active_blocks_take_limited_memory() {
        let trace = trace();
        let mut reader = TraceReader::new(&trace[..], "t".to_owned()).unwrap();
        assert!(reader.next().unwrap().is_ok());
        let needed = reader.active_bytes;
        assert!(needed > 0);
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), 7);
        assert!(reader.trailer().is_some());
        assert_eq!(reader.active_bytes, 0);

        let mut reader = TraceReader::new(&trace[..], "t".to_owned()).unwrap();
        reader.active_bytes_max = needed - 1;
        let error = reader.find_map(Result::err).unwrap().to_string();
        assert!(error.contains("blocks of one time need more than"), "{error}");
    }
}
