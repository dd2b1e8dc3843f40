//! Periodic and administrative maintenance of pagesets: tuning periods, folds of counters, drains of idle pagesets.
//!
//! Related files: `admin/tick.rs` calls the periodic maintenance, and restarts tuning for `admin/settings.rs`.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::served::fold_interleave_hits;
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{CLOSED, CachedOrders, Pageset, PagesetGuard, StackId, WATCHED};
use crate::platform::tracepoint::RetireCause;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{
    CpuLocality, DepthState, IdleTicks, PagesetTuning, StepwiseState, TuningRule,
};
use crate::settings::Setting;
use crate::units::{PageCount, PageKind, SECOND_NS};
use crate::zone::{CpuInfo, Shortness, Zone};

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Performs the periodic maintenance of a pageset. Accesses are relaxed, because the guard orders them.
    fn tick(&self) {
        if self.state.process != 0 {
            // Another process may have changed the limits; it changes the pagesets of its own CPUs only.
            self.set_high(self.high_limits().clamp(self.high()));
        }
        let tuning = self.state.shared.tuning();
        let was_used = self.seen.load(Relaxed) != seen(self);
        let before = IdleTicks::new(self.idle_ticks.load(Relaxed) as u8);
        let idle = if was_used { IdleTicks::default() } else { before.after_tick() };
        self.idle_ticks.store(u64::from(idle.get()), Relaxed);
        let locality = self.zone.locality(self.cpu);
        let keeps = tuning.is_past() && locality == CpuLocality::Local;
        let mut surplus =
            if keeps { PageCount::ZERO } else { idle.surplus(locality, self.count(), self.high_limits()) };
        match tuning.rule() {
            // Only a free ends a period. The tick makes each free check for that when the period is nearly over.
            TuningRule::Depth if self.is_watch_due(self.state.platform.now()) => self.set_flag(WATCHED, true),
            TuningRule::Stepwise => {
                let decay = self.figures().decay();
                self.set_high(decay.high);
                surplus = surplus.max(decay.surplus);
            }
            TuningRule::Depth | TuningRule::Fixed => {}
        }
        if surplus != PageCount::ZERO {
            self.drain(StackId::PAGES, surplus.min(self.count()));
        }
        if self.zone.is_short(Shortness::HugeBlocks) {
            for stack in CachedOrders::stacks_downwards().filter(|stack| stack.is_middle()) {
                // Blocks that may not move now are drained by a later tick.
                let blocks = self.len(stack).min(self.may_move() >> self.state.cached.order(stack).get());
                if blocks > 0 {
                    self.drain_stack(stack, blocks);
                }
            }
        }
        self.note_block(0);
        let interval = self.state.shared.number(Setting::StatInterval) * SECOND_NS;
        let (now, folded_at) = (self.state.platform.now().ns(), self.folded_at.load(Relaxed));
        // A fold is due after an interval, rounded to the nearest tick. It is due on every tick if the interval is at most a
        // second, even if the clock has stopped. It is also due after the clock was set back.
        if interval <= SECOND_NS
            || now.checked_sub(folded_at).is_none_or(|age| age.saturating_add(SECOND_NS / 2) >= interval)
        {
            self.fold();
        }
        self.note_seen();
    }

    /// Stores the hash of the state, at the end of a tick: the tick itself changes the state.
    fn note_seen(&self) {
        self.seen.store(seen(self), Relaxed); // relaxed: the guard orders it
    }

    /// Ends the period of the depth rule if it is over.
    pub(crate) fn end_period(&self) {
        let now = self.state.platform.now();
        if self.is_period_over(now) {
            self.set_high(self.close_period(now, self.high_limits()));
            self.set_flag(WATCHED, false);
        }
    }

    /// Moves the pageset's counter differences to the totals.
    fn fold(&self) {
        self.folded_at.store(self.state.platform.now().ns(), Relaxed); // relaxed: the guard orders it
        self.zone.counters().fold(&self.zone_diffs, self);
        fold_interleave_hits(self.zone, &self.head);
        let counters = &self.state.nodes[self.zone.node].counters;
        for kind in PageKind::ALL {
            counters.fold_difference(&[kind.item()], self.clear(kind as usize));
        }
        self.fold_all_served();
    }

    /// Restarts the tuning of the pageset with `high` at its lower limit.
    fn restart_tuning(&self) {
        self.set_depth_state(DepthState::default());
        self.set_flag(WATCHED, false);
        self.update_stepwise(|state| *state = StepwiseState::default());
        self.set_high(self.high_limits().min());
        self.update_limits();
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Maintains the pagesets and counters of a CPU, whose frees are finished first.
    pub(crate) fn tick_pagesets_of(&self, cpu: CpuInfo) {
        self.finish_frees(cpu);
        let (now, tuning) = (self.platform.now(), self.shared.tuning());
        let marks = self.lists.full(cpu.node.into());
        if self.is_served_elsewhere(cpu) && marks.age(now).is_none() {
            self.serve_from_preferred(cpu);
        }
        for zone in self.zones {
            self.tick_owned(zone, cpu);
            let pageset = self.pagesets_of(zone).of(cpu);
            // Relaxed reads: a stale value only delays the work to the next tick. A pageset without frames and
            // differences, whose `high` has decayed, needs no work.
            let is_clean = !pageset.has_differences()
                && pageset.high() <= zone.pageset_limits(zone.locality(cpu)).high_min
                && !(tuning == PagesetTuning::Depth && pageset.was_used() && pageset.is_watch_due(now));
            if (pageset.count() != PageCount::ZERO || !is_clean)
                && let Some(guard) = self.try_pageset(zone, cpu)
            {
                guard.tick();
                guard.update_limits();
                guard.end_with(PagesetSession::note_seen);
            }
        }
    }

    /// Clamps `high` of every used pageset to its limits and folds its differences. Callers use this function after a
    /// change of limits.
    pub(crate) fn reclamp_pagesets(&self) {
        for (zone, cpu) in self.used_pagesets() {
            let guard = self.pageset(zone, cpu);
            guard.set_high(guard.high_limits().clamp(guard.high()));
            guard.fold();
            guard.update_limits();
        }
    }

    /// Restarts the tuning of all used pagesets.
    pub(crate) fn reset_tuning(&self) {
        for (zone, cpu) in self.used_pagesets() {
            self.pageset(zone, cpu).restart_tuning();
        }
    }

    /// Folds the differences of every pageset that has some.
    pub(crate) fn fold_pagesets(&self) {
        for (zone, cpu) in self.used_pagesets() {
            if self.pagesets_of(zone).of(cpu).has_differences() {
                let guard = self.pageset(zone, cpu);
                guard.fold();
                guard.update_limits();
            }
        }
    }

    /// Opens the pagesets of a CPU with `high` at the lower limit.
    pub(crate) fn start_pagesets(&self, cpu: CpuInfo) {
        for zone in self.zones {
            self.open_pageset(zone, cpu);
            self.pageset(zone, cpu).restart_tuning();
        }
    }

    /// Opens the pageset of an online CPU, unless a fence keeps the zone's pagesets closed.
    ///
    /// The caller holds the lock for run-time changes.
    pub(crate) fn open_pageset(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        let guard = self.pageset(zone, cpu);
        if !zone.has_fence() {
            guard.set_flag(CLOSED, false);
            zone.close_owned(cpu, false);
        }
        guard.update_limits();
    }

    /// Closes the pageset of a CPU, and frees its frames to the zone.
    pub(crate) fn close_pageset(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        zone.close_owned(cpu, true);
        self.disown_all_of(zone, cpu);
        // A closed pageset accepts no frames, so it is empty in the end.
        loop {
            let session = self.pageset(zone, cpu);
            session.set_flag(CLOSED, true);
            session.always_bail_out();
            session.drain(StackId::PAGES, session.count());
            session.fold();
            if session.undrained.get() == 0 {
                return;
            }
        }
    }

    /// Returns the free frames of a CPU's blocks to the free areas.
    pub(super) fn disown_all_of(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        let merged = zone.disown_all_of(cpu);
        if merged.refused != 0 {
            self.nodes[zone.node].counters.add_total(PageKind::User.item(), merged.refused as i64);
            self.note_retired(zone.node, RetireCause::InvalidFree, None, PageCount::new(merged.refused));
        }
        if merged.free != 0 {
            self.clear_full_bits_early(zone);
        }
    }

    /// Returns the free frames of all CPUs' blocks to the free areas.
    pub(crate) fn disown_all(&self, zone: &Zone<'m, P>) {
        let cpus = self.cpus.iter().filter(|cpu| P::OWNS_BLOCKS && cpu.exists());
        cpus.for_each(|&cpu| self.disown_all_of(zone, cpu));
    }

    /// Disowns the blocks of a CPU if they were not used for some ticks, if the zone needs their frames, or if CPUs may no longer
    /// own blocks.
    fn tick_owned(&self, zone: &Zone<'m, P>, cpu: CpuInfo) {
        if !P::OWNS_BLOCKS {
            return;
        }
        let is_idle = zone.tick_owned(cpu);
        let is_needed =
            || zone.is_short(Shortness::HugeBlocks) || zone.free_approximate() < zone.watermarks().low;
        if is_idle || !self.shared.owns_blocks() || is_needed() {
            self.disown_all_of(zone, cpu);
        }
    }
}

impl<P: Platform> Pageset<P> {
    /// Whether the pageset has counter differences that are not in the totals; the answer may be out of date.
    fn has_differences(&self) -> bool {
        // Relaxed: an observation.
        self.zone_diffs.load(Relaxed) != 0
            || self.head.interleave_hits.load(Relaxed) != 0
            || !self.word().is_clean()
    }
}

/// Returns a hash of a pageset's count and counters, which changes with nearly every use of the pageset.
fn seen<P: Platform>(guard: &PagesetGuard<'_, P>) -> u64 {
    guard.zone_diffs.load(Relaxed) ^ guard.word().0.rotate_left(17) ^ guard.count().get() << 40
}
