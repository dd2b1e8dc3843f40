//! The report on a machine: plain data in the structure that `zonal machine --json` prints.
//!
//! Amounts of memory are in frames. A *check* compares one predicted value with the observed value.
//!
//! Related files: `predict.rs` predicts the values, `advice/mod.rs` adds advice, and the command line prints the
//! report.

use std::collections::BTreeMap;

use serde::Serialize;
use zonal::settings::Setting;
use zonal::units::{NodeId, PageCount};
use zonal_model::pageset_limits::HighRule;
use zonal_model::{KernelVersion, MachineModel, Observed, ObservedZone, Presence, Rules, ZoneModel};

use crate::advice::advise;
use crate::at_boot::{AtBoot, Machine, explain_at_boot};
use crate::filling::{Filling, filling};
use crate::predict::{Prediction, ZonePrediction, predict};

/// The report on a machine.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Report {
    /// The machine's name.
    pub name: String,
    /// Bytes per frame.
    pub page_bytes: u32,
    /// The online nodes, ascending.
    pub nodes: Vec<NodeReport>,
    /// The zones, by node and kind.
    pub zones: Vec<ZoneReport>,
    /// For each node, how often other nodes use it as a fallback.
    pub balance: Vec<Balance>,
    /// All observed values, each with the predicted value.
    pub checks: Vec<Check>,
    /// Predicted values that the machine's kernel did not report, so that they were not compared.
    pub unchecked: Vec<Unchecked>,
    /// Whether the rules are assumed: no kernel of this version was compared with them, neither this machine's nor another.
    pub assumed: bool,
    /// The nodes in the order in which they fill if all CPUs allocate at the same rate.
    pub filling: Vec<Filling>,
    /// The boot-time memory that explains the differences, if there is such an explanation. The kernel computed the
    /// differing values at boot, when its zones had fewer frames. The rules predict these values for the smaller zones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_boot: Option<AtBoot>,
    /// Advice for the administrator.
    pub advice: Vec<Advice>,
}

/// A node.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct NodeReport {
    /// The node's id.
    pub id: u16,
    /// The node's CPUs.
    pub cpus: Vec<u32>,
    /// Number of managed frames.
    pub managed: u64,
    /// The nodes that serve requests of this node, from the first choice to the last.
    pub fallback_order: Vec<u16>,
}

/// A zone.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct ZoneReport {
    /// The zone's node.
    pub node: u16,
    /// The zone's kind, by its Linux name.
    pub kind: &'static str,
    /// Number of managed frames.
    pub managed: u64,
    /// Watermark `min`.
    pub min: u64,
    /// Watermark `low`.
    pub low: u64,
    /// Watermark `high`.
    pub high: u64,
    /// Lowmem reserve by the request's zone limit: DMA, DMA32, Normal, Movable, Device.
    pub protection: Vec<u64>,
    /// Batch of the zone's pagesets.
    pub batch: u64,
    /// Fixed `high` of the zone's pagesets, for kernels before 6.7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pageset_high: Option<u64>,
    /// Lower limit of the tuned `high`, for kernels from 6.7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pageset_high_min: Option<u64>,
    /// Upper limit of the tuned `high`, for kernels from 6.7.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pageset_high_max: Option<u64>,
    /// Threshold of the zone's counters.
    pub stat_threshold: u64,
}

/// How often other nodes use a node as a fallback.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Balance {
    /// The node.
    pub node: u16,
    /// The number of other nodes' fallback lists in which the node is the first, second, third ... fallback. The node
    /// that owns a list is not counted as a fallback of that list.
    pub times_nth: Vec<u32>,
}

/// Values of one name that were not compared.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct Unchecked {
    /// The name, such as `fallback_order`.
    pub value: &'static str,
    /// How many nodes or zones lack it.
    pub count: usize,
}

