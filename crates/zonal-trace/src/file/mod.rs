//! The file: a line with the version, and then records with a checksum that also covers the record before.
//!
//! A record is a kind, a length, the contents, and a checksum over these and the previous checksum. A record
//! that is missing, repeated or moved is therefore found. The first record is the header, and the last the
//! trailer, without which a trace is cut off. `docs/trace-format.md` describes the bytes.
//!
//! Related files: `file/writer.rs` writes a file, `file/reader.rs` reads one, and `block/` has the contents of blocks.

mod reader;
mod records;
mod writer;

pub use reader::TraceReader;
pub use writer::TraceWriter;

/// The first line of every trace.
pub const FIRST_LINE: &str = "zonal trace 1\n";

/// What the first line of every version begins with.
const FIRST_WORDS: &str = "zonal trace ";

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecordKind {
    /// The header, packed JSON.
    Header,
    /// Events of a CPU.
    Block,
    /// A moment: all events before it are in earlier records, except some that their CPU delivered late.
    Complete,
    /// The trailer, packed JSON.
    Trailer,
}

impl RecordKind {
    const ALL: [Self; 4] = [Self::Header, Self::Block, Self::Complete, Self::Trailer];

    const fn letter(self) -> u8 {
        match self {
            Self::Header => b'H',
            Self::Block => b'B',
            Self::Complete => b'C',
            Self::Trailer => b'T',
        }
    }
}

/// The largest header or trailer, unpacked: `/proc/zoneinfo` has 150 bytes for each CPU and zone.
const DOCUMENT_BYTES_MAX: usize = 512 << 20;

/// The largest header or trailer in the file.
const PACKED_DOCUMENT_BYTES_MAX: usize = 64 << 20;

/// The most block bytes between two [`RecordKind::Complete`] records. A reader holds them.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// The most memory for the blocks whose events a reader is returning, one for each CPU.
const ACTIVE_BYTES_MAX: usize = 512 << 20;
