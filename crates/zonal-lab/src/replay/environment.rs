//! What pagesets depend on besides their own state: the free frames of their zone, and the mobility of page blocks.
//!
//! A free does not say the mobility of its block. The kernel takes it from the page block, whose mobility requests,
//! drains and fallbacks show.
//!
//! Related files: `kernel.rs` feeds this.

use std::collections::HashMap;

use zonal::rules::pageset_tuning::ZoneLevel;
use zonal::units::{Order, PageCount, Pfn};
use zonal_machine::pagesets::{Mobility, Reclaim, ZonePressure};

use super::start::StartZone;

/// Free frames of a zone and what follows from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ZoneState {
    free: i64,
    low: i64,
    high: i64,
    /// Set when a request finds the zone at or below `watermarks.high`, cleared when a drain brings it above.
    level: ZoneLevel,
    /// Set when a request finds the zone at or below `watermarks.low`, cleared above `watermarks.high`.
    reclaim: Reclaim,
}

impl ZoneState {
    pub(super) fn new(start: &StartZone) -> Self {
        let with_reserve = |mark: u64| i64::try_from(mark.saturating_add(start.reserve)).unwrap_or(i64::MAX);
        let mut zone = Self {
            free: i64::try_from(start.free).unwrap_or(i64::MAX),
            low: with_reserve(start.low),
            high: with_reserve(start.high),
            level: ZoneLevel::Above,
            reclaim: Reclaim::Idle,
        };
        zone.on_request();
        zone
    }

    pub(super) const fn pressure(&self) -> ZonePressure {
        ZonePressure { level: self.level, reclaim: self.reclaim }
    }

    /// Takes a request, before it is served.
    pub(super) const fn on_request(&mut self) {
        if self.free <= self.high {
            self.level = ZoneLevel::Below;
        } else {
            self.reclaim = Reclaim::Idle;
        }
        if self.free <= self.low {
            self.reclaim = Reclaim::Active;
        }
    }

    /// Takes a request that found no block here and went on to another zone.
    pub(super) const fn on_refusal(&mut self) {
        self.level = ZoneLevel::Below;
    }

    pub(super) const fn take(&mut self, pages: PageCount) {
        self.free = self.free.saturating_sub_unsigned(pages.get());
    }

    pub(super) const fn give(&mut self, pages: PageCount) {
        self.free = self.free.saturating_add_unsigned(pages.get());
    }

    /// Takes that the kernel did not drain where a zone with few free frames would have.
    pub(super) const fn on_no_drain(&mut self) {
        (self.level, self.reclaim) = (ZoneLevel::Above, Reclaim::Idle);
    }

    /// Takes the end of a drain.
    pub(super) const fn after_drain(&mut self) {
        if self.free > self.high {
            (self.level, self.reclaim) = (ZoneLevel::Above, Reclaim::Idle);
        }
    }
}

/// How sure a mobility is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Evidence {
    /// A request got a frame of the block: it may have come from another type's block.
    Request,
    /// The kernel named the block's type.
    Named,
}

/// The mobility of page blocks.
#[derive(Debug)]
pub(super) struct PageBlocks {
    order: Order,
    known: HashMap<u64, (Mobility, Evidence)>,
}

impl PageBlocks {
    pub(super) fn new(order: Order) -> Self {
        Self { order, known: HashMap::new() }
    }

    const fn block(&self, page: Pfn) -> u64 {
        page.get() >> self.order.get()
    }

    /// Keeps what is known for another pass, in which every evidence replaces it.
    pub(super) fn restart(&mut self) {
        self.known.values_mut().for_each(|(_, evidence)| *evidence = Evidence::Request);
    }

    /// Returns the mobility of a frame's block. Most memory is movable, and so are blocks that were never seen.
    pub(super) fn mobility(&self, page: Pfn) -> Mobility {
        self.known.get(&self.block(page)).map_or(Mobility::Movable, |(mobility, _)| *mobility)
    }

    /// Takes a request's mobility.
    pub(super) fn requested(&mut self, page: Pfn, mobility: Mobility) {
        let entry = self.known.entry(self.block(page)).or_insert((mobility, Evidence::Request));
        if entry.1 == Evidence::Request {
            entry.0 = mobility;
        }
    }

    /// Takes a mobility that the kernel named.
    pub(super) fn named(&mut self, page: Pfn, mobility: Mobility) {
        self.known.insert(self.block(page), (mobility, Evidence::Named));
    }

    /// Takes a mobility that the kernel named for all blocks of a free block.
    pub(super) fn claimed(&mut self, page: Pfn, order: Order, mobility: Mobility) {
        let first = self.block(page);
        // No kernel's largest block has more.
        let blocks = 1 << order.get().saturating_sub(self.order.get()).min(8);
        for block in first..first.saturating_add(blocks) {
            self.known.insert(block, (mobility, Evidence::Named));
        }
    }
}
