//! The contender `kernel-mmap`: a block is an anonymous mapping, whose pages are touched; a free unmaps it.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use zonal::units::{Order, Pfn};
use zonal_workload::PageSource;

use super::page_bytes;
use crate::contender::Contender;

/// The contender. A frame number is an address divided by the page size.
#[derive(Default)]
pub(super) struct Mapped {
    /// Address and length of the freed blocks that are still mapped, without memory.
    left: Mutex<Vec<(usize, usize)>>,
}

/// One thread's interface.
pub(super) struct Source<'a> {
    all: &'a Mapped,
    page_bytes: usize,
}

impl Mapped {
    /// Returns a block's memory to the kernel, but not its addresses, which are unmapped at the end. This is for a block whose
    /// mapping cannot be split in two, because the process has as many mappings as the kernel allows.
    #[cold]
    fn leave(&self, block: *mut c_void, length: usize) {
        // SAFETY: the block is mapped, and its owner has freed it.
        let left = unsafe { madvise(block, length, Advice::LinuxDontNeed) };
        left.expect("the kernel takes memory back that it mapped");
        self.left.lock().unwrap_or_else(PoisonError::into_inner).push((block.expose_provenance(), length));
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let left = self.left.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Neighbours are unmapped together: the kernel can then always unmap from one end.
        left.sort_unstable();
        for (start, length) in left.drain(..) {
            // SAFETY: the block is mapped, and nothing uses it any more. A failure leaves only addresses without memory.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(start), length) };
        }
    }
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let length = self.page_bytes << order.get();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address at which nothing is mapped.
        let block = unsafe { mmap_anonymous(ptr::null_mut(), length, access, MapFlags::PRIVATE) }.ok()?;
        for offset in (0..length).step_by(self.page_bytes) {
            // SAFETY: the offset is within the block, which is writable.
            let page = unsafe { block.cast::<u8>().add(offset) };
            // SAFETY: the address is valid, as above. The store is volatile, because it is what gives the page memory.
            unsafe { page.write_volatile(1) };
        }
        Some(Pfn::new((block.expose_provenance() / self.page_bytes) as u64))
    }

    #[inline]
    fn free(&mut self, page: Pfn, order: Order) {
        let block = ptr::with_exposed_provenance_mut(page.get() as usize * self.page_bytes);
        let length = self.page_bytes << order.get();
        // SAFETY: the caller owns the block, which `alloc` has mapped with this order.
        if unsafe { munmap(block, length) }.is_err() {
            self.all.leave(block, length);
        }
    }
}

impl Contender for Mapped {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source { all: self, page_bytes: page_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the page at this address is mapped.
    fn is_mapped(page: Pfn) -> bool {
        let start = page.get() * page_bytes() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).unwrap());
            from <= start && start < to
        })
    }

    #[test]
    fn blocks_are_mapped_until_they_are_freed() {
        let mapped = Mapped::default();
        let mut source = mapped.source();
        let order = Order::new(10).unwrap(); // large, so that no other test maps the same place at once
        let block = source.alloc(order).unwrap();
        assert!(is_mapped(block));
        source.free(block, order);
        assert!(!is_mapped(block));
    }

    #[test]
    fn blocks_that_cannot_be_unmapped_are_unmapped_at_the_end() {
        let mapped = Mapped::default();
        let (order, block) = {
            let order = Order::new(10).unwrap();
            (order, mapped.source().alloc(order).unwrap())
        };
        let address: *mut c_void = ptr::with_exposed_provenance_mut(block.get() as usize * page_bytes());
        mapped.leave(address, page_bytes() << order.get());
        assert!(is_mapped(block));
        // SAFETY: the block is still mapped.
        assert_eq!(unsafe { address.cast::<u8>().read_volatile() }, 0, "it has lost its memory");
        drop(mapped);
        assert!(!is_mapped(block));
    }
}
