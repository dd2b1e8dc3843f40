//! Frame states: a byte for each frame, of which an operation on a block writes only the first frame's byte.
//!
//! A *section* is 4096 frames. A bit for each section records whether the section is *present*, which means that any of
//! its frames is managed. The bytes of absent sections are therefore never written. Related files: `zone/frame_state.rs`
//! encodes the states, `alloc/serve.rs`, `alloc/release.rs` and `alloc/freed.rs` change the states of blocks.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::config::InvalidFree;
use crate::platform::cells::copy_view;
use crate::platform::whole_words::WORD_FRAMES;
use crate::platform::{Atomic, Platform};
use crate::units::{Order, PageKind};
use crate::zone::frame_state::{
    FREE, FrameState, NOT_MANAGED, ORDER_MASK, QUARANTINED, check_transition, kind_bits,
};

/// Number of frames in a section. A zone's base is a multiple of this number (`layout.rs`).
pub(crate) const SECTION: u64 = 1 << 12;
/// Sections in a word of the present-section bitmap.
const SECTIONS_A_WORD: u64 = u64::BITS as u64;

/// State of a single frame that a pageset caches.
pub(crate) const CACHED_PAGE: u8 = FrameState::Cached(Order::PAGE).encode();

/// Returns the state of a single frame that is allocated as `kind`.
#[inline(always)]
pub(crate) const fn allocated_page(kind: PageKind) -> u8 {
    FrameState::Allocated(Order::PAGE, kind).encode()
}

/// Changes a block's state from `allocated` to `cached`, which transfers the block from its owner to the free.
///
/// # Errors
/// Under [`InvalidFree::Exact`], returns the state found if it is not `allocated`, and writes nothing. Among several
/// concurrent frees of an allocated block, exactly one succeeds. Under [`InvalidFree::Checked`], never fails. A free
/// that is preempted before its store overwrites any state that other threads have stored since the free read the
/// state.
#[inline(always)]
pub(crate) fn mark_freed<A: Atomic<u8>>(
    cell: &A,
    allocated: u8,
    cached: u8,
    invalid_free: InvalidFree,
) -> Result<(), u8> {
    check_transition(allocated, cached);
    match invalid_free {
        // Relaxed: a failure is only reported.
        // AcqRel: takes its mark, publishes its writes; pairs with `mark_popped`, `step_byte`, `replace_all`, `are_all`.
        InvalidFree::Exact => cell.compare_exchange(allocated, cached, AcqRel, Relaxed).map(|_| ()),
        InvalidFree::Checked => {
            // Release: publishes the owner's writes; pairs with `mark_popped`, `step_byte`, `are_all`.
            cell.store(cached, Release);
            Ok(())
        }
    }
}

/// Applies [`mark_freed`] to a single frame of kind `User`.
///
/// An exchange checks the state itself, so only [`InvalidFree::Checked`] reads the state first.
///
/// # Errors
/// Returns the state found if the frame is not allocated as a single frame of kind `User`.
#[inline(always)]
pub(crate) fn mark_page_freed<A: Atomic<u8>>(cell: &A, invalid_free: InvalidFree) -> Result<(), u8> {
    let allocated = allocated_page(PageKind::User);
    if invalid_free == InvalidFree::Checked {
        let found = cell.load(Relaxed); // relaxed: the caller owns the frame if the free is valid
        if found != allocated {
            return Err(found);
        }
    }
    mark_freed(cell, allocated, CACHED_PAGE, invalid_free)
}

/// Marks a cached block, which the caller has removed from a pageset, as allocated; returns `false` if it has another
/// state.
#[inline(always)]
pub(crate) fn mark_block_allocated<A: Atomic<u8>>(cell: &A, order: Order, kind: PageKind) -> bool {
    step_byte(cell, FrameState::Cached(order).encode(), FrameState::Allocated(order, kind).encode())
}

/// The states of a zone's frames, by offset from the zone's base.
pub(crate) struct FrameTable<'m, P: Platform> {
    pub(crate) states: &'m [P::U8],
    /// The states of all frames, followed by their holders if processes share the allocator.
    pub(crate) states_and_holders: &'m [P::U8],
    /// One bit for each section: whether any of its frames is managed.
    pub(crate) present: &'m [P::U64],
}

copy_view!(FrameTable);

impl<'m, P: Platform> FrameTable<'m, P> {
    /// Returns the number of words in the section bitmap for a zone with `frames` frames.
    pub(crate) const fn present_words(frames: u64) -> usize {
        frames.div_ceil(SECTION * SECTIONS_A_WORD) as usize
    }

    fn cell(&self, frame: u32) -> &P::U8 {
        &self.states[frame as usize]
    }

    /// Applies [`mark_page_freed`] to the frames of a word, from the first up to one that is not allocated as a single frame
    /// of kind `User`; returns how many are now cached.
    #[inline]
    pub(crate) fn mark_word_freed(&self, first: u32, invalid_free: InvalidFree) -> usize {
        let (from, to) =
            (FrameState::Allocated(Order::PAGE, PageKind::User), FrameState::Cached(Order::PAGE));
        check_transition(from.encode(), to.encode());
        match invalid_free {
            InvalidFree::Exact => self.states[first as usize..]
                .first_chunk()
                .map_or(0, |word| P::exchange_leading(word, from.encode(), to.encode())),
            InvalidFree::Checked if self.replace_word(first, from, to) => WORD_FRAMES,
            InvalidFree::Checked => 0,
        }
    }

