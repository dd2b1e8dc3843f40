//! `zonal` itself: a pool of this machine's memory as its users get it.

use rustix::thread::{MembarrierCommand, membarrier};
use zonal::Allocator;
use zonal::units::{Order, PageCount, Pfn};
use zonal_linux::{LinuxPlatform, Pool, PoolError, PoolRequest};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};
use crate::floor::area;

/// Name of the row.
pub(crate) const NAME: &str = "zonal";
/// The row without restartable sequences.
pub(crate) const LOCKED: &str = "zonal-locked";

/// A pool; its frames are reserved, not touched.
struct Zonal(Pool);

/// A thread's way to it, as of those who keep frames by number: the allocator without [`Frames`].
///
/// [`Frames`]: zonal_linux::Frames
struct Source<'a>(&'a Allocator<'static, LinuxPlatform>);

impl<'a> Source<'a> {
    fn new(pool: &'a Pool) -> Self {
        // SAFETY: no frames of the pool are ever owned otherwise, and no memory goes offline.
        Self(unsafe { pool.allocator() })
    }
}

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline(always)]
    fn take(&mut self, order: Order) -> Option<Pfn> {
        self.0.alloc(&PoolRequest::new(order)).ok().map(|block| block.first)
    }

    #[inline(always)]
    fn give(&mut self, page: Pfn, order: Order) {
        self.0.free(page, order).expect("an allocator takes back what it gave out");
    }
}

/// A pool whose users have areas that no kernel looks after, and where those lie.
struct Simulated(Pool, isize);

impl Contender for Simulated {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        // SAFETY: whoever made the entry promised one thread in a simulator, where threads do not
        // interrupt each other's sequences; that nobody looks after areas was found out.
        unsafe { area::stand_in(self.1) };
        Source::new(&self.0)
    }
}

/// `zonal` for simulators that know of no restartable sequences.
///
/// # Safety
/// Only for use on one thread, and only in a simulator that runs one thread at a time, such as
/// valgrind.
#[must_use]
pub unsafe fn zonal_in_simulator() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |frames| {
        let offset = area::unattended()?;
        // The pool would register for it if it knew of areas.
        membarrier(MembarrierCommand::RegisterPrivateExpeditedRseq).map_err(|error| error.to_string())?;
        let builder = Pool::builder().size(bytes(frames));
        // SAFETY: one thread, as the caller promised; its source makes the area say CPU 0.
        let pool = unsafe { builder.assume_area(offset) }.build();
        pool.map(|pool| Simulated(pool, offset)).map_err(|error| error.to_string())
    })
}

impl Contender for Zonal {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source::new(&self.0)
    }
}

/// A pool of about that many frames.
///
/// # Errors
/// When this machine cannot have such a pool.
pub fn pool(frames: PageCount) -> Result<Pool, PoolError> {
    Pool::builder().size(bytes(frames)).build()
}

const fn bytes(frames: PageCount) -> u64 {
    frames.get() << crate::PAGE_SHIFT
}

/// `zonal` as it is where the system offers no restartable sequences: to be held against the floor
/// with locks.
#[must_use]
pub fn zonal_locked() -> Entry {
    Entry::new(LOCKED, env!("CARGO_PKG_VERSION"), |frames| {
        let pool = Pool::builder().size(bytes(frames)).without_sequences().build();
        pool.map(Zonal).map_err(|error| error.to_string())
    })
}

/// `zonal` with its default settings.
#[must_use]
pub fn zonal() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |frames| {
        pool(frames).map(Zonal).map_err(|error| error.to_string())
    })
}
