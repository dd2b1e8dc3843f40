//! Quarantine: freed blocks that wait, first in first out, before they can be reused.
//!
//! A ring of block starts per zone under the zone's lock. A block that waits counts as allocated,
//! of its kind. Neighbours: `free.rs` puts blocks in, `frame_table.rs` remembers what they were.

use core::sync::atomic::Ordering::Relaxed;

use crate::frame_table::FrameState;
use crate::platform::{Atomic, Platform};
use crate::request::PageKind;
use crate::units::Order;
use crate::zone::Zone;

/// A block that left quarantine.
pub(crate) struct Quarantined {
    pub(crate) frame: u32,
    pub(crate) order: Order,
    pub(crate) kind: PageKind,
}

// Every access is relaxed: the zone's lock orders them.
// Invariant: blocks in quarantine = entered - left <= length of the ring.
impl<P: Platform> Zone<'_, P> {
    /// Puts a block in, and takes the oldest out when there is no room for both.
    pub(crate) fn enter_quarantine(&self, frame: u32, order: Order, kind: PageKind) -> Option<Quarantined> {
        let _held = self.lock();
        let entered = self.cells.quarantine_in.load(Relaxed);
        let is_full = entered - self.cells.quarantine_out.load(Relaxed) == self.quarantine.len() as u64;
        let oldest = if is_full { self.oldest() } else { None };
        self.place(entered).store(frame, Relaxed);
        self.frames.set(frame, FrameState::Quarantined(order, kind));
        self.cells.quarantine_in.store(entered + 1, Relaxed);
        oldest
    }

    /// Takes the oldest block out.
    pub(crate) fn leave_quarantine(&self) -> Option<Quarantined> {
        if self.quarantine.is_empty() {
            return None;
        }
        let _held = self.lock();
        self.oldest()
    }

    fn oldest(&self) -> Option<Quarantined> {
        let left = self.cells.quarantine_out.load(Relaxed);
        if left == self.cells.quarantine_in.load(Relaxed) {
            return None;
        }
        self.cells.quarantine_out.store(left + 1, Relaxed);
        let frame = self.place(left).load(Relaxed);
        let FrameState::Quarantined(order, kind) = self.frames.state(frame) else {
            unreachable!("frame {} lies in quarantine", self.pfn(frame));
        };
        self.frames.set(frame, FrameState::NotAllocated);
        Some(Quarantined { frame, order, kind })
    }

    fn place(&self, at: u64) -> &P::U32 {
        &self.quarantine[(at % self.quarantine.len() as u64) as usize]
    }
}
