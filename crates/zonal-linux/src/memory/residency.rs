//! Where the kernel has put mapped memory, page by page.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::raw::{c_int, c_void};

use zonal::units::NodeId;

use super::page_sizes::os_page_bytes;

/// Largest number of pages per query.
const PAGES_MAX: usize = 1 << 14;

/// Adds the bytes of a mapped range that are in memory to the counts of their nodes. Populates nothing.
///
/// # Errors
/// When the kernel denies `move_pages(2)`, and with `EPROTO` when it returns something else than a node for a page.
pub(crate) fn count_nodes(range: Range<usize>, bytes_on: &mut BTreeMap<NodeId, u64>) -> io::Result<()> {
    let page = os_page_bytes();
    let mut places = Vec::with_capacity(PAGES_MAX.min(range.len().div_ceil(page)));
    let mut found: Vec<c_int> = Vec::new();
    for start in range.clone().step_by(PAGES_MAX * page) {
        places.clear();
        let pages = (start..range.end.min(start + PAGES_MAX * page)).step_by(page);
        places.extend(pages.map(std::ptr::without_provenance::<c_void>));
        found.clear();
        found.resize(places.len(), -libc::ENOENT);
        let (no_process, no_nodes): (libc::pid_t, *const c_int) = (0, std::ptr::null());
        let (from, to) = (places.as_ptr(), found.as_mut_ptr());
        // SAFETY: without nodes, the call moves nothing, and writes a number for each of `places` to `found`.
        if unsafe { libc::syscall(libc::SYS_move_pages, no_process, places.len(), from, no_nodes, to, 0) } < 0
        {
            return Err(io::Error::last_os_error());
        }
        for &node in &found {
            match u16::try_from(node).ok().and_then(NodeId::new) {
                Some(node) => *bytes_on.entry(node).or_default() += page as u64,
                // The page does not exist yet, or only as the page of zeros that the whole machine shares.
                None if [-libc::ENOENT, -libc::EFAULT].contains(&node) => {}
                None => {
                    return Err(io::Error::from_raw_os_error(if node < 0 { -node } else { libc::EPROTO }));
                }
            }
        }
    }
    Ok(())
}

/// Returns how many bytes of mapped ranges the kernel backs with huge pages of any kind.
///
/// The kernel reports them per mapping. If it has merged a range with foreign memory next to it, the result counts huge pages
/// of that memory as the range's, up to the length of the range.
pub(crate) fn huge_page_bytes(ranges: &[Range<usize>]) -> io::Result<u64> {
    Ok(huge_page_bytes_in(&fs::read_to_string("/proc/self/smaps")?, ranges))
}

/// Fields of a mapping in `smaps` that count huge pages in KiB; Linux `Documentation/filesystems/proc.rst`.
const HUGE_FIELDS: [&str; 5] =
    ["AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"];

fn huge_page_bytes_in(smaps: &str, ranges: &[Range<usize>]) -> u64 {
    let (mut sum, mut overlap) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        if let Some(mapped) = addresses(first) {
            let common = |range: &Range<usize>| {
                mapped.end.min(range.end).saturating_sub(mapped.start.max(range.start)) as u64
            };
            overlap = ranges.iter().map(common).sum();
        } else if HUGE_FIELDS.contains(&first) {
            let kib: u64 = words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
            sum += (kib << 10).min(overlap);
        }
    }
    sum
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
                     Private_Hugetlb:        0 kB\n\
                     7fff00000000-7fff00200000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";
        let start = 0x7f00_0000_0000;
        let in_range =
            |start, bytes: usize| huge_page_bytes_in(smaps, std::slice::from_ref(&(start..start + bytes)));
        assert_eq!(in_range(start, 10 << 20), 6 << 20);
        assert_eq!(in_range(start, 1 << 20), 1 << 20, "more than the range");
        assert_eq!(in_range(0x1000, 0x1000), 0);
        assert_eq!(huge_page_bytes_in("", &[]), 0);
    }
}
