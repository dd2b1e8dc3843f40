//! The file that is cached. The contents of each page follow from its number, so any block can be checked at any time.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Sizes of blocks in bytes. A large block has the same contents as the small ones at its place.
pub(crate) const BLOCK_BYTES: [usize; 2] = [PAGE_BYTES, 16 * PAGE_BYTES];
const PAGE_BYTES: usize = 4096;

/// A block of the file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct BlockName {
    /// Its number among the blocks with its size.
    pub number: u64,
    pub bytes: usize,
}

/// A file of blocks. The file never has a name, so it disappears however the program ends.
pub(crate) struct BlockFile {
    file: File,
    bytes: u64,
    /// Differs between runs, so that data that an earlier run has left in memory is detected as wrong.
    seed: u64,
}

impl BlockFile {
    /// Creates a file of so many bytes.
    pub(crate) fn create(bytes: u64) -> io::Result<Self> {
        let largest = BLOCK_BYTES[1] as u64;
        if bytes < largest {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file needs a block at least"));
        }
        let this = Self { file: tempfile::tempfile()?, bytes, seed: fastrand::u64(..) };
        let mut to = BufWriter::with_capacity(1 << 20, &this.file);
        for page in 0..bytes / PAGE_BYTES as u64 {
            to.write_all(&this.contents_of(page))?;
        }
        to.flush()?;
        drop(to);
        Ok(this)
    }

    /// Opens the file that another process has made.
    pub(crate) fn open(path: impl AsRef<Path>, seed: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self { bytes: file.metadata()?.len(), file, seed })
    }

    /// Returns the arguments with which children open the file, for [`BlockFile::open`].
    pub(crate) fn for_children(&self) -> (String, u64) {
        (link_to(&self.file), self.seed)
    }

    /// Chooses a block, more often one with a low number.
    pub(crate) fn random_block(&self, random: &mut fastrand::Rng) -> BlockName {
        let bytes = BLOCK_BYTES[usize::from(random.u8(..4) == 0)];
        let blocks = self.bytes / bytes as u64;
        let number = (random.f64().powi(2) * blocks as f64) as u64;
        BlockName { number: number.min(blocks - 1), bytes }
    }

    /// Reads a block into `into`, which has its size.
    pub(crate) fn read(&self, block: BlockName, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, block.number * block.bytes as u64)
    }

    /// Whether `bytes` equal the contents that were written at the block's place.
    pub(crate) fn is_block(&self, block: BlockName, bytes: &[u8]) -> bool {
        let first = block.number * (block.bytes / PAGE_BYTES) as u64;
        bytes.len() == block.bytes
            && bytes.chunks(PAGE_BYTES).zip(first..).all(|(bytes, page)| bytes == self.contents_of(page))
    }

    fn contents_of(&self, page: u64) -> [u8; PAGE_BYTES] {
        let mut bytes = [0; PAGE_BYTES];
        fastrand::Rng::with_seed(self.seed ^ page).fill(&mut bytes);
        bytes
    }
}

/// Returns a path with which children of this process can open what the descriptor has.
pub(crate) fn link_to(descriptor: &impl AsRawFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd())
}
