//! Construction of cells and values in buffers that the caller owns.
//!
//! An [`Arena`] allocates slices from one buffer, in ascending order of address, and constructs values in them. A
//! [`Measure`] computes in advance how many bytes the slices need.
//!
//! Related files: `layout.rs` determines which slices are allocated and in which order, and `platform/cells.rs`
//! declares the structures.

use core::mem::{MaybeUninit, align_of, size_of};
use core::slice;

use crate::platform::cells::AllZero;
use crate::platform::{Atomic, Platform};
use crate::rules::sort::sort_by_key;

/// Minimum alignment of every slice in bytes, which is a cache line.
pub(crate) const LINE: usize = 64;

/// Memory for metadata, which an allocator borrows for `'m`.
#[derive(Debug)]
pub struct Buffer<'m> {
    bytes: &'m mut [MaybeUninit<u8>],
    zeroed: bool,
}

impl<'m> Buffer<'m> {
    /// Creates a buffer with arbitrary contents.
    ///
    /// The allocator writes all bytes that it uses at start.
    #[must_use]
    pub fn uninit(bytes: &'m mut [MaybeUninit<u8>]) -> Self {
        Self { bytes, zeroed: false }
    }

    /// Creates a buffer that has the cells of an allocator which other processes use already.
    ///
    /// # Safety
    /// The bytes must be the buffer from which another process has created or joined the allocator, for the same request,
    /// mapped with write access. The allocator accesses them only by atomic operations, as the other processes do, although
    /// the reference is exclusive: no other reference to them may exist in this process.
    #[must_use]
    #[allow(unsafe_code)] // the function is unsafe to call but contains no unsafe code
    pub unsafe fn of_process(bytes: &'m mut [MaybeUninit<u8>]) -> Self {
        Self { bytes, zeroed: true }
    }

    /// Returns the length of the buffer in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Creates a buffer that contains zeros.
    ///
    /// If the platform promises that zero bytes are valid cells, the allocator does not write cells at start, so
    /// fresh pages are touched only when they are used.
    ///
    /// # Safety
    /// Every byte must be initialised to zero.
    #[must_use]
    pub unsafe fn zeroed(bytes: &'m mut [MaybeUninit<u8>]) -> Self {
        Self { bytes, zeroed: true }
    }
}

/// Computes the number of bytes that arena allocations need.
///
/// Sums that exceed the address space saturate at `usize::MAX`, which no buffer can supply.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measure {
    bytes: usize,
}

impl Measure {
    /// Adds a slice of `len` values.
    pub(crate) const fn add<T>(&mut self, len: usize) {
        self.add_values(size_of::<T>(), align_of::<T>(), len);
    }

    /// Adds a slice of `len` values with this size and alignment. Not inlined, so that all types share the code.
    #[inline(never)]
    const fn add_values(&mut self, size: usize, align: usize, len: usize) {
        assert!(align <= 2 * LINE);
        let align = if align > LINE { align } else { LINE };
        let start = match self.bytes.checked_next_multiple_of(align) {
            Some(start) => start,
            None => usize::MAX,
        };
        self.bytes = start.saturating_add(size.saturating_mul(len));
    }

    /// Returns the number of bytes to request, which is enough for any alignment of the buffer's start.
    pub(crate) const fn total(self) -> usize {
        match self.bytes.checked_next_multiple_of(LINE) {
            Some(0) => 0,
            Some(bytes) => bytes.saturating_add(2 * LINE),
            None => usize::MAX,
        }
    }
}

/// Allocates slices from one buffer, in ascending order of address.
pub(crate) struct Arena<'m> {
    rest: &'m mut [MaybeUninit<u8>],
}

impl<'m> Arena<'m> {
    /// Creates an arena in the first `len` bytes of a buffer, which are zeroed if zero bytes are cells.
    pub(crate) fn new<P: Platform>(buffer: Buffer<'m>, len: usize) -> Self {
        let rest = &mut buffer.bytes[..len];
        if P::ZEROED_CELLS.is_some() && !buffer.zeroed {
            rest.fill(MaybeUninit::zeroed()); // one call takes less code than one for each slice
        }
        Self { rest }
    }

