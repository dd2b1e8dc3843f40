//! Processes that share one allocator: which frames each of them holds, and what it counts.
//!
//! Every process has pagesets of its own, so a frame outside the buddy is held by exactly one process. The *holder* of a frame
//! is a byte: the process, or 0 while the frame is in the buddy. It is the truth from which everything else can be restored
//! after a process has died: an area's bitmaps are the frames without a holder, and what the dead process had are the frames
//! that it held. A holder changes only under the lock of the frame's area, except that a free of another process's block
//! first takes the block over under the node's handover lock (`processes/handover.rs`). An allocator of one process has no holders.
//!
//! Counters are kept for each process, too: a process counts what happens to frames that it holds, so that its counts of
//! frames can be dropped with it. Related files: `zone/free_areas.rs` changes holders, `processes/recover.rs` gives back what a
//! dead process held.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::platform::cells::{all_zero, copy_view};
use crate::platform::{Atomic, Platform};
use crate::zone::runs::Run;

all_zero! {
    /// A block that is changing hands, and the lock under which it does. What is to be stored is written before the first
    /// change, so that a process that finds the lock torn finishes the handover or drops it.
    #[repr(C)]
    pub(crate) struct HandoverCells<P> {
        pub(crate) lock: (line lock),
        /// 1 + index of the block's zone, or 0 if no block is changing hands.
        pub(crate) zone: u64,
        /// First frame and count of the block, state byte of the first frame before and afterwards, holder before and
        /// afterwards, lane of the kind as which the frames are counted, and what the former holder then has in
        /// [`ProcessTotals::moved`]: free frames, and frames of the kind.
        pub(crate) intent: [u64; 8],
    }
}

/// Frames of a region. Each has a word with the processes that have held a frame in it, so that a recovery reads only those
/// regions that its process has touched.
const REGION: u64 = 512;

/// The holders of a zone's frames, by offset, and the process whose view this is.
///
/// Invariant: if a process holds a frame, its bit is set in the word of the region.
pub(crate) struct Holders<'m, P: Platform> {
    bytes: &'m [P::U8],
    regions: &'m [P::U64],
    /// The process whose view this is.
    pub(crate) process: u8,
}

copy_view!(Holders);

impl<'m, P: Platform> Holders<'m, P> {
    /// The holder of frames in the buddy.
    pub(crate) const NO_HOLDER: u8 = 0;
    /// The holder of frames that are not managed.
    pub(crate) const NOT_MANAGED: u8 = u8::MAX;

    /// Creates the view of `process`; there are no bytes unless processes share the allocator.
    pub(crate) const fn new(bytes: &'m [P::U8], regions: &'m [P::U64], process: u8) -> Self {
        Self { bytes, regions, process }
    }

    /// Returns how many regions so many frames have.
    pub(crate) const fn regions(frames: usize) -> usize {
        frames.div_ceil(REGION as usize)
    }

    /// Whether processes share the allocator.
    #[inline(always)]
    pub(crate) const fn are_kept(&self) -> bool {
        P::IS_SHARED && !self.bytes.is_empty()
    }

    /// Returns the holder of a frame, or 0 if the frame is in the buddy.
    #[inline]
    pub(crate) fn of(&self, frame: u32) -> u8 {
        self.bytes[frame as usize].load(Relaxed) // relaxed: locks, or the caller's own marks, order holders
    }

    /// Whether this process holds a frame.
    #[inline]
    pub(crate) fn is_here(&self, frame: u32) -> bool {
        self.of(frame) == self.process
    }

    /// Records that this process holds frames that have left the buddy; the caller holds the area's lock.
    #[inline]
    pub(super) fn take(&self, first: u32, count: u64) {
        if self.are_kept() {
            self.set(first, count, self.process);
        }
    }

    /// Records that frames are in the buddy again; the caller holds the area's lock.
    #[inline]
    pub(super) fn give(&self, first: u32, count: u64) {
        if self.are_kept() {
            self.set(first, count, Self::NO_HOLDER);
        }
    }

    /// Returns the runs of adjacent frames in `frames` with this holder, ascending.
    pub(super) fn runs(self, frames: Range<u64>, holder: u8) -> impl Iterator<Item = Run> + use<'m, P> {
        let mut at = frames.start;
        let is_of = move |frame: &u64| self.of(*frame as u32) == holder; // a zone spans at most 2^32 frames
        core::iter::from_fn(move || {
            let first = (at..frames.end).find(is_of)?;
            at = (first..frames.end).find(|frame| !is_of(frame)).unwrap_or(frames.end);
            Some(Run { first: first as u32, count: at - first })
        })
    }

    /// Returns the runs of adjacent frames in `frames` that a process holds, ascending, none beyond a region's end.
    pub(super) fn held(self, frames: Range<u64>, process: u8) -> impl Iterator<Item = Run> + use<'m, P> {
        let regions = frames.start / REGION..frames.end.div_ceil(REGION);
        let of_region = move |region: u64| {
            let whole = region * REGION..(region + 1) * REGION;
            self.runs(whole.start.max(frames.start)..whole.end.min(frames.end), process)
        };
        regions.filter(move |&region| self.has_touched(process, region)).flat_map(of_region)
    }

    /// Whether a process may hold frames in a region.
    fn has_touched(&self, process: u8, region: u64) -> bool {
        // Acquire: takes the mark that precedes holders; pairs with `Holders::set`.
        self.regions[region as usize].load(Acquire) & bit(process) != 0
    }

    /// Whether a recovery would find that a frame is held.
    pub(crate) fn is_touched(&self, frame: u32) -> bool {
        self.has_touched(self.of(frame), u64::from(frame) / REGION)
    }

    /// Records that a process has touched no region; it holds no frame.
    pub(crate) fn forget(&self, process: u8) {
        let touched = (0..self.regions.len()).filter(|&region| self.has_touched(process, region as u64));
        touched.for_each(|region| _ = self.regions[region].fetch_and(!bit(process), Relaxed)); // relaxed: as above
    }

    /// Records a holder; the caller holds the area's lock, or the handover lock if the frames stay outside the buddy. Not inlined,
    /// so that the areas of one process stay small.
    #[inline(never)]
    pub(crate) fn set(&self, first: u32, count: u64, holder: u8) {
        if !self.are_kept() {
            return;
        }
        if !matches!(holder, Self::NO_HOLDER | Self::NOT_MANAGED) {
            let regions = u64::from(first) / REGION..(u64::from(first) + count).div_ceil(REGION);
            for region in regions.filter(|&region| !self.has_touched(holder, region)) {
                // AcqRel: takes earlier marks, is published before the holders; pairs with `Holders::has_touched`.
                self.regions[region as usize].fetch_or(bit(holder), AcqRel);
            }
        }
        let bytes = &self.bytes[first as usize..][..count as usize];
        bytes.iter().for_each(|byte| byte.store(holder, Relaxed)); // relaxed: as in `of`
    }

    /// Applies [`Self::set`] to frames of a word, given as bits.
    #[inline]
    pub(super) fn set_in_word(&self, first: u32, frames: u64, holder: u8) {
        if !self.are_kept() {
            return;
        }
        if frames == !0 {
            return self.set(first, u64::BITS.into(), holder);
        }
        let mut left = frames;
        while left != 0 {
            self.set(first + left.trailing_zeros(), 1, holder);
            left &= left - 1;
        }
    }
}

/// Returns a process's bit in sets of processes.
pub(crate) const fn bit(process: u8) -> u64 {
    1 << (process - 1)
}
