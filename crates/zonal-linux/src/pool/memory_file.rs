//! The files that hold the memory of a pool, for processes that map it too.
//!
//! Related file: `memory/shared_file.rs` creates the files.

use std::os::fd::{AsFd, BorrowedFd};

use zonal::machine::FrameRange;
use zonal::units::Pfn;

use super::handle::Pool;

/// A file in memory that holds the frames of one zone. Its first byte is the first byte of the first frame.
///
/// The file is as long as the frames, rounded up to a whole huge page. It cannot change.
#[derive(Clone, Copy, Debug)]
pub struct MemoryFile<'p> {
    file: BorrowedFd<'p>,
    frames: FrameRange,
    page_bytes: u64,
}

impl<'p> MemoryFile<'p> {
    /// Returns the descriptor of the file, which is valid while the pool exists. Duplicates of the descriptor and file
    /// mappings keep the memory after that.
    #[must_use]
    pub const fn descriptor(&self) -> BorrowedFd<'p> {
        self.file
    }

    /// Returns the frames that the file holds.
    #[must_use]
    pub const fn frames(&self) -> FrameRange {
        self.frames
    }

    /// Returns the offset in the file of a frame in bytes, or `None` for a frame that this file does not hold.
    #[must_use]
    pub fn offset_of(&self, frame: Pfn) -> Option<u64> {
        let offset = frame.offset_from(self.frames.start).filter(|&offset| offset < self.frames.count)?;
        Some(offset.get() * self.page_bytes)
    }
}

impl AsFd for MemoryFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file
    }
}

impl Pool {
    /// Returns the files of a pool with [`shared_memory`](crate::PoolBuilder::shared_memory), one for each zone. Other
    /// pools have no files. A child made by `fork` gets none.
    ///
    /// A process that receives a descriptor maps the file with `MAP_SHARED`. For example, a virtual machine monitor
    /// passes the descriptor and the frames' offsets to its device processes.
    ///
    /// ```
    /// # use std::{fs::File, os::unix::fs::FileExt};
    /// # use zonal_linux::{Pool, PoolRequest, SharedFrames};
    /// let pool = Pool::builder().size(16 << 20).shared_memory().build()?;
    /// let frames = SharedFrames::from(pool.alloc(&PoolRequest::page())?);
    /// // SAFETY: `write_at` and `read_exact_at` follow each other, and nothing else accesses the frames.
    /// let files: Vec<_> = unsafe { pool.memory_files() }.collect();
    /// let place = files.iter().find_map(|file| Some((file, file.offset_of(frames.first())?)));
    /// let (file, offset) = place.expect("a zone has the frames");
    /// // SAFETY: no other thread accesses the frames.
    /// unsafe { frames.write_at(0, b"hello") };
    /// let mut bytes = [0; 5];
    /// File::from(file.descriptor().try_clone_to_owned()?).read_exact_at(&mut bytes, offset)?;
    /// assert_eq!(&bytes, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    /// A process that has a descriptor can read and write all frames of its zone, free ones too. This process must ensure that
    /// other mappings of the file, and reads and writes of it, access only frames that are allocated, and none that
    /// [`Frames`](crate::Frames) or [`FrameBuffer`](crate::FrameBuffer) own, because these are byte slices with one owner.
    /// [`SharedFrames`](crate::SharedFrames) and blocks of [`alloc_raw`](Pool::alloc_raw) are for such accesses. Holes must
    /// not be made in the file, except in frames that its user owns.
    pub unsafe fn memory_files(&self) -> impl Iterator<Item = MemoryFile<'_>> {
        let (memory, page_bytes) = (self.core.memory(), self.page_bytes() as u64);
        let zones = memory.zones().iter();
        // The file of a pool that processes share has more than frames.
        let zones = zones.filter(|_| self.shared_file().is_none());
        zones.filter_map(move |zone| Some(MemoryFile { file: zone.file()?, frames: zone.range, page_bytes }))
    }
}
