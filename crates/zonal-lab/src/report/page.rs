//! The HTML page of a report.
//!
//! The sections, in reading order, are the introduction, the main results, tables, charts, inputs, and missing
//! results. Related files: `report/lead.rs`, `report/table.rs` and the chart modules produce the contents.

use zonal_page::{Block, Chart, Page, Section};

use super::{Gallery, lead, parts, table};
use crate::experiment::results::Results;

/// Returns the page as text.
pub(super) fn page(results: &Results, gallery: &Gallery) -> String {
    let title = if results.title.is_empty() { &results.experiment } else { &results.title };
    let mut sections = vec![section("Figures", figures(results))];
    sections.extend(charts(gallery));
    sections.push(section("Costs and settings", costs(results)));
    let parameters = Block::Table(table::parameters(&results.parameters));
    sections.push(section("Documented parameters", some(!results.parameters.is_empty(), parameters)));
    if !results.trials.is_empty() {
        sections.push(section("Other seeds and costs", vec![Block::Table(table::trials(results))]));
    }
    if !results.fitted.is_empty() {
        sections.push(section("Fitted figures", vec![Block::Table(table::fitted(&results.fitted))]));
    }
    if !results.open.is_empty() {
        sections.push(section("Open figures", vec![Block::Table(table::open(&results.open))]));
    }
    let assumptions = Block::List(results.assumptions.clone());
    sections.push(section("Assumptions", some(!results.assumptions.is_empty(), assumptions)));
    let missing = match results.missing {
        0 => format!("Nothing: {} done, none missing.", lead::counted(results.runs.len(), "run")),
        _ => not_done(results),
    };
    sections.push(section("What was not done", vec![Block::Text(missing)]));
    Page { title: title.clone(), header: header(results), sections }.html()
}

fn section<'a>(title: &str, blocks: Vec<Block<'a>>) -> Section<'a> {
    Section { title: title.to_owned(), blocks }
}

/// Returns a block, or the text "None." if there is nothing to show.
fn some(is_there: bool, block: Block<'_>) -> Vec<Block<'_>> {
    vec![if is_there { block } else { Block::Text("None.".to_owned()) }]
}

fn header(results: &Results) -> Vec<Block<'static>> {
    let machines = match results.machines.as_slice() {
        [] => String::new(),
        [machine] => format!(" on the simulated machine {machine}"),
        machines => format!(" on the simulated machines {}", machines.join(", ")),
    };
    let about = format!("Experiment {}{machines}, seed {}.", results.experiment, results.seed);
    let mut header = vec![Block::About(about)];
    if !results.source.is_empty() {
        header.push(Block::About(format!("Published figures: {}", results.source)));
    }
    if !results.question.text.is_empty() {
        header.push(Block::About(format!("Question: {}", results.question.text)));
    }
    let mut sentences = lead::sentences(results).into_iter();
    header.extend(sentences.next().map(Block::Lead));
    header.extend(sentences.map(Block::Text));
    if !results.calibrated_on.is_empty() {
        header.push(Block::Text(format!("Calibrated on: {}", results.calibrated_on)));
    }
    if results.missing > 0 {
        header.push(Block::Warning(not_done(results)));
    }
    header
}

/// Returns the costs and settings that the runs had: those that differ between variants, and then the others.
fn costs(results: &Results) -> Vec<Block<'static>> {
    let [differ, shared] =
        [true, false].map(|differs| results.effective.iter().any(|one| one.differs == differs));
    let none = Block::Text("No cost and no setting differs between variants.".to_owned());
    let differing = if differ { Block::Table(table::effective(results, true)) } else { none };
    let shared = shared.then(|| Block::Table(table::effective(results, false)));
    [differing].into_iter().chain(shared).collect()
}

fn figures(results: &Results) -> Vec<Block<'static>> {
    let variants = parts::variants(results);
    let parts = parts::parts(results).into_iter().filter(|part| !part.rows.is_empty());
    let tables = parts.map(|part| Block::Table(table::figures(&part, &variants)));
    let mut blocks: Vec<Block<'_>> = tables.collect();
    if results.rows.is_empty() {
        blocks.push(Block::Text("None.".to_owned()));
    } else if lead::has_published(results) {
        blocks.push(Block::Note(table::note()));
    }
    let effects = results.effects();
    if !effects.is_empty() {
        blocks.insert(0, Block::Table(table::effects(&effects)));
    }
    if !results.variants.is_empty() {
        blocks.push(Block::Table(table::variants(results)));
    }
    blocks
}

fn charts(gallery: &Gallery) -> Vec<Section<'_>> {
    let of = |charts: &'_ [Chart]| !charts.is_empty();
    let kinds = [
        ("Along an axis", gallery.scaling.as_slice()),
        ("Side by side", &gallery.bars),
        ("What was waited for", &gallery.causes),
    ];
    let shown = kinds.into_iter().filter(|(_, charts)| of(charts));
    let mut sections: Vec<_> =
        shown.map(|(title, charts)| section(title, vec![Block::Charts(charts)])).collect();
    let series = match gallery.series.as_slice() {
        [] => return sections,
        [(_, charts)] => vec![Block::Charts(charts)],
        cases => cases.iter().enumerate().map(|(at, (case, charts))| folded(case, at == 0, charts)).collect(),
    };
    sections.push(section("Over time", series));
    sections
}

fn folded<'a>(case: &str, is_open: bool, charts: &'a [Chart]) -> Block<'a> {
    let summary = if case.is_empty() { "all" } else { case }.to_owned();
    Block::Folded { summary, is_open, blocks: vec![Block::Charts(charts)] }
}

fn not_done(results: &Results) -> String {
    let missing = lead::counted(results.missing, "run");
    format!("Stopped early: {missing} not done, {} done.", results.runs.len())
}
