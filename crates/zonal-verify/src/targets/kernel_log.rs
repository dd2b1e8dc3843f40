//! Fuzz target: bytes are a kernel log, whose reports of failed requests are read and explained.
//!
//! Every report must be explained, whatever its numbers are. Each explanation must be consistent: a refusal is a check
//! that refuses, and nothing that would let the request through is offered if a zone already would.
//!
//! Related files: the logs in `crates/zonal-machine/data/logs` are those of real kernels.

use std::collections::BTreeSet;

use zonal_machine::log::{LogReader, Outcome, Rule, Verdict, explain_report};

/// Reads `data` as a log.
pub fn target(data: &[u8]) {
    let mut reader = LogReader::new(data);
    let mut last = 0;
    while let Some(report) = reader.next_report().expect("bytes in memory can be read") {
        assert!(report.line > last, "reports are in the order of their lines");
        last = report.line;
        let explanation = explain_report(&report);
        assert!(!explanation.answer.is_empty() && explanation.answer.iter().all(|line| !line.contains('\n')));
        if let Some(refusal) = explanation.refused_by.filter(|refusal| refusal.rule != Rule::CgroupLimit) {
            let is_it = |check: &&zonal_machine::log::Check| {
                check.place == refusal.place
                    && check.rule == refusal.rule
                    && check.outcome == Outcome::Refuses
            };
            assert!(explanation.checks.iter().any(|check| is_it(&check)), "{refusal:?} is a check");
        }
        let places: BTreeSet<_> =
            explanation.checks.iter().filter_map(|check| Some(check.place?.node)).collect();
        assert!(
            explanation.nodes.len()
                <= places.len() + report.request.mems_allowed.map_or(0, |nodes| nodes.len())
        );
        for refused in explanation.checks.iter().filter(|check| check.outcome == Outcome::Passes) {
            // Only what no kernel can print is contradicted although a later rule refuses the zone.
            let is_sum = matches!(refused.rule, Rule::Counts | Rule::Totals | Rule::CgroupLimit);
            let later = explanation.checks.iter().any(|check| {
                check.place == refused.place && check.rule > refused.rule && check.outcome == Outcome::Refuses
            });
            assert!(is_sum || !later || refused.verdict != Verdict::Contradicted, "{refused:?}");
        }
    }
    assert!(last <= reader.seen().lines);
    assert_eq!(reader.seen().bytes, data.len() as u64);
}
