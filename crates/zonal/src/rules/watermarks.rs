//! Watermarks and lowmem reserves: how many frames of each zone stay free, and for which requests.
//!
//! Every zone has three watermarks. Background reclaim is woken when the free frames fall below *low*, and stops when
//! they reach *high*. Below *min*, only urgent requests are served. A *lowmem reserve* protects frames of a zone for
//! the requests that cannot use a higher zone. For other requests, the reserve grows with the memory of the higher
//! zones that they could use instead.
//!
//! Related files: `zone/mod.rs` stores the watermarks, and `alloc/slow.rs` chooses the watermark that a scan
//! checks.

use crate::units::{Order, PageCount, ZoneKind};

/// How `min` of a movable zone is computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum MovableMin {
    /// 1/1024 of the zone, within 32..=128 frames, and no share of the machine-wide minimum. Linux: 6.12.
    #[default]
    OwnMinimum,
    /// The zone's share of the machine-wide minimum, as in any other zone. Linux: 5.10 and 6.1.
    Ordinary,
}

/// The settings that an administrator controls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatermarkSettings {
    /// Machine-wide minimum: the sum of the minimum free frames over all zones. `None` computes it from the machine's
    /// size ([`default_min_free`]). Linux: `vm.min_free_kbytes`.
    pub min_free: Option<PageCount>,
    /// Minimum distance between watermarks, in 1/10000 of a zone. Linux: `vm.watermark_scale_factor`.
    pub scale_factor: u32,
    /// Divisor of the reserve for each zone kind, or 0 for no reserve. Linux: `vm.lowmem_reserve_ratio`.
    pub lowmem_reserve_ratio: [u32; ZoneKind::COUNT],
    /// The rule for movable zones.
    pub movable_min: MovableMin,
}

impl Default for WatermarkSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl WatermarkSettings {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        min_free: None,
        scale_factor: 10,
        lowmem_reserve_ratio: [256, 256, 32, 0],
        movable_min: MovableMin::OwnMinimum,
    };

    /// Returns the values on which the watermarks of all zones depend, computed from all zones of the machine.
    pub fn basis(
        &self,
        zones: impl Iterator<Item = (ZoneKind, PageCount)>,
        page_bytes: u32,
    ) -> WatermarkBasis {
        let (mut all, mut ordinary) = (PageCount::ZERO, PageCount::ZERO);
        for (kind, managed) in zones {
            all = all.plus(managed);
            if kind != ZoneKind::Movable {
                ordinary = ordinary.plus(managed);
            }
        }
        let sharing = if self.movable_min == MovableMin::Ordinary { all } else { ordinary };
        let min_free = self.min_free.unwrap_or_else(|| default_min_free(ordinary, page_bytes));
        WatermarkBasis { min_free, sharing, scale_factor: self.scale_factor, movable_min: self.movable_min }
    }

    /// Returns the lowmem reserve of `zone`: the number of frames that a request with zone limit `limit` must leave
    /// free.
    ///
    /// `managed` is the number of managed frames in the node's zones, by kind.
    #[must_use]
    pub fn reserve(
        &self,
        managed: &[PageCount; ZoneKind::COUNT],
        zone: ZoneKind,
        limit: ZoneKind,
    ) -> PageCount {
        let ratio = u64::from(self.lowmem_reserve_ratio[zone.index()]);
        if limit <= zone || ratio == 0 || managed[zone.index()] == PageCount::ZERO {
            return PageCount::ZERO;
        }
        let above: PageCount = managed[zone.index() + 1..=limit.index()].iter().copied().sum();
        PageCount::new(above.get() / ratio)
    }
}

/// Returns the default for [`WatermarkSettings::min_free`].
///
/// In KiB, it is the square root of 16 times the memory outside movable zones, within 128 KiB ..= 256 MiB.
#[must_use]
pub fn default_min_free(ordinary: PageCount, page_bytes: u32) -> PageCount {
    let page_bytes = u64::from(page_bytes);
    let kib = ordinary.get().saturating_mul(page_bytes) / 1024; // the bounds make a saturated product exact
    // The root below 2^19, bit by bit: 1 KiB less code than `isqrt`.
    let steps = (0..19).rev().map(|bit| 1 << bit);
    let root =
        steps.fold(0_u64, |root, step| if (root + step).pow(2) <= 16 * kib { root + step } else { root });
    PageCount::new(root.clamp(128, 262_144) * 1024 / page_bytes)
}

/// The values on which the watermarks of all zones depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatermarkBasis {
    min_free: PageCount,
    sharing: PageCount,
    scale_factor: u32,
    movable_min: MovableMin,
}

impl WatermarkBasis {
    /// Returns the machine-wide minimum: the sum of the minimum free frames over all zones.
    #[must_use]
    pub const fn min_free(&self) -> PageCount {
        self.min_free
    }

