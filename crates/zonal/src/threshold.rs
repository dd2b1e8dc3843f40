//! Thresholds of zoned counters (M4): how far a CPU's difference may drift from the total.
//!
//! Pure arithmetic. A threshold *t* lets each CPU keep up to `t` uncounted, so a total is off by
//! at most `CPUs * t`; where that exceeds the room between two watermarks, a *drift mark* says
//! below which reading a check must count exactly. Neighbours: `counters.rs` keeps the
//! differences, `watermarks.rs` the marks. Source: Lameter 2006, Linux df9ecaba3f15.

use crate::units::PageCount;
use crate::watermarks::Watermarks;

/// Largest threshold: differences are held in an `i8`, with room to overstep.
pub const MAX_STAT_THRESHOLD: u8 = 125;

/// The threshold of a zone with `managed` frames on a machine with `online_cpus`; 0 for an empty zone.
///
/// Grows with the logarithms of both: `2 * fls(CPUs) * (1 + fls(managed / frames in 128 MiB))`.
#[must_use]
pub fn stat_threshold(online_cpus: u32, managed: PageCount, page_bytes: u32) -> u8 {
    if managed == PageCount::ZERO {
        return 0;
    }
    let unit = ((128 << 20) / u64::from(page_bytes)).max(1);
    let threshold = 2 * last_set(u64::from(online_cpus)) * (1 + last_set(managed.get() / unit));
    u8::try_from(threshold).unwrap_or(MAX_STAT_THRESHOLD).min(MAX_STAT_THRESHOLD)
}

/// Position of the highest set bit, counted from 1; 0 for 0. Linux: `fls`.
const fn last_set(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The threshold under pressure, while background reclaim of the node is awake: so small that all
/// drift together stays between `min` and `low`.
#[must_use]
pub fn pressure_threshold(online_cpus: u32, watermarks: &Watermarks) -> u8 {
    let room = watermarks.low.saturating_minus(watermarks.min).get();
    let threshold = (room / u64::from(online_cpus.max(1))).max(1);
    u8::try_from(threshold).unwrap_or(MAX_STAT_THRESHOLD).min(MAX_STAT_THRESHOLD)
}

/// The reading of free frames below which a check counts exactly, where drift could hide that
/// `min` was crossed; `None` where it cannot.
#[must_use]
pub fn drift_mark(online_cpus: u32, threshold: u8, watermarks: &Watermarks) -> Option<PageCount> {
    let drift = PageCount::new(u64::from(online_cpus) * u64::from(threshold));
    let room = watermarks.low.saturating_minus(watermarks.min);
    (drift > room).then(|| watermarks.high.plus(drift))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    fn marks(min: u64, low: u64, high: u64) -> Watermarks {
        Watermarks { min: pages(min), low: pages(low), high: pages(high) }
    }

    #[test]
    fn thresholds_of_real_kernels() {
        let found = |cpus, managed| stat_threshold(cpus, pages(managed), 4096);
        assert_eq!(found(16, 3840), 10);
        assert_eq!(found(16, 86_126), 30);
        assert_eq!(found(8, 65_536), 24);
        assert_eq!(found(8, 146_543), 32);
        assert_eq!(found(32, 257_756), 48);
    }

    #[test]
    fn thresholds_at_the_limits() {
        assert_eq!(stat_threshold(64, pages(0), 4096), 0);
        assert_eq!(stat_threshold(1, pages(1), 4096), 2);
        assert_eq!(stat_threshold(u32::MAX, pages(u64::MAX), 4096), 125);
        // The same memory in larger pages has the same threshold.
        assert_eq!(stat_threshold(8, pages(146_543 / 16), 65_536), 32);
        assert_eq!(stat_threshold(8, pages(4), 1 << 30), 32);
    }

    #[test]
    fn pressure() {
        assert_eq!(pressure_threshold(16, &marks(396, 495, 594)), 6);
        assert_eq!(pressure_threshold(16, &marks(17, 21, 25)), 1);
        assert_eq!(pressure_threshold(1, &marks(0, 100_000, 200_000)), 125);
        assert_eq!(pressure_threshold(0, &marks(0, 5, 10)), 5);
    }

    #[test]
    fn drift_only_where_it_can_hide_a_mark() {
        // 16 CPUs * 30 = 480 frames against 99 between the marks.
        assert_eq!(drift_mark(16, 30, &marks(396, 495, 594)), Some(pages(594 + 480)));
        assert_eq!(drift_mark(2, 30, &marks(396, 495, 594)), None);
        assert_eq!(drift_mark(3, 33, &marks(396, 495, 594)), None);
    }
}
