//! The inputs of each rule, with their origin.

use zonal::units::NodeId;
use zonal_model::ids;

use super::check::{Input, Origin, Unit, Value};
use super::report::LogReport;
use super::rules::Rule;
use super::state::{Known, State, ZoneState};
use super::steps::{Step, usable};

/// Returns the inputs that a step of a zone adds to the sum.
pub(super) fn of_step(report: &LogReport, state: &State, zone: &ZoneState, step: &Step) -> Vec<Input> {
    let request = &state.request;
    let printed_if = |is_printed: bool| if is_printed { Origin::Printed } else { Origin::Assumed };
    // Rules of a version that was never observed, or of an unknown version, are assumed.
    let by_rule = if state.is_version_known && state.rules.is_observed && state.is_gfp_known {
        Origin::Computed
    } else {
        Origin::Assumed
    };
    let node = || Input::text("node", zone.node.get().to_string(), Origin::Printed);
    match step.rule {
        Rule::ZoneLimit => {
            let from = if state.is_gfp_known { Origin::Computed } else { Origin::Assumed };
            let limit = request.access.zone_limit.name();
            vec![
                Input::text("zone", zone.kind.name(), Origin::Printed),
                Input::text("highest zone", limit, from),
            ]
        }
        Rule::ThisNode => {
            let one = nodes(request.this_node.as_deref());
            vec![node(), Input::text("one of", one, Origin::Assumed)]
        }
        Rule::Policy => {
            let from = printed_if(report.request.nodemask.is_some());
            vec![node(), Input::text("nodemask", nodes(request.policy.as_deref()), from)]
        }
        Rule::Cpuset => {
            let from = printed_if(request.cpuset.is_some());
            let list = Input::text("mems_allowed", nodes(request.cpuset.as_deref()), from);
            vec![node(), list, Input::text("binds", yes(!request.access.ignores_cpuset), by_rule)]
        }
        Rule::Order => vec![
            Input::pages("free", zone.free, Origin::Printed),
            Input {
                name: "order",
                value: Value::Number(request.order.into(), Unit::None),
                from: printed_if(report.request.order.is_some()),
            },
        ],
        Rule::Mark => vec![
            Input::pages("min", zone.min, Origin::Printed),
            Input {
                name: "eighths",
                value: Value::Number(request.access.mark.eighths().cast_signed(), Unit::None),
                from: by_rule,
            },
        ],
        Rule::Boost => {
            let mut inputs = vec![of_known("boost", zone.boost)];
            if request.access.ignores_boost {
                inputs.push(Input::text("counts", "no", by_rule));
            }
            inputs
        }
        Rule::Reserve => vec![of_known("lowmem_reserve", zone.reserve)],
        Rule::Highatomic => vec![
            of_known("highatomic", zone.highatomic),
            Input::text("counts", yes(!request.access.counts_highatomic), by_rule),
        ],
        Rule::Cma => vec![
            of_known("free_cma", zone.cma),
            Input::text("counts", yes(!request.access.counts_cma), by_rule),
        ],
        Rule::Block => of_blocks(state, zone, by_rule),
        Rule::CgroupLimit | Rule::LastCheck | Rule::Counts | Rule::Totals => Vec::new(),
    }
}

/// Returns the inputs of the check for a free block.
fn of_blocks(state: &State, zone: &ZoneState, by_rule: Origin) -> Vec<Input> {
    let list = zone.blocks.as_ref().map(|blocks| blocks_text(state, blocks.iter().collect()));
    let fitting =
        zone.blocks.as_ref().map(|blocks| blocks_text(state, usable(blocks, &state.request).collect()));
    vec![
        Input::text("blocks", list.unwrap_or_else(|| "not printed".to_owned()), Origin::Printed),
        Input::text("types", state.request.access.block_types(), by_rule),
        Input::text("usable", fitting.unwrap_or_else(|| "unknown".to_owned()), Origin::Computed),
    ]
}

/// Returns the inputs of the last check before a kill.
pub(super) fn of_last_check(zone: &ZoneState) -> Vec<Input> {
    vec![
        Input::pages("high", zone.high, Origin::Printed),
        of_known("highatomic", zone.highatomic),
        of_known("free_cma", zone.cma),
        delay(zone.delay),
    ]
}

/// Returns the inputs for comparing free pages with free blocks.
pub(super) fn of_counts(zone: &ZoneState, sum: u64, printed: u64) -> Vec<Input> {
    vec![
        Input::pages("free", zone.free, Origin::Printed),
        Input::pages("sum", printed, Origin::Printed),
        Input::pages("sum of blocks", sum, Origin::Computed),
        Input::pages("free_pcp", zone.pcp, Origin::Printed),
        Input::pages("drift", zone.drift, Origin::Assumed),
        delay(zone.blocks_delay),
    ]
}

fn delay(microseconds: u64) -> Input {
    let value = Value::Number(i64::try_from(microseconds).unwrap_or(i64::MAX), Unit::Microseconds);
    Input { name: "later", value, from: Origin::Computed }
}

/// Returns a list of nodes as kernels print it.
pub(super) fn nodes(list: Option<&[NodeId]>) -> String {
    list.map_or_else(|| "(null)".to_owned(), |nodes| ids::format(nodes.iter().map(|node| node.get())))
}

const fn yes(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

fn of_known(name: &'static str, known: Known) -> Input {
    Input::pages(name, known.pages, known.from)
}

fn blocks_text(state: &State, blocks: Vec<&super::state::OrderBlocks>) -> String {
    let one = |blocks: &&super::state::OrderBlocks| {
        let size = state.page_kib << blocks.order.min(40);
        let types = blocks.types.map_or_else(String::new, |types| format!(" ({types})"));
        format!("{}*{size}kB{types}", blocks.count)
    };
    let blocks: Vec<String> = blocks.iter().filter(|blocks| blocks.count > 0).map(one).collect();
    if blocks.is_empty() { "none".to_owned() } else { blocks.join(" ") }
}
