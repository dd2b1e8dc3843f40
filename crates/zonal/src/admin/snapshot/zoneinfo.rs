//! `/proc/zoneinfo`: a section for each node and zone kind, including those without frames.
//!
//! Each node's first section with frames also contains the node's figures. Sections without frames contain only
//! sizes and watermarks, all of which are zero.

use core::fmt;

use super::text::{ALLOCATED, NUMA, RECLAIMED, Snapshot, locality};
use super::{PagesetSnapshot, ZoneSnapshot};
use crate::platform::Platform;
use crate::rules::watermarks::Watermarks;
use crate::units::{PageCount, ZoneKind};
use crate::zone::CpuInfo;

/// Kinds of zone in Linux's order. The allocator has no zones of the last kind.
const KINDS: [&str; 5] = ["DMA", "DMA32", "Normal", "Movable", "Device"];
/// Width of a zone's figure names.
const NAME_WIDTH: usize = 8;

pub(super) struct ZoneInfo<'a, 'm, P: Platform>(pub(super) Snapshot<'a, 'm, P>);

impl<P: Platform> fmt::Display for ZoneInfo<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in 0..self.0.0.state.nodes.len() {
            let mut node_shown = false;
            for name in KINDS {
                let kind = ZoneKind::ALL.into_iter().find(|kind| kind.name() == name);
                let zone = kind.and_then(|kind| self.0.zone(place, kind));
                writeln!(f, "Node {}, zone {name:>NAME_WIDTH$}", self.0.0.state.nodes[place].id)?;
                if zone.is_some_and(|zone| zone.managed > PageCount::ZERO) && !node_shown {
                    node_shown = true;
                    self.node(f, place)?;
                }
                pages(f, zone.as_ref())?;
                if let Some(zone) = zone {
                    self.populated(f, place, &zone)?;
                }
            }
        }
        Ok(())
    }
}

impl<P: Platform> ZoneInfo<'_, '_, P> {
    fn node(&self, f: &mut fmt::Formatter<'_>, place: usize) -> fmt::Result {
        writeln!(f, "  per-node stats")?;
        let Some(node) = self.0.0.nodes().nth(place) else { return Ok(()) };
        for (name, pages) in ALLOCATED.iter().zip(node.allocated) {
            writeln!(f, "      {name} {pages}")?;
        }
        for (name, pages) in RECLAIMED.iter().zip(node.reclaimed) {
            writeln!(f, "      {name} {pages}")?;
        }
        Ok(())
    }

    /// Writes the figures that Linux shows only for populated zones.
    fn populated(&self, f: &mut fmt::Formatter<'_>, place: usize, zone: &ZoneSnapshot) -> fmt::Result {
        writeln!(f, "      {:<12} {}", "nr_free_pages", zone.free)?;
        locality(f, &zone.locality, NUMA, "      ")?;
        writeln!(f, "  pagesets")?;
        for cpu in self.0.online_cpu_infos() {
            let pageset = self.pageset(place, zone.kind, cpu);
            writeln!(f, "    cpu: {}", cpu.id)?;
            for (name, pages) in [
                ("count:", pageset.count),
                ("high:", pageset.high),
                ("batch:", pageset.limits.batch),
                ("high_min:", pageset.limits.high_min),
                ("high_max:", pageset.limits.high_max),
            ] {
                writeln!(f, "              {name:<9} {pages}")?;
            }
            writeln!(f, "  vm stats threshold: {}", zone.stat_threshold)?;
        }
        writeln!(f, "  node_unreclaimable:  {}", u8::from(self.0.0.state.nodes[place].is_unreclaimable()))?;
        writeln!(f, "  start_pfn:           {}", zone.span.start)
    }

    /// Returns a CPU's pagesets for all parts of a zone, joined into one.
    fn pageset(&self, place: usize, kind: ZoneKind, cpu: CpuInfo) -> PagesetSnapshot {
        let mut parts = self.0.parts(place, kind).map(|part| self.0.0.state.pageset_snapshot(part, cpu));
        let first = parts.next().expect("a zone that is shown has a part");
        parts.fold(first, PagesetSnapshot::joined)
    }
}

/// Writes sizes and watermarks of a zone, or zeroes if there is none.
fn pages(f: &mut fmt::Formatter<'_>, zone: Option<&ZoneSnapshot>) -> fmt::Result {
    let marks = zone.map_or_else(Watermarks::default, |zone| zone.watermarks);
    let frames = |figure: fn(&ZoneSnapshot) -> PageCount| zone.map_or(PageCount::ZERO, figure);
    writeln!(f, "  pages free     {}", frames(|zone| zone.free))?;
    for (name, pages) in [
        ("boost", PageCount::ZERO),
        ("min", marks.min),
        ("low", marks.low),
        ("high", marks.high),
        ("spanned", frames(|zone| zone.span.count)),
        ("present", frames(|zone| zone.present)),
        ("managed", frames(|zone| zone.managed)),
        ("cma", PageCount::ZERO),
    ] {
        writeln!(f, "        {name:<NAME_WIDTH$} {pages}")?;
    }
    let [dma, dma32, normal, movable] = zone.map_or([PageCount::ZERO; 4], |zone| zone.reserve);
    // Because there is no device memory, the last column repeats the column before it, as in Linux.
    writeln!(f, "        protection: ({dma}, {dma32}, {normal}, {movable}, {movable})")
}
