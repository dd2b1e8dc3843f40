//! What tests of disturbed sequences share: the sequences of this program as the kernel knows them, and
//! who owns which frame.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use zonal::units::Pfn;
use zonal_linux::Pool;

/// A sequence as it was declared to the kernel: `struct rseq_cs` of `rseq(2)`.
#[repr(C, align(32))]
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    version: u32,
    flags: u32,
    pub start: u64,
    pub bytes: u64,
    pub abort: u64,
}

/// All sequences of this program. The linker names begin and end of the section they lie in.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub fn sequences() -> &'static [Sequence] {
    // SAFETY: the linker defines both wherever there is a sequence, and the pool has some.
    unsafe extern "C" {
        #[link_name = "__start___rseq_cs"]
        static START: Sequence;
        #[link_name = "__stop___rseq_cs"]
        static STOP: Sequence;
    }
    let (start, stop) = (&raw const START, &raw const STOP);
    let count = (stop.addr() - start.addr()) / size_of::<Sequence>();
    // SAFETY: the section holds descriptors only, each aligned to its size, and never changes.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// None on machines without.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn sequences() -> &'static [Sequence] {
    &[]
}

/// Who has each frame: 0, or a name.
pub struct Owners {
    first: u64,
    of: Vec<AtomicU32>,
}

impl Owners {
    pub fn new(pool: &Pool) -> Self {
        let first = pool.zones().map(|zone| zone.span.start.get()).min().unwrap();
        let end = pool.zones().map(|zone| zone.span.end().get()).max().unwrap();
        Self { first, of: (first..end).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Relaxed: the allocator hands the frame, and the cell with it, from one to the next.
    pub fn change(&self, first: Pfn, pages: u64, from: u32, to: u32) {
        for frame in first.get()..first.get() + pages {
            let before = self.of[(frame - self.first) as usize].swap(to, Ordering::Relaxed);
            assert_eq!(before, from, "frame {frame} was of {before}");
        }
    }

    /// Nobody has any, and the pool says the same.
    pub fn check_nobody(&self, pool: &Pool) {
        // Relaxed: read after the joins.
        assert!(self.of.iter().all(|owner| owner.load(Ordering::Relaxed) == 0));
        let books = pool.verify().unwrap();
        assert!(books.balance() && books.allocated.get() == 0, "{books:?}");
        // A frame that was put onto a stack twice would be found there, withheld, and counted right.
        assert_eq!(pool.events().withheld, 0, "frames were doubled");
    }
}

/// Once, and again for the seconds that the environment asks for.
pub fn stress_rounds() -> impl Iterator<Item = u64> {
    let seconds = std::env::var("ZONAL_STRESS_SECONDS").ok().and_then(|value| value.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    (0..).take_while(move |&round| round == 0 || until.is_some_and(|until| Instant::now() < until))
}
