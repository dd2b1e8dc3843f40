//! Tables of a report: the figures by case and variant, the variants, and the parameters.
//!
//! The table of figures has one row per case and figure. For each variant, the row has the predicted value, the
//! published value and the deviation. Related files: `report/page.rs` puts the tables on the page, `figures` formats
//! numbers.

use std::collections::HashMap;

use zonal_page::{Cell, Column, Kind, Table, Tone};

use super::figures::{self, NO_FIGURE};
use super::lead;
use super::parts::{self, Part, Variant};
use crate::experiment::keys::figure_key;
use crate::experiment::results::{NamedFigures, Parameter, Results, Role, Row, Status};

/// Upper limits of the absolute error, in percent, and the colour of each range.
const ERRORS: [(f64, Tone); 3] = [(5.0, Tone::Near), (15.0, Tone::Fair), (50.0, Tone::Off)];

/// Marker of values used for calibration.
const CALIBRATED: &str = "†";

/// Columns of a variant with published values, after its predicted value.
const PUBLISHED: [(&str, Kind); 3] =
    [("published", Kind::Number), ("error %", Kind::Number), ("as", Kind::Text)];
/// Column of a variant that is compared with the baseline.
const CHANGE: &str = "against baseline %";

/// Columns that the table has for a variant.
#[derive(Clone, Copy)]
struct Shown<'a> {
    variant: &'a str,
    change: bool,
    published: bool,
    spread: bool,
}

impl<'a> Shown<'a> {
    fn of(variant: &Variant<'a>, part: &Part<'_>) -> Option<Self> {
        let own = || part.rows.iter().filter(|row| row.variant == variant.name);
        own().next()?;
        Some(Self {
            variant: variant.name,
            change: own().any(|row| row.baseline.is_some()),
            published: own().any(|row| row.published.is_some()),
            spread: own().any(|row| !row.seeds.is_empty()),
        })
    }

    fn columns(self) -> Vec<Column> {
        let mut columns = vec![(Kind::Number, "predicted")];
        columns.extend(self.spread.then_some((Kind::Number, "over seeds")));
        columns.extend(self.change.then_some((Kind::Number, CHANGE)));
        columns.extend(PUBLISHED.into_iter().filter(|_| self.published).map(|(title, kind)| (kind, title)));
        columns.into_iter().map(|(kind, title)| Column::of(self.variant, kind, title)).collect()
    }
}

/// Returns the table of a part's figures.
pub(super) fn figures(part: &Part<'_>, variants: &[Variant<'_>]) -> Table {
    let values = part.rows.iter().flat_map(|row| parts::within_part(&row.case));
    let keys = parts::unique(values.map(|(name, _)| name.as_str()));
    let heads = keys.iter().copied().chain(["figure"]);
    let mut columns: Vec<Column> = heads.map(|head| Column::new(Kind::Head, head)).collect();
    columns.push(Column::new(Kind::Unit, "unit"));
    let shown: Vec<Shown<'_>> = variants.iter().filter_map(|variant| Shown::of(variant, part)).collect();
    columns.extend(shown.iter().flat_map(|shown| shown.columns()));
    let lines = lines(part).into_iter().map(|rows| {
        let (case, metric, unit) = (&rows[0].case, &rows[0].metric, &rows[0].unit);
        let value = |key: &&str| {
            let value = parts::within_part(case).iter().find(|(name, _)| name == key);
            value.map_or_else(|| NO_FIGURE.to_owned(), |(_, value)| parts::text(value))
        };
        let mut line: Vec<Cell> = keys.iter().map(value).map(Cell::from).collect();
        line.extend([metric, unit].map(Cell::from));
        for shown in &shown {
            line.extend(cells(rows.iter().find(|row| row.variant == shown.variant).copied(), *shown));
        }
        (case, line)
    });
    let lines: Vec<(_, Vec<Cell>)> = lines.collect();
    let cases = lines.chunk_by(|a, b| a.0 == b.0);
    let rows = cases.map(|lines| lines.iter().map(|(_, line)| line.clone()).collect()).collect();
    let caption = match part.name {
        Some(_) => part.title("figures by case and variant"),
        None => "Figures by case and variant".to_owned(),
    };
    Table { caption, columns, rows }
}

