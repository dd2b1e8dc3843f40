//! Frames that are out of use: those that fences hold, and bad frames.
//!
//! A second record of both, with which the allocator must agree. No allocation may return such a frame. *Moments* count
//! the starts and ends of operations. An allocation that begins after a range was fenced, and ends before the fence
//! ends, must return no frame of it.
//!
//! Related files: `fences.rs` fences ranges and retires frames, `unused_counts.rs` compares counts with this record.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;

use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{PageCount, Pfn};
use zonal::{Fence, Retirement};
use zonal_lab::sim::Lab;

/// The time of an operation, relative to those of other operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment(u64);

/// A fence that programs work beside.
pub(super) struct LiveFence<'s, 'm> {
    pub(super) fence: Fence<'s, 'm, Lab>,
    since: Moment,
}

/// A frame that was reported as bad.
pub(super) struct BadFrame {
    /// Kind as which it is counted once it is retired.
    pub(super) kind: PageKind,
    /// When the allocator said that it retires the frame when its block is freed.
    promised: Option<Moment>,
    /// From when on no allocation may return the frame.
    pub(super) since: Option<Moment>,
}

/// A round's frames that are out of use.
///
/// Fences are not dropped with the record, because a round that ended early has no threads that could release them.
pub(super) struct UnusedFrames<'s, 'm> {
    pub(super) fences: RefCell<ManuallyDrop<Vec<LiveFence<'s, 'm>>>>,
    pub(super) bad: RefCell<BTreeMap<u64, BadFrame>>,
    moments: Cell<u64>,
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
