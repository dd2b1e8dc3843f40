//! Where the pages of a range are, as the kernel says at this moment.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::{fs, io, ptr};

/// Pages that one system call reports.
const AT_ONCE: usize = 16 << 10;

/// The pages of a range by place: `pages = sum of on_nodes + absent + unknown`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Residency {
    /// Bytes on each node.
    pub(crate) on_nodes: BTreeMap<c_int, usize>,
    /// Bytes without physical memory.
    pub(crate) absent: usize,
    /// Bytes for which the kernel reports another error.
    pub(crate) unknown: usize,
}

/// Asks the kernel for the node of every page (`move_pages(2)` without nodes).
///
/// # Errors
/// Returns the error of the system call.
pub(crate) fn of_range(start: usize, bytes: usize) -> io::Result<Residency> {
    let page = page_bytes();
    let mut found = Residency::default();
    let mut pages: Vec<*const c_void> = Vec::with_capacity(AT_ONCE);
    let mut states: Vec<c_int> = Vec::with_capacity(AT_ONCE);
    let mut at = start;
    while at < start + bytes {
        let end = (at + AT_ONCE * page).min(start + bytes);
        pages.clear();
        pages.extend((at..end).step_by(page).map(ptr::without_provenance::<c_void>));
        states.clear();
        states.resize(pages.len(), 0);
        states_of(&pages, &mut states)?;
        for &state in &states {
            match state {
                0.. => *found.on_nodes.entry(state).or_default() += page,
                error if error == -libc::ENOENT => found.absent += page,
                _ => found.unknown += page,
            }
        }
        at = end;
    }
    Ok(found)
}

/// Stores the node of each page, or a negative error.
fn states_of(pages: &[*const c_void], states: &mut [c_int]) -> io::Result<()> {
    assert_eq!(pages.len(), states.len());
    let (count, nodes) = (pages.len() as c_ulong, ptr::null::<c_int>());
    // SAFETY: both arrays have `count` entries and outlive the call, which moves no pages without nodes.
    let result: c_long = unsafe {
        libc::syscall(libc::SYS_move_pages, 0, count, pages.as_ptr(), nodes, states.as_mut_ptr(), 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn page_bytes() -> usize {
    // SAFETY: the call only reads a setting.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.try_into().unwrap_or(4096)
}

/// Bytes in huge pages within some ranges.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Huge {
    pub(crate) transparent: usize,
    pub(crate) explicit: usize,
    pub(crate) swapped: usize,
}

/// Returns the bytes in huge pages of the mappings within `ranges` (start and end), from `/proc/self/smaps`.
///
/// # Errors
/// Returns the error of reading, or names a mapping that extends beyond the ranges.
pub(crate) fn huge_pages(ranges: &[(usize, usize)]) -> Result<Huge, String> {
    let file = "/proc/self/smaps";
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    parse_smaps(&text, ranges)
}

fn parse_smaps(text: &str, ranges: &[(usize, usize)]) -> Result<Huge, String> {
    let mut found = Huge::default();
    let mut is_ours = false;
    for line in text.lines() {
        if let Some((start, end)) = mapping(line) {
            is_ours = ranges.iter().any(|&(from, until)| from <= start && end <= until);
            if !is_ours && ranges.iter().any(|&(from, until)| start < until && from < end) {
                return Err(format!("the mapping at {start:x} is larger than the pool"));
            }
        } else if is_ours {
            let Some((name, value)) = line.split_once(':') else { continue };
            let bytes = || value.trim().strip_suffix(" kB")?.parse::<usize>().ok().map(|count| count << 10);
            match name {
                "AnonHugePages" => found.transparent += bytes().unwrap_or(0),
                "Private_Hugetlb" | "Shared_Hugetlb" => found.explicit += bytes().unwrap_or(0),
                "Swap" => found.swapped += bytes().unwrap_or(0),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Returns the range in the first line of a mapping, such as `7f00-8000 rw-p ...`.
fn mapping(line: &str) -> Option<(usize, usize)> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

/// Returns the resident anonymous memory of the process in bytes, from `/proc/self/status`.
pub(crate) fn anonymous_bytes() -> Option<usize> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<usize>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_are_resident_and_others_are_not() {
        let page = page_bytes();
        let bytes = 20 * page;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        for at in 0..3 {
            let byte = start.cast::<u8>().wrapping_add(at * page);
            // SAFETY: the byte is in the mapping.
            unsafe { byte.write(1) };
        }
        match of_range(start.addr(), bytes) {
            Err(error) => zonal_testing::skipped!("move_pages: {error}"),
            Ok(found) if found.on_nodes.values().sum::<usize>() > 3 * page => {
                zonal_testing::skipped!("the kernel uses huge pages for all memory");
            }
            Ok(found) => {
                assert_eq!(found.on_nodes.values().sum::<usize>(), 3 * page, "{found:?}");
                assert_eq!(found.absent + found.unknown, 17 * page, "{found:?}");
            }
        }
        // SAFETY: nothing uses the mapping any more.
        unsafe { libc::munmap(start, bytes) };
    }

    #[test]
    fn huge_pages_of_other_mappings_are_not_counted() {
        let text = "1000-3000 rw-p 00000000 00:00 0 \nRss: 8 kB\nAnonHugePages:      4 kB\n\
                    3000-4000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:   64 kB\n\
                    5000-6000 rw-p 00000000 00:00 0\nPrivate_Hugetlb: 2048 kB\nSwap: 16 kB\n";
        let found = parse_smaps(text, &[(0x1000, 0x3000), (0x5000, 0x6000)]);
        assert_eq!(found, Ok(Huge { transparent: 4 << 10, explicit: 2 << 20, swapped: 16 << 10 }));
        assert_eq!(
            parse_smaps(text, &[(0x1000, 0x2000)]),
            Err("the mapping at 1000 is larger than the pool".into())
        );
    }
}
