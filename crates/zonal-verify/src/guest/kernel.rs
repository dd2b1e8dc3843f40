//! Queries and changes of the kernel's state, for the checks.
//!
//! This file does not use pools. Its paths are those of the running system. Sources: Linux `move_pages(2)`,
//! `set_mempolicy(2)`, `sched_setaffinity(2)`, `proc(5)`, and the kernel's documentation of `/sys`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::{fs, io, ptr, thread};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::verdict::text;

const NODES: &str = "/sys/devices/system/node";
const CPUS: &str = "/sys/devices/system/cpu";
const BLOCKS: &str = "/sys/devices/system/memory";

/// A mode of a memory policy, as `set_mempolicy` numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub(super) enum Mode {
    Default = 0,
    Preferred = 1,
    Bind = 2,
    Interleave = 3,
    PreferredMany = 5,
}

/// The place of a page in physical memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum PagePlace {
    /// The page is on this node.
    Node(u16),
    /// The address has no page: either nothing was ever stored there, or the page was returned to the kernel.
    Absent,
    /// The kernel reports an error number other than those for an absent page.
    Unknown(i32),
}

/// Returns the place of the page at each address, with the query form of `move_pages`.
pub(super) fn page_places(addresses: &[*const u8]) -> Result<Vec<PagePlace>, String> {
    let mut status: Vec<c_int> = vec![c_int::MIN; addresses.len()];
    // SAFETY: the kernel reads `len` addresses and writes `len` numbers. It moves no page because the list of nodes is
    // null.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            addresses.len(),
            addresses.as_ptr(),
            ptr::null::<c_int>(),
            status.as_mut_ptr(),
            0,
        )
    };
    if failed != 0 {
        return Err(format!("move_pages: {}", io::Error::last_os_error()));
    }
    let place = |status: c_int| match (u16::try_from(status), -status) {
        (Ok(node), _) => PagePlace::Node(node),
        // Kernels before about 6.12 report EFAULT for an absent page.
        (_, libc::ENOENT | libc::EFAULT) => PagePlace::Absent,
        (_, error) => PagePlace::Unknown(error),
    };
    Ok(status.into_iter().map(place).collect())
}

/// Sets the memory policy of the calling thread to interleave over all nodes with memory, or to the default. The ids of
/// these nodes must be below 64.
pub(super) fn interleave_thread(on: bool) -> Result<(), String> {
    if on { set_policy(Mode::Interleave, &memory_nodes()?) } else { set_policy(Mode::Default, &[]) }
}

/// Sets the memory policy of the calling thread. The ids of the nodes must be below 64.
pub(super) fn set_policy(mode: Mode, nodes: &[u16]) -> Result<(), String> {
    let mask: c_ulong = nodes.iter().fold(0, |mask, node| mask | 1 << node);
    let (mask, bits) = match nodes {
        [] => (ptr::null(), 0),
        _ => (&raw const mask, c_ulong::from(c_ulong::BITS) + 1),
    };
    // SAFETY: the mask outlives the call and has at least as many bits as the call declares.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode as c_int, mask, bits) } {
        0 => Ok(()),
        _ => Err(format!("set_mempolicy: {}", io::Error::last_os_error())),
    }
}

/// Pins the calling thread to one CPU.
pub(super) fn pin_to(cpu: u32) -> Result<(), String> {
    let mut set = [0_u64; 16];
    set[cpu as usize / 64] = 1 << (cpu % 64);
    // SAFETY: the call reads exactly the bytes of `set`, and affects the calling thread only.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), set.as_ptr().cast()) } {
        0 => Ok(()),
        _ => Err(format!("CPU {cpu}: sched_setaffinity: {}", io::Error::last_os_error())),
    }
}

/// Runs `work` on a new thread that is pinned to one CPU.
pub(super) fn on_cpu<R: Send>(
    cpu: u32,
    work: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    apart(|| pin_to(cpu).and_then(|()| work()))
}

/// Runs `work` on a new thread for which the system calls `calls` fail with `error`. Threads that it starts inherit the
/// filter.
pub(super) fn refusing<R: Send>(
    calls: &[i64],
    error: i32,
    work: impl FnOnce() -> Result<R, String> + Send,
) -> Result<R, String> {
    let filter: BpfProgram = SeccompFilter::new(
        calls.iter().map(|&call| (call, Vec::new())).collect::<BTreeMap<_, _>>(),
        SeccompAction::Allow,
        SeccompAction::Errno(error.cast_unsigned()),
        std::env::consts::ARCH.try_into().map_err(text)?,
    )
    .and_then(TryInto::try_into)
    .map_err(text)?;
    apart(|| seccompiler::apply_filter(&filter).map_err(text).and_then(|()| work()))
}

