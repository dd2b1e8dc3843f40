//! Bad frames of a zone: the frames that are retired, and those that will be when their blocks are freed.
//!
//! A frame that is in use cannot be retired at once. Its block is then in state `Watched`, so that every free and split
//! of the block leaves its fast path and finds the frame in the zone's table. A run keeps its states, because its frees
//! and splits look into the table anyway. Retired frames count as allocated. Linux: `memory_failure`. Related files:
//! `ranges/retire.rs` retires frames, `alloc/serve.rs` blocks whose poison has changed, `zone/runs.rs` has the states of runs.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{Order, PageKind};
use crate::zone::Zone;
use crate::zone::cells::PENDING_MAX;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// A frame that is retired when its block is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    frame: u32,
    /// State of the block before it was watched, or `None` for a frame of a run.
    block: Option<FrameState>,
}

impl Entry {
    const USED: u64 = 1 << 63;

    fn encode(self) -> u64 {
        let byte = self.block.map_or(0, FrameState::encode);
        Self::USED | u64::from(byte) << 32 | u64::from(self.frame)
    }

    fn decode(word: u64) -> Option<Self> {
        let byte = (word >> 32) as u8;
        let block = (byte != 0).then(|| FrameState::decode(byte));
        (word & Self::USED != 0).then_some(Self { frame: word as u32, block })
    }

    /// Whether the frame's block is watched and begins at `first`.
    fn is_of_block(&self, first: u32) -> bool {
        let order = self.block.and_then(FrameState::order);
        order.is_some_and(|order| self.frame & !(order.pages().get() as u32 - 1) == first)
    }
}

/// Some frames to retire, ascending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadFrames {
    frames: [u32; PENDING_MAX],
    len: usize,
}

impl BadFrames {
    const NONE: Self = Self { frames: [0; PENDING_MAX], len: 0 };

    pub(crate) fn frames(&self) -> &[u32] {
        &self.frames[..self.len]
    }

    fn add(&mut self, frame: u32) {
        let at = self.frames().partition_point(|&other| other < frame);
        self.frames.copy_within(at..self.len, at + 1);
        self.frames[at] = frame;
        self.len += 1;
    }
}

/// The result of an attempt to watch a frame's block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watch {
    /// The frame will be retired when its block is freed.
    Pending,
    /// The block changed meanwhile.
    Changed,
    /// The table has no unused entry.
    Full,
}

/// The table of a zone, locked until dropped.
struct Table<'a, 'm, P: Platform> {
    zone: &'a Zone<'m, P>,
    _held: Held<'a, P::Lock>,
}

// Every access to the cells is relaxed, because the lock orders accesses to the entries. A free or split of a run reads
// `pending` without it, after it acquired the lock of the run, under which the entry's writer saw the run.
impl<P: Platform> Table<'_, '_, P> {
    fn entries(&self) -> impl Iterator<Item = (usize, Entry)> + Clone {
        let cells = self.zone.cells.bad_frames.entries.iter();
        cells.enumerate().filter_map(|(at, cell)| Some((at, Entry::decode(cell.load(Relaxed))?)))
    }

    /// Adds an entry or replaces the one of the same frame. Returns its place and the replaced entry, unless no entry is
    /// unused.
    fn put(&self, entry: Entry) -> Option<(usize, Option<Entry>)> {
        let cells = &self.zone.cells.bad_frames;
        let known = self.entries().find(|(_, known)| known.frame == entry.frame);
        let unused = || cells.entries.iter().position(|cell| cell.load(Relaxed) == 0);
        let at = known.map(|(at, _)| at).or_else(unused)?;
        if known.is_none() {
            cells.pending.fetch_add(1, Relaxed);
        }
        self.replace(at, entry);
        Some((at, known.map(|(_, entry)| entry)))
    }

    fn remove(&self, at: usize) {
        self.zone.cells.bad_frames.entries[at].store(0, Relaxed);
        self.zone.cells.bad_frames.pending.fetch_add(1_u64.wrapping_neg(), Relaxed);
    }

    fn replace(&self, at: usize, entry: Entry) {
        self.zone.cells.bad_frames.entries[at].store(entry.encode(), Relaxed);
    }

