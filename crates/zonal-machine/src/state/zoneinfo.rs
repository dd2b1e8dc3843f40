//! Reads the changing parts of `/proc/zoneinfo`: free frames, watermarks, locality and pagesets.
//!
//! Related files: the crate `zonal-model` reads the parts that describe a machine.

use std::collections::HashSet;

use super::{NAME_BYTES_MAX, NODES_MAX, PAGESETS_MAX, PagesetSample, ZoneSample};

/// The most zone kinds of a kernel.
const KINDS_MAX: usize = 6;
/// Largest number of zones.
const ZONES_MAX: usize = KINDS_MAX * NODES_MAX;

/// What the file says about zones that have memory.
#[derive(Default)]
pub(super) struct ZoneInfo {
    pub(super) zones: Vec<ZoneSample>,
    pub(super) pagesets: Vec<PagesetSample>,
}

/// Parses the text. Lines that are not known are ignored, because each kernel version prints others.
///
/// # Errors
/// Names the limit if there are more zones or pagesets than a kernel can have, or if the name of a kind is longer.
pub(super) fn parse(text: &str) -> Result<ZoneInfo, String> {
    let mut found = ZoneInfo::default();
    let mut known = HashSet::new();
    let mut zone: Option<ZoneSample> = None;
    let mut in_zone = false;
    for line in text.lines() {
        if let Some((node, kind)) = heading(line) {
            finish(&mut found, zone.take());
            if kind.len() > NAME_BYTES_MAX {
                let length = kind.len();
                return Err(format!(
                    "it has a kind of zone of {length} bytes; the maximum is {NAME_BYTES_MAX}"
                ));
            }
            if !known.insert((node, kind)) {
                return Err(format!("it has zone {kind} of node {node} twice"));
            }
            if known.len() > ZONES_MAX {
                return Err(format!("it has more than {ZONES_MAX} zones, the maximum"));
            }
            zone = Some(ZoneSample { node, kind: kind.to_owned(), ..ZoneSample::default() });
            in_zone = false;
            continue;
        }
        let Some(zone) = &mut zone else { continue };
        let (name, rest) = split(line);
        match name {
            "pages" => {
                // The statistics of the node stand before this line, and have names like those of the zone.
                in_zone = true;
                zone.free = number(rest.strip_prefix("free").unwrap_or(""));
            }
            "cpu:" => {
                let (zone, cpu) = (found.zones.len(), number(rest));
                if found.pagesets.len() == PAGESETS_MAX {
                    return Err(format!("it has more than {PAGESETS_MAX} pagesets, the maximum"));
                }
                found.pagesets.push(PagesetSample { zone, cpu, ..PagesetSample::default() });
            }
            "count:" | "high:" | "batch:" => {
                let Some(pageset) = found.pagesets.last_mut() else { continue };
                let value = match name {
                    "count:" => &mut pageset.count,
                    "high:" => &mut pageset.high,
                    _ => &mut pageset.batch,
                };
                *value = number(rest);
            }
            "vm" => zone.stat_threshold = rest.strip_prefix("stats threshold:").map(number),
            "protection:" => zone.reserve = list(rest),
            _ if in_zone => of_zone(zone, name, rest),
            _ => {}
        }
    }
    finish(&mut found, zone);
    Ok(found)
}

/// Takes a line with a value of the zone.
fn of_zone(zone: &mut ZoneSample, name: &str, rest: &str) {
    match name {
        "min" => zone.min = number(rest),
        "low" => zone.low = number(rest),
        "high" => zone.high = number(rest),
        // Kernels before 3.8 print only the first of these two lines.
        "present" | "managed" => zone.managed = number(rest),
        "numa_hit" => zone.locality.get_or_insert_default().hit = number(rest),
        "numa_miss" => zone.locality.get_or_insert_default().miss = number(rest),
        "numa_foreign" => zone.locality.get_or_insert_default().foreign = number(rest),
        "numa_interleave" => zone.locality.get_or_insert_default().interleave_hit = number(rest),
        "numa_local" => zone.locality.get_or_insert_default().local = number(rest),
        "numa_other" => zone.locality.get_or_insert_default().other = number(rest),
        _ => {}
    }
}

/// Adds a zone, or removes its pagesets again if it has no memory.
fn finish(found: &mut ZoneInfo, zone: Option<ZoneSample>) {
    let Some(mut zone) = zone else { return };
    let index = found.zones.len();
    let own = found.pagesets.iter().rev().take_while(|pageset| pageset.zone == index);
    if zone.managed == 0 {
        found.pagesets.truncate(found.pagesets.len() - own.count());
        return;
    }
    zone.in_pagesets = own.map(|pageset| pageset.count).fold(0, u64::saturating_add);
    found.zones.push(zone);
}

