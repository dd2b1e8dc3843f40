//! Where the kernel has put mapped memory, page by page.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::raw::{c_int, c_void};
use std::os::unix::fs::FileExt;

use zonal::units::NodeId;

use super::mapping::resident_bytes;
use super::page_sizes::os_page_bytes;

/// Largest number of pages per query.
const PAGES_MAX: usize = 1 << 14;

/// Where the pages of mapped memory are, in bytes, as the kernel says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Residency {
    /// Bytes in memory on each node.
    pub bytes_on: BTreeMap<NodeId, u64>,
    /// Bytes that are not in memory, or only as the page of zeros that the whole machine shares.
    pub absent: u64,
    /// Bytes in memory of which the kernel does not report the node. Kernels before 6.12 do not report it while automatic
    /// NUMA balancing watches a page, which it does in memory that is not bound.
    pub unknown: u64,
}

impl Residency {
    /// Asks the kernel for the node of each page in an address range, with `move_pages(2)`. Populates nothing.
    ///
    /// # Errors
    /// When the kernel denies the call for pages that are in memory: in a container, add the capability `SYS_NICE`.
    pub fn of(range: Range<usize>) -> io::Result<Self> {
        let mut found = Self::default();
        each_page(range, |place, bytes| found.count(place, bytes))?;
        Ok(found)
    }

    fn count(&mut self, place: PagePlace, bytes: u64) {
        match place {
            PagePlace::OnNode(node) => *self.bytes_on.entry(node).or_default() += bytes,
            PagePlace::Absent => self.absent += bytes,
            PagePlace::Unknown => self.unknown += bytes,
        }
    }

    /// Returns the number of bytes in memory.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.bytes_on.values().sum()
    }

    /// Adds the pages of other memory.
    pub fn add(&mut self, other: &Self) {
        other.bytes_on.iter().for_each(|(&node, bytes)| *self.bytes_on.entry(node).or_default() += bytes);
        self.absent += other.absent;
        self.unknown += other.unknown;
    }
}

/// Where the kernel says a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagePlace {
    /// In memory on the node.
    OnNode(NodeId),
    /// Not in memory, or only as the page of zeros that the whole machine shares.
    Absent,
    /// The kernel does not report the node.
    Unknown,
}

impl PagePlace {
    /// Reads the state that `move_pages(2)` returns: a node, or a negative error.
    fn from_state(state: c_int) -> Self {
        match u16::try_from(state).ok().and_then(NodeId::new) {
            Some(node) => Self::OnNode(node),
            None if [-libc::ENOENT, -libc::EFAULT].contains(&state) => Self::Absent,
            None => Self::Unknown,
        }
    }
}

/// Adjacent pages that are in the same place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageRun {
    /// Addresses of the pages.
    pub range: Range<usize>,
    /// Where they are.
    pub place: PagePlace,
}

impl PageRun {
    /// Asks the kernel where each page in an address range is, and returns the longest runs in order of address.
    /// Populates nothing.
    ///
    /// # Errors
    /// As for [`Residency::of`].
    pub fn of(range: Range<usize>) -> io::Result<Vec<Self>> {
        let mut runs: Vec<Self> = Vec::new();
        let mut start = range.start;
        each_page(range, |place, bytes| {
            let end = start.saturating_add(bytes as usize);
            match runs.last_mut() {
                Some(last) if last.place == place => last.range.end = end,
                _ => runs.push(Self { range: start..end, place }),
            }
            start = end;
        })?;
        Ok(runs)
    }
}

