//! One mapping of anonymous memory or a file in memory, and the system calls on it.
//!
//! *Populating* a range makes the kernel allocate its memory now. *Discarding* a range returns its memory to the
//! kernel, while the addresses stay mapped. *Binding* a range restricts its memory to one node. The callers,
//! `memory/zones.rs` and `memory/metadata.rs`, decide which errors are only warnings. `memory/shared_file.rs` creates
//! the files.

use std::ffi::{CString, c_int, c_ulong, c_void};
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use zonal::units::{MAX_NODES, NodeId};

use super::not_copied::NotCopied;
use super::page_sizes::{HUGE_PAGE_BYTES, HugePageSize, os_page_bytes};
use super::shared_file;

const MPOL_BIND: c_int = 2;
const PR_SET_VMA: c_int = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: c_ulong = 0;
const ACCESSIBLE: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// What backs a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backing {
    /// Ordinary pages, which the kernel does not reserve before their first access.
    Ordinary,
    /// Explicit huge pages from the kernel's reserve.
    Huge(HugePageSize),
}

/// An address range. Invariant: until this value is dropped, `base..base + bytes` is mapped readable and
/// writable, and no other code may unmap it. The exceptions are a child that has no copy of the range, the reserved
/// addresses of `not_copied`, and memory that is closed.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    backing: Backing,
    /// The file that holds the memory, if other processes can map it too.
    file: Option<OwnedFd>,
    /// `Some` if the kernel does not copy the range to children made by `fork`.
    not_copied: Option<NotCopied>,
}