    /// Changes the states of a word's 64 single frames if all are `from`; otherwise changes nothing and returns `false`.
    #[inline]
    pub(crate) fn replace_word(&self, first: u32, from: FrameState, to: FrameState) -> bool {
        let (from, to) = (from.encode(), to.encode());
        check_transition(from, to);
        self.states[first as usize..].first_chunk().is_some_and(|word| P::replace_all(word, from, to))
    }

    /// Changes the state of a block that the caller holds.
    ///
    /// Returns `false` if the block has another state than `from`. Two racing frees of one block can cause that under
    /// [`InvalidFree::Checked`].
    #[inline]
    pub(crate) fn step(&self, frame: u32, from: FrameState, to: FrameState) -> bool {
        step_byte(self.cell(frame), from.encode(), to.encode())
    }

    /// Performs [`FrameTable::step`] for some single frames of a 64-frame word, given as bits; returns those whose state
    /// changed.
    #[inline(always)]
    pub(crate) fn step_word(&self, first: u32, frames: u64, from: FrameState, to: FrameState) -> u64 {
        let states = &self.states[first as usize..];
        // Most words are whole, and their frames belong to the caller, so all their states can change together.
        // Orderings as in `step_byte`.
        if frames == !0 && self.replace_word(first, from, to) {
            return frames;
        }
        let (mut stepped, mut left) = (frames, frames);
        let states = &states[..states.len().min(64)];
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            if !step_byte(&states[bit as usize], from.encode(), to.encode()) {
                stepped &= !(1 << bit);
            }
        }
        stepped
    }

    /// Marks the allocated block at `frame` as cached, for a free with `order`. Returns the block's kind, or `None` if the
    /// block is not allocated with this order.
    #[inline(always)]
    pub(crate) fn release(&self, frame: u32, order: Order, invalid_free: InvalidFree) -> Option<PageKind> {
        let cell = self.cell(frame);
        let byte = cell.load(Relaxed); // relaxed: the exchange checks again, or the caller owns the block
        let kind = PageKind::ALL
            .get(kind_bits(byte))
            .filter(|_| byte & (ORDER_MASK | QUARANTINED) == order.get() + 1)?;
        mark_freed(cell, byte, FrameState::Cached(order).encode(), invalid_free).ok()?;
        Some(*kind)
    }

    /// Reverts the release of a block, which the caller has not yet pushed onto a stack: marks it as allocated.
    ///
    /// Changes nothing if the block has another state: another process may have taken it over before the claim, and died, so
    /// that the block was freed.
    #[cold]
    pub(crate) fn mark_allocated_again(&self, frame: u32, order: Order, kind: PageKind) {
        _ = self.exchange(frame, FrameState::Cached(order), FrameState::Allocated(order, kind));
    }

    /// Returns the state of `frame`.
    pub(crate) fn state(&self, frame: u32) -> FrameState {
        self.state_by(frame, |cell| cell.load(Relaxed)) // relaxed: an observation only
    }

    /// Returns the state of `frame` like [`FrameTable::state`]; what its writer wrote before is then visible, too.
    pub(super) fn state_acquired(&self, frame: u32) -> FrameState {
        // Acquire: takes the states that were set before; pairs with `FrameTable::put`.
        self.state_by(frame, |cell| cell.load(Acquire))
    }

    /// Returns the state of `frame`. Its section's bit is read before `load` reads the byte, because bytes are written before
    /// their section is present.
    fn state_by(&self, frame: u32, load: impl FnOnce(&P::U8) -> u8) -> FrameState {
        if self.is_present(u64::from(frame) / SECTION) {
            FrameState::decode(load(self.cell(frame)))
        } else {
            FrameState::NotManaged
        }
    }

    /// Whether a frame of the section is managed.
    fn is_present(&self, section: u64) -> bool {
        // Acquire: takes the section's bytes; pairs with `FrameTable::add_managed`, `FrameTable::remove_managed`.
        let word = self.present[(section / SECTIONS_A_WORD) as usize].load(Acquire);
        word >> (section % SECTIONS_A_WORD) & 1 != 0
    }

    /// Returns the cell and the bit that record whether a section is present.
    fn presence(&self, section: u64) -> (&'m P::U64, u64) {
        (&self.present[(section / SECTIONS_A_WORD) as usize], 1 << (section % SECTIONS_A_WORD))
    }

    /// Returns the first frame at or after `from` that is in a present section and has a byte other than zero.
    pub(crate) fn next_in_use(&self, mut from: u64) -> Option<u32> {
        let end = self.states.len() as u64;
        while from < end {
            let section = from / SECTION;
            let section_end = ((section + 1) * SECTION).min(end);
            if self.is_present(section) {
                let states = &self.states[from as usize..section_end as usize];
                // Most frames are free or inside blocks.
                let words = states.as_chunks().0.iter();
                let passed = WORD_FRAMES * words.take_while(|word| P::are_all(word, FREE)).count();
                // Relaxed: the verification runs only while no operation is under way.
                if let Some(at) = states[passed..].iter().position(|cell| cell.load(Relaxed) != FREE) {
                    return Some((from + (passed + at) as u64) as u32); // a zone spans at most 2^32 frames
                }
            }
            from = section_end;
        }
        None
    }

    /// Returns how many of `count` frames from `first` are managed.
    pub(crate) fn count_managed(&self, first: u32, count: u64) -> u64 {
        let mut total = 0;
        self.for_each_section(first, count, |section, _, part| {
            if self.is_present(section) {
                let bytes = &self.states[part.start as usize..part.end as usize];
                // Relaxed: an observation only.
                total += bytes.iter().filter(|cell| cell.load(Relaxed) != NOT_MANAGED).count() as u64;
            }
        });
        total
    }

    /// Marks `count` frames from `first` as managed and free.
    ///
    /// The caller must hold the lock that serialises changes, and none of the frames may be managed already.
    pub(super) fn add_managed(&self, first: u32, count: u64) {
        self.for_each_section(first, count, |section, whole, part| {
            if !self.is_present(section) {
                let outside = (whole.start..part.start).chain(part.end..whole.end);
                outside.for_each(|frame| self.put(frame, NOT_MANAGED));
                let (word, bit) = self.presence(section);
                // Release: publishes the section's bytes; pairs with `FrameTable::is_present`.
                word.fetch_or(bit, Release);
            } else {
                part.for_each(|frame| self.put(frame, FREE));
            }
        });
    }

    /// Marks `count` free frames from `first` as not managed.
    ///
    /// The caller must hold the lock that serialises changes, and must have removed the frames from the buddy.
    pub(super) fn remove_managed(&self, first: u32, count: u64) {
        self.for_each_section(first, count, |section, whole, part| {
            if part == whole {
                let (word, bit) = self.presence(section);
                // The section's bytes are zero, because no block starts there.
                // Release: publishes these bytes; pairs with `FrameTable::is_present`.
                word.fetch_and(!bit, Release);
            } else {
                part.for_each(|frame| self.put(frame, NOT_MANAGED));
            }
        });
    }

    /// Calls `each` for every section in a range of frames.
    ///
    /// The arguments are the number of the section, all its frames, and its frames in the range.
    fn for_each_section(&self, first: u32, count: u64, mut each: impl FnMut(u64, Range<u64>, Range<u64>)) {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        for section in start / SECTION..end.div_ceil(SECTION) {
            let whole = section * SECTION..((section + 1) * SECTION).min(self.states.len() as u64);
            let part = whole.start.max(start)..whole.end.min(end);
            each(section, whole, part);
        }
    }

    fn put(&self, frame: u64, byte: u8) {
        if cfg!(any(debug_assertions, zonal_transitions)) {
            check_transition(self.states[frame as usize].load(Relaxed), byte); // relaxed: no other CPU changes it
        }
        // Release: publishes what was done with the frame; pairs with `step_byte`, `state_acquired`, `exchange`.
        self.states[frame as usize].store(byte, Release);
    }

    /// Sets the state of `frame`, which no other CPU may change.
    pub(crate) fn set(&self, frame: u32, state: FrameState) {
        self.put(u64::from(frame), state.encode());
    }

    /// Replaces state `from` of `frame` by `to`.
    ///
    /// # Errors
    /// Returns the state, read again, if it was another one.
    pub(crate) fn exchange(&self, frame: u32, from: FrameState, to: FrameState) -> Result<(), FrameState> {
        check_transition(from.encode(), to.encode());
        // Relaxed: a failure is only reported.
        // AcqRel: takes and publishes what was done with the frame; pairs with `FrameTable::put`, `step_byte`.
        let exchanged = self.cell(frame).compare_exchange(from.encode(), to.encode(), AcqRel, Relaxed);
        exchanged.map(|_| ()).map_err(|_| self.state(frame))
    }
}

/// Replaces the state `from` of a block by `to`; returns `false` if the block has another state.
#[inline]
fn step_byte<A: Atomic<u8>>(cell: &A, from: u8, to: u8) -> bool {
    check_transition(from, to);
    // A separate load and store are enough, because only the holder of the block changes its state here. The check
    // finds second copies of a block that racing frees made under `InvalidFree::Checked`.
    // Acquire: takes the last owner's writes; pairs with `mark_freed`, `exchange_leading`, `replace_all`, `put`.
    if cell.load(Acquire) != from {
        return false;
    }
    // Release: publishes this owner's writes; pairs with `mark_popped`, `step_byte`, `are_all`, `exchange`.
    cell.store(to, Release);
    true
}

#[cfg(test)]
impl<P: Platform> FrameTable<'_, P> {
    /// Overwrites a state, as a stray store would.
    pub(crate) fn overwrite(&self, frame: u32, state: FrameState) {
        self.cell(frame).store(state.encode(), Relaxed); // relaxed: only one thread runs in such a test
    }
}
