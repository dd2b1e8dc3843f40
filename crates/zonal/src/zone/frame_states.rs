//! Frame states: one byte for each frame, written only for the first frame of a block.
//!
//! | byte | state of the frame |
//! |---|---|
//! | `0` | no block starts here: free in the buddy, or inside a block; not managed in an absent section |
//! | `kind << 5 \| order + 1` | first frame of an allocated block, kinds 0 to 2 |
//! | `0x60 \| order + 1` | first frame of a free block that a pageset caches, or that is on its way to or from one |
//! | `0x80 \| kind << 5 \| order + 1` | first frame of a block in quarantine |
//! | `0xe0`, `0xe1..=0xf3`, `0xf4..=0xf6` | reserved: retired; fenced, by order; being split, by kind |
//! | `0xff` | not managed, in a section that has managed frames |
//!
//! A *section* is 4096 frames. A bit for each section says whether any of its frames is managed, so that absent memory
//! costs no writes. Neighbours: `alloc/mod.rs` and `alloc/free.rs` change the states of blocks.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::config::InvalidFree;
use crate::platform::cells::copy_view;
use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::units::PageKind;

const ORDER_BITS: u8 = 5;
const ORDER_MASK: u8 = (1 << ORDER_BITS) - 1;
const KIND_MASK: u8 = 0b11;
/// In place of a kind: cached by a pageset.
const CACHED: u8 = KIND_MASK << ORDER_BITS;
const QUARANTINED: u8 = 0x80;
const NOT_MANAGED: u8 = 0xff;
const FREE: u8 = FrameState::Free.encode();

/// Frames of a section. The base of a zone is a multiple of it (`alloc/layout.rs`).
pub(crate) const SECTION: u64 = 1 << 12;
/// Sections in a word of the bitmap of present sections.
const SECTIONS_A_WORD: u64 = u64::BITS as u64;

/// State of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// Free in the buddy, or not the first frame of its block.
    Free,
    /// First frame of a free block that a pageset caches, or that is on its way to or from one.
    Cached(Order),
    /// First frame of an allocated block.
    Allocated(Order, PageKind),
    /// First frame of a freed block in quarantine, or of a retired block.
    Quarantined(Order, PageKind),
    /// A hole, or offline.
    NotManaged,
}

impl FrameState {
    #[inline]
    const fn encode(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Cached(order) => CACHED | (order.get() + 1),
            Self::Allocated(order, kind) => (kind as u8) << ORDER_BITS | (order.get() + 1),
            Self::Quarantined(order, kind) => QUARANTINED | Self::Allocated(order, kind).encode(),
            Self::NotManaged => NOT_MANAGED,
        }
    }

    /// Decodes a byte of a present section.
    fn decode(byte: u8) -> Self {
        match byte {
            0 => Self::Free,
            NOT_MANAGED => Self::NotManaged,
            _ => {
                let order = Order::new((byte & ORDER_MASK) - 1).expect("only valid orders are stored");
                match byte & !ORDER_MASK {
                    CACHED => Self::Cached(order),
                    bits if bits & QUARANTINED == 0 => Self::Allocated(order, kind_of(byte)),
                    _ => Self::Quarantined(order, kind_of(byte)),
                }
            }
        }
    }
}

const fn kind_of(byte: u8) -> PageKind {
    PageKind::ALL[(byte >> ORDER_BITS & KIND_MASK) as usize]
}

/// State of a single frame cached by a pageset.
pub(crate) const CACHED_PAGE: u8 = FrameState::Cached(Order::PAGE).encode();

/// Returns the state of a single frame that is allocated as `kind`.
#[inline(always)]
pub(crate) const fn allocated_page(kind: PageKind) -> u8 {
    FrameState::Allocated(Order::PAGE, kind).encode()
}

