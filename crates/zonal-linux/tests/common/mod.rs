//! Functions shared by tests that interrupt sequences: the sequences of this program as the kernel reads them, and a
//! ledger that records which thread owns which frame.
#![allow(dead_code, unreachable_pub)] // each test file uses only a part

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use zonal_linux::Pool;
use zonal_testing::Ledger;

/// A descriptor of a sequence in the form that the kernel reads: `struct rseq_cs` of `rseq(2)`.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    version: u32,
    flags: u32,
    pub start: u64,
    pub bytes: u64,
    pub abort: u64,
}

/// Returns the descriptors of all sequences in this program. The linker defines the start and the end of their
/// section.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn sequences() -> &'static [Sequence] {
    // SAFETY: the linker defines both symbols if there is any sequence, and the pool's code has several.
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs"]
        static START: Sequence;
        #[link_name = "__stop___rseq_cs"]
        static STOP: Sequence;
    }
    let (start, stop) = (&raw const START, &raw const STOP);
    let count = (stop.addr() - start.addr()) / size_of::<Sequence>();
    // SAFETY: the section contains only descriptors, each aligned to its size, and never changes.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// Returns an empty slice, because this architecture has no sequences.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn sequences() -> &'static [Sequence] {
    &[]
}

/// Makes a ledger for all frames of a pool.
pub fn ledger_of(pool: &Pool) -> Ledger {
    let first = pool.zones().map(|zone| zone.span.start.get()).min().unwrap();
    let end = pool.zones().map(|zone| zone.span.end().get()).max().unwrap();
    Ledger::new(first..end)
}

/// Checks that no frame has an owner, and that the pool's accounting agrees.
pub fn check_all_free(ledger: &Ledger, pool: &Pool) {
    assert_eq!(ledger.owned().next(), None);
    let accounting = pool.verify().unwrap();
    assert!(accounting.balance() && accounting.allocated.get() == 0, "{accounting:?}");
    // A frame that was pushed twice is found by `verify`, retired, and counted in `retired`.
    assert_eq!(pool.events().retired, 0, "frames were doubled");
}

/// Yields one round, and more rounds for the number of seconds in the environment variable `ZONAL_STRESS_SECONDS`.
pub fn stress_rounds() -> impl Iterator<Item = u64> {
    let seconds = std::env::var("ZONAL_STRESS_SECONDS").ok().and_then(|value| value.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |&round| round == 0 || until.is_some_and(|until| Instant::now() < until))
}

/// Returns the offset of each thread's restartable-sequence area from its thread pointer, if the C library has areas.
pub fn area_offset() -> Option<isize> {
    // SAFETY: the name ends in a zero byte.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    // SAFETY: if not null, the symbol is a `ptrdiff_t` of the C library.
    (!symbol.is_null()).then(|| unsafe { symbol.cast::<isize>().read() })
}

/// Returns the id of the calling thread.
pub fn thread_id() -> libc::pid_t {
    // SAFETY: the function has no preconditions.
    unsafe { libc::gettid() }
}

/// Runs `work`. The calling thread then waits until all senders of `disturbers` are dropped. The threads with these
/// senders signal or move the calling thread by its id, so that id must stay valid and must not be reused.
pub fn work_disturbed<R>(disturbers: &Receiver<()>, work: impl FnOnce() -> R) -> R {
    let worked = catch_unwind(AssertUnwindSafe(work));
    assert!(disturbers.recv().is_err(), "nothing is ever sent");
    worked.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `work` when the result is dropped, even if it is dropped by a panic.
#[must_use]
pub fn when_dropped(work: impl FnOnce()) -> impl Drop {
    struct WhenDropped<F: FnOnce()>(Option<F>);
    impl<F: FnOnce()> Drop for WhenDropped<F> {
        fn drop(&mut self) {
            self.0.take().into_iter().for_each(|work| work());
        }
    }
    WhenDropped(Some(work))
}
