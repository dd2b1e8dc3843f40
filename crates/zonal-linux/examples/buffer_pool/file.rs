//! The file that is cached. The contents of each block follow from its number, so any block can be checked at any
//! time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Size of a block in bytes: one frame.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// A file of blocks. The file never has a name, so it disappears however the program ends.
pub(crate) struct BlockFile {
    file: File,
    blocks: u64,
    /// Differs between runs, so that data that an earlier run has left in memory is detected as wrong.
    seed: u64,
}

impl BlockFile {
    /// Creates a file of `blocks` blocks in `dir`.
    pub(crate) fn create(dir: &Path, blocks: u64) -> io::Result<Self> {
        if blocks == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a file needs a block at least"));
        }
        let file = tempfile::tempfile_in(dir)?;
        let this = Self { file, blocks, seed: fastrand::u64(..) };
        let mut to = BufWriter::with_capacity(1 << 20, &this.file);
        for block in 0..blocks {
            to.write_all(&this.contents_of(block))?;
        }
        to.flush()?;
        drop(to);
        Ok(this)
    }

    /// Returns the number of blocks in the file.
    pub(crate) const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads one block into `into`.
    pub(crate) fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, block * BLOCK_BYTES as u64)
    }

    /// Whether `bytes` equal the contents that were written as `block`.
    pub(crate) fn is_block(&self, block: u64, bytes: &[u8]) -> bool {
        bytes == self.contents_of(block)
    }

    fn contents_of(&self, block: u64) -> [u8; BLOCK_BYTES] {
        let mut bytes = [0; BLOCK_BYTES];
        fastrand::Rng::with_seed(self.seed ^ block).fill(&mut bytes);
        bytes
    }
}
