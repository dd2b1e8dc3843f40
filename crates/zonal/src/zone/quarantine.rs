//! Quarantine: a first-in, first-out queue that delays the reuse of freed blocks.
//!
//! Each zone has a ring of blocks under its own lock. A block in quarantine still counts as allocated with its kind.
//! Related files: `alloc/freed.rs` puts blocks into quarantine, and `zone/frame_states.rs` records their kind.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{Order, PageKind};
use crate::zone::Zone;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// A block that left quarantine: its first frame, its order, and its kind. The kind is `None` if racing frees had put the block
/// into the ring twice and its other entry has left already.
type Left = (u32, Order, Option<PageKind>);

/// The result of an attempt to put a block into quarantine.
pub(crate) enum Entry {
    /// The block is in quarantine.
    Done,
    /// The oldest block was removed to make space; the new block is not in quarantine yet.
    Oldest(Left),
    /// The block is larger than the quarantine, or has frames that a fence keeps.
    Refused,
    /// Another free has already put the same block into quarantine.
    Retired,
}

// Every access is relaxed, because the quarantine's lock orders the accesses. Invariant: `quarantine_frames` = frames
// in the ring's blocks <= number of blocks that the ring can hold.
impl<P: Platform> Zone<'_, P> {
    /// Returns the number of frames in quarantine.
    pub(crate) fn quarantined(&self) -> u64 {
        self.cells.quarantine_frames.load(Relaxed)
    }

    /// Puts a block into quarantine, or removes the oldest block if the quarantine has no space.
    pub(crate) fn enter_quarantine(&self, frame: u32, order: Order, kind: PageKind) -> Entry {
        let (free_slots, pages) = (self.quarantine.len() as u64 / 2, order.pages().get());
        if pages > free_slots {
            return Entry::Refused;
        }
        let _held = Held::wait(&self.cells.lock.0);
        // A fence empties the quarantine, so a block that entered without seeing the fence leaves again.
        if self.has_fence() && self.fence_over(Run { first: frame, count: pages }).is_some() {
            return Entry::Refused;
        }
        let kept = self.cells.quarantine_frames.load(Relaxed);
        if kept + pages > free_slots
            && let Some(oldest) = self.oldest()
        {
            return Entry::Oldest(oldest);
        }
        if !self.frames.step(frame, FrameState::Cached(order), FrameState::Quarantined(order, kind)) {
            return Entry::Retired;
        }
        let entered = self.cells.quarantine_in.load(Relaxed);
        let [first, of_order] = self.place(entered);
        first.store(frame, Relaxed);
        of_order.store(u32::from(order.get()), Relaxed);
        self.cells.quarantine_in.store(entered + 1, Relaxed);
        self.cells.quarantine_frames.store(kept + pages, Relaxed);
        Entry::Done
    }

    /// Removes the oldest block from quarantine.
    pub(crate) fn leave_quarantine(&self) -> Option<Left> {
        let _held = Held::wait(&self.cells.lock.0);
        self.oldest()
    }

    fn oldest(&self) -> Option<Left> {
        let left = self.cells.quarantine_out.load(Relaxed);
        if left == self.cells.quarantine_in.load(Relaxed) {
            return None;
        }
        let [frame, order] = self.place(left).map(|cell| cell.load(Relaxed));
        let order = Order::new(order as u8).expect("only valid orders are stored");
        let kept = self.cells.quarantine_frames.load(Relaxed);
        self.cells.quarantine_frames.store(kept - order.pages().get(), Relaxed);
        self.cells.quarantine_out.store(left + 1, Relaxed);
        let quarantined = self.frames.state(frame);
        let kind = match quarantined {
            FrameState::Quarantined(known, kind) if known == order => Some(kind),
            _ => None,
        };
        let kind = kind.filter(|_| self.frames.step(frame, quarantined, FrameState::Cached(order)));
        Some((frame, order, kind))
    }

    /// Returns the cells for the offset and the order of the block that entered as number `at`.
    fn place(&self, at: u64) -> [&P::U32; 2] {
        let slot = (at % (self.quarantine.len() as u64 / 2)) as usize;
        [&self.quarantine[2 * slot], &self.quarantine[2 * slot + 1]]
    }
}
