//! Says in a few sentences what refused a request, what each node had, and what would have let it through.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use zonal::units::NodeId;
use zonal_model::{Bytes, Escaped};

use super::check::{Check, Outcome};
use super::decide::LeftOut;
use super::explanation::{Change, Explanation, NodeAnswer, Refusal, Remedy};
use super::inputs;
use super::remedy::first_refusal;
use super::report::{CgroupCounter, Constraint, LogReport, LoggedKind, ReportKind};
use super::rules::{COSTLY_ORDER, Rule};
use super::state::{State, ZoneState};
use super::steps::serves;

/// Returns the answer.
pub(super) fn sentences(
    report: &LogReport,
    state: &State,
    refused_by: Option<&Refusal>,
    others: Option<&LeftOut>,
    remedies: &[Remedy],
) -> Vec<String> {
    let mut answer = vec![format!("{}{}.", begun(report, state), refused(state, refused_by))];
    if let Some(others) = others {
        answer.push(elsewhere(state, others));
    }
    answer.extend(unexpected(report, state));
    let serving = state.zones.iter().find(|zone| serves(zone, &state.request));
    if let Some(zone) = serving {
        answer.push(format!(
            "Zone {} of node {} would serve it by the figures that were printed afterwards.",
            zone.kind, zone.node
        ));
    } else if !state.zones.is_empty() {
        answer.push(through(remedies));
    }
    answer
}

/// Returns the beginning of the answer, as in "A request for one page (GFP_KERNEL) by `name` failed: ".
fn begun(report: &LogReport, state: &State) -> String {
    let order = state.request.order;
    let pages = 1_u64 << order;
    let size = Bytes(pages * state.page_kib * 1024);
    let what =
        if pages == 1 { "one page".to_owned() } else { format!("{pages} pages in one block ({size})") };
    let flags = Escaped(&state.request.gfp.names);
    let by =
        report.request.process.as_ref().map_or_else(String::new, |name| format!(" by `{}`", Escaped(name)));
    let is_kill = report.kind == Some(ReportKind::Oom);
    let then = if is_kill { "ended in an OOM kill" } else { "failed" };
    let flags = if state.request.gfp.names.is_empty() { String::new() } else { format!(" ({flags})") };
    format!("A request for {what}{flags}{by} {then}: ")
}

/// Returns what refused a request, as in "zone Normal of node 1 had 3102 free pages, which is not above `min` (3201)".
fn refused(state: &State, refused_by: Option<&Refusal>) -> String {
    if state.zones.is_empty() {
        return "the log does not have the zones, so what refused it is unknown".to_owned();
    }
    let place = refused_by.and_then(|refusal| refusal.place);
    let zone = place.and_then(|place| {
        state.zones.iter().find(|zone| Some(zone.node) == place.node && Some(zone.kind) == place.kind)
    });
    let (Some(refusal), Some(zone)) = (refused_by, zone) else {
        return "no zone refuses it by the printed figures, which show the state after the decision"
            .to_owned();
    };
    let more = state
        .zones
        .iter()
        .filter(|other| *other != zone && is_refused_by(other, state, refusal.rule))
        .count();
    let mut text = format!("zone {} of node {} {}", zone.kind, zone.node, reason(zone, state, refusal.rule));
    if more > 0 {
        let _ = write!(
            text,
            "; {more} more {} refused it by the same rule",
            if more == 1 { "zone" } else { "zones" }
        );
    }
    text
}

fn is_refused_by(zone: &ZoneState, state: &State, rule: Rule) -> bool {
    first_refusal(zone, &state.request) == Some(rule)
}

/// Returns why a zone refused a request.
fn reason(zone: &ZoneState, state: &State, rule: Rule) -> String {
    let access = &state.request.access;
    let free = zone.free;
    let share = match access.mark.eighths() {
        8 => "`min`".to_owned(),
        eighths => format!("{eighths}/8 of `min`"),
    };
    let mark = access.mark.of(zone.min);
    match rule {
        Rule::ZoneLimit => {
            format!("is above {}, the highest zone that the request may use", access.zone_limit)
        }
        Rule::ThisNode => "is not on the one node that the request insists on (`__GFP_THISNODE`)".to_owned(),
        Rule::Policy => "is not allowed by the memory policy".to_owned(),
        Rule::Cpuset => "is not allowed by the cpuset".to_owned(),
        Rule::Order => format!("had only {free} free pages"),
        Rule::Mark => format!("had {free} free pages, which is not above {share} ({mark})"),
        Rule::Boost => {
            format!(
                "had {free} free pages, which is not above {share} with its boost of {} ({mark})",
                zone.boost.pages
            )
        }
        Rule::Reserve => format!(
            "had {free} free pages, which is not above {share} ({mark}) and its lowmem reserve ({}) together",
            zone.reserve.pages
        ),
        Rule::Highatomic => format!(
            "had {free} free pages, but {} are reserved for high-order atomic requests, and the rest is not above {share}",
            zone.highatomic.pages
        ),
        Rule::Cma => {
            format!(
                "had {free} free pages, but {} are CMA pages, which the request may not use",
                zone.cma.pages
            )
        }
        Rule::Block => {
            format!("had {free} free pages, but no usable block with order {}", state.request.order)
        }
        Rule::LastCheck => {
            format!(
                "had {free} free pages, and the last check before the kill requires more than `high` ({})",
                zone.high
            )
        }
        Rule::CgroupLimit | Rule::Counts | Rule::Totals => String::new(),
    }
}

