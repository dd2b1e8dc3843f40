//! Finds changes that would have let a request through, and checks each with the same rules.
//!
//! A change that the rules do not confirm is not offered. Related files: `steps.rs` has the rules.

use zonal::units::NodeId;

use super::decide::LeftOut;
use super::explanation::{Change, Remedy};
use super::figures::Figure;
use super::gfp::GfpFlag;
use super::inputs::nodes;
use super::report::{LogReport, LoggedKind};
use super::rules::Rule;
use super::state::{Known, RequestState, State, ZoneState};
use super::steps::{Step, serves, steps};

/// The smallest `min_free_kbytes` that kernels choose themselves.
const MIN_FREE_KIB_LEAST: u64 = 128;
/// The largest that they choose themselves.
const MIN_FREE_KIB_MOST: u64 = 262_144;

/// Returns the changes that would have let the request through.
pub(super) fn remedies(report: &LogReport, state: &State, others: Option<&LeftOut>) -> Vec<Remedy> {
    if state.zones.iter().any(|zone| serves(zone, &state.request)) {
        return Vec::new();
    }
    let found = [
        any_node(state),
        other_nodes(state, others),
        smaller_order(state),
        less_reserve(report, state),
        no_boost(state),
        no_cma(state),
        higher_marks(report, state).or_else(|| lower_marks(report, state)),
        more_free(state),
    ];
    found.into_iter().flatten().collect()
}

fn is_served(zones: &[ZoneState], request: &RequestState) -> bool {
    zones.iter().any(|zone| serves(zone, request))
}

fn changed(state: &State, change: impl Fn(&mut ZoneState)) -> Vec<ZoneState> {
    let mut zones = state.zones.clone();
    zones.iter_mut().for_each(change);
    zones
}

/// Offers any node instead of one.
fn any_node(state: &State) -> Option<Remedy> {
    let one = state.request.this_node.as_ref()?;
    let request = RequestState { this_node: None, ..state.request.clone() };
    let serving = state.zones.iter().filter(|zone| !one.contains(&zone.node) && serves(zone, &request));
    let mut list: Vec<NodeId> = serving.map(|zone| zone.node).collect();
    list.dedup();
    let cost = "the caller must accept memory of another node, so it must not set __GFP_THISNODE";
    let remedy = Remedy { change: Change::Nodes("this-node", nodes(Some(&list))), cost: cost.to_owned() };
    (!list.is_empty()).then_some(remedy)
}

/// Offers a policy or a cpuset with nodes that have free memory.
fn other_nodes(state: &State, others: Option<&LeftOut>) -> Option<Remedy> {
    let mut request = state.request.clone();
    let name = if others.map_or(request.policy.is_some(), |others| others.rule == Rule::Policy) {
        request.policy = None;
        "policy"
    } else {
        request.cpuset = None;
        "cpuset"
    };
    if name == "cpuset"
        && (request.access.ignores_cpuset || others.is_some_and(|others| others.rule == Rule::Mark))
    {
        return None;
    }
    let allowed = if name == "policy" { &state.request.policy } else { &state.request.cpuset };
    let allowed = allowed.as_ref()?;
    let mut wider: Vec<NodeId> = allowed.clone();
    let printed = state.zones.iter().filter(|zone| !allowed.contains(&zone.node) && serves(zone, &request));
    wider.extend(printed.map(|zone| zone.node));
    if wider.len() == allowed.len() {
        let others = others?;
        // Of several nodes, at least one has its share of their free pages.
        let count = u64::try_from(others.nodes.len().max(1)).unwrap_or(u64::MAX);
        let model = state.zones.iter().max_by_key(|zone| zone.high)?;
        let zone = ZoneState {
            kind: LoggedKind::Normal.min(request.access.zone_limit),
            node: NodeId::default(),
            free: others.free / count,
            reserve: Known { pages: 0, ..model.reserve },
            blocks: None,
            ..model.clone()
        };
        request.cpuset = request.cpuset.filter(|_| name == "policy" && !others.nodes.is_empty());
        request.cpuset.iter_mut().for_each(|cpuset| cpuset.push(zone.node));
        if !serves(&zone, &request) {
            return None;
        }
        wider.extend(&others.nodes);
    }
    let is_named = wider.len() > allowed.len();
    wider.sort_unstable();
    wider.dedup();
    let value = if is_named { nodes(Some(&wider)) } else { format!("{} and others", nodes(Some(allowed))) };
    let cost = "pages on these nodes are farther from the CPUs, so each access takes longer";
    Some(Remedy { change: Change::Nodes(name, value), cost: cost.to_owned() })
}

