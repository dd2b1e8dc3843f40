//! The HTML page of a report.
//!
//! Sections in reading order: introduction, main results, tables, charts, inputs, missing results. Neighbours:
//! `report/lead.rs`, `report/table.rs` and the chart modules produce the contents; `report/page.css` has the
//! styles.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::canvas::{Chart, printable};
use super::{Gallery, lead, parts, style, table};
use crate::experiment::results::Results;

/// Styles of the page.
const STYLE: &str = include_str!("page.css");
/// Content security policy that prevents the page from loading anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Returns the page as text.
pub(super) fn page(results: &Results, gallery: &Gallery) -> String {
    let title = if results.title.is_empty() { &results.experiment } else { &results.title };
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="generator" content="zonal";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                title { (printable(title)) }
                style { (PreEscaped(STYLE)) (PreEscaped(style::css("svg "))) }
            }
            body {
                (header(results, title))
                main {
                    (tables(results))
                    (charts(gallery))
                    (inputs(results))
                    (missing(results))
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn header(results: &Results, title: &str) -> Markup {
    let machines: Vec<String> = results.machines.iter().map(|machine| printable(machine)).collect();
    html! {
        header {
            h1 { (printable(title)) }
            p.about {
                "Experiment " code { (printable(&results.experiment)) }
                @if !machines.is_empty() {
                    " on the simulated " (if machines.len() == 1 { "machine " } else { "machines " })
                    (machines.join(", "))
                }
                ", seed " (results.seed) "."
            }
            @if !results.source.is_empty() { p.about { "Published figures: " (printable(&results.source)) } }
            p.lead { (printable(&lead::sentences(results).join(" "))) }
            @if !results.calibrated_on.is_empty() {
                p { "Calibrated on: " (printable(&results.calibrated_on)) }
            }
            @if results.missing > 0 {
                p.warning { (not_done(results)) }
            }
        }
    }
}

fn tables(results: &Results) -> Markup {
    let variants = parts::variants(results);
    html! {
        section aria-labelledby="figures" {
            h2 id="figures" { "Figures" }
            @if results.rows.is_empty() { p { "None." } }
            @for part in parts::parts(results).iter().filter(|part| !part.rows.is_empty()) {
                (table::figures(part, &variants))
            }
            @if !results.rows.is_empty() { (table::key()) }
            @if !results.variants.is_empty() { (table::variants(results)) }
        }
    }
}

fn charts(gallery: &Gallery) -> Markup {
    let sections = [
        ("scaling", "Along an axis", &gallery.scaling),
        ("bars", "Side by side", &gallery.bars),
        ("causes", "What was waited for", &gallery.causes),
    ];
    html! {
        @for (id, title, charts) in sections.into_iter().filter(|(_, _, charts)| !charts.is_empty()) {
            section aria-labelledby=(id) {
                h2 id=(id) { (title) }
                (figures(charts))
            }
        }
        @if !gallery.series.is_empty() {
            section aria-labelledby="series" {
                h2 id="series" { "Over time" }
                @for (at, (case, charts)) in gallery.series.iter().enumerate() {
                    @if gallery.series.len() == 1 { (figures(charts)) } @else {
                        details open[at == 0] {
                            summary { @if case.is_empty() { "all" } @else { (printable(case)) } }
                            (figures(charts))
                        }
                    }
                }
            }
        }
    }
}

fn figures(charts: &[Chart]) -> Markup {
    html! {
        div.charts { @for chart in charts { figure { (PreEscaped(chart.inline())) } } }
    }
}

fn inputs(results: &Results) -> Markup {
    html! {
        section aria-labelledby="parameters" {
            h2 id="parameters" { "Parameters" }
            @if results.parameters.is_empty() { p { "None." } } @else {
                (table::parameters(&results.parameters))
            }
        }
        section aria-labelledby="assumptions" {
            h2 id="assumptions" { "Assumptions" }
            @if results.assumptions.is_empty() { p { "None." } } @else {
                ul { @for assumption in &results.assumptions { li { (printable(assumption)) } } }
            }
        }
    }
}

fn missing(results: &Results) -> Markup {
    html! {
        section aria-labelledby="missing" {
            h2 id="missing" { "What was not done" }
            p {
                @if results.missing > 0 { (not_done(results)) } @else {
                    "Nothing: " (lead::counted(results.runs.len(), "run")) " done, none missing."
                }
            }
        }
    }
}

fn not_done(results: &Results) -> String {
    let missing = lead::counted(results.missing, "run");
    format!("Stopped early: {missing} not done, {} done.", results.runs.len())
}
