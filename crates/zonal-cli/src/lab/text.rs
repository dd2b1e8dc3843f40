//! Results as text: a table with one row for each case and figure, and one column for each variant.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use zonal_lab::experiment::Plan;
use zonal_lab::experiment::results::{Effective, Results, Row, Status, case_text};
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
    for paragraph in [answer(results), results.against_published()].into_iter().flatten() {
        text += &width.paragraph("", "", &Escaped(paragraph).to_string());
    }
    text.push('\n');
    text.push_str(&table(results, width));
    text.push('\n');
    text += &effects(results, width);
    text += &costs(results, width);
    text += &trials(results, width);
    let fitted = |row: &&Row| row.status() == Some(Status::Fitted);
    let predicted = |row: &&Row| !fitted(row);
    if !results.calibrated_on.is_empty() {
        text += &width.labelled("calibrated on ", &Escaped(&results.calibrated_on).to_string());
    }
    let rows = results.rows.iter();
    let worst = [
        worst("largest error of fitted figures", rows.clone().filter(fitted)),
        worst("largest error of all other figures", rows.filter(predicted)),
    ];
    text.extend(worst.into_iter().flatten().map(|line| width.labelled("", &line)));
    for (label, named) in [("fitted  ", &results.fitted), ("open  ", &results.open)] {
        for one in named {
            text += &width.labelled(label, &Escaped(format_args!("{}: {}", one.what, one.why)).to_string());
        }
    }
    if let Some(directory) = files.first().and_then(|file| file.parent()) {
        let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
        let written = format!("{}: {}", Escaped(directory.display()), Escaped(names.join(", ")));
        text += &width.labelled("written to ", &written);
    }
    text + "\n"
}

/// Returns the experiment's question and its answer, as far as there are any.
fn answer(results: &Results) -> Option<String> {
    let question = Some(&results.question.text).filter(|text| !text.is_empty()).cloned();
    let answer = results.answer().map(|answer| answer.text);
    let sentences: Vec<String> = [question, answer].into_iter().flatten().collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Returns the table of published changes against the baseline, with the simulated ones.
fn effects(results: &Results, width: Width) -> String {
    let effects = results.effects();
    if effects.is_empty() {
        return String::new();
    }
    let titles = [
        ("change against the baseline", Text),
        ("variant", Text),
        ("published", Numbers),
        ("simulated", Numbers),
        ("as", Text),
    ];
    let mut grid = Grid::new(2, titles.map(|(title, content)| (title.to_owned(), content)));
    for row in effects {
        let case = case_text(&row.case);
        let figure = if case.is_empty() { row.metric.clone() } else { format!("{}, {case}", row.metric) };
        let numbers = [row.published_change_pct(), row.change_pct()].map(|change| cell(change, percent));
        let status = row.status().map_or("-", Status::name).to_owned();
        let cells = [figure, row.variant.clone()].into_iter().chain(numbers).chain([status]);
        grid.row(cells.map(|cell| Escaped(cell).to_string()));
    }
    grid.render("  ", width) + "\n"
}

/// Returns what differs between variants as a table, and the other hardware costs as a paragraph for each part.
fn costs(results: &Results, width: Width) -> String {
    let mut text = String::new();
    let differing: Vec<&Effective> = results.effective.iter().filter(|one| one.differs).collect();
    if differing.is_empty() {
        text += &width.labelled("", "no cost and no setting differs between variants");
    } else {
        let titles = ["differs between variants", "part"].map(|title| (title.to_owned(), Text));
        let names = results.variants.iter().map(|info| (Escaped(&info.name).to_string(), Text));
        let mut grid = Grid::new(2, titles.into_iter().chain(names));
        for one in differing {
            let part = one.part.as_deref().unwrap_or("all");
            let cells = [&*one.name, part].into_iter().chain(one.values.iter().map(|value| &**value));
            grid.row(cells.map(|cell| Escaped(cell).to_string()));
        }
        text += &grid.render("  ", width);
    }
    let mut shared: Vec<(Option<&str>, Vec<String>)> = Vec::new();
    for one in results.effective.iter().filter(|one| !one.differs) {
        let part = one.part.as_deref();
        let name = one.name.strip_prefix("hardware.").unwrap_or(&one.name);
        let value = format!("{name} {}", one.values.first().map_or("", |value| value));
        match shared.iter_mut().find(|(other, _)| *other == part) {
            Some((_, values)) => values.push(value),
            None => shared.push((part, vec![value])),
        }
    }
    for (part, values) in shared {
        let label =
            part.map_or_else(|| "hardware costs ".to_owned(), |part| format!("hardware costs of {part} "));
        text += &width.labelled(&Escaped(label).to_string(), &Escaped(values.join(", ")).to_string());
    }
    text + "\n"
}

/// Returns the costs and settings of all runs as comments that end an experiment file.
pub(super) fn costs_as_comments(plan: &Plan) -> String {
    let mut text =
        "\n# The runs have these costs and settings, whether or not they are set above.\n".to_owned();
    for one in plan.effective() {
        let part = one.part.as_ref().map_or_else(String::new, |part| format!("{part}: "));
        let value = match one.differs {
            true => {
                let named = plan.variants.iter().zip(&one.values);
                named.map(|(info, value)| format!("{} {value}", info.name)).collect::<Vec<_>>().join(", ")
            }
            false => one.values.first().cloned().unwrap_or_default(),
        };
        text += &format!("# {}\n", Escaped(format_args!("{part}{} = {value}", one.name)));
    }
    text
}

/// Returns the table of a spread: the answer with other seeds and costs.
fn trials(results: &Results, width: Width) -> String {
    if results.trials.is_empty() {
        return String::new();
    }
    let flips = results.answer().map(|answer| answer.flips).unwrap_or_default();
    let titles = [("changed", Text), ("figures that answer the question", Text), ("answer", Text)];
    let mut grid = Grid::new(1, titles.map(|(title, content)| (title.to_owned(), content)));
    for trial in &results.trials {
        let verdict = if flips.contains(&trial.what) { "another" } else { "the same" };
        grid.row([
            Escaped(&trial.what).to_string(),
            Escaped(results.trial_text(trial)).to_string(),
            verdict.to_owned(),
        ]);
    }
    grid.render("  ", width) + "\n"
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
    let variants: Vec<Shown<'_>> =
        results.variants.iter().map(|info| Shown::of(&info.name, &results.rows)).collect();
    let mut header: Vec<_> = columns.iter().map(|&name| (name, Numbers)).collect();
    header.extend([("figure", Text), ("unit", Text)]);
    let keys = header.len();
    for shown in &variants {
        header.push((shown.variant, Numbers));
        header.extend([("over seeds", Text)].into_iter().filter(|_| shown.spread));
        header.extend([("against baseline", Numbers)].into_iter().filter(|_| shown.change));
        let compared = [("published", Numbers), ("error", Numbers), ("as", Text)];
        header.extend(compared.into_iter().filter(|_| shown.published));
    }
    let header = header.into_iter().map(|(title, content)| (Escaped(title).to_string(), content));
    let mut grid = Grid::new(keys, header);
    for Line { first, rows } in lines(results) {
        let value = |name: &&str| first.case.iter().find(|(column, _)| column == name);
        let mut cells: Vec<String> =
            columns.iter().map(|name| value(name).map_or_else(String::new, |(_, v)| v.to_string())).collect();
        cells.extend([&first.metric, &first.unit].map(Clone::clone));
        variants.iter().zip(rows).for_each(|(shown, row)| cells.extend(shown.cells(row)));
        grid.row(cells.into_iter().map(|cell| Escaped(cell).to_string()));
    }
    grid.render("  ", width)
}

/// Columns that the table has for a variant.
struct Shown<'r> {
    variant: &'r str,
    spread: bool,
    change: bool,
    published: bool,
}

