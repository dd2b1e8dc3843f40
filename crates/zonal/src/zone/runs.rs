//! Runs: allocations with any number of frames, as adjacent blocks that are allocated and freed together.
//!
//! The frames of a run determine its blocks: from its first frame on, each block is the largest that is aligned, fits
//! and is not above the largest order. The first block has state `RunHead`, each further one `RunPart`. A range that is
//! one block is not a run but an allocated block. Splitting leaves blocks, too.
//!
//! Freeing or splitting a run checks all its blocks and changes the first one's state under the lock of the free area
//! that contains the first frame. Exactly one of several frees and splits therefore succeeds, and it changes the other
//! blocks without the lock. A new run needs no lock, because no other thread can reach its frames. Related files:
//! `ranges/runs.rs` allocates, frees and splits runs, `zone/frame_states.rs` encodes the states.

use core::sync::atomic::Ordering::Relaxed;

use crate::machine::FrameRange;
use crate::platform::{Atomic, Platform};
use crate::units::{Order, PageCount, PageKind, Pfn};
use crate::zone::frame_state::FrameState;
use crate::zone::frame_states::FrameTable;

/// Some adjacent frames of a zone, which are allocated together or are about to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Offset of the first frame.
    pub(crate) first: u32,
    /// Number of frames, at least 1.
    pub(crate) count: u64,
}

impl Run {
    /// Returns the blocks, ascending: first frame and order.
    pub(crate) fn blocks(self, max: Order) -> impl Iterator<Item = (u32, Order)> + Clone {
        // Offsets are aligned as frames are.
        let offsets = FrameRange { start: Pfn::new(self.first.into()), count: PageCount::new(self.count) };
        offsets.blocks(max).map(|(frame, order)| (frame.get() as u32, order))
    }

    /// Returns the blocks, the first one last: it decides whether a free or a split of the run succeeds.
    pub(super) fn blocks_head_last(self, max: Order) -> impl Iterator<Item = (u32, Order)> {
        self.blocks(max).skip(1).chain(self.blocks(max).take(1))
    }

    /// Returns the order of the run if it is a single block.
    pub(crate) fn as_block(self, max: Order) -> Option<Order> {
        self.blocks(max).next().map(|(_, order)| order).filter(|order| order.pages().get() == self.count)
    }

    /// Returns the frame after the last one.
    pub(crate) const fn end(self) -> u64 {
        self.first as u64 + self.count
    }

    /// Returns the frames.
    pub(crate) fn frames(self) -> impl Iterator<Item = u32> + Clone {
        (u64::from(self.first)..self.end()).map(|frame| frame as u32) // a zone spans at most 2^32 frames
    }

    /// Returns the frames that the run has in common with another.
    pub(crate) fn overlap(self, other: Self) -> Option<Self> {
        let first = self.first.max(other.first);
        let end = self.end().min(other.end());
        (u64::from(first) < end).then(|| Self { first, count: end - u64::from(first) })
    }

    /// Whether `frame` is one of the frames.
    pub(super) const fn contains(self, frame: u32) -> bool {
        self.first <= frame && (frame as u64) < self.end()
    }
}

