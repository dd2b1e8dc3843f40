//! Tables of a report: figures by case and variant, variants, parameters.
//!
//! The table of figures has one row per case and figure and, for each variant, the predicted value, the published
//! value and the deviation. Neighbours: `report/html.rs` puts the tables on the page, `figures.rs` formats
//! numbers.

use std::collections::HashMap;

use maud::{Markup, html};

use super::canvas::printable;
use super::figures::{self, NO_FIGURE};
use super::lead;
use super::parts::{self, Part, Variant};
use crate::experiment::keys::figure_key;
use crate::experiment::results::{CaseValues, Parameter, Results, Role, Row};

/// Upper limits of absolute errors, in percent, and the CSS class of each range.
const ERRORS: [(f64, &str); 3] = [(5.0, "near"), (15.0, "fair"), (50.0, "off")];
/// CSS class of larger errors.
const FAR: &str = "far";

/// Marker of values used for calibration.
const CALIBRATED: &str = "†";

/// Row of the table: a figure of a case.
type Line<'a> = (&'a CaseValues, &'a str, &'a str);

/// Columns of a variant.
struct Columns<'a> {
    variant: &'a str,
    /// Whether the part has published values for the variant.
    published: bool,
}

/// Returns the table of a part's figures.
pub(super) fn figures(part: &Part<'_>, variants: &[Variant<'_>]) -> Markup {
    let there = |variant: &&Variant<'_>| part.rows.iter().any(|row| row.variant == variant.name);
    let columns: Vec<Columns<'_>> =
        variants.iter().filter(there).map(|variant| part.columns(variant)).collect();
    let values = part.rows.iter().flat_map(|row| parts::within_part(&row.case));
    let keys = parts::unique(values.map(|(name, _)| name.as_str()));
    let lines = lines(part);
    html! {
        div.scroll role="region" tabindex="0" aria-label=(printable(&part.title("figures"))) {
            table.figures {
                caption { (printable(&part.title("figures by case and variant"))) }
                (head(&keys, &columns))
                tbody {
                    @for (at, line) in lines.iter().enumerate() {
                        tr.case[at == 0 || lines[at - 1].0.0 != line.0.0] { (Part::line(line, &keys, &columns)) }
                    }
                }
            }
        }
    }
}

/// Returns the lines of a part in the order of first appearance, each with its rows.
fn lines<'a>(part: &Part<'a>) -> Vec<(Line<'a>, Vec<&'a Row>)> {
    let (mut lines, mut places) = (Vec::new(), HashMap::new());
    for row in &part.rows {
        let key = figure_key(&row.case, &row.unit, &row.metric);
        let place = *places.entry(key).or_insert_with(|| {
            lines.push(((&row.case, row.metric.as_str(), row.unit.as_str()), Vec::new()));
            lines.len() - 1
        });
        lines[place].1.push(*row);
    }
    lines
}

