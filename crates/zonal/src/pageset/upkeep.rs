//! Maintenance of pagesets: periods, folds, idle drains, restarts of tuning.
//!
//! Neighbours: `admin/tick.rs` and changes of settings call it.

use core::sync::atomic::Ordering::Relaxed;

use crate::pageset::session::PagesetSession;
use crate::pageset::{Pageset, PagesetGuard, StackId};
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::{Activity, IdleTicks, PagesetTuning};
use crate::units::{PageCount, PageKind, SECOND_NS};

impl<'m, P: Platform> PagesetSession<'_, 'm, P> {
    /// Performs the periodic maintenance of a pageset.
    pub(crate) fn tick(&self) {
        let mut surplus = self.idle_surplus();
        match self.state.shared.tuning() {
            // A period ends on a free, not here.
            PagesetTuning::Depth if self.is_watch_due(self.state.platform.now()) => self.watch(),
            PagesetTuning::Stepwise => {
                let decay = self.figures().decay();
                self.set_high(decay.high);
                surplus = surplus.max(decay.surplus);
            }
            PagesetTuning::Depth | PagesetTuning::DepthPublished | PagesetTuning::Fixed => {}
        }
        if surplus != PageCount::ZERO {
            self.drain(StackId::PAGES, surplus.min(self.count()));
        }
        if self.is_fold_due() {
            self.fold();
        }
        // Relaxed: the guard orders it. Folded counters are part of what the next tick compares.
        self.seen.store(seen(self), Relaxed);
    }

    /// Ends the period of the depth rule if it is over.
    pub(crate) fn end_period(&self) {
        let limits = || self.high_limits();
        if let Some(high) = self.depth().end_period(self.state.platform.now(), limits) {
            self.set_high(high);
            self.unwatch();
        }
    }

    /// Returns how many frames to drain because nothing happened for some ticks.
    fn idle_surplus(&self) -> PageCount {
        let activity = if self.seen.load(Relaxed) == seen(self) { Activity::Idle } else { Activity::Used };
        let idle = IdleTicks::new(self.idle_ticks.load(Relaxed) as u8).after_tick(activity);
        self.idle_ticks.store(u64::from(idle.get()), Relaxed);
        let locality = self.zone.locality(self.cpu);
        idle.surplus(locality, self.count(), self.high_limits())
    }

    /// Whether the last fold of a pageset was an interval ago, to the nearest tick.
    fn is_fold_due(&self) -> bool {
        let interval = u64::from(self.state.shared.stat_interval().seconds()) * SECOND_NS;
        // Relaxed: the guard orders it.
        let (now, folded_at) = (self.state.platform.now().ns(), self.folded_at.load(Relaxed));
        // On every tick if the interval is a second, even if the clock stands still; and after the clock was set back.
        interval <= SECOND_NS
            || now.checked_sub(folded_at).is_none_or(|age| age.saturating_add(SECOND_NS / 2) >= interval)
    }

    /// Moves the pageset's counter differences to the totals.
    pub(crate) fn fold(&self) {
        self.folded_at.store(self.state.platform.now().ns(), Relaxed); // relaxed: the guard orders it
        self.zone.counters().fold(&self.zone_diffs, self);
        for kind in PageKind::ALL {
            self.state.nodes[self.zone.node].counters.fold_difference(&[kind.item()], self.clear_kind(kind));
        }
        self.fold_all_served();
    }

    /// Drains everything that the pageset holds and folds its counters.
    pub(crate) fn empty(&self) {
        self.drain(StackId::PAGES, self.count());
        self.fold();
    }

    /// Restarts the tuning of the pageset, from its lower limit.
    pub(crate) fn restart_tuning(&self) {
        self.depth().reset(self);
        self.unwatch();
        self.stepwise().reset(self);
        self.set_high(self.high_limits().min());
        self.update_limits();
    }
}

impl<P: Platform> Pageset<P> {
    /// Whether something was counted here that is not in the totals; possibly out of date.
    pub(crate) fn has_differences(&self) -> bool {
        self.zone_diffs.load(Relaxed) != 0 || !self.word().is_clean() // relaxed: an observation
    }
}

/// Returns a value that changes with nearly every use of a pageset: a hash of its count and counters.
fn seen<P: Platform>(guard: &PagesetGuard<'_, P>) -> u64 {
    guard.zone_diffs.load(Relaxed) ^ guard.word().bits().rotate_left(17) ^ guard.count().get() << 40
}