// SAFETY: the range belongs to the process and not to one thread. Safe methods make only system calls and stores that
// are valid on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. Callers that access the memory must prevent data races themselves.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` zeroed bytes at a multiple of `align`, which must be a power of two, at least a page, and at least
    /// a huge page if such pages back the mapping.
    pub(super) fn new(bytes: usize, align: usize, backing: Backing) -> io::Result<Self> {
        match backing {
            Backing::Ordinary => Self::ordinary(bytes, align),
            Backing::Huge(size) => {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size.flag();
                Self::not_copied(bytes, align, backing, flags, None)
            }
        }
    }

    /// Maps a new file in memory, whose name in `/proc` is `name`, with the arguments of [`new`](Self::new).
    pub(super) fn in_file(name: &str, bytes: usize, align: usize, backing: Backing) -> io::Result<Self> {
        let size = match backing {
            Backing::Ordinary => None,
            Backing::Huge(size) => Some(size),
        };
        let file = shared_file::create(name, bytes, size)?;
        Self::not_copied(bytes, align, backing, libc::MAP_SHARED, Some(file))
    }

    /// Maps `bytes` of a file from `offset`, rounded up to whole pages of the file, for all that share the file, at a multiple of
    /// `align`. The offset must be that of such a page.
    pub(super) fn of_file(file: OwnedFd, offset: u64, bytes: usize, align: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (backing, unit) = match HugePageSize::of_file(file.as_fd())? {
            Some(size) => (Backing::Huge(size), size.bytes()),
            None => (Backing::Ordinary, os_page_bytes()),
        };
        let (bytes, align) = (bytes.next_multiple_of(unit), align.max(unit).max(HUGE_PAGE_BYTES));
        let reserved = ManuallyDrop::new(Self::anonymous(bytes, align, libc::PROT_NONE)?);
        let (place, flags) = (reserved.base.as_ptr().cast(), libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the mapping replaces one that was reserved for it.
        let start = unsafe { libc::mmap(place, bytes, ACCESSIBLE, flags, file.as_raw_fd(), offset) };
        if start == libc::MAP_FAILED {
            let why = io::Error::last_os_error();
            return Err(if backing == Backing::Ordinary { why } else { too_few_huge_pages(why) });
        }
        Self { base: reserved.base, bytes, backing, file: Some(file), not_copied: None }.without_copies()
    }

    fn ordinary(bytes: usize, align: usize) -> io::Result<Self> {
        Self::anonymous(bytes, align, ACCESSIBLE)
    }

    /// Maps ordinary pages as [`new`](Self::new) does, but closed: inaccessible until they are opened. The kernel neither
    /// provides closed memory when the program locks its memory (`mlockall`), nor counts it as used.
    pub(super) fn closed(bytes: usize, align: usize) -> io::Result<Self> {
        Self::anonymous(bytes, align, libc::PROT_NONE)
    }

    /// Makes `bytes` from `offset` accessible for good. Files are mapped accessible.
    pub(super) fn open(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.check(offset, bytes);
        if self.is_gap() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        if self.file.is_some() {
            return Ok(());
        }
        // SAFETY: `check` verified that the range is inside the mapping.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the range belongs to this mapping, and the call takes no access right away.
        let failed = unsafe { libc::mprotect(start.as_ptr().cast(), bytes, ACCESSIBLE) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Maps anonymous memory with these access rights. Memory without any is not counted by the kernel, and only keeps its
    /// addresses.
    fn anonymous(bytes: usize, align: usize, access: c_int) -> io::Result<Self> {
        let Some(reserved) = bytes.checked_add(align) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = map_with(access, null_mut(), reserved, flags, None)?;
        let head = start.as_ptr().align_offset(align);
        // SAFETY: `head < align`, so the result is inside the `bytes + align` bytes that were just mapped.
        let base = unsafe { start.add(head) };
        // SAFETY: `head + bytes <= reserved`, so the result is inside the range or one past its end.
        let tail = unsafe { base.add(bytes) };
        let trimmed = unmap(start, head).map_err(|why| (why, start, reserved));
        let trimmed = trimmed
            .and_then(|()| unmap(tail, reserved - head - bytes).map_err(|why| (why, base, reserved - head)));
        if let Err((why, rest, length)) = trimmed {
            // Unmapping a part can split a mapping, which fails at the limit of mappings. Unmapping the whole rest
            // needs no additional mapping.
            unmap_or_empty(rest, length);
            return Err(why);
        }
        Ok(Self { base, bytes, backing: Backing::Ordinary, file: None, not_copied: None })
    }

    /// Maps memory of which children made by `fork` get no copy: explicit huge pages, and files.
    ///
    /// The kernel must reserve explicit huge pages for this mapping (no `MAP_NORESERVE`), because otherwise an access
    /// could kill the process. An oversized mapping would reserve pages for its margin too, so an inaccessible mapping
    /// reserves aligned addresses, and is replaced.
    ///
    /// The kernel reserves no huge pages for children. With a copy, the kernel could kill a child with `SIGBUS` at any
    /// access, if the parent wrote to the page while the reserve was exhausted. A child that inherited a file's mapping
    /// would write to its parent's frames.
    fn not_copied(
        bytes: usize,
        align: usize,
        backing: Backing,
        flags: c_int,
        file: Option<OwnedFd>,
    ) -> io::Result<Self> {
        let reserved = Self::anonymous(bytes, align, libc::PROT_NONE)?;
        // Where addresses are in use, this call only finds out whether the kernel refuses such a mapping anywhere.
        match map_at(reserved.base, bytes, flags | libc::MAP_FIXED_NOREPLACE, file.as_ref()) {
            Err(why) if why.raw_os_error() != Some(libc::EEXIST) => return Err(why),
            _ => {}
        }
        // If the kernel refuses now, it may have unmapped the reserved range, where another thread may have mapped memory since.
        let base = ManuallyDrop::new(reserved).base;
        let base = map(base.as_ptr().cast(), bytes, flags | libc::MAP_FIXED, file.as_ref())?;
        Self { base, bytes, backing, file, not_copied: None }.without_copies()
    }

    fn without_copies(mut self) -> io::Result<Self> {
        self.madvise(0, self.bytes, libc::MADV_DONTFORK)?;
        self.not_copied = Some(NotCopied::enter(self.base, self.bytes));
        Ok(self)
    }

    /// Whether this process is a child that has no copy of the range, so that every access raises `SIGSEGV`.
    #[inline]
    pub(super) fn is_gap(&self) -> bool {
        self.not_copied.as_ref().is_some_and(NotCopied::is_gap)
    }

    /// Returns what backs the mapping.
    pub(super) const fn backing(&self) -> Backing {
        self.backing
    }

    /// Returns the size in bytes of the smallest unit that the kernel populates and discards.
    pub(super) fn unit(&self) -> usize {
        match self.backing {
            Backing::Ordinary => os_page_bytes(),
            Backing::Huge(size) => size.bytes(),
        }
    }

    /// Returns the file that holds the memory, or `None` for memory of this process alone.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(OwnedFd::as_fd)
    }

    /// Returns the first address.
    pub(crate) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Restricts the range to memory of `node`.
    pub(super) fn bind(&self, node: NodeId) -> io::Result<()> {
        const WORD: usize = c_ulong::BITS as usize;
        let mut mask: [c_ulong; MAX_NODES / WORD] = [0; MAX_NODES / WORD];
        mask[node.index() / WORD] |= 1 << (node.index() % WORD);
        // The kernel subtracts one from the number of bits, so this passes one more.
        let bits = MAX_NODES as c_ulong + 1;
        // SAFETY: the range belongs to this mapping, and the mask outlives the call.
        let failed = unsafe {
            libc::syscall(libc::SYS_mbind, self.base.as_ptr(), self.bytes, MPOL_BIND, mask.as_ptr(), bits, 0)
        };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Requests or forbids transparent huge pages.
    pub(super) fn advise(&self, transparent: Transparent) -> io::Result<()> {
        let advice = match transparent {
            Transparent::Wanted => libc::MADV_HUGEPAGE,
            Transparent::Unwanted => libc::MADV_NOHUGEPAGE,
        };
        self.madvise(0, self.bytes, advice)
    }

    /// Makes the kernel allocate the memory of `bytes` from `offset` now. Existing contents do not change.
    pub(super) fn populate(&self, offset: usize, bytes: usize) -> io::Result<()> {
        self.madvise(offset, bytes, libc::MADV_POPULATE_WRITE)
    }

    /// Populates a whole mapping of a file in explicit huge pages, if the kernel can (5.14): a page fault would kill the process if a
    /// node or a control group had too few, although the pages are reserved.
    pub(super) fn populate_reserved(&self) -> io::Result<()> {
        match self.populate(0, self.bytes) {
            Err(why) if why.kind() == io::ErrorKind::InvalidInput => Ok(()),
            populated => populated.map_err(too_few_huge_pages),
        }
    }

    /// Calls [`populate`](Self::populate) or, on kernels before 5.14, [`touch`](Self::touch). The range must not be in
    /// use, because `touch` overwrites it.
    pub(crate) fn populate_or_touch(&self, offset: usize, bytes: usize) -> io::Result<()> {
        match self.populate(offset, bytes) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && self.backing == Backing::Ordinary => {
                self.touch(offset, bytes);
                Ok(())
            }
            populated => populated,
        }
    }

    /// Populates `bytes` from `offset` on kernels that do not support [`populate`](Self::populate). The function stores
    /// a zero to the first byte of each page.
    fn touch(&self, offset: usize, bytes: usize) {
        self.check(offset, bytes);
        for at in (offset..offset + bytes).step_by(os_page_bytes()) {
            // SAFETY: `check` verified that the range is inside the mapping.
            let byte = unsafe { self.base.add(at) };
            // SAFETY: the byte is mapped writable, and only the caller uses the range.
            unsafe { byte.write_volatile(0) };
        }
    }

    /// Returns the memory of `bytes` from `offset` to the kernel. Later reads of the range return zeros.
    pub(super) fn discard(&self, offset: usize, bytes: usize) -> io::Result<()> {
        // Discarding addresses does not discard the contents of a file, in which a hole is made instead.
        let advice = if self.file.is_some() { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        self.madvise(offset, bytes, advice)
    }

    /// Sets the name of the range in `/proc/PID/maps`, if the kernel supports names. A file has its own name.
    pub(super) fn name(&self, name: &str) {
        let Ok(name) = CString::new(name) else { return };
        // SAFETY: the range belongs to this mapping, and the string outlives the call. An error has no effect.
        unsafe {
            libc::prctl(
                PR_SET_VMA,
                PR_SET_VMA_ANON_NAME,
                self.base.as_ptr() as c_ulong,
                self.bytes as c_ulong,
                name.as_ptr(),
            )
        };
    }

    /// Returns the bytes of the mapping. They are zero unless they have been written to.
    ///
    /// # Safety
    /// The slice must not be used after `self` is dropped, and no other code may use the range.
    pub(super) unsafe fn bytes_unbounded(&self) -> &'static mut [MaybeUninit<u8>] {
        // SAFETY: the range is mapped. The caller guarantees exclusive use, and that the slice is not used too long.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.bytes) }
    }

    /// Returns a part of the mapping, for one that processes share.
    ///
    /// # Safety
    /// The slice must not be used after `self` is dropped, and only for atomic accesses, for which no other slice of this
    /// process may have the range.
    pub(crate) unsafe fn bytes_of(&self, range: Range<usize>) -> &'static mut [MaybeUninit<u8>] {
        assert!(range.start <= range.end && range.end <= self.bytes, "range outside the mapping");
        // SAFETY: the range is in the mapping.
        let start = unsafe { self.base.add(range.start) };
        // SAFETY: the range is mapped. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), range.len()) }
    }

    fn check(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes), "range outside the mapping");
    }

    fn madvise(&self, offset: usize, bytes: usize, advice: c_int) -> io::Result<()> {
        self.check(offset, bytes);
        if self.is_gap() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        // SAFETY: `check` verified that the range is inside the mapping.
        let start = unsafe { self.base.add(offset) };
        // SAFETY: the range belongs to this mapping, and all advice used here keeps it mapped.
        let failed = unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The list entry is removed before the range is unmapped, so that it never refers to a later mapping there.
        let not_copied = self.not_copied.take();
        if !not_copied.is_some_and(|range| range.is_vacant()) {
            unmap_or_empty(self.base, self.bytes);
        }
    }
}

