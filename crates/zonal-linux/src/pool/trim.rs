//! Returns the memory of free frames to the kernel, while the frames stay online.
//!
//! Related files: `pool/shrink.rs` takes memory offline instead, and `memory/zones.rs` makes the system calls.

use std::io;

use zonal::machine::FrameRange;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{PageCount, PageKind};

use super::emit::emit;
use super::handle::Pool;
use super::members::Membership;
use crate::error::Warning;
use crate::memory::page_sizes::{HUGE_PAGE_BYTES, os_page_bytes};
use crate::memory::shared_file::is_of_descriptor;
use crate::memory::zones::ZoneMemory;

/// Largest range that is allocated at a time, so that other threads find free frames meanwhile.
const CHUNK_BYTES: usize = 4 << 20;

/// Why the memory of free frames was not returned to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// Free frames hold the poison pattern, which would be lost.
    #[error(
        "free frames hold the poison pattern, so their memory cannot be returned; build the pool without `poison`"
    )]
    Poisoned,
    /// Processes share the pool by a path, so its file keeps its memory: an access to a page for which its file system then has
    /// no room would kill the process. A file that is shared by descriptor is in no file system with a limit.
    #[error(
        "the pool's file keeps its memory, because its file system may have a limit; share the pool by descriptor"
    )]
    Shared,
    /// The kernel refused the lock that one of a shared pool's processes has while it trims.
    #[error("the lock of the shared pool's file is refused: {0}")]
    Locks(io::Error),
    /// The kernel refused to take memory back.
    #[error("{done} bytes were returned to the kernel; it refused {range}: {why}")]
    Refused {
        /// Bytes that were returned.
        done: u64,
        /// The frames that were refused; they are free as before.
        range: FrameRange,
        /// The kernel's error.
        why: io::Error,
    },
}

impl Pool {
    /// Returns the memory of all frames that are free now to the kernel, and returns how many bytes.
    ///
    /// The frames stay free and online; the kernel provides zeroed memory at their next use. The count includes only
    /// memory that was resident, or all memory if the kernel denies `mincore(2)`. Free ranges that are swapped out as a whole
    /// stay in swap. This process's pagesets are drained first; those of other processes are asked to drain only
    /// if a free range is allocated in the moment before it is trimmed. Other threads can allocate and free meanwhile: at most
    /// 4 MiB are allocated at a time, and never so much that a zone falls below its watermark `min`.
    ///
    /// If processes share the pool, one thread of them trims at a time: the call returns 0 while another one does, or is stopped
    /// while it does. If a process dies while it trims, what it had allocated is recovered with the rest.
    ///
    /// In a pool with transparent huge pages, only ranges of 2 MiB that are free as a whole are returned, because the
    /// kernel would split the huge page otherwise. Explicit huge pages are never returned: if the kernel's reserve were
    /// exhausted at their next use, the process would be killed. Use [`Pool::shrink`] for both.
    ///
    /// ```
    /// # use zonal_linux::{Frames, Pool, PoolRequest};
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let mut pages: Vec<Frames> =
    ///     (0..4096).map(|_| pool.alloc(&PoolRequest::page())).collect::<Result<_, _>>()?;
    /// pages.iter_mut().for_each(|page| page[0] = 1); // 16 MiB are resident now
    /// drop(pages);
    /// let returned = pool.trim()?;
    /// assert!(returned > 8 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`TrimError::Poisoned`] for a pool with [`Hardening::poison`](crate::Hardening::poison), and [`TrimError::Shared`] for
    /// one that processes share by a path; nothing has changed then. [`TrimError::Refused`] when the kernel refuses to take
    /// memory back, for example because the program locked it (`mlockall`).
    pub fn trim(&self) -> Result<u64, TrimError> {
        if self.core.poisons {
            return Err(TrimError::Poisoned);
        }
        if self.shared_file().is_some_and(|file| !is_of_descriptor(file)) {
            return Err(TrimError::Shared);
        }
        let members = self.core.members();
        let trimming = members.map(Membership::try_trimming).transpose().map_err(TrimError::Locks)?.flatten();
        if members.is_some() && trimming.is_none() {
            return Ok(0);
        }
        self.drain_pagesets();
        let mut done = 0;
        let trimmed = self.trim_zones(&mut done);
        if members.is_some() {
            self.drain_pagesets(); // trimmed frames may be cached, where other processes do not find them
        }
        if done > 0 {
            emit!(self.core.platform(), DEBUG, bytes = done, "memory of free frames returned");
        }
        trimmed.map(|()| done)
    }