/// Returns the result rows that share a line of the table: those with the same case and figure. Lines are in the order
/// of first appearance.
fn lines<'a>(part: &Part<'a>) -> Vec<Vec<&'a Row>> {
    let (mut lines, mut places) = (Vec::new(), HashMap::new());
    for row in &part.rows {
        let place = *places.entry(figure_key(&row.case, &row.unit, &row.metric)).or_insert(lines.len());
        lines.resize_with(lines.len().max(place + 1), Vec::new);
        lines[place].push(*row);
    }
    lines
}

/// Returns the cells of a figure for one variant.
fn cells(row: Option<&Row>, shown: Shown<'_>) -> Vec<Cell> {
    let number = |value: Option<f64>| value.map_or(NO_FIGURE.to_owned(), figures::number);
    let mut cells = vec![Cell::from(number(row.map(|row| row.predicted)))];
    if shown.spread {
        let spread = row.and_then(Row::spread);
        let text = |(least, most)| match (figures::number(least), figures::number(most)) {
            (least, most) if least == most => least,
            (least, most) => format!("{least} to {most}"),
        };
        cells.push(spread.map_or(NO_FIGURE.to_owned(), text).into());
    }
    if shown.change {
        cells.push(row.and_then(Row::change_pct).map_or(NO_FIGURE.to_owned(), figures::deviation).into());
    }
    if shown.published {
        let published = row.and_then(|row| row.published);
        let calibrated = published.is_some() && row.is_some_and(|row| row.calibrated_on);
        let mark = calibrated.then_some((CALIBRATED, "calibrated on"));
        cells.push(Cell { mark, ..number(published).into() });
        let error = row.and_then(Row::error_pct).filter(|error| error.is_finite());
        let text = error.map_or(NO_FIGURE.to_owned(), figures::deviation);
        cells.push(Cell { tone: error.map_or(Tone::Plain, tone), ..text.into() });
        cells.push(row.and_then(Row::status).map_or(NO_FIGURE, Status::name).into());
    }
    cells
}

/// Returns the colour of an error.
fn tone(error: f64) -> Tone {
    ERRORS.iter().find(|(most, _)| error.abs() <= *most).map_or(Tone::Far, |(_, tone)| *tone)
}

/// Returns the explanation of the colours and markers in [`figures`].
pub(super) fn note() -> Vec<(Tone, String)> {
    let plain = |text: String| (Tone::Plain, text);
    let mut note = vec![plain("Error: predicted against published, in percent of published; ".to_owned())];
    let ranges = ERRORS.map(|(most, tone)| [(tone, format!("up to ±{most} %")), plain(" ".to_owned())]);
    note.extend(ranges.into_iter().flatten());
    note.push((Tone::Far, "more".to_owned()));
    note.push(plain(format!(
        ". A value with {CALIBRATED} was calibrated on: its error shows the fit, not a prediction. \
         {NO_FIGURE} means that no value is known. Figures are fitted (calibrated on, or a cost or rule was chosen \
         by them), predicted, or open: not explained by the model."
    )));
    note
}

