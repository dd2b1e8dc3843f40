//! What the allocator knows of each frame: one byte, written only for the first frame of a block.
//!
//! `0` = free in the buddy, or inside a block; `1 + order` with the page kind in the bits above =
//! first frame of an allocated block, with the top bit set when it waits in quarantine; with the
//! bits of no kind, of a block that a pageset keeps; one value apart for frames that are not
//! managed (holes, memory that is offline). A block that two racing frees have put into two
//! pagesets has one state only, which the first copy to leave takes along: the other is *withheld*.
//! Neighbours: `alloc.rs` claims frames, `free.rs` releases them, `refill.rs` moves them.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::carve::copy_view;
use crate::config::Misuse;
use crate::platform::{Atomic, Platform};
use crate::request::PageKind;
use crate::units::Order;

const ORDER_BITS: u8 = 5;
const ORDER_MASK: u8 = (1 << ORDER_BITS) - 1;
const KIND_MASK: u8 = 0b11;
/// In the place of a kind: kept by a pageset.
const KEPT: u8 = KIND_MASK << ORDER_BITS;
const QUARANTINED: u8 = 0x80;
const NOT_MANAGED: u8 = 0xff;
const FREE: u8 = FrameState::NotAllocated.encode();

/// State of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// Free in the buddy, or not the first frame of its block.
    NotAllocated,
    /// First frame of a free block in a pageset, or on its way there or from there.
    Kept(Order),
    /// First frame of an allocated block.
    Allocated(Order, PageKind),
    /// Freed, but kept back.
    Quarantined(Order, PageKind),
    /// A hole, or offline.
    NotManaged,
}

impl FrameState {
    #[inline]
    const fn encode(self) -> u8 {
        match self {
            Self::NotAllocated => 0,
            Self::Kept(order) => KEPT | (order.get() + 1),
            Self::Allocated(order, kind) => (kind as u8) << ORDER_BITS | (order.get() + 1),
            Self::Quarantined(order, kind) => QUARANTINED | Self::Allocated(order, kind).encode(),
            Self::NotManaged => NOT_MANAGED,
        }
    }

