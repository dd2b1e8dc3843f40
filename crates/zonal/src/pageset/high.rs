//! The effective value of `pageset.high`: the zone's limits, and the conditions that lower the value temporarily.
//!
//! Related files: `rules/pageset_tuning.rs` has the rules, and `pageset/drain.rs` and `pageset/refill.rs` apply the
//! value.

use crate::pageset::session::PagesetSession;
use crate::platform::Platform;
use crate::rules::pageset_tuning::{CpuLocality, HighLimits, PagesetFigures, TuningRule, ZoneLevel, words};
use crate::units::PageCount;
use crate::zone::{Shortness, Zone};

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
    #[inline]
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
}

/// Returns whether the zone has more free frames than `watermarks.high`.
pub(super) fn zone_level<P: Platform>(zone: &Zone<'_, P>) -> ZoneLevel {
    if zone.free() > zone.watermarks().high { ZoneLevel::Above } else { ZoneLevel::Below }
}