fn head(keys: &[&str], columns: &[Columns<'_>]) -> Markup {
    html! {
        thead {
            tr {
                @for key in keys { th scope="col" rowspan="2" { (printable(key)) } }
                th scope="col" rowspan="2" { "figure" }
                th scope="col" rowspan="2" { "unit" }
                @for column in columns {
                    th.variant scope="colgroup" colspan=(if column.published { 3 } else { 1 }) {
                        (printable(column.variant))
                    }
                }
            }
            tr {
                @for column in columns {
                    th.number.variant scope="col" { "predicted" }
                    @if column.published {
                        th.number scope="col" { "published" }
                        th.number scope="col" { "error %" }
                    }
                }
            }
        }
    }
}

impl Part<'_> {
    fn columns<'v>(&self, variant: &Variant<'v>) -> Columns<'v> {
        let mut rows = self.rows.iter().filter(|row| row.variant == variant.name);
        Columns { variant: variant.name, published: rows.any(|row| row.published.is_some()) }
    }

    fn line(
        ((case, metric, unit), rows): &(Line<'_>, Vec<&Row>),
        keys: &[&str],
        columns: &[Columns<'_>],
    ) -> Markup {
        let value = |key: &str| {
            let value = parts::within_part(case).iter().find(|(name, _)| name == key);
            value.map_or_else(|| NO_FIGURE.to_owned(), |(_, value)| parts::text(value))
        };
        html! {
            @for key in keys { th scope="row" { (printable(&value(key))) } }
            th scope="row" { (printable(metric)) }
            td.unit { (printable(unit)) }
            @for column in columns {
                (cells(rows.iter().find(|row| row.variant == column.variant).copied(), column))
            }
        }
    }
}

/// Returns the cells of a figure in one variant.
fn cells(row: Option<&Row>, column: &Columns<'_>) -> Markup {
    let published = row.and_then(|row| row.published);
    let calibrated = published.is_some() && row.is_some_and(|row| row.calibrated_on);
    let error = row.and_then(Row::error_pct).filter(|error| error.is_finite());
    html! {
        td.number.variant { (row.map_or(NO_FIGURE.to_owned(), |row| figures::number(row.predicted))) }
        @if column.published {
            td.number {
                (published.map_or(NO_FIGURE.to_owned(), figures::number))
                @if calibrated { abbr title="calibrated on" { (CALIBRATED) } }
            }
            td.number.error.(error.map_or("none", grade)) {
                (error.map_or(NO_FIGURE.to_owned(), figures::deviation))
            }
        }
    }
}

/// Returns the CSS class of an error.
fn grade(error: f64) -> &'static str {
    ERRORS.iter().find(|(most, _)| error.abs() <= *most).map_or(FAR, |(_, class)| class)
}

/// Returns the legend for the colours and markers of [`figures`].
pub(super) fn key() -> Markup {
    html! {
        p.key {
            "Error: predicted against published, in percent of published; "
            @for (most, class) in ERRORS { span.error.(class) { "up to ±" (most) " %" } " " }
            span.error.(FAR) { "more" } ". "
            "A value with " (CALIBRATED) " was calibrated on: its error shows the fit, not a prediction. "
            "Where " (NO_FIGURE) " stands, nothing is known."
        }
    }
}

/// Returns the table of variants, with the accuracy of their predictions.
pub(super) fn variants(results: &Results) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" aria-label="variants" {
            table {
                caption { "Variants, with errors of figures that were predicted without their published values" }
                thead { tr {
                    th scope="col" { "variant" } th scope="col" { "stands for" }
                    th scope="col" { "what is different" }
                    th.number scope="col" { "compared" } th.number scope="col" { "median error %" }
                    th.number scope="col" { "worst error %" }
                } }
                tbody {
                    @for variant in &results.variants {
                        @let own = results.rows.iter().filter(|row| row.variant == variant.name);
                        @let of = lead::deviations(own.filter(|row| !row.calibrated_on));
                        tr {
                            th scope="row" { (printable(&variant.name)) }
                            td { (role(variant.role)) }
                            td { (printable(&variant.about)) }
                            td.number { (of.as_ref().map_or(0, |of| of.rows)) }
                            td.number {
                                (of.as_ref().map_or(NO_FIGURE.to_owned(), |of| figures::deviation(of.median)
                                    .trim_start_matches('+').to_owned()))
                            }
                            td.number { (of.map_or(NO_FIGURE.to_owned(), |of| figures::deviation(of.worst))) }
                        }
                    }
                }
            }
        }
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Baseline => "how it was before",
        Role::Published => "the mechanism as published",
        Role::Ours => "our own mechanism",
    }
}

/// Returns the table of parameters.
pub(super) fn parameters(parameters: &[Parameter]) -> Markup {
    html! {
        div.scroll role="region" tabindex="0" aria-label="parameters" {
            table {
                caption { "Parameters of the simulation" }
                thead { tr {
                    th scope="col" { "parameter" } th.number scope="col" { "value" } th scope="col" { "unit" }
                    th scope="col" { "from" } th scope="col" { "why" }
                } }
                tbody {
                    @for parameter in parameters {
                        tr {
                            th scope="row" { code { (printable(&parameter.name)) } }
                            td.number { (figures::number(parameter.value)) }
                            td.unit { (figures::unit_of_name(&parameter.name)) }
                            td { (if parameter.calibrated { "calibration" } else { "assumption" }) }
                            td { (printable(&parameter.why)) }
                        }
                    }
                }
            }
        }
    }
}
