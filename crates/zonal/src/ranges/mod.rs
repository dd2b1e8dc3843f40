//! Allocation of ranges: exactly these frames, or as many adjacent frames as needed wherever they are free.
//!
//! Ranges may be larger than the largest block. They are runs (`zone/runs.rs`), which `ranges/runs.rs` frees and splits.
//! Related files: `zone/free_ranges.rs` finds and allocates free ranges, `reclaim/by_range.rs` empties ranges.

mod fences;
mod retire;
mod runs;

pub use fences::Fence;
pub use retire::Retirement;

use crate::Allocator;
use crate::buddy::ranges::Sought;
use crate::error::{AllocError, RangeError, UsedFrames, UsedState};
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::request::{FrameRun, Request};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount, PageKind};
use crate::zone::Zone;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;
use crate::zonelist::RESTARTS;
use crate::zonelist::candidates::Candidates;

/// Maximum number of searches in one zone. A search is repeated if other CPUs allocated the frames that it found.
const RETRIES: u32 = 8;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates exactly the frames of `range`, which may be larger than the largest block.
    ///
    /// Drains the zone's pagesets if they cache some of the frames. Ignores watermarks. Free the frames with
    /// [`Allocator::free_frames`].
    ///
    /// # Errors
    /// Returns an error if the range is empty, is not within one zone, or has frames that are not free; the error
    /// contains the first of these, and [`Allocator::for_each_used`] lists them all. Nothing has been allocated then.
    pub fn alloc_range(&self, range: FrameRange, kind: PageKind) -> Result<FrameRun, RangeError> {
        const { assert!(!P::ONLY_BLOCKS) };
        let zone = self.state.zone_around(&range).map_err(RangeError::NotInZone)?;
        if self.state.platform.is_reentered() {
            return Err(RangeError::Reentered(range.start));
        }
        let run = zone.run_of(&range);
        if !self.state.take_exactly(zone, run, kind) {
            if P::IS_SHARED && self.state.process != 0 {
                self.state.platform.drain_others(); // waits a moment for them
            }
            self.state.drain_zone(zone);
            if !self.state.take_exactly(zone, run, kind) {
                let found = self.state.used_blocks(zone, &range).next();
                let free = PageCount::new(zone.free_areas.count_free(run.first, run.count));
                return Err(match found {
                    Some(first) => {
                        RangeError::InUse { range, first, used: range.count.saturating_minus(free) }
                    }
                    // Other threads have freed the frames since, or are about to.
                    None => RangeError::Changing(range),
                });
            }
        }
        self.state.zero_new(None, range.start, range.count);
        Ok(FrameRun { range, zone: zone.id, node: zone.node_id })
    }

    /// Returns the number of frames in `range` that are free, without those in pagesets.
    ///
    /// The range need not be within one zone. Other threads may allocate some of the frames at any time.
    #[must_use]
    pub fn count_free(&self, range: FrameRange) -> PageCount {
        let within = |zone: &Zone<'m, P>| {
            let part = range.intersection(&zone.span)?;
            Some(zone.free_areas.count_free(zone.offset(part.start), part.count.get()))
        };
        PageCount::new(self.state.zones.iter().filter_map(within).sum())
    }

    /// Calls `each` for every block in `range` that is not free, in ascending order.
    ///
    /// The states are those of one moment for each block, not for all. Frames that are in no zone are left out. A call
    /// from a handler that interrupted its own thread inside the allocator also leaves out blocks with a frame to retire
    /// ([`Allocator::retire`]).
    pub fn for_each_used(&self, range: FrameRange, mut each: impl FnMut(UsedFrames)) {
        for zone in self.state.zones {
            let Some(within) = range.intersection(&zone.span) else { continue };
            self.state.used_blocks(zone, &within).for_each(&mut each);
        }
    }

    /// Allocates `count` adjacent frames anywhere in the zones that the request allows, aligned to its order.
    ///
    /// Unlike [`Allocator::alloc_frames`], this searches each zone's free frames and can allocate more than a block of
    /// the largest order. If no zone has so many adjacent free frames above its watermark `min`, the pagesets are
    /// drained. If the request may wait, the reclaimers are then called for the ranges with the fewest used frames
    /// ([`ReclaimReason::Range`](crate::platform::reclaimer::ReclaimReason::Range)). Linux: `alloc_contig_pages`,
    /// without migration.
    ///
    /// # Errors
    /// Returns [`AllocError::NotContiguous`] if no range could be allocated, and [`AllocError::Count`] for no frames.
    /// Other errors are those of [`Allocator::alloc`].
    pub fn alloc_contiguous(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
        const { assert!(!P::ONLY_BLOCKS) };
        if count == PageCount::ZERO {
            return Err(AllocError::Count { count, max: PageCount::new(u64::MAX) });
        }
        self.state.may_begin(request)?;
        let mut context = self.state.resolve(request, Turn::Next)?;
        context.count = count;
        let find = |context: &AllocContext<'_>| {
            let frames = self.state.find_frames(context).or_else(|| {
                self.state.drain_allowed(context);
                self.state.find_frames(context)
            });
            let frames = frames.or_else(|| match self.state.reclaim_run(context) {
                Ok(frames) => Some(frames),
                Err(PageCount::ZERO) => None,
                Err(_) => self.state.find_frames(context), // frames that were freed outside the range may suffice
            });
            frames.map(|frames| (frames.zone, frames))
        };
        let Some(frames) = self.state.recorded(&context, find) else {
            self.state.note_refusal(&context);
            let mut longest = 0;
            let _ = self.state.find_in_zones(&context, |zone| {
                let start = u64::from(zone.offset(zone.span.start));
                let (mut at, end) = (start, context.reach(zone));
                while at < end {
                    let free = zone.free_areas.same_until(at, end, Sought::Free);
                    longest = longest.max(free - at);
                    at = zone.free_areas.same_until(free, end, Sought::Used);
                }
                None::<()>
            });
            let (longest, ranges_ignored) = (PageCount::new(longest), context.ranges_ignored.get());
            return Err(AllocError::NotContiguous { count, longest, ranges_ignored });
        };
        self.state.count_contiguous(&context, frames.zone);
        self.state.zero_new(Some(request), frames.range.start, count);
        Ok(frames)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Allocates free frames from the first allowed zone that has so many and stays above its watermark `min`.
    fn find_frames(&self, context: &AllocContext<'_>) -> Option<FrameRun> {
        let count = context.count;
        self.find_in_zones(context, |zone| {
            let within = u64::from(zone.offset(zone.span.start))..context.reach(zone);
            for _ in 0..RETRIES {
                if PageCount::new(zone.free_areas.pages()) < count
                    || self.short_of_min(zone, context, count) != PageCount::ZERO
                {
                    return None;
                }
                let first = zone.free_areas.find_range(within.clone(), count.get(), context.flags.order)?;
                if self.take_exactly(zone, Run { first, count: count.get() }, context.flags.kind) {
                    let range = FrameRange { start: zone.pfn(first), count };
                    return Some(FrameRun { range, zone: zone.id, node: zone.node_id });
                }
            }
            None
        })
    }

    /// Returns how many more frames must be free for a zone to stay above its watermark `min`, lowered by the request's
    /// urgency, while `count` frames are allocated. As for a block, the last of these is not subtracted.
    pub(super) fn short_of_min(
        &self,
        zone: &Zone<'m, P>,
        context: &AllocContext<'_>,
        count: PageCount,
    ) -> PageCount {
        if context.flags.urgency == Urgency::Reserve {
            return PageCount::ZERO;
        }
        let min = zone.watermarks().discounted(Watermark::Min, context.flags.urgency);
        let needed = min.plus(zone.reserve(context.flags.zone_limit)).plus(count);
        needed.saturating_minus(PageCount::new(zone.free_areas.pages()))
    }

    /// Allocates a run's frames if all of them are free in the buddy.
    fn take_exactly(&self, zone: &Zone<'m, P>, run: Run, kind: PageKind) -> bool {
        if let Err(kept) = zone.take_exactly(run) {
            self.count_fenced(zone, kept);
            return false;
        }
        self.mark_taken(zone, run, kind)
    }

    /// Returns the blocks in a zone's range that are not free, ascending.
    pub(super) fn used_blocks(
        &self,
        zone: &Zone<'m, P>,
        range: &FrameRange,
    ) -> impl Iterator<Item = UsedFrames> {
        let start = zone.offset(range.start);
        let end = u64::from(start) + range.count.get();
        let is_reentered = self.platform.is_reentered();
        let around = if is_reentered { None } else { zone.block_around(start, self.config().max_order) };
        let mut next = u64::from(around.map_or(start, |(first, _)| first));
        core::iter::from_fn(move || {
            while next < end {
                let (frame, state) = (next as u32, zone.frames.state(next as u32));
                let state = if is_reentered { state } else { zone.unwatched(frame, state) };
                let count = state.order().map_or(PageCount::new(1), Order::pages);
                next += count.get();
                let state = match state {
                    // A watched block that was not found in the table has just been freed.
                    FrameState::Free | FrameState::Watched => continue,
                    FrameState::Allocated(_, kind) | FrameState::RunHead(_, kind) => {
                        UsedState::Allocated(kind)
                    }
                    FrameState::RunPart(_) => UsedState::InRun,
                    FrameState::Cached(_) => UsedState::Cached,
                    FrameState::Quarantined(..) => UsedState::Quarantined,
                    FrameState::Splitting(_) => UsedState::BeingSplit,
                    FrameState::Fenced | FrameState::Claimed => UsedState::Fenced,
                    FrameState::Retired(_) => UsedState::Retired,
                    FrameState::NotManaged => UsedState::NotManaged,
                };
                return Some(UsedFrames { block: FrameRange { start: zone.pfn(frame), count }, state });
            }
            None
        })
    }

    /// Calls `find` with the zones that may serve a request, in the order of its zonelist, until it finds something.
    ///
    /// Begins again if the list is rebuilt meanwhile, as a scan does.
    pub(super) fn find_in_zones<T>(
        &self,
        context: &AllocContext<'_>,
        mut find: impl FnMut(&'m Zone<'m, P>) -> Option<T>,
    ) -> Option<T> {
        let mut serve = |zone: &'m Zone<'m, P>| if context.allows(zone) { find(zone) } else { None };
        let places = context.first.iter().filter_map(|&node| self.place_of(node));
        for zone in places.flat_map(|place| self.zones_by_preference(place)) {
            if let Some(found) = serve(zone) {
                return Some(found);
            }
        }
        for _ in 0..RESTARTS {
            let mut candidates = Candidates::new(&self.lists, context.target, context.flags.zone_limit, None);
            let mut from = 0;
            while let Ok(next) = candidates.next(from, None) {
                let (position, zone) = next?;
                from = position + 1;
                if let Some(found) = serve(&self.zones[zone.index()]) {
                    return Some(found);
                }
            }
        }
        None
    }
}
