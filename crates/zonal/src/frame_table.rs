//! What the allocator knows of each frame: one byte, written only for the first frame of a block.
//!
//! `0` = not allocated (free, in a pageset, or inside a block); `1 + order` with the page kind in
//! the bits above = first frame of an allocated block, with the top bit set when it waits in
//! quarantine; one value apart for frames that are not managed (holes, memory that is offline).
//! Neighbours: `alloc.rs` claims frames here, `free.rs` clears them, `verify.rs` walks them.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::carve::copy_view;
use crate::config::Misuse;
use crate::platform::{Atomic, Platform};
use crate::request::PageKind;
use crate::units::Order;

const ORDER_BITS: u8 = 5;
const ORDER_MASK: u8 = (1 << ORDER_BITS) - 1;
const KIND_MASK: u8 = 0b11;
const QUARANTINED: u8 = 0x80;
const NOT_MANAGED: u8 = 0xff;

/// State of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// Free, in a pageset, or not the first frame of its block.
    NotAllocated,
    /// First frame of an allocated block.
    Allocated(Order, PageKind),
    /// Freed, but kept back.
    Quarantined(Order, PageKind),
    /// A hole, or offline.
    NotManaged,
}

impl FrameState {
    const fn encode(self) -> u8 {
        match self {
            Self::NotAllocated => 0,
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
                let kind = kind_of(byte);
                if byte & QUARANTINED == 0 {
                    Self::Allocated(order, kind)
                } else {
                    Self::Quarantined(order, kind)
                }
            }
        }
    }
}

const fn kind_of(byte: u8) -> PageKind {
    PageKind::ALL[(byte >> ORDER_BITS & KIND_MASK) as usize]
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

    fn cell(&self, frame: u32) -> &P::U8 {
        &self.states[frame as usize]
    }

    /// Marks `frame` as the first of a block that is about to be handed out; `false` when it is
    /// already somebody's, which a misuse (two racing frees of one block) has brought about.
    #[inline]
    pub(crate) fn claim(&self, frame: u32, order: Order, kind: PageKind) -> bool {
        let cell = self.cell(frame);
        // Acquire pairs with the release of the free that brought the frame here. Load and store
        // apart are enough: the frame came out of a pageset or the buddy, to one CPU only.
        if cell.load(Acquire) != 0 {
            return false;
        }
        cell.store(FrameState::Allocated(order, kind).encode(), Relaxed); // read by its owner only
        true
    }

    /// Clears the state of a block being freed with `order`; gives its kind, or the state found
    /// when it was not that of an allocated block of this order.
    #[inline]
    pub(crate) fn release(&self, frame: u32, order: Order, misuse: Misuse) -> Result<PageKind, FrameState> {
        let cell = self.cell(frame);
        let byte = cell.load(Relaxed); // relaxed: the caller owns the block if the free is right
        if byte & (ORDER_MASK | QUARANTINED) != order.get() + 1 {
            return Err(FrameState::decode(byte));
        }
        match misuse {
            Misuse::Checked => cell.store(0, Release), // pairs with the acquire in `claim`
            Misuse::Exact => {
                // The exchange lets one of several racing frees win; release as above.
                cell.compare_exchange(byte, 0, AcqRel, Relaxed).map_err(FrameState::decode)?;
            }
        }
        Ok(kind_of(byte))
    }

    /// State of `frame`.
    pub(crate) fn state(&self, frame: u32) -> FrameState {
        FrameState::decode(self.cell(frame).load(Relaxed)) // relaxed: a look, not a claim
    }

    /// Sets the state of `frame`; the caller holds the zone's lock and the frame is not in use.
    pub(crate) fn set(&self, frame: u32, state: FrameState) {
        self.cell(frame).store(state.encode(), Release); // pairs with the acquire in `claim`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::MAX_ORDER_LIMIT;

    #[test]
    fn every_state_survives_its_byte() {
        for order in (0..=MAX_ORDER_LIMIT).map(|o| Order::new(o).unwrap()) {
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
