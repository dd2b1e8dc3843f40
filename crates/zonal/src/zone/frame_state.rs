//! The state of a frame, encoded as a byte.
//!
//! | byte | state of the frame |
//! |---|---|
//! | `0` | the frame is free in the buddy, or inside a block, or not managed in an absent section |
//! | `kind << 5 \| order + 1` | first frame of an allocated block, kinds 0 to 2 |
//! | `0x60 \| order + 1` | first frame of a free block in a pageset, or moving to or from a pageset |
//! | `0x80 \| kind << 5 \| order + 1` | first frame of a block in quarantine |
//! | `0xe0 \| order + 1` | first frame of a later block in a run (`zone/runs.rs`) |
//! | low five bits `0x14..=0x1f`, top three bits 0 to 4 | first frame of a run, numbered `kind * 19 + order` |
//! | `0xf4..=0xf6` | first frame of a block or run that is being split, by kind |
//! | `0xf8` | a free frame that a fence keeps (`zone/fences.rs`) |
//! | `0xf9` | first frame of an allocated block with a frame to retire (`zone/bad_frames.rs`) |
//! | `0xfa..=0xfc` | a retired frame, by the kind as which it is counted |
//! | `0xfd` | a free frame that a request holds while it empties a range (`zone/claims.rs`) |
//! | `0xff` | the frame is not managed, but its section has managed frames |
//!
//! Related files: `zone/frame_states.rs` has the bytes of a zone's frames. `transitions.in` next to the sources has the rows
//! that change states, from the table of transitions in the crate `zonal-verify`.

use crate::units::{MAX_ORDER_LIMIT, Order, PageKind};

include!("../../transitions.in");

const ORDER_BITS: u8 = 5;
pub(super) const ORDER_MASK: u8 = (1 << ORDER_BITS) - 1;
const KIND_MASK: u8 = 0b11;
/// Bits in place of a kind for a block that a pageset caches.
pub(super) const CACHED: u8 = KIND_MASK << ORDER_BITS;
pub(super) const QUARANTINED: u8 = 0x80;
pub(super) const NOT_MANAGED: u8 = 0xff;
pub(super) const FREE: u8 = FrameState::Free.encode();
/// Further block of a run, plus order + 1.
const RUN_PART: u8 = 0xe0;
/// Smallest value of the low five bits that is no order.
const NO_ORDER: u8 = 0x14;
/// Values of the low five bits that are no order.
const NO_ORDERS: u8 = ORDER_MASK + 1 - NO_ORDER;
/// Orders of a block.
const ORDERS: u8 = MAX_ORDER_LIMIT + 1;
const SPLITTING: u8 = RUN_PART | NO_ORDER;
const FENCED: u8 = 0xf8;
const WATCHED: u8 = 0xf9;
const RETIRED: u8 = 0xfa;
const CLAIMED: u8 = 0xfd;

/// State of one frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// Free in the buddy, or not the first frame of its block.
    Free,
    /// First frame of a free block that is in a pageset, or that is moving to or from a pageset.
    Cached(Order),
    /// First frame of an allocated block.
    Allocated(Order, PageKind),
    /// First frame of a freed block in quarantine.
    Quarantined(Order, PageKind),
    /// First frame of the first block in an allocated run; the order is that of the block.
    RunHead(Order, PageKind),
    /// First frame of a further block in an allocated run.
    RunPart(Order),
    /// First frame of an allocated block or run that its owner is splitting.
    Splitting(PageKind),
    /// A free frame that a fence keeps out of use; counted as allocated with kind `Kernel`.
    Fenced,
    /// A free frame that a request holds while it empties a range; counted as allocated with kind `Kernel`.
    Claimed,
    /// First frame of an allocated block with a frame that is retired when the block is freed. The zone's table has the
    /// block's order and kind.
    Watched,
    /// A frame that is never allocated again; counted as allocated with this kind.
    Retired(PageKind),
    /// A frame in a hole, or an offline frame.
    NotManaged,
}