/// Returns the largest order that a zone would have served.
fn smaller_order(state: &State) -> Option<Remedy> {
    let of_order = |order| RequestState { order, ..state.request.clone() };
    let order = (0..state.request.order).rev().find(|&order| is_served(&state.zones, &of_order(order)))?;
    let (blocks, kib) = (1_u64 << (state.request.order - order), state.page_kib << order);
    let cost = format!("the caller must use {blocks} blocks with {kib} KiB each instead of one");
    Some(Remedy { change: Change::Order(order), cost })
}

/// Offers a larger `lowmem_reserve_ratio` for the zone that the reserve kept from serving.
fn less_reserve(report: &LogReport, state: &State) -> Option<Remedy> {
    let by_reserve = |zone: &&ZoneState| first_refusal(zone, &state.request) == Some(Rule::Reserve);
    let zone = state.zones.iter().filter(by_reserve).max_by_key(|zone| zone.free)?;
    let margin = steps(zone, &state.request).iter().filter_map(|step| step.margin).min()?;
    let above = |other: &&ZoneState| {
        other.node == zone.node && other.kind > zone.kind && other.kind <= state.request.access.zone_limit
    };
    let higher: u64 = state.zones.iter().filter(above).map(|other| other.managed).sum();
    let smaller = i64::try_from(zone.reserve.pages).ok()?.checked_add(margin)?.checked_sub(1)?;
    let smaller = u64::try_from(smaller).ok().filter(|&pages| pages > 0 && higher > 0)?;
    let ratio = higher.div_ceil(smaller);
    let reserve = Known { pages: higher / ratio, ..zone.reserve };
    if !serves(&ZoneState { reserve, ..zone.clone() }, &state.request) {
        return None;
    }
    let logged = report.zones.iter().find(|other| (other.node, other.kind) == (zone.node, zone.kind))?;
    let ratios = ratios(logged.reserve.len(), zone.kind, ratio)?;
    let freed = (zone.reserve.pages - reserve.pages) * state.page_kib;
    let cost = format!(
        "{freed} kB of zone {} serve requests that higher zones could serve too; those that need this zone fail earlier",
        zone.kind
    );
    Some(Remedy { change: Change::Setting("vm.lowmem_reserve_ratio", ratios), cost })
}

/// Returns the value of `lowmem_reserve_ratio`: the defaults, and `ratio` for one zone. The first columns of machines
/// with five zones are known.
fn ratios(columns: usize, kind: LoggedKind, ratio: u64) -> Option<String> {
    let mut defaults = vec![256, 256, 32, 0, 0];
    let at =
        [LoggedKind::Dma, LoggedKind::Dma32, LoggedKind::Normal].iter().position(|&known| known == kind)?;
    defaults[at] = ratio;
    defaults.truncate(columns);
    let ratios: Vec<String> = defaults.iter().map(u64::to_string).collect();
    (columns >= 4).then(|| ratios.join(" "))
}

/// Offers to have no boost.
fn no_boost(state: &State) -> Option<Remedy> {
    let zones = changed(state, |zone| {
        zone.min = zone.min.saturating_sub(zone.boost.pages);
        zone.boost.pages = 0;
    });
    let cost = "pageblocks are mixed more, so that fewer large blocks stay free";
    let remedy = Remedy {
        change: Change::Setting("vm.watermark_boost_factor", "0".to_owned()),
        cost: cost.to_owned(),
    };
    is_served(&zones, &state.request).then_some(remedy)
}

/// Offers to have no CMA region.
fn no_cma(state: &State) -> Option<Remedy> {
    let zones = changed(state, |zone| zone.cma.pages = 0);
    let cost = "devices get no contiguous memory at run time";
    let remedy = Remedy {
        change: Change::Setting("cma (kernel command line)", "0".to_owned()),
        cost: cost.to_owned(),
    };
    let is_by_cma = state.zones.iter().any(|zone| first_refusal(zone, &state.request) == Some(Rule::Cma));
    (is_by_cma && is_served(&zones, &state.request)).then_some(remedy)
}

/// Returns `min_free_kbytes`, computed from the share of it that the largest zone's `min` is.
fn min_free_kib(report: &LogReport, state: &State) -> Option<u64> {
    let has_share = |zone: &&ZoneState| !matches!(zone.kind, LoggedKind::HighMem | LoggedKind::Movable);
    let zone = state
        .zones
        .iter()
        .filter(has_share)
        .max_by_key(|zone| zone.managed)
        .filter(|zone| zone.managed > 0)?;
    let pages = &report.pages;
    let managed = pages.ram?.checked_sub(pages.reserved?)?.saturating_sub(pages.highmem.unwrap_or(0));
    let base = zone.min.saturating_sub(zone.boost.pages) * state.page_kib;
    u64::try_from(u128::from(base) * u128::from(managed.max(zone.managed)) / u128::from(zone.managed)).ok()
}

