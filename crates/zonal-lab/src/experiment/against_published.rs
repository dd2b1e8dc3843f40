//! Says in a sentence which published figures the simulation meets, and names those that it misses.
//!
//! Related files: `experiment/results.rs` defines when a figure is met.

use super::case_values::case_text;
use super::results::{CaseValue, MET, Results, Row, Status};
use crate::figures;

/// Largest factor between a published and a simulated change that counts as met.
const EFFECT_MET: f64 = 1.5;

impl Results {
    /// Returns what was met and what was missed, or `None` if no row has a published value.
    #[must_use]
    pub fn against_published(&self) -> Option<String> {
        let counts =
            [Status::Fitted, Status::Predicted, Status::Open].map(|status| (status, self.met(status)));
        let counts = counts.into_iter().filter(|(_, (_, all))| *all > 0);
        let counts = counts.map(|(status, (met, all))| format!("{met} of {all} that are {}", status.name()));
        let counts: Vec<String> = counts.collect();
        if counts.is_empty() {
            return None;
        }
        let percent = figures::exact(MET * 100.0);
        let met = format!("Within {percent} % of published figures: {}.", counts.join(", "));
        let mut missed: Vec<(&str, Vec<&Row>)> = Vec::new();
        for row in self.rows.iter().filter(|row| row.is_met() == Some(false)) {
            let is_same = |rows: &[&Row]| {
                rows[0].metric == row.metric
                    && rows[0].variant == row.variant
                    && part(rows[0]) == part(row)
                    && rows[0].status() == row.status()
            };
            match missed.iter_mut().find(|(_, rows)| is_same(rows)) {
                Some((_, rows)) => rows.push(row),
                None => missed.push((&row.metric, vec![row])),
            }
        }
        let missed: Vec<String> = missed.iter().map(|(metric, rows)| miss(metric, rows)).collect();
        let missed = if missed.is_empty() {
            "None was missed.".to_owned()
        } else {
            format!("Missed: {}.", missed.join("; "))
        };
        let sentences = [Some(met), Some(missed), self.effects_text()];
        Some(sentences.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }

    /// Returns which published changes against the baseline are simulated. A figure within [`MET`] of its published value
    /// can still miss a change that is small.
    fn effects_text(&self) -> Option<String> {
        let margin = self.margin();
        let changes = |row: &&Row| Some((row.published_change_pct()?, row.change_pct()?));
        let is_met = |(published, simulated): (f64, f64)| {
            let ratio = simulated / published;
            (simulated - published).abs() <= margin || (1.0 / EFFECT_MET..=EFFECT_MET).contains(&ratio)
        };
        let effects = self.effects();
        let (met, missed): (Vec<&Row>, Vec<&Row>) =
            effects.iter().partition(|row| changes(row).is_some_and(is_met));
        if effects.is_empty() {
            return None;
        }
        let text = format!(
            "Of {} published changes against the baseline, {} are simulated within {} points, or in direction and within \
             a factor of {EFFECT_MET}",
            effects.len(),
            met.len(),
            figures::exact(margin)
        );
        let percent = |value: f64| figures::deviation(value);
        let miss = |row: &&Row| {
            let (published, simulated) = changes(row)?;
            let case = case_text(&row.case);
            let case = if case.is_empty() { case } else { format!(", {case}") };
            let (metric, variant) = (&row.metric, &row.variant);
            Some(format!(
                "{metric} of {variant}{case} ({} instead of {} %)",
                percent(simulated),
                percent(published)
            ))
        };
        let missed: Vec<String> = missed.iter().filter_map(miss).collect();
        Some(if missed.is_empty() { text + "." } else { format!("{text}; not so: {}.", missed.join("; ")) })
    }

    /// Returns how many published figures of a status were met, and how many there are.
    fn met(&self, status: Status) -> (usize, usize) {
        let rows = self.rows.iter().filter(|row| row.status() == Some(status));
        (rows.clone().filter(|row| row.is_met() == Some(true)).count(), rows.count())
    }
}

fn part(row: &Row) -> Option<&str> {
    match row.case.first() {
        Some((_, CaseValue::Text(part))) => Some(part),
        _ => None,
    }
}

/// Names the missed figures of a metric, a variant and a part.
fn miss(metric: &str, rows: &[&Row]) -> String {
    let first = rows[0];
    let status = match first.status() {
        Some(Status::Fitted) => ", fitted",
        Some(Status::Open) => ", open",
        _ => "",
    };
    let (variant, number) = (&first.variant, figures::number);
    if let [row] = rows {
        let case = case_text(&row.case);
        let case = if case.is_empty() { case } else { format!(", {case}") };
        let published = number(row.published.unwrap_or_default());
        return format!(
            "{metric} of {variant}{case} ({} instead of {published} {}{status})",
            number(row.predicted),
            row.unit
        );
    }
    let errors = rows.iter().filter_map(|row| row.error_pct());
    let worst = errors.max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let worst = worst.map_or_else(String::new, |worst| format!("up to {} %", figures::deviation(worst)));
    let part = part(first).map_or_else(String::new, |part| format!(", {part}"));
    format!("{metric} of {variant}{part} in {} cases ({worst}{status})", rows.len())
}

#[cfg(test)]
mod tests {
    use super::super::results::{Role, VariantInfo};
    use super::*;

