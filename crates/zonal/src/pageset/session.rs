//! Sessions: a session locks a pageset, and at its end sets the limits of pops and pushes without the lock.
//!
//! A CPU pops and pushes single frames through the head, without the lock, until an operation exceeds a limit and bails
//! out. The limits follow from the ends of the stack, `pageset.high`, the state of the tuning rule (M2 in the README), and
//! the thresholds of counter differences (M4). The tuning rule does not see single steps. It accounts for their sum at the
//! next session, so the limits allow only steps whose sum is sufficient: within the depths that the depth rule has
//! recorded, or within the cycle of the stepwise rule. Beyond that, steps in one direction (a *climb* or a *dive*) do not
//! bail out, but the first step in the other direction does. Steps of larger blocks (`pageset/block_steps.rs`) get a
//! part of the depth rule's leeway. Related files: `platform/cpu_local.rs` compares with the limits, and
//! `pageset/guard.rs` stores them.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::depth_cells::{Leeway, Run};
use crate::pageset::state::MachineState;
use crate::pageset::{PagesetGuard, StackId};
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_word::Limits;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::PagesetTuning;
use crate::zone::counters::CpuGuard;
use crate::zone::{CpuInfo, Zone};

/// Largest leeway of blocks, so that it cannot overflow.
const BLOCK_LEEWAY_MAX: u32 = 1 << 24;
/// Smallest leeway of single frames that is worth having: they then need the lock once in so many steps.
const SINGLE_LEEWAY_MIN: u32 = 64;

/// One pageset of a zone, locked until dropped.
pub(crate) struct PagesetSession<'a, 'm, P: Platform> {
    pub(super) state: &'a MachineState<'m, P>,
    pub(crate) zone: &'a Zone<'m, P>,
    /// CPU to which the pageset belongs.
    pub(crate) cpu: CpuInfo,
    guard: PagesetGuard<'a, P>,
    /// Frames that a drain left for further holds of the lock.
    pub(super) undrained: Cell<u64>,
}

impl<'a, P: Platform> core::ops::Deref for PagesetSession<'a, '_, P> {
    type Target = PagesetGuard<'a, P>;

    #[inline]
    fn deref(&self) -> &PagesetGuard<'a, P> {
        &self.guard
    }
}

impl<P: Platform> CpuGuard for PagesetSession<'_, '_, P> {}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset of the caller's CPU, `cpu`; returns `None` if it is locked already or the CPU does not exist.
    #[inline]
    pub(crate) fn own_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        let lock = || self.platform.cpu_local().lock(cpu.id, &self.pagesets_of(zone).of(cpu).head);
        (cpu.exists() && lock()).then(|| PagesetSession::of_locked(self, zone, cpu))
    }

    /// Locks a pageset like [`Self::own_pageset`], for a request that may have called reclaimers since it resolved
    /// `cpu`.
    ///
    /// A reclaimer may sleep, and the caller may continue on another CPU. Returns `None` in that case.
    pub(crate) fn own_pageset_still<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        if cpu.id != self.platform.current_cpu() {
            return None;
        }
        self.own_pageset(zone, cpu)
    }

    /// Locks the pageset of any CPU; returns `None` if it is locked already.
    pub(crate) fn try_pageset<'a>(
        &'a self,
        zone: &'a Zone<'m, P>,
        cpu: CpuInfo,
    ) -> Option<PagesetSession<'a, 'm, P>> {
        if cpu.id == self.platform.current_cpu() {
            return self.own_pageset(zone, cpu);
        }
        let locked = self.platform.cpu_local().lock_remote(cpu.id, &self.pagesets_of(zone).of(cpu).head);
        locked.then(|| PagesetSession::of_locked(self, zone, cpu))
    }

    /// Waits for the pageset of a CPU and locks it.
    ///
    /// Must not be called within an allocation or a free, because the wait could be for the caller's own thread.
    pub(crate) fn pageset<'a>(&'a self, zone: &'a Zone<'m, P>, cpu: CpuInfo) -> PagesetSession<'a, 'm, P> {
        let mut round = 0;
        loop {
            if let Some(guard) = self.try_pageset(zone, cpu) {
                return guard;
            }
            self.platform.relax(round);
            round = round.saturating_add(1);
        }
    }
}

impl<'a, 'm, P: Platform> PagesetSession<'a, 'm, P> {
    /// Creates the session of a pageset that was just locked.
    #[inline]
    pub(super) fn of_locked(state: &'a MachineState<'m, P>, zone: &'a Zone<'m, P>, cpu: CpuInfo) -> Self {
        let pagesets = state.pagesets_of(zone);
        let guard = PagesetGuard::new(pagesets.of(cpu), pagesets.stacks(cpu));
        let session = PagesetSession { state, zone, cpu, guard, undrained: Cell::new(0) };
        session.account(session.moved() + session.settle_blocks());
        session
    }

    /// Makes the tuning rule account for `frames` frames that were popped, or pushed if the number is negative.
    ///
    /// The steps must have been a run in one direction, or within the limits that [`Self::update_limits`] has set.
    #[inline]
    pub(crate) fn account(&self, frames: i64) {
        if frames != 0 {
            match self.state.shared.tuning() {
                PagesetTuning::Depth | PagesetTuning::DepthPublished => self.depth().moved(frames, self),
                PagesetTuning::Stepwise => self.stepwise().moved(frames, || self.zone_limits().batch, self),
                PagesetTuning::Fixed => {}
            }
        }
    }

