//! A second mapping of a pool's shared memory, as another process has.
//!
//! Related files: `owners.rs` writes and checks stamps through it.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};

use zonal::machine::FrameRange;
use zonal::units::Pfn;
use zonal_linux::Pool;

/// The mapping of one zone's file.
struct MappedZone {
    frames: FrameRange,
    address: NonNull<u8>,
    bytes: usize,
}

/// All files of a pool with shared memory, mapped once more. It must not outlive the pool.
pub(super) struct SecondMapping {
    zones: Vec<MappedZone>,
    page_bytes: usize,
}

// SAFETY: the mapping is shared memory that stays mapped until the value is dropped, whichever thread uses it.
unsafe impl Send for SecondMapping {}
// SAFETY: the only method returns an address, without an access to the memory.
unsafe impl Sync for SecondMapping {}

impl SecondMapping {
    /// Maps all files of a pool.
    pub(super) fn new(pool: &Pool) -> io::Result<Self> {
        let page_bytes = pool.page_bytes();
        let mut mapping = Self { zones: Vec::new(), page_bytes };
        // SAFETY: the soak accesses only frames of raw blocks through the mapping, and makes no holes in the files.
        for file in unsafe { pool.memory_files() } {
            let bytes = file.frames().count.get() as usize * page_bytes;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let descriptor = file.descriptor().as_raw_fd();
            // SAFETY: the kernel chooses an unused address range.
            let address =
                unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, 0) };
            let address = NonNull::new(address.cast()).filter(|_| address != libc::MAP_FAILED);
            let address = address.ok_or_else(io::Error::last_os_error)?;
            mapping.zones.push(MappedZone { frames: file.frames(), address, bytes });
        }
        Ok(mapping)
    }

    /// Returns the address of a frame in this mapping.
    pub(super) fn address_of(&self, frame: Pfn) -> Option<NonNull<u8>> {
        self.zones.iter().find_map(|zone| {
            let offset = frame.offset_from(zone.frames.start).filter(|&at| at < zone.frames.count)?;
            // SAFETY: the frame is one of those that the mapping contains.
            Some(unsafe { zone.address.add(offset.get() as usize * self.page_bytes) })
        })
    }
}

impl Drop for SecondMapping {
    fn drop(&mut self) {
        for zone in &self.zones {
            // SAFETY: the range was mapped by `new`, and no reference into it outlives a call of `Owners`.
            unsafe { libc::munmap(zone.address.as_ptr().cast(), zone.bytes) };
        }
    }
}
