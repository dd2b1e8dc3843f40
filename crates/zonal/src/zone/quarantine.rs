//! Quarantine: freed blocks that wait, first in first out, before they can be reused.
//!
//! A ring of blocks per zone under a lock of its own. A block that waits counts as allocated, of its
//! kind. Neighbours: `free.rs` puts blocks in, `frame_table.rs` remembers what they were.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::Order;
use crate::units::PageKind;
use crate::zone::Zone;

/// A block that left quarantine.
pub(crate) struct Quarantined {
    pub(crate) frame: u32,
    pub(crate) order: Order,
    /// `None` when it had left before: racing frees had put it in twice.
    pub(crate) kind: Option<PageKind>,
}

/// What came of putting a block in.
pub(crate) enum Entry {
    /// It is in.
    Done,
    /// It is not: the oldest one left first, to make room.
    Oldest(Quarantined),
    /// It is larger than the quarantine.
    TooLarge,
    /// Another free of the same block has put it in already.
    Retired,
}

// Every access is relaxed: the quarantine's lock orders them.
// Invariant: `quarantine_frames` = frames of the blocks in the ring <= blocks the ring has room for.
impl<P: Platform> Zone<'_, P> {
    /// Puts a block in, or takes the oldest out when there is no room for both.
    pub(crate) fn enter_quarantine(&self, frame: u32, order: Order, kind: PageKind) -> Entry {
        let (free_slots, pages) = (self.quarantine.len() as u64 / 2, order.pages().get());
        if pages > free_slots {
            return Entry::TooLarge;
        }
        let _held = self.lock_quarantine();
        let kept = self.cells.quarantine_frames.load(Relaxed);
        if kept + pages > free_slots
            && let Some(oldest) = self.oldest()
        {
            return Entry::Oldest(oldest);
        }
        if !self.frames.mark_quarantined(frame, order, kind) {
            return Entry::Retired;
        }
        let entered = self.cells.quarantine_in.load(Relaxed);
        let [first, of_order] = self.place(entered);
        first.store(frame, Relaxed);
        of_order.store(u32::from(order.get()), Relaxed);
        self.cells.quarantine_in.store(entered + 1, Relaxed);
        let kept = self.cells.quarantine_frames.load(Relaxed);
        self.cells.quarantine_frames.store(kept + pages, Relaxed);
        Entry::Done
    }

    /// Takes the oldest block out.
    pub(crate) fn leave_quarantine(&self) -> Option<Quarantined> {
        if self.quarantine.is_empty() {
            return None;
        }
        let _held = self.lock_quarantine();
        self.oldest()
    }

    fn oldest(&self) -> Option<Quarantined> {
        let left = self.cells.quarantine_out.load(Relaxed);
        if left == self.cells.quarantine_in.load(Relaxed) {
            return None;
        }
        let [frame, order] = self.place(left).map(|cell| cell.load(Relaxed));
        let order = Order::new(order as u8).expect("only valid orders are stored");
        let kept = self.cells.quarantine_frames.load(Relaxed);
        self.cells.quarantine_frames.store(kept - order.pages().get(), Relaxed);
        self.cells.quarantine_out.store(left + 1, Relaxed);
        Some(Quarantined { frame, order, kind: self.frames.leave_quarantine(frame, order) })
    }

    /// Offset and order of the `at`th block that entered.
    fn place(&self, at: u64) -> [&P::U32; 2] {
        let slot = (at % (self.quarantine.len() as u64 / 2)) as usize;
        [&self.quarantine[2 * slot], &self.quarantine[2 * slot + 1]]
    }
}
