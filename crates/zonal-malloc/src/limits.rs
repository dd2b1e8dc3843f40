//! What the limits of the process leave for a pool: `RLIMIT_AS` and `RLIMIT_DATA`, see `getrlimit(2)`.

use std::fs;

/// Returns the bytes that the process may still map.
pub(crate) fn bytes_left() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    // SAFETY: the call only returns a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let used =
        |field| statm.split(' ').nth(field).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * page;
    // The fields of `proc_pid_statm(5)`: all memory, and private writable memory.
    let left = |limit: u64, field| limit.saturating_sub(used(field));
    left(limit(libc::RLIMIT_AS), 0).min(left(limit(libc::RLIMIT_DATA), 5))
}

fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut found = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the structure is this function's.
    unsafe { libc::getrlimit(resource, &raw mut found) };
    found.rlim_cur
}