/// Parses a line like `Node 0, zone    DMA32`.
fn heading(line: &str) -> Option<(u64, &str)> {
    let (node, kind) = line.strip_prefix("Node ")?.split_once(", zone")?;
    Some((node.trim().parse().ok()?, kind.trim()))
}

/// Splits a line after its first word.
fn split(line: &str) -> (&str, &str) {
    let line = line.trim_ascii();
    line.split_once(' ').map_or((line, ""), |(name, rest)| (name, rest.trim_ascii_start()))
}

fn number(text: &str) -> u64 {
    text.trim_ascii().parse().unwrap_or(0)
}

/// Parses `(0, 3019, 24090)`.
fn list(text: &str) -> Vec<u64> {
    text.trim_matches(['(', ')']).split(',').take(KINDS_MAX).map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 163062
      high 5
  pages free     3840
        boost    0
        min      10
        low      13
        high     16
        managed  3840
        protection: (0, 3019, 24090)
      numa_hit     11
      numa_other   2
  pagesets
    cpu: 0
              count:    3
              high:     9
              batch:    1
  vm stats threshold: 4
    cpu: 1
              count:    4
              high:     8
              batch:    1
  vm stats threshold: 4
  node_unreclaimable:  0
  start_pfn:           1
Node 0, zone  Movable
  pages free     0
        min      32
        managed  0
    cpu: 0
              count:    7
Node 1, zone   Normal
  pages free     50
        min      32
        managed  100
    cpu: 1
              count:    7
              high:     70
              batch:    63
";

    #[test]
    fn zones_with_memory_and_their_pagesets() {
        let found = parse(TEXT).unwrap();
        let names: Vec<_> = found.zones.iter().map(ZoneSample::name).collect();
        assert_eq!(names, ["0 DMA", "1 Normal"]);
        let dma = &found.zones[0];
        assert_eq!((dma.free, dma.min, dma.low, dma.high, dma.managed), (3840, 10, 13, 16, 3840));
        assert_eq!(dma.in_pagesets, 7);
        assert_eq!(dma.reserve, [0, 3019, 24090]);
        assert_eq!(dma.stat_threshold, Some(4));
        let locality = dma.locality.unwrap();
        assert_eq!((locality.hit, locality.other, locality.miss), (11, 2, 0));
        assert_eq!(found.zones[1].locality, None);
        let pagesets: Vec<_> =
            found.pagesets.iter().map(|one| (one.zone, one.cpu, one.count, one.high)).collect();
        assert_eq!(pagesets, [(0, 0, 3, 9), (0, 1, 4, 8), (1, 1, 7, 70)]);
    }

    /// Kernels before 3.8 print no managed frames.
    #[test]
    fn present_frames_are_managed_if_nothing_else_is_known() {
        let with = TEXT.replace("        managed", "        present  1\n        managed");
        assert_eq!(parse(&with).unwrap().zones, parse(TEXT).unwrap().zones);
        let without = TEXT.replace("        managed", "        present");
        assert_eq!(parse(&without).unwrap().zones, parse(TEXT).unwrap().zones);
    }

    #[test]
    fn any_text_is_read_without_a_panic() {
        for end in 0..TEXT.len() {
            parse(&TEXT[..end]).unwrap();
            parse(&TEXT[end..]).unwrap();
        }
        let _ = parse(
            "cpu: 0\ncount: 1\npages\nNode x, zone\nNode 0, zone A\npages free -1\nmanaged 99999999999999999999999",
        );
    }

    #[test]
    fn more_zones_or_pagesets_than_a_kernel_has_are_refused() {
        let zone = |node| format!("Node {node}, zone A\n pages free 1\n managed 1\n cpu: 0\n");
        let zones = |count| (0..count).map(zone).collect::<String>();
        assert_eq!(parse(&zones(ZONES_MAX)).unwrap().zones.len(), ZONES_MAX);
        assert!(parse(&zones(ZONES_MAX + 1)).is_err());
        let pagesets = |count| zone(0) + &"cpu: 0\n".repeat(count - 1);
        assert_eq!(parse(&pagesets(PAGESETS_MAX)).unwrap().pagesets.len(), PAGESETS_MAX);
        assert!(parse(&pagesets(PAGESETS_MAX + 1)).is_err());
        assert!(parse(&(zone(0) + &zone(0))).is_err_and(|why| why.contains("twice")));
        let kind = |length| parse(&zone(0).replace('A', &"A".repeat(length))).err();
        assert_eq!(kind(NAME_BYTES_MAX), None);
        assert!(kind(NAME_BYTES_MAX + 1).is_some_and(|why| why.contains("65 bytes; the maximum is 64")));
    }
}
