//! CPU time of the calling thread: what it used, not what it waited for.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time the calling thread has used so far, in the kernel too.
pub(super) fn of_this_thread() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec.cast_unsigned(), used.tv_nsec as u32) // never negative, and under 10^9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of the process or of the world would count what the other thread uses.
    #[test]
    fn only_the_threads_own_work_counts() {
        const WORK: Duration = Duration::from_millis(50);
        let before = of_this_thread();
        let used_elsewhere = std::thread::spawn(|| {
            let start = of_this_thread();
            while of_this_thread() - start < WORK {
                std::hint::spin_loop(); // ends, since looking at the clock is work
            }
            of_this_thread() - start
        });
        let used_elsewhere = used_elsewhere.join().unwrap();
        assert!(of_this_thread() - before < used_elsewhere);
    }
}