    /// Allocates a slice of `len` values in their initial state.
    pub(crate) fn fresh<P: Platform, T: AllZero<P>>(&mut self, len: usize) -> &'m [T] {
        self.cells::<P, T>(len, T::all_zero)
    }

    /// Allocates a slice of `len` one-byte cells.
    pub(crate) fn u8s<P: Platform>(&mut self, len: usize) -> &'m [P::U8] {
        self.cells::<P, P::U8>(len, || P::U8::new(0))
    }

    /// Allocates a slice of `len` four-byte cells.
    pub(crate) fn u32s<P: Platform>(&mut self, len: usize) -> &'m [P::U32] {
        self.cells::<P, P::U32>(len, || P::U32::new(0))
    }

    /// Allocates a slice of `len` eight-byte cells.
    pub(crate) fn u64s<P: Platform>(&mut self, len: usize) -> &'m [P::U64] {
        self.cells::<P, P::U64>(len, || P::U64::new(0))
    }

    /// Allocates a slice of `len` values for which zero bytes are a valid initial state.
    ///
    /// Constructs the values unless the platform promises that zero bytes are valid cells.
    fn cells<P: Platform, T>(&mut self, len: usize, new: impl Fn() -> T) -> &'m [T] {
        let places = self.places::<T>(len);
        if P::ZEROED_CELLS.is_none() {
            places.iter_mut().for_each(|place| _ = place.write(new()));
        }
        // SAFETY: every value was written just now, or its bytes were zero when the first process got the buffer, and have
        // been used as these values only. In the second case, the platform promised (`ZeroedCells`) that zero bytes are
        // equivalent to the `new(0)` cells that all callers construct.
        unsafe { assume_init(places) }
    }

    /// Allocates as [`Arena::values`] does, and sorts the values in ascending order.
    pub(crate) fn sorted<T: Copy + Ord>(&mut self, len: usize, value: impl FnMut(usize) -> T) -> &'m [T] {
        let values = self.values(len, value);
        sort_by_key(values, |value| *value);
        values
    }

    /// Allocates a slice of values that are not cells, such as the process-local views.
    pub(crate) fn values<T: Copy>(&mut self, len: usize, mut value: impl FnMut(usize) -> T) -> &'m mut [T] {
        let places = self.places::<T>(len);
        for (at, place) in places.iter_mut().enumerate() {
            place.write(value(at));
        }
        let start = places.as_mut_ptr().cast::<T>();
        // SAFETY: every value was written just now, and the memory is borrowed exclusively for 'm.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    /// Allocates an empty list for at most `capacity` values.
    pub(crate) fn list<T: Copy>(&mut self, capacity: usize) -> List<'m, T> {
        List { places: self.places(capacity), len: 0 }
    }

    /// Allocates the next `len` elements, aligned and uninitialized.
    fn places<T>(&mut self, len: usize) -> &'m mut [MaybeUninit<T>] {
        let taken = self.bytes(size_of::<T>() * len, align_of::<T>().max(LINE));
        let start = taken.as_mut_ptr().cast::<MaybeUninit<T>>();
        // SAFETY: `taken` is borrowed exclusively for 'm, is aligned for T, and has space for `len` values. `MaybeUninit`
        // needs no initialization.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }

    /// Allocates the next bytes. Not inlined, so that all types share the code.
    #[inline(never)]
    fn bytes(&mut self, len: usize, align: usize) -> &'m mut [MaybeUninit<u8>] {
        let rest = core::mem::take(&mut self.rest);
        let skip = rest.as_ptr().align_offset(align);
        let (taken, rest) = rest[skip..].split_at_mut(len);
        self.rest = rest;
        taken
    }
}

/// A list of values in memory from an arena.
pub(crate) struct List<'m, T> {
    places: &'m mut [MaybeUninit<T>],
    /// Number of elements written, starting from the first.
    len: usize,
}

impl<'m, T: Copy> List<'m, T> {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: T) {
        self.places[self.len].write(value);
        self.len += 1;
    }

    /// Returns the values that were pushed.
    pub(crate) fn finish(self) -> &'m [T] {
        let Self { places, len } = self;
        // SAFETY: `push` has written the first `len` elements.
        unsafe { assume_init(&places[..len]) }
    }
}

/// Returns the elements as initialized values.
///
/// # Safety
/// Every element must hold a valid value.
unsafe fn assume_init<T>(places: &[MaybeUninit<T>]) -> &[T] {
    // SAFETY: the caller guarantees that the values are valid, and `MaybeUninit<T>` has the layout of `T`.
    unsafe { slice::from_raw_parts(places.as_ptr().cast::<T>(), places.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_larger_than_the_address_space_is_refused() {
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