/// Changes a block's state from `allocated` to `cached`: the one step by which a free takes a block from its owner.
///
/// # Errors
/// Returns the state that another free left first. Under [`InvalidFree::Exact`] nothing was written then. Of any number
/// of frees that found the block allocated, exactly one succeeds: whatever happens to the frame afterwards, the others
/// no longer find the state that they expect. Under [`InvalidFree::Checked`] a free that is preempted before its store
/// overwrites the state that others have given the frame meanwhile.
#[inline(always)]
pub(crate) fn mark_freed<A: Atomic<u8>>(
    cell: &A,
    allocated: u8,
    cached: u8,
    invalid_free: InvalidFree,
) -> Result<(), u8> {
    match invalid_free {
        // AcqRel: the block's next owner sees what this one wrote. Relaxed: a failure is only reported.
        InvalidFree::Exact => cell.compare_exchange(allocated, cached, AcqRel, Relaxed).map(|_| ()),
        InvalidFree::Checked => {
            cell.store(cached, Release); // pairs with the acquire in `step`
            Ok(())
        }
    }
}

/// Applies [`mark_freed`] to a single frame of kind `User` without a check of its state before: an exchange needs none.
///
/// # Errors
/// Returns the state found instead.
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

/// The states of a zone's frames, by offset from the zone's base.
pub(crate) struct FrameTable<'m, P: Platform> {
    states: &'m [P::U8],
    /// A bit for each section: whether one of its frames is managed.
    present: &'m [P::U64],
}

copy_view!(FrameTable);

impl<'m, P: Platform> FrameTable<'m, P> {
    pub(crate) const fn new(states: &'m [P::U8], present: &'m [P::U64]) -> Self {
        Self { states, present }
    }

    /// Returns the number of words of the section bitmap for a zone of `frames` frames.
    pub(crate) const fn present_words(frames: u64) -> usize {
        frames.div_ceil(SECTION * SECTIONS_A_WORD) as usize
    }

