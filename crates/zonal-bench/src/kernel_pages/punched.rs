//! The contender `kernel-memfd`: a page is part of a file in memory (`memfd_create(2)`), which is mapped as a whole. An
//! allocation touches the page, and a free punches a hole into the file (`fallocate(2)`).
//!
//! The contender finds free pages as `floor-spin` does, at a hundredth of what the kernel costs.

use std::os::fd::OwnedFd;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::retry_on_intr;
use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use super::page_bytes;
use crate::contender::{Contender, Reason};
use crate::floor::{UnderLock, UnderLocks};

/// The contender.
pub(super) struct Punched {
    numbers: UnderLocks,
    memory: MmapRaw,
    file: OwnedFd,
}

impl Punched {
    /// Creates a file of `frames` pages, all of which are holes.
    pub(super) fn new(frames: PageCount) -> Result<Self, Reason> {
        let bytes = frames.get().checked_mul(page_bytes() as u64).ok_or("its file would be too large")?;
        let file = memfd_create(c"zonal-bench", MemfdFlags::CLOEXEC);
        let file = file.map_err(|error| format!("cannot create a file in memory: {error}"))?;
        ftruncate(&file, bytes).map_err(|error| format!("cannot size a file in memory: {error}"))?;
        let memory = MmapOptions::new().map_raw(&file);
        let memory = memory.map_err(|error| format!("cannot map a file in memory: {error}"))?;
        Ok(Self { numbers: UnderLocks::new(frames)?, memory, file })
    }
}

/// One thread's interface.
pub(super) struct Source<'a> {
    numbers: UnderLock<'a>,
    all: &'a Punched,
    page_bytes: usize,
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let page = self.numbers.alloc(order)?;
        // SAFETY: the numbers are below the count of pages that the file and its mapping have.
        let address = unsafe { self.all.memory.as_mut_ptr().add(page.get() as usize * self.page_bytes) };
        // SAFETY: the address is valid, as above. The store is volatile, because it is what gives the page memory.
        unsafe { address.write_volatile(1) };
        Some(page)
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = self.page_bytes as u64;
        let punched = retry_on_intr(|| fallocate(&self.all.file, mode, page.get() * length, length));
        punched.expect("files in memory take holes");
        self.numbers.free(page, order);
    }
}

impl Contender for Punched {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source { numbers: self.numbers.source(), all: self, page_bytes: page_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn pages_have_memory_until_they_are_freed() {
        let punched = Punched::new(PageCount::new(1024)).unwrap();
        let pages = || fstat(&punched.file).unwrap().st_blocks as u64 * 512 / page_bytes() as u64;
        let mut source = punched.source();
        assert_eq!(pages(), 0);
        let taken: Vec<Pfn> = (0..100).map(|_| source.alloc(Order::PAGE).unwrap()).collect();
        assert_eq!(pages(), 100);
        taken.into_iter().for_each(|page| source.free(page, Order::PAGE));
        assert_eq!(pages(), 0);
    }
}
