//! Limits of per-CPU pagesets: how many frames a refill or drain moves, and the bounds of a pageset's `high`.
//!
//! The limits are computed from a zone's size, its low watermark and the number of CPUs that share it. The variants
//! are the rules of different Linux kernels, so that this code also predicts the values of those kernels.
//!
//! Related files: `zone/mod.rs` stores the limits, and `rules/pageset_tuning.rs` adjusts `high` within them.

use crate::units::PageCount;

/// How the batch is computed from a zone's size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum BatchRule {
    /// A quarter of 1/1024 of the zone's frames. Linux: up to 6.18.
    #[default]
    Managed1024,
    /// 1/4096 of the zone's frames, at least 1. Linux: after 6.18.
    Managed4096,
}

/// How `high` is bounded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum HighRule {
    /// Between the zone's low watermark and 1/8 of the zone's frames, each divided by the number of CPUs. Linux:
    /// since 6.7.
    #[default]
    Tuned,
    /// Fixed at the zone's low watermark divided by the number of CPUs. Linux: 5.14 to 6.6.
    LowWatermark,
    /// Fixed at six batches. Linux: before 5.14.
    SixBatches,
}

/// The rules by which pagesets are sized.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PagesetRules {
    /// How many frames a refill or drain moves.
    pub batch: BatchRule,
    /// How `high` is bounded.
    pub high: HighRule,
    /// Divisor for a fixed `high`, or 0 for none. If it is not 0, `high` is the zone's managed frames divided by this
    /// value and by the number of CPUs (with [`HighRule::SixBatches`], by this value only). Linux:
    /// `vm.percpu_pagelist_high_fraction`, `vm.percpu_pagelist_fraction` before 5.14.
    pub high_fraction: u32,
}

/// The values that the limits of a zone's pagesets depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagesetZone {
    /// Managed frames of the zone.
    pub managed: PageCount,
    /// Low watermark of the zone.
    pub low: PageCount,
    /// Online CPUs of the zone's node.
    pub node_cpus: u32,
    /// Online CPUs of the machine, which share the zones of a node without CPUs.
    pub online_cpus: u32,
}

/// Limits of one zone's pageset on one CPU. Invariant: `1 <= batch`.
///
/// If the administrator sets the watermarks very far apart, `high_min` is larger than `high_max`, as in Linux. Code
/// that adjusts `high` must therefore use [`PagesetLimits::ordered`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PagesetLimits {
    /// Number of frames that one refill or drain moves.
    pub batch: PageCount,
    /// Smallest value of `high`.
    pub high_min: PageCount,
    /// Largest value of `high`, equal to `high_min` if `high` is fixed.
    pub high_max: PageCount,
}

/// Largest `high` in batches on CPUs that are not on the zone's node, and on all CPUs while the zone is being
/// reclaimed. It is also the smallest value of a limit that results from a division among CPUs.
const SMALL_HIGH_BATCHES: u64 = 4;

impl PagesetRules {
    /// Returns `zone`'s pageset limits on a CPU of its node.
    #[must_use]
    pub fn limits(&self, zone: &PagesetZone, page_bytes: u32) -> PagesetLimits {
        let batch = self.batch.batch(zone.managed, page_bytes).get();
        let fraction = u64::from(self.high_fraction);
        if self.high == HighRule::SixBatches {
            return if fraction == 0 {
                fixed(batch, 6 * batch)
            } else {
                fraction_of_old(zone, fraction, page_bytes)
            };
        }
        let cpus = match zone.node_cpus {
            0 => zone.online_cpus.max(1),
            cpus => cpus,
        };
        let share = |frames: u64| (frames / u64::from(cpus)).max(SMALL_HIGH_BATCHES * batch);
        if let Some(part) = zone.managed.get().checked_div(fraction) {
            return fixed(batch, share(part));
        }
        let high_min = share(zone.low.get());
        if self.high == HighRule::LowWatermark {
            return fixed(batch, high_min);
        }
        let high_max = share(zone.managed.get() / 8);
        PagesetLimits {
            batch: PageCount::new(batch),
            high_min: PageCount::new(high_min),
            high_max: PageCount::new(high_max),
        }
    }
}

/// Returns the largest `high_max` of a zone that spans `frames` when all `cpus` CPUs that share the zone are online.
///
/// With fewer CPUs online, each share would be larger, but the number of slots in the metadata bounds it.
pub(crate) fn published_high_max(frames: PageCount, cpus: usize, page_bytes: u32) -> PageCount {
    let batch = BatchRule::default().batch(frames, page_bytes).get();
    PageCount::new((frames.get() / 8 / cpus.max(1) as u64).max(SMALL_HIGH_BATCHES * batch))
}

fn fixed(batch: u64, high: u64) -> PagesetLimits {
    let high = PageCount::new(high);
    PagesetLimits { batch: PageCount::new(batch), high_min: high, high_max: high }
}

/// Returns the limits for a fraction in Linux before 5.14, which gave the whole fraction to each CPU and derived the
/// batch from it.
fn fraction_of_old(zone: &PagesetZone, fraction: u64, page_bytes: u32) -> PagesetLimits {
    let high = zone.managed.get() / fraction;
    let largest = u64::from(page_bytes.ilog2()) * 8;
    fixed((high / 4).clamp(1, largest), high)
}