impl<P: Platform> FrameTable<'_, P> {
    /// Marks frames that no other CPU can reach as one allocated block or run.
    pub(crate) fn mark_run(&self, run: Run, max: Order, kind: PageKind) {
        let block = run.as_block(max);
        if let Some(order) = block {
            self.set(run.first, FrameState::Allocated(order, kind));
        }
        if P::ONLY_BLOCKS || block.is_some() {
            return;
        }
        // The first block last: it makes the run known.
        for (frame, order) in run.blocks_head_last(max) {
            let head = FrameState::RunHead(order, kind);
            self.set(frame, if frame == run.first { head } else { FrameState::RunPart(order) });
        }
    }

    /// Returns the allocated run that begins at `first`.
    pub(crate) fn run_at(&self, first: u32) -> Option<Run> {
        let FrameState::RunHead(order, _) = self.state_acquired(first) else { return None };
        let mut run = Run { first, count: order.pages().get() };
        while let Some(order) = self.later_block(first, run.end()) {
            run.count += order.pages().get();
        }
        Some(run)
    }

    /// Returns the block or run that is allocated at `first`.
    pub(crate) fn block_or_run_at(&self, first: u32) -> Option<Run> {
        match self.state(first) {
            FrameState::Allocated(order, _) => Some(Run { first, count: order.pages().get() }),
            _ => self.run_at(first),
        }
    }

    /// Returns the first frame of the run whose later block begins at `part`.
    pub(crate) fn run_around(&self, part: u32, max: Order) -> Option<u32> {
        let mut at = part;
        loop {
            let before = (0..=max.get()).filter_map(Order::new).find_map(|order| {
                let frame = at.checked_sub(order.pages().get() as u32)?;
                match self.state(frame) {
                    state @ (FrameState::RunHead(found, _) | FrameState::RunPart(found)) => {
                        (found == order).then_some((frame, state))
                    }
                    _ => None,
                }
            });
            match before? {
                (frame, FrameState::RunHead(..)) => return Some(frame),
                (frame, _) => at = frame,
            }
        }
    }

    /// Returns the order of a run's first block, and its kind.
    ///
    /// The caller holds the run's lock, and under it changes the first block's state. It then changes the other blocks
    /// without the lock.
    ///
    /// # Errors
    /// Returns the state of the first frame if exactly these frames are not an allocated run that `process` holds.
    ///
    /// The holder is read after the state: a handover stores the holders before it restores the state, and another one cannot
    /// begin, because it claims the run under the lock that the caller holds.
    pub(crate) fn check_run(
        &self,
        run: Run,
        max: Order,
        process: u8,
    ) -> Result<(Order, PageKind), FrameState> {
        let mut blocks = run.blocks(max);
        // The state is acquired, because `mark_run` marks the later blocks before the first one.
        let head = self.state_acquired(run.first);
        let FrameState::RunHead(order, kind) = head else { return Err(head) };
        let is_head = blocks.next().is_some_and(|(_, expected)| expected == order);
        let are_parts = blocks.all(|(frame, order)| self.later_block(run.first, frame.into()) == Some(order));
        let ends = self.later_block(run.first, run.end()).is_none();
        let is_here =
            || self.frame_holders().is_none_or(|of| of[run.first as usize].load(Relaxed) == process); // relaxed: as `Holders::of`
        if is_head && are_parts && ends && is_here() { Ok((order, kind)) } else { Err(head) }
    }

    /// Returns the holders of all frames, if processes share the allocator.
    fn frame_holders(&self) -> Option<&[P::U8]> {
        let holders = &self.states_and_holders[self.states.len()..];
        (P::IS_SHARED && !holders.is_empty()).then_some(holders)
    }

    /// Returns the order of a run's later block that begins at `frame`, if it has the same holder as `first`.
    ///
    /// A recovery frees a dead process's run area by area, so a new run can end where the rest of one begins.
    fn later_block(&self, first: u32, frame: u64) -> Option<Order> {
        // The run may end at the zone's end.
        let is_within = frame < self.states.len() as u64;
        let FrameState::RunPart(order) = is_within.then(|| self.state(frame as u32))? else { return None };
        let of = |holders: &[P::U8], frame: usize| holders[frame].load(Relaxed); // relaxed: as `Holders::of`
        let is_same = |holders| of(holders, first as usize) == of(holders, frame as usize);
        self.frame_holders().is_none_or(is_same).then_some(order)
    }

    /// Marks a block or run that is being split as allocated blocks of at most `order`, the first one last.
    pub(crate) fn mark_parts(&self, run: Run, order: Order, kind: PageKind) {
        // A part may be freed as soon as it is marked. The first part is marked last, because until then no free of the
        // first frame succeeds.
        for (frame, order) in run.blocks_head_last(order) {
            self.set(frame, FrameState::Allocated(order, kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    fn blocks(first: u32, count: u64, max: u8) -> Vec<(u32, u8)> {
        let blocks = Run { first, count }.blocks(Order::new(max).unwrap());
        blocks.map(|(frame, order)| (frame, order.get())).collect()
    }

    #[test]
    fn a_run_has_the_largest_blocks_that_fit() {
        assert_eq!(blocks(8, 3, 10), [(8, 1), (10, 0)]);
        assert_eq!(blocks(5, 6, 10), [(5, 0), (6, 1), (8, 1), (10, 0)]);
        assert_eq!(blocks(0, 20, 3), [(0, 3), (8, 3), (16, 2)]);
        assert_eq!(blocks(0, 1, 10), [(0, 0)]);
        assert_eq!(blocks(u32::MAX, 1, 10), [(u32::MAX, 0)]);
    }

    #[test]
    fn ranges_overlap_in_what_they_share() {
        let run = |first, count| Run { first, count };
        assert_eq!(run(10, 5).overlap(run(12, 9)), Some(run(12, 3)));
        assert_eq!(run(12, 9).overlap(run(10, 5)), Some(run(12, 3)));
        assert_eq!(run(10, 5).overlap(run(15, 1)), None);
        assert_eq!(run(10, 0).overlap(run(9, 5)), None);
        assert_eq!(run(u32::MAX, 1).overlap(run(0, 1 << 32)), Some(run(u32::MAX, 1)));
    }

    #[test]
    fn the_blocks_of_a_run_tile_it() {
        for first in 0..64 {
            for count in 1..130 {
                let mut at = first;
                for (frame, order) in blocks(first, count, 4) {
                    assert!(frame == at && frame.is_multiple_of(1 << order), "{first} {count}");
                    at += 1 << order;
                }
                assert_eq!(u64::from(at), u64::from(first) + count);
            }
        }
    }

    #[test]
    fn one_aligned_power_of_two_is_a_block() {
        let order = |first, count| Run { first, count }.as_block(Order::DEFAULT_MAX).map(Order::get);
        assert_eq!([order(8, 8), order(4, 8), order(8, 7), order(2048, 2048)], [Some(3), None, None, None]);
    }
}
