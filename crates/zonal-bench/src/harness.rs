//! `harness`: the cost of measuring itself, as the row of an allocator that does next to nothing.

use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};

/// Name of the row.
pub(crate) const NAME: &str = "harness";

/// A cell that an allocation reads and a free writes.
#[derive(Default)]
pub(crate) struct Cell(u64);

impl PageSource for Cell {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, _order: Order) -> Option<Pfn> {
        // SAFETY: a reference is valid. Volatile, or the compiler would optimise the whole loop away.
        Some(Pfn::new(unsafe { (&raw const self.0).read_volatile() }))
    }

    #[inline]
    fn free(&mut self, page: Pfn, _order: Order) {
        // SAFETY: a reference is valid. Volatile as in `alloc`.
        unsafe { (&raw mut self.0).write_volatile(page.get()) };
    }
}

/// The contender; every source has a cell of its own.
struct Harness;

impl Contender for Harness {
    type Source<'a> = Cell;

    fn source(&self) -> Cell {
        Cell::default()
    }
}

/// Returns the entry: one load per allocation and one store per free.
#[must_use]
pub fn harness() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |_: PageCount| Ok(Harness)).without_pool()
}
