//! Records: reading and writing them, and their checksums.
//!
//! Related files: `writer.rs` and `reader.rs` interpret their contents.

use std::io::{self, Read, Write};

use flate2::Compression;
use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{DOCUMENT_BYTES_MAX, FIRST_LINE, PACKED_DOCUMENT_BYTES_MAX, RecordKind};
use crate::block::BLOCK_BYTES_MAX;

/// Writes records.
#[derive(Debug)]
pub(super) struct Records<W> {
    to: W,
    check: u32,
    bytes: u64,
}

impl<W: Write> Records<W> {
    /// Writes the first line.
    pub(super) fn new(mut to: W) -> io::Result<Self> {
        to.write_all(FIRST_LINE.as_bytes())?;
        let check = crc32fast::hash(FIRST_LINE.as_bytes());
        Ok(Self { to, check, bytes: FIRST_LINE.len() as u64 })
    }

    pub(super) fn put(&mut self, kind: RecordKind, contents: &[u8]) -> io::Result<()> {
        let too_long = |_| io::Error::new(io::ErrorKind::FileTooLarge, "a record is longer than 4 GiB");
        let length = u32::try_from(contents.len()).map_err(too_long)?.to_le_bytes();
        self.check = check(self.check, kind.letter(), length, contents);
        self.to.write_all(&[kind.letter()])?;
        self.to.write_all(&length)?;
        self.to.write_all(contents)?;
        self.to.write_all(&self.check.to_le_bytes())?;
        self.bytes += 9 + contents.len() as u64;
        Ok(())
    }

    /// Writes a packed JSON document.
    pub(super) fn put_document(&mut self, kind: RecordKind, document: &impl Serialize) -> io::Result<()> {
        let mut packer = DeflateEncoder::new(Vec::new(), Compression::new(6));
        serde_json::to_writer(&mut packer, document)?;
        self.put(kind, &packer.finish()?)
    }

    /// Passes buffered records on, so that a file has them if this process is killed.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Returns the bytes written so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn into_inner(self) -> W {
        self.to
    }
}

fn check(before: u32, kind: u8, length: [u8; 4], contents: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&before.to_le_bytes());
    hasher.update(&[kind]);
    hasher.update(&length);
    hasher.update(contents);
    hasher.finalize()
}

/// Reads records.
#[derive(Debug)]
pub(super) struct RecordSource<R> {
    from: R,
    check: u32,
    /// Where the next record begins.
    pub(super) at: u64,
}

/// What a source of records found.
#[derive(Debug)]
pub(super) enum Found {
    Record(RecordKind, Vec<u8>),
    /// The end, right after a record.
    End,
    /// The end, within a record.
    Cut,
    Damaged(String),
}

impl<R: Read> RecordSource<R> {
    /// Creates a source after the first line was read.
    pub(super) fn new(from: R) -> Self {
        let check = crc32fast::hash(FIRST_LINE.as_bytes());
        Self { from, check, at: FIRST_LINE.len() as u64 }
    }

    pub(super) fn next(&mut self) -> io::Result<Found> {
        let mut frame = [0; 5];
        let read = fill(&mut self.from, &mut frame)?;
        if read < frame.len() {
            return Ok(if read == 0 { Found::End } else { Found::Cut });
        }
        let [letter, length @ ..] = frame;
        let Some(kind) = RecordKind::ALL.into_iter().find(|kind| kind.letter() == letter) else {
            return Ok(Found::Damaged(format!("a record has the unknown kind {letter:#04x}")));
        };
        let bytes = u32::from_le_bytes(length) as usize;
        let most = match kind {
            RecordKind::Header | RecordKind::Trailer => PACKED_DOCUMENT_BYTES_MAX,
            RecordKind::Block => BLOCK_BYTES_MAX,
            RecordKind::Complete => 8,
        };
        if bytes > most {
            let problem = format!("a record has {bytes} bytes; one of its kind has at most {most}");
            return Ok(Found::Damaged(problem));
        }
        // Memory grows with what is there, not with what is promised.
        let mut contents = Vec::new();
        self.from.by_ref().take(bytes as u64).read_to_end(&mut contents)?;
        let mut stored = [0; 4];
        if contents.len() < bytes || fill(&mut self.from, &mut stored)? < stored.len() {
            return Ok(Found::Cut);
        }
        let expected = check(self.check, letter, length, &contents);
        if u32::from_le_bytes(stored) != expected {
            return Ok(Found::Damaged("the checksum of a record is wrong".to_owned()));
        }
        self.check = expected;
        self.at += 9 + bytes as u64;
        Ok(Found::Record(kind, contents))
    }
}

/// Reads until the buffer is full or the input ends. Returns the bytes read.
pub(super) fn fill(from: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < to.len() {
        match from.read(&mut to[done..]) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads a packed JSON document.
pub(super) fn document<T: DeserializeOwned>(packed: &[u8]) -> Result<T, String> {
    let mut text = Vec::new();
    let unpacked = DeflateDecoder::new(packed).take(DOCUMENT_BYTES_MAX as u64 + 1).read_to_end(&mut text);
    unpacked.map_err(|error| format!("a document cannot be unpacked: {error}"))?;
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(format!("a document is longer than {} MiB", DOCUMENT_BYTES_MAX >> 20));
    }
    serde_json::from_slice(&text).map_err(|error| format!("a document is malformed: {error}"))
}
