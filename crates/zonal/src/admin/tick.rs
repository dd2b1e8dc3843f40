//! What happens once a second, and whenever limits change: decay, idle drains, counter folds. Folds can come
//! more rarely, and on demand.
//!
//! Neighbours: `pageset_tuning.rs` has the rules, `refill.rs` drains.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::pageset::{Pageset, PagesetGuard, StackId};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{Activity, Home, IdleTicks, PagesetTuning};
use crate::units::PageKind;
use crate::units::{CpuId, PageCount, SECOND_NS};
use crate::zone::{Seat, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Looks after the pagesets and counters of every CPU. Call it once a second, whatever
    /// [`Config::stat_interval`](crate::Config::stat_interval) is; a machine whose CPUs each have a timer
    /// calls [`Allocator::tick_cpu`] there instead.
    pub fn tick(&self) {
        self.state.seats.iter().filter(|seat| seat.exists()).for_each(|&seat| self.tick_seat(seat));
    }

    /// Looks after the pagesets and counters of one CPU.
    pub fn tick_cpu(&self, cpu: CpuId) {
        if let Some(seat) = self.state.seat(cpu) {
            self.tick_seat(seat);
        }
    }

    /// Adds what every CPU has counted for itself to the totals of every zone and node, now. Then the
    /// `..._approximate` readings are exact, as long as nobody allocates or frees. Clean pagesets are
    /// not touched; others are waited for, so not to be called by a reclaimer or within a request.
    /// Linux: `vm.stat_refresh`.
    pub fn stat_refresh(&self) {
        for (zone, seat) in self.state.used_pagesets() {
            if !self.state.pagesets_of(zone).of(seat).has_differences() {
                continue;
            }
            let guard = self.state.pageset(zone, seat);
            self.fold(zone, &guard, seat);
            self.state.set_limits(zone, &guard, seat);
        }
    }

    fn tick_seat(&self, seat: Seat) {
        let (now, tuning) = (self.state.platform.now(), self.state.shared.tuning());
        let marks = self.state.lists.full(usize::from(seat.node));
        if self.state.is_away(seat) && marks.is_stale(now) {
            self.state.go_home(seat);
        }
        for zone in self.state.zones {
            let pageset = self.state.pagesets_of(zone).of(seat);
            // Relaxed looks: nothing to do for a pageset that never held or counted anything, and
            // whose `high` has decayed.
            let is_clean = !pageset.has_differences()
                && pageset.high() <= zone.pageset_limits(zone.is_own(seat)).high_min
                && !(tuning == PagesetTuning::Depth && pageset.was_used() && pageset.is_watch_due(now));
            if (pageset.count() != PageCount::ZERO || !is_clean)
                && let Some(guard) = self.state.try_pageset(zone, seat)
            {
                self.tick_pageset(zone, &guard, seat);
                self.state.set_limits(zone, &guard, seat);
            }
        }
    }

    fn tick_pageset(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        let own = zone.is_own(seat);
        let mut surplus = self.idle_surplus(zone, guard, own);
        match self.state.shared.tuning() {
            // A period ends on a free, not here.
            PagesetTuning::Depth if guard.is_watch_due(self.state.platform.now()) => guard.watch(true),
            PagesetTuning::Stepwise => {
                let decay = self.state.figures(zone, guard, own).decay();
                guard.set_high(decay.high);
                surplus = surplus.max(decay.surplus);
            }
            PagesetTuning::Depth | PagesetTuning::DepthPublished | PagesetTuning::Fixed => {}
        }
        if surplus != PageCount::ZERO {
            self.state.drain(zone, guard, StackId::PAGES, surplus.min(guard.count()));
        }
        if self.is_fold_due(guard) {
            self.fold(zone, guard, seat);
        }
        // Relaxed: the guard orders it. Folded counters are part of what the next tick compares.
        guard.seen.store(seen(guard), Relaxed);
    }

    /// Ends the period of the depth rule if it is over.
    pub(crate) fn end_period(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        let limits = || self.state.high_limits(zone, zone.is_own(seat));
        if let Some(high) = guard.depth().end_period(self.state.platform.now(), limits) {
            guard.set_high(high);
            guard.watch(false);
        }
    }

    /// Frames to give back because nothing happened for some ticks.
    fn idle_surplus(&self, zone: &Zone<'_, P>, guard: &PagesetGuard<'_, P>, own: bool) -> PageCount {
        let activity = if guard.seen.load(Relaxed) == seen(guard) { Activity::Idle } else { Activity::Used };
        let idle = IdleTicks::new(guard.idle_ticks.load(Relaxed) as u8).after_tick(activity);
        guard.idle_ticks.store(u64::from(idle.get()), Relaxed);
        let home = if own { Home::Local } else { Home::Remote };
        idle.surplus(home, guard.count(), self.state.high_limits(zone, own))
    }

    /// Whether the last fold of a pageset was an interval ago, to the nearest tick.
    fn is_fold_due(&self, guard: &PagesetGuard<'_, P>) -> bool {
        let interval = u64::from(self.state.shared.stat_interval().seconds()) * SECOND_NS;
        // Relaxed: the guard orders it.
        let (now, folded_at) = (self.state.platform.now().ns(), guard.folded_at.load(Relaxed));
        // Each tick, also where the clock stands still; and soon after the clock was set back.
        interval <= SECOND_NS
            || now.checked_sub(folded_at).is_none_or(|age| age.saturating_add(SECOND_NS / 2) >= interval)
    }

    /// Moves a CPU's counter differences to the totals.
    fn fold(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        guard.folded_at.store(self.state.platform.now().ns(), Relaxed); // relaxed: the guard orders it
        zone.counters().fold(&guard.zone_diffs, guard);
        for kind in PageKind::ALL {
            self.state.nodes[zone.node].counters.fold_difference(&[kind.item()], guard.clear_kind(kind));
        }
        self.state.fold_all_served(zone, guard, seat);
    }

    /// Gives everything a pageset holds back, counters included.
    pub(crate) fn empty(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        self.state.drain(zone, guard, StackId::PAGES, guard.count());
        self.fold(zone, guard, seat);
    }

    /// After limits changed: `high` of every pageset in use is clamped to them, and differences beyond
    /// lowered thresholds are folded.
    pub(crate) fn reclamp_pagesets(&self) {
        for (zone, seat) in self.state.used_pagesets() {
            let guard = self.state.pageset(zone, seat);
            guard.set_high(self.state.high_limits(zone, zone.is_own(seat)).clamp(guard.high()));
            self.fold(zone, &guard, seat);
            self.state.set_limits(zone, &guard, seat);
        }
    }

    /// Starts tuning afresh everywhere.
    pub(crate) fn reset_tuning(&self) {
        for (zone, seat) in self.state.used_pagesets() {
            self.restart_tuning(zone, &self.state.pageset(zone, seat), seat);
        }
    }

    /// Starts the tuning of one pageset afresh, from its lower limit.
    pub(crate) fn restart_tuning(&self, zone: &Zone<'m, P>, guard: &PagesetGuard<'_, P>, seat: Seat) {
        guard.depth().reset(guard);
        guard.watch(false);
        guard.stepwise().reset(guard);
        guard.set_high(self.state.high_limits(zone, zone.is_own(seat)).min());
        self.state.set_limits(zone, guard, seat);
    }
}

impl<P: Platform> Pageset<P> {
    /// Whether something was counted here and not in the totals, as of some moment.
    fn has_differences(&self) -> bool {
        self.zone_diffs.load(Relaxed) != 0 || !self.word().is_clean() // relaxed: a look
    }
}

/// What changes with every use of a pageset, nearly always: its count and its counters.
fn seen<P: Platform>(guard: &PagesetGuard<'_, P>) -> u64 {
    guard.zone_diffs.load(Relaxed) ^ guard.word().bits().rotate_left(17) ^ guard.count().get() << 40
}