    /// Whether the pageset's CPU is on the zone's node.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.zone.is_own(self.cpu)
    }

    /// Returns the zone's limits for pagesets on CPUs with the locality of this CPU.
    pub(super) fn zone_limits(&self) -> PagesetLimits {
        self.zone.pageset_limits(self.zone.locality(self.cpu))
    }

    /// Whether pops and pushes without the lock may use this pageset, which is not the one in the CPU's slot.
    ///
    /// Requests and frees that name the zone do so (`alloc/route.rs`). A frame of the preferred zone makes
    /// the CPU use that zone's pageset again, so the push of its first frame takes the lock.
    fn may_bypass_slot(&self) -> bool {
        let node = &self.state.nodes[usize::from(self.cpu.node)];
        if node.preferred_zone() != Some(self.zone.id.index()) {
            return self.state.slots.at(self.cpu.index, self.zone.id).is_some();
        }
        let has_frames = self.len(StackId::PAGES) != 0;
        if has_frames {
            self.state.use_pageset(self.zone, self, self.cpu); // the preferred zone's pageset has priority
        }
        has_frames
    }

    /// Sets the limits of pops and pushes without the lock; must be called before the session ends.
    pub(crate) fn update_limits(&self) {
        let tuning = self.state.shared.tuning();
        if self.is_closed() {
            return self.always_bail_out();
        }
        if !self.state.uses(self.zone, self.cpu) && !self.may_bypass_slot() {
            return self.always_bail_out();
        }
        let capacity = self.page_slots().len() as i64;
        // A push that fills the pageset up to `high` must take the lock, because it drains the pageset.
        let full = self.slots_beyond(self.high_now()) + 1;
        let (mut most, mut least) = (capacity, full.max(0));
        let (mut pops_bail_out, mut pushes_bail_out) = (false, least > capacity);
        let mut of_blocks = Leeway::NONE;
        if tuning != PagesetTuning::Fixed {
            let stepwise = tuning == PagesetTuning::Stepwise;
            let all = if stepwise { self.stepwise().leeway(self) } else { self.depth().leeway(self) };
            let free_slots = i64::from(self.word().free_slots());
            match self.run() {
                Run::Climb => pushes_bail_out = true,
                Run::Dive => pops_bail_out = true,
                Run::None => {
                    if tuning == PagesetTuning::Depth && !self.is_watched() {
                        of_blocks = self.share_of_blocks(all, free_slots - least);
                    }
                    most = most.min(free_slots + i64::from(all.pops - of_blocks.pops));
                    least = (least + i64::from(of_blocks.pushes))
                        .max(free_slots - i64::from(all.pushes - of_blocks.pushes));
                }
            }
        }
        self.set_block_leeway(of_blocks);
        let limits = Limits {
            free_slots_max: most as u32,
            free_slots_min: least.min(capacity) as u32,
            kinds: self.state.nodes[self.zone.node].counters.threshold(),
            served: self.served_leeway() as u8,
        };
        pops_bail_out |= most > capacity;
        pushes_bail_out |= tuning == PagesetTuning::DepthPublished || self.is_watched();
        self.set_limits(
            if pops_bail_out { Limits::POP_NONE } else { limits.for_pops() },
            if pushes_bail_out { Limits::PUSH_NONE } else { limits.for_pushes() },
        );
    }

    /// Returns the part of the leeway that is for blocks with more than one frame, if such blocks were popped or pushed
    /// since the last tick. `below_high` is the number of frames that may be pushed before the pageset reaches `high`.
    fn share_of_blocks(&self, all: Leeway, below_high: i64) -> Leeway {
        let pages = self.block_pages.load(Relaxed); // relaxed: the guard orders it
        let share = |all| block_share(all, pages, self.moved_block());
        let below_high = below_high.clamp(0, i64::from(BLOCK_LEEWAY_MAX)) as u32;
        Leeway { pops: share(all.pops), pushes: share(all.pushes.min(below_high)) }
    }
}

/// Returns how many of the `all` leeway frames are for blocks, the last of which had `pages` frames, or 0 if there were
/// no blocks.
///
/// It is half of the leeway, or one block if that is more. If this leaves too little for single frames, the leeway is for
/// what needed the lock now: for blocks if that was a block (`is_block`), or else for single frames.
fn block_share(all: u32, pages: u32, is_block: bool) -> u32 {
    let share = all.min(BLOCK_LEEWAY_MAX).min(pages.max(all / 2));
    if pages == 0 || (!is_block && all - share < SINGLE_LEEWAY_MIN) { 0 } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leeway_is_shared_or_for_what_needed_the_lock() {
        assert_eq!((block_share(1000, 0, true), block_share(1000, 0, false)), (0, 0), "there are no blocks");
        for is_block in [false, true] {
            assert_eq!(block_share(1000, 4, is_block), 500);
            assert_eq!(block_share(1000, 512, is_block), 512);
        }
        assert_eq!((block_share(512, 512, true), block_share(512, 512, false)), (512, 0));
        assert_eq!((block_share(2, 2, true), block_share(2, 2, false)), (2, 0));
        assert_eq!(block_share(u32::MAX, 512, true), BLOCK_LEEWAY_MAX);
    }
}