    /// Returns the memory of all free frames, and adds its bytes to `done`.
    fn trim_zones(&self, done: &mut u64) -> Result<(), TrimError> {
        for zone in self.core.memory().zones().iter().filter(|zone| zone.comes_on_use()) {
            let unit = self.trimmed_unit(zone);
            let chunk = ((CHUNK_BYTES / self.page_bytes()).max(1) as u64).max(unit.get());
            let (start, count) = (zone.range.start, zone.range.count.get());
            for first in (0..count).step_by(chunk as usize) {
                let part = FrameRange {
                    start: start.plus(PageCount::new(first)),
                    count: PageCount::new(chunk.min(count - first)),
                };
                self.trim_range(part, unit, done)?;
            }
        }
        Ok(())
    }

    /// Returns the smallest number of `zone`'s frames whose memory is returned on its own.
    fn trimmed_unit(&self, zone: &ZoneMemory) -> PageCount {
        let refused = |warning: &Warning| matches!(warning, Warning::NoTransparentHugePages { .. });
        let in_huge_pages = zone.huge_pages_wanted && !self.warnings().iter().any(refused);
        let bytes = if in_huge_pages { HUGE_PAGE_BYTES } else { os_page_bytes() };
        PageCount::new((bytes / self.page_bytes()).max(1) as u64)
    }

    /// Returns the free units of `range`, which starts at a multiple of `unit`.
    fn trim_range(&self, range: FrameRange, unit: PageCount, done: &mut u64) -> Result<(), TrimError> {
        let free = self.core.allocator().count_free(range);
        if free < unit.min(range.count) || free == PageCount::ZERO {
            return Ok(());
        }
        if free == range.count && self.trim_free(range, done)? {
            return Ok(());
        }
        if range.count <= unit {
            return Ok(());
        }
        let half = PageCount::new((range.count.get() / 2).next_multiple_of(unit.get()));
        let rest = FrameRange { start: range.start.plus(half), count: range.count.saturating_minus(half) };
        self.trim_range(FrameRange { start: range.start, count: half }, unit, done)?;
        self.trim_range(rest, unit, done)
    }

    /// Returns the memory of a range whose frames are all free. Returns `false` if they are not, or if its zone would
    /// fall below its watermark `min` meanwhile.
    fn trim_free(&self, range: FrameRange, done: &mut u64) -> Result<bool, TrimError> {
        let (allocator, memory) = (self.core.allocator(), self.core.memory());
        let resident = memory.resident_bytes(range);
        if resident == 0 {
            return Ok(true);
        }
        let above_min = |zone: &ZoneSnapshot| zone.free.saturating_minus(zone.watermarks.min);
        let zone = allocator.zones().find(|zone| zone.span.contains(&range));
        if zone.is_none_or(|zone| above_min(&zone) < range.count) {
            return Ok(false);
        }
        // While memory goes offline, these frames must not count as in use.
        let _alone = self.core.hotplug.lock();
        let Ok(held) = allocator.alloc_range(range, PageKind::User) else { return Ok(false) };
        let discarded = memory.discard(held.range, |_| PageCount::ZERO);
        // This fails only if other code has freed the frames, which it did not own; they are free then too.
        allocator.free_frames(range.start, range.count).unwrap_or(());
        discarded.map_err(|(_, why)| TrimError::Refused { done: *done, range, why })?;
        *done += resident;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::request::PoolRequest;

    /// Through two handles, which stand for two processes.
    #[test]
    fn one_thread_of_all_processes_trims() {
        let pool = Pool::builder().size(64 << 20).shared_by_descriptor().build().unwrap();
        let other = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        let fill = || {
            let mut pages: Vec<_> = (0..4096).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
            pages.iter_mut().for_each(|page| page[0] = 1);
        };
        for trims in [&pool, &other] {
            fill();
            pool.drain_pagesets();
            let trimming = trims.core.members().unwrap().try_trimming().unwrap().unwrap();
            assert_eq!([&pool, &other].map(|pool| pool.trim().unwrap()), [0, 0]);
            drop(trimming);
            assert!(other.trim().unwrap() > 0);
            assert_eq!(pool.trim().unwrap(), 0, "the memory is returned");
        }
    }
}