impl<'r> Shown<'r> {
    fn of(variant: &'r str, rows: &[Row]) -> Self {
        let any = |has: fn(&Row) -> bool| rows.iter().any(|row| row.variant == variant && has(row));
        Self {
            variant,
            spread: any(|row| !row.seeds.is_empty()),
            change: any(|row| row.baseline.is_some()),
            published: any(|row| row.published.is_some()),
        }
    }

    fn cells(&self, row: Option<&Row>) -> Vec<String> {
        let mut cells = vec![cell(row.map(|row| row.predicted), figure)];
        if self.spread {
            let spread = row.and_then(Row::spread);
            let text = |(least, most)| match (figure(least), figure(most)) {
                (least, most) if least == most => least,
                (least, most) => format!("{least} to {most}"),
            };
            cells.push(spread.map_or_else(|| "-".to_owned(), text));
        }
        if self.change {
            cells.push(cell(row.and_then(Row::change_pct), percent));
        }
        if self.published {
            cells.push(cell(row.and_then(|row| row.published), figure));
            cells.push(cell(row.and_then(Row::error_pct), percent));
            cells.push(row.and_then(Row::status).map_or("-", Status::name).to_owned());
        }
        cells
    }
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
            ..Row::default()
        };
        let info = |name: &str| VariantInfo { name: name.to_owned(), role: Role::Ours, about: String::new() };
        Results {
            experiment: "many".to_owned(),
            seed: 1,
            variants: names.map(info).into(),
            rows: (0..cases).flat_map(|at| names.map(|name| row(at, name))).collect(),
            ..Results::default()
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
        assert_eq!(
            words(0)[9..],
            ["c9", "c10", "figure", "unit", "before", "after", "published", "error", "as"]
        );
        assert_eq!(words(50_000)[9..15], ["0", "49999", "wall", "s", "49999", "49999"]);
    }
}
