//! The CPU time of threads, which other programs on the machine change less than the time of a clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that the calling thread has used. Time spent spinning counts; time spent waiting for a core does not.
pub(crate) fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
