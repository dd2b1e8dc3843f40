//! Explains values that a kernel computed at boot, before it released boot memory to the zones.
//!
//! Linux computes watermarks, reserves, pagesets and counter thresholds early in the boot, from the frames that its
//! zones have then. It releases the initial file system and initialisation code to the zones later, and does not
//! recompute the values until a setting is written. Such values are correct, but differ from those computed from
//! today's frames. `at_boot/search.rs` inverts the rules to find how many frames fewer each zone had, and this file
//! decides whether that explains the differences.
//!
//! Related files: `report.rs` makes the checks, and `predict.rs` applies the rules.

mod node_sums;
mod search;

use std::collections::BTreeSet;

use serde::Serialize;
use zonal::units::PageCount;
use zonal_model::pageset_limits::HighRule;
use zonal_model::{MachineModel, Observed, ObservedZone, Rules};

use crate::predict::{Prediction, ZonePrediction, predict};
use crate::report::{Check, ValueGroup, checks};
use search::Found;

/// Number of figures that must be explained for each zone whose size at boot is inferred. With only one figure per
/// zone, some number of frames would explain any value that is too small.
const FIGURES_PER_ZONE: usize = 2;

/// The state of the machine when its kernel computed the values that differ from today's.
///
/// It is found by inverting the rules. With `zones` smaller by these amounts, the rules predict every value of the
/// affected groups exactly, including the values that do not differ.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct AtBoot {
    /// The smallest number of frames by which all zones together can have been smaller at boot to explain all values.
    pub fewer: u64,
    /// The largest number found that explains the same values. Watermarks are rounded, so the true number may be
    /// anywhere from `fewer` to this number.
    pub fewer_at_most: u64,
    /// The zones that were smaller, with the differences that add up to `fewer`.
    pub zones: Vec<FewerFrames>,
    /// Number of checks that differ from the prediction from today's frames and are explained.
    pub explained: usize,
    /// Actions that make the kernel recompute the explained values from today's frames, after which they
    /// match the prediction. Empty if none is known.
    pub recomputed_by: Vec<&'static str>,
}

/// A zone that had fewer frames at boot.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct FewerFrames {
    /// The node of the zone.
    pub node: u16,
    /// The zone's kind, by its Linux name.
    pub kind: &'static str,
    /// Number of frames by which the zone was smaller.
    pub fewer: u64,
}

/// A machine and the rules of its kernel.
#[derive(Clone, Copy)]
pub(crate) struct Machine<'a> {
    pub(crate) model: &'a MachineModel,
    pub(crate) rules: &'a Rules,
    pub(crate) observed: &'a Observed,
    /// The prediction from today's frames.
    pub(crate) today: &'a Prediction,
}

/// Finds a smaller machine at boot that explains the values that differ, and sets `as_at_boot` of their checks in
/// `found`.
///
/// Returns `None` and changes no check if no value differs or no smaller machine explains them.
pub(crate) fn explain_at_boot(machine: &Machine<'_>, found: &mut [Check]) -> Option<AtBoot> {
    let Machine { model, rules, observed, .. } = *machine;
    let differs = |group: &ValueGroup| found.iter().any(|check| check.group == *group && !check.same);
    let differing: Vec<ValueGroup> = ValueGroup::FROM_FRAMES.into_iter().filter(differs).collect();
    if differing.is_empty() {
        return None;
    }
    // A group that agrees with today's frames may have been recomputed since boot.
    let attempts = [&ValueGroup::FROM_FRAMES[..], &differing];
    let (groups, state) = attempts.into_iter().find_map(|groups| {
        let seen = only(observed, groups, rules);
        let state = search::search(model, rules, &seen)?;
        holds(machine, groups, &seen, &state).then_some((groups, state))
    })?;
    let mut explained = 0;
    for check in found.iter_mut().filter(|check| groups.contains(&check.group) && !check.same) {
        check.as_at_boot = true;
        explained += 1;
    }
    Some(AtBoot {
        fewer: state.fewer,
        fewer_at_most: state.fewer_at_most,
        zones: smaller_zones(model, &state),
        explained,
        recomputed_by: differing.iter().filter_map(|group| group.recomputed_by(rules)).collect(),
    })
}

