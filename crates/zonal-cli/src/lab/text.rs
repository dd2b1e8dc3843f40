//! Results for people: a table with a row for each case and figure, and a column for each variant.

use std::fmt::Write;
use std::path::PathBuf;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use zonal_lab::experiment::Plan;
use zonal_lab::experiment::results::{CaseValues, Results, Row, case_text};
use zonal_machine::Escaped;

pub(super) fn render(plan: &Plan, results: &Results, files: &[PathBuf]) -> String {
    let mut text = format!("{}: {}\n", Escaped(&results.experiment), Escaped(&results.title));
    let source =
        if results.source.is_empty() { String::new() } else { format!("{}; ", Escaped(&results.source)) };
    let done = results.runs.len();
    let _ = writeln!(
        text,
        "{source}on {}; seed {}; {done} of {} runs",
        Escaped(results.machines.join(", ")),
        results.seed,
        plan.runs.len()
    );
    text.push('\n');
    text.push_str(&table(results));
    text.push('\n');
    let calibrated = |row: &&Row| row.calibrated_on;
    let predicted = |row: &&Row| !row.calibrated_on;
    if !results.calibrated_on.is_empty() {
        let _ = writeln!(text, "calibrated on {}", Escaped(&results.calibrated_on));
    }
    text.extend(worst("worst error on figures calibrated on", results.rows.iter().filter(calibrated)));
    text.extend(worst("worst error on figures not calibrated on", results.rows.iter().filter(predicted)));
    if let Some(directory) = files.first().and_then(|file| file.parent()) {
        let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        let _ = writeln!(text, "written to {}: {}", Escaped(directory.display()), Escaped(names.join(", ")));
    }
    text + "\n"
}

/// A line of the table: one figure of one case.
fn lines(results: &Results) -> Vec<(&CaseValues, &str, &str)> {
    let mut lines: Vec<(&CaseValues, &str, &str)> = Vec::new();
    for row in &results.rows {
        let line = (&row.case, &*row.metric, &*row.unit);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// Names of the columns of cases.
fn columns(results: &Results) -> Vec<&str> {
    let mut columns: Vec<&str> = Vec::new();
    for (name, _) in results.rows.iter().flat_map(|row| &row.case) {
        if !columns.contains(&&**name) {
            columns.push(name);
        }
    }
    columns
}

fn of_variant<'r>(results: &'r Results, variant: &'r str) -> impl Iterator<Item = &'r Row> {
    results.rows.iter().filter(move |row| row.variant == variant)
}

fn table(results: &Results) -> String {
    let columns = columns(results);
    // Each variant, and whether it has anything to be compared with.
    let variants = results.variants.iter().map(|info| {
        let has_published = of_variant(results, &info.name).any(|row| row.published.is_some());
        (&*info.name, has_published)
    });
    let variants: Vec<(&str, bool)> = variants.collect();
    let mut header = [&columns[..], &["figure", "unit"]].concat();
    for &(name, has_published) in &variants {
        header.push(name);
        header.extend(["published", "error"].into_iter().filter(|_| has_published));
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.into_iter().map(|cell| Escaped(cell).to_string()));
    for (case, metric, unit) in lines(results) {
        let value = |name: &&str| case.iter().find(|(column, _)| column == name);
        let mut cells: Vec<String> =
            columns.iter().map(|name| value(name).map_or_else(String::new, |(_, v)| v.to_string())).collect();
        cells.extend([metric, unit].map(str::to_owned));
        for &(name, has_published) in &variants {
            let row = of_variant(results, name)
                .find(|row| row.case == *case && row.metric == metric && row.unit == unit);
            cells.push(cell(row.map(|row| row.predicted), figure));
            if has_published {
                cells.push(cell(row.and_then(|row| row.published), figure));
                cells.push(cell(row.and_then(Row::error_pct), percent));
            }
        }
        table.add_row(cells.into_iter().map(|cell| Escaped(cell).to_string()));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        let is_text = at >= columns.len() && at < columns.len() + 2;
        column.set_cell_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.lines().fold(String::new(), |text, line| text + line.trim_end() + "\n")
}

fn cell(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Four significant digits, and no fraction of thousands.
fn figure(value: f64) -> String {
    let size = value.abs();
    let digits = if size == 0.0 || size >= 1000.0 {
        0
    } else {
        (3 - size.log10().floor() as i32).clamp(0, 9) as usize
    };
    format!("{value:.digits$}")
}

fn percent(value: f64) -> String {
    format!("{value:+.1} %")
}

/// A line about the figure that is furthest off; none where nothing is compared.
fn worst<'r>(what: &str, rows: impl Iterator<Item = &'r Row>) -> Option<String> {
    let errors = rows.filter_map(|row| Some((row.error_pct()?, row)));
    let (error, row) = errors.max_by(|(a, _), (b, _)| a.abs().total_cmp(&b.abs()))?;
    let case = case_text(&row.case);
    let case = if case.is_empty() { case } else { format!("{case}, ") };
    let figure = Escaped(format_args!("{case}{}, {}", row.variant, row.metric)).to_string();
    Some(format!("{what}: {} ({figure})\n", percent(error)))
}
