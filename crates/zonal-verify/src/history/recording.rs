//! Cells whose state can be saved and put back: an allocator is then taken to any state it ever was in.
//!
//! All that changes in an allocator lies in cells, in its buffers. A cell that is written while a
//! [`Recording`] goes on joins it, with what it held; a [`State`] is the values of all cells that
//! joined, and those that join later held then what they held at the start. Neighbours: the platform's
//! own state, CPU and clock, is not in cells; `tests/exhaustive.rs` keeps it beside.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use Ordering::Relaxed;
use zonal::platform::Atomic;

use super::plan::World;
use super::platform::Cells;

/// The cells that can be put back.
pub struct RecordedCells;

impl Cells for RecordedCells {
    type U8 = RecordedCell<AtomicU8>;
    type U32 = RecordedCell<AtomicU32>;
    type U64 = RecordedCell<AtomicU64>;
}

/// A cell that joins the recording when it is first written.
#[repr(C)]
pub struct RecordedCell<A> {
    value: A,
    /// 1 + its place in the recording; 0 = it is in none.
    place: AtomicU32,
}

/// A cell that joined.
#[derive(Clone, Copy)]
enum CellRef {
    Byte(*const RecordedCell<AtomicU8>),
    Half(*const RecordedCell<AtomicU32>),
    Whole(*const RecordedCell<AtomicU64>),
}

struct Entry {
    cell: CellRef,
    /// What it held at the start.
    first: u64,
}

/// What a recording has.
struct Record {
    /// Addresses of the metadata of its world.
    metadata: Vec<Range<usize>>,
    entries: Vec<Entry>,
}

thread_local! {
    static RECORD: RefCell<Option<Record>> = const { RefCell::new(None) };
}

impl CellRef {
    // The cells lie in buffers that outlive the recording, and are only ever used as shared.
    fn address(self) -> usize {
        match self {
            Self::Byte(cell) => cell.addr(),
            Self::Half(cell) => cell.addr(),
            Self::Whole(cell) => cell.addr(),
        }
    }

    fn load(self) -> u64 {
        match self {
            // SAFETY: the cell is alive, as its world is borrowed by the recording.
            Self::Byte(cell) => unsafe { (*cell).value.load(Relaxed).into() },
            // SAFETY: as above.
            Self::Half(cell) => unsafe { (*cell).value.load(Relaxed).into() },
            // SAFETY: as above.
            Self::Whole(cell) => unsafe { (*cell).value.load(Relaxed) },
        }
    }

    fn store(self, value: u64) {
        match self {
            // SAFETY: the cell is alive, as its world is borrowed by the recording.
            Self::Byte(cell) => unsafe { (*cell).value.store(value as u8, Relaxed) },
            // SAFETY: as above.
            Self::Half(cell) => unsafe { (*cell).value.store(value as u32, Relaxed) },
            // SAFETY: as above.
            Self::Whole(cell) => unsafe { (*cell).value.store(value, Relaxed) },
        }
    }

    /// Sets the number of the cell in the recording; 0 = none.
    fn set_place(self, place: u32) {
        match self {
            // SAFETY: the cell is alive, as its world is borrowed by the recording.
            Self::Byte(cell) => unsafe { (*cell).place.store(place, Relaxed) },
            // SAFETY: as above.
            Self::Half(cell) => unsafe { (*cell).place.store(place, Relaxed) },
            // SAFETY: as above.
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

/// The values of all cells that had joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State(Box<[u64]>);

/// A recording of the cells of one world, by the thread that uses it.
pub struct Recording<'w, 'm>(&'w World<'m, RecordedCells>);

impl<'w, 'm> Recording<'w, 'm> {
    /// Begins a recording; the present state is its start.
    ///
    /// # Panics
    /// When the thread is at another recording.
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

    /// Returns the present state.
    #[must_use]
    pub fn save(&self) -> State {
        self.with_entries(|entries| State(entries.iter().map(|entry| entry.cell.load()).collect()))
    }

    /// Puts a state back.
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

    /// Calls `sink` for each cell that is not as it was at the start: its number, its address, what it
    /// held at the start and what it holds.
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

    /// Returns the number of cells that joined.
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