/// A predicted value and the observed value.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Check {
    /// The name of the value, such as `min node 0 DMA32`.
    pub what: String,
    /// The value that the rules predict.
    pub predicted: Measured,
    /// The value that the machine's kernel reported.
    pub observed: Measured,
    /// Whether the two values agree.
    pub same: bool,
    /// Whether the two values differ only because the kernel computed the value at boot, when the zones had fewer
    /// frames ([`Report::at_boot`]). Once the kernel recomputes the value, the new value will equal the prediction.
    pub as_at_boot: bool,
    /// The group of values that a kernel computes together with this value.
    #[serde(skip)]
    pub(crate) group: ValueGroup,
}

impl Check {
    /// Whether the observed value differs from the predicted value, and the boot-time memory does not explain the
    /// difference.
    #[must_use]
    pub const fn differs(&self) -> bool {
        !self.same && !self.as_at_boot
    }
}

/// Values that a kernel computes at the same time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ValueGroup {
    /// Fallback orders, which do not depend on the number of frames.
    Orders,
    /// Watermarks and, since Linux 5.14, pageset limits.
    Watermarks,
    /// Lowmem reserves.
    Reserves,
    /// Pageset limits, before Linux 5.14.
    Pagesets,
    /// Thresholds of counters.
    Thresholds,
}

impl ValueGroup {
    /// The groups whose values depend on the number of frames in zones.
    pub(crate) const FROM_FRAMES: [Self; 4] =
        [Self::Watermarks, Self::Reserves, Self::Pagesets, Self::Thresholds];

    /// Returns the group that contains the pageset limits.
    pub(crate) fn of_pagesets(rules: &Rules) -> Self {
        if rules.high == HighRule::SixBatches { Self::Pagesets } else { Self::Watermarks }
    }

    /// Returns the administrator's action that makes a kernel recompute the values of this group, or `None` if no such
    /// action is known from a real kernel.
    pub(crate) fn recomputed_by(self, rules: &Rules) -> Option<&'static str> {
        match self {
            Self::Watermarks if !rules.has(Setting::WatermarkScaleFactor) => None,
            Self::Watermarks if rules.high == HighRule::SixBatches => {
                Some("writing vm.watermark_scale_factor (even the same value) recomputes the watermarks")
            }
            Self::Watermarks => Some(
                "writing vm.watermark_scale_factor (even the same value) recomputes the watermarks and the limits of pagesets",
            ),
            Self::Reserves => Some("reading or writing vm.lowmem_reserve_ratio recomputes the protections"),
            Self::Orders | Self::Pagesets | Self::Thresholds => None,
        }
    }
}

/// A number, or a row of numbers.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
#[serde(untagged)]
pub enum Measured {
    /// One number.
    One(u64),
    /// Several numbers, such as the nodes of a fallback order.
    Row(Vec<u64>),
}

/// One piece of advice.
#[derive(Serialize, Clone, PartialEq, Debug)]
pub struct Advice {
    /// How serious the advice is.
    pub severity: Severity,
    /// The advice, with the figures that it is based on.
    pub text: String,
}

/// How serious a piece of advice is.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Useful information.
    Info,
    /// A likely problem.
    Warn,
}

/// Creates the report on a machine from the rules of a kernel.
///
/// The report contains the values that the rules predict and, if the model has observed values, the comparison of both.
#[must_use]
pub fn explain(model: &MachineModel, rules: &Rules) -> Report {
    let prediction = predict(model, rules);
    let balance = balance(model, &prediction.orders);
    let (checks, at_boot) = model.observed.as_ref().map_or_else(Default::default, |observed| {
        let mut checks = checks(model, rules, &prediction, observed);
        let at_boot = explain_at_boot(&Machine { model, rules, observed, today: &prediction }, &mut checks);
        (checks, at_boot)
    });
    let advice = advise(model, rules, &prediction, &balance);
    let compared =
        model.observed.as_ref().is_some_and(|own| own.kernel == Some(rules.version)) && !checks.is_empty();
    let online = model.nodes.iter().zip(&prediction.orders);
    Report {
        name: model.name.clone(),
        page_bytes: model.page_bytes,
        nodes: online
            .filter(|(node, _)| node.presence == Presence::Online)
            .map(|(node, order)| NodeReport {
                id: node.id.get(),
                cpus: node.cpus.iter().map(|cpu| cpu.get()).collect(),
                managed: model.managed_of(node.id).get(),
                fallback_order: order.iter().map(|id| id.get()).collect(),
            })
            .collect(),
        zones: zones(model, rules, &prediction),
        balance,
        unchecked: unchecked(model, rules, &checks),
        assumed: !compared && !KernelVersion::COMPARED.contains(&rules.version),
        filling: filling(model, &prediction.orders),
        checks,
        at_boot,
        advice,
    }
}

