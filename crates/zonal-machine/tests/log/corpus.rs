//! Compares the explanation of every stored report with the index, and what guests' reports must be.

use std::collections::BTreeMap;
use std::fs;

use zonal_machine::log::{Change, Explanation, LogReport, Origin, Outcome, ReportKind, Rule, Verdict};

use super::{explained, folder, real_logs, text};

/// Returns the worst verdict of a report.
fn verdict(explanation: &Explanation) -> &'static str {
    let worst = explanation.checks.iter().map(|check| check.verdict).max();
    worst.map_or("none", Verdict::name)
}

fn row(report: &LogReport, explanation: &Explanation) -> [String; 5] {
    let refusal = explanation.refused_by;
    let place = refusal.and_then(|refusal| refusal.place).and_then(|place| Some((place.node?, place.kind?)));
    [
        report.release.clone().unwrap_or_else(|| "-".to_owned()),
        report.constraint().map_or("-", |constraint| constraint.name()).to_owned(),
        place.map_or_else(|| "-".to_owned(), |(node, kind)| format!("node {node} {kind}")),
        refusal.map_or("-", |refusal| refusal.rule.name()).to_owned(),
        verdict(explanation).to_owned(),
    ]
}

/// The rows of the index, by file and number of the report.
fn index() -> BTreeMap<(String, usize), [String; 5]> {
    let text = fs::read_to_string(folder().join("index.tsv")).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [file, number, kernel, _, constraint, zone, rule, verdict] = cells[..] else { panic!("{line}") };
        let row = [kernel, constraint, zone, rule, verdict].map(str::to_owned);
        ((file.to_owned(), number.parse().unwrap()), row)
    });
    rows.collect()
}

#[test]
fn every_report_is_explained_as_the_index_says() {
    let mut index = index();
    for name in real_logs() {
        let reports = explained(&text(&name));
        assert!(!reports.is_empty(), "{name} has a report");
        for (number, (report, explanation)) in reports.iter().enumerate() {
            let expected = index.remove(&(name.clone(), number + 1));
            assert_eq!(Some(row(report, explanation)), expected, "{name}, report {}", number + 1);
        }
    }
    assert!(index.is_empty(), "rows without a report: {index:?}");
}

#[test]
fn guests_are_predicted_and_never_contradicted() {
    let mut counts: BTreeMap<Verdict, usize> = BTreeMap::new();
    for name in real_logs().iter().filter(|name| name.starts_with("guest/")) {
        for (_, explanation) in explained(&text(name)) {
            assert!(!explanation.is_contradicted(), "{name}: {:?}", explanation.checks);
            for check in &explanation.checks {
                *counts.entry(check.verdict).or_default() += 1;
            }
        }
    }
    let all: usize = counts.values().sum();
    assert!(all > 1000, "the guests' reports have {all} checks");
    assert!(counts[&Verdict::Predicted] * 5 >= all * 4, "{counts:?}");
}

/// Returns the rows of a folder's reports with a verdict.
fn rows_of(folder: &str, verdict: Verdict) -> usize {
    let names = real_logs().into_iter().filter(|name| name.starts_with(folder));
    let reports = names.flat_map(|name| explained(&text(&name)));
    let checks = reports.flat_map(|(_, explanation)| explanation.checks);
    checks.filter(|check| check.verdict == verdict).count()
}

#[test]
fn the_page_has_the_counts_of_the_verdicts() {
    let page = folder().join("../../../../docs/explain.md");
    let page = fs::read_to_string(page).unwrap();
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let [guest, public] = ["guest/", "public/"].map(|folder| {
        [Verdict::Predicted, Verdict::Undecided, Verdict::Contradicted]
            .map(|verdict| rows_of(folder, verdict))
    });
    let [predicted, undecided, contradicted] = guest;
    assert_eq!(contradicted, 0);
    let of_guests = format!("with {predicted} rows predicted, {undecided} undecided and none contradicted");
    assert!(page.contains(&of_guests), "{of_guests}");
    let [predicted, undecided, contradicted] = public;
    let of_public =
        format!("with {predicted} predicted, {undecided} undecided and {contradicted} contradicted");
    assert!(page.contains(&of_public), "{of_public}");
}

