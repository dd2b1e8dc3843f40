//! A small machine and a configuration, read off bytes.
//!
//! Up to three nodes, of which some may lack CPUs or memory, zones of any kinds with holes between and
//! in them. Neighbours: `operations.rs` plays on it.

use zonal::config::{Hardening, Misuse, NodeReclaim, ZonelistCache};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::pageset_tuning::PagesetTuning;
use zonal::threshold::{CounterRules, FoldRule, PressureRule, ThresholdRule, TotalsRule};
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::watermarks::WatermarkSettings;
use zonal::{Config, Machine};

use crate::targets::choices::Choices;

/// A zone to be built.
pub(super) struct PlannedZone {
    pub(super) node: NodeId,
    pub(super) kind: ZoneKind,
    pub(super) span: FrameRange,
    pub(super) managed: Vec<FrameRange>,
}

impl PlannedZone {
    /// What is not managed at start, ascending.
    fn holes(&self) -> Vec<FrameRange> {
        let ends = self.managed.iter().map(FrameRange::end);
        let starts = self.managed.iter().map(|range| range.start);
        let from = [self.span.start].into_iter().chain(ends);
        let to = starts.chain([self.span.end()]);
        let holes = from.zip(to).map(|(from, to)| range(from.get(), to.get() - from.get()));
        holes.filter(|hole| hole.count.get() > 0).collect()
    }
}

/// A machine to be built.
pub(super) struct Plan {
    /// CPUs and distances of each node.
    nodes: Vec<(NodeId, Vec<CpuId>, Vec<u8>)>,
    pub(super) zones: Vec<PlannedZone>,
}

pub(super) fn range(start: u64, count: u64) -> FrameRange {
    FrameRange { start: Pfn::new(start), count: PageCount::new(count) }
}

/// The node `id`, which is small.
pub(super) fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("ids of nodes are small here")
}

impl Plan {
    pub(super) fn read(choices: &mut Choices<'_>) -> Self {
        let count = 1 + choices.small(3) as u16;
        let (mut nodes, mut zones, mut cpus) = (Vec::new(), Vec::new(), 0);
        let mut at = choices.below(5000);
        for id in 0..count {
            let here = choices.small(4) as u32;
            // A machine without any CPU runs nothing.
            let here = if id + 1 == count && cpus == 0 { here.max(1) } else { here };
            let distances = (0..count).map(|to| if to == id { 10 } else { 10 + choices.byte() % 40 });
            nodes.push((node(id), (cpus..cpus + here).map(CpuId::new).collect(), distances.collect()));
            cpus += here;
            let kinds = choices.byte();
            let wanted = |kind: &ZoneKind| Choices::has(kinds, kind.index() as u32);
            // A machine without any zone is refused.
            for kind in ZoneKind::ALL {
                let needed = id + 1 == count && kind == ZoneKind::Movable && zones.is_empty();
                if !wanted(&kind) && !needed {
                    continue;
                }
                let zone = zone(choices, at, node(id), kind);
                at = zone.span.end().get() + u64::from(choices.byte()) * 8;
                zones.push(zone);
            }
        }
        Self { nodes, zones }
    }

    pub(super) fn cpus(&self) -> u64 {
        self.nodes.iter().map(|(_, cpus, _)| cpus.len() as u64).sum()
    }

    /// Frames that any zone spans.
    pub(super) fn frames(&self) -> u64 {
        self.zones.iter().map(|zone| zone.span.count.get()).sum()
    }

    pub(super) fn with<T>(&self, work: impl FnOnce(&Machine<'_>) -> T) -> T {
        let nodes: Vec<NodeDescription<'_>> = (self.nodes.iter())
            .map(|(id, cpus, distances)| NodeDescription { id: *id, cpus, distances })
            .collect();
        let zones: Vec<ZoneDescription<'_>> = (self.zones.iter())
            .map(|zone| ZoneDescription {
                node: zone.node,
                kind: zone.kind,
                span: zone.span,
                managed: &zone.managed,
            })
            .collect();
        // All holes may become memory.
        let hotplug: Vec<FrameRange> = self.zones.iter().flat_map(PlannedZone::holes).collect();
        let machine = Machine::new(&nodes, &zones).expect("plans describe machines");
        work(&machine.with_hotplug(&hotplug).expect("holes are between what is managed"))
    }
}

/// A zone from `at` on, with up to four ranges of memory.
fn zone(choices: &mut Choices<'_>, at: u64, node: NodeId, kind: ZoneKind) -> PlannedZone {
    let most = choices.pick(&[600, 64, 2500, 64, 600, 64, 200, 9000]);
    let count = 1 + choices.below(most);
    let mut managed = Vec::new();
    let mut next = at + u64::from(choices.byte() % 16);
    while next < at + count && managed.len() < 4 {
        let frames = (1 + choices.below(count)).min(at + count - next);
        managed.push(range(next, frames));
        next += frames + 1 + u64::from(choices.byte());
    }
    PlannedZone { node, kind, span: range(at, count), managed }
}

pub(super) const TUNINGS: [PagesetTuning; 3] =
    [PagesetTuning::Depth, PagesetTuning::Stepwise, PagesetTuning::Fixed];
pub(super) const CACHES: [ZonelistCache; 5] = [
    ZonelistCache::On,
    ZonelistCache::Published,
    ZonelistCache::CacheFirst,
    ZonelistCache::Original,
    ZonelistCache::Off,
];
pub(super) const NODE_RECLAIMS: [NodeReclaim; 2] = [NodeReclaim::OFF, NodeReclaim::ON];

pub(super) fn config(choices: &mut Choices<'_>) -> Config {
    let order = |order| Order::new(order).expect("orders up to 18 there are");
    Config {
        tuning: choices.pick(&TUNINGS),
        zonelist_cache: choices.pick(&CACHES),
        node_reclaim: choices.pick(&NODE_RECLAIMS),
        misuse: choices.pick(&[Misuse::Checked, Misuse::Exact]),
        counters: CounterRules {
            threshold: choices.pick(&[
                ThresholdRule::Scaled,
                ThresholdRule::Fixed(1),
                ThresholdRule::Fixed(125),
            ]),
            fold: choices.pick(&[FoldRule::Overstep, FoldRule::ToZero]),
            totals: choices.pick(&[TotalsRule::PerNode, TotalsRule::AndMachine]),
            pressure: choices.pick(&[PressureRule::Lowered, PressureRule::Unchanged]),
        },
        region_min: PageCount::new(choices.pick(&[1 << 14, 0])),
        max_order: order(choices.pick(&[10, 11, 12, 18])),
        hardening: Hardening {
            quarantine: PageCount::new(choices.pick(&[0, 0, 1, 50])),
            ..Hardening::default()
        },
        ..Config::default()
    }
}

/// Watermarks and reserves, of which the minimum may be too large for the machine.
pub(super) fn watermarks(choices: &mut Choices<'_>) -> WatermarkSettings {
    let min_free = Choices::has(choices.byte(), 0).then(|| PageCount::new(choices.below(9000)));
    let scale_factor = choices.pick(&[10, 0, 100, 10_000, u32::MAX]);
    let lowmem_reserve_ratio = [(); ZoneKind::COUNT].map(|()| choices.pick(&[256, 0, 1, 32]));
    WatermarkSettings { min_free, scale_factor, lowmem_reserve_ratio, ..WatermarkSettings::default() }
}