    /// Returns the states, by offset.
    pub(crate) const fn states(&self) -> &'m [P::U8] {
        self.states
    }

    /// Returns the bitmap of present sections.
    pub(crate) const fn present(&self) -> &'m [P::U64] {
        self.present
    }

    fn cell(&self, frame: u32) -> &P::U8 {
        &self.states[frame as usize]
    }

    /// Marks a block in state `from` as allocated.
    ///
    /// Returns `false` if the block has another state, which two racing frees of one block can cause under
    /// [`InvalidFree::Checked`].
    #[inline]
    pub(crate) fn mark_allocated(&self, frame: u32, from: FrameState, order: Order, kind: PageKind) -> bool {
        self.step(frame, from, FrameState::Allocated(order, kind))
    }

    /// Marks a block that came from the buddy as cached by a pageset; returns `false` as
    /// [`FrameTable::mark_allocated`].
    #[inline]
    pub(crate) fn mark_cached(&self, frame: u32, order: Order) -> bool {
        self.step(frame, FrameState::Free, FrameState::Cached(order))
    }

    /// As [`FrameTable::mark_cached`] for single frames of the word of 64 that starts at `first`, one per bit.
    ///
    /// Returns those that are now cached.
    #[inline]
    pub(crate) fn mark_word_cached(&self, first: u32, frames: u64) -> u64 {
        self.step_word::<FREE, CACHED_PAGE>(first, frames)
    }

    /// Marks a cached block as free before it goes to the buddy; returns `false` as [`FrameTable::mark_allocated`].
    #[inline]
    pub(crate) fn mark_free(&self, frame: u32, order: Order) -> bool {
        self.step(frame, FrameState::Cached(order), FrameState::Free)
    }

    /// As [`FrameTable::mark_free`] for single frames of the word of 64 that starts at `first`, one per bit.
    ///
    /// Returns those that are now free.
    #[inline]
    pub(crate) fn mark_word_free(&self, first: u32, frames: u64) -> u64 {
        self.step_word::<CACHED_PAGE, FREE>(first, frames)
    }

    /// Marks a cached block as quarantined; returns `false` as [`FrameTable::mark_allocated`].
    pub(crate) fn mark_quarantined(&self, frame: u32, order: Order, kind: PageKind) -> bool {
        self.step(frame, FrameState::Cached(order), FrameState::Quarantined(order, kind))
    }

    /// Retires a block that left a pageset or the buddy: it is never allocated or freed again.
    #[cold]
    #[inline(never)]
    pub(crate) fn retire(&self, frame: u32, from: FrameState, order: Order, kind: PageKind) {
        self.step(frame, from, FrameState::Quarantined(order, kind));
    }

    /// Marks a quarantined block as cached; returns its kind, or `None` if it is no longer quarantined.
    pub(crate) fn leave_quarantine(&self, frame: u32, order: Order) -> Option<PageKind> {
        let FrameState::Quarantined(known, kind) = self.state(frame) else { return None };
        let from = FrameState::Quarantined(order, kind);
        (known == order && self.step(frame, from, FrameState::Cached(order))).then_some(kind)
    }

    #[inline]
    fn step(&self, frame: u32, from: FrameState, to: FrameState) -> bool {
        let cell = self.cell(frame);
        // Acquire and release: the next owner sees what this one wrote. A separate load and store are enough, because
        // only the holder of the block takes this step; the check finds second copies made by racing frees under
        // `InvalidFree::Checked`.
        if cell.load(Acquire) != from.encode() {
            return false;
        }
        cell.store(to.encode(), Release);
        true
    }

    /// As [`FrameTable::step`] for some frames of a word of 64; returns those whose state changed.
    #[inline]
    fn step_word<const FROM: u8, const TO: u8>(&self, first: u32, frames: u64) -> u64 {
        let states = &self.states[first as usize..];
        let (mut stepped, mut left) = (frames, frames);
        // Orderings as in `step`.
        if frames == !0 {
            // In eights, so that the loop needs no counter: most words are whole.
            for (eight, states) in states[..64].as_chunks::<8>().0.iter().enumerate() {
                for (bit, cell) in states.iter().enumerate() {
                    if cell.load(Acquire) == FROM {
                        cell.store(TO, Release);
                    } else {
                        stepped &= !(1 << (8 * eight + bit));
                    }
                }
            }
            return stepped;
        }
        let states = &states[..states.len().min(64)];
        while left != 0 {
            let bit = left.trailing_zeros();
            left &= left - 1;
            let cell = &states[bit as usize];
            if cell.load(Acquire) == FROM {
                cell.store(TO, Release);
            } else {
                stepped &= !(1 << bit);
            }
        }
        stepped
    }

    /// Marks a block that is freed with `order` as cached; returns its kind.
    ///
    /// # Errors
    /// Returns the state found if it is not that of an allocated block of this order.
    #[inline]
    pub(crate) fn release(
        &self,
        frame: u32,
        order: Order,
        invalid_free: InvalidFree,
    ) -> Result<PageKind, FrameState> {
        let cell = self.cell(frame);
        let byte = cell.load(Relaxed); // relaxed: the exchange decides, or the caller owns the block
        if byte & (ORDER_MASK | QUARANTINED) != order.get() + 1 || byte & CACHED == CACHED {
            return Err(self.state_of(frame, byte));
        }
        let cached = FrameState::Cached(order).encode();
        mark_freed(cell, byte, cached, invalid_free).map_err(|found| self.state_of(frame, found))?;
        Ok(kind_of(byte))
    }

    /// Marks a single frame as allocated again that the caller has just released and not yet pushed anywhere.
    #[cold]
    pub(crate) fn mark_allocated_again(&self, frame: u32, kind: PageKind) {
        // Release: pairs with the acquire of the free's exchange.
        self.cell(frame).store(allocated_page(kind), Release);
    }

    /// Returns the state of `frame`.
    pub(crate) fn state(&self, frame: u32) -> FrameState {
        self.state_of(frame, self.cell(frame).load(Relaxed)) // relaxed: an observation only
    }

    fn state_of(&self, frame: u32, byte: u8) -> FrameState {
        if self.is_present(u64::from(frame) / SECTION) {
            FrameState::decode(byte)
        } else {
            FrameState::NotManaged
        }
    }

    /// Whether a frame of the section is managed.
    fn is_present(&self, section: u64) -> bool {
        let word = self.present[(section / SECTIONS_A_WORD) as usize].load(Acquire); // pairs with `add_managed`
        word >> (section % SECTIONS_A_WORD) & 1 != 0
    }

    /// Returns the cell and the bit that say whether a section is present.
    fn presence(&self, section: u64) -> (&'m P::U64, u64) {
        (&self.present[(section / SECTIONS_A_WORD) as usize], 1 << (section % SECTIONS_A_WORD))
    }

    /// Returns the first frame at or above `from` in a present section whose byte is not zero.
    pub(crate) fn next_in_use(&self, from: u64) -> Option<u32> {
        let end = self.states.len() as u64;
        let mut from = from;
        while from < end {
            let section = from / SECTION;
            let section_end = ((section + 1) * SECTION).min(end);
            if self.is_present(section)
                && let Some(at) = first_in_use::<P>(&self.states[from as usize..section_end as usize])
            {
                return Some((from + at as u64) as u32); // a zone spans at most 2^32 frames
            }
            from = section_end;
        }
        None
    }

    /// Marks `count` frames from `first` as managed and free.
    ///
    /// The caller holds the lock of changes, and none of the frames was managed before.
    pub(crate) fn add_managed(&self, first: u32, count: u64) {
        self.for_each_section(first, count, |section, whole, part| {
            if !self.is_present(section) {
                let outside = (whole.start..part.start).chain(part.end..whole.end);
                outside.for_each(|frame| self.put(frame, NOT_MANAGED));
                let (word, bit) = self.presence(section);
                word.fetch_or(bit, Release); // the bytes of the section are valid before it is present
            } else {
                part.for_each(|frame| self.put(frame, FREE));
            }
        });
    }

    /// Marks `count` free frames from `first` as not managed.
    ///
    /// The caller holds the lock of changes and has taken the frames out of the buddy.
    pub(crate) fn remove_managed(&self, first: u32, count: u64) {
        self.for_each_section(first, count, |section, whole, part| {
            if part == whole {
                let (word, bit) = self.presence(section);
                word.fetch_and(!bit, Release); // its bytes are zero, because no block starts there
            } else {
                part.for_each(|frame| self.put(frame, NOT_MANAGED));
            }
        });
    }

    /// Calls `each` with every section of a range of frames: its number, all of its frames, and those in the range.
    fn for_each_section(&self, first: u32, count: u64, each: impl Fn(u64, Range<u64>, Range<u64>)) {
        let (start, end) = (u64::from(first), u64::from(first) + count);
        for section in start / SECTION..end.div_ceil(SECTION) {
            let whole = section * SECTION..((section + 1) * SECTION).min(self.states.len() as u64);
            let part = whole.start.max(start)..whole.end.min(end);
            each(section, whole, part);
        }
    }

    fn put(&self, frame: u64, byte: u8) {
        self.states[frame as usize].store(byte, Release); // pairs with the acquire in `step`
    }

    /// Sets the state of `frame`.
    #[cfg(test)]
    pub(crate) fn set(&self, frame: u32, state: FrameState) {
        self.put(u64::from(frame), state.encode());
    }
}

