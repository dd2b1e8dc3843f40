//! Building cells in buffers that the caller owns: the one unsafe room of the core.
//!
//! Vocabulary: to *carve* is to take the next piece of a buffer and construct values in it; a
//! [`Measure`] adds up what a later carving will take. Neighbours: `layout.rs` decides what is
//! carved and in which order.

use core::mem::{MaybeUninit, align_of, size_of};
use core::slice;

use crate::platform::cells::AllZero;
use crate::platform::{Atomic, Platform, ZeroedCells};

/// Alignment of every carved slice in bytes: a cache line.
pub(crate) const LINE: usize = 64;

/// Memory for metadata, lent to an allocator for `'m`.
#[derive(Debug)]
pub struct Buffer<'m> {
    bytes: &'m mut [MaybeUninit<u8>],
    zeroed: bool,
}

impl<'m> Buffer<'m> {
    /// A buffer with any contents; all of it that is used will be written at start.
    #[must_use]
    pub fn uninit(bytes: &'m mut [MaybeUninit<u8>]) -> Self {
        Self { bytes, zeroed: false }
    }

    /// Bytes of the buffer.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A buffer that holds zeros; where the platform promises that zeros are valid cells, they are
    /// not written at start, so that fresh pages are touched only when used.
    ///
    /// # Safety
    /// Every byte must be initialised to zero.
    #[must_use]
    pub unsafe fn zeroed(bytes: &'m mut [MaybeUninit<u8>]) -> Self {
        Self { bytes, zeroed: true }
    }
}

/// Adds up the bytes of carvings to come. Sums that no address space holds stay at `usize::MAX`, which
/// no buffer can supply.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measure {
    bytes: usize,
}

impl Measure {
    /// Room for a slice of `len` values.
    pub(crate) const fn add<T>(&mut self, len: usize) {
        assert!(align_of::<T>() <= 2 * LINE);
        let align = if align_of::<T>() > LINE { align_of::<T>() } else { LINE };
        let start = match self.bytes.checked_next_multiple_of(align) {
            Some(start) => start,
            None => usize::MAX,
        };
        self.bytes = start.saturating_add(size_of::<T>().saturating_mul(len));
    }

    /// Bytes to ask for, so that the carving fits whatever line the buffer starts on.
    pub(crate) const fn total(self) -> usize {
        match self.bytes.checked_next_multiple_of(LINE) {
            Some(0) => 0,
            Some(bytes) => bytes.saturating_add(2 * LINE),
            None => usize::MAX,
        }
    }
}

/// Carves slices out of one buffer, from its start.
pub(crate) struct Arena<'m> {
    rest: &'m mut [MaybeUninit<u8>],
    zeroed: bool,
}

impl<'m> Arena<'m> {
    pub(crate) fn new(buffer: Buffer<'m>) -> Self {
        Self { rest: buffer.bytes, zeroed: buffer.zeroed }
    }

