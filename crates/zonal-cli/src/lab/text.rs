//! Results as text: a table with one row for each case and figure, and one column for each variant.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use zonal_lab::experiment::Plan;
use zonal_lab::experiment::results::{Results, Row, case_text};
use zonal_machine::Escaped;

use crate::layout::Content::{Numbers, Text};
use crate::layout::{Grid, Width};

pub(super) fn render(plan: &Plan, results: &Results, files: &[PathBuf], width: Width) -> String {
    let title = format!("{}: {}", Escaped(&results.experiment), Escaped(&results.title));
    let machines = match results.machines.len() {
        1 => "machine",
        _ => "machines",
    };
    let done = format!(
        "{machines} {}; seed {}; {} of {} runs completed",
        Escaped(results.machines.join(", ")),
        results.seed,
        results.runs.len(),
        plan.runs.len()
    );
    let mut text = width.labelled("", &title);
    if !results.source.is_empty() {
        text += &width.labelled("", &Escaped(&results.source).to_string());
    }
    text += &width.labelled("", &done);
    text.push('\n');
    text.push_str(&table(results, width));
    text.push('\n');
    let calibrated = |row: &&Row| row.calibrated_on;
    let predicted = |row: &&Row| !row.calibrated_on;
    if !results.calibrated_on.is_empty() {
        text += &width.labelled("calibrated on ", &Escaped(&results.calibrated_on).to_string());
    }
    let rows = results.rows.iter();
    let worst = [
        worst("largest error of figures used for calibration", rows.clone().filter(calibrated)),
        worst("largest error of all other figures", rows.filter(predicted)),
    ];
    text.extend(worst.into_iter().flatten().map(|line| width.labelled("", &line)));
    if let Some(directory) = files.first().and_then(|file| file.parent()) {
        let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        let written = format!("{}: {}", Escaped(directory.display()), Escaped(names.join(", ")));
        text += &width.labelled("written to ", &written);
    }
    text + "\n"
}

/// A line of the table, which shows one figure of one case.
struct Line<'r> {
    /// One of the line's rows; all of them have the same case and figure.
    first: &'r Row,
    /// The rows of the line, by index of the variant.
    rows: Vec<Option<&'r Row>>,
}

/// Returns all lines, in the order in which their figures appear first.
fn lines(results: &Results) -> Vec<Line<'_>> {
    let infos = results.variants.iter().enumerate();
    let places: HashMap<&str, usize> = infos.map(|(place, info)| (&*info.name, place)).collect();
    let (mut lines, mut known) = (Vec::<Line<'_>>::new(), HashMap::new());
    for row in &results.rows {
        let at = *known.entry(row.figure_key()).or_insert(lines.len());
        if at == lines.len() {
            lines.push(Line { first: row, rows: vec![None; places.len()] });
        }
        if let Some(&place) = places.get(&*row.variant) {
            lines[at].rows[place].get_or_insert(row);
        }
    }
    lines
}

/// Returns the names of all columns that cases have.
fn columns(results: &Results) -> Vec<&str> {
    let mut seen = HashSet::new();
    let names = results.rows.iter().flat_map(|row| &row.case).map(|(name, _)| &**name);
    names.filter(|name| seen.insert(*name)).collect()
}

fn table(results: &Results, width: Width) -> String {
    let columns = columns(results);
    // Each variant, and whether it has a row with a published value.
    let compared = results.rows.iter().filter(|row| row.published.is_some());
    let compared: HashSet<&str> = compared.map(|row| &*row.variant).collect();
    let variants = results.variants.iter().map(|info| (&*info.name, compared.contains(&*info.name)));
    let variants: Vec<(&str, bool)> = variants.collect();
    let mut header: Vec<_> = columns.iter().map(|&name| (name, Numbers)).collect();
    header.extend([("figure", Text), ("unit", Text)]);
    let keys = header.len();
    for &(name, has_published) in &variants {
        header.push((name, Numbers));
        header
            .extend(["published", "error"].into_iter().filter(|_| has_published).map(|name| (name, Numbers)));
    }
    let header = header.into_iter().map(|(title, content)| (Escaped(title).to_string(), content));
    let mut grid = Grid::new(keys, header);
    for Line { first, rows } in lines(results) {
        let value = |name: &&str| first.case.iter().find(|(column, _)| column == name);
        let mut cells: Vec<String> =
            columns.iter().map(|name| value(name).map_or_else(String::new, |(_, v)| v.to_string())).collect();
        cells.extend([&first.metric, &first.unit].map(Clone::clone));
        for (&(_, has_published), row) in variants.iter().zip(rows) {
            cells.push(cell(row.map(|row| row.predicted), figure));
            if has_published {
                cells.push(cell(row.and_then(|row| row.published), figure));
                cells.push(cell(row.and_then(Row::error_pct), percent));
            }
        }
        grid.row(cells.into_iter().map(|cell| Escaped(cell).to_string()));
    }
    grid.render("  ", width)
}

fn cell(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Formats a number with four significant digits. Numbers from 1000 on have no fraction.
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

/// Returns a line about the figure with the largest deviation, or `None` if no figure has a published value.
fn worst<'r>(what: &str, rows: impl Iterator<Item = &'r Row>) -> Option<String> {
    let errors = rows.filter_map(|row| Some((row.error_pct()?, row)));
    let (error, row) = errors.max_by(|(a, _), (b, _)| a.abs().total_cmp(&b.abs()))?;
    let case = case_text(&row.case);
    let case = if case.is_empty() { case } else { format!("{case}, ") };
    let figure = Escaped(format_args!("{case}{}, {}", row.variant, row.metric)).to_string();
    Some(format!("{what}: {} ({figure})", percent(error)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use zonal_lab::experiment::results::{CaseValue, Role, VariantInfo};

    use super::*;

    /// Returns results of `cases` cases in two variants, with one figure for each case and variant.
    fn many(cases: usize) -> Results {
        let names = ["before", "after"];
        let row = |at: usize, variant: &str| Row {
            case: (0..11)
                .map(|column| (format!("c{column}"), CaseValue::Number((at * (column / 10)) as f64)))
                .collect(),
            variant: variant.to_owned(),
            metric: "wall".to_owned(),
            unit: "s".to_owned(),
            predicted: at as f64,
            published: (variant == "after").then_some(1.0),
            calibrated_on: false,
        };
        let info = |name: &str| VariantInfo { name: name.to_owned(), role: Role::Ours, about: String::new() };
        Results {
            experiment: "many".to_owned(),
            title: String::new(),
            source: String::new(),
            assumptions: Vec::new(),
            seed: 1,
            machines: Vec::new(),
            parameters: Vec::new(),
            calibrated_on: String::new(),
            variants: names.map(info).into(),
            rows: (0..cases).flat_map(|at| names.map(|name| row(at, name))).collect(),
            runs: Vec::new(),
            missing: 0,
        }
    }

    /// Checks that the time to lay out a table is linear in the number of its rows. If the time were quadratic, this
    /// test would take many minutes.
    #[test]
    fn the_time_to_lay_out_a_table_is_linear_in_its_rows() {
        let (sender, laid_out) = mpsc::channel();
        std::thread::spawn(move || sender.send(table(&many(50_000), Width::of(200))));
        let text = laid_out.recv_timeout(Duration::from_secs(60)).expect("a table in a minute");
        assert_eq!(text.lines().count(), 50_001);
        let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(0)[9..], ["c9", "c10", "figure", "unit", "before", "after", "published", "error"]);
        assert_eq!(words(50_000)[9..15], ["0", "49999", "wall", "s", "49999", "49999"]);
    }
}
