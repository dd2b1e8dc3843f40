//! The description of a shared pool, in its file: all from which the allocator's layout and rules follow.
//!
//! Related files: `pool/joining.rs` makes and joins pools by it, and `memory/pool_file.rs` has the file.

use std::num::NonZeroU64;

use serde_json::{Value, json};
use zonal::Config;
use zonal::config::{Faults, Hardening, ZeroOn};
use zonal::machine::FrameRange;
use zonal::rules::fallback_order::CpuPenalty;
use zonal::rules::stat_threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule};
use zonal::settings::{Setting, SettingValue};
use zonal::units::{CpuId, MAX_CPUS, MAX_NODES, NodeId, Order, PageCount, Pfn, ZoneKind};

use super::settings::linked;
use crate::memory::huge_pages::HugePages;
use crate::memory::page_sizes::{HugePageSize, os_page_bytes};
use crate::memory::plan::ZonePlan;
use crate::memory::pool_file::{FileSizes, after_text, zone_offset};
use crate::memory::pool_zones::FileZone;
use crate::memory::zones::{Binding, MapOptions};
use crate::topology::{Topology, TopologyNode};

/// What a process must know about a pool to join it.
pub(super) struct Description {
    pub(super) nodes: Vec<TopologyNode>,
    pub(super) zones: Vec<FileZone>,
    pub(super) config: Config,
    pub(super) huge_pages: HugePages,
    pub(super) binding: Binding,
    /// Whether the nodes are emulated.
    pub(super) is_divided: bool,
}

impl Description {
    /// Describes a pool to be made, whose zones have no place yet.
    pub(super) fn of_new(
        topology: &Topology,
        plans: &[ZonePlan],
        config: Config,
        options: MapOptions,
    ) -> Self {
        let blocks = 1_u64 << options.max_order.get().max(12);
        let mut first = blocks;
        let zones = plans.iter().map(|plan| {
            let range = FrameRange { start: Pfn::new(first), count: plan.frames };
            first = (first + plan.frames.get()).next_multiple_of(blocks);
            FileZone { node: plan.node, kind: plan.kind, range, offset: 0 }
        });
        Self {
            nodes: topology.nodes().to_vec(),
            zones: zones.collect(),
            config,
            huge_pages: options.huge_pages,
            binding: options.binding,
            is_divided: topology.is_emulated(),
        }
    }

    /// Places the zones in a file with huge pages or ordinary ones, after `buffers` bytes of the allocator's metadata.
    pub(super) fn place_zones(&mut self, huge_page: Option<HugePageSize>, buffers: usize) -> FileSizes {
        // The offsets follow from the length of the description, which has them with a fixed number of digits.
        let meta = zone_offset(after_text(self.text().len()) + os_page_bytes() + buffers, huge_page);
        let mut at = meta;
        for zone in &mut self.zones {
            zone.offset = at as u64;
            let bytes = zone.range.count.get() as usize * self.config.page_bytes as usize;
            at = zone_offset(at + bytes, huge_page);
        }
        FileSizes { huge_page, meta, file: at as u64 }
    }

    pub(super) fn text(&self) -> String {
        let nodes: Vec<Value> = self
            .nodes
            .iter()
            .map(|node| {
                let cpus: Vec<u32> = node.cpus.iter().map(|cpu| cpu.get()).collect();
                json!({ "id": node.id.get(), "cpus": cpus, "distances": node.distances })
            })
            .collect();
        let zones: Vec<Value> = self
            .zones
            .iter()
            .map(|zone| {
                let (first, frames) = (zone.range.start.get(), zone.range.count.get());
                let offset = format!("{:020}", zone.offset);
                json!({ "node": zone.node.get(), "kind": zone.kind.to_string(), "first": first, "frames": frames, "offset": offset })
            })
            .collect();
        let (huge, binding) = (self.huge_pages == HugePages::Never, self.binding == Binding::ToNodes);
        json!({
            "config": config_values(&self.config),
            "ordinary_pages": huge,
            "bound": binding,
            "divided": self.is_divided,
            "nodes": nodes,
            "zones": zones,
        })
        .to_string()
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |value: &Value, key: &str| value[key].as_u64();
        let node_id = |value: &Value, key: &str| NodeId::new(u16::try_from(number(value, key)?).ok()?);
        let cpu_id = |value: &Value| {
            let id = usize::try_from(value.as_u64()?).ok().filter(|&id| id < MAX_CPUS)?;
            Some(CpuId::new(id as u32))
        };
        let nodes = value["nodes"].as_array().filter(|nodes| nodes.len() <= MAX_NODES)?.iter().map(|node| {
            let cpus = node["cpus"].as_array()?.iter();
            let cpus = cpus.map(cpu_id);
            let distances = node["distances"].as_array()?.iter();
            Some(TopologyNode {
                id: node_id(node, "id")?,
                cpus: cpus.collect::<Option<_>>()?,
                distances: distances
                    .map(|distance| u8::try_from(distance.as_u64()?).ok())
                    .collect::<Option<_>>()?,
                zones: Vec::new(),
            })
        });
        let zones = value["zones"].as_array()?.iter().map(|zone| {
            let kind = zone["kind"].as_str()?;
            let range = FrameRange {
                start: Pfn::new(number(zone, "first")?),
                count: PageCount::new(number(zone, "frames")?),
            };
            Some(FileZone {
                node: node_id(zone, "node")?,
                kind: ZoneKind::ALL.into_iter().find(|one| one.to_string() == kind)?,
                range,
                offset: zone["offset"].as_str()?.parse().ok()?,
            })
        });
        Some(Self {
            nodes: nodes.collect::<Option<_>>()?,
            zones: zones.collect::<Option<_>>()?,
            config: config_of(&value["config"])?,
            huge_pages: if value["ordinary_pages"].as_bool()? {
                HugePages::Never
            } else {
                HugePages::Transparent
            },
            binding: if value["bound"].as_bool()? { Binding::ToNodes } else { Binding::None },
            is_divided: value["divided"].as_bool()?,
        })
    }
}

