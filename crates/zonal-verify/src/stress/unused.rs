//! Frames that are out of use: those that fences hold, and bad frames.
//!
//! A second record of both, with which the allocator must agree. No allocation may return such a frame. *Moments* are
//! the numbers of starts and ends of operations. An allocation that begins after a range was fenced, and ends before the
//! fence ends, must return no frame of it. At a pause, a fence holds the frames of its range that are neither allocated
//! nor retired, and a bad frame is retired unless its block is allocated.
//!
//! Related files: `fences.rs` fences ranges and retires frames, `pause.rs` calls the checks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

use zonal::config::InvalidFree;
use zonal::error::UsedState;
use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{NodeId, PageCount, Pfn};
use zonal::{Fence, Retirement};
use zonal_lab::sim::Lab;

use super::world::World;

/// The time of an operation, relative to those of other operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment(u64);

/// A fence that programs work beside.
pub(super) struct LiveFence<'s, 'm> {
    pub(super) fence: Fence<'s, 'm, Lab>,
    since: Moment,
}

/// A frame that was reported as bad.
struct BadFrame {
    /// Kind as which it is counted once it is retired.
    kind: PageKind,
    /// When the allocator said that it retires the frame when its block is freed.
    promised: Option<Moment>,
    /// From when on no allocation may return the frame.
    since: Option<Moment>,
}

/// The frames of a round that are out of use.
///
/// Fences are not dropped with the record, because a round that ended early has no threads that could release them.
pub(super) struct UnusedFrames<'s, 'm> {
    fences: RefCell<ManuallyDrop<Vec<LiveFence<'s, 'm>>>>,
    bad: RefCell<BTreeMap<u64, BadFrame>>,
    moments: Cell<u64>,
}

/// Numbers of frames of a zone that are out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Counts {
    fenced: u64,
    /// Retired frames, by kind.
    retired: [u64; PageKind::COUNT],
    retiring: u64,
}

impl<'s, 'm> UnusedFrames<'s, 'm> {
    pub(super) fn new() -> Self {
        let fences = RefCell::new(ManuallyDrop::new(Vec::new()));
        Self { fences, bad: RefCell::default(), moments: Cell::new(0) }
    }

    /// Returns a moment after all earlier ones.
    pub(super) fn moment(&self) -> Moment {
        self.moments.set(self.moments.get() + 1);
        Moment(self.moments.get())
    }

    pub(super) fn add_fence(&self, fence: Fence<'s, 'm, Lab>) {
        let since = self.moment();
        self.fences.borrow_mut().push(LiveFence { fence, since });
    }

    /// Returns the number of fences.
    pub(super) fn fences(&self) -> usize {
        self.fences.borrow().len()
    }

    /// Removes the fence with index `at`, so that it can end.
    pub(super) fn remove_fence(&self, at: usize) -> Option<Fence<'s, 'm, Lab>> {
        let mut fences = self.fences.borrow_mut();
        (at < fences.len()).then(|| fences.swap_remove(at).fence)
    }

    /// Returns the number of frames that are known to be bad.
    pub(super) fn bad(&self) -> usize {
        self.bad.borrow().len()
    }

    /// Records that a frame is about to be retired. Returns `false` if it is known to be bad.
    pub(super) fn begin_retire(&self, frame: Pfn) -> bool {
        let mut bad = self.bad.borrow_mut();
        let is_new = !bad.contains_key(&frame.get());
        bad.entry(frame.get()).or_insert(BadFrame { kind: PageKind::Kernel, promised: None, since: None });
        is_new
    }

    /// Records the answer of the allocator, or `None` if it did not retire the frame.
    pub(super) fn end_retire(&self, frame: Pfn, answer: Option<Retirement>) {
        let now = self.moment();
        let mut bad = self.bad.borrow_mut();
        let Some(entry) = bad.get_mut(&frame.get()) else { return };
        match answer {
            Some(Retirement::Done) => (entry.kind, entry.since) = (PageKind::Kernel, Some(now)),
            Some(Retirement::WhenFreed) => entry.promised = Some(now),
            None => _ = bad.remove(&frame.get()),
        }
    }

    /// Records that frames are about to be freed.
    pub(super) fn begin_free(&self, frames: &FrameRange, kind: PageKind) -> Moment {
        for (_, entry) in self.bad.borrow_mut().range_mut(frames.start.get()..frames.end().get()) {
            entry.kind = kind;
        }
        self.moment()
    }

    /// Records that frames were freed, by a call that began at `begun`.
    pub(super) fn end_free(&self, frames: &FrameRange, begun: Moment) {
        let now = self.moment();
        for (_, entry) in self.bad.borrow_mut().range_mut(frames.start.get()..frames.end().get()) {
            if entry.promised.is_some_and(|promised| promised < begun) {
                entry.since = Some(now);
            }
        }
    }

    /// Forgets the bad frames of memory that went offline.
    pub(super) fn forget(&self, frames: &FrameRange) {
        self.bad.borrow_mut().retain(|&frame, _| !frames.contains(&one(Pfn::new(frame))));
    }

    /// Returns an error if a call that began at `begun` must not have allocated one of these frames.
    pub(super) fn check_allocated(&self, frames: &FrameRange, begun: Moment) -> Result<(), String> {
        let bad = self.bad.borrow();
        let mut bad = bad.range(frames.start.get()..frames.end().get());
        if let Some((frame, _)) = bad.find(|(_, entry)| entry.since.is_some_and(|since| since < begun)) {
            return Err(format!("frame {frame} was allocated, but it is retired"));
        }
        let fences = self.fences.borrow();
        let fenced = fences.iter().filter(|live| live.since < begun).map(|live| live.fence.range());
        match fenced.into_iter().find(|range| range.intersection(frames).is_some()) {
            Some(range) => Err(format!("the range ({frames}) was allocated, although ({range}) is fenced")),
            None => Ok(()),
        }
    }
}

/// Returns the range of one frame.
pub(super) fn one(frame: Pfn) -> FrameRange {
    FrameRange { start: frame, count: PageCount::new(1) }
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

    /// Returns the numbers of frames of a range that are out of use. Fences must not cross the range's ends.
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

    /// Returns the numbers of fenced and retired frames of a node, by the kind as which they are counted.
    pub(super) fn unused_of(&self, node: NodeId) -> [u64; PageKind::COUNT] {
        let mut sums = [0; PageKind::COUNT];
        for zone in self.allocator().zones().filter(|zone| zone.node == node) {
            let Counts { fenced, retired, .. } = self.unused_in(&zone.span);
            sums.iter_mut().zip(retired).for_each(|(sum, frames)| *sum += frames);
            sums[PageKind::Kernel as usize] += fenced;
        }
        sums
    }

    /// Returns the number of blocks of `size` frames, aligned to their size, that have retired frames among the first
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
