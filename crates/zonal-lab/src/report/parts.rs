//! Results grouped for presentation: by part, by case, by variant.
//!
//! If the first value of a case is a name, it is the name of the case's part. The other values distinguish the cases
//! of a part. Related files: the tables and charts of `report/` show one part at a time.

use zonal_page::{Color, Key, Symbol, color, is_shown};

use super::figures;
use crate::experiment::results::{CaseValue, CaseValues, Results, Role, Row, RunResult};

/// Colours of variants: grey and sky blue for the baseline, blue, green and purple for the published mechanism, and
/// vermilion, pink and yellow for this project's variants.
const BASELINES: &[Color] = &[color::GREY, color::SKY];
const PUBLISHED: &[Color] = &[color::BLUE, color::GREEN, color::PURPLE];
const OURS: &[Color] = &[color::VERMILION, color::PINK, color::YELLOW];
/// Colours on the gradient for a role's variants that have no colour of their own.
const MANY: usize = 16;

/// Minimum number of distinct values for which a chart draws a line along an axis.
const AXIS_VALUES_MIN: usize = 3;

/// The rows and runs of one part.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// Name of the part; `None` if the cases do not begin with a name.
    pub(super) name: Option<&'a str>,
    pub(super) rows: Vec<&'a Row>,
    pub(super) runs: Vec<&'a RunResult>,
}

/// Rows of one figure.
#[derive(Debug)]
pub(super) struct Figure<'a> {
    pub(super) metric: &'a str,
    pub(super) unit: &'a str,
    pub(super) rows: Vec<&'a Row>,
}

/// A variant and its colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variant<'a> {
    pub(super) name: &'a str,
    pub(super) color: Color,
}

/// Returns the group of `key`, and adds the group if it is new. Groups are in the order of first appearance.
pub(super) fn group<K: PartialEq, T: Default>(groups: &mut Vec<(K, T)>, key: K) -> &mut T {
    let at = groups.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
        groups.push((key, T::default()));
        groups.len() - 1
    });
    &mut groups[at].1
}

/// Returns `items` without duplicates.
pub(super) fn unique<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    items.into_iter().fold(Vec::new(), |mut kept, item| {
        if !kept.contains(&item) {
            kept.push(item);
        }
        kept
    })
}

/// Returns all parts, in the order of the file.
pub(super) fn parts(results: &Results) -> Vec<Part<'_>> {
    let rows = results.rows.iter().map(|row| part_name(&row.case));
    let names = unique(rows.chain(results.runs.iter().map(|run| part_name(&run.case))));
    let of = |name: Option<&str>| Part {
        name: names.iter().copied().flatten().find(|other| Some(*other) == name),
        rows: results.rows.iter().filter(|row| part_name(&row.case) == name).collect(),
        runs: results.runs.iter().filter(|run| part_name(&run.case) == name).collect(),
    };
    names.iter().map(|name| of(*name)).collect()
}

/// Returns the name of a case's part.
pub(super) fn part_name(case: &CaseValues) -> Option<&str> {
    match case.first() {
        Some((_, CaseValue::Text(name))) => Some(name),
        _ => None,
    }
}

/// Returns the values that distinguish a case within its part.
pub(super) fn within_part(case: &CaseValues) -> &[(String, CaseValue)] {
    if part_name(case).is_some() { &case[1..] } else { case }
}

/// Formats the values of a case for people: `mem_gb 12, threads 4`. The value called `without` is omitted.
pub(super) fn label(values: &[(String, CaseValue)], without: Option<&str>) -> String {
    let shown = values.iter().filter(|(name, _)| Some(name.as_str()) != without);
    let texts: Vec<String> = shown.map(|(name, value)| format!("{name} {}", text(value))).collect();
    texts.join(", ")
}

/// Formats a value of a case for people.
pub(super) fn text(value: &CaseValue) -> String {
    match value {
        CaseValue::Number(number) => figures::exact(*number),
        CaseValue::Text(text) => text.clone(),
    }
}

/// Returns the number called `axis` in a case, if a chart can show it.
pub(super) fn number(case: &CaseValues, axis: &str) -> Option<f64> {
    case.iter().find_map(|(name, value)| match value {
        CaseValue::Number(number) if name == axis && is_shown(*number) => Some(*number),
        _ => None,
    })
}

impl<'a> Part<'a> {
    /// Returns the figures of the part, in the order of first appearance.
    pub(super) fn figures(&self) -> Vec<Figure<'a>> {
        let mut groups = Vec::new();
        for row in &self.rows {
            group::<_, Vec<_>>(&mut groups, (row.metric.as_str(), row.unit.as_str())).push(*row);
        }
        groups.into_iter().map(|((metric, unit), rows)| Figure { metric, unit, rows }).collect()
    }

    /// Prefixes `what` with the name of the part, if it has one.
    pub(super) fn title(&self, what: &str) -> String {
        self.name.map_or_else(|| what.to_owned(), |name| format!("{name}: {what}"))
    }
}

