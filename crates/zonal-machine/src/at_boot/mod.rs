//! Values that a kernel computed at boot, before it gave boot memory to its zones.
//!
//! Linux computes watermarks, reserves, pagesets and counter thresholds early in the boot, from the
//! frames its zones have then. The initial file system and initialisation code are given to the
//! zones later, and nothing recomputes the values until a setting is written. Such values differ
//! from those of today's frames without being wrong. `search.rs` inverts the rules to find which
//! zones had how many frames fewer; this file decides whether that explains what differs.
//! Neighbours: `report.rs` makes the checks, `predict.rs` has the rules.

mod node_sums;
mod search;

use std::collections::BTreeSet;

use serde::Serialize;
use zonal::rules::pageset_limits::HighRule;
use zonal::units::PageCount;

use crate::kernel::Rules;
use crate::model::{MachineModel, Observed, ObservedZone};
use crate::predict::{Prediction, ZonePrediction, predict};
use crate::report::{Check, ValueGroup, checks};
use search::Found;

/// Figures that must be explained for each zone whose size at boot is inferred. With one figure for each
/// zone, any value that is too small would be explained by some number of frames.
const FIGURES_PER_ZONE: usize = 2;

/// How the machine was when its kernel computed the values that differ from today's.
///
/// Found by inverting the rules: with `zones` smaller by so much, every value of the groups concerned
/// is predicted exactly, those that do not differ included.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct AtBoot {
    /// Frames that the zones had fewer then, in total: the smallest number that explains all values.
    pub fewer: u64,
    /// The largest number found that explains the same values. Watermarks are rounded, so the true number
    /// can be any between the two.
    pub fewer_at_most: u64,
    /// The zones that were smaller, for `fewer`.
    pub zones: Vec<FewerFrames>,
    /// Number of checks that differ from the prediction and are explained.
    pub explained: usize,
    /// What makes the kernel compute the explained values again, from today's frames: they are then
    /// as predicted. Empty where that is not known of any of them.
    pub recomputed_by: Vec<&'static str>,
}

/// A zone that had fewer frames at boot.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub struct FewerFrames {
    /// Its node.
    pub node: u16,
    /// Its kind, as Linux names it.
    pub kind: &'static str,
    /// Frames it had fewer.
    pub fewer: u64,
}

/// A machine under the rules of its kernel.
#[derive(Clone, Copy)]
pub(crate) struct Machine<'a> {
    pub(crate) model: &'a MachineModel,
    pub(crate) rules: &'a Rules,
    pub(crate) observed: &'a Observed,
    /// What the rules make of today's frames.
    pub(crate) today: &'a Prediction,
}

/// Finds a smaller machine at boot that explains the values that differ, and marks these in `found`. `None`, and
/// nothing marked, when none differs or no smaller machine explains them.
pub(crate) fn explain_at_boot(machine: &Machine<'_>, found: &mut [Check]) -> Option<AtBoot> {
    let Machine { model, rules, observed, .. } = *machine;
    let differs = |group: &ValueGroup| found.iter().any(|check| check.group == *group && !check.same);
    let differing: Vec<ValueGroup> = ValueGroup::FROM_FRAMES.into_iter().filter(differs).collect();
    if differing.is_empty() {
        return None;
    }
    // A group that agrees with today's frames may have been computed again since.
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

/// Whether the machine as it was predicts every value of `groups` by the rules themselves, and enough of
/// what differs rests on each zone.
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

/// Observed figures of a zone that differ from today's prediction, without those that follow from another
/// of them: `high` and the pageset limits made of `low` never count, nor `low` where it is `min` and a
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

/// The observed values of some groups, as far as the rules have them.
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