impl FrameState {
    #[inline(always)]
    pub(crate) const fn encode(self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Cached(order) => CACHED | (order.get() + 1),
            Self::Allocated(order, kind) => (kind as u8) << ORDER_BITS | (order.get() + 1),
            Self::Quarantined(order, kind) => QUARANTINED | Self::Allocated(order, kind).encode(),
            Self::RunHead(order, kind) => {
                let number = kind as u8 * ORDERS + order.get();
                (number / NO_ORDERS) << ORDER_BITS | (NO_ORDER + number % NO_ORDERS)
            }
            Self::RunPart(order) => RUN_PART | (order.get() + 1),
            Self::Splitting(kind) => SPLITTING + kind as u8,
            Self::Fenced => FENCED,
            Self::Claimed => CLAIMED,
            Self::Watched => WATCHED,
            Self::Retired(kind) => RETIRED + kind as u8,
            Self::NotManaged => NOT_MANAGED,
        }
    }

    /// Returns the order of the block that starts at the frame, if the state determines it.
    pub(crate) const fn order(self) -> Option<Order> {
        match self {
            Self::Cached(order)
            | Self::Allocated(order, _)
            | Self::Quarantined(order, _)
            | Self::RunHead(order, _)
            | Self::RunPart(order) => Some(order),
            Self::Fenced | Self::Claimed | Self::Retired(_) => Some(Order::PAGE),
            Self::Free | Self::Splitting(_) | Self::Watched | Self::NotManaged => None,
        }
    }

    /// Returns the state that a byte of a present section encodes.
    pub(crate) fn decode(byte: u8) -> Self {
        match byte {
            0 => Self::Free,
            NOT_MANAGED => Self::NotManaged,
            CLAIMED => Self::Claimed,
            RETIRED.. => Self::Retired(PageKind::ALL[usize::from(byte - RETIRED)]),
            WATCHED => Self::Watched,
            FENCED => Self::Fenced,
            SPLITTING.. => Self::Splitting(PageKind::ALL[usize::from(byte - SPLITTING)]),
            _ if byte & ORDER_MASK >= NO_ORDER => {
                let number = (byte >> ORDER_BITS) * NO_ORDERS + (byte & ORDER_MASK) - NO_ORDER;
                let order = Order::new(number % ORDERS).expect("it is below the number of orders");
                Self::RunHead(order, PageKind::ALL[usize::from(number / ORDERS)])
            }
            _ => {
                let order = Order::new((byte & ORDER_MASK) - 1).expect("only valid orders are stored");
                match byte & !ORDER_MASK {
                    CACHED => Self::Cached(order),
                    RUN_PART => Self::RunPart(order),
                    bits if bits & QUARANTINED == 0 => Self::Allocated(order, PageKind::ALL[kind_bits(byte)]),
                    _ => Self::Quarantined(order, PageKind::ALL[kind_bits(byte)]),
                }
            }
        }
    }
}

/// Returns the index of the block's kind in [`PageKind::ALL`], or a larger number for a cached block.
pub(super) const fn kind_bits(byte: u8) -> usize {
    (byte >> ORDER_BITS & KIND_MASK) as usize
}

/// Panics if the table of transitions has no row from state `from` to `to`.
///
/// Builds with debug assertions have the check, and those with `--cfg zonal_transitions`.
#[inline(always)]
pub(crate) fn check_transition(from: u8, to: u8) {
    if cfg!(any(debug_assertions, zonal_transitions)) && from != to {
        let [from, to] = [from, to].map(|byte| name(FrameState::decode(byte)));
        let is_row = STATE_ROWS.iter().any(|&(_, row_from, row_to)| (row_from, row_to) == (from, to));
        assert!(is_row, "no row of the table of transitions changes a frame from {from} to {to}");
    }
}

const fn name(state: FrameState) -> &'static str {
    match state {
        FrameState::Free => "Free",
        FrameState::Cached(_) => "Cached",
        FrameState::Allocated(..) => "Allocated",
        FrameState::Quarantined(..) => "Quarantined",
        FrameState::RunHead(..) => "RunHead",
        FrameState::RunPart(_) => "RunPart",
        FrameState::Splitting(_) => "Splitting",
        FrameState::Fenced => "Fenced",
        FrameState::Claimed => "Claimed",
        FrameState::Watched => "Watched",
        FrameState::Retired(_) => "Retired",
        FrameState::NotManaged => "NotManaged",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn every_state_survives_its_byte() {
        let mut states = Vec::new();
        for order in (0..=MAX_ORDER_LIMIT).map(|o| Order::new(o).unwrap()) {
            for kind in PageKind::ALL {
                states.extend([
                    FrameState::Allocated(order, kind),
                    FrameState::Quarantined(order, kind),
                    FrameState::RunHead(order, kind),
                ]);
            }
            states.extend([FrameState::Cached(order), FrameState::RunPart(order)]);
        }
        states.extend(PageKind::ALL.map(FrameState::Splitting));
        states.extend(PageKind::ALL.map(FrameState::Retired));
        states.extend([FrameState::Free, FrameState::NotManaged, FrameState::Watched]);
        states.extend([FrameState::Fenced, FrameState::Claimed]);
        let bytes: BTreeSet<u8> = states.iter().map(|state| state.encode()).collect();
        assert_eq!(bytes.len(), states.len(), "no two states share a byte");
        for state in states {
            assert_eq!(FrameState::decode(state.encode()), state);
        }
    }
}