/// Adds the likely reason to an error of a mapping in explicit huge pages.
fn too_few_huge_pages(why: io::Error) -> io::Error {
    match why.raw_os_error() {
        Some(libc::ENOMEM | libc::EFAULT) => io::Error::other(format!(
            "{why}; too few huge pages of this size are free in the kernel's reserve (nr_hugepages), on the node, in the file \
             system (size=) or in the control group"
        )),
        _ => why,
    }
}

/// Advice about transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transparent {
    Wanted,
    Unwanted,
}

/// Returns how many bytes of a mapped range are in memory now.
///
/// # Errors
/// When the kernel denies `mincore(2)`, or a part of the range is not mapped.
pub(super) fn resident_bytes(range: Range<usize>) -> io::Result<usize> {
    /// Largest number of pages per query.
    const MOST: usize = 1 << 16;
    let (page, mut resident) = (os_page_bytes(), 0);
    let mut pages = vec![0_u8; range.len().div_ceil(page).min(MOST)];
    for start in range.clone().step_by(MOST * page) {
        let bytes = (range.end - start).min(MOST * page);
        let address = std::ptr::without_provenance_mut::<c_void>(start);
        // SAFETY: the call writes one byte to `pages` for each page of the range, and reads no memory.
        if unsafe { libc::mincore(address, bytes, pages.as_mut_ptr().cast()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        resident += pages[..bytes.div_ceil(page)].iter().filter(|page| **page & 1 == 1).count();
    }
    Ok(resident * page)
}

fn map(place: *mut c_void, bytes: usize, flags: c_int, file: Option<&OwnedFd>) -> io::Result<NonNull<u8>> {
    map_with(ACCESSIBLE, place, bytes, flags, file)
}

fn map_with(
    access: c_int,
    place: *mut c_void,
    bytes: usize,
    flags: c_int,
    file: Option<&OwnedFd>,
) -> io::Result<NonNull<u8>> {
    let fd = file.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the call creates a mapping. Only `not_copied` replaces one, which it has reserved for this.
    let start = unsafe { libc::mmap(place, bytes, access, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("the kernel never maps address 0 unasked"))
}

/// Maps as [`map`] does, but fails if the result is not at `place`. Kernels before 4.17 treat the address as a hint.
fn map_at(place: NonNull<u8>, bytes: usize, flags: c_int, file: Option<&OwnedFd>) -> io::Result<NonNull<u8>> {
    let start = map(place.as_ptr().cast(), bytes, flags, file)?;
    if start == place {
        return Ok(start);
    }
    unmap_or_empty(start, bytes);
    Err(io::Error::from_raw_os_error(libc::EEXIST))
}

/// Unmaps a range that this file mapped and that is not in use.
///
/// # Errors
/// When a seccomp filter denies the call. Also when the kernel has merged the range with adjacent mappings, and
/// splitting the result would exceed the limit of mappings.
fn unmap(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    // SAFETY: only this file calls this function, and all callers own the range.
    if bytes == 0 || unsafe { libc::munmap(start.as_ptr().cast(), bytes) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Unmaps a range. If the kernel refuses, discards its memory instead, and the addresses stay mapped. The memory of a
/// file then stays too, because another process may use it.
fn unmap_or_empty(start: NonNull<u8>, bytes: usize) {
    if unmap(start, bytes).is_err() {
        // SAFETY: the caller owns the range. If the kernel refuses this call too, the memory is leaked.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
pub(crate) mod tests;