/// Returns what other nodes had, as in "Nodes 0,2-3 had 725 MiB free, but the memory policy allows node 1 only."
fn elsewhere(state: &State, others: &LeftOut) -> String {
    let named = match &others.nodes[..] {
        [] => "Other nodes".to_owned(),
        [node] => format!("Node {node}"),
        nodes => format!("Nodes {}", inputs::nodes(Some(nodes))),
    };
    if others.rule == Rule::Mark {
        let free = Bytes(others.free.saturating_mul(state.page_kib * 1024));
        return format!(
            "Zones that were not printed had {free} free: those of nodes outside the cpuset, which does not bind this \
             request, or above {}, its highest zone.",
            state.request.access.zone_limit
        );
    }
    let (who, allowed) = match others.rule {
        Rule::Policy => ("memory policy", &state.request.policy),
        _ => ("cpuset", &state.request.cpuset),
    };
    let free = Bytes(others.free.saturating_mul(state.page_kib * 1024));
    let allowed = inputs::nodes(allowed.as_deref());
    let nodes = if allowed.contains(['-', ',']) { "nodes" } else { "node" };
    format!("{named} had {free} free, but the {who} allows {nodes} {allowed} only.")
}

/// Returns what the kernel's path makes impossible or unusual.
fn unexpected(report: &LogReport, state: &State) -> Option<String> {
    let order = state.request.order;
    if report.kind == Some(ReportKind::Oom) && order > COSTLY_ORDER {
        return Some(format!(
            "The kernel kills for orders up to {COSTLY_ORDER} only, and the log says order {order}."
        ));
    }
    if report.kind == Some(ReportKind::Oom) && state.request.access.zone_limit < LoggedKind::Normal {
        return Some("The kernel does not kill for requests that are limited to the lowest zones, and the log says so.".to_owned());
    }
    (report.kind == Some(ReportKind::Failure) && order > COSTLY_ORDER).then(|| {
        format!("For orders above {COSTLY_ORDER} the kernel neither retries for long nor kills: such requests may fail.")
    })
}

/// Returns what would have helped, as in "It would have been served with ...".
fn through(remedies: &[Remedy]) -> String {
    match remedies {
        [] => "No change of a setting, the order or the nodes would have let it through with the memory as printed.".to_owned(),
        [first, rest @ ..] => {
            let rest = match rest.len() {
                0 => String::new(),
                1 => "; another way is listed below".to_owned(),
                count => format!("; {count} other ways are listed below"),
            };
            format!("It would have been served with {} ({}){rest}.", described(&first.change), first.cost)
        }
    }
}

/// Returns a change as text.
fn described(change: &Change) -> String {
    match change {
        Change::Setting("free memory", value) => value.clone(),
        Change::Setting(name, value) => format!("{name} {value}"),
        Change::Order(order) => format!("order {order}"),
        Change::Nodes("policy", nodes) => format!("a memory policy of nodes {nodes}"),
        Change::Nodes("this-node", nodes) => format!("memory of nodes {nodes}"),
        Change::Nodes(_, nodes) => format!("a cpuset of nodes {nodes}"),
    }
}

/// Returns what each node had.
pub(super) fn nodes(state: &State, checks: &[Check], others: Option<&LeftOut>) -> Vec<NodeAnswer> {
    let mut by_node: BTreeMap<NodeId, Vec<&ZoneState>> = BTreeMap::new();
    state.zones.iter().for_each(|zone| by_node.entry(zone.node).or_default().push(zone));
    let why = |zone: &ZoneState| {
        let place = |check: &&Check| {
            check.place.is_some_and(|place| place.node == Some(zone.node) && place.kind == Some(zone.kind))
        };
        let refuses = |check: &&Check| check.outcome == Outcome::Refuses && check.rule != Rule::Counts;
        let rule = checks.iter().filter(place).find(refuses).map(|check| check.rule);
        let reason = rule.map_or_else(
            || "is not refused by the printed figures".to_owned(),
            |rule| reason(zone, state, rule),
        );
        format!("{} {reason}", zone.kind)
    };
    let mut answers: Vec<NodeAnswer> = by_node
        .into_iter()
        .map(|(id, zones)| NodeAnswer {
            id: Some(id),
            free: Some(zones.iter().fold(0, |sum, zone| zone.free.saturating_add(sum))),
            why: zones.into_iter().map(why).collect::<Vec<_>>().join("; "),
        })
        .collect();
    let Some(others) = others else { return answers };
    let who = if others.rule == Rule::Policy { "memory policy" } else { "cpuset" };
    let free = Bytes(others.free.saturating_mul(state.page_kib * 1024));
    if let [] | [_] = others.nodes[..] {
        let why = match others.rule {
            Rule::Mark => "not printed; their marks are unknown".to_owned(),
            _ => format!("not allowed by the {who}"),
        };
        answers.push(NodeAnswer { id: others.nodes.first().copied(), free: Some(others.free), why });
    } else {
        let list = inputs::nodes(Some(&others.nodes));
        let why = format!("not allowed by the {who}; nodes {list} had {free} free together");
        answers.extend(others.nodes.iter().map(|&id| NodeAnswer {
            id: Some(id),
            free: None,
            why: why.clone(),
        }));
    }
    answers
}