/// Counts the predicted values without a check.
fn unchecked(model: &MachineModel, rules: &Rules, checks: &[Check]) -> Vec<Unchecked> {
    let tuned = rules.high == HighRule::Tuned;
    let zones = model.zones.len();
    let values = [
        ("fallback_order", model.online_nodes().count()),
        ("min", zones),
        ("low", zones),
        ("high", zones),
        ("protection", zones),
        ("batch", zones),
        ("pageset_high", if tuned { 0 } else { zones }),
        ("pageset_high_min", if tuned { zones } else { 0 }),
        ("pageset_high_max", if tuned { zones } else { 0 }),
        ("stat_threshold", zones),
    ];
    let lacking = values.map(|(value, predicted)| {
        let has_name = |check: &&Check| check.what.split(' ').next() == Some(value);
        Unchecked { value, count: predicted.saturating_sub(checks.iter().filter(has_name).count()) }
    });
    lacking.into_iter().filter(|lacking| lacking.count > 0).collect()
}

fn zones(model: &MachineModel, rules: &Rules, prediction: &Prediction) -> Vec<ZoneReport> {
    let tuned = rules.high == HighRule::Tuned;
    let report = |(zone, predicted): (&ZoneModel, &ZonePrediction)| {
        let ZonePrediction { watermarks, limits, .. } = predicted;
        ZoneReport {
            node: zone.node.get(),
            kind: zone.kind.name(),
            managed: zone.managed.get(),
            min: watermarks.min.get(),
            low: watermarks.low.get(),
            high: watermarks.high.get(),
            protection: predicted.protection.iter().map(|pages| pages.get()).collect(),
            batch: limits.batch.get(),
            pageset_high: (!tuned).then(|| limits.high_min.get()),
            pageset_high_min: tuned.then(|| limits.high_min.get()),
            pageset_high_max: tuned.then(|| limits.high_max.get()),
            stat_threshold: u64::from(predicted.stat_threshold),
        }
    };
    model.zones.iter().zip(&prediction.zones).map(report).collect()
}

/// Counts how often each online node with memory is the nth fallback of another online node.
pub(crate) fn balance(model: &MachineModel, orders: &[Vec<NodeId>]) -> Vec<Balance> {
    let mut times: BTreeMap<NodeId, Vec<u32>> = BTreeMap::new();
    let owners = model.nodes.iter().zip(orders).filter(|(node, _)| node.presence == Presence::Online);
    let places = model.online_nodes().count() - 1;
    for (owner, order) in owners {
        for (nth, &node) in order.iter().filter(|&&node| node != owner.id).enumerate() {
            times.entry(node).or_insert_with(|| vec![0; places])[nth] += 1;
        }
    }
    times.into_iter().map(|(node, times_nth)| Balance { node: node.get(), times_nth }).collect()
}

/// Returns the checks of all observed values.
pub(crate) fn checks(
    model: &MachineModel,
    rules: &Rules,
    prediction: &Prediction,
    observed: &Observed,
) -> Vec<Check> {
    let mut checks = Vec::new();
    for (&node, order) in &observed.fallback_order {
        let Some(place) = model.place(node) else { continue };
        let ids = |order: &[NodeId]| Measured::Row(order.iter().map(|id| u64::from(id.get())).collect());
        let what = format!("fallback_order node {node}");
        checks.push(Check::new(what, ids(&prediction.orders[place]), ids(order), ValueGroup::Orders));
    }
    for zone in &observed.zones {
        let at = model.zones.binary_search_by_key(&(zone.node, zone.kind), |known| (known.node, known.kind));
        if let Ok(at) = at {
            check_zone(zone, &prediction.zones[at], rules, &mut checks);
        }
    }
    checks
}