impl BatchRule {
    /// Returns how many frames one refill or drain moves in a zone with `managed` frames.
    ///
    /// The result is one less than a power of two (or 1), so that consecutive batches do not map to the same cache
    /// sets.
    #[must_use]
    pub fn batch(self, managed: PageCount, page_bytes: u32) -> PageCount {
        let frames_in = |bytes: u64| bytes / u64::from(page_bytes);
        let base = match self {
            Self::Managed1024 => ((managed.get() / 1024).min(frames_in(1 << 20)) / 4).max(1),
            Self::Managed4096 => (managed.get() / 4096).min(frames_in(1 << 18)).max(1),
        };
        let rounded = 1 << (base + base / 2).ilog2();
        PageCount::new((rounded - 1_u64).max(1))
    }
}

impl PagesetLimits {
    /// Returns the limits with `high_max` raised to `high_min` if it is smaller. `high` then stays at `high_min`,
    /// which happens if the low watermark exceeds 1/8 of the zone.
    #[must_use]
    pub fn ordered(&self) -> Self {
        Self { high_max: self.high_max.max(self.high_min), ..*self }
    }

    /// Returns the limits on a CPU that is not on the zone's node.
    ///
    /// `high` is at most 4 batches there, so that the metadata does not grow with nodes times CPUs.
    #[must_use]
    pub fn on_foreign_cpu(&self) -> Self {
        let cap = self.small_high();
        Self { batch: self.batch, high_min: self.high_min.min(cap), high_max: self.high_max.min(cap) }
    }

    /// Returns the largest value of `high` while the zone is being reclaimed, which is 4 batches.
    #[must_use]
    pub const fn small_high(&self) -> PageCount {
        PageCount::new(SMALL_HIGH_BATCHES * self.batch.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    fn zone(managed: u64, low: u64, node_cpus: u32, online_cpus: u32) -> PagesetZone {
        PagesetZone { managed: pages(managed), low: pages(low), node_cpus, online_cpus }
    }

    fn limits(batch: u64, high_min: u64, high_max: u64) -> PagesetLimits {
        PagesetLimits { batch: pages(batch), high_min: pages(high_min), high_max: pages(high_max) }
    }

    const V5_10: PagesetRules =
        PagesetRules { batch: BatchRule::Managed1024, high: HighRule::SixBatches, high_fraction: 0 };
    const V6_1: PagesetRules =
        PagesetRules { batch: BatchRule::Managed1024, high: HighRule::LowWatermark, high_fraction: 0 };
    const V7_2: PagesetRules =
        PagesetRules { batch: BatchRule::Managed4096, high: HighRule::Tuned, high_fraction: 0 };

    #[test]
    fn zones_of_linux_7_2() {
        let found = |zone| V7_2.limits(&zone, 4096);
        assert_eq!(found(zone(3840, 237, 2, 8)), limits(1, 118, 240));
        assert_eq!(found(zone(85_412, 5288, 2, 8)), limits(15, 2644, 5338));
        assert_eq!(found(zone(100_694, 6235, 2, 8)), limits(31, 3117, 6293));
        assert_eq!(found(zone(1024, 62, 2, 8)), limits(1, 31, 64));
        // All eight CPUs share a node without CPUs.
        assert_eq!(found(zone(100_820, 6243, 0, 8)), limits(31, 780, 1575));
    }

    #[test]
    fn zones_of_linux_6_1() {
        let found = |zone| V6_1.limits(&zone, 4096);
        assert_eq!(found(zone(242_462, 7376, 2, 8)), limits(63, 3688, 3688));
        assert_eq!(found(zone(256_856, 7813, 2, 8)), limits(63, 3906, 3906));
        let eighth = PagesetRules { high_fraction: 8, ..V6_1 };
        assert_eq!(eighth.limits(&zone(230_313, 7365, 1, 8), 4096), limits(63, 28_789, 28_789));
        assert_eq!(eighth.limits(&zone(128_794, 4118, 3, 8), 4096), limits(31, 5366, 5366));
    }

    #[test]
    fn zones_of_linux_5_10() {
        assert_eq!(V5_10.limits(&zone(146_543, 8818, 2, 8), 4096), limits(31, 186, 186));
        let eighth = PagesetRules { high_fraction: 8, ..V5_10 };
        assert_eq!(eighth.limits(&zone(80_000, 8818, 2, 8), 4096), limits(96, 10_000, 10_000));
    }

    #[test]
    fn batches_of_both_rules() {
        let old = |managed| BatchRule::Managed1024.batch(pages(managed), 4096).get();
        let new = |managed| BatchRule::Managed4096.batch(pages(managed), 4096).get();
        assert_eq!([old(0), old(3840), old(95_133), old(86_126), old(1 << 40)], [1, 1, 31, 15, 63]);
        assert_eq!([new(0), new(3840), new(65_536), new(85_412), new(1 << 40)], [1, 1, 15, 15, 63]);
        // With larger pages, a batch has fewer of them.
        assert_eq!(BatchRule::Managed1024.batch(pages(1 << 30), 65_536).get(), 3);
        assert_eq!(BatchRule::Managed4096.batch(pages(1 << 30), 2 << 20).get(), 1);
    }

    #[test]
    fn four_batches_at_least_and_on_foreign_cpus_at_most() {
        let small = PagesetRules::default().limits(&zone(95_133, 546, 64, 64), 4096);
        assert_eq!(small, limits(31, 124, 185));
        assert_eq!(small.on_foreign_cpu(), limits(31, 124, 124));
        assert_eq!(small.small_high(), pages(124));
    }

    #[test]
    fn low_watermark_above_an_eighth() {
        // Linux 7.2 reported these values with a watermark scale factor of 1000.
        let crowded = V7_2.limits(&zone(243_108, 36_347, 2, 8), 4096);
        assert_eq!((crowded.high_min, crowded.high_max), (pages(18_173), pages(15_194)));
        assert_eq!(crowded.ordered(), limits(63, 18_173, 18_173));
    }
}
