//! Cells whose values can be saved and restored, so that an allocator can return to any earlier state.
//!
//! All mutable state of an allocator is in cells in its buffers. The first write to a cell during a [`Recording`] adds
//! the cell and its previous value to the recording. A [`State`] contains the values of all cells that were in the
//! recording when it was saved. Cells that were added later had their initial values at that time.
//!
//! The CPU and the clock of the platform are not in cells, so `search.rs` saves and restores them itself.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use Ordering::Relaxed;
use zonal::platform::Atomic;

use super::plan::World;
use super::platform::Cells;

/// Cells whose values can be saved and restored.
pub struct RecordedCells;

impl Cells for RecordedCells {
    type U8 = RecordedCell<AtomicU8>;
    type U32 = RecordedCell<AtomicU32>;
    type U64 = RecordedCell<AtomicU64>;
}

/// A cell that is added to the recording before its first write.
#[repr(C)]
pub struct RecordedCell<A> {
    value: A,
    /// 1 + the index of the cell in the recording, or 0 if it is in none.
    place: AtomicU32,
}

/// A cell in the recording.
#[derive(Clone, Copy)]
enum CellRef {
    Byte(*const RecordedCell<AtomicU8>),
    Half(*const RecordedCell<AtomicU32>),
    Whole(*const RecordedCell<AtomicU64>),
}

struct Entry {
    cell: CellRef,
    /// The cell's value at the start of the recording.
    first: u64,
}

/// The data of a recording.
struct Record {
    /// Addresses of the world's metadata.
    metadata: Vec<Range<usize>>,
    entries: Vec<Entry>,
}

thread_local! {
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

impl CellRef {
    // The cells are in buffers that outlive the recording, and are used only through shared references.
    fn address(self) -> usize {
        match self {
            Self::Byte(cell) => cell.addr(),
            Self::Half(cell) => cell.addr(),
            Self::Whole(cell) => cell.addr(),
        }
    }

    fn load(self) -> u64 {
        match self {
            // SAFETY: the cell is alive, because the recording borrows its world.
            Self::Byte(cell) => unsafe { (*cell).value.load(Relaxed).into() },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Half(cell) => unsafe { (*cell).value.load(Relaxed).into() },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Whole(cell) => unsafe { (*cell).value.load(Relaxed) },
        }
    }

    fn store(self, value: u64) {
        match self {
            // SAFETY: the cell is alive, because the recording borrows its world.
            Self::Byte(cell) => unsafe { (*cell).value.store(value as u8, Relaxed) },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Half(cell) => unsafe { (*cell).value.store(value as u32, Relaxed) },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Whole(cell) => unsafe { (*cell).value.store(value, Relaxed) },
        }
    }

    /// Sets the number of the cell in the recording, or 0 for none.
    fn set_place(self, place: u32) {
        match self {
            // SAFETY: the cell is alive, because the recording borrows its world.
            Self::Byte(cell) => unsafe { (*cell).place.store(place, Relaxed) },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Half(cell) => unsafe { (*cell).place.store(place, Relaxed) },
            // SAFETY: as above, the recording borrows the cell's world.
            Self::Whole(cell) => unsafe { (*cell).place.store(place, Relaxed) },
        }
    }
}

/// Adds a cell to the recording before its first write.
#[cold]
fn add(cell: CellRef) {
    RECORD.with_borrow_mut(|record| {
        if let Some(Record { metadata, entries }) = record {
            let is_of_world = metadata.iter().any(|bytes| bytes.contains(&cell.address()));
            assert!(is_of_world, "a recording is of one world");
            entries.push(Entry { cell, first: cell.load() });
            cell.set_place(entries.len() as u32);
        }
    });
}

macro_rules! recorded_cell {
    ($($atomic:ident: $value:ident as $joined:ident),*) => {$(
        impl RecordedCell<$atomic> {
            fn to_write(&self) -> &$atomic {
                if self.place.load(Relaxed) == 0 {
                    add(CellRef::$joined(self));
                }
                &self.value
            }
        }

        impl Atomic<$value> for RecordedCell<$atomic> {
            fn new(value: $value) -> Self {
                Self { value: $atomic::new(value), place: AtomicU32::new(0) }
            }
            fn load(&self, order: Ordering) -> $value {
                self.value.load(order)
            }
            fn store(&self, value: $value, order: Ordering) {
                self.to_write().store(value, order);
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.to_write().swap(value, order)
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                ok: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                self.to_write().compare_exchange(current, new, ok, failed)
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.to_write().fetch_add(value, order)
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.to_write().fetch_or(value, order)
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.to_write().fetch_and(value, order)
            }
        }
    )*};
}
recorded_cell!(AtomicU8: u8 as Byte, AtomicU32: u32 as Half, AtomicU64: u64 as Whole);

/// The values of all cells in the recording when it was saved.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State(Box<[u64]>);

/// A recording of one world's cells, made by the thread that uses the world.
pub struct Recording<'w, 'm>(&'w World<'m, RecordedCells>);

impl<'w, 'm> Recording<'w, 'm> {
    /// Begins a recording, with the current state as its start.
    ///
    /// # Panics
    /// Panics if this thread already has a recording.
    #[must_use]
    pub fn begin(world: &'w World<'m, RecordedCells>) -> Self {
        let record = Record { metadata: world.metadata.clone(), entries: Vec::new() };
        let before = RECORD.replace(Some(record));
        assert!(before.is_none(), "one recording at a time");
        Self(world)
    }

    fn with_entries<R>(&self, work: impl FnOnce(&[Entry]) -> R) -> R {
        RECORD.with_borrow(|record| work(&record.as_ref().expect("a recording goes on").entries))
    }

    /// Returns the current state.
    #[must_use]
    pub fn save(&self) -> State {
        self.with_entries(|entries| State(entries.iter().map(|entry| entry.cell.load()).collect()))
    }

    /// Restores a state.
    pub fn restore(&self, state: &State) {
        self.with_entries(|entries| {
            for (at, entry) in entries.iter().enumerate() {
                let value = state.0.get(at).copied().unwrap_or(entry.first);
                if entry.cell.load() != value {
                    entry.cell.store(value);
                }
            }
        });
    }

    /// Calls `sink` for each cell whose value differs from that at the start. The arguments are the cell's number, its
    /// address, its value at the start, and its current value.
    pub fn changed(&self, mut sink: impl FnMut(usize, usize, u64, u64)) {
        self.with_entries(|entries| {
            for (at, entry) in entries.iter().enumerate() {
                let value = entry.cell.load();
                if value != entry.first {
                    sink(at, entry.cell.address(), entry.first, value);
                }
            }
        });
    }

    /// Returns the number of cells in the recording.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.with_entries(<[Entry]>::len)
    }

    /// Returns the world.
    #[must_use]
    pub const fn world(&self) -> &'w World<'m, RecordedCells> {
        self.0
    }
}

impl Drop for Recording<'_, '_> {
    fn drop(&mut self) {
        for entry in RECORD.take().into_iter().flat_map(|record| record.entries) {
            entry.cell.set_place(0);
        }
    }
}