/// Runs `work` on a new thread.
fn apart<R: Send>(work: impl FnOnce() -> Result<R, String> + Send) -> Result<R, String> {
    thread::scope(|scope| scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Returns a file's text without leading and trailing white space.
pub(super) fn read(path: impl AsRef<Path>) -> Result<String, String> {
    let path = path.as_ref();
    let read = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
    read.map(|text| text.trim().to_owned())
}

/// Writes `value` to a file of the kernel.
pub(super) fn write(path: impl AsRef<Path>, value: impl ToString) -> Result<(), String> {
    let (path, value) = (path.as_ref(), value.to_string());
    fs::write(path, &value).map_err(|error| format!("writing {value} to {}: {error}", path.display()))
}

fn number(path: impl AsRef<Path>) -> Result<u64, String> {
    let path = path.as_ref();
    read(path)?.parse().map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the numbers in a list such as `0-2,4`.
pub(super) fn listed(list: &str) -> Vec<u16> {
    let ids = zonal_machine::ids::parse(list, 1 << 16).unwrap_or_default();
    ids.into_iter().map(|id| id as u16).collect()
}

/// Returns the nodes that currently have memory.
pub(super) fn memory_nodes() -> Result<Vec<u16>, String> {
    Ok(listed(&read(format!("{NODES}/has_memory"))?))
}

/// Returns the nodes that have CPUs, each with its first CPU that is online.
pub(super) fn nodes_with_cpus() -> Result<Vec<(u16, u32)>, String> {
    let mut found = Vec::new();
    for node in listed(&read(format!("{NODES}/has_cpu"))?) {
        let cpus = listed(&read(format!("{NODES}/node{node}/cpulist"))?);
        found.extend(cpus.first().map(|&cpu| (node, u32::from(cpu))));
    }
    Ok(found)
}

/// Returns the CPUs that are online.
pub(super) fn online_cpus() -> Result<Vec<u32>, String> {
    Ok(listed(&read(format!("{CPUS}/online"))?).into_iter().map(u32::from).collect())
}

/// Takes a CPU offline, or brings it back online.
pub(super) fn set_cpu_online(cpu: u32, online: bool) -> Result<(), String> {
    write(format!("{CPUS}/cpu{cpu}/online"), u8::from(online))
}

/// Returns the free memory of a node, in KiB.
pub(super) fn free_kib(node: u16) -> Result<u64, String> {
    let text = read(format!("{NODES}/node{node}/meminfo"))?;
    let free =
        text.lines().find_map(|line| line.split_once("MemFree:")?.1.split_whitespace().next()?.parse().ok());
    free.ok_or_else(|| format!("node {node}: meminfo has no MemFree"))
}

/// Returns how many 2 MiB huge pages a node's reserve has: all of them, and the free ones.
pub(super) fn reserve(node: u16) -> Result<(u64, u64), String> {
    let folder = format!("{NODES}/node{node}/hugepages/hugepages-2048kB");
    Ok((number(format!("{folder}/nr_hugepages"))?, number(format!("{folder}/free_hugepages"))?))
}

/// Sets how many huge pages a node's reserve has. The kernel may find fewer huge pages than `pages`; this function then
/// returns an error.
pub(super) fn set_reserve(node: u16, pages: u64) -> Result<(), String> {
    write(format!("{NODES}/node{node}/hugepages/hugepages-2048kB/nr_hugepages"), pages)?;
    match reserve(node)?.0 {
        now if now == pages => Ok(()),
        now => Err(format!("node {node} has {now} huge pages in reserve after {pages} were asked for")),
    }
}

/// Returns a field of `/proc/self/smaps`, in KiB, for the mapping that contains `address`.
pub(super) fn smaps_kib(address: *const u8, field: &str) -> Result<u64, String> {
    let (address, text) = (address.addr(), read("/proc/self/smaps")?);
    let mut inside = false;
    for line in text.lines() {
        let word = line.split_whitespace().next().unwrap_or_default();
        if let Some((from, to)) = word.split_once('-')
            && let (Ok(from), Ok(to)) = (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16))
        {
            inside = (from..to).contains(&address);
        } else if inside && word.strip_suffix(':') == Some(field) {
            let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok());
            return kib.ok_or_else(|| format!("smaps: {line} has no number"));
        }
    }
    Err(format!("smaps has no {field} for address {address:#x}"))
}

/// A block of the machine's memory that can be taken offline as a whole.
#[derive(Clone, Debug)]
pub(super) struct MemoryBlock {
    folder: PathBuf,
    pub(super) name: String,
    pub(super) node: u16,
}

impl MemoryBlock {
    /// Returns all blocks that are online and entirely within a zone Movable.
    pub(super) fn movable() -> Result<Vec<Self>, String> {
        let entries = fs::read_dir(BLOCKS).map_err(|error| format!("{BLOCKS}: {error}"))?;
        let mut found: Vec<Self> = entries.flatten().filter_map(|entry| Self::at(entry.path())).collect();
        found.retain(|block| read(block.folder.join("valid_zones")).is_ok_and(|zone| zone == "Movable"));
        found.sort_by_key(|block| block.name.clone());
        Ok(found)
    }

    fn at(folder: PathBuf) -> Option<Self> {
        let name = folder.file_name()?.to_str().filter(|name| name.starts_with("memory"))?.to_owned();
        let mut inside = fs::read_dir(&folder).ok()?.flatten();
        let node = inside.find_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok())?;
        Some(Self { folder, name, node })
    }

    /// Takes the block offline. The kernel moves all its pages to other blocks.
    pub(super) fn offline(&self) -> Result<(), String> {
        write(self.folder.join("state"), "offline")
    }

    /// Brings the block back online, as part of the zone Movable.
    pub(super) fn online(&self) -> Result<(), String> {
        write(self.folder.join("state"), "online_movable")
    }
}

