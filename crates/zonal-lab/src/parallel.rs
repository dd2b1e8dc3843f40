//! Distributes independent simulations over host threads.
//!
//! Related files: `what_if/load.rs` uses it; `experiment/run.rs` also limits the memory of what runs at the same time.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` with each job, on up to `threads` host threads. Returns the results in the order of the jobs.
///
/// # Errors
/// Returns the first error. No further job begins then.
///
/// # Panics
/// Panics if `work` does.
pub fn in_parallel<J: Sync, T: Send, E: Send>(
    jobs: &[J],
    threads: NonZeroUsize,
    work: impl Fn(&J) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new((Vec::with_capacity(jobs.len()), None));
    let run = || {
        // Relaxed: the number only distributes the jobs; the lock publishes the results.
        let claim = || next.fetch_add(1, Relaxed);
        while let Some((at, job)) = Some(claim()).and_then(|at| Some((at, jobs.get(at)?))) {
            let result = work(job);
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            match result {
                Ok(result) => found.0.push((at, result)),
                Err(error) => {
                    next.store(jobs.len(), Relaxed);
                    found.1.get_or_insert(error);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.get().min(jobs.len()) {
            scope.spawn(run);
        }
    });
    let (mut results, error) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|(at, _)| *at);
    error.map_or_else(|| Ok(results.into_iter().map(|(_, result)| result).collect()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREADS: NonZeroUsize = NonZeroUsize::new(3).unwrap();

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        let jobs: Vec<u64> = (0..100).collect();
        let doubled = in_parallel(&jobs, THREADS, |job| Ok::<_, ()>(job * 2));
        assert_eq!(doubled, Ok(jobs.iter().map(|job| job * 2).collect()));
        assert_eq!(in_parallel(&[], THREADS, |job: &u64| Ok::<_, ()>(*job)), Ok(Vec::new()));
    }

    #[test]
    fn no_job_begins_after_an_error() {
        let begun = AtomicUsize::new(0);
        let jobs = [0; 1000];
        let failed = in_parallel(&jobs, NonZeroUsize::MIN, |_| match begun.fetch_add(1, Relaxed) {
            3 => Err("the fourth"),
            other => Ok(other),
        });
        assert_eq!((failed, begun.into_inner()), (Err("the fourth"), 4));
    }
}
