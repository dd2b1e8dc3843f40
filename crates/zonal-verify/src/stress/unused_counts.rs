//! Checks the numbers of fenced, retired and retiring frames at a pause.
//!
//! A fence holds the frames of its range that are neither allocated nor retired. A bad frame is retired unless its block
//! is allocated.
//!
//! Related files: `unused.rs` records fences and bad frames, `pause.rs` calls these checks.

use zonal::config::InvalidFree;
use zonal::error::UsedState;
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{NodeId, PageCount, Pfn};

use super::unused::{LiveFence, one};
use super::world::World;

/// How many frames in a zone are out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    fenced: u64,
    /// Retired frames, by kind.
    retired: [u64; PageKind::COUNT],
    retiring: u64,
}

impl World<'_, '_, '_, '_> {
    /// Lets the allocator retire frames whose blocks were freed while they were reported, which only the tick does.
    pub(super) fn retire_lost(&self) {
        let mut lost = false;
        for (&frame, entry) in self.unused.bad.borrow_mut().iter_mut() {
            let range = one(Pfn::new(frame));
            let mut is_retired = false;
            self.allocator().for_each_used(range, |used| is_retired = used.state == UsedState::Retired);
            if is_retired || self.system.held_in(&range) != 0 {
                continue;
            }
            if entry.since.is_some() || self.round.config.invalid_free == InvalidFree::Exact {
                self.system.fault(format!("frame {frame} is not retired, but its block was freed"));
            }
            (entry.kind, lost) = (PageKind::Kernel, true);
        }
        if lost {
            self.allocator().tick();
        }
    }

    /// Compares the allocator's counts of fenced and bad frames with the record.
    pub(super) fn check_unused(&self) -> Result<(), String> {
        for zone in self.allocator().zones() {
            let Counts { fenced, retired, retiring } = self.unused_in(&zone.span);
            let expected = [fenced, retired.iter().sum(), retiring];
            let found = [zone.fenced, zone.retired, zone.retiring].map(PageCount::get);
            if found != expected {
                return Err(format!(
                    "node {} {} has {found:?} fenced, retired and retiring frames; {expected:?} were expected",
                    zone.node, zone.kind
                ));
            }
        }
        for LiveFence { fence, .. } in self.unused.fences.borrow().iter() {
            let (range, in_use) = (fence.range(), self.system.held_in(&fence.range()));
            if fence.in_use().get() != in_use {
                return Err(format!(
                    "programs hold {in_use} frames of the fenced range ({range}), but {} are in use",
                    fence.in_use()
                ));
            }
        }
        Ok(())
    }

    /// Returns how many frames in a range are out of use. Fences must not cross the range's ends.
    fn unused_in(&self, frames: &FrameRange) -> Counts {
        let mut counts = Counts { fenced: 0, retired: [0; PageKind::COUNT], retiring: 0 };
        let bad = self.unused.bad.borrow();
        let mut retired = Vec::new();
        for (&frame, entry) in bad.range(frames.start.get()..frames.end().get()) {
            if self.system.held_in(&one(Pfn::new(frame))) != 0 {
                counts.retiring += 1;
            } else {
                counts.retired[entry.kind as usize] += 1;
                retired.push(frame);
            }
        }
        for LiveFence { fence, .. } in self.unused.fences.borrow().iter() {
            let range = fence.range();
            if frames.contains(&range) {
                let bad = retired.iter().filter(|&&frame| range.contains(&one(Pfn::new(frame)))).count();
                counts.fenced += range.count.get() - self.system.held_in(&range) - bad as u64;
            }
        }
        counts
    }

    /// Returns how many frames of a node are fenced and retired, by the kind as which they are counted.
    pub(super) fn unused_of(&self, node: NodeId) -> [u64; PageKind::COUNT] {
        let mut sums = [0; PageKind::COUNT];
        for zone in self.allocator().zones().filter(|zone| zone.node == node) {
            let Counts { fenced, retired, .. } = self.unused_in(&zone.span);
            sums.iter_mut().zip(retired).for_each(|(sum, frames)| *sum += frames);
            sums[PageKind::Kernel as usize] += fenced;
        }
        sums
    }

    /// Returns the number of `size`-frame blocks, aligned to their size, that have retired frames among the first
    /// `count` frames of a zone.
    pub(super) fn blocks_with_retired(&self, zone: &ZoneSnapshot, size: u64) -> u64 {
        let managed = FrameRange { start: zone.span.start, count: zone.managed };
        let is_whole = |&block: &u64| {
            let start = Pfn::new(block * size);
            managed.contains(&FrameRange { start, count: PageCount::new(size) })
        };
        let bad = self.unused.bad.borrow();
        let mut blocks: Vec<u64> = bad.keys().map(|frame| frame / size).filter(is_whole).collect();
        blocks.dedup();
        blocks.len() as u64
    }
}
