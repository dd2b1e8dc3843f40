//! Finds the frames that each zone had when a kernel computed its values, by inverting the rules.
//!
//! All rules are nondecreasing in the frames of a zone, so an observed value confines the frames to an interval once
//! *sharing* is known: the total frames of all zones that share `min_free_kbytes`. The search tries totals from today's
//! total downward, so it finds the smallest difference first. Every total yields an interval for each zone
//! (`Inverse::invert`), and every reserve column confines a sum of a node's neighbouring zones
//! (`at_boot/node_sums.rs`). The zones must add up to the total, so totals to which they cannot add up are skipped. The
//! number of steps is bounded.
//!
//! Related files: `at_boot/mod.rs` checks the result with the rules themselves.

use zonal::rules::pageset_limits::PagesetZone;
use zonal::rules::stat_threshold::stat_threshold;
use zonal::rules::watermarks::{MovableMin, WatermarkBasis, WatermarkSettings};
use zonal::units::{PageCount, ZoneKind};
use zonal_model::{MachineModel, ObservedZone, Rules, ZoneModel};

use super::node_sums::{NodeSums, Range};
use crate::predict::watermark_settings;

/// Budget of a search, in evaluations of one zone for one total.
const EVALUATIONS_MAX: u64 = 1 << 22;
/// Cost of inverting all rules for a zone, in evaluations.
const INVERSION_COST: u64 = 64;

/// The sizes of zones that explain the observed values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// The smallest number of frames by which all zones together were smaller than today.
    pub(super) fewer: u64,
    /// The largest such number that explains the same values, found by steps that double.
    pub(super) fewer_at_most: u64,
    /// Frames of each zone for `fewer`, in the order of the machine's zones.
    pub(super) managed: Vec<PageCount>,
}

/// Searches for zones for which the rules predict exactly the values of `observed`. No zone may be larger than today,
/// and their total must be at least half of today's. Returns `None` if there are no such zones, or if the budget does
/// not suffice to find them.
pub(super) fn search(model: &MachineModel, rules: &Rules, observed: &[ObservedZone]) -> Option<Found> {
    let inverse = Inverse::new(model, rules, observed)?;
    let today = inverse.sharing_today();
    let mut budget = Budget(EVALUATIONS_MAX);
    let mut sharing = today;
    let found = loop {
        match inverse.solve(sharing, &mut budget)? {
            Step::Fits(solution) => break solution,
            Step::Next(lower) if lower >= today / 2 && lower > 0 => sharing = lower,
            Step::Next(_) => return None,
        }
    };
    let last = inverse.lowest_from(sharing, today / 2, &mut budget);
    let managed: u64 = model.zones.iter().map(|zone| zone.managed.get()).sum();
    let fewer = managed - found.iter().map(|pages| pages.get()).sum::<u64>();
    Some(Found { fewer, fewer_at_most: fewer + (sharing - last), managed: found })
}

/// The cost that a search may still incur.
struct Budget(u64);

impl Budget {
    fn spend(&mut self, evaluations: u64) -> Option<()> {
        self.0 = self.0.checked_sub(evaluations)?;
        Some(())
    }
}

/// The outcome of one total.
enum Step {
    /// These frames per zone explain all values.
    Fits(Vec<PageCount>),
    /// No zones of this total explain the values. The next total that may do so is at most this number.
    Next(u64),
}

/// The inverted rules of one machine. Invariant: `nodes` contains the zones in the machine's order.
struct Inverse<'a> {
    model: &'a MachineModel,
    rules: &'a Rules,
    settings: WatermarkSettings,
    min_free: u64,
    nodes: Vec<NodeInverse<'a>>,
}

struct NodeInverse<'a> {
    cpus: u32,
    zones: Vec<ZoneInverse<'a>>,
    /// The bounds that do not depend on the total, including those from the reserves on sums of zones.
    sums: NodeSums,
}

struct ZoneInverse<'a> {
    zone: &'a ZoneModel,
    observed: Option<&'a ObservedZone>,
    /// The bounds on the zone that do not depend on the total.
    range: Range,
}

impl<'a> Inverse<'a> {
    /// Creates the inverted rules. Returns `None` if the settings do not fix `min_free_kbytes`, or if the observed
    /// values contradict each other.
    fn new(model: &'a MachineModel, rules: &'a Rules, observed: &'a [ObservedZone]) -> Option<Self> {
        let settings = watermark_settings(model, rules);
        let mut nodes = Vec::new();
        for node in model.online_nodes() {
            let found = |zone: &ZoneModel| {
                observed.iter().find(|seen| (seen.node, seen.kind) == (zone.node, zone.kind))
            };
            let zones: Vec<ZoneInverse<'_>> = model
                .zones_of(node.id)
                .map(|zone| ZoneInverse::new(zone, found(zone), &settings, rules))
                .collect();
            let mut sums = NodeSums::new(zones.iter().map(|zone| (zone.zone.kind, zone.range)));
            for zone in &zones {
                let row = zone.observed.and_then(|seen| seen.protection);
                let ratio = settings.lowmem_reserve_ratio[zone.zone.kind.index()];
                if let (Some(row), true) = (row, ratio != 0) {
                    sums.add_reserves(zone.zone.kind, &row, u64::from(ratio));
                }
            }
            sums = sums.tightened()?;
            let mut node = NodeInverse { cpus: node.cpus.len() as u32, zones, sums };
            for zone in &mut node.zones {
                zone.range = node.sums.of(zone.zone.kind);
            }
            nodes.push(node);
        }
        let min_free = settings.min_free?.get();
        Some(Self { model, rules, settings, min_free, nodes })
    }

