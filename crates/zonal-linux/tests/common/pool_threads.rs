//! The threads of pools in this process.

use std::fs;

use zonal_testing::eventually;

/// Returns the number of threads that belong to pools. One may end meanwhile.
pub(crate) fn pool_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("zonal-")).count()
}

/// Checks that all threads of pools have ended. The kernel still lists a thread for a moment after it was joined.
pub(crate) fn assert_no_pool_threads() {
    eventually("the end of all threads of pools", || pool_threads() == 0);
}
