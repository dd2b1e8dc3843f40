//! The contenders `harness` and `exchange`, allocators that do almost nothing.
//!
//! The row `harness` shows the cost of measuring itself. `exchange` adds one atomic exchange to each free, on a byte that
//! the frame chooses, as a free must, and takes another frame each time. The difference of the two rows is what the exchange
//! costs.

use std::sync::atomic::{AtomicU8, Ordering};

use zonal::units::{Order, PageCount, Pfn};
use zonal_workload::PageSource;

use crate::contender::{Contender, Entry};

/// Name of the row without an exchange.
pub(crate) const NAME: &str = "harness";
/// Name of the row with one exchange in each free.
pub(crate) const EXCHANGE: &str = "exchange";

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

/// Number of bytes: as many as `batch` takes frames.
const BYTES: usize = 512;

/// The cell, and the bytes of which each free exchanges one.
struct CellWithBytes {
    cell: Cell,
    bytes: [AtomicU8; BYTES],
}

impl PageSource for CellWithBytes {
    type Page = Pfn;

    #[inline]
    fn alloc(&mut self, order: Order) -> Option<Pfn> {
        let page = self.cell.alloc(order)?;
        self.cell.free(Pfn::new(page.get() + 1), order); // the next frame is another one
        Some(page)
    }

    #[inline]
    fn free(&mut self, page: Pfn, _order: Order) {
        // Relaxed: no other thread uses the bytes. As in `floor-exact`, what was found decides whether the free goes on.
        let found = self.bytes[page.get() as usize % BYTES].swap(0, Ordering::Relaxed);
        assert!(found == 0, "no other value is stored");
    }
}

/// The contender with an exchange. Each of its sources has its own bytes.
struct Exchange;

impl Contender for Exchange {
    type Source<'a> = CellWithBytes;

    fn source(&self) -> CellWithBytes {
        CellWithBytes { cell: Cell::default(), bytes: [const { AtomicU8::new(0) }; BYTES] }
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

/// Returns the entry of the same allocator with one atomic exchange on a byte in each free.
#[must_use]
pub fn exchange() -> Entry {
    Entry::new(EXCHANGE, env!("CARGO_PKG_VERSION"), |_: PageCount| Ok(Exchange)).without_pool()
}
