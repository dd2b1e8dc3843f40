//! How many 2 MiB pages a request for many can get, before and after the pagesets are drained.
//!
//! The figures follow from `/proc/buddyinfo` and `/proc/zoneinfo`. Where the frames in pagesets are is not known, so the
//! number after the drain is an upper bound: each further page needs one of them at least, and all frames of the page
//! must be in pagesets or in smaller free blocks.
//!
//! Related files: `start.rs` reads zones, `kernel.rs` adds this to its results.

use serde::Serialize;
use zonal::units::Order;
use zonal_trace::KernelTexts;

use super::start::{self, StartZone};

/// What a zone has for 2 MiB pages.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct HugeZone {
    /// The node.
    pub node: u64,
    /// The kind's name.
    pub kind: String,
    /// Free 2 MiB blocks, also inside larger ones.
    pub blocks: u64,
    /// Free frames in smaller blocks.
    pub in_smaller_blocks: u64,
    /// Frames in pagesets.
    pub in_pagesets: u64,
    /// The 2 MiB pages that requests may take before the zone has only its minimum.
    pub above_min: u64,
}

/// What a machine has for 2 MiB pages at one moment.
#[derive(Clone, PartialEq, Eq, Serialize, Debug)]
pub struct HugePages {
    /// Frames in a page.
    pub frames: u64,
    /// The zones.
    pub zones: Vec<HugeZone>,
}

impl HugeZone {
    fn before(&self) -> u64 {
        self.blocks.min(self.above_min)
    }

    fn more_at_most(&self, frames: u64) -> u64 {
        let formed = self.in_smaller_blocks.saturating_add(self.in_pagesets) / frames;
        formed.min(self.in_pagesets)
    }
}

impl HugePages {
    /// Reads the texts of one moment. Returns `None` if one is missing or not understood.
    pub(super) fn read(texts: &KernelTexts, huge: Order) -> Option<Self> {
        let zones = start::parse(texts.zoneinfo.as_deref()?).ok()?;
        let blocks = texts.buddyinfo.as_deref()?;
        let zones = zones.iter().filter_map(|zone| huge_zone(zone, blocks, huge)).collect();
        Some(Self { frames: huge.pages().get(), zones })
    }

    /// Returns the most pages that a request can get: those from all frames here, free or in pagesets.
    #[must_use]
    pub fn all(&self) -> u64 {
        let of = |zone: &HugeZone| {
            let rest = zone.in_smaller_blocks.saturating_add(zone.in_pagesets) / self.frames;
            zone.blocks.saturating_add(rest)
        };
        self.zones.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns how many of `wanted` pages a request gets as it is.
    #[must_use]
    pub fn before(&self, wanted: u64) -> u64 {
        let all = self.zones.iter().map(HugeZone::before).fold(0, u64::saturating_add);
        all.min(wanted)
    }

    /// Returns how many of `wanted` pages a request gets at most after the pagesets are drained.
    #[must_use]
    pub fn after_at_most(&self, wanted: u64) -> u64 {
        let of = |zone: &HugeZone| {
            let drained = zone.above_min.saturating_add(zone.in_pagesets / self.frames);
            zone.blocks.saturating_add(zone.more_at_most(self.frames)).min(drained.max(zone.before()))
        };
        self.zones.iter().map(of).fold(0, u64::saturating_add).min(wanted)
    }
}

fn huge_zone(zone: &StartZone, buddyinfo: &str, huge: Order) -> Option<HugeZone> {
    let frames = huge.pages().get();
    let mut lines = buddyinfo.lines().filter_map(|line| {
        let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
        let mut words = rest.split_whitespace();
        let is_it = node.trim().parse() == Ok(zone.node) && words.next()? == zone.kind;
        is_it.then(|| words.map(|word| word.parse().unwrap_or(0)).collect::<Vec<u64>>())
    });
    let (mut blocks, mut in_smaller_blocks) = (0_u64, 0_u64);
    for (order, free) in lines.next()?.into_iter().enumerate().take(32) {
        let huge = usize::from(huge.get());
        if order < huge {
            in_smaller_blocks = in_smaller_blocks.saturating_add(free.saturating_mul(1 << order));
        } else {
            blocks = blocks.saturating_add(free.saturating_mul(1 << (order - huge)));
        }
    }
    Some(HugeZone {
        node: zone.node,
        kind: zone.kind.clone(),
        blocks,
        in_smaller_blocks,
        in_pagesets: zone.in_pagesets(),
        above_min: zone.free.saturating_sub(zone.min) / frames,
    })
}