    /// Returns the state that the watched block at `first` had before.
    fn block_at(&self, first: u32) -> Option<FrameState> {
        self.entries().find(|(_, entry)| entry.is_of_block(first)).and_then(|(_, entry)| entry.block)
    }

    /// Makes the entries for a block's frames agree with its state `block`, before or just after the block is watched;
    /// returns whether there are any.
    ///
    /// Other entries at the block's first frame are those of an earlier block, whose free has lost their frames
    /// ([`Zone::lost`]). They become entries of single frames, so that they are not found in place of the block's.
    fn adopt(&self, part: Run, block: FrameState) -> bool {
        let set = |at, entry, block| self.replace(at, Entry { block: Some(block), ..entry });
        let single = FrameState::Allocated(Order::PAGE, PageKind::User);
        let at_first = self.entries().filter(|(_, entry)| entry.is_of_block(part.first));
        at_first.for_each(|(at, entry)| set(at, entry, single));
        let own = self.entries().filter(|(_, entry)| part.contains(entry.frame));
        own.map(|(at, entry)| set(at, entry, block)).count() != 0
    }

    /// Removes the entries for the frames of a run or block, and returns the frames.
    fn take_of(&self, run: Run) -> BadFrames {
        let mut bad = BadFrames::NONE;
        for (at, entry) in self.entries().filter(|(_, entry)| run.contains(entry.frame)) {
            self.remove(at);
            bad.add(entry.frame);
        }
        bad
    }
}

impl<'m, P: Platform> Zone<'m, P> {
    fn bad_table(&self) -> Table<'_, 'm, P> {
        Table { zone: self, _held: Held::wait(&self.cells.bad_frames.lock) }
    }

    /// Returns the number of frames that wait for their blocks to be freed.
    pub(crate) fn pending(&self) -> u64 {
        self.cells.bad_frames.pending.load(Relaxed)
    }

    /// Returns the number of retired frames.
    pub(crate) fn retired(&self) -> u64 {
        self.cells.bad_frames.retired.load(Relaxed)
    }

    /// Adds to the number of retired frames.
    pub(crate) fn count_retired(&self, change: i64) {
        self.cells.bad_frames.retired.fetch_add(change as u64, Relaxed);
    }

    /// Returns the state of the block that begins at `first`, where `state` was found: for a watched block, the state
    /// that it had before.
    pub(crate) fn unwatched(&self, first: u32, state: FrameState) -> FrameState {
        match state {
            FrameState::Watched if !P::ONLY_BLOCKS => self.bad_table().block_at(first).unwrap_or(state),
            _ => state,
        }
    }

    /// Makes the free of the block that begins at `first`, where `state` was found, retire `frame`.
    pub(crate) fn watch(&self, frame: u32, (first, state): (u32, FrameState)) -> Watch {
        let table = self.bad_table();
        let block = if state == FrameState::Watched { table.block_at(first) } else { Some(state) };
        let Some(block) = block.filter(|_| self.frames.state(first) == state) else { return Watch::Changed };
        let run = Run { first, count: block.order().map_or(0, |order| order.pages().get()) };
        if !run.contains(frame) {
            return Watch::Changed;
        }
        let Some((at, before)) = table.put(Entry { frame, block: Some(block) }) else { return Watch::Full };
        if state != FrameState::Watched && self.frames.exchange(first, state, FrameState::Watched).is_err() {
            before.map_or_else(|| table.remove(at), |entry| table.replace(at, entry));
            return Watch::Changed;
        }
        table.adopt(run, block);
        Watch::Pending
    }

    /// Makes the free of the run that begins at `first` retire `frame`.
    pub(crate) fn watch_run(&self, frame: u32, first: u32) -> Watch {
        let table = self.bad_table();
        let Some((at, before)) = table.put(Entry { frame, block: None }) else { return Watch::Full };
        // Frees and splits change the run under this lock, and look into the table afterwards.
        let is_in_run = || self.frames.run_at(first).is_some_and(|run| run.contains(frame));
        if self.free_areas.with_lock_of(first, is_in_run) {
            return Watch::Pending;
        }
        before.map_or_else(|| table.remove(at), |entry| table.replace(at, entry));
        Watch::Changed
    }

