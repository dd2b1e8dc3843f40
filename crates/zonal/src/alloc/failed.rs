//! A zone's record of failed node reclaim: the time, the zone limit, and whether any frames were freed.
//!
//! Node reclaim that left a zone below its watermark is not tried again within a second. The record applies to requests
//! with the same zone limit or a higher one, because a higher limit includes the same zones. Requests with a lower
//! limit need frames of other zones, so the record does not apply to them. If some frames were freed, the last scan of
//! a request before it fails may reclaim again. This rule extends mechanism M3 of the README and is our own. Related
//! file: `alloc/scan.rs` records and checks failures.

use core::sync::atomic::Ordering::Relaxed;

use crate::platform::{Atomic, Platform};
use crate::units::{Moment, SECOND_NS, ZoneKind};
use crate::zone::Zone;

/// Bit that is set if some frames were freed, but too few. The bits below it hold the zone limit.
const FREED: u64 = 1 << 2;
const LIMIT_MASK: u64 = FREED - 1;
const TIME_SHIFT: u32 = 3;

/// Whether a scan respects all recorded failures (`Heeded`), or only those that freed no frames (`Ignored`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Past {
    Heeded,
    Ignored,
}

/// One failure, packed into a word; 0 means that there is no failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FailedReclaim(pub(super) u64);

impl FailedReclaim {
    /// Creates the record of a failure for a request with this zone limit, in which some frames were freed or none.
    pub(super) const fn new(now: Moment, limit: ZoneKind, freed: bool) -> Self {
        // Time 0 is stored as 1, because a word of 0 means that there is no failure.
        let time = if now.ns() == 0 { 1 } else { now.ns() };
        Self(time << TIME_SHIFT | limit as u64 | if freed { FREED } else { 0 })
    }

    /// Whether the failure is at most a second old and applies to requests with this zone limit.
    pub(super) fn binds(self, now: Moment, limit: ZoneKind, past: Past) -> bool {
        self.0 != 0
            && self.0 & LIMIT_MASK <= limit as u64
            && (past == Past::Heeded || self.0 & FREED == 0)
            && self.is_fresh(now)
    }

    /// Whether the failure applies to every request to which `newer` would apply now.
    pub(super) fn covers(self, newer: Self, now: Moment) -> bool {
        self.0 != 0
            && self.0 & LIMIT_MASK <= newer.0 & LIMIT_MASK
            && self.0 & FREED <= newer.0 & FREED
            && self.is_fresh(now)
    }

    fn is_fresh(self, now: Moment) -> bool {
        // If the clock was set back, the age is unknown, and the failure no longer applies.
        let age = now.ns().max(1).checked_sub(self.0 >> TIME_SHIFT);
        age.is_some_and(|age| age <= SECOND_NS)
    }
}

/// Returns the last failure of node reclaim in `zone` for an order class.
pub(super) fn failed_reclaim<P: Platform>(zone: &Zone<'_, P>, class: usize) -> FailedReclaim {
    FailedReclaim(zone.cells.reclaim_failed_at[class].load(Relaxed)) // relaxed: a hint
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: [ZoneKind; 4] = [ZoneKind::Dma, ZoneKind::Dma32, ZoneKind::Normal, ZoneKind::Movable];

    #[test]
    fn it_applies_to_the_same_and_higher_limits_for_a_second() {
        for begin in [0, 1, 5 * SECOND_NS, u64::MAX >> TIME_SHIFT] {
            for (at, limit) in LIMITS.into_iter().enumerate() {
                let failure = FailedReclaim::new(Moment::from_ns(begin), limit, false);
                for (other, asked) in LIMITS.into_iter().enumerate() {
                    let binds = |ns| failure.binds(Moment::from_ns(ns), asked, Past::Ignored);
                    assert_eq!(binds(begin), other >= at, "{asked} after {limit}");
                    assert_eq!(binds(begin.max(1).saturating_add(SECOND_NS)), other >= at);
                    assert!(!binds(begin.max(1).saturating_add(SECOND_NS + 1)));
                    assert!(begin < 2 || !binds(begin - 1), "the clock was set back");
                }
            }
        }
    }

    #[test]
    fn it_covers_failures_that_apply_to_fewer_requests() {
        let now = Moment::from_ns(7);
        let all = || LIMITS.into_iter().flat_map(|limit| [(limit, false), (limit, true)]);
        for (limit, freed) in all() {
            let old = FailedReclaim::new(now, limit, freed);
            for (other, more) in all() {
                let newer = FailedReclaim::new(now, other, more);
                assert_eq!(old.covers(newer, now), limit <= other && (!freed || more));
                assert!(!old.covers(newer, Moment::from_ns(8 + SECOND_NS)));
            }
            assert!(!FailedReclaim(0).covers(old, now));
        }
    }

    #[test]
    fn a_failure_that_freed_some_frames_applies_only_while_the_past_is_heeded() {
        let now = Moment::from_ns(7);
        let nothing = FailedReclaim::new(now, ZoneKind::Normal, false);
        let some = FailedReclaim::new(now, ZoneKind::Normal, true);
        for (failure, past, binds) in [
            (some, Past::Heeded, true),
            (some, Past::Ignored, false),
            (nothing, Past::Heeded, true),
            (nothing, Past::Ignored, true),
        ] {
            assert_eq!(failure.binds(now, ZoneKind::Normal, past), binds);
        }
        assert!(!FailedReclaim(0).binds(Moment::from_ns(0), ZoneKind::Movable, Past::Heeded));
    }
}
