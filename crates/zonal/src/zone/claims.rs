//! Claims: ranges that requests empty with the reclaimers, and whose free frames they hold meanwhile.
//!
//! A claim moves free frames from the buddy to state `Claimed`, and does so again after the reclaimers have freed
//! frames. Unlike a fence (`zone/fences.rs`), it closes no pageset, changes no free, and needs no lock for run-time
//! changes. Claims of a zone do not overlap, so that every claimed frame belongs to one claim. Claimed frames count as
//! allocated. Related files: `reclaim/by_range.rs` chooses the ranges and calls the reclaimers.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::zone::Zone;
use crate::zone::counters::ZoneItem;
use crate::zone::fences::{decode, encode};
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

// Accesses to the slots are relaxed, because the lock of the claims orders them.
impl<P: Platform> Zone<'_, P> {
    /// Begins a claim to a range, which holds no frames yet; returns its slot.
    ///
    /// Returns `None` if the range overlaps another claim or a fence, or if all slots are in use.
    pub(crate) fn begin_claim(&self, run: Run) -> Option<usize> {
        let _held = Held::wait(&self.cells.claims.lock);
        if self.has_claim_over(run) || self.fence_over(run).is_some() {
            return None;
        }
        let slots = &self.cells.claims.range;
        let at = slots.iter().position(|slot| slot.load(Relaxed) == 0)?;
        slots[at].store(encode(run), Relaxed);
        Some(at)
    }

    /// Ends a claim that holds no frames.
    pub(crate) fn end_claim(&self, at: usize) {
        // The next claim to these frames sees the states that this claim gave them, because it acquires the lock.
        let _held = Held::wait(&self.cells.claims.lock);
        self.cells.claims.range[at].store(0, Relaxed);
    }

    /// Whether a claim overlaps a range.
    ///
    /// A claim that begins after a fence was added sees the fence, because the caller and the claim acquire the same lock.
    pub(crate) fn overlaps_claim(&self, run: Run) -> bool {
        let _held = Held::wait(&self.cells.claims.lock);
        self.has_claim_over(run)
    }

    fn has_claim_over(&self, run: Run) -> bool {
        let claims = self.cells.claims.range.iter().filter_map(|slot| decode(slot.load(Relaxed)));
        claims.filter_map(|claim| claim.overlap(run)).next().is_some()
    }

    /// Moves the free frames of a claim's range from the buddy to the claim; returns their number.
    pub(crate) fn claim_free(&self, run: Run) -> u64 {
        let mut taken = 0;
        self.each_free(run, |area, free| {
            self.take_free(area, free, FrameState::Claimed);
            self.counters().add_total(ZoneItem::Free, -(free.count as i64));
            taken += free.count;
        });
        taken
    }

    /// Takes all frames in a range out of their claim, as if they had just left the buddy.
    ///
    /// Returns `false` if one of them has been retired; the claim then still holds the others.
    pub(crate) fn leave_claim(&self, run: Run) -> bool {
        let leaves =
            |&frame: &u32| self.frames.exchange(frame, FrameState::Claimed, FrameState::Free).is_ok();
        let left = run.frames().take_while(leaves).count() as u64;
        if left == run.count {
            return true;
        }
        run.frames().take(left as usize).for_each(|frame| self.frames.set(frame, FrameState::Claimed));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::machine::FrameRange;
    use crate::testing::small;
    use crate::units::PageCount;
    use crate::zone::cells::CLAIMS_MAX;

    #[test]
    fn claims_overlap_neither_claims_nor_fences() {
        let allocator = small(&Config::default(), |_| {});
        let zone = &allocator.state.zones[1];
        let first = zone.offset(zone.span.start);
        let run = |at: u32, count| Run { first: first + at, count };
        let claim = zone.begin_claim(run(64, 64)).unwrap();
        for overlapping in [run(64, 64), run(0, 65), run(127, 1), run(0, 4096)] {
            assert_eq!(zone.begin_claim(overlapping), None);
        }
        zone.end_claim(claim);
        let range = FrameRange { start: zone.pfn(first), count: PageCount::new(64) };
        let fence = allocator.fence(range).unwrap();
        assert_eq!(zone.begin_claim(run(63, 2)), None);
        drop(fence);
        for at in 0..CLAIMS_MAX as u32 {
            assert!(zone.begin_claim(run(64 * at, 64)).is_some());
        }
        assert_eq!(zone.begin_claim(run(1024, 64)), None, "all slots are in use");
    }
}
