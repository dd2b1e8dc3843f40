//! Reads blocks, event by event.
//!
//! Every byte may be hostile: a checksum finds accidents only. Nothing is allocated for a length before the length was
//! compared with its bound.
//!
//! Related files: `encoder.rs` writes them.

use flate2::{Decompress, FlushDecompress, Status};
use zonal::units::{CpuId, Moment, Pfn};

use super::prediction::Prediction;
use super::{COLUMN_BYTES_MAX, Column, EVENTS_MAX, shape};
use crate::event::{Action, Event, Tid};
use crate::numbers::{BYTES_MAX, take, take_signed};

/// The numbers at the front of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockHead {
    pub(crate) cpu: CpuId,
    pub(crate) events: usize,
    pub(crate) first: Moment,
}

impl BlockHead {
    /// Takes the head from the front of a block.
    pub(crate) fn take(from: &mut &[u8]) -> Result<Self, &'static str> {
        let mut head = || Some((take(from)?, take(from)?, take(from)?));
        let (cpu, events, first) = head().ok_or("a block ends within its first numbers")?;
        let cpu = u32::try_from(cpu).map_err(|_| "a block's CPU has a number above 32 bits")?;
        if events == 0 || events > EVENTS_MAX as u64 {
            return Err("a block has no events, or more than a block may have");
        }
        Ok(Self { cpu: CpuId::new(cpu), events: events as usize, first: Moment::from_ns(first) })
    }
}

/// The rest of a block whose events are being read.
#[derive(Debug)]
pub(crate) struct BlockDecoder {
    cpu: CpuId,
    left: usize,
    shapes: Vec<Action>,
    columns: [Vec<u8>; Column::COUNT],
    places: [usize; Column::COUNT],
    at: Moment,
    thread: Tid,
    prediction: Prediction,
}

impl BlockDecoder {
    /// Unpacks a block.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub(crate) fn new(mut bytes: &[u8]) -> Result<Self, &'static str> {
        let head = BlockHead::take(&mut bytes)?;
        let mut columns: [Vec<u8>; Column::COUNT] = Default::default();
        for (place, column) in columns.iter_mut().enumerate() {
            let is_of_shapes = place == Column::Shapes as usize;
            let bytes_each = if is_of_shapes { shape::BYTES_MAX } else { BYTES_MAX };
            *column = unpack(&mut bytes, COLUMN_BYTES_MAX.min(head.events * bytes_each))?;
        }
        if !bytes.is_empty() {
            return Err("a block has bytes after its last column");
        }
        let mut from = &columns[Column::Shapes as usize][..];
        let mut shapes = Vec::new();
        while !from.is_empty() {
            if shapes.len() == head.events {
                return Err("a block lists more shapes than events");
            }
            shapes.push(shape::read(&mut from).ok_or("a shape of a block is malformed")?);
        }
        Ok(Self {
            cpu: head.cpu,
            left: head.events,
            shapes,
            columns,
            places: [0; Column::COUNT],
            at: head.first,
            thread: Tid::default(),
            prediction: Prediction::default(),
        })
    }

    /// Returns the number of events that [`BlockDecoder::next`] has not returned.
    pub(crate) const fn left(&self) -> usize {
        self.left
    }

    /// Returns the memory that the block takes, without the texts of its shapes.
    pub(crate) fn memory(&self) -> usize {
        self.columns.iter().map(Vec::len).sum::<usize>() + self.shapes.len() * size_of::<Action>()
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// Says what is wrong with the bytes.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, &'static str> {
        if self.left == 0 {
            let used = self.places.iter().skip(1).zip(self.columns.iter().skip(1));
            let are_used = used.into_iter().all(|(place, column)| *place == column.len());
            return if are_used { Ok(None) } else { Err("a column of a block is longer than its events") };
        }
        self.left -= 1;
        let short = "a column of a block is shorter than its events, or has a number above its range";
        let index = self.number(Column::Indexes, take).ok_or(short)?;
        let shape = usize::try_from(index).ok().and_then(|index| self.shapes.get(index));
        let mut action = shape.ok_or("an event has a shape that its block lacks")?.clone();
        let later = self.number(Column::Times, take).ok_or(short)?;
        self.at = self.at.ns().checked_add(later).map(Moment::from_ns).ok_or("a time is above 64 bits")?;
        let change = self.number(Column::Threads, take_signed).ok_or(short)?;
        let thread = i64::from(self.thread.0).checked_add(change).and_then(|id| i32::try_from(id).ok());
        self.thread = Tid(thread.ok_or("the id of a thread is above 32 bits")?);
        if action.page().is_some() {
            let change = self.number(Column::Frames, take_signed).ok_or(short)?;
            let page = Pfn::new(self.prediction.page(&action).wrapping_add(change as u64));
            self.prediction.learn(&action, page);
            action.set_page(page);
        }
        Ok(Some(Event { at: self.at, cpu: self.cpu, thread: self.thread, action }))
    }

    fn number<T>(&mut self, column: Column, take: impl FnOnce(&mut &[u8]) -> Option<T>) -> Option<T> {
        let all = &self.columns[column as usize];
        let mut rest = all.get(self.places[column as usize]..)?;
        let number = take(&mut rest)?;
        self.places[column as usize] = all.len() - rest.len();
        Some(number)
    }
}

/// Takes a column of at most `most` bytes from the front and unpacks it.
fn unpack(from: &mut &[u8], most: usize) -> Result<Vec<u8>, &'static str> {
    let mut lengths = || Some((take(from)?, take(from)?));
    let (length, packed) = lengths().ok_or("a block ends within the length of a column")?;
    if length > most as u64 || packed > length {
        return Err("a column of a block is longer than a column may be");
    }
    let packed = from.split_off(..packed as usize).ok_or("a block ends within a column")?;
    let length = length as usize;
    if packed.len() == length {
        return Ok(packed.to_vec());
    }
    let mut column = Vec::with_capacity(length + 16);
    let wrong = "a column of a block cannot be unpacked to its length";
    let status = Decompress::new(false).decompress_vec(packed, &mut column, FlushDecompress::Finish);
    match status {
        Ok(Status::StreamEnd) if column.len() == length => Ok(column),
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers::put;

    /// Returns a block with these columns, which are not compressed.
    fn block(events: u64, columns: [&[u8]; Column::COUNT]) -> Vec<u8> {
        let mut bytes = Vec::new();
        [0, events, 0].into_iter().for_each(|number| put(&mut bytes, number));
        for column in columns {
            put(&mut bytes, column.len() as u64);
            put(&mut bytes, column.len() as u64);
            bytes.extend_from_slice(column);
        }
        bytes
    }

    #[test]
    fn a_block_holds_no_more_than_its_events_need() {
        let free_batched = [2_u8; 3];
        let new = |events, columns| BlockDecoder::new(&block(events, columns)).map(|_| ());
        assert_eq!(new(3, [&free_batched, &[0; 3], &[0; 3], &[0; 3], &[0; 3]]), Ok(()));
        let shapes = new(2, [&free_batched, &[0; 2], &[0; 2], &[0; 2], &[0; 2]]);
        assert_eq!(shapes, Err("a block lists more shapes than events"));
        for place in 1..Column::COUNT {
            let mut columns: [&[u8]; Column::COUNT] = [&free_batched, &[0; 3], &[0; 3], &[0; 3], &[0; 3]];
            columns[place] = &[0; 3 * BYTES_MAX + 1];
            assert_eq!(new(3, columns), Err("a column of a block is longer than a column may be"), "{place}");
        }
    }
}
