//! Writes blocks.
//!
//! Related files: `decoder.rs` reads them.

use std::collections::HashMap;

use flate2::{Compress, Compression, FlushCompress};
use zonal::units::{CpuId, Moment, Pfn};

use super::prediction::Prediction;
use super::{Column, EVENTS_MAX, shape};
use crate::event::{Action, Event, Kind, Tid};
use crate::numbers::{put, put_signed};

/// Bytes of shapes after which a block ends, although it may have more events.
const SHAPE_BYTES_MAX: usize = 1 << 16;

/// A finished block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedBlock {
    pub(crate) cpu: CpuId,
    pub(crate) counts: [u64; Kind::COUNT],
    pub(crate) bytes: Vec<u8>,
}

impl EncodedBlock {
    /// Returns the block's size in a file, without the frame of its record.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// Collects the events of a CPU until they fill a block.
#[derive(Debug)]
pub struct BlockEncoder {
    cpu: CpuId,
    /// The moment of the first event.
    first: Option<Moment>,
    counts: [u64; Kind::COUNT],
    columns: [Vec<u8>; Column::COUNT],
    shapes: HashMap<Action, u32>,
    /// The last shape of each kind with its index: most events have it.
    recent: [Option<(Action, u32)>; Kind::COUNT],
    at: Moment,
    thread: Tid,
    prediction: Prediction,
    events: usize,
    packer: Packer,
}

impl BlockEncoder {
    /// Creates an encoder without events.
    #[must_use]
    pub fn new(cpu: CpuId) -> Self {
        Self {
            cpu,
            first: None,
            counts: [0; Kind::COUNT],
            columns: Default::default(),
            shapes: HashMap::new(),
            recent: Default::default(),
            at: Moment::default(),
            thread: Tid::default(),
            prediction: Prediction::default(),
            events: 0,
            packer: Packer::new(),
        }
    }

    /// Adds an event of the encoder's CPU. Returns the block that it fills, if it does.
    pub fn push(&mut self, at: Moment, thread: Tid, action: Action) -> Option<EncodedBlock> {
        // Times in a block never decrease.
        let before = if self.first.is_some() && at < self.at { self.finish() } else { None };
        let kind = action.kind().index();
        let page = action.page();
        let index = self.index(action);
        put(&mut self.columns[Column::Indexes as usize], index.into());
        let first = *self.first.get_or_insert(at);
        let previous = if self.events == 0 { first } else { self.at };
        put(&mut self.columns[Column::Times as usize], at.ns_since(previous));
        let thread_change = i64::from(thread.0) - i64::from(self.thread.0);
        put_signed(&mut self.columns[Column::Threads as usize], thread_change);
        if let Some(page) = page {
            let shape = &self.recent[kind].as_ref().expect("the index of its shape was looked up").0;
            let change = page.get().wrapping_sub(self.prediction.page(shape)) as i64;
            put_signed(&mut self.columns[Column::Frames as usize], change);
            self.prediction.learn(shape, page);
        }
        (self.at, self.thread) = (at, thread);
        self.counts[kind] += 1;
        self.events += 1;
        if before.is_some() {
            return before;
        }
        let is_full =
            self.events >= EVENTS_MAX || self.columns[Column::Shapes as usize].len() >= SHAPE_BYTES_MAX;
        if is_full { self.finish() } else { None }
    }

    fn index(&mut self, mut action: Action) -> u32 {
        action.set_page(Pfn::new(0));
        let recent = &mut self.recent[action.kind().index()];
        if let Some((shape, index)) = recent
            && *shape == action
        {
            return *index;
        }
        let next = self.shapes.len() as u32;
        let shapes = &mut self.columns[Column::Shapes as usize];
        let index = *self.shapes.entry(action.clone()).or_insert_with(|| {
            shape::write(shapes, &action);
            next
        });
        *recent = Some((action, index));
        index
    }

    /// Returns the number of events that no block contains yet.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.events
    }

    /// Returns when the first such event happened.
    #[must_use]
    pub const fn first(&self) -> Option<Moment> {
        self.first
    }

    /// Returns a block of the events since the last block, if there are any.
    pub fn finish(&mut self) -> Option<EncodedBlock> {
        let first = self.first.take()?;
        let mut bytes = Vec::with_capacity(self.events * 3);
        put(&mut bytes, self.cpu.get().into());
        put(&mut bytes, self.events as u64);
        put(&mut bytes, first.ns());
        for column in &mut self.columns {
            self.packer.put(&mut bytes, column);
            column.clear();
        }
        self.shapes.clear();
        self.recent = Default::default();
        self.thread = Tid::default();
        self.prediction.clear();
        self.events = 0;
        let counts = std::mem::replace(&mut self.counts, [0; Kind::COUNT]);
        Some(EncodedBlock { cpu: self.cpu, counts, bytes })
    }

    /// Adds an event as [`BlockEncoder::push`] does.
    pub fn push_event(&mut self, event: &Event) -> Option<EncodedBlock> {
        self.push(event.at, event.thread, event.action.clone())
    }
}

/// Packs columns with deflate.
#[derive(Debug)]
struct Packer(Compress);

impl Packer {
    fn new() -> Self {
        Self(Compress::new(Compression::fast(), false))
    }

    /// Appends the length of a column, its length when packed, and the packed bytes.
    fn put(&mut self, to: &mut Vec<u8>, column: &[u8]) {
        put(to, column.len() as u64);
        let mut packed = Vec::with_capacity(column.len() / 2 + 64);
        self.0.reset();
        loop {
            let from = self.0.total_in() as usize;
            packed.reserve(column.len() / 4 + 64);
            match self.0.compress_vec(&column[from..], &mut packed, FlushCompress::Finish) {
                Ok(flate2::Status::StreamEnd) => break,
                Ok(_) => {}
                // Compression into a growing buffer has no other outcome; a stored column is as good.
                Err(_) => {
                    packed = column.to_vec();
                    break;
                }
            }
        }
        let packed = if packed.len() < column.len() { &packed[..] } else { column };
        put(to, packed.len() as u64);
        to.extend_from_slice(packed);
    }
}
