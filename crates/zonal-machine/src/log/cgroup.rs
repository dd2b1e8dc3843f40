//! Explains a kill because of a cgroup's limit, which is no failure of a zone.

use super::answer;
use super::check::{Check, Input, Origin, Outcome, Unit, Value, Verdict};
use super::explanation::{Change, Explanation, Refusal, Remedy};
use super::figures::NUMBER_MAX;
use super::report::{CgroupCounter, LogReport};
use super::rules::Rule;

/// Pages that a CPU charges in advance, which others may return between the decision and the report.
const CHARGED_AHEAD: u64 = 64;
/// Size of a page in kB; these reports do not print it.
const PAGE_KIB: u64 = 4;

/// Explains the report.
pub(super) fn explain(report: &LogReport) -> Explanation {
    let order = u32::try_from(report.request.order.unwrap_or(0)).unwrap_or(0).min(20);
    let request = PAGE_KIB << order;
    let limited: Vec<&CgroupCounter> = report
        .cgroup
        .iter()
        .filter(|counter| counter.limit.0 < NUMBER_MAX && counter.name != "swap")
        .collect();
    let checks: Vec<Check> =
        limited.iter().map(|counter| check(report, counter, request, &limited)).collect();
    let refusing = limited.iter().find(|counter| room(counter, request) < 0);
    let remedies: Vec<Remedy> = refusing.iter().map(|counter| remedy(counter, request)).collect();
    Explanation {
        answer: answer::of_cgroup(report, refusing.copied(), &remedies),
        refused_by: Some(Refusal { place: None, rule: Rule::CgroupLimit }),
        nodes: Vec::new(),
        remedies,
        checks,
        notes: answer::notes(report, None),
        page_kib: PAGE_KIB,
    }
}

/// Returns how many kB would be left below the limit.
fn room(counter: &CgroupCounter, request: u64) -> i64 {
    let taken = counter.usage.0.saturating_add(request);
    i64::try_from(counter.limit.0)
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(taken).unwrap_or(i64::MAX))
}

fn check(report: &LogReport, counter: &CgroupCounter, request: u64, all: &[&CgroupCounter]) -> Check {
    let room = room(counter, request);
    let kib = |name, kib: u64, from| Input {
        name,
        value: Value::Number(i64::try_from(kib).unwrap_or(i64::MAX), Unit::Kib),
        from,
    };
    let cpus = u64::from(report.cpu.unwrap_or(0)).saturating_add(1).min(8192);
    let ahead = CHARGED_AHEAD * cpus * PAGE_KIB;
    let is_refused = all.iter().any(|counter| self::room(counter, request) < 0);
    let verdict = match () {
        () if is_refused => Verdict::Predicted,
        () if room <= i64::try_from(ahead).unwrap_or(i64::MAX) => Verdict::Undecided,
        () => Verdict::Contradicted,
    };
    Check {
        place: None,
        rule: Rule::CgroupLimit,
        inputs: vec![
            Input::text("counter", counter.name, Origin::Printed),
            kib("usage", counter.usage.0, Origin::Printed),
            kib("limit", counter.limit.0, Origin::Printed),
            kib("request", request, Origin::Computed),
            kib("charged ahead", ahead, Origin::Assumed),
        ],
        outcome: if room < 0 { Outcome::Refuses } else { Outcome::Passes },
        verdict,
        margin: Some(room / PAGE_KIB.cast_signed()),
    }
}

/// Returns a limit that the request fits into.
fn remedy(counter: &CgroupCounter, request: u64) -> Remedy {
    let limit = counter.usage.0.saturating_add(request);
    let name = match counter.name {
        "memory" => "memory.max",
        "memory+swap" => "memory.memsw.limit_in_bytes",
        _ => "memory.kmem.limit_in_bytes",
    };
    let more = limit - counter.limit.0.min(limit);
    let cost =
        format!("the cgroup may take {more} kB more from the machine, and as much again if it grows on");
    Remedy { change: Change::Setting(name, format!("at least {limit}K")), cost }
}
