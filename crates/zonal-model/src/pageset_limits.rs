//! Sizes of pagesets in all kernels: how many frames a refill or drain moves, and the bounds of a pageset's `high`.

use zonal::rules::pageset_limits::{PagesetLimits, PagesetZone, batch};
use zonal::units::PageCount;

/// How the batch is computed from a zone's size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum BatchRule {
    /// A quarter of 1/1024 of the zone's frames, at most 256 KiB. Linux: 4.19 to 6.18.
    #[default]
    Managed1024,
    /// The same, at most 128 KiB. Linux: before 4.19.
    Managed1024Half,
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

impl PagesetRules {
    /// Returns `zone`'s pageset limits on a CPU of its node.
    #[must_use]
    pub fn limits(&self, zone: &PagesetZone, page_bytes: u32) -> PagesetLimits {
        let batch = self.batch.batch(zone.managed, page_bytes);
        match self.high {
            HighRule::Tuned => zone.limits(batch, self.high_fraction),
            HighRule::LowWatermark => {
                let limits = zone.limits(batch, self.high_fraction);
                PagesetLimits { high_max: limits.high_min, ..limits }
            }
            HighRule::SixBatches => match zone.managed.get().checked_div(self.high_fraction.into()) {
                None => fixed(batch.get(), 6 * batch.get()),
                // Each CPU had the whole fraction, and the batch was derived from it.
                Some(high) => fixed((high / 4).clamp(1, u64::from(page_bytes.ilog2()) * 8), high),
            },
        }
    }
}

fn fixed(batch: u64, high: u64) -> PagesetLimits {
    let high = PageCount::new(high);
    PagesetLimits { batch: PageCount::new(batch), high_min: high, high_max: high }
}

impl BatchRule {
    /// Returns how many frames one refill or drain moves in a zone with `managed` frames.
    #[must_use]
    pub fn batch(self, managed: PageCount, page_bytes: u32) -> PageCount {
        match self {
            Self::Managed1024 => batch(managed, page_bytes),
            // 512 MiB have the largest batch.
            Self::Managed1024Half => {
                batch(managed.min(PageCount::new((1 << 29) / u64::from(page_bytes))), page_bytes)
            }
            Self::Managed4096 => {
                let largest = (1 << 18) / u64::from(page_bytes);
                let base = (managed.get() / 4096).min(largest).max(1);
                let rounded = 1 << (base + base / 2).ilog2();
                PageCount::new((rounded - 1_u64).max(1))
            }
        }
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
    fn batches_of_all_rules() {
        let oldest = |managed| BatchRule::Managed1024Half.batch(pages(managed), 4096).get();
        let old = |managed| BatchRule::Managed1024.batch(pages(managed), 4096).get();
        let new = |managed| BatchRule::Managed4096.batch(pages(managed), 4096).get();
        assert_eq!([oldest(0), oldest(3840), oldest(95_133), oldest(86_126)], [1, 1, 31, 15]);
        assert_eq!([oldest(1 << 17), oldest((1 << 18) - 1), oldest(1 << 40)], [31; 3]);
        assert_eq!([old(0), old(3840), old(95_133), old(86_126), old(1 << 40)], [1, 1, 31, 15, 63]);
        assert_eq!([new(0), new(3840), new(65_536), new(85_412), new(1 << 40)], [1, 1, 15, 15, 63]);
        // With larger pages, a batch has fewer of them.
        assert_eq!(BatchRule::Managed1024.batch(pages(1 << 30), 65_536).get(), 3);
        assert_eq!(BatchRule::Managed1024Half.batch(pages(1 << 30), 65_536).get(), 1);
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