/// Returns the index of the first byte that is not zero.
fn first_in_use<P: Platform>(states: &[P::U8]) -> Option<usize> {
    // Relaxed: the check runs at quiescent moments.
    let in_use = |cell: &P::U8| cell.load(Relaxed) != FREE;
    let near = states.iter().take(8).position(in_use);
    near.or_else(|| {
        // In eights: most frames are free, or inside of blocks.
        let free =
            |eight: &&[P::U8; 8]| eight.iter().fold(FREE, |all, cell| all | cell.load(Relaxed)) == FREE;
        let passed = 8 * states.as_chunks::<8>().0.iter().take_while(free).count();
        Some(passed + states[passed..].iter().position(in_use)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MAX_ORDER_LIMIT;

    #[test]
    fn every_state_survives_its_byte() {
        for order in (0..=MAX_ORDER_LIMIT).map(|o| Order::new(o).unwrap()) {
            let cached = FrameState::Cached(order);
            assert_eq!(FrameState::decode(cached.encode()), cached);
            for kind in PageKind::ALL {
                for state in [FrameState::Allocated(order, kind), FrameState::Quarantined(order, kind)] {
                    assert_eq!(FrameState::decode(state.encode()), state);
                }
            }
        }
        for state in [FrameState::Free, FrameState::NotManaged] {
            assert_eq!(FrameState::decode(state.encode()), state);
        }
    }
}