    /// Returns the index of the first zone kind without a share of `min_free_kbytes`. All kinds below it have one.
    fn sharing_kinds(&self) -> usize {
        match self.rules.movable_min {
            MovableMin::OwnMinimum => ZoneKind::Movable.index(),
            MovableMin::Ordinary => ZoneKind::COUNT,
        }
    }

    fn sharing_today(&self) -> u64 {
        let zones = self.model.zones.iter().filter(|zone| zone.kind.index() < self.sharing_kinds());
        zones.map(|zone| zone.managed.get()).sum()
    }

    /// Checks whether zones with `sharing` frames in total explain all values. Returns `None` if the budget is
    /// exhausted.
    fn solve(&self, sharing: u64, budget: &mut Budget) -> Option<Step> {
        budget.spend(self.model.zones.len() as u64)?;
        let most = self.shares_at_most(sharing);
        if most < sharing {
            // The bound decreases with the total, so no total between `most` and `sharing` is possible.
            return Some(Step::Next(most));
        }
        budget.spend(self.model.zones.len() as u64 * INVERSION_COST)?;
        Some(self.solve_exactly(sharing).map_or(Step::Next(sharing.saturating_sub(1)), Step::Fits))
    }

    /// Returns the lowest total of at least `floor` that explains all values, starting from `fits`, a total that
    /// explains them. The result is exact if all totals between the two explain them.
    fn lowest_from(&self, fits: u64, floor: u64, budget: &mut Budget) -> u64 {
        let mut does = |sharing: u64| matches!(self.solve(sharing, budget), Some(Step::Fits(_)));
        let (mut fits, mut step) = (fits, 1);
        while fits >= floor + step && does(fits - step) {
            fits -= step;
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            if fits >= floor + step && does(fits - step) {
                fits -= step;
            }
        }
        fits
    }

