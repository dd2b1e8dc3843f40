//! The rules of zone and node counters (M4): how far a per-CPU difference may grow, and how it is folded.
//!
//! Each CPU counts changes in a *difference*, and *folds* it, which means adds it to the total, when it exceeds a
//! threshold *t*. A total is therefore off by at most *t* times the number of CPUs. If this *drift* exceeds the
//! distance between `min` and `low`, the zone has a *drift mark*: if the free-frame counter is below the drift mark,
//! a check must count exactly. Rules other than the defaults are earlier versions of the published algorithm, for
//! comparison.
//!
//! Related files: `zone/counters.rs` stores the differences, and `rules/watermarks.rs` computes the watermarks.
//! Source: Lameter 2006, Linux df9ecaba3f15.

use core::fmt::Debug;
use core::panic::RefUnwindSafe;

use crate::rules::watermarks::Watermarks;
use crate::units::PageCount;

/// Largest threshold, with which differences fit in an `i8`, including the overstep ([`FoldRule::Overstep`]).
pub const MAX_STAT_THRESHOLD: u8 = 125;

/// The rules of zone and node counters.
///
/// Blocks that pagesets serve are counted as NUMA events with the largest threshold, whatever these rules say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CounterRules {
    /// The fold threshold of a zone or node.
    pub threshold: ThresholdRule,
    /// What remains of a difference that exceeded the threshold.
    pub fold: FoldRule,
    /// The totals into which differences are folded.
    pub totals: TotalsRule,
    /// How thresholds change while background reclaim runs.
    pub pressure: PressureRule,
}

/// The limit that a CPU's difference may reach before it is folded into the totals.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ThresholdRule {
    /// A value that scales with the online CPUs and the managed frames of the zone, up to [`MAX_STAT_THRESHOLD`]:
    /// see [`stat_threshold`].
    #[default]
    Scaled,
    /// Another form of scaled thresholds, which do not change while background reclaim runs: Linux before 2.6.38. The crate
    /// `zonal-history` has the first posting's.
    Form(&'static dyn ThresholdForm),
    /// A fixed value, 1..=125, in every zone and node with memory. It does not change while background reclaim runs.
    /// Linux used 32 before thresholds were scaled.
    Fixed(u8),
}

/// A form of scaled thresholds.
pub trait ThresholdForm: Debug + Sync + RefUnwindSafe {
    /// Returns the name of the form.
    fn name(&self) -> &'static str;
    /// Returns the number of frames on which a zone's threshold depends; the zone manages some frames. Zero counts as one.
    fn frames(&self, managed: PageCount, present: PageCount) -> PageCount;
    /// Returns the threshold of a zone with `frames` frames on a machine with `online_cpus`.
    ///
    /// A value outside 1..=125 ([`MAX_STAT_THRESHOLD`]) counts as the nearest value within. The form is not called for an
    /// empty zone.
    fn threshold(&self, online_cpus: u32, frames: PageCount, page_bytes: u32) -> u8;
}

impl PartialEq for dyn ThresholdForm {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn ThresholdForm {}

/// What remains of a difference after it exceeded the threshold *t* and was folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FoldRule {
    /// `t / 2` with the opposite sign, so that a counter that changes in one direction is folded only once
    /// every one and a half thresholds.
    #[default]
    Overstep,
    /// Zero.
    ToZero,
}

/// The totals that are maintained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TotalsRule {
    /// Totals of each zone and each node. Machine-wide totals are computed when they are read.
    #[default]
    PerNode,
    /// Also machine-wide totals of the node counters, on one cache line that every fold of every CPU writes. Linux:
    /// `vm_node_stat`, formerly `vm_stat`.
    AndMachine,
}

/// How the thresholds of [`ThresholdRule::Scaled`] change while background reclaim of the node runs, in zones that have a
/// drift mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PressureRule {
    /// Thresholds are lowered to [`pressure_threshold`].
    #[default]
    Lowered,
    /// Thresholds do not change.
    Unchanged,
}

impl CounterRules {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        threshold: ThresholdRule::Scaled,
        fold: FoldRule::Overstep,
        totals: TotalsRule::PerNode,
        pressure: PressureRule::Lowered,
    };

    /// Returns the threshold of a zone on a machine with `online_cpus`, or 0 if `frames` is zero.
    ///
    /// `frames` is the result of [`Self::frames`] for the zone.
    #[must_use]
    pub fn threshold(&self, online_cpus: u32, frames: PageCount, page_bytes: u32) -> u8 {
        match self.threshold {
            ThresholdRule::Scaled => stat_threshold(online_cpus, frames, page_bytes),
            _ if frames == PageCount::ZERO => 0,
            ThresholdRule::Form(form) => {
                form.threshold(online_cpus, frames, page_bytes).clamp(1, MAX_STAT_THRESHOLD)
            }
            ThresholdRule::Fixed(threshold) => threshold,
        }
    }

    /// Returns the number of frames on which a zone's threshold depends.
    ///
    /// This is the number of managed frames, unless a [`ThresholdRule::Form`] says otherwise. It is zero if the zone manages
    /// no frames.
    #[must_use]
    pub fn frames(&self, managed: PageCount, present: PageCount) -> PageCount {
        match self.threshold {
            ThresholdRule::Form(form) if managed != PageCount::ZERO => {
                form.frames(managed, present).max(PageCount::new(1))
            }
            _ => managed,
        }
    }

    /// Returns the threshold of a zone that has a drift mark, while background reclaim runs.
    #[must_use]
    pub fn under_pressure(&self, threshold: u8, online_cpus: u32, watermarks: &Watermarks) -> u8 {
        match (self.threshold, self.pressure) {
            (ThresholdRule::Scaled, PressureRule::Lowered) => {
                pressure_threshold(online_cpus, watermarks).min(threshold)
            }
            _ => threshold,
        }
    }
}

