//! Prints the explanations of a log as one JSON document.

use serde_json::{Map, Value, json};
use zonal::units::NodeId;
use zonal_machine::log::{
    Change, Check, Constraint, Input, LoggedKind, LoggedRequest, NodeList, Place, ReportKind, Summary,
    Value as InputValue,
};

use super::{Answer, Explained};

pub(super) fn document(answer: &Answer) -> String {
    let reports: Vec<Value> = answer.explained.iter().map(report).collect();
    let document =
        json!({ "schema": "zonal.explain.v1", "reports": reports, "summary": summary(&answer.summary) });
    format!("{document}\n")
}

fn report(explained: &Explained) -> Value {
    let Explained { report, explanation } = explained;
    json!({
        "line": report.line,
        "kernel": report.release,
        "kind": report.kind.map(kind),
        "constraint": report.constraint().map(Constraint::name),
        "request": request(&report.request),
        "answer": explanation.answer,
        "refused_by": explanation.refused_by.map(|refusal| {
            json!({ "zone": refusal.place.map(place), "rule": refusal.rule.name() })
        }),
        "page_kib": explanation.page_kib,
        "nodes": explanation.nodes.iter().map(|node| {
            json!({ "id": node.id.map(NodeId::get), "free": node.free, "why": node.why })
        }).collect::<Vec<_>>(),
        "remedies": explanation.remedies.iter().map(remedy).collect::<Vec<_>>(),
        "checks": explanation.checks.iter().map(check).collect::<Vec<_>>(),
        "notes": explanation.notes,
    })
}

const fn kind(kind: ReportKind) -> &'static str {
    match kind {
        ReportKind::Oom => "oom",
        ReportKind::Failure => "failure",
    }
}

fn ids(nodes: &[NodeId]) -> Vec<u16> {
    nodes.iter().map(|node| node.get()).collect()
}

fn request(request: &LoggedRequest) -> Value {
    json!({
        "process": request.process,
        "order": request.order,
        "gfp_mask": request.gfp.as_ref().and_then(|gfp| gfp.mask),
        "gfp_flags": request.gfp.as_ref().map(|gfp| &gfp.names),
        "nodemask": match &request.nodemask {
            Some(NodeList::Only(nodes)) => Some(ids(nodes)),
            _ => None,
        },
        "cpuset": request.cpuset,
        "mems_allowed": request.mems_allowed.as_deref().map(ids),
    })
}

fn place(place: Place) -> Value {
    json!({ "node": place.node.map(NodeId::get), "kind": place.kind.map(LoggedKind::name) })
}

fn remedy(remedy: &zonal_machine::log::Remedy) -> Value {
    let (key, name, value) = match &remedy.change {
        Change::Setting(name, value) => ("setting", json!(name), json!(value)),
        Change::Order(order) => ("order", json!(order), json!(order)),
        Change::Nodes(name, nodes) => ("policy", json!(name), json!(nodes)),
    };
    let mut object = Map::new();
    object.insert(key.to_owned(), name);
    object.insert("value".to_owned(), value);
    object.insert("cost".to_owned(), json!(remedy.cost));
    Value::Object(object)
}

fn check(check: &Check) -> Value {
    json!({
        "zone": check.place.map(place),
        "rule": check.rule.name(),
        "inputs": check.inputs.iter().map(input).collect::<Vec<_>>(),
        "outcome": check.outcome.name(),
        "verdict": check.verdict.name(),
        "margin": check.margin,
    })
}

fn input(input: &Input) -> Value {
    let (value, unit) = match &input.value {
        InputValue::Number(number, unit) => (json!(number), unit.name()),
        InputValue::Text(text) => (json!(text), None),
    };
    json!({ "name": input.name, "value": value, "unit": unit, "from": input.from.name() })
}

fn summary(summary: &Summary) -> Value {
    let verdicts: Map<String, Value> =
        summary.verdicts.iter().map(|(verdict, count)| (verdict.name().to_owned(), json!(count))).collect();
    json!({
        "reports": summary.reports,
        "oom": summary.kills,
        "failure": summary.failures,
        "constraints": summary.constraints,
        "refused_by": summary.refusals,
        "verdicts": verdicts,
    })
}