/// Returns the answer about a cgroup's limit.
pub(super) fn of_cgroup(
    report: &LogReport,
    counter: Option<&CgroupCounter>,
    remedies: &[Remedy],
) -> Vec<String> {
    let cgroup = report.kill.as_ref().and_then(|kill| kill.oom_memcg.as_ref());
    let name = cgroup.map_or_else(|| "a cgroup".to_owned(), |name| format!("cgroup `{}`", Escaped(name)));
    let reached = match counter {
        Some(counter) => format!("used {} of its {} limit, {}", counter.usage, counter.name, counter.limit),
        None => "reached a limit; the log does not have the counter that did".to_owned(),
    };
    let mut answer = vec![
        format!("A limit ended in an OOM kill: {name} {reached}."),
        "No zone refused the request, and free memory on the nodes does not help.".to_owned(),
    ];
    if !remedies.is_empty() {
        answer.push(through(remedies));
    }
    answer
}

/// Explains a report about which nothing can be decided.
pub(super) fn undecidable(report: &LogReport) -> Explanation {
    let answer = match (report.request.order, report.unreadable()) {
        (Some(-1), _) => "A user requested this kill by sysrq: no request was refused.".to_owned(),
        (_, Some(what)) => format!("The line with the request is cut or garbled: {what} unknown."),
        _ => {
            "The log begins within this report: without its first line, neither the request nor its end is known."
                .to_owned()
        }
    };
    Explanation {
        answer: vec![answer],
        refused_by: None,
        nodes: Vec::new(),
        remedies: Vec::new(),
        checks: Vec::new(),
        notes: notes(report, None),
        page_kib: report.page().map_or(4, |page| page.0),
    }
}

/// Returns what is assumed or missing.
pub(super) fn notes(report: &LogReport, state: Option<&State>) -> Vec<String> {
    let mut notes = Vec::new();
    match (report.kernel, state) {
        (None, _) => {
            notes.push("The kernel's version is not in the log: the newest rules are assumed.".to_owned());
        }
        (Some(version), Some(state)) if !state.rules.is_observed => notes.push(format!(
            "The rules of kernel {version} are assumed: they were not compared with what such a kernel did."
        )),
        _ => {}
    }
    if report.is_cut_at_top && state.is_some() {
        notes.push(
            "The log begins within this report: a page of user memory is assumed as the request.".to_owned(),
        );
    }
    if let Some(state) = state {
        let missing = |what: &str| format!("The log does not have {what}.");
        if state.zones.is_empty() {
            notes.push(missing("the zones of this report"));
        } else if state.zones.iter().any(|zone| zone.blocks.is_none()) {
            notes.push(missing("the free blocks of every zone"));
        }
        if !state.cut.is_empty() {
            notes.push(missing("`free` and the marks of every zone"));
        }
    }
    notes.extend(tasks(report, state));
    notes
}

/// Returns how much the listed processes use, and what the nodes have.
fn tasks(report: &LogReport, state: Option<&State>) -> Option<String> {
    let tasks = report.tasks.as_ref().filter(|tasks| tasks.count > 0)?;
    let kib = state.map_or(4, |state| state.page_kib);
    let size = |pages: u64| Bytes(pages.saturating_mul(kib * 1024));
    let constraint = report.constraint();
    let eligible = matches!(constraint, Some(Constraint::Cpuset | Constraint::MemoryPolicy));
    let which = if eligible { " that may use these nodes" } else { "" };
    let used = match tasks.rss_of_node {
        Some(pages) => format!("{} on the node, {} in all", size(pages), size(tasks.rss)),
        None => size(tasks.rss).to_string(),
    };
    let managed = state
        .map_or(0, |state| state.zones.iter().fold(0, |sum: u64, zone| sum.saturating_add(zone.managed)));
    let mut text = if tasks.count == 1 {
        format!("One process{which} uses {used}")
    } else {
        format!("{} processes{which} use {used}", tasks.count)
    };
    if managed > 0 {
        let _ = write!(text, "; the printed zones have {}", size(managed));
    }
    let largest = |task: &super::report::Task| {
        format!("{} {}", Escaped(&task.name), size(task.rss_of_node.unwrap_or(task.rss)))
    };
    let largest: Vec<String> = tasks.largest.iter().take(3).map(largest).collect();
    let _ = write!(text, ". Largest: {}.", largest.join(", "));
    Some(text)
}
