//! The gains and costs of the mechanisms as one JSON document, for scripts. The keys of the document and their order
//! are stable.

use serde::Serialize;
use zonal_bench::mechanisms::{Findings, Kind, Measure};

#[derive(Serialize)]
struct Line<'a> {
    mechanism: &'static str,
    variant: &'static str,
    kind: &'static str,
    metric: &'a str,
    unit: &'static str,
    value: f64,
    simulated: bool,
}

/// Returns the document, followed by a line break.
pub(super) fn render(findings: &[Findings]) -> String {
    let lines: Vec<Line<'_>> = findings
        .iter()
        .flat_map(|found| found.measures.iter().flat_map(|measure| lines(found, measure)))
        .collect();
    serde_json::to_string(&lines).expect("numbers and names are always JSON") + "\n"
}

/// Returns one line for each variant. Its kind compares it with the first variant.
fn lines<'a>(found: &'a Findings, measure: &'a Measure) -> impl Iterator<Item = Line<'a>> {
    let values = found.variants.iter().zip(&measure.kinds).zip(&measure.values);
    values.map(|((&variant, kind), &value)| Line {
        mechanism: found.mechanism.name(),
        variant,
        kind: match kind {
            Kind::Gain => "gain",
            Kind::Cost => "cost",
            Kind::Same => "same",
        },
        metric: &measure.metric,
        unit: measure.unit,
        value,
        simulated: measure.is_simulated(),
    })
}