#[test]
fn enough_public_reports_from_enough_kernels() {
    let logs: Vec<String> = real_logs().into_iter().filter(|name| name.starts_with("public/")).collect();
    assert!(logs.len() >= 12, "{logs:?}");
    let reports = logs.iter().flat_map(|name| explained(&text(name)));
    let mut versions: Vec<_> = reports.filter_map(|(report, _)| report.kernel).collect();
    versions.sort();
    versions.dedup();
    assert!(versions.len() >= 7 && versions[0].major == 4, "{versions:?}");
}

#[test]
fn versions_without_evidence_have_assumed_inputs() {
    let reports = explained(&text("public/4.19-user-page.txt"));
    let (_, explanation) = &reports[0];
    let mark = explanation.checks.iter().find(|check| check.rule == Rule::Mark).unwrap();
    assert_eq!(mark.inputs[1].from, Origin::Assumed);
    assert!(
        explanation.notes.iter().any(|note| note.contains("4.19 are assumed")),
        "{:?}",
        explanation.notes
    );
    let reports = explained(&text("guest/6.1-bind.txt"));
    let mark = reports[0].1.checks.iter().find(|check| check.rule == Rule::Mark).unwrap();
    assert_eq!(mark.inputs[1].from, Origin::Computed);
}

#[test]
fn nodes_left_out_follow_from_the_totals() {
    let reports = explained(&text("guest/6.1-bind-two.txt"));
    let (report, explanation) = &reports[0];
    let printed: u64 = explanation.nodes.iter().filter_map(|node| node.free).sum();
    let total = report.totals.unwrap().get(zonal_machine::log::Figure::Free).unwrap();
    let others: Vec<_> = explanation.nodes.iter().filter(|node| node.free.is_none()).collect();
    assert_eq!(others.len(), 2, "{:?}", explanation.nodes);
    let check = explanation
        .checks
        .iter()
        .find(|check| check.rule == Rule::Policy && check.outcome == Outcome::Refuses);
    let free = &check.unwrap().inputs[1];
    assert_eq!(free.from, Origin::Computed);
    assert_eq!(
        free.value,
        zonal_machine::log::Value::Number((total - printed) as i64, zonal_machine::log::Unit::Pages)
    );
}

#[test]
fn requests_of_the_kernel_may_leave_the_cpuset() {
    let reports = explained(&text("guest/6.12-cpuset-kernel-page.txt"));
    let (_, explanation) = &reports[0];
    let is_of_cpuset = |change: &Change| matches!(change, Change::Nodes("cpuset", _));
    assert!(
        !explanation.remedies.iter().any(|remedy| is_of_cpuset(&remedy.change)),
        "{:?}",
        explanation.remedies
    );
    assert!(explanation.answer.iter().any(|text| text.contains("does not bind")), "{:?}", explanation.answer);
    let undecided = explanation.checks.iter().filter(|check| check.verdict == Verdict::Undecided);
    assert_eq!(undecided.count(), 1);
}

#[test]
fn a_limit_of_a_cgroup_is_no_failure_of_a_zone() {
    let reports = explained(&text("guest/6.1-memcg-then-bind.txt"));
    let (_, first) = &reports[0];
    let refusal = first.refused_by.unwrap();
    assert_eq!((refusal.place, refusal.rule), (None, Rule::CgroupLimit));
    assert!(first.nodes.is_empty() && first.answer[0].contains("its memory limit"), "{:?}", first.answer);
    assert_eq!(reports[1].1.refused_by.unwrap().rule, Rule::Mark);
}

/// A smaller order that is offered must pass if the log is changed to say so.
#[test]
fn smaller_orders_pass_when_the_log_has_them() {
    let mut count = 0;
    for name in real_logs() {
        let before = text(&name);
        for (at, (report, explanation)) in explained(&before).iter().enumerate() {
            let order = explanation.remedies.iter().find_map(|remedy| match remedy.change {
                Change::Order(order) => Some(order),
                _ => None,
            });
            let (Some(order), Some(was)) = (order, report.request.order) else { continue };
            let sign = if report.kind == Some(ReportKind::Oom) { "order=" } else { "order:" };
            let after = before.replace(&format!("{sign}{was}"), &format!("{sign}{order}"));
            let after = after.replace(&format!("page order {was}"), &format!("page order {order}"));
            let (_, explanation) = &explained(&after)[at];
            let serves = explanation.answer.iter().any(|text| text.contains("would serve it"));
            assert!(serves, "{name}: order {order} passes: {:?}", explanation.answer);
            count += 1;
        }
    }
    assert!(count >= 5, "{count} reports offer a smaller order");
}