    fn info() -> VariantInfo {
        VariantInfo { name: String::new(), role: Role::Ours, about: String::new() }
    }

    #[test]
    fn figures_that_are_missed_are_named() {
        let row = |variant: &str, cpus: f64, predicted: f64, published: f64| Row {
            case: vec![("cpus".to_owned(), CaseValue::Number(cpus))],
            variant: variant.to_owned(),
            metric: "wall".to_owned(),
            unit: "s".to_owned(),
            predicted,
            published: Some(published),
            calibrated_on: variant == "old",
            open: variant == "new" && cpus == 4.0,
            ..Row::default()
        };
        let mut results = Results::default();
        assert_eq!(results.against_published(), None);
        results.rows = vec![row("old", 1.0, 1.14, 1.0), row("new", 1.0, 1.0, 1.0)];
        let expected = "Within 15 % of published figures: 1 of 1 that are fitted, 1 of 1 that are predicted. None was \
                        missed.";
        assert_eq!(results.against_published().as_deref(), Some(expected));
        results.rows.extend([
            row("new", 2.0, 1.5, 1.0),
            row("new", 3.0, 2.0, 1.0),
            row("new", 4.0, 2.0, 1.0),
        ]);
        let expected = "1 of 3 that are predicted, 0 of 1 that are open. Missed: wall of new in 2 cases (up to +100 %); \
                        wall of new, cpus = 4 (2 instead of 1 s, open).";
        let text = results.against_published().unwrap();
        assert!(text.ends_with(expected), "{text}");
        // A figure can be met although its change is not.
        let wall = |predicted| Row {
            baseline: Some(1.0),
            published_baseline: Some(1.0),
            ..row("new", 1.0, predicted, 0.9)
        };
        results.variants = ["old", "new"].map(|name| VariantInfo { name: name.to_owned(), ..info() }).into();
        results.rows = vec![wall(0.99)];
        let text = results.against_published().unwrap();
        assert!(
            text.contains("None was missed. Of 1 published changes against the baseline, 0 are simulated"),
            "{text}"
        );
        assert!(text.ends_with("not so: wall of new, cpus = 1 (−1.0 instead of −10 %)."), "{text}");
        results.rows = vec![wall(0.92)];
        assert!(
            results
                .against_published()
                .unwrap()
                .ends_with("1 are simulated within 2 points, or in direction and within a factor of 1.5.")
        );
        results.variants.clear();
        // A published zero is met only by a zero.
        results.rows = vec![row("new", 1.0, 0.0, 0.0), row("new", 2.0, 0.1, 0.0)];
        assert!(results.against_published().unwrap().contains("1 of 2 that are predicted"));
    }
}