    fn decode(byte: u8) -> Self {
        match byte {
            0 => Self::NotAllocated,
            NOT_MANAGED => Self::NotManaged,
            _ => {
                let order = Order::new((byte & ORDER_MASK) - 1).expect("only valid orders are stored");
                match byte & !ORDER_MASK {
                    KEPT => Self::Kept(order),
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

/// State of a single frame that a pageset keeps.
pub(crate) const KEPT_PAGE: u8 = FrameState::Kept(Order::PAGE).encode();

/// State of a single frame that is allocated as `kind`.
#[inline(always)]
pub(crate) const fn allocated_page(kind: PageKind) -> u8 {
    FrameState::Allocated(Order::PAGE, kind).encode()
}

/// Makes a block that was found as `allocated` a `kept` one; the state it has when another free was
/// seen to be first.
#[inline(always)]
pub(crate) fn keep_freed<A: Atomic<u8>>(cell: &A, allocated: u8, kept: u8, misuse: Misuse) -> Result<(), u8> {
    match misuse {
        Misuse::Checked => cell.store(kept, Release), // pairs with the acquire in `step`
        Misuse::Exact => {
            // One of several racing frees wins; release as above.
            cell.compare_exchange(allocated, kept, AcqRel, Relaxed)?;
        }
    }
    Ok(())
}

/// The states of a zone's frames, by offset from the zone's base.
pub(crate) struct FrameTable<'m, P: Platform> {
    states: &'m [P::U8],
}

copy_view!(FrameTable);

impl<'m, P: Platform> FrameTable<'m, P> {
    pub(crate) const fn new(states: &'m [P::U8]) -> Self {
        Self { states }
    }

    /// The states, by offset.
    pub(crate) const fn states(&self) -> &'m [P::U8] {
        self.states
    }

    fn cell(&self, frame: u32) -> &P::U8 {
        &self.states[frame as usize]
    }

    /// Marks a block that was `from` as one that is about to be handed out; `false` when it is
    /// something else by now, which a misuse (two racing frees of one block) has brought about.
    #[inline]
    pub(crate) fn claim(&self, frame: u32, from: FrameState, order: Order, kind: PageKind) -> bool {
        self.step(frame, from, FrameState::Allocated(order, kind))
    }

    /// Marks a block that came from the buddy as kept by a pageset; `false` as in
    /// [`FrameTable::claim`].
    #[inline]
    pub(crate) fn keep(&self, frame: u32, order: Order) -> bool {
        self.step(frame, FrameState::NotAllocated, FrameState::Kept(order))
    }

    /// As [`FrameTable::keep`] for single frames of the word of 64 that starts at `first`, a bit each;
    /// gives those that are now kept.
    #[inline]
    pub(crate) fn keep_word(&self, first: u32, frames: u64) -> u64 {
        self.step_word::<FREE, KEPT_PAGE>(first, frames)
    }

    /// Marks a block that was kept as one that goes to the buddy; `false` as in
    /// [`FrameTable::claim`].
    #[inline]
    pub(crate) fn let_go(&self, frame: u32, order: Order) -> bool {
        self.step(frame, FrameState::Kept(order), FrameState::NotAllocated)
    }

    /// As [`FrameTable::let_go`] for single frames of the word of 64 that starts at `first`, a bit each;
    /// gives those that may go.
    #[inline]
    pub(crate) fn let_go_word(&self, first: u32, frames: u64) -> u64 {
        self.step_word::<KEPT_PAGE, FREE>(first, frames)
    }

    /// Moves a kept block into quarantine; `false` as in [`FrameTable::claim`].
    pub(crate) fn lock_up(&self, frame: u32, order: Order, kind: PageKind) -> bool {
        self.step(frame, FrameState::Kept(order), FrameState::Quarantined(order, kind))
    }

    /// Moves a block out of quarantine; gives its kind, or `None` when it is not there any more.
    pub(crate) fn let_out(&self, frame: u32, order: Order) -> Option<PageKind> {
        let FrameState::Quarantined(known, kind) = self.state(frame) else { return None };
        let from = FrameState::Quarantined(order, kind);
        (known == order && self.step(frame, from, FrameState::Kept(order))).then_some(kind)
    }

    #[inline]
    fn step(&self, frame: u32, from: FrameState, to: FrameState) -> bool {
        let cell = self.cell(frame);
        // Acquire and release: who has the block next sees what those before him did with it. Load
        // and store apart are enough: but for misuse, a block is in one hand at a time.
        if cell.load(Acquire) != from.encode() {
            return false;
        }
        cell.store(to.encode(), Release);
        true
    }

    /// As [`FrameTable::step`] for some frames of a word of 64; gives those that took it.
    #[inline]
    fn step_word<const FROM: u8, const TO: u8>(&self, first: u32, frames: u64) -> u64 {
        let states = &self.states[first as usize..];
        let (mut stepped, mut left) = (frames, frames);
        // Orderings as in `step`.
        if frames == !0 {
            // By eights, for a loop without counting: most words are whole.
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

    /// Makes a block being freed with `order` a kept one; gives its kind, or the state found when it
    /// was not that of an allocated block of this order.
    #[inline]
    pub(crate) fn release(&self, frame: u32, order: Order, misuse: Misuse) -> Result<PageKind, FrameState> {
        let cell = self.cell(frame);
        let byte = cell.load(Relaxed); // relaxed: the caller owns the block if the free is right
        if byte & (ORDER_MASK | QUARANTINED) != order.get() + 1 || byte & KEPT == KEPT {
            return Err(FrameState::decode(byte));
        }
        keep_freed(cell, byte, FrameState::Kept(order).encode(), misuse).map_err(FrameState::decode)?;
        Ok(kind_of(byte))
    }

    /// State of `frame`.
    pub(crate) fn state(&self, frame: u32) -> FrameState {
        FrameState::decode(self.cell(frame).load(Relaxed)) // relaxed: a look, not a claim
    }

    /// The first frame from `from` up whose state is not [`FrameState::NotAllocated`].
    pub(crate) fn next_in_use(&self, from: u32) -> Option<u32> {
        let states = &self.states[from as usize..];
        // Relaxed: as in `state`.
        let in_use = |cell: &P::U8| cell.load(Relaxed) != FREE;
        let near = states.iter().take(8).position(in_use);
        let found = near.or_else(|| {
            // By eights: most frames are free, or inside of blocks.
            let free =
                |eight: &&[P::U8; 8]| eight.iter().fold(FREE, |all, cell| all | cell.load(Relaxed)) == FREE;
            let passed = 8 * states.as_chunks::<8>().0.iter().take_while(free).count();
            Some(passed + states[passed..].iter().position(in_use)?)
        });
        found.map(|found| from + found as u32)
    }

    /// Sets the state of `frame`; the caller holds the zone's lock and the frame is not in use.
    pub(crate) fn set(&self, frame: u32, state: FrameState) {
        self.cell(frame).store(state.encode(), Release); // pairs with the acquire in `step`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MAX_ORDER_LIMIT;

    #[test]
    fn every_state_survives_its_byte() {
        for order in (0..=MAX_ORDER_LIMIT).map(|o| Order::new(o).unwrap()) {
            let kept = FrameState::Kept(order);
            assert_eq!(FrameState::decode(kept.encode()), kept);
            for kind in PageKind::ALL {
                for state in [FrameState::Allocated(order, kind), FrameState::Quarantined(order, kind)] {
                    assert_eq!(FrameState::decode(state.encode()), state);
                }
            }
        }
        for state in [FrameState::NotAllocated, FrameState::NotManaged] {
            assert_eq!(FrameState::decode(state.encode()), state);
        }
    }
}