/// Returns the kernel's log since boot.
pub(super) fn log() -> Result<String, String> {
    const READ_ALL: c_int = 3;
    let mut bytes = vec![0_u8; 1 << 20];
    let length = c_int::try_from(bytes.len()).map_err(text)?;
    // SAFETY: the call writes at most `length` bytes, which is the size of the buffer.
    let written = unsafe { libc::klogctl(READ_ALL, bytes.as_mut_ptr().cast(), length) };
    let written = usize::try_from(written).map_err(|_| format!("klogctl: {}", io::Error::last_os_error()))?;
    bytes.truncate(written);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Stores a byte at an address.
///
/// # Safety
/// The address must be mapped writable, and no other thread may use it.
pub(super) unsafe fn touch(address: *mut c_void) {
    // SAFETY: the caller guarantees that the address is mapped writable and that no other thread uses it.
    unsafe { address.cast::<u8>().write_volatile(1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_numbers_and_ranges() {
        assert_eq!(listed("0-2,4,7-7"), [0, 1, 2, 4, 7]);
        assert_eq!(listed(""), [0; 0]);
    }

    #[test]
    fn pages_are_somewhere_once_they_were_stored_to() {
        // The allocation is large enough for a mapping of its own, in which no thread has touched a page.
        let mut bytes = vec![0_u8; 64 << 20].into_boxed_slice();
        let at = |page: usize| bytes.as_ptr().wrapping_add(page << 12);
        let (near, far) = (at(1000), at(15_000));
        bytes[1000 << 12] = 1;
        match page_places(&[near, far]) {
            Ok(places) => {
                assert!(matches!(places[0], PagePlace::Node(_)), "{places:?}");
                assert_eq!(places[1], PagePlace::Absent);
            }
            Err(why) => zonal_testing::skipped!("{why}"),
        }
        assert!(smaps_kib(near, "Rss").unwrap() >= 4);
        assert!(smaps_kib(near, "KernelPageSize").unwrap() >= 4);
        assert!(smaps_kib(ptr::null(), "Rss").unwrap_err().contains("no Rss"));
        assert!(smaps_kib(near, "NoSuchField").is_err());
    }

    #[test]
    fn what_is_refused_is_refused_on_that_thread_alone() {
        let ask = || read("/proc/self/status");
        let refused = refusing(&[libc::SYS_openat, libc::SYS_open], libc::EPERM, || Ok(ask()));
        match refused {
            Ok(text) => assert!(text.unwrap_err().contains("not permitted")),
            Err(why) => zonal_testing::skipped!("this kernel installs no filters of system calls: {why}"),
        }
        ask().unwrap();
    }
}
