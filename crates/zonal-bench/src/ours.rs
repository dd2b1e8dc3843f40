//! `zonal` itself: a pool of this machine's memory as its users get it.

use zonal::units::{Order, PageCount, Pfn};
use zonal_linux::workload::PageSource;
use zonal_linux::{Pool, PoolError, PoolRequest};

use crate::contender::{Contender, Entry};

/// Name of the row.
pub(crate) const NAME: &str = "zonal";

/// A pool; its frames are reserved, not touched.
struct Zonal(Pool);

/// A thread's way to it.
struct Source<'a>(&'a Pool);

impl PageSource for Source<'_> {
    type Page = Pfn;

    #[inline]
    fn take(&mut self, order: Order) -> Option<Pfn> {
        self.0.alloc_raw(&PoolRequest::new(order)).ok().map(|block| block.first)
    }

    #[inline]
    fn give(&mut self, page: Pfn, order: Order) {
        // SAFETY: raw blocks of `take` are given back once and belong to no `Frames`.
        let given = unsafe { self.0.free_raw(page, order) };
        given.expect("a pool takes back what it gave out");
    }
}

impl Contender for Zonal {
    type Source<'a> = Source<'a>;

    fn source(&self) -> Source<'_> {
        Source(&self.0)
    }
}

/// A pool of about that many frames.
///
/// # Errors
/// When this machine cannot have such a pool.
pub fn pool(frames: PageCount) -> Result<Pool, PoolError> {
    Pool::builder().size(frames.get() << crate::PAGE_SHIFT).build()
}

/// `zonal` with its default settings.
#[must_use]
pub fn zonal() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |frames| {
        pool(frames).map(Zonal).map_err(|error| error.to_string())
    })
}
