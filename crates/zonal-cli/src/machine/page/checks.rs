//! The checks of a machine on its page: how many values agree, by kind, and those that differ.

use zonal_machine::{Check, Report};
use zonal_page::{Block, Cell, Column, Kind, Table};

use super::super::words;
use super::nodes::folded;

/// Maximum number of checks in a table.
const CHECKS_MAX: usize = 500;

pub(super) fn blocks(report: &Report) -> Vec<Block<'static>> {
    let mut summary = format!("{}.", words::checks(report));
    if let Some(at_boot) = words::checks_at_boot(report) {
        summary += &format!(" {at_boot}.");
    }
    let mut blocks = vec![Block::Text(summary)];
    let differing: Vec<&Check> = report.checks.iter().filter(|check| Check::differs(check)).collect();
    if !differing.is_empty() {
        blocks.push(table("Values that differ", "predicted", &differing));
    }
    if let Some(text) = words::at_boot(report) {
        let at_boot: Vec<&Check> = report.checks.iter().filter(|check| check.as_at_boot).collect();
        blocks.push(Block::Text(text));
        blocks.push(table("Values as computed at boot", "computed now", &at_boot));
    }
    blocks.push(Block::Table(by_kind(&report.checks)));
    blocks
}

fn table(title: &str, predicted: &str, checks: &[&Check]) -> Block<'static> {
    let row = |check: &&Check| {
        let texts = [check.what.clone(), words::measured(&check.predicted), words::measured(&check.observed)];
        texts.map(Cell::from).into()
    };
    let caption = match checks.len() {
        many if many > CHECKS_MAX => format!("{title} (the first {CHECKS_MAX} of {many}; --json has all)"),
        _ => title.to_owned(),
    };
    let columns = [(Kind::Head, "value"), (Kind::Text, predicted), (Kind::Text, "observed")];
    folded(
        title,
        Table {
            caption,
            columns: columns.map(|(kind, title)| Column::new(kind, title)).into(),
            rows: vec![checks.iter().take(CHECKS_MAX).map(row).collect()],
        },
    )
}

/// Returns how many checks there are for each kind of value, which is the first word of its name.
fn by_kind(checks: &[Check]) -> Table {
    let mut kinds: Vec<(&str, [usize; 3])> = Vec::new();
    for check in checks {
        let kind = check.what.split(' ').next().unwrap_or_default();
        let at = kinds.iter().position(|(other, _)| *other == kind).unwrap_or_else(|| {
            kinds.push((kind, [0; 3]));
            kinds.len() - 1
        });
        let column = if check.same { 0 } else { 1 + usize::from(check.differs()) };
        kinds[at].1[column] += 1;
    }
    let row = |(kind, counts): &(&str, [usize; 3])| {
        let mut row = vec![Cell::from(*kind)];
        row.extend(counts.map(|count| Cell::from(count.to_string())));
        row
    };
    let mut columns = vec![Column::new(Kind::Code, "value")];
    columns.extend(["equal", "as at boot", "differ"].map(|title| Column::new(Kind::Number, title)));
    Table {
        caption: "Numbers of checks by kind of value".to_owned(),
        columns,
        rows: vec![kinds.iter().map(row).collect()],
    }
}