/// Calls `found` for the pages in an address range, in order, with their place and their bytes: for each page, or for some
/// pages that are absent.
fn each_page(range: Range<usize>, mut found: impl FnMut(PagePlace, u64)) -> io::Result<()> {
    let page = os_page_bytes();
    let mut pages = Vec::with_capacity(PAGES_MAX.min(range.len().div_ceil(page)));
    let mut states: Vec<c_int> = Vec::new();
    for start in range.clone().step_by(PAGES_MAX * page) {
        let end = range.end.min(start.saturating_add(PAGES_MAX * page));
        // `mincore(2)` is hundreds of times faster where nothing is in memory, for example at reserved addresses.
        if resident_bytes(start..end).is_ok_and(|resident| resident == 0) {
            found(PagePlace::Absent, (end - start).next_multiple_of(page) as u64);
            continue;
        }
        pages.clear();
        pages.extend((start..end).step_by(page).map(std::ptr::without_provenance::<c_void>));
        states.clear();
        states.resize(pages.len(), -libc::ENOENT);
        let (no_process, no_nodes): (libc::pid_t, *const c_int) = (0, std::ptr::null());
        let (count, from, to) = (pages.len(), pages.as_ptr(), states.as_mut_ptr());
        // SAFETY: without nodes, the call moves nothing, and writes a number for each of `pages` to `states`.
        let result = unsafe { libc::syscall(libc::SYS_move_pages, no_process, count, from, no_nodes, to, 0) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        if states.iter().any(|&state| PagePlace::from_state(state) == PagePlace::Absent) {
            mark_hidden(start / page, &mut states);
        }
        states.iter().for_each(|&state| found(PagePlace::from_state(state), page as u64));
    }
    Ok(())
}

/// Changes the state of pages that are in memory although `move_pages(2)` found none: kernels before 6.12 do not find a page
/// without permissions, such as one that automatic NUMA balancing watches. `first` is the number of the first page. Without
/// `/proc/self/pagemap`, the states stay.
fn mark_hidden(first: usize, states: &mut [c_int]) {
    /// Linux `Documentation/admin-guide/mm/pagemap.rst`.
    const PRESENT: u64 = 1 << 63;
    /// Mapped by this process alone. The pages of zeros are not.
    const OWN: u64 = 1 << 56;
    /// A page of shared memory, or the huge page of zeros, for which `move_pages(2)` returns `EFAULT`.
    const SHARED: u64 = 1 << 61;
    let mut entries = vec![0; states.len() * size_of::<u64>()];
    let Ok(pagemap) = fs::File::open("/proc/self/pagemap") else { return };
    if pagemap.read_exact_at(&mut entries, (first * size_of::<u64>()) as u64).is_err() {
        return;
    }
    let (entries, _) = entries.as_chunks();
    for (state, entry) in states.iter_mut().zip(entries) {
        let entry = u64::from_ne_bytes(*entry);
        let is_absent = PagePlace::from_state(*state) == PagePlace::Absent;
        let sure = if *state == -libc::EFAULT { OWN } else { OWN | SHARED };
        if is_absent && entry & PRESENT != 0 && entry & sure != 0 {
            *state = -libc::EACCES;
        }
    }
}

/// How the kernel backs mapped memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backing {
    /// In transparent huge pages.
    pub transparent_huge: u64,
    /// In explicit huge pages.
    pub explicit_huge: u64,
    /// Swapped out.
    pub swapped: u64,
}

impl Backing {
    /// Reads how the kernel backs ranges of addresses from `/proc/self/smaps`.
    ///
    /// The kernel reports this per mapping. If it has merged a range with foreign memory next to it, the result may count bytes
    /// of that memory as the range's, up to the length of the range.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(ranges: &[Range<usize>]) -> io::Result<Self> {
        Ok(Self::from_smaps(&fs::read_to_string("/proc/self/smaps")?, ranges))
    }

    /// Reads the text of `smaps`; Linux `Documentation/filesystems/proc.rst`.
    fn from_smaps(text: &str, ranges: &[Range<usize>]) -> Self {
        let (mut found, mut overlap) = (Self::default(), 0);
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let Some(first) = words.next() else { continue };
            if let Some(mapped) = addresses(first) {
                let common = |range: &Range<usize>| {
                    mapped.end.min(range.end).saturating_sub(mapped.start.max(range.start)) as u64
                };
                overlap = ranges.iter().map(common).sum();
                continue;
            }
            let sum = match first {
                "AnonHugePages:" | "ShmemPmdMapped:" | "FilePmdMapped:" => &mut found.transparent_huge,
                "Shared_Hugetlb:" | "Private_Hugetlb:" => &mut found.explicit_huge,
                "Swap:" => &mut found.swapped,
                _ => continue,
            };
            let kib: u64 = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            *sum += (kib << 10).min(overlap);
        }
        found
    }
}

