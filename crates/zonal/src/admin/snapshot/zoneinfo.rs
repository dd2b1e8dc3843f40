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

impl<P: Platform> Snapshot<'_, '_, P> {
    /// Writes the sections of all zones.
    pub(super) fn write_zoneinfo(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, node) in self.0.nodes().enumerate() {
            let mut node_shown = false;
            for name in KINDS {
                let kind = ZoneKind::ALL.into_iter().find(|kind| kind.name() == name);
                let zone = kind.and_then(|kind| self.zone(place, kind));
                writeln!(f, "Node {}, zone {name:>NAME_WIDTH$}", node.id)?;
                if zone.is_some_and(|zone| zone.managed > PageCount::ZERO) && !node_shown {
                    node_shown = true;
                    writeln!(f, "  per-node stats")?;
                    let reclaimed = RECLAIMED.iter().zip(node.reclaimed);
                    for (name, pages) in ALLOCATED.iter().zip(node.allocated).chain(reclaimed) {
                        writeln!(f, "      {name} {pages}")?;
                    }
                }
                pages(f, zone.as_ref())?;
                if let Some(zone) = zone {
                    self.populated(f, place, &zone)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the figures that Linux shows only for populated zones.
    fn populated(self, f: &mut fmt::Formatter<'_>, place: usize, zone: &ZoneSnapshot) -> fmt::Result {
        writeln!(f, "      {:<12} {}", "nr_free_pages", zone.free)?;
        locality(f, &zone.locality, NUMA, "      ")?;
        writeln!(f, "  pagesets")?;
        for cpu in self.online_cpu_infos() {
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
        writeln!(f, "  node_unreclaimable:  {}", u8::from(self.0.state.nodes[place].is_unreclaimable()))?;
        writeln!(f, "  start_pfn:           {}", zone.span.start)
    }

    /// Returns a CPU's pagesets for all parts of a zone, joined into one, as far as they are shown.
    fn pageset(self, place: usize, kind: ZoneKind, cpu: CpuInfo) -> PagesetSnapshot {
        let mut parts = self.parts(place, kind).map(|part| self.0.state.pageset_snapshot(part, cpu));
        let mut whole = parts.next().expect("a zone that is shown has a part");
        for part in parts {
            whole.count = whole.count.plus(part.count);
            whole.high = whole.high.plus(part.high);
            let (limits, more) = (&mut whole.limits, part.limits);
            limits.batch = limits.batch.max(more.batch);
            limits.high_min = limits.high_min.plus(more.high_min);
            limits.high_max = limits.high_max.plus(more.high_max);
        }
        whole
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
