//! Parser for `/proc/zoneinfo` as kernels of any version print it.

use std::collections::BTreeSet;

use zonal::units::MAX_NODES;

use crate::escape::Excerpt;
use crate::file::{FileKind, FileObservedZone, FileZone};
use crate::pageset_limits::HighRule;

/// The zone kinds in a machine file's column order.
pub(super) const KINDS: [&str; 5] = ["DMA", "DMA32", "Normal", "Movable", "Device"];

/// Largest number of zones that is read, which is all kinds on all nodes.
const ZONES_MAX: usize = MAX_NODES * KINDS_MAX;

/// The most zone kinds of a kernel. It is one more than in a machine file, because 32-bit kernels have another kind, which
/// may be empty.
const KINDS_MAX: usize = KINDS.len() + 1;

/// All zones that the kernel printed, including empty ones.
pub(super) struct ZoneInfo {
    zones: Vec<Info>,
}

/// One zone as printed. Values that the kernel did not print are `None`.
#[derive(Default)]
struct Info {
    node: u64,
    name: String,
    boost: u64,
    min: Option<u64>,
    low: Option<u64>,
    high: Option<u64>,
    spanned: u64,
    present: u64,
    managed: Option<u64>,
    protection: Option<Vec<u64>>,
    start: Option<u64>,
    cpus_seen: u32,
    batch: Option<u64>,
    pageset_high: Option<u64>,
    pageset_high_min: Option<u64>,
    pageset_high_max: Option<u64>,
    stat_threshold: Option<u64>,
}

impl ZoneInfo {
    /// Parses the text of `/proc/zoneinfo`.
    ///
    /// # Errors
    /// Returns an error for more zones than a kernel can have, and for frames in a zone whose kind 64-bit kernels do not
    /// have.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut zones: Vec<Info> = Vec::new();
        for line in text.lines() {
            if let Some((node, name)) = heading(line) {
                if zones.len() == ZONES_MAX {
                    return Err(format!("it has more than {ZONES_MAX} zones, the maximum"));
                }
                zones.push(Info { node, name, ..Info::default() });
            } else if let Some(zone) = zones.last_mut() {
                zone.take(line.trim());
            }
        }
        let is_foreign = |zone: &&Info| zone.has_frames() && !KINDS.contains(&zone.name.as_str());
        match zones.iter().find(is_foreign) {
            None => Ok(Self { zones }),
            Some(zone) => Err(format!(
                "zone {} of node {} has frames; only zones of 64-bit kernels are supported: {}",
                Excerpt::name(&zone.name),
                zone.node,
                KINDS.join(", ")
            )),
        }
    }

    pub(super) fn node_ids(&self) -> BTreeSet<u64> {
        self.populated().map(|(zone, _)| zone.node).collect()
    }

    /// Returns how many managed frames all zones have.
    pub(super) fn managed(&self) -> Option<u64> {
        Some(self.zones.iter().map(Info::managed).fold(0, u64::saturating_add))
    }

    /// Returns the kinds of zone that this kernel has, in its order.
    pub(super) fn kind_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let first = self.zones.first().map(|zone| zone.node);
        for zone in self.zones.iter().filter(|zone| Some(zone.node) == first) {
            names.push(zone.name.clone());
        }
        names
    }

    /// Returns the zones that span any frames. A zone for which the kernel prints no start is placed after the previous
    /// one.
    pub(super) fn zones(&self) -> Vec<FileZone> {
        let mut next = 0;
        let mut zones = Vec::new();
        for (zone, kind) in self.populated() {
            let start = zone.start.unwrap_or(next);
            let spanned = zone.spanned.max(zone.present).max(zone.managed());
            let present = zone.present.max(zone.managed());
            next = start.saturating_add(spanned); // values that are too large are refused later
            zones.push(FileZone { node: zone.node, kind, start, spanned, present, managed: zone.managed() });
        }
        zones
    }

    /// Returns the values that the kernel reported for the zones. A `high` that the kernel tunes is omitted, because it
    /// changes all the time.
    pub(super) fn observed_zones(&self, rule: HighRule) -> Vec<FileObservedZone> {
        let names = self.kind_names();
        let observed = |(zone, kind): (&Info, FileKind)| {
            // The printed watermarks include a temporary boost, which does not follow from the settings.
            let plain = |mark: Option<u64>| mark.map(|mark| mark.saturating_sub(zone.boost));
            FileObservedZone {
                node: zone.node,
                kind,
                min: plain(zone.min),
                low: plain(zone.low),
                high: plain(zone.high),
                protection: zone.protection.as_ref().map(|columns| by_kind(columns, &names)),
                batch: zone.batch,
                pageset_high: zone.pageset_high.filter(|_| rule != HighRule::Tuned),
                pageset_high_min: zone.pageset_high_min,
                pageset_high_max: zone.pageset_high_max,
                stat_threshold: zone.stat_threshold.and_then(|threshold| u8::try_from(threshold).ok()),
            }
        };
        self.populated().map(observed).collect()
    }

    /// Returns the zones that have frames and are of kinds that ordinary requests can use.
    fn populated(&self) -> impl Iterator<Item = (&Info, FileKind)> {
        self.zones.iter().filter(|zone| zone.has_frames()).filter_map(|zone| {
            let kind = match zone.name.as_str() {
                "DMA" => FileKind::Dma,
                "DMA32" => FileKind::Dma32,
                "Normal" => FileKind::Normal,
                "Movable" => FileKind::Movable,
                _ => return None,
            };
            Some((zone, kind))
        })
    }
}