/// Returns the threshold of a zone with `managed` frames on a machine with `online_cpus`, or 0 for an empty zone.
///
/// The threshold grows with the logarithms of the CPU count and the zone's size: `2 * fls(CPUs) * (1 +
/// fls(managed / frames in 128 MiB))`.
#[must_use]
pub fn stat_threshold(online_cpus: u32, managed: PageCount, page_bytes: u32) -> u8 {
    if managed == PageCount::ZERO {
        return 0;
    }
    let unit = ((128 << 20) / u64::from(page_bytes)).max(1);
    let threshold = 2 * last_set(u64::from(online_cpus)) * (1 + last_set(managed.get() / unit));
    u8::try_from(threshold).unwrap_or(MAX_STAT_THRESHOLD).min(MAX_STAT_THRESHOLD)
}

/// Returns the position of the highest set bit, counted from 1, or 0 if no bit is set. Linux: `fls`.
const fn last_set(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// Returns the threshold to use while background reclaim of the node runs.
///
/// It is the largest threshold at which the drift of all CPUs together is at most the distance between `min` and
/// `low`, within 1..=125. If the distance is less than one frame per CPU, the threshold is 1 and the drift may exceed
/// the distance.
#[must_use]
pub fn pressure_threshold(online_cpus: u32, watermarks: &Watermarks) -> u8 {
    let distance = watermarks.low.saturating_minus(watermarks.min).get();
    let threshold = (distance / u64::from(online_cpus.max(1))).max(1);
    u8::try_from(threshold).unwrap_or(MAX_STAT_THRESHOLD).min(MAX_STAT_THRESHOLD)
}

/// Returns the value of the free-frame counter below which a check must count exactly, or `None` if drift cannot hide
/// that `min` was crossed.
#[must_use]
pub fn drift_mark(online_cpus: u32, threshold: u8, watermarks: &Watermarks) -> Option<PageCount> {
    let drift = PageCount::new(u64::from(online_cpus) * u64::from(threshold));
    let distance = watermarks.low.saturating_minus(watermarks.min);
    (drift > distance).then(|| watermarks.high.plus(drift))
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
        // Memory of one size has the same threshold with any page size.
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
    fn fixed_thresholds_follow_nothing_but_memory() {
        let fixed = CounterRules { threshold: ThresholdRule::Fixed(32), ..CounterRules::default() };
        for cpus in [1, 2, 16, 4096] {
            assert_eq!(fixed.threshold(cpus, pages(0), 4096), 0);
            assert_eq!([1, 1 << 30].map(|managed| fixed.threshold(cpus, pages(managed), 4096)), [32, 32]);
            assert_eq!(fixed.under_pressure(32, cpus, &marks(17, 21, 25)), 32);
        }
    }

    /// A form that is off by some.
    #[derive(Debug)]
    struct Wild(u8);

    impl ThresholdForm for Wild {
        fn name(&self) -> &'static str {
            "wild"
        }

        fn frames(&self, managed: PageCount, _present: PageCount) -> PageCount {
            managed
        }

        fn threshold(&self, _online_cpus: u32, _frames: PageCount, _page_bytes: u32) -> u8 {
            self.0
        }
    }

    /// A form that ignores all frames.
    #[derive(Debug)]
    struct NoFrames;

    impl ThresholdForm for NoFrames {
        fn name(&self) -> &'static str {
            "no-frames"
        }

        fn frames(&self, _managed: PageCount, _present: PageCount) -> PageCount {
            PageCount::ZERO
        }

        fn threshold(&self, _online_cpus: u32, frames: PageCount, _page_bytes: u32) -> u8 {
            u8::try_from(frames.get()).unwrap_or(u8::MAX)
        }
    }

    #[test]
    fn forms_stay_within_the_limits() {
        let found = |form: &'static dyn ThresholdForm, managed| {
            let rules = CounterRules { threshold: ThresholdRule::Form(form), ..CounterRules::default() };
            rules.threshold(4, rules.frames(pages(managed), pages(managed)), 4096)
        };
        assert_eq!([found(&Wild(0), 1), found(&Wild(0), 0)], [1, 0]);
        assert_eq!([1, 0].map(|managed| found(&NoFrames, managed)), [1, 0]);
        assert_eq!([found(&Wild(125), 1), found(&Wild(126), 1), found(&Wild(255), 1)], [125; 3]);
        assert_eq!(found(&Wild(200), 0), 0);
    }

    #[test]
    fn scaled_thresholds_may_be_lowered_under_pressure() {
        let scaled = CounterRules::default();
        assert_eq!(scaled.threshold(16, pages(86_126), 4096), 30);
        assert_eq!(scaled.under_pressure(30, 16, &marks(396, 495, 594)), 6);
        assert_eq!(scaled.under_pressure(4, 16, &marks(396, 495, 594)), 4);
        let unchanged = CounterRules { pressure: PressureRule::Unchanged, ..scaled };
        assert_eq!(unchanged.under_pressure(30, 16, &marks(396, 495, 594)), 30);
    }

    #[test]
    fn drift_is_reported_only_if_it_can_hide_a_watermark() {
        // The drift of 16 CPUs * 30 = 480 frames exceeds the 99 frames between the watermarks.
        assert_eq!(drift_mark(16, 30, &marks(396, 495, 594)), Some(pages(594 + 480)));
        assert_eq!(drift_mark(2, 30, &marks(396, 495, 594)), None);
        assert_eq!(drift_mark(3, 33, &marks(396, 495, 594)), None);
    }
}
