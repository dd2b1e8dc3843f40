//! What is known about the blocks of processes, some of which may have died in an operation.
//!
//! Related file: `mod.rs` runs the operations.

use std::collections::BTreeMap;
use std::ops::Range;

use zonal::machine::FrameRange;

/// A block or run, and the process that holds it.
pub(super) type Entry = (u8, FrameRange);

/// The blocks that are allocated, and what is not known because a process has died.
#[derive(Clone, Default)]
pub(super) struct Model {
    /// Frames and holder of each block, by the first frame.
    blocks: BTreeMap<u64, (u64, u8)>,
    /// Frames of blocks that were to be freed, split or taken over: these may be done or not.
    unsure: Vec<Range<u64>>,
    /// The dead that were not recovered, and how many frames a block that is not known has, if one may hold such blocks.
    dead: BTreeMap<u8, Option<u64>>,
    /// What was held after the last check.
    seen: Vec<Entry>,
}

fn frames(range: FrameRange) -> Range<u64> {
    range.start.get()..range.end().get()
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl Model {
    pub(super) fn is_all_known(&self) -> bool {
        self.dead.is_empty()
    }

    /// Returns the dead that were not recovered.
    pub(super) fn dead(&self) -> Vec<u8> {
        self.dead.keys().copied().collect()
    }

    /// Returns all known blocks.
    pub(super) fn blocks(&self) -> impl ExactSizeIterator<Item = Entry> {
        self.blocks.iter().map(|(&first, &(count, holder))| (holder, super::world::range(first, count)))
    }

    /// Adds blocks that a process has allocated.
    pub(super) fn add(&mut self, process: u8, blocks: &[FrameRange]) -> Result<(), String> {
        for &block in blocks {
            let its = frames(block);
            if let Some(other) = self.seen.iter().find(|other| overlap(&frames(other.1), &its)) {
                return Err(format!("{block} is allocated for {process}, but {other:?} was held before"));
            }
            if let Some(other) = self.blocks().find(|other| overlap(&frames(other.1), &its)) {
                return Err(format!("{block} is allocated for {process} twice: {other:?}"));
            }
            // Unsure frames that are allocated were free.
            self.unsure = (self.unsure.iter())
                .flat_map(|unsure| {
                    let (before, after) =
                        (unsure.start..unsure.end.min(its.start), unsure.start.max(its.end)..unsure.end);
                    if overlap(unsure, &its) { [before, after] } else { [unsure.clone(), 0..0] }
                })
                .filter(|rest| rest.start < rest.end)
                .collect();
            self.blocks.insert(its.start, (its.end - its.start, process));
        }
        Ok(())
    }

    /// Adds a block whose frames were those of another one.
    pub(super) fn add_known(&mut self, process: u8, block: FrameRange) {
        self.blocks.insert(block.start.get(), (block.count.get(), process));
    }

    /// Removes blocks that were freed.
    pub(super) fn remove(&mut self, blocks: &[FrameRange]) {
        blocks.iter().for_each(|block| _ = self.blocks.remove(&block.start.get()));
    }

    /// Notes that `process` has died in an operation that may have changed `touched`, or allocated blocks of `gained`
    /// frames.
    pub(super) fn die(&mut self, process: u8, touched: &[FrameRange], gained: Option<u64>) {
        self.remove(touched);
        self.unsure.extend(touched.iter().copied().map(frames));
        let before = self.dead.entry(process).or_default();
        *before = gained.or(*before);
    }

    /// Notes that `process` was recovered: it holds nothing any more, or what it held is kept.
    pub(super) fn recover(&mut self, process: u8, keeps: bool, held: &[Entry]) -> Result<(), String> {
        if !keeps {
            self.blocks.retain(|_, &mut (_, holder)| holder != process);
            if let Some((_, block)) = held.iter().find(|entry| entry.0 == process) {
                return Err(format!("process {process} was recovered, but holds {block}"));
            }
        }
        let gained = self.dead.remove(&process).flatten();
        let is_settled = self.is_all_known();
        for &(holder, block) in held {
            let its = frames(block);
            let was_unsure = self.unsure.iter().any(|one| one.start <= its.start && its.end <= one.end);
            if !self.blocks.contains_key(&its.start)
                && (holder == process && gained == Some(its.end - its.start) || is_settled && was_unsure)
            {
                self.blocks.insert(its.start, (its.end - its.start, holder));
            }
        }
        if is_settled {
            self.unsure.clear();
        }
        Ok(())
    }

    /// Compares the model with what the allocator says is held.
    pub(super) fn check(&mut self, held: Vec<Entry>) -> Result<(), String> {
        let mut found = 0;
        for &(holder, block) in &held {
            let its = frames(block);
            let is_known = self.blocks.get(&its.start) == Some(&(its.end - its.start, holder));
            found += usize::from(is_known);
            let may_be = is_known
                || self.unsure.iter().any(|one| one.start <= its.start && its.end <= one.end)
                || self.dead.get(&holder) == Some(&Some(its.end - its.start));
            if !may_be {
                return Err(format!("process {holder} holds {block}, which is not known"));
            }
        }
        self.seen = held;
        if found == self.blocks.len() {
            return Ok(());
        }
        let is_missing = |one: &Entry| !self.seen.contains(one);
        Err(format!("{:?} is lost, or has another holder", self.blocks().find(is_missing)))
    }
}
