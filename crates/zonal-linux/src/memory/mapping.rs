//! One private mapping of anonymous memory, and the system calls on it.
//!
//! *Populating* a range makes the kernel allocate its memory now. *Discarding* a range returns its memory to the
//! kernel, while the addresses stay mapped. *Binding* a range restricts its memory to one node. The callers,
//! `memory/zones.rs` and `memory/metadata.rs`, decide which errors are only warnings.

use std::ffi::{CString, c_int, c_ulong, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};

use zonal::units::{MAX_NODES, NodeId};

use super::not_copied::NotCopied;
use super::page_sizes::{HUGE_PAGE_BYTES, os_page_bytes};

const MPOL_BIND: c_int = 2;
const PR_SET_VMA: c_int = 0x5356_4d41;
const PR_SET_VMA_ANON_NAME: c_ulong = 0;
/// Number of attempts to map huge pages at a free address, because another thread may map that address first.
const PLACING_ATTEMPTS: usize = 8;

/// What backs a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Backing {
    /// Ordinary pages, which the kernel does not reserve before their first access.
    Ordinary,
    /// Explicit huge pages from the kernel's reserve.
    Huge,
}

/// A private address range. Invariant: until this value is dropped, `base..base + bytes` is mapped readable and
/// writable, and no other code may unmap it. The exception is a child that has no copy of the range.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    backing: Backing,
    /// `Some` if the kernel does not copy the range to children made by `fork`.
    not_copied: Option<NotCopied>,
}

// SAFETY: the range belongs to the process and not to one thread. Safe methods make only system calls and stores that
// are valid on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`. Callers that access the memory must prevent data races themselves.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` zeroed bytes at a multiple of `align`, which must be a power of two and at least a page.
    pub(super) fn new(bytes: usize, align: usize, backing: Backing) -> io::Result<Self> {
        match backing {
            Backing::Ordinary => Self::ordinary(bytes, align),
            Backing::Huge => Self::huge(bytes, align),
        }
    }

    fn ordinary(bytes: usize, align: usize) -> io::Result<Self> {
        let Some(reserved) = bytes.checked_add(align) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = map(null_mut(), reserved, flags)?;
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
        Ok(Self { base, bytes, backing: Backing::Ordinary, not_copied: None })
    }

    /// Maps explicit huge pages. The kernel must reserve them for this mapping (no `MAP_NORESERVE`), because otherwise
    /// an access could kill the process. An oversized mapping would reserve pages for its margin too, so a temporary
    /// ordinary mapping finds an aligned address instead. Another thread may map that address first.
    ///
    /// Children made by `fork` get no copy, because the kernel reserves no pages for them. With a copy, the kernel
    /// could kill a child with `SIGBUS` at any access, if the parent wrote to the page while the reserve was exhausted.
    fn huge(bytes: usize, align: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_HUGETLB
            | libc::MAP_HUGE_2MB
            | libc::MAP_FIXED_NOREPLACE;
        let mut attempt = 1;
        loop {
            let place = Self::ordinary(bytes, align)?.base;
            match map_at(place, bytes, flags) {
                Ok(base) => {
                    return Self { base, bytes, backing: Backing::Huge, not_copied: None }.without_copies();
                }
                Err(e) if e.raw_os_error() == Some(libc::EEXIST) && attempt < PLACING_ATTEMPTS => {
                    attempt += 1;
                }
                Err(e) => return Err(e),
            }
        }
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
            Backing::Huge => HUGE_PAGE_BYTES,
        }
    }

    /// Returns the first address.
    pub(super) const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the length in bytes.
    #[cfg(test)]
    pub(super) const fn bytes(&self) -> usize {
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
        self.madvise(offset, bytes, libc::MADV_DONTNEED)
    }

    /// Sets the name of the range in `/proc/PID/maps`, if the kernel supports names.
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

/// Advice about transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Transparent {
    Wanted,
    Unwanted,
}

/// Returns how many bytes of a mapped range are in memory now.
pub(super) fn resident_bytes(range: Range<usize>) -> usize {
    /// Largest number of pages per query.
    const MOST: usize = 1 << 16;
    let (page, mut resident) = (os_page_bytes(), 0);
    let mut pages = vec![0_u8; range.len().div_ceil(page).min(MOST)];
    for start in range.clone().step_by(MOST * page) {
        let bytes = (range.end - start).min(MOST * page);
        let address = std::ptr::without_provenance_mut::<c_void>(start);
        // SAFETY: the call writes one byte to `pages` for each page of the range, and reads no memory.
        if unsafe { libc::mincore(address, bytes, pages.as_mut_ptr().cast()) } == 0 {
            resident += pages[..bytes.div_ceil(page)].iter().filter(|page| **page & 1 == 1).count();
        }
    }
    resident * page
}

