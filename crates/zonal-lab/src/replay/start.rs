//! What `/proc/zoneinfo` says about zones and pagesets when a trace begins.
//!
//! Related files: `zonal-machine` reads the parts that describe a machine, and `environment.rs` follows a zone from here.

use std::collections::HashMap;

use zonal::rules::pageset_limits::PagesetZone;
use zonal::rules::pageset_tuning::HighLimits;
use zonal::units::{CpuId, NodeId, PageCount, ZoneKind};
use zonal_machine::pageset_limits::HighRule;
use zonal_machine::pagesets::PagesetStart;
use zonal_machine::{MachineModel, Rules};

/// The most zones that are read: more than a kernel has.
const ZONES_MAX: usize = 1 << 13;
/// The most pagesets that are read.
const PAGESETS_MAX: usize = 1 << 20;

/// A zone at the start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct StartZone {
    /// The node.
    pub(super) node: u64,
    /// The kind's name.
    pub(super) kind: String,
    /// Managed frames.
    pub(super) managed: u64,
    /// Free frames.
    pub(super) free: u64,
    /// The watermark `min`.
    pub(super) min: u64,
    /// The watermark `low`.
    pub(super) low: u64,
    /// The temporary boost of the watermarks.
    boost: u64,
    /// The watermark `high`.
    pub(super) high: u64,
    /// What the zone keeps from requests that may use any zone.
    pub(super) reserve: u64,
    /// The pagesets by CPU.
    pub(super) pagesets: HashMap<CpuId, PagesetStart>,
    /// Whether the limits of the pagesets' `high` were printed.
    has_limits: bool,
}

impl StartZone {
    /// Returns the frames in pagesets.
    pub(super) fn in_pagesets(&self) -> u64 {
        self.pagesets.values().map(|pageset| pageset.count.get()).fold(0, u64::saturating_add)
    }

    /// Returns the frames that are allocated: neither free nor in pagesets.
    pub(super) fn used(&self) -> u64 {
        self.managed.saturating_sub(self.free).saturating_sub(self.in_pagesets())
    }

    /// Whether this is the zone of a node and kind.
    pub(super) fn is(&self, node: NodeId, kind: ZoneKind) -> bool {
        self.node == u64::from(node.get()) && self.kind == kind.name()
    }

    /// Computes the limits of the pagesets' `high`, unless the kernel printed them.
    ///
    /// Linux 6.7 and later tune `high` between limits, but not all of them print the limits.
    pub(super) fn compute_limits(&mut self, machine: &MachineModel, rules: &Rules) {
        if self.has_limits || rules.high != HighRule::Tuned {
            return;
        }
        let node = machine.nodes.iter().find(|node| u64::from(node.id.get()) == self.node);
        let zone = PagesetZone {
            managed: PageCount::new(self.managed),
            low: PageCount::new(self.low.saturating_sub(self.boost)),
            node_cpus: node.map_or(0, |node| node.cpus.len() as u32),
            online_cpus: machine.online_cpus(),
        };
        let limits = rules.pagesets(machine.settings.high_fraction).limits(&zone, machine.page_bytes);
        let limits = HighLimits::new(limits.high_min, limits.high_max);
        self.pagesets.values_mut().for_each(|pageset| pageset.limits = limits);
    }
}

/// Reads the text, without zones that have no frames.
///
/// # Errors
/// Says what is missing or too much.
pub(super) fn parse(text: &str) -> Result<Vec<StartZone>, String> {
    let (mut zones, mut pagesets) = (Vec::<StartZone>::new(), 0);
    let mut cpu = None;
    let mut is_zone = false;
    for line in text.lines() {
        if let Some((node, kind)) = heading(line) {
            if zones.len() == ZONES_MAX {
                return Err(format!("it has more than {ZONES_MAX} zones, the maximum"));
            }
            zones.push(StartZone { node, kind: kind.to_owned(), ..StartZone::default() });
            (cpu, is_zone) = (None, false);
            continue;
        }
        let Some(zone) = zones.last_mut() else { continue };
        let line = line.trim();
        let Some((name, rest)) = line.split_once(' ') else { continue };
        let rest = rest.trim_start();
        match name {
            // The statistics of the node stand before this line, and have names like those of the zone.
            "pages" => {
                is_zone = true;
                zone.free = number(rest.strip_prefix("free").unwrap_or_default());
            }
            "cpu:" => {
                pagesets += 1;
                if pagesets > PAGESETS_MAX {
                    return Err(format!("it has more than {PAGESETS_MAX} pagesets, the maximum"));
                }
                cpu = u32::try_from(number(rest)).ok().map(CpuId::new);
            }
            // Kernels before 3.8 print only the first of these two lines.
            "present" | "managed" if is_zone => zone.managed = number(rest),
            "boost" if is_zone => zone.boost = number(rest),
            "min" if is_zone => zone.min = number(rest),
            "low" if is_zone => zone.low = number(rest),
            "high" if is_zone => zone.high = number(rest),
            "protection:" if is_zone => zone.reserve = largest_of_list(rest),
            _ => {
                zone.has_limits |= name == "high_max:";
                if let Some(cpu) = cpu {
                    pageset_line(zone.pagesets.entry(cpu).or_insert(EMPTY), name, number(rest));
                }
            }
        }
    }
    zones.retain(|zone| !zone.pagesets.is_empty());
    for zone in &zones {
        let largest = zone.pagesets.iter().max_by_key(|(_, pageset)| pageset.count);
        if let Some((cpu, pageset)) = largest.filter(|(_, pageset)| pageset.count.get() > zone.managed) {
            return Err(format!(
                "the pageset of CPU {cpu} in zone {} of node {} has {} frames; it must have at most the zone's {}",
                zone.kind, zone.node, pageset.count, zone.managed
            ));
        }
    }
    if zones.is_empty() {
        return Err("it has no zone with pagesets".to_owned());
    }
    Ok(zones)
}

const EMPTY: PagesetStart = PagesetStart {
    count: PageCount::ZERO,
    high: PageCount::ZERO,
    batch: PageCount::ZERO,
    limits: HighLimits::DISABLED,
};

fn pageset_line(pageset: &mut PagesetStart, name: &str, value: u64) {
    let value = PageCount::new(value);
    match name {
        "count:" => pageset.count = value,
        // Kernels before 6.7 have no limits: their `high` is fixed.
        "high:" => (pageset.high, pageset.limits) = (value, HighLimits::new(value, value)),
        "batch:" => pageset.batch = value,
        "high_min:" => pageset.limits = HighLimits::new(value, value),
        "high_max:" => pageset.limits = HighLimits::new(pageset.limits.min(), value),
        _ => {}
    }
}

/// Parses a line like `Node 0, zone    DMA32`.
fn heading(line: &str) -> Option<(u64, &str)> {
    let (node, kind) = line.strip_prefix("Node ")?.split_once(", zone")?;
    Some((node.trim().parse().ok()?, kind.trim()))
}

fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or(0)
}

/// Parses the largest number of `(0, 3019, 24090, 0)`, which is that of the last kind with frames. Some kernels print 0 for
/// the kinds after it.
fn largest_of_list(text: &str) -> u64 {
    text.trim_matches(['(', ')']).split(',').map(number).max().unwrap_or(0)
}