/// Returns the zones with marks for another `min_free_kbytes`.
fn with_marks(state: &State, now: u64, wanted: u64) -> Vec<ZoneState> {
    let scaled =
        |pages: u64| u64::try_from(u128::from(pages) * u128::from(wanted) / u128::from(now)).unwrap_or(pages);
    changed(state, |zone| {
        let base = zone.min.saturating_sub(zone.boost.pages);
        let is_fixed = matches!(zone.kind, LoggedKind::HighMem | LoggedKind::Movable);
        zone.min = zone.boost.pages + if is_fixed { base } else { scaled(base) };
    })
}

/// Offers a lower `min_free_kbytes`, if at least a quarter of it stays.
fn lower_marks(report: &LogReport, state: &State) -> Option<Remedy> {
    let now = min_free_kib(report, state).filter(|&now| now > MIN_FREE_KIB_LEAST)?;
    let (mut enough, mut too_much) = (MIN_FREE_KIB_LEAST.max(now / 4), now);
    let is_enough = |wanted| is_served(&with_marks(state, now, wanted), &state.request);
    if !is_enough(enough) {
        return None;
    }
    while too_much - enough > 1 {
        let middle = enough + (too_much - enough) / 2;
        *(if is_enough(middle) { &mut enough } else { &mut too_much }) = middle;
    }
    let lost = now - enough;
    let cost = format!(
        "about {lost} kB less for requests that cannot wait; a load that grows on needs them up and fails again"
    );
    Some(Remedy { change: Change::Setting("vm.min_free_kbytes", enough.to_string()), cost })
}

/// Offers a higher `min_free_kbytes` for a request that may go below `min` but may not reclaim: background reclaim keeps the
/// difference free beforehand, as far as there is page cache to give up.
fn higher_marks(report: &LogReport, state: &State) -> Option<Remedy> {
    let request = &state.request;
    if request.gfp.has(GfpFlag::DirectReclaim) || request.access.mark.eighths() == 8 || request.order > 0 {
        return None;
    }
    let now = min_free_kib(report, state).filter(|&now| now > 0 && now < MIN_FREE_KIB_MOST)?;
    let cached = |zone: &ZoneState| {
        let logged = report.zones.iter().find(|other| (other.node, other.kind) == (zone.node, zone.kind));
        let kib = [Figure::ActiveFile, Figure::InactiveFile].map(|figure| logged?.figures.get(figure));
        Some(state.pages(kib.into_iter().flatten().sum()))
    };
    let is_enough = |wanted: u64| {
        let mut zones = with_marks(state, now, wanted);
        for (zone, before) in zones.iter_mut().zip(&state.zones) {
            zone.free += (zone.min - before.min).min(cached(before).unwrap_or(0));
        }
        is_served(&zones, request)
    };
    let (mut too_little, mut enough) = (now, MIN_FREE_KIB_MOST);
    if !is_enough(enough) {
        return None;
    }
    while enough - too_little > 1 {
        let middle = too_little + (enough - too_little) / 2;
        *(if is_enough(middle) { &mut enough } else { &mut too_little }) = middle;
    }
    let cost = format!("about {} kB less page cache", enough - now);
    Some(Remedy { change: Change::Setting("vm.min_free_kbytes", enough.to_string()), cost })
}

/// Offers more free pages in the zone that lacks fewest.
fn more_free(state: &State) -> Option<Remedy> {
    let lack = |zone: &ZoneState| {
        let margin = steps(zone, &state.request).iter().filter_map(|step| step.margin).min()?;
        let pages = u64::try_from(1_i64.checked_sub(margin)?).ok()?;
        let more = ZoneState { free: zone.free.checked_add(pages)?, ..zone.clone() };
        serves(&more, &state.request).then_some(pages)
    };
    let lacking = state.zones.iter().filter_map(|zone| Some((lack(zone)?, zone)));
    let (pages, zone) = lacking.min_by_key(|&(pages, _)| pages)?;
    let value = format!("{} kB more in zone {} of node {}", pages * state.page_kib, zone.kind, zone.node);
    let cost = "processes that use as much less, or as much more memory or swap";
    Some(Remedy { change: Change::Setting("free memory", value), cost: cost.to_owned() })
}

/// Returns the first rule that refuses a zone.
pub(super) fn first_refusal(zone: &ZoneState, request: &RequestState) -> Option<Rule> {
    steps(zone, request).iter().find(|step| step.refuses()).map(|step: &Step| step.rule)
}