    /// Returns the watermarks of a `kind` zone with `managed` frames.
    #[must_use]
    pub fn watermarks(&self, kind: ZoneKind, managed: PageCount) -> Watermarks {
        let managed_wide = u128::from(managed.get());
        let share = match self.sharing.get() {
            0 => 0,
            sharing => u128::from(self.min_free.get()) * managed_wide / u128::from(sharing),
        };
        let own = kind == ZoneKind::Movable && self.movable_min == MovableMin::OwnMinimum;
        let min = if own { (managed_wide / 1024).clamp(32, 128) } else { share };
        let gap = (share / 4).max(managed_wide * u128::from(self.scale_factor) / 10_000);
        let watermark = |pages: u128| PageCount::new(u64::try_from(pages).unwrap_or(u64::MAX));
        Watermarks { min: watermark(min), low: watermark(min + gap), high: watermark(min + 2 * gap) }
    }
}

/// The watermarks of one zone. Invariant: `min <= low <= high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Number of free frames below which only urgent requests are served.
    pub min: PageCount,
    /// Number of free frames below which background reclaim is woken.
    pub low: PageCount,
    /// Number of free frames above which background reclaim stops.
    pub high: PageCount,
}

/// The watermark that a scan checks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Watermark {
    /// `min`, the last watermark that is checked before a request reclaims or fails.
    Min,
    /// `low`, the watermark that the first scan checks.
    Low,
}

/// How far below `min` a request may reduce the free frames of a zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Urgency {
    /// Requests may use free frames down to `min`.
    #[default]
    Normal,
    /// Requests may use free frames down to half of `min`. Linux: `__GFP_HIGH`.
    High,
    /// Requests may use free frames down to 3/8 of `min`, regardless of the cpuset. Linux: `GFP_ATOMIC`.
    Atomic,
    /// Requests may use free frames down to the last frame, because the caller frees memory. Linux: `PF_MEMALLOC`.
    Reserve,
}

impl Watermarks {
    /// Whether a zone with `free` frames can serve a block of `order` and stay above `watermark`.
    ///
    /// `reserve` is how many frames the request must leave free because of its zone limit. Only a request
    /// with [`Urgency::Reserve`] may use these frames. The function does not check whether any free block is large
    /// enough.
    #[must_use]
    pub fn allow(
        &self,
        free: PageCount,
        order: Order,
        watermark: Watermark,
        urgency: Urgency,
        reserve: PageCount,
    ) -> bool {
        if urgency == Urgency::Reserve {
            return true;
        }
        let left = free.saturating_minus(order.pages().saturating_minus(PageCount::new(1)));
        left > self.discounted(watermark, urgency).plus(reserve)
    }