/// Returns the table of variants, with the deviations of their predictions from published values, if any are known.
pub(super) fn variants(results: &Results) -> Table {
    let texts = ["role", "what is different"].map(|title| Column::new(Kind::Text, title));
    let is_published = lead::has_published(results);
    let numbers: &[&str] = if is_published { &["compared", "median error %", "worst error %"] } else { &[] };
    let columns = [Column::new(Kind::Head, "variant")].into_iter().chain(texts);
    let rows = results.variants.iter().map(|variant| {
        let own = results
            .rows
            .iter()
            .filter(|row| row.variant == variant.name && row.status() != Some(Status::Fitted));
        let of = lead::deviations(own);
        let shown = |value: Option<f64>| value.map_or(NO_FIGURE.to_owned(), figures::deviation);
        let median = shown(of.as_ref().map(|of| of.median));
        let compared = of.as_ref().map_or(0, |of| of.rows).to_string();
        let texts = [Cell::from(&variant.name), role(variant.role).into(), (&variant.about).into()];
        let errors = [compared, median.trim_start_matches('+').to_owned(), shown(of.map(|of| of.worst))];
        texts.into_iter().chain(errors.into_iter().take(numbers.len()).map(Cell::from)).collect()
    });
    let caption = match is_published {
        true => "Variants, with errors of figures that were not fitted",
        false => "Variants",
    };
    Table {
        caption: caption.into(),
        rows: rows.map(|row| vec![row]).collect(),
        columns: columns.chain(numbers.iter().map(|title| Column::new(Kind::Number, *title))).collect(),
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
pub(super) fn parameters(parameters: &[Parameter]) -> Table {
    let columns = [
        (Kind::Code, "parameter"),
        (Kind::Number, "value"),
        (Kind::Unit, "unit"),
        (Kind::Text, "from"),
        (Kind::Text, "why"),
    ];
    let rows = parameters.iter().map(|parameter| {
        vec![
            Cell::from(&parameter.name),
            figures::number(parameter.value).into(),
            figures::unit_of_name(&parameter.name).into(),
            if parameter.calibrated { "calibration" } else { "assumption" }.into(),
            (&parameter.why).into(),
        ]
    });
    Table {
        caption: "Parameters of the simulation".into(),
        columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
        rows: rows.map(|row| vec![row]).collect(),
    }
}

/// Returns the table of costs and settings that differ between variants, or of those that do not.
pub(super) fn effective(results: &Results, differing: bool) -> Table {
    let mut columns = vec![Column::new(Kind::Code, "cost or setting"), Column::new(Kind::Text, "part")];
    let variants = results.variants.iter().take(if differing { usize::MAX } else { 1 });
    columns.extend(
        variants
            .clone()
            .map(|variant| Column::new(Kind::Text, if differing { &*variant.name } else { "value" })),
    );
    let rows = results.effective.iter().filter(|one| one.differs == differing).map(|one| {
        let values = one.values.iter().take(variants.clone().count()).map(Cell::from);
        let part = one.part.as_deref().unwrap_or("all");
        [Cell::from(&one.name), part.into()].into_iter().chain(values).collect::<Vec<_>>()
    });
    Table {
        caption: match differing {
            true => "What differs between variants, inputs of the simulation".into(),
            false => "Hardware costs of all variants, whether or not the experiment sets them".into(),
        },
        columns,
        rows: rows.map(|row| vec![row]).collect(),
    }
}

/// Returns the table of published changes against the baseline, with the simulated ones.
pub(super) fn effects(effects: &[&Row]) -> Table {
    let columns = [
        (Kind::Head, "case"),
        (Kind::Head, "figure"),
        (Kind::Head, "variant"),
        (Kind::Number, "published %"),
        (Kind::Number, "simulated %"),
        (Kind::Text, "as"),
    ];
    let rows = effects.iter().map(|row| {
        let percent = |value: Option<f64>| value.map_or(NO_FIGURE.to_owned(), figures::deviation);
        let texts = [parts::label(&row.case, None), row.metric.clone(), row.variant.clone()];
        let numbers = [row.published_change_pct(), row.change_pct()].map(percent);
        let status = row.status().map_or(NO_FIGURE, Status::name).to_owned();
        texts.into_iter().chain(numbers).chain([status]).map(Cell::from).collect()
    });
    Table {
        caption: "Published and simulated changes against the baseline".into(),
        columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
        rows: rows.map(|row| vec![row]).collect(),
    }
}

/// Returns the table of the compared variant's changes with other seeds and costs.
pub(super) fn trials(results: &Results) -> Table {
    let flips = results.answer().map(|answer| answer.flips).unwrap_or_default();
    let columns =
        [(Kind::Head, "changed"), (Kind::Text, "figures that answer the question"), (Kind::Text, "answer")];
    let rows = results.trials.iter().map(|trial| {
        let verdict = if flips.contains(&trial.what) { "another" } else { "the same" };
        vec![Cell::from(&trial.what), results.trial_text(trial).into(), verdict.into()]
    });
    Table {
        caption: "The answer with other seeds, and with each cost 20 % lower and higher".into(),
        columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
        rows: rows.map(|row| vec![row]).collect(),
    }
}

/// Returns the table of published figures by which a cost or a rule was chosen.
pub(super) fn fitted(fitted: &[NamedFigures]) -> Table {
    named(fitted, "Published figures by which more than the calibration was chosen", "what was chosen")
}

/// Returns the table of published figures that the model does not explain.
pub(super) fn open(open: &[NamedFigures]) -> Table {
    let why = "why, and the measurement that would decide it";
    named(open, "Published figures that the model does not explain", why)
}

fn named(named: &[NamedFigures], caption: &str, why: &str) -> Table {
    let columns = [(Kind::Head, "figures"), (Kind::Text, why)];
    Table {
        caption: caption.into(),
        columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
        rows: named.iter().map(|one| vec![vec![Cell::from(&one.what), (&one.why).into()]]).collect(),
    }
}