    /// Returns the largest total that all zones can have according to their min watermarks alone.
    fn shares_at_most(&self, sharing: u64) -> u64 {
        let shares = |zone: &&ZoneInverse<'_>| zone.zone.kind.index() < self.sharing_kinds();
        let zones = self.nodes.iter().flat_map(|node| &node.zones).filter(shares);
        let most = |zone: &ZoneInverse<'_>| match zone.observed.and_then(|seen| seen.min) {
            // share = min_free * frames / sharing, rounded down
            Some(min) if self.min_free > 0 => {
                let below = u128::from(min.get().saturating_add(1)) * u128::from(sharing);
                let most = below.saturating_sub(1) / u128::from(self.min_free);
                zone.range.most.min(u64::try_from(most).unwrap_or(u64::MAX))
            }
            _ => zone.range.most,
        };
        zones.map(most).fold(0, u64::saturating_add)
    }

    fn solve_exactly(&self, sharing: u64) -> Option<Vec<PageCount>> {
        let basis = self
            .settings
            .basis(std::iter::once((ZoneKind::Normal, PageCount::new(sharing))), self.model.page_bytes);
        let kinds = self.sharing_kinds();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let mut sums = node.sums.clone();
            for zone in &node.zones {
                sums.confine(zone.zone.kind, self.invert(zone, node.cpus, &basis)?);
            }
            nodes.push(sums.tightened()?);
        }
        let totals: Vec<Range> = nodes.iter().map(|sums| sums.below(kinds)).collect();
        let (least, most) = totals.iter().fold((0, 0), |(l, m), total| (l + total.least, m + total.most));
        if !(least..=most).contains(&sharing) {
            return None;
        }
        // Subtract the remaining difference first from the nodes that already lack the most frames.
        let mut spare = most - sharing;
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        let lacks = |at: usize| self.nodes[at].managed_below(kinds) - totals[at].most;
        order.sort_by_key(|&at| std::cmp::Reverse(lacks(at)));
        for at in order {
            let less = spare.min(totals[at].most - totals[at].least);
            spare -= less;
            nodes[at].set_below(kinds, totals[at].most - less);
            nodes[at] = nodes[at].clone().tightened()?;
        }
        let fewest = nodes.iter().zip(&self.nodes).flat_map(|(sums, node)| node.choose(sums));
        Some(fewest.collect())
    }

    /// Returns the range of frames for which a zone has its observed values. A binary search finds both ends, because
    /// values never decrease as frames increase.
    fn invert(&self, zone: &ZoneInverse<'_>, node_cpus: u32, basis: &WatermarkBasis) -> Option<Range> {
        let Some(seen) = zone.observed else { return Some(zone.range) };
        let compare = |frames: u64| self.values(zone.zone.kind, frames, node_cpus, basis, seen);
        let Range { least, most } = zone.range;
        let reaches = |frames: u64| compare(frames).all(|(predicted, observed)| predicted >= observed);
        let exceeds = |frames: u64| compare(frames).any(|(predicted, observed)| predicted > observed);
        let least = first(least, most, reaches)?;
        let past = first(least, most, exceeds).unwrap_or(most + 1);
        (least < past).then(|| Range { least, most: past - 1 })
    }

    /// Returns each predicted value of a zone with `frames` frames, paired with the observed value.
    fn values(
        &self,
        kind: ZoneKind,
        frames: u64,
        node_cpus: u32,
        basis: &WatermarkBasis,
        seen: &ObservedZone,
    ) -> impl Iterator<Item = (u64, u64)> + use<> {
        let managed = PageCount::new(frames);
        let marks = basis.watermarks(kind, managed);
        let online_cpus = self.model.online_cpus();
        let sized = PagesetZone { managed, low: marks.low, node_cpus, online_cpus };
        let limits =
            self.rules.pagesets(self.model.settings.high_fraction).limits(&sized, self.model.page_bytes);
        let threshold = stat_threshold(online_cpus, managed, self.model.page_bytes);
        let values = [
            (marks.min, seen.min),
            (marks.low, seen.low),
            (marks.high, seen.high),
            (limits.batch, seen.batch),
            (limits.high_min, seen.pageset_high.or(seen.pageset_high_min)),
            (limits.high_max, seen.pageset_high_max),
            (PageCount::new(u64::from(threshold)), seen.stat_threshold.map(|t| PageCount::new(u64::from(t)))),
        ];
        values.into_iter().filter_map(|(predicted, seen)| Some((predicted.get(), seen?.get())))
    }
}

impl NodeInverse<'_> {
    fn managed_below(&self, kinds: usize) -> u64 {
        let zones = self.zones.iter().filter(|zone| zone.zone.kind.index() < kinds);
        zones.map(|zone| zone.zone.managed.get()).sum()
    }

    /// Chooses the frames of each zone within `sums` so that as few zones as possible have fewer frames than today.
    fn choose(&self, sums: &NodeSums) -> Vec<PageCount> {
        let candidates = sums.extremes();
        let lacking = |frames: &[u64; ZoneKind::COUNT]| {
            self.zones.iter().filter(|zone| frames[zone.zone.kind.index()] < zone.zone.managed.get()).count()
        };
        let [first, second] = candidates;
        let chosen = if lacking(&second) < lacking(&first) { second } else { first };
        self.zones.iter().map(|zone| PageCount::new(chosen[zone.zone.kind.index()])).collect()
    }
}

impl<'a> ZoneInverse<'a> {
    fn new(
        zone: &'a ZoneModel,
        observed: Option<&'a ObservedZone>,
        settings: &WatermarkSettings,
        rules: &Rules,
    ) -> Self {
        let mut range = Range { least: 0, most: zone.managed.get() };
        if let Some((min, low)) = observed.and_then(|seen| Some((seen.min?.get(), seen.low?.get()))) {
            range = range.and(by_scale(zone.kind, min, low, settings, rules));
        }
        Self { zone, observed, range }
    }
}

/// Returns the range of frames that follows from the distance between two watermarks. The distance is the larger of a
/// quarter of the zone's share and the zone fraction set by `watermark_scale_factor`.
fn by_scale(kind: ZoneKind, min: u64, low: u64, settings: &WatermarkSettings, rules: &Rules) -> Range {
    const WHOLE: u64 = 10_000;
    let (gap, scale) = (low.saturating_sub(min), u64::from(settings.scale_factor));
    let most = (gap.saturating_add(1).saturating_mul(WHOLE) - 1).checked_div(scale).unwrap_or(u64::MAX);
    let share_is_min = kind != ZoneKind::Movable || rules.movable_min == MovableMin::Ordinary;
    let scaled = share_is_min && gap > min / 4;
    let least = if scaled { gap.saturating_mul(WHOLE).checked_div(scale).unwrap_or(u64::MAX) } else { 0 };
    Range { least, most }
}

/// Returns the first number in `least..=most` for which `holds` is true. `holds` must also be true for all larger
/// numbers.
fn first(least: u64, most: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut low, mut high) = (least, most.checked_add(1)?);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    (low <= most).then_some(low)
}
