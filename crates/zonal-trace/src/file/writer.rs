//! Writes traces.
//!
//! Related files: `reader.rs` reads them, and `record/` and `import.rs` call this.

use std::io::{self, Write};

use zonal::units::Moment;

use super::records::Records;
use super::{RecordKind, WAITING_BYTES_MAX};
use crate::block::{BlockEncoder, EncodedBlock};
use crate::event::{Event, Kind};
use crate::header::{CpuTotals, Header, Trailer};

/// Events that [`TraceWriter::push`] collects before it writes blocks of all CPUs.
const COLLECTED_MAX: usize = 1 << 16;

/// Writes a trace: the header, blocks, and the trailer.
#[derive(Debug)]
pub struct TraceWriter<W> {
    records: Records<W>,
    encoders: Vec<BlockEncoder>,
    collected: usize,
    latest: Moment,
    cpus: Vec<CpuTotals>,
    kinds: [u64; Kind::COUNT],
    waiting: usize,
}

impl<W: Write> TraceWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The errors of `to`.
    pub fn new(to: W, header: &Header) -> io::Result<Self> {
        let mut records = Records::new(to)?;
        records.put_document(RecordKind::Header, header)?;
        records.flush()?;
        let cpu = |&cpu| zonal::units::CpuId::new(cpu);
        Ok(Self {
            records,
            encoders: header.cpus.iter().map(cpu).map(BlockEncoder::new).collect(),
            collected: 0,
            latest: Moment::default(),
            cpus: header.cpus.iter().map(|&cpu| CpuTotals { cpu, ..CpuTotals::default() }).collect(),
            kinds: [0; Kind::COUNT],
            waiting: 0,
        })
    }

    /// Writes a block.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a CPU that the header does not have, and the errors of the output.
    pub fn block(&mut self, block: &EncodedBlock) -> io::Result<()> {
        let cpu = block.cpu;
        let place = self.cpus.binary_search_by_key(&cpu.get(), |totals| totals.cpu);
        let unknown =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("CPU {cpu} is not in the header"));
        let totals = &mut self.cpus[place.map_err(|_| unknown())?];
        totals.events += block.counts.iter().sum::<u64>();
        self.kinds.iter_mut().zip(block.counts).for_each(|(all, new)| *all += new);
        self.waiting += block.bytes.len();
        self.records.put(RecordKind::Block, &block.bytes)
    }

    /// States that the events of all CPUs before a moment are written. Events that are written later and are older
    /// reach readers late.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn complete(&mut self, until: Moment) -> io::Result<()> {
        self.waiting = 0;
        self.records.put(RecordKind::Complete, &until.ns().to_le_bytes())?;
        self.records.flush()
    }

    /// Whether readers hold so many blocks that [`TraceWriter::complete`] must be called before the next one.
    #[must_use]
    pub const fn must_complete(&self) -> bool {
        self.waiting > WAITING_BYTES_MAX / 2
    }

    /// Adds an event. The events of all CPUs must come ordered by time.
    ///
    /// # Errors
    /// The errors of [`TraceWriter::block`].
    pub fn push(&mut self, event: &Event) -> io::Result<()> {
        let place = self.cpus.binary_search_by_key(&event.cpu.get(), |totals| totals.cpu);
        let Ok(place) = place else {
            let problem = format!("CPU {} is not in the header", event.cpu);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        };
        self.latest = self.latest.max(event.at);
        if let Some(block) = self.encoders[place].push_event(event) {
            self.block(&block)?;
        }
        self.collected += 1;
        if self.collected >= COLLECTED_MAX { self.flush() } else { Ok(()) }
    }

    /// Writes the events that [`TraceWriter::push`] collected.
    fn flush(&mut self) -> io::Result<()> {
        self.collected = 0;
        for place in 0..self.encoders.len() {
            if let Some(block) = self.encoders[place].finish() {
                self.block(&block)?;
            }
        }
        self.complete(self.latest)
    }

    /// Returns the number of events written.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Returns the bytes written.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.records.bytes()
    }

    /// Writes the trailer, completed with the totals of what was written, and returns it with the output. Lost events
    /// are those that `trailer` has.
    ///
    /// # Errors
    /// The errors of the output.
    pub fn finish(mut self, trailer: Trailer) -> io::Result<(W, Trailer)> {
        if self.collected > 0 {
            self.flush()?;
        }
        let lost = |cpu| trailer.cpus.iter().find(|known| known.cpu == cpu).map_or(0, |known| known.lost);
        for totals in &mut self.cpus {
            totals.lost = lost(totals.cpu);
        }
        let trailer = Trailer { cpus: self.cpus, kinds: self.kinds, ..trailer };
        self.records.put_document(RecordKind::Trailer, &trailer)?;
        let mut to = self.records.into_inner();
        to.flush()?;
        Ok((to, trailer))
    }
}