/// Parses a heading like `Node 0, zone    DMA32`.
fn heading(line: &str) -> Option<(u64, String)> {
    let (node, name) = line.strip_prefix("Node ")?.split_once(", zone")?;
    Some((node.trim().parse().ok()?, name.trim().to_owned()))
}

/// Converts the columns of the kinds that this kernel has to a machine file's columns. A kind that the kernel lacks
/// adds no memory, so its column repeats the previous one.
fn by_kind(columns: &[u64], names: &[String]) -> Vec<u64> {
    let mut before = 0;
    KINDS
        .iter()
        .map(|kind| {
            let at = names.iter().position(|name| name == kind);
            before = at.and_then(|at| columns.get(at)).copied().unwrap_or(before);
            before
        })
        .collect()
}

impl Info {
    fn has_frames(&self) -> bool {
        self.spanned > 0 || self.managed() > 0
    }

    /// Returns the managed frames. Kernels before 3.8 did not distinguish managed from present frames.
    fn managed(&self) -> u64 {
        self.managed.unwrap_or(self.present)
    }

    fn take(&mut self, line: &str) {
        if let Some(columns) = line.strip_prefix("protection:") {
            let numbers = columns.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
            let columns = numbers.filter_map(|word| word.parse().ok()).take(KINDS_MAX);
            self.protection = Some(columns.collect());
            return;
        }
        let Some((key, value)) = line.rsplit_once(char::is_whitespace) else { return };
        let Ok(value) = value.parse::<u64>() else { return };
        match key.trim_end() {
            "boost" => self.boost = value,
            "min" => self.min = Some(value),
            "low" => self.low = Some(value),
            "high" => self.high = Some(value),
            "spanned" => self.spanned = value,
            "present" => self.present = value,
            "managed" => self.managed = Some(value),
            "start_pfn:" => self.start = Some(value),
            "cpu:" => self.cpus_seen += 1,
            key if self.cpus_seen > 0 => self.take_pageset(key, value),
            _ => {}
        }
    }

    /// Records a pageset value. All CPUs have the same values, so those of the first CPU are used. The exception is the
    /// bounds of a tuned `high`: pools of this allocator report lower bounds than the kernel's rule for other nodes'
    /// CPUs, so the largest bound of all CPUs is used.
    fn take_pageset(&mut self, key: &str, value: u64) {
        match key {
            "high_min:" => self.pageset_high_min = self.pageset_high_min.max(Some(value)),
            "high_max:" => self.pageset_high_max = self.pageset_high_max.max(Some(value)),
            _ if self.cpus_seen > 1 => {}
            "high:" => self.pageset_high = Some(value),
            "batch:" => self.batch = Some(value),
            "vm stats threshold:" => self.stat_threshold = Some(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shortened output of a 6.1 kernel without ZONE_DMA, with a boosted zone.
    const TEXT: &str = "\
Node 0, zone    DMA32
  per-node stats
      nr_inactive_anon 3
  pages free     1000
        boost    5
        min      105
        low      130
        high     155
        spanned  4095
        present  3998
        managed  3840
        cma      0
        protection: (0, 1664, 1664)
      nr_free_pages 3840
  pagesets
    cpu: 0
              count: 7
              high:  580
              batch: 15
  vm stats threshold: 12
    cpu: 2
              count: 9
              high:  999
              batch: 99
  vm stats threshold: 99
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone   Normal
  pages free     0
        min      0
        low      0
        high     0
        spanned  0
        present  0
        managed  0
        protection: (0, 0, 0)
Node 0, zone  Movable
  pages free     0
        spanned  0
";

    #[test]
    fn values_of_a_zone() {
        let info = ZoneInfo::parse(TEXT).unwrap();
        assert_eq!(info.kind_names(), ["DMA32", "Normal", "Movable"]);
        let zones = info.zones();
        assert_eq!(zones.len(), 1);
        assert_eq!((zones[0].start, zones[0].spanned, zones[0].managed), (1, 4095, 3840));
        let observed = &info.observed_zones(HighRule::LowWatermark)[0];
        assert_eq!((observed.min, observed.low, observed.high), (Some(100), Some(125), Some(150)));
        assert_eq!(observed.protection, Some(vec![0, 0, 1664, 1664, 1664]));
        assert_eq!((observed.batch, observed.pageset_high), (Some(15), Some(580)));
        assert_eq!(observed.stat_threshold, Some(12));
        assert_eq!(info.observed_zones(HighRule::Tuned)[0].pageset_high, None);
    }

    #[test]
    fn broken_text_is_no_zone() {
        for end in 0..TEXT.len() {
            let info = ZoneInfo::parse(&TEXT[..end]).unwrap();
            assert!(info.zones().len() <= 1);
        }
        assert!(ZoneInfo::parse("Node x, zone DMA\n min y\n").unwrap().zones().is_empty());
    }
}
