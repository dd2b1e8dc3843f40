//! Counter thresholds (M4) as they were first posted.

use zonal::rules::stat_threshold::{ThresholdForm, ThresholdRule, stat_threshold};
use zonal::units::PageCount;

/// Thresholds that scale with the online CPUs and the *present* frames of a zone
/// ([`Machine::with_present`](zonal::Machine::with_present)), up to 120. Source: Lameter 2006, first posting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FirstPosting;

impl FirstPosting {
    /// The largest threshold.
    pub const MAX: u8 = 120;
    /// The rule that selects this form.
    pub const RULE: ThresholdRule = ThresholdRule::Form(&Self);
}

impl ThresholdForm for FirstPosting {
    fn name(&self) -> &'static str {
        "first-posting"
    }

    fn frames(&self, _managed: PageCount, present: PageCount) -> PageCount {
        present
    }

    fn threshold(&self, online_cpus: u32, frames: PageCount, page_bytes: u32) -> u8 {
        stat_threshold(online_cpus, frames, page_bytes).min(Self::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal::rules::stat_threshold::{CounterRules, PressureRule};
    use zonal::rules::watermarks::Watermarks;

    const FIRST: CounterRules = CounterRules {
        threshold: FirstPosting::RULE,
        fold: zonal::rules::stat_threshold::FoldRule::Overstep,
        totals: zonal::rules::stat_threshold::TotalsRule::PerNode,
        pressure: PressureRule::Lowered,
    };

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    fn marks(min: u64, low: u64, high: u64) -> Watermarks {
        Watermarks { min: pages(min), low: pages(low), high: pages(high) }
    }

    #[test]
    fn thresholds_scale_with_present_frames_up_to_120() {
        let scaled = CounterRules::default();
        let both = |cpus, frames| [FIRST, scaled].map(|rules| rules.threshold(cpus, pages(frames), 4096));
        // 2 * fls(CPUs) * (1 + fls(units of 128 MiB)): below, between and above the two limits.
        assert_eq!(both(16, 86_126), [30, 30]);
        assert_eq!(both(1023, 1 << 19), [120, 120]); // 2 * 10 * (1 + 5)
        assert_eq!(both(1024, 1 << 19), [120, 125]); // 2 * 11 * (1 + 5) = 132
        assert_eq!(both(31, 1 << 25), [120, 120]); // 2 * 5 * (1 + 11)
        assert_eq!(both(u32::MAX, u64::MAX), [120, 125]);
        assert_eq!(both(16, 0), [0, 0]);
        let frames =
            |managed, present| [FIRST, scaled].map(|rules| rules.frames(pages(managed), pages(present)));
        assert_eq!(frames(70, 80), [pages(80), pages(70)]);
        assert_eq!(frames(0, 80), [pages(0); 2]);
    }

    #[test]
    fn thresholds_are_not_lowered_under_pressure() {
        // Linux lowers them since 2.6.38.
        let scaled = CounterRules::default();
        for pressure in [PressureRule::Lowered, PressureRule::Unchanged] {
            let first = CounterRules { pressure, ..FIRST };
            assert_eq!(first.under_pressure(30, 16, &marks(396, 495, 594)), 30);
            assert_eq!(first.under_pressure(120, 64, &marks(0, 1, 2)), 120);
        }
        assert_eq!(scaled.under_pressure(30, 16, &marks(396, 495, 594)), 6);
    }
}