/// Adds the checks of a zone's observed values to `checks`.
///
/// Skips observed values that the rules cannot predict. For example, a kernel that tunes `high` changes it all the
/// time, so the rules predict only its lower and upper limits.
fn check_zone(zone: &ObservedZone, predicted: &ZonePrediction, rules: &Rules, checks: &mut Vec<Check>) {
    let ZonePrediction { watermarks, limits, .. } = predicted;
    let tuned = rules.high == HighRule::Tuned;
    let place = format!("node {} {}", zone.node, zone.kind);
    let mut check = |name: &str, group, predicted: Measured, observed: Option<Measured>| {
        if let Some(observed) = observed {
            checks.push(Check::new(format!("{name} {place}"), predicted, observed, group));
        }
    };
    let one = |pages: PageCount| Measured::One(pages.get());
    let row = |pages: &[PageCount]| Measured::Row(pages.iter().map(|pages| pages.get()).collect());
    let (marks, pagesets) = (ValueGroup::Watermarks, ValueGroup::of_pagesets(rules));
    check("min", marks, one(watermarks.min), zone.min.map(one));
    check("low", marks, one(watermarks.low), zone.low.map(one));
    check("high", marks, one(watermarks.high), zone.high.map(one));
    let protection = zone.protection.as_ref().map(|pages| row(pages));
    check("protection", ValueGroup::Reserves, row(&predicted.protection), protection);
    check("batch", pagesets, one(limits.batch), zone.batch.map(one));
    let high = |pages: Option<PageCount>, has| pages.filter(|_| has).map(one);
    check("pageset_high", pagesets, one(limits.high_min), high(zone.pageset_high, !tuned));
    check("pageset_high_min", pagesets, one(limits.high_min), high(zone.pageset_high_min, tuned));
    check("pageset_high_max", pagesets, one(limits.high_max), high(zone.pageset_high_max, tuned));
    let threshold = |threshold: u8| Measured::One(u64::from(threshold));
    let observed = zone.stat_threshold.map(threshold);
    check("stat_threshold", ValueGroup::Thresholds, threshold(predicted.stat_threshold), observed);
}

impl Check {
    fn new(what: String, predicted: Measured, observed: Measured, group: ValueGroup) -> Self {
        let same = predicted == observed;
        Self { what, predicted, observed, same, as_at_boot: false, group }
    }
}

/// Formats a position as an English ordinal: `1st`, `2nd`, `3rd`, `4th`, `11th`, `21st`.
///
/// ```
/// # use zonal_machine::ordinal;
/// assert_eq!([1, 2, 3, 4].map(ordinal), ["1st", "2nd", "3rd", "4th"]);
/// assert_eq!([11, 12, 13, 21, 111, 122].map(ordinal), ["11th", "12th", "13th", "21st", "111th", "122nd"]);
/// ```
#[must_use]
pub fn ordinal(nth: usize) -> String {
    let ending = match (nth % 100, nth % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{nth}{ending}")
}

/// Formats a size with a suitable binary unit: `15.8 MiB`, `63 GiB`.
#[must_use]
pub fn readable_size(pages: PageCount, page_bytes: u32) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut size = pages.get() as f64 * f64::from(page_bytes) / 1024.0;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(size < 100.0 && size.fract() > 0.05);
    format!("{size:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_sizes() {
        let size = |pages| readable_size(PageCount::new(pages), 4096);
        assert_eq!([size(0), size(1), size(3840), size(4031)], ["0 KiB", "4 KiB", "15 MiB", "15.7 MiB"]);
        assert_eq!([size(1 << 18), size(1 << 52)], ["1 GiB", "16 EiB"]);
    }
}