/// Returns all of a configuration that a process must know. A field that is not named here does not compile.
fn config_values(config: &Config) -> Value {
    // `None` where `settings` has the value, and where a shared pool refuses all values but the default.
    let Config {
        page_bytes,
        max_order,
        free_area_min,
        cpu_penalty,
        counters,
        processes,
        hardening: Hardening { zero, poison: _, quarantine: _ },
        faults,
        watermarks: _,
        node_load: _,
        tuning: _,
        high_fraction: _,
        stat_interval: _,
        zonelist_cache: _,
        node_reclaim: _,
        reclaim_distance: _,
        min_unmapped_percent: _,
        owned_blocks: _,
        invalid_free: _,
        past: _,
    } = *config;
    let CounterRules { threshold, fold, pressure, totals: _ } = counters;
    let settings = Setting::ALL.iter().filter_map(|&setting| match config.get(setting) {
        SettingValue::None => None,
        value => Some(json!([setting.info().name, value.to_string()])),
    });
    json!({
        "page_bytes": page_bytes,
        "max_order": max_order.get(),
        "free_area_min": free_area_min.get(),
        "processes": processes,
        "cpus_are_penalized": cpu_penalty == CpuPenalty::On,
        "threshold": if let ThresholdRule::Fixed(threshold) = threshold { Some(threshold) } else { None },
        "folds_to_zero": fold == FoldRule::ToZero,
        "lowers_thresholds": pressure == PressureRule::Lowered,
        "zeroes": zero == ZeroOn::EveryAllocation,
        "faults": match faults {
            Faults::None => Value::Null,
            Faults::EveryNth(nth) => json!([nth]),
            Faults::Random { seed, one_in } => json!([one_in, seed]),
        },
        "settings": settings.collect::<Vec<_>>(),
    })
}

/// Returns the configuration with these values.
fn config_of(value: &Value) -> Option<Config> {
    let number = |key: &str| value[key].as_u64();
    let byte = |key: &str| u8::try_from(number(key)?).ok();
    let choose = |key: &str| value[key].as_bool();
    let counters = CounterRules {
        threshold: if value["threshold"].is_null() {
            ThresholdRule::Scaled
        } else {
            ThresholdRule::Fixed(byte("threshold")?)
        },
        fold: if choose("folds_to_zero")? { FoldRule::ToZero } else { FoldRule::Overstep },
        pressure: if choose("lowers_thresholds")? { PressureRule::Lowered } else { PressureRule::Unchanged },
        ..CounterRules::default()
    };
    let zero = if choose("zeroes")? { ZeroOn::EveryAllocation } else { ZeroOn::Request };
    let faults = match value["faults"].as_array() {
        None => Faults::None,
        Some(faults) => {
            let one_in = NonZeroU64::new(faults.first()?.as_u64()?)?;
            match faults.get(1) {
                None => Faults::EveryNth(one_in),
                Some(seed) => Faults::Random { seed: seed.as_u64()?, one_in },
            }
        }
    };
    let mut config = linked(Config {
        page_bytes: u32::try_from(number("page_bytes")?).ok()?,
        max_order: Order::new(byte("max_order")?)?,
        free_area_min: PageCount::new(number("free_area_min")?),
        processes: byte("processes")?,
        cpu_penalty: if choose("cpus_are_penalized")? { CpuPenalty::On } else { CpuPenalty::Off },
        counters,
        hardening: Hardening { zero, ..Hardening::default() },
        faults,
        ..Config::default()
    });
    for setting in value["settings"].as_array()? {
        config.set(setting[0].as_str()?, setting[1].as_str()?).ok()?;
    }
    Some(config)
}
