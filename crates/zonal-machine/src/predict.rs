//! Predicts the values that a kernel with the given rules computes for a machine. It uses the allocator's own
//! arithmetic.

use zonal::rules::fallback_order::{FallbackNodes, fallback_order};
use zonal::rules::pageset_limits::{PagesetLimits, PagesetZone};
use zonal::rules::stat_threshold::stat_threshold;
use zonal::rules::watermarks::{WatermarkSettings, Watermarks};
use zonal::units::{NodeId, PageCount, ZoneKind};
use zonal_model::{MachineModel, OfflineLists, OwnPlace, Presence, Rules, ZoneModel};

/// The predicted values of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// Fallback order of each node, in the order of the machine's nodes. The order of an offline node is empty if the
    /// kernel has no lists for offline nodes.
    pub orders: Vec<Vec<NodeId>>,
    /// Values of each zone, in the order of the machine's zones.
    pub zones: Vec<ZonePrediction>,
}

/// The predicted values of a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZonePrediction {
    /// The zone's watermarks.
    pub watermarks: Watermarks,
    /// The lowmem reserve for each limit: DMA, DMA32, Normal, Movable, Device.
    pub protection: [PageCount; 5],
    /// The limits of the zone's pagesets, as the kernel reports them.
    pub limits: PagesetLimits,
    /// The threshold of the zone's counters.
    pub stat_threshold: u8,
}

/// Predicts all values of a machine.
#[must_use]
pub fn predict(model: &MachineModel, rules: &Rules) -> Prediction {
    Prediction { orders: orders(model, rules), zones: zones(model, rules) }
}

/// Returns the fallback orders that the kernel computes when it rebuilds all its lists.
pub(crate) fn orders(model: &MachineModel, rules: &Rules) -> Vec<Vec<NodeId>> {
    let count = model.nodes.len();
    let fallback = rules.fallback(model.cpu_penalty());
    let (mut load, mut order) = (vec![0; count], vec![0; count]);
    let mut orders = vec![Vec::new(); count];
    for from in build_sequence(model) {
        let offline = model.nodes[from].presence == Presence::PossibleOffline;
        if offline && rules.offline_lists == OfflineLists::Skipped {
            continue;
        }
        let length = fallback_order(from, model, &fallback, &mut load, &mut order);
        let order = order[..length].iter().map(|&place| usize::from(place));
        // The entry has no effect on the loads and on the rest of the list.
        let is_useless =
            |&place: &usize| rules.own_place == OwnPlace::Always && order.clone().next() != Some(place);
        let own = Some(from).filter(is_useless);
        orders[from] = own.into_iter().chain(order.clone()).map(|place| model.nodes[place].id).collect();
    }
    orders
}

/// Returns the nodes in the sequence of a full rebuild: first all online nodes, then all offline nodes, each in
/// ascending order.
///
/// Linux since 6.1 also builds lists for possible nodes that are offline, and these lists affect the loads.
fn build_sequence(nodes: &impl FallbackNodes) -> impl Iterator<Item = usize> {
    let online = (0..nodes.len()).filter(|&node| nodes.is_online(node));
    online.chain((0..nodes.len()).filter(|&node| !nodes.is_online(node)))
}

/// Returns the watermark settings that a kernel with these rules uses on a machine.
pub(crate) fn watermark_settings(model: &MachineModel, rules: &Rules) -> WatermarkSettings {
    let settings = model.settings.watermarks(model.page_bytes, rules.movable_min);
    if rules.has_scale_factor { settings } else { WatermarkSettings { scale_factor: 0, ..settings } }
}

fn zones(model: &MachineModel, rules: &Rules) -> Vec<ZonePrediction> {
    let settings = watermark_settings(model, rules);
    let basis = settings.basis(model.zones.iter().map(|zone| (zone.kind, zone.managed)), model.page_bytes);
    let online_cpus = model.online_cpus();
    let pagesets = rules.pagesets(model.settings.high_fraction);
    let predicted = |zone: &ZoneModel| {
        let watermarks = basis.watermarks(zone.kind, zone.managed);
        let node_cpus = model.place(zone.node).map_or(0, |place| model.nodes[place].cpus.len() as u32);
        let sized = PagesetZone { managed: zone.managed, low: watermarks.low, node_cpus, online_cpus };
        ZonePrediction {
            watermarks,
            protection: protection(model, zone, &settings),
            limits: pagesets.limits(&sized, model.page_bytes),
            stat_threshold: stat_threshold(online_cpus, zone.managed, model.page_bytes),
        }
    };
    model.zones.iter().map(predicted).collect()
}

/// Returns a zone's lowmem reserves. The model has no device memory, so its column repeats that of movable memory.
fn protection(model: &MachineModel, zone: &ZoneModel, settings: &WatermarkSettings) -> [PageCount; 5] {
    let mut managed = [PageCount::ZERO; ZoneKind::COUNT];
    for other in model.zones_of(zone.node) {
        managed[other.kind.index()] = other.managed;
    }
    let [dma, dma32, normal, movable] =
        ZoneKind::ALL.map(|limit| settings.reserve(&managed, zone.kind, limit));
    [dma, dma32, normal, movable, movable]
}
