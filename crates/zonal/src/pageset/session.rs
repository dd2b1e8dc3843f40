//! Sessions: a session locks a pageset, and at its end sets the limits of pops and pushes without the lock.
//!
//! A CPU pops and pushes single frames through the head, without the lock, until an operation exceeds a limit and bails
//! out. The limits follow from the ends of the stack, the thresholds of counter differences (`zone/counters.rs`), and the
//! allowance of the tuning rule (M2), which accounts for all these steps at the next session. Steps of larger blocks
//! (`pageset/block_steps.rs`) have a part of the allowance. A push that fills the pageset up to `pageset.high` takes the
//! lock, too; the zone's limits of this value are lower under some conditions. Related files:
//! `rules/pageset_tuning/allowance.rs` computes the allowance, `platform/cpu_local.rs` compares with the
//! limits, and `pageset/guard.rs` stores them.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::state::MachineState;
use crate::pageset::{OWN_ZONE, PagesetGuard, StackId};
use crate::platform::cpu_local::CpuLocal;
use crate::platform::pageset_word::{POP_NONE, PUSH_NONE, limit_of_pops, limit_of_pushes};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_limits::PagesetLimits;
use crate::rules::pageset_tuning::{
    Allowance, CpuLocality, HighLimits, Leeway, PagesetFigures, TuningRule, ZoneLevel, words,
};
use crate::units::{Order, PageCount};
use crate::zone::counters::{CpuGuard, SERVED_MOST};
use crate::zone::{CpuInfo, Shortness, Zone};

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

    fn deref(&self) -> &PagesetGuard<'a, P> {
        &self.guard
    }
}