    /// Returns `watermark` in frames, lowered according to the request's urgency. Urgency lowers only `min`.
    #[must_use]
    pub fn discounted(&self, watermark: Watermark, urgency: Urgency) -> PageCount {
        if watermark == Watermark::Low {
            return self.low;
        }
        let min = self.min.get();
        let half = min - min / 2;
        PageCount::new(match urgency {
            Urgency::Normal => min,
            Urgency::High => half,
            Urgency::Atomic => half - half / 4,
            Urgency::Reserve => 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn pages(count: u64) -> PageCount {
        PageCount::new(count)
    }

    fn watermarks(min: u64, low: u64, high: u64) -> Watermarks {
        Watermarks { min: pages(min), low: pages(low), high: pages(high) }
    }

    /// A machine with movable memory on two of its nodes, as Linux 6.1 and 7.2 reported it.
    const MOVABLE_61: [(ZoneKind, u64); 7] = [
        (ZoneKind::Dma, 3840),
        (ZoneKind::Dma32, 242_462),
        (ZoneKind::Dma32, 241_463),
        (ZoneKind::Normal, 1024),
        (ZoneKind::Movable, 256_856),
        (ZoneKind::Normal, 1024),
        (ZoneKind::Movable, 251_537),
    ];
    const MOVABLE_72: [(ZoneKind, u64); 7] = [
        (ZoneKind::Dma, 3840),
        (ZoneKind::Dma32, 243_108),
        (ZoneKind::Dma32, 241_460),
        (ZoneKind::Normal, 1024),
        (ZoneKind::Movable, 256_854),
        (ZoneKind::Normal, 1024),
        (ZoneKind::Movable, 250_768),
    ];

    fn basis(zones: &[(ZoneKind, u64)], min_free_kib: u64, movable_min: MovableMin) -> WatermarkBasis {
        let min_free = Some(pages(min_free_kib / 4));
        let settings = WatermarkSettings { min_free, movable_min, ..Default::default() };
        settings.basis(zones.iter().map(|&(kind, managed)| (kind, pages(managed))), 4096)
    }

    #[test]
    fn watermarks_of_linux_6_1() {
        let basis = basis(&MOVABLE_61, 97_180, MovableMin::Ordinary);
        assert_eq!(basis.watermarks(ZoneKind::Dma, pages(3840)), watermarks(93, 116, 139));
        assert_eq!(basis.watermarks(ZoneKind::Dma32, pages(242_462)), watermarks(5901, 7376, 8851));
        assert_eq!(basis.watermarks(ZoneKind::Movable, pages(256_856)), watermarks(6251, 7813, 9375));
    }

    #[test]
    fn watermarks_of_linux_7_2() {
        let basis = basis(&MOVABLE_72, 97_140, MovableMin::OwnMinimum);
        assert_eq!(basis.watermarks(ZoneKind::Dma32, pages(243_108)), watermarks(12037, 15046, 18055));
        assert_eq!(basis.watermarks(ZoneKind::Normal, pages(1024)), watermarks(50, 62, 74));
        assert_eq!(basis.watermarks(ZoneKind::Movable, pages(256_854)), watermarks(128, 3307, 6486));
        assert_eq!(basis.watermarks(ZoneKind::Movable, pages(1000)).min, pages(32));
    }

    #[test]
    fn reserves_of_linux_7_2() {
        let settings = WatermarkSettings::default();
        let node = [pages(0), pages(0), pages(1024), pages(256_854)];
        assert_eq!(settings.reserve(&node, ZoneKind::Normal, ZoneKind::Movable), pages(8026));
        assert_eq!(settings.reserve(&node, ZoneKind::Normal, ZoneKind::Normal), pages(0));
        assert_eq!(settings.reserve(&node, ZoneKind::Dma, ZoneKind::Movable), pages(0));
        // A node with three zones, for which Linux 6.1 reported reserves of 899 and 1387 in DMA and 487 in DMA32.
        let node = [pages(3840), pages(230_313), pages(124_818), pages(0)];
        assert_eq!(settings.reserve(&node, ZoneKind::Dma, ZoneKind::Dma32), pages(899));
        assert_eq!(settings.reserve(&node, ZoneKind::Dma, ZoneKind::Movable), pages(1387));
        assert_eq!(settings.reserve(&node, ZoneKind::Dma32, ZoneKind::Normal), pages(487));
        let open = WatermarkSettings { lowmem_reserve_ratio: [0, 256, 32, 0], ..settings };
        assert_eq!(open.reserve(&node, ZoneKind::Dma, ZoneKind::Normal), pages(0));
    }

    #[test]
    fn default_minimum() {
        // isqrt(16 * 4 GiB in KiB) = 8192 KiB.
        assert_eq!(default_min_free(pages(1 << 20), 4096), pages(2048));
        assert_eq!(default_min_free(pages(1), 4096), pages(32));
        assert_eq!(default_min_free(pages(1 << 40), 4096), pages(65_536));
        assert_eq!(default_min_free(pages(u64::MAX), 4096), pages(65_536));
        assert_eq!(default_min_free(pages(1 << 16), 65_536), pages(128));
        // Movable memory is not counted.
        let zones = [(ZoneKind::Normal, pages(1 << 20)), (ZoneKind::Movable, pages(1 << 30))];
        let basis = WatermarkSettings::default().basis(zones.into_iter(), 4096);
        assert_eq!(basis.min_free(), pages(2048));
    }

    #[test]
    fn zones_of_petabytes_and_empty_zones() {
        let huge = pages(1 << 52);
        let settings =
            WatermarkSettings { min_free: Some(pages(1 << 50)), scale_factor: 3000, ..Default::default() };
        let basis = settings.basis([(ZoneKind::Normal, huge)].into_iter(), 4096);
        let gap = (1u64 << 52) / 10 * 3;
        let found = basis.watermarks(ZoneKind::Normal, huge);
        assert_eq!(found.min, pages(1 << 50));
        assert!(found.low.get().abs_diff((1 << 50) + gap) < 10, "{found:?}");
        let none = settings.basis(core::iter::empty(), 4096);
        assert_eq!(none.watermarks(ZoneKind::Normal, pages(0)), watermarks(0, 0, 0));
    }

    #[test]
    fn check_at_the_edge() {
        let zone = watermarks(100, 125, 150);
        let page = Order::PAGE;
        let ask = |free, order, watermark, urgency, reserve| {
            zone.allow(pages(free), order, watermark, urgency, pages(reserve))
        };
        assert!(
            !ask(125, page, Watermark::Low, Urgency::Normal, 0)
                && ask(126, page, Watermark::Low, Urgency::Normal, 0)
        );
        assert!(!ask(135, page, Watermark::Low, Urgency::Normal, 10));
        assert!(ask(136, page, Watermark::Low, Urgency::Atomic, 10));
        assert!(!ask(135, page, Watermark::Low, Urgency::Atomic, 10));
        let huge = Order::new(9).unwrap();
        assert!(
            !ask(611, huge, Watermark::Min, Urgency::Normal, 0)
                && ask(612, huge, Watermark::Min, Urgency::Normal, 0)
        );
        assert!(!ask(400, huge, Watermark::Min, Urgency::High, 0));
        assert!(
            !ask(50, page, Watermark::Min, Urgency::High, 0)
                && ask(51, page, Watermark::Min, Urgency::High, 0)
        );
        assert!(
            !ask(38, page, Watermark::Min, Urgency::Atomic, 0)
                && ask(39, page, Watermark::Min, Urgency::Atomic, 0)
        );
        assert!(!ask(48, page, Watermark::Min, Urgency::Atomic, 10));
        assert!(ask(0, page, Watermark::Min, Urgency::Reserve, 10));
    }
}
