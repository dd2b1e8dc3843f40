//! Limits of per-CPU pagesets: how many frames a refill or drain moves, and the bounds of a pageset's `high`.
//!
//! The limits are computed from a zone's size, its low watermark and the number of CPUs that share it, as in Linux 6.7 to
//! 6.18. The crate `zonal-model` has the rules of other kernels.
//!
//! Related files: `zone/mod.rs` stores the limits, and `rules/pageset_tuning.rs` adjusts `high` within them.

use crate::units::PageCount;

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

impl PagesetZone {
    /// Returns the zone's pageset limits on a CPU of its node, with this batch.
    ///
    /// If `high_fraction` is not 0, `high` is fixed at the zone's managed frames divided by it and by the number of CPUs.
    /// Linux: `vm.percpu_pagelist_high_fraction`.
    #[must_use]
    pub fn limits(&self, batch: PageCount, high_fraction: u32) -> PagesetLimits {
        let cpus = match self.node_cpus {
            0 => self.online_cpus.max(1),
            cpus => cpus,
        };
        let share =
            |frames: u64| PageCount::new((frames / u64::from(cpus)).max(SMALL_HIGH_BATCHES * batch.get()));
        let managed = self.managed.get();
        let [high_min, high_max] = match managed.checked_div(high_fraction.into()) {
            Some(part) => [share(part); 2],
            None => [share(self.low.get()), share(managed / 8)],
        };
        PagesetLimits { batch, high_min, high_max }
    }
}

/// Returns the largest `high_max` of a zone that spans `frames` when all `cpus` CPUs that share the zone are online.
///
/// With fewer CPUs online, each share would be larger, but the number of slots in the metadata bounds it.
pub(crate) fn largest_high_max(frames: PageCount, cpus: usize, page_bytes: u32) -> PageCount {
    let batch = batch(frames, page_bytes).get();
    PageCount::new((frames.get() / 8 / cpus.max(1) as u64).max(SMALL_HIGH_BATCHES * batch))
}

/// Returns how many frames one refill or drain moves in a zone with `managed` frames: a quarter of 1/1024 of them, at most
/// 256 KiB.
///
/// The result is one less than a power of two (or 1), so that consecutive batches do not map to the same cache sets.
#[must_use]
pub fn batch(managed: PageCount, page_bytes: u32) -> PageCount {
    let base = ((managed.get() / 1024).min((1 << 20) / u64::from(page_bytes)) / 4).max(1);
    let rounded = 1 << (base + base / 2).ilog2();
    PageCount::new((rounded - 1_u64).max(1))
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

    #[test]
    fn four_batches_at_least_and_on_foreign_cpus_at_most() {
        let zone = PagesetZone { managed: pages(95_133), low: pages(546), node_cpus: 64, online_cpus: 64 };
        let small = zone.limits(batch(zone.managed, 4096), 0);
        let limits = |high_min, high_max| PagesetLimits { batch: pages(31), high_min, high_max };
        assert_eq!(small, limits(pages(124), pages(185)));
        assert_eq!(small.on_foreign_cpu(), limits(pages(124), pages(124)));
        assert_eq!(small.small_high(), pages(124));
    }
}