impl<P: Platform> CpuGuard for PagesetSession<'_, '_, P> {}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Locks the pageset of the caller's CPU, `cpu`; returns `None` if it is locked already or the CPU does not exist.
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
        if cpu.id == self.platform.current_cpu() { self.own_pageset(zone, cpu) } else { None }
    }

    /// Locks the pageset of any CPU; returns `None` if it is locked already.
    pub(super) fn try_pageset<'a>(
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
    pub(super) fn of_locked(state: &'a MachineState<'m, P>, zone: &'a Zone<'m, P>, cpu: CpuInfo) -> Self {
        let pagesets = state.pagesets_of(zone);
        let guard = PagesetGuard::new(pagesets.of(cpu), pagesets.stacks(cpu));
        let session = PagesetSession { state, zone, cpu, guard, undrained: Cell::new(0) };
        // How many more frames were popped than pushed since the lock was last held, one by one without it, and as blocks.
        // Relaxed: the guard orders it.
        let singles = i64::from(session.word().free_slots()) - session.settled.load(Relaxed) as i64;
        let (now, before) = (session.block_leeway.load(Relaxed), session.block_leeway_settled.load(Relaxed));
        let mut blocks = 0;
        if now != before {
            session.block_leeway_settled.store(now, Relaxed);
            blocks = i64::from(Leeway::from_word(before).pops) - i64::from(Leeway::from_word(now).pops);
        }
        session.account(singles + blocks);
        session
    }

    /// Makes the tuning rule account for `frames` frames that were popped, or pushed if the number is negative.
    ///
    /// The steps must have been within the allowance that [`Self::update_limits`] has set.
    pub(crate) fn account(&self, frames: i64) {
        let batch = || self.zone_limits().batch;
        if frames != 0 {
            match self.state.shared.tuning().rule() {
                TuningRule::Depth => _ = self.depth_moved(frames),
                TuningRule::Stepwise => self.update_stepwise(|state| state.moved(frames, batch)),
                TuningRule::Fixed => {}
            }
        }
    }

    /// Makes the tuning rule account for a block that was popped under the lock, or pushed if `frames` is negative.
    #[inline(always)]
    pub(crate) fn account_step(&self, frames: i64, order: Order) {
        let batch = || self.zone_limits().batch;
        let is_run = match self.state.shared.tuning().rule() {
            TuningRule::Depth => {
                let is_deeper = self.depth_moved(frames);
                if frames < 0 {
                    self.end_period();
                }
                is_deeper
            }
            TuningRule::Stepwise => self.update_stepwise(|state| state.on_step(frames, order, batch)),
            TuningRule::Fixed => false,
        };
        self.run.set(if is_run { frames } else { 0 });
        self.moved_block.set(order != Order::PAGE);
        if order != Order::PAGE {
            self.note_block(order.pages().get() as u32);
        }
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
        let preferred = || self.state.nodes[usize::from(self.cpu.node)].preferred_zone();
        // A pageset serves for its own zone again when that is the preferred zone, or the CPU uses another pageset. Relaxed: the
        // guard orders it.
        if self.head.serves_for.load(Relaxed) != OWN_ZONE
            && (preferred() == Some(self.zone.id.index()) || !self.state.uses(self.zone, self.cpu))
        {
            self.set_serves_for(OWN_ZONE);
        }
        if self.is_closed() || !(self.state.uses(self.zone, self.cpu) || self.may_bypass_slot()) {
            return self.always_bail_out();
        }
        let (free_slots, capacity) = (i64::from(self.word().free_slots()), self.page_slots().len() as i64);
        // The push that fills the pageset up to `high` drains it. Relaxed: the guard orders it.
        let growth =
            self.high_now().get() as i64 - self.large.load(Relaxed) as i64 + free_slots - capacity - 1;
        let tuning = self.state.shared.tuning();
        let allowance = match tuning.rule() {
            _ if self.run.get() != 0 => Allowance::run(self.run.get()),
            TuningRule::Depth => Allowance::within(self.position().leeway(self.deepest())),
            TuningRule::Stepwise => Allowance::within(self.stepwise().leeway()),
            TuningRule::Fixed => Allowance::ALL,
        };
        let mut allowance = allowance.with_growth(growth);
        if tuning.is_past() || self.is_watched() {
            allowance.pushes = None;
        } else if tuning.rule() == TuningRule::Depth {
            // Relaxed: the guard orders it.
            allowance = allowance.shared_with_blocks(self.block_pages.load(Relaxed), self.moved_block.get());
        }
        self.set_block_leeway(allowance.blocks);
        let most = allowance.pops.map(|pops| capacity.min(free_slots + pops));
        let least = allowance.pushes.map(|pushes| (free_slots - pushes).max(0));
        let least = least.filter(|&least| least <= capacity);
        let kinds = self.state.nodes[self.zone.node].counters.threshold();
        self.set_limits(
            most.map_or(POP_NONE, |most| limit_of_pops(most as u32, kinds, SERVED_MOST)),
            least.map_or(PUSH_NONE, |least| limit_of_pushes(least as u32, kinds)),
        );
    }
}

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Returns the figures on which tuning is based.
    pub(super) fn figures(&self) -> PagesetFigures {
        let limits = self.high_limits();
        PagesetFigures { count: self.count(), high: self.high(), batch: self.zone_limits().batch, limits }
    }

    /// Returns the limits within which tuning may set `pageset.high` now.
    ///
    /// These are normally the zone's limits. The lower limit also serves as the upper limit while large blocks are
    /// scarce, except under a past form, or when tuning is off.
    pub(super) fn high_limits(&self) -> HighLimits {
        let limits = self.zone_limits();
        let limits = HighLimits::new(limits.high_min, limits.high_max);
        let tuning = self.state.shared.tuning();
        let may_rise = tuning.is_past() || !self.zone.is_short(Shortness::HugeBlocks);
        if tuning.rule() == TuningRule::Fixed || !may_rise { limits.held_at_min() } else { limits }
    }

    /// Sets `high` to its lower limit if it has not been set before.
    pub(super) fn set_first_high(&self) {
        if self.high() == PageCount::ZERO {
            self.set_high(self.high_limits().min());
        }
    }

    /// Returns the number of frames at which the pageset drains now.
    pub(crate) fn high_now(&self) -> PageCount {
        if self.zone.holds_pagesets_down() {
            self.high_held_down()
        } else {
            self.rounded_threshold(self.high())
        }
    }

    /// Returns the number of frames at which a pageset with this `high` drains.
    fn rounded_threshold(&self, high: PageCount) -> PageCount {
        let slots = PageCount::new(self.page_slots().len() as u64);
        if self.state.shared.tuning().rounds_to_words() { words::threshold(high, slots) } else { high }
    }

    /// Returns the lowered number for [`Self::high_now`].
    ///
    /// This is the lower limit of `high` while large blocks are scarce or, under the stepwise rule, while the zone is
    /// not above `watermarks.high`. It is at most 4 batches while the zone is being reclaimed.
    #[cold]
    fn high_held_down(&self) -> PageCount {
        let figures = self.figures();
        let below = self.zone.is_short(Shortness::BelowHigh);
        let level = if below { ZoneLevel::Below } else { ZoneLevel::Above };
        let high = figures.drain_threshold(level).min(figures.limits.max());
        let high = self.rounded_threshold(high);
        if self.zone.is_reclaimed() {
            high.min(self.zone.pageset_limits(CpuLocality::Local).small_high())
        } else {
            high
        }
    }

    /// Returns whether the zone has more free frames than `watermarks.high`.
    pub(super) fn zone_level(&self) -> ZoneLevel {
        if self.zone.free() > self.zone.watermarks().high { ZoneLevel::Above } else { ZoneLevel::Below }
    }
}

#[cfg(test)]
mod tests;