impl<'a> Figure<'a> {
    /// Returns the name of the numeric axis, which is the number with the most distinct values, at least three. If
    /// several numbers have the most values, the last one is used, because it changes fastest in the file.
    pub(super) fn axis(&self) -> Option<&'a str> {
        let named = self.rows.iter().flat_map(|row| &row.case);
        let names = unique(named.map(|(name, _)| name.as_str()));
        let counted = names.into_iter().map(|name| {
            let values = unique(self.rows.iter().filter_map(|row| number(&row.case, name)));
            (values.len(), name)
        });
        let most = counted.filter(|(values, _)| *values >= AXIS_VALUES_MIN).max_by_key(|(values, _)| *values);
        most.map(|(_, name)| name)
    }

    /// Returns the name of the figure with its unit: `wall (s)`.
    pub(super) fn heading(&self) -> String {
        if self.unit.is_empty() { self.metric.to_owned() } else { format!("{} ({})", self.metric, self.unit) }
    }
}

/// Returns all variants with their colours, in the order of the file.
pub(super) fn variants(results: &Results) -> Vec<Variant<'_>> {
    let named = results.variants.iter().map(|variant| variant.name.as_str());
    let rows = results.rows.iter().map(|row| row.variant.as_str());
    let runs = results.runs.iter().map(|run| run.variant.as_str());
    let names = unique(named.chain(rows).chain(runs));
    let role = |name: &str| {
        let named = results.variants.iter().find(|variant| variant.name == name);
        named.map_or(Role::Ours, |variant| variant.role)
    };
    let roles: Vec<Role> = names.iter().map(|name| role(name)).collect();
    let nth = |at: usize| roles[..at].iter().filter(|other| **other == roles[at]).count();
    let colored = names.iter().enumerate();
    colored.map(|(at, name)| Variant { name, color: color(roles[at], nth(at)) }).collect()
}

/// Returns the colour of a role's `nth` variant.
fn color(role: Role, nth: usize) -> Color {
    let colors = match role {
        Role::Baseline => BASELINES,
        Role::Published => PUBLISHED,
        Role::Ours => OURS,
    };
    colors.get(nth).copied().unwrap_or_else(|| color::ramp((nth - colors.len()).min(MANY - 1), MANY))
}

/// Returns the legend entries of published values: a square for values used for calibration, `symbol` for the others.
pub(super) fn published_keys<'a>(
    rows: impl IntoIterator<Item = &'a &'a Row>,
    symbol: Symbol,
    color: Color,
) -> Vec<Key> {
    let rows = rows.into_iter().filter(|row| row.published.is_some());
    let mut calibrated = unique(rows.map(|row| row.calibrated_on));
    calibrated.sort_unstable();
    let key = |calibrated| match calibrated {
        true => Key::new(Symbol::Square, color, "published and calibrated on"),
        false => Key::new(symbol, color, "published"),
    };
    calibrated.into_iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples::{self, VARIANTS, num, row, text};
    use super::*;

    fn axis(cases: &[CaseValues]) -> Option<String> {
        let mut results = samples::empty();
        let rows = cases.iter().map(|case| row(case, VARIANTS[0], ("wall", "s"), (1.0, None)));
        results.rows.extend(rows);
        parts(&results)[0].figures()[0].axis().map(str::to_owned)
    }

    #[test]
    fn an_axis_has_three_values_or_more_and_of_several_it_has_the_most() {
        let case = |threads: f64, gigabytes: f64| vec![num("threads", threads), num("gb", gigabytes)];
        assert_eq!(axis(&[case(1.0, 1.0), case(2.0, 2.0), case(2.0, 1.0)]), None);
        let threads = [case(1.0, 1.0), case(2.0, 1.0), case(3.0, 2.0), case(4.0, 3.0)];
        assert_eq!(axis(&threads).as_deref(), Some("threads"));
        assert_eq!(axis(&[case(1.0, 1.0), case(2.0, 2.0), case(3.0, 3.0)]).as_deref(), Some("gb"));
    }

    #[test]
    fn a_part_is_what_the_first_value_names() {
        let mut results = samples::empty();
        let cases = [
            vec![text("part", "a"), text("policy", "local")],
            vec![num("cpus", 4.0), text("policy", "local")],
            vec![text("part", "a"), text("policy", "bind")],
        ];
        results.rows.extend(cases.iter().map(|case| row(case, "unheard of", ("wall", "s"), (1.0, None))));
        let parts = parts(&results);
        let found: Vec<_> = parts.iter().map(|part| (part.name, part.rows.len())).collect();
        assert_eq!(found, [(Some("a"), 2), (None, 1)]);
        assert_eq!(label(within_part(&cases[1]), Some("policy")), "cpus 4");
        assert_eq!(variants(&results).len(), 4);
    }
}
