//! The contender `harness`, an allocator that does almost nothing. Its row shows the cost of measuring itself.

use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};

/// Name of the contender's row.
pub(crate) const NAME: &str = "harness";

/// A cell that an allocation reads and a free writes.
#[derive(Default)]
pub(crate) struct Cell(u64);

impl PageSource for Cell {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, _order: Order) -> Option<Pfn> {
        // SAFETY: the pointer comes from a reference, so it is valid. The access is volatile, because the compiler
        // would otherwise optimise the whole loop away.
        Some(Pfn::new(unsafe { (&raw const self.0).read_volatile() }))
    }

    #[inline]
    fn free(&mut self, page: Pfn, _order: Order) {
        // SAFETY: the pointer comes from a reference, so it is valid. The access is volatile for the reason given in
        // `alloc`.
        unsafe { (&raw mut self.0).write_volatile(page.get()) };
    }
}

/// The contender. Each of its sources has its own cell.
struct Harness;

impl Contender for Harness {
    type Source<'a> = Cell;

    fn source(&self) -> Cell {
        Cell::default()
    }
}

/// Returns the entry of an allocator that executes one load per allocation and one store per free.
#[must_use]
pub fn harness() -> Entry {
    Entry::new(NAME, env!("CARGO_PKG_VERSION"), |_: PageCount| Ok(Harness)).without_pool()
}