fn map(place: *mut c_void, bytes: usize, flags: c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: the call creates an anonymous mapping, and callers pass no flag that replaces existing mappings.
    let start = unsafe { libc::mmap(place, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("the kernel never maps address 0 unasked"))
}

/// Maps as [`map`] does, but fails if the result is not at `place`. Kernels before 4.17 treat the address as a hint.
fn map_at(place: NonNull<u8>, bytes: usize, flags: c_int) -> io::Result<NonNull<u8>> {
    let start = map(place.as_ptr().cast(), bytes, flags)?;
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

/// Unmaps a range. If the kernel refuses, discards its memory instead, and the addresses stay mapped.
fn unmap_or_empty(start: NonNull<u8>, bytes: usize) {
    if unmap(start, bytes).is_err() {
        // SAFETY: the caller owns the range. If the kernel refuses this call too, the memory is leaked.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::memory::origin::tests::in_a_child;

    fn byte(mapping: &Mapping, at: usize) -> *mut u8 {
        assert!(at < mapping.bytes());
        mapping.base().as_ptr().wrapping_add(at)
    }

    /// Returns how many bytes of a mapping are in memory.
    pub(crate) fn resident(mapping: &Mapping) -> usize {
        let start = mapping.base().as_ptr().addr();
        resident_bytes(start..start + mapping.bytes())
    }

    fn is_mapped(start: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            (address(from)..address(to)).contains(&start)
        })
    }

    #[test]
    fn mapping_is_aligned_and_unmapped_on_drop() {
        let align = 64 << 20;
        let mapping = Mapping::new(8 << 20, align, Backing::Ordinary).unwrap();
        let start = mapping.base().as_ptr() as usize;
        assert_eq!(start % align, 0);
        assert_eq!(resident(&mapping), 0);
        assert!(is_mapped(start) && is_mapped(start + mapping.bytes() - 1));
        drop(mapping);
        // Another test may map this address at once.
        zonal_testing::eventually("the end of a mapping", || {
            !is_mapped(start) || {
                drop(Mapping::new(8 << 20, align, Backing::Ordinary).unwrap());
                false
            }
        });
    }

    #[test]
    fn alignment_margin_is_unmapped() {
        // The margins are half a tebibyte on average. If they leaked, they would fill the address space of 128 TiB.
        for _ in 0..400 {
            Mapping::new(4096, 1 << 40, Backing::Ordinary).unwrap();
        }
    }

    #[test]
    fn populate_keeps_contents_and_discard_clears_them() {
        let mapping = Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap();
        mapping.advise(Transparent::Unwanted).ok();
        // SAFETY: the byte is inside the mapping, which only this test uses.
        unsafe { byte(&mapping, 4096).write(7) };
        match mapping.populate(0, 2 << 20) {
            Ok(()) => assert_eq!(resident(&mapping), 2 << 20),
            Err(e) => zonal_testing::skipped!("this kernel cannot populate: {e}"),
        }
        // SAFETY: the byte is inside the mapping, which only this test uses.
        assert_eq!(unsafe { byte(&mapping, 4096).read() }, 7);
        mapping.discard(4096, 4096).unwrap();
        // SAFETY: the byte is inside the mapping, which only this test uses.
        assert_eq!(unsafe { byte(&mapping, 4096).read() }, 0);
        mapping.touch(2 << 20, 1 << 20);
        assert!(resident(&mapping) >= 1 << 20);
    }

    #[test]
    fn binding_succeeds_for_existing_nodes() {
        let mapping = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).unwrap();
        let nowhere = NodeId::new(1023).unwrap();
        assert!(mapping.bind(nowhere).is_err());
        match mapping.bind(NodeId::new(0).unwrap()) {
            Ok(()) => mapping.touch(0, 2 << 20),
            // Any other error is a bug in `bind`.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                zonal_testing::skipped!("this kernel does not bind memory: {e}");
            }
            Err(e) => panic!("node 0 has memory: {e}"),
        }
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn ranges_outside_the_mapping_are_refused() {
        let mapping = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).unwrap();
        mapping.touch(1 << 20, (1 << 20) + 1);
    }

    /// Checks, in children, the range of a mapping that is not copied to them, and mappings that they create.
    #[test]
    fn child_has_a_gap_that_later_mappings_avoid() {
        let mapping = Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap().without_copies().unwrap();
        mapping.touch(0, 4096);
        let is_kept = || {
            // Mapping another range at this address fails if the address is in use.
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            mapping.is_gap()
                && map(mapping.base().as_ptr().cast(), mapping.bytes(), flags)
                    .is_err_and(|why| why.raw_os_error() == Some(libc::EEXIST))
        };
        let ended = in_a_child(false, || is_kept() && in_a_child(false, is_kept) == 0);
        assert_eq!(ended, 0);
        // In a child made by the bare system call, the gap is not filled, but `is_gap` returns true. Memory that is
        // mapped in the gap belongs to other code.
        let leaves_others_alone = || {
            let (start, bytes) = (mapping.base(), mapping.bytes());
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let other = map(start.as_ptr().cast(), bytes, flags);
            let refused = mapping.discard(0, bytes).is_err();
            // SAFETY: the child ends without using `mapping` again.
            drop(unsafe { std::ptr::read(&raw const mapping) });
            // Mapping another range at this address fails if the address is in use.
            mapping.is_gap() && other.is_ok() && refused && map(start.as_ptr().cast(), bytes, flags).is_err()
        };
        assert_eq!(in_a_child(true, leaves_others_alone), 0);
        let touched = in_a_child(false, || {
            mapping.touch(0, 4096);
            true
        });
        assert!(libc::WIFSIGNALED(touched) && libc::WTERMSIG(touched) == libc::SIGSEGV);
        assert!(!mapping.is_gap());
        // The next mapping that uses the list entry is not a gap, even if a child created that mapping.
        drop(mapping);
        let of_a_child = in_a_child(false, || {
            let own = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).and_then(Mapping::without_copies);
            own.is_ok_and(|own| {
                own.touch(0, 4096);
                !own.is_gap()
            })
        });
        assert_eq!(of_a_child, 0);
    }

    /// Returns the wait status of a child that has no addresses left to fill its gap.
    fn child_without_addresses() -> i32 {
        in_a_child(false, || {
            let mapping =
                Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap().without_copies().unwrap();
            // SAFETY: all zeros are a valid `rlimit`.
            let mut usual: libc::rlimit = unsafe { std::mem::zeroed() };
            // SAFETY: the call writes only the limit.
            assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut usual) }, 0);
            let set = |soft| {
                let limit = libc::rlimit { rlim_cur: soft, ..usual };
                // SAFETY: the call reads the limit, and changes only limits of this child.
                unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) == 0 }
            };
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let place = mapping.base().as_ptr().cast();
            set(0)
                && in_a_child(false, || {
                    // The gap is not filled, but `is_gap` returns true, also in children of the child. Memory that is
                    // mapped in the gap belongs to other code.
                    let is_free = set(usual.rlim_cur) && map(place, 4096, flags).is_ok();
                    mapping.is_gap() && is_free && in_a_child(false, || mapping.is_gap()) == 0 && {
                        // SAFETY: the child ends without using `mapping` again.
                        drop(unsafe { std::ptr::read(&raw const mapping) });
                        is_mapped(place as usize)
                    }
                }) == 0
        })
    }

    #[test]
    fn child_without_free_addresses_survives() {
        assert_eq!(child_without_addresses(), 0);
    }

    #[test]
    fn fixed_mappings_are_never_placed_elsewhere() {
        let taken = Mapping::new(1 << 20, 1 << 20, Backing::Ordinary).unwrap();
        let length = || std::fs::read_to_string("/proc/self/statm").unwrap();
        let elsewhere = || {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE; // as old kernels treat them
            map_at(taken.base(), 1 << 30, flags).unwrap_err().raw_os_error()
        };
        // Runs in a child, where no other thread maps memory. The first call of `length` makes the heap grow before the
        // lengths are compared.
        let is_gone = || {
            length();
            let before = length();
            let refused = elsewhere();
            let pages = |text: String| text.split(' ').next().map(|pages| pages.parse::<usize>().unwrap());
            refused == Some(libc::EEXIST) && pages(length()) == pages(before)
        };
        assert_eq!(in_a_child(false, is_gone), 0);
    }

    #[test]
    fn mappings_larger_than_the_address_space_are_refused() {
        assert!(Mapping::new(usize::MAX - 5, 4096, Backing::Ordinary).is_err());
        assert!(Mapping::new(1 << 55, 4096, Backing::Ordinary).is_err());
    }
}
