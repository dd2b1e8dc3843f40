//! Blocks: events of one CPU in columns, each packed for itself.
//!
//! Most events are alike in everything except time, thread and frame. A block therefore has a list of its different
//! events without these three, its shapes, and for each event the index of its shape. Times, threads and frames are
//! differences to the previous event, and frames to the previous event of the same kind. `docs/trace-format.md`
//! describes the bytes.
//!
//! Related files: `block/encoder.rs` writes a block, `block/decoder.rs` reads one, `block/shape.rs` has the shapes, and
//! `file/` the records that contain blocks.

mod decoder;
mod encoder;
mod prediction;
mod shape;

pub(crate) use decoder::{BlockDecoder, BlockHead};
pub use encoder::{BlockEncoder, EncodedBlock};

/// The largest number of events in a block.
pub const EVENTS_MAX: usize = 1 << 14;

/// The columns, in the order in which a block has them.
#[derive(Clone, Copy)]
enum Column {
    Shapes,
    Indexes,
    Times,
    Threads,
    Frames,
}

impl Column {
    const COUNT: usize = 5;
}

/// The largest size of an unpacked column. The shapes may contain names.
const COLUMN_BYTES_MAX: usize = EVENTS_MAX * 64;

/// The largest size of a packed block.
pub(crate) const BLOCK_BYTES_MAX: usize = COLUMN_BYTES_MAX * Column::COUNT;
