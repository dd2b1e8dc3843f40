//! The CPU time of the calling thread, which does not include waiting. This is the only file with unsafe code.
//!
//! The clock is read through the C library. `rustix` looks up the kernel's clock itself, which fails under valgrind,
//! and valgrind counts instructions for the benchmarks.

use std::time::Duration;

/// Returns the CPU time that the calling thread has used so far, including time in the kernel.
///
/// # Panics
/// Panics if the system has no such clock, which every Linux that runs Rust has.
#[allow(unsafe_code)]
#[must_use]
pub fn of_this_thread() -> Duration {
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `used` is writable, and this clock exists on every Linux that runs Rust.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut used) };
    assert_eq!(failed, 0, "the clock of a thread's CPU time is always there");
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock of the process or real time would also count the time that the other thread uses.
    #[test]
    fn only_the_threads_own_work_counts() {
        const WORK: Duration = Duration::from_millis(50);
        let before = of_this_thread();
        let used_elsewhere = std::thread::spawn(|| {
            let start = of_this_thread();
            while of_this_thread() - start < WORK {
                std::hint::spin_loop(); // ends, because reading the clock uses CPU time
            }
            of_this_thread() - start
        });
        let used_elsewhere = used_elsewhere.join().unwrap();
        assert!(of_this_thread() - before < used_elsewhere);
    }
}
