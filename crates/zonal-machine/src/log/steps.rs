//! Checks a zone for a request, rule by rule, as the kernel does.
//!
//! The kernel compares one sum with one threshold. The steps here add the terms of both one at a time, so that the first
//! step that refuses names the term that made the difference. Related files: `decide.rs` adds inputs and verdicts.

use super::check::Outcome;
use super::gfp::GfpFlag;
use super::rules::Rule;
use super::state::{OrderBlocks, RequestState, ZoneState};

/// A decided rule without its inputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    pub(super) rule: Rule,
    pub(super) outcome: Outcome,
    /// Pages above the threshold.
    pub(super) margin: Option<i64>,
}

impl Step {
    pub(super) fn refuses(&self) -> bool {
        self.outcome == Outcome::Refuses
    }
}

/// Returns the steps of a zone, in the order of the path, up to a rule that keeps the request out of the zone.
pub(super) fn steps(zone: &ZoneState, request: &RequestState) -> Vec<Step> {
    let mut steps = Vec::with_capacity(10);
    let is_allowed =
        |nodes: &Option<Vec<_>>| nodes.as_ref().is_none_or(|nodes: &Vec<_>| nodes.contains(&zone.node));
    let eligible = [
        (Rule::ZoneLimit, zone.kind <= request.access.zone_limit),
        (Rule::ThisNode, is_allowed(&request.this_node)),
        (Rule::Policy, is_allowed(&request.policy)),
        (Rule::Cpuset, request.access.ignores_cpuset || is_allowed(&request.cpuset)),
    ];
    let has_step = |rule: Rule| rule != Rule::ThisNode || request.gfp.has(GfpFlag::ThisNode);
    for (rule, passes) in eligible.into_iter().filter(|(rule, _)| has_step(*rule)) {
        steps.push(Step { rule, outcome: outcome(passes), margin: None });
        if !passes {
            return steps;
        }
    }
    let sums = sums(zone, request);
    steps.extend(sums.map(|(rule, margin)| Step {
        rule,
        outcome: outcome(margin > 0),
        margin: Some(margin),
    }));
    if request.order > 0 {
        let outcome = match &zone.blocks {
            Some(blocks) => outcome(usable(blocks, request).next().is_some()),
            None => Outcome::Unknown,
        };
        steps.push(Step { rule: Rule::Block, outcome, margin: None });
    }
    steps
}

/// Whether a zone serves a request.
pub(super) fn serves(zone: &ZoneState, request: &RequestState) -> bool {
    steps(zone, request).iter().all(|step| step.outcome == Outcome::Passes)
}

/// Returns the pages above the threshold after each term was added.
fn sums(zone: &ZoneState, request: &RequestState) -> [(Rule, i64); 6] {
    let access = &request.access;
    let pages = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX / 16);
    let base = zone.min.saturating_sub(zone.boost.pages);
    let mark = access.mark.of(base);
    let boosted = if access.ignores_boost { mark } else { access.mark.of(zone.min) };
    let order = pages(zone.free) - pages((1 << request.order) - 1);
    let boost = order - pages(boosted);
    let reserve = boost - pages(zone.reserve.pages);
    let highatomic = reserve - if access.counts_highatomic { 0 } else { pages(zone.highatomic.pages) };
    let cma = highatomic - if access.counts_cma { 0 } else { pages(zone.cma.pages) };
    [
        (Rule::Order, order),
        (Rule::Mark, order - pages(mark)),
        (Rule::Boost, boost),
        (Rule::Reserve, reserve),
        (Rule::Highatomic, highatomic),
        (Rule::Cma, cma),
    ]
}

/// Returns the pages above the threshold of the last check before a kill, which counts neither kind of reserved pages.
pub(super) fn last_check(zone: &ZoneState, request: &RequestState) -> i64 {
    let pages = |pages: u64| i64::try_from(pages).unwrap_or(i64::MAX / 16);
    let block = pages((1 << request.order) - 1);
    let unusable = pages(zone.highatomic.pages) + pages(zone.cma.pages) + block;
    pages(zone.free) - unusable - pages(zone.high) - pages(zone.reserve.pages)
}

/// Returns the free blocks that a request may take.
pub(super) fn usable<'a>(
    blocks: &'a [OrderBlocks],
    request: &'a RequestState,
) -> impl Iterator<Item = &'a OrderBlocks> {
    let types = request.access.block_types();
    let is_usable = move |blocks: &OrderBlocks| blocks.types.is_none_or(|found| found.any_of(types));
    blocks.iter().filter(move |blocks| blocks.count > 0 && blocks.order >= request.order && is_usable(blocks))
}

/// Returns the pages in these blocks.
pub(super) fn usable_pages(zone: &ZoneState, request: &RequestState) -> u64 {
    let blocks = zone.blocks.iter().flat_map(|blocks| usable(blocks, request));
    blocks.fold(0, |sum, blocks| sum.saturating_add(blocks.count.saturating_mul(1 << blocks.order)))
}

const fn outcome(passes: bool) -> Outcome {
    if passes { Outcome::Passes } else { Outcome::Refuses }
}