    /// Takes a watched block of `order` from its owner for a free: marks it as cached.
    ///
    /// Returns its kind, and the frames to retire.
    ///
    /// # Errors
    /// Returns the state found if the block is not watched, and the state that it had before it was watched if that
    /// is of another order. Nothing has changed then.
    pub(crate) fn release_watched(
        &self,
        first: u32,
        order: Order,
    ) -> Result<(PageKind, BadFrames), FrameState> {
        let table = self.bad_table();
        let kind = self.check_watched(&table, first, order)?;
        self.frames.set(first, FrameState::Cached(order));
        Ok((kind, table.take_of(Run { first, count: order.pages().get() })))
    }

    /// Removes the frames of a run from the table, and returns them. The run was just taken from its owner, is retired or
    /// goes offline.
    pub(crate) fn bad_of_run(&self, run: Run) -> BadFrames {
        if self.pending() != 0 { self.bad_table().take_of(run) } else { BadFrames::NONE }
    }

    /// Splits a watched block of `order` into blocks with the lower order `to`. Those with frames to retire are
    /// watched.
    ///
    /// # Errors
    /// As [`Self::release_watched`].
    pub(crate) fn split_watched(&self, first: u32, order: Order, to: Order) -> Result<(), FrameState> {
        let table = self.bad_table();
        let kind = self.check_watched(&table, first, order)?;
        self.frames.set(first, FrameState::Splitting(kind));
        drop(table);
        self.mark_parts_of_run(Run { first, count: order.pages().get() }, to, kind);
        Ok(())
    }

    /// Marks a run or block that is being split as allocated blocks of at most `order`. Those with frames to retire are
    /// watched.
    pub(crate) fn mark_parts_of_run(&self, run: Run, order: Order, kind: PageKind) {
        // No frame of the run is added while the run is being split.
        let has_bad =
            self.pending() != 0 && self.bad_table().entries().any(|(_, entry)| run.contains(entry.frame));
        if !has_bad {
            return self.frames.mark_parts(run, order, kind);
        }
        for (first, order) in run.blocks_head_last(order) {
            let (part, block) =
                (Run { first, count: order.pages().get() }, FrameState::Allocated(order, kind));
            let table = self.bad_table();
            self.frames.set(first, if table.adopt(part, block) { FrameState::Watched } else { block });
        }
    }

    fn check_watched(
        &self,
        table: &Table<'_, '_, P>,
        first: u32,
        order: Order,
    ) -> Result<PageKind, FrameState> {
        let state = self.frames.state(first);
        if state != FrameState::Watched {
            return Err(state);
        }
        match table.block_at(first) {
            Some(FrameState::Allocated(found, kind)) if found == order => Ok(kind),
            before => Err(before.unwrap_or(state)),
        }
    }

    /// Returns the frames whose blocks are no longer watched, although they are to be retired.
    ///
    /// Under [`InvalidFree::Checked`](crate::config::InvalidFree::Checked), a free that began before its block was
    /// watched can overwrite the state. The entries stay until the frames are watched again or forgotten.
    pub(crate) fn lost(&self) -> BadFrames {
        let table = self.bad_table();
        let mut lost = BadFrames::NONE;
        for (_, entry) in table.entries() {
            // A run is freed under its lock, so that its entries are not lost.
            if let Some(block) = entry.block {
                let pages = block.order().map_or(1, |order| order.pages().get());
                let first = entry.frame & !(pages as u32 - 1);
                if self.frames.state(first) != FrameState::Watched {
                    lost.add(entry.frame);
                }
            }
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_words() {
        let block = Some(FrameState::Allocated(Order::new(9).unwrap(), PageKind::Kernel));
        for entry in [Entry { frame: u32::MAX, block }, Entry { frame: 0, block: None }] {
            assert_eq!(Entry::decode(entry.encode()), Some(entry));
        }
        assert_eq!(Entry::decode(0), None);
        assert!(Entry { frame: 700, block }.is_of_block(512));
        assert!(!Entry { frame: 700, block: None }.is_of_block(700));
    }

    #[test]
    fn bad_frames_are_sorted() {
        let mut bad = BadFrames::NONE;
        [7, 3, 9, 5].into_iter().for_each(|frame| bad.add(frame));
        assert_eq!(bad.frames(), [3, 5, 7, 9]);
    }
}