/// Whether the rules predict every value of `groups` for the machine in `state`, and there are enough differing figures
/// for the number of smaller zones.
fn holds(machine: &Machine<'_>, groups: &[ValueGroup], seen: &[ObservedZone], state: &Found) -> bool {
    let Machine { model, rules, observed, today } = *machine;
    let mut then = model.clone();
    for (zone, &managed) in then.zones.iter_mut().zip(&state.managed) {
        zone.managed = managed;
    }
    let checks = checks(model, rules, &predict(&then, rules), observed);
    let all = checks.iter().filter(|check| groups.contains(&check.group)).all(|check| check.same);
    let predicted = |zone: &ObservedZone| {
        let at = model.zones.iter().position(|known| (known.node, known.kind) == (zone.node, zone.kind))?;
        Some(&today.zones[at])
    };
    let figures: usize = seen.iter().filter_map(|zone| Some(figures(zone, predicted(zone)?))).sum();
    all && figures >= FIGURES_PER_ZONE * smaller_zones(model, state).len()
}

/// Counts the observed figures of a zone that differ from today's prediction and do not follow from another figure.
/// `high` and the pageset limits derived from `low` never count, and `low` does not count if it is `min` plus a
/// quarter.
fn figures(seen: &ObservedZone, today: &ZonePrediction) -> usize {
    let (marks, limits) = (&today.watermarks, &today.limits);
    let differs = |seen: Option<PageCount>, today: PageCount| seen.is_some_and(|seen| seen != today);
    let gap = seen.low.zip(seen.min).map(|(low, min)| (low.saturating_minus(min), min.get() / 4));
    let scaled = gap.filter(|(gap, quarter)| gap.get() != *quarter).map(|(gap, _)| gap);
    let single = [
        differs(seen.min, marks.min),
        differs(scaled, marks.low.saturating_minus(marks.min)),
        differs(seen.batch, limits.batch),
        differs(seen.pageset_high_max, limits.high_max),
        seen.stat_threshold.is_some_and(|threshold| threshold != today.stat_threshold),
    ];
    let row = seen.protection.iter().flatten().zip(&today.protection);
    let reserves: BTreeSet<_> = row.filter(|(seen, today)| seen != today).map(|(seen, _)| *seen).collect();
    single.into_iter().filter(|&differs| differs).count() + reserves.len()
}

fn smaller_zones(model: &MachineModel, state: &Found) -> Vec<FewerFrames> {
    let zones = model.zones.iter().zip(&state.managed);
    let smaller =
        zones.filter(|(zone, managed)| **managed < zone.managed).map(|(zone, managed)| FewerFrames {
            node: zone.node.get(),
            kind: zone.kind.name(),
            fewer: zone.managed.saturating_minus(*managed).get(),
        });
    smaller.collect()
}

/// Returns the observed values of some groups, without those that the rules do not predict.
fn only(observed: &Observed, groups: &[ValueGroup], rules: &Rules) -> Vec<ObservedZone> {
    let has = |group| groups.contains(&group);
    let (marks, pagesets) = (has(ValueGroup::Watermarks), has(ValueGroup::of_pagesets(rules)));
    let tuned = rules.high == HighRule::Tuned;
    let zones = observed.zones.iter().map(|zone| ObservedZone {
        node: zone.node,
        kind: zone.kind,
        min: zone.min.filter(|_| marks),
        low: zone.low.filter(|_| marks),
        high: zone.high.filter(|_| marks),
        protection: zone.protection.filter(|_| has(ValueGroup::Reserves)),
        batch: zone.batch.filter(|_| pagesets),
        pageset_high: zone.pageset_high.filter(|_| pagesets && !tuned),
        pageset_high_min: zone.pageset_high_min.filter(|_| pagesets && tuned),
        pageset_high_max: zone.pageset_high_max.filter(|_| pagesets && tuned),
        stat_threshold: zone.stat_threshold.filter(|_| has(ValueGroup::Thresholds)),
    });
    zones.collect()
}