    /// A slice of `len` fresh values.
    pub(crate) fn fresh<P: Platform, T: AllZero<P>>(&mut self, len: usize) -> &'m [T] {
        self.cells::<P, T>(len, T::all_zero)
    }

    /// A slice of `len` one-byte cells.
    pub(crate) fn u8s<P: Platform>(&mut self, len: usize) -> &'m [P::U8] {
        self.cells::<P, P::U8>(len, || P::U8::new(0))
    }

    /// A slice of `len` four-byte cells.
    pub(crate) fn u32s<P: Platform>(&mut self, len: usize) -> &'m [P::U32] {
        self.cells::<P, P::U32>(len, || P::U32::new(0))
    }

    /// A slice of `len` eight-byte cells.
    pub(crate) fn u64s<P: Platform>(&mut self, len: usize) -> &'m [P::U64] {
        self.cells::<P, P::U64>(len, || P::U64::new(0))
    }

    /// Constructs values for which zero bytes are as good, where the platform promises so.
    fn cells<P: Platform, T>(&mut self, len: usize, new: impl Fn() -> T) -> &'m [T] {
        let zeroed_is_fresh: Option<ZeroedCells<P>> = if self.zeroed { P::ZEROED_CELLS } else { None };
        let places = self.places::<T>(len);
        if zeroed_is_fresh.is_none() {
            for place in places.iter_mut() {
                place.write(new());
            }
        }
        // SAFETY: every value was written just now, or is zero bytes, which the platform promised
        // (`ZeroedCells`) to equal the `new(0)` cells that all callers construct.
        unsafe { assume_init(places) }
    }

    /// A slice of values that are not cells: the process-local views.
    pub(crate) fn values<T: Copy>(&mut self, len: usize, value: impl FnMut(usize) -> T) -> &'m [T] {
        self.values_mut(len, value)
    }

    /// As [`Arena::values`], in ascending order.
    pub(crate) fn sorted<T: Copy + Ord>(&mut self, len: usize, value: impl FnMut(usize) -> T) -> &'m [T] {
        let values = self.values_mut(len, value);
        values.sort_unstable();
        values
    }

    /// As [`Arena::values`], to be changed before they are shown.
    pub(crate) fn values_mut<T: Copy>(
        &mut self,
        len: usize,
        mut value: impl FnMut(usize) -> T,
    ) -> &'m mut [T] {
        let places = self.places::<T>(len);
        for (at, place) in places.iter_mut().enumerate() {
            place.write(value(at));
        }
        let start = places.as_mut_ptr().cast::<T>();
        // SAFETY: every value was written just now, in places that are exclusively ours for 'm.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    /// A list of values, to be pushed one by one, `capacity` at most.
    pub(crate) fn list<T: Copy>(&mut self, capacity: usize) -> List<'m, T> {
        List { places: self.places(capacity), len: 0 }
    }

    /// The next `len` aligned places.
    fn places<T>(&mut self, len: usize) -> &'m mut [MaybeUninit<T>] {
        let rest = core::mem::take(&mut self.rest);
        let skip = rest.as_ptr().align_offset(align_of::<T>().max(LINE));
        let (taken, rest) = rest[skip..].split_at_mut(size_of::<T>() * len);
        self.rest = rest;
        let start = taken.as_mut_ptr().cast::<MaybeUninit<T>>();
        // SAFETY: `taken` is exclusively ours for 'm, aligned for T by the skip, and `len` values
        // long; `MaybeUninit` needs no initialisation.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

/// Values pushed into carved places.
pub(crate) struct List<'m, T> {
    places: &'m mut [MaybeUninit<T>],
    /// The first `len` places are written.
    len: usize,
}

impl<'m, T: Copy> List<'m, T> {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: T) {
        self.places[self.len].write(value);
        self.len += 1;
    }

    /// The values pushed.
    pub(crate) fn finish(self) -> &'m [T] {
        let Self { places, len } = self;
        // SAFETY: the first `len` places were written by `push`.
        unsafe { assume_init(&places[..len]) }
    }
}

/// # Safety
/// Every place must hold a valid value.
unsafe fn assume_init<T>(places: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: the caller vouches for the values; `MaybeUninit<T>` has the layout of `T`.
    unsafe { slice::from_raw_parts(places.as_ptr().cast::<T>(), places.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_address_space_holds_is_never_supplied() {
        for len in [usize::MAX, usize::MAX / 8, usize::MAX / 8 - 10, usize::MAX / 16 + 1] {
            let mut measure = Measure::default();
            measure.add::<u64>(len);
            measure.add::<u64>(len);
            assert_eq!(measure.total(), usize::MAX, "{len}");
        }
        let mut measure = Measure::default();
        assert_eq!(measure.total(), 0);
        measure.add::<u8>(1);
        measure.add::<u64>(1);
        assert_eq!(measure.total(), 2 * LINE + 2 * LINE);
    }
}
