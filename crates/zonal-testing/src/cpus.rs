//! The CPUs on which tests run their threads.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::skipped;

/// Returns the CPUs on which the calling thread may run, in order.
///
/// # Panics
/// Panics if the kernel does not say.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a thread may ask where it may run");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Returns two CPUs on which the calling thread may run. If there is only one, reports a skip and returns `None`.
#[must_use]
pub fn two_cpus() -> Option<[usize; 2]> {
    let cpus = allowed_cpus();
    let two = cpus.first_chunk().copied();
    if two.is_none() {
        skipped!("two CPUs are needed, and this process may use {cpus:?}");
    }
    two
}

/// Binds the calling thread to a CPU.
///
/// # Panics
/// Panics if the kernel refuses, for example because the CPU is not one of [`allowed_cpus`].
pub fn pin_to(cpu: usize) {
    bind(0, &[cpu]);
}

/// Binds a running thread to some CPUs, and thus moves it if it runs on another one. Thread 0 is the calling one.
///
/// # Panics
/// Panics if the kernel refuses, for example because the thread has ended or none of the CPUs is allowed.
pub fn bind(thread: i32, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    let bound = sched_setaffinity(Pid::from_raw(thread), &set);
    bound.unwrap_or_else(|error| panic!("thread {thread} cannot be bound to CPUs {cpus:?}: {error}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "binds threads")]
    fn a_thread_runs_only_where_it_is_bound() {
        std::thread::scope(|scope| {
            for cpu in allowed_cpus() {
                scope.spawn(move || {
                    pin_to(cpu);
                    assert_eq!(allowed_cpus(), [cpu]);
                });
            }
            let nowhere = scope.spawn(|| pin_to(CpuSet::MAX_CPU - 1));
            assert!(allowed_cpus().contains(&(CpuSet::MAX_CPU - 1)) || nowhere.join().is_err());
        });
    }
}