/// Returns the addresses in the first word of a mapping's first line.
fn addresses(word: &str) -> Option<Range<usize>> {
    let (start, end) = word.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_count_within_the_ranges() {
        let smaps = "7f0000000000-7f0000800000 rw-p 00000000 00:00 0\nSize: 8192 kB\nAnonHugePages:      4096 kB\n\
                     7f0000800000-7f0000a00000 rw-s 00000000 00:00 0 /memfd:pool\nShmemPmdMapped:      2048 kB\n\
                     Private_Hugetlb:        64 kB\nSwap: 16 kB\n\
                     7fff00000000-7fff00200000 rw-p 00000000 00:00 0\nAnonHugePages:   2048 kB\nSwap: 4 kB\n";
        let of = |start: usize, bytes: usize| {
            let found = Backing::from_smaps(smaps, std::slice::from_ref(&(start..start + bytes)));
            [found.transparent_huge, found.explicit_huge, found.swapped]
        };
        let start = 0x7f00_0000_0000;
        assert_eq!(of(start, 10 << 20), [6 << 20, 64 << 10, 16 << 10]);
        assert_eq!(of(start, 1 << 20), [1 << 20, 0, 0], "more than the range");
        assert_eq!(of(0x1000, 0x1000), [0; 3]);
        assert_eq!(Backing::from_smaps("", &[]), Backing::default());
    }

    /// Memory that was only read is the page of zeros, which exists in two sizes.
    #[test]
    fn private_memory_that_was_only_read_is_absent() {
        const BYTES: usize = 8 << 20;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
        for (kind, advice) in [
            (libc::MAP_PRIVATE, libc::MADV_NOHUGEPAGE),
            (libc::MAP_PRIVATE, libc::MADV_HUGEPAGE),
            (libc::MAP_SHARED, libc::MADV_NOHUGEPAGE),
        ] {
            // SAFETY: the mapping is new.
            let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags | kind, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            // SAFETY: only this test uses the mapping. A kernel without huge pages refuses the advice.
            unsafe { libc::madvise(start, BYTES, advice) };
            for at in (0..BYTES).step_by(4096) {
                // SAFETY: the byte is in the mapping.
                assert_eq!(unsafe { start.cast::<u8>().wrapping_add(at).read_volatile() }, 0);
            }
            let found = Residency::of(start.addr()..start.addr() + BYTES).unwrap();
            let absent = if kind == libc::MAP_PRIVATE { BYTES as u64 } else { 0 };
            assert_eq!((found.absent, found.unknown), (absent, 0), "{kind} {advice}: {found:?}");
            // SAFETY: only this test uses the mapping.
            unsafe { libc::munmap(start, BYTES) };
        }
    }

    #[test]
    fn ranges_at_the_end_of_all_addresses_are_absent() {
        let page = os_page_bytes();
        let end = usize::MAX / page * page;
        let range = end - 2 * page..end;
        let absent = Residency { absent: 2 * page as u64, ..Residency::default() };
        assert_eq!(Residency::of(range.clone()).unwrap(), absent);
        assert_eq!(PageRun::of(range.clone()).unwrap(), [PageRun { range, place: PagePlace::Absent }]);
        assert_eq!(PageRun::of(end..usize::MAX).unwrap()[0].range.end, usize::MAX);
    }

    /// Kernels before 6.12 do not find such pages.
    #[test]
    fn pages_without_permissions_are_not_absent() {
        const BYTES: usize = 64 << 10;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: the mapping is new.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: only this test uses the mapping.
        assert_eq!(unsafe { libc::mprotect(start, BYTES, libc::PROT_NONE) }, 0);
        let found = Residency::of(start.addr()..start.addr() + BYTES).unwrap();
        assert_eq!((found.resident() + found.unknown, found.absent), (BYTES as u64, 0));
        let mut states = [-libc::ENOENT, 0, -libc::EFAULT];
        mark_hidden(start.addr() / os_page_bytes(), &mut states);
        let unknown = PagePlace::Unknown;
        assert_eq!(
            states.map(PagePlace::from_state),
            [unknown, PagePlace::OnNode(NodeId::default()), unknown]
        );
        // SAFETY: only this test uses the mapping.
        assert_eq!(unsafe { libc::munmap(start, BYTES) }, 0);
        let mut states = [-libc::ENOENT];
        mark_hidden(start.addr() / os_page_bytes(), &mut states);
        assert_eq!(PagePlace::from_state(states[0]), PagePlace::Absent);
    }

    #[test]
    fn pages_are_counted_by_state() {
        let mut found = Residency::default();
        for state in [0, 1, 0, -libc::ENOENT, -libc::EFAULT, -libc::EACCES, 5000] {
            found.count(PagePlace::from_state(state), 10);
        }
        let mut sum = found.clone();
        sum.add(&found);
        assert_eq!((found.resident(), found.absent, found.unknown), (30, 20, 20));
        assert_eq!((sum.resident(), sum.absent, sum.unknown), (60, 40, 40));
        assert_eq!(sum.bytes_on.get(&NodeId::default()), Some(&40));
    }
}
