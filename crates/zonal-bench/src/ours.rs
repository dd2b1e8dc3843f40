//! The contender `zonal` itself: a pool of this machine's memory, built as users of the library build it.

use rustix::thread::{MembarrierCommand, membarrier};
use zonal::Allocator;
use zonal::units::{Order, PageCount, Pfn};
use zonal_linux::{LinuxPlatform, Pool, PoolBuilder, PoolError, PoolRequest};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry, Reason};
use crate::floor::area;

/// Row name of `zonal`.
pub(crate) const NAME: &str = "zonal";
/// Row name of `zonal` without restartable sequences.
pub(crate) const LOCKED: &str = "zonal-locked";

/// A pool whose frames are reserved address space, never touched.
struct Zonal(Pool);

/// A thread's interface for code that stores frames by number: the allocator without the owning type [`Frames`].
///
/// [`Frames`]: zonal_linux::Frames
struct Source<'a>(&'a Allocator<'static, LinuxPlatform>);

impl<'a> Source<'a> {
    fn new(pool: &'a Pool) -> Self {
        // SAFETY: no frames of the pool are ever owned in another way, and no memory goes offline.
        Self(unsafe { pool.allocator() })
    }
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        self.0.alloc(&PoolRequest::new(order)).ok().map(|block| block.first)
    }

    #[inline(always)]
    fn free(&mut self, page: Pfn, order: Order) {
        self.0.free(page, order).expect("the block was allocated");
    }
}

/// A pool whose restartable-sequence areas are not registered with a kernel, and the offset of these areas from the
/// thread pointer.
struct Simulated(Pool, isize);

impl Contender for Simulated {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        // SAFETY: the creator of the entry guarantees one thread and a simulator that runs one thread at a time, so
        // no thread interrupts another thread's sequence. `unregistered_offset` has checked that the areas are not
        // registered.
        unsafe { area::set_simulated_cpu(self.1) };
        Source::new(&self.0)
    }
}

/// Returns `zonal` for simulators that do not support restartable sequences.
///
/// # Safety
/// The entry must be used on one thread only, and only in a simulator that runs one thread at a time, such as
/// valgrind.
#[must_use]
pub unsafe fn zonal_in_simulator() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |frames| {
        // SAFETY: the caller makes the same promises.
        let (pool, offset) = unsafe { pool_in_simulator(Pool::builder().size(bytes(frames))) }?;
        Ok(Simulated(pool, offset))
    })
}

/// Builds a pool whose restartable-sequence areas are not registered with a kernel, and returns the offset of these areas
/// from the thread pointer.
///
/// # Safety
/// As for [`zonal_in_simulator`]. The thread that uses the pool must set its area to CPU 0 first.
pub(crate) unsafe fn pool_in_simulator(builder: PoolBuilder<'_>) -> Result<(Pool, isize), Reason> {
    let offset = area::unregistered_offset()?;
    // A pool normally makes this registration itself, but only if it finds registered areas.
    membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).map_err(|error| error.to_string())?;
    // SAFETY: the caller guarantees a single thread, whose area is set to CPU 0.
    let pool = unsafe { builder.assume_area(offset) }.build();
    pool.map(|pool| (pool, offset)).map_err(|error| error.to_string())
}

impl Contender for Zonal {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source::new(&self.0)
    }
}

/// Creates a pool of about this many frames.
///
/// # Errors
/// Returns an error if this machine cannot provide such a pool.
pub fn pool(frames: PageCount) -> Result<Pool, PoolError> {
    Pool::builder().size(bytes(frames)).build()
}

pub(crate) const fn bytes(frames: PageCount) -> u64 {
    frames.get() << crate::PAGE_SHIFT
}

/// Returns the entry of `zonal` as it works on systems without restartable sequences, to compare with the floor that
/// uses locks.
#[must_use]
pub fn zonal_locked() -> Entry {
    Entry::new(LOCKED, env!("CARGO_PKG_VERSION"), |frames| {
        let pool = Pool::builder().size(bytes(frames)).without_sequences().build();
        pool.map(Zonal).map_err(|error| error.to_string())
    })
}

/// Returns the entry of `zonal` with its default settings.
#[must_use]
pub fn zonal() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |frames| {
        pool(frames).map(Zonal).map_err(|error| error.to_string())
    })
}
