//! A strict parser of OpenMetrics 1.0 text, for what the server writes: counters and gauges without time stamps.

use std::collections::BTreeSet;

/// A name and its labels.
pub(crate) type Series = (String, Vec<(String, String)>);

/// A metric family while its lines are read.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    unit: Option<String>,
    has_help: bool,
}

/// Returns all series.
///
/// # Errors
/// At the first line that breaks a rule.
pub(crate) fn parse(text: &str) -> Result<Vec<Series>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the last line is not # EOF")?;
    let (mut family, mut names) = (Family::default(), BTreeSet::new());
    let mut found: Vec<Series> = Vec::new();
    for line in body.lines() {
        let wrong = |why: &str| Err(format!("{why}: {line}"));
        if let Some(rest) = line.strip_prefix("# ") {
            let [keyword, name, value] = rest.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                return wrong("a comment of another form");
            };
            if name != family.name {
                if !names.insert(name.to_owned()) {
                    return wrong("a family is interrupted");
                }
                family = Family { name: name.to_owned(), ..Family::default() };
            }
            match keyword {
                "HELP" if !family.has_help && value.len() > 5 => family.has_help = true,
                "TYPE" if family.kind.is_empty() && ["counter", "gauge"].contains(&value) => {
                    value.clone_into(&mut family.kind);
                }
                "UNIT" if family.unit.is_none() => family.unit = Some(value.to_owned()),
                _ => return wrong("a keyword that is unknown, repeated or without a value"),
            }
            continue;
        }
        if let Some(why) = of_family(&family, line) {
            return wrong(why);
        }
        let series = series(line).ok_or_else(|| format!("not a series: {line}"))?;
        if found.contains(&series) {
            return wrong("a series is repeated");
        }
        found.push(series);
    }
    Ok(found)
}

/// Returns why a line cannot be a sample of a family.
fn of_family(family: &Family, line: &str) -> Option<&'static str> {
    let name = line.split(['{', ' ']).next().unwrap_or_default();
    let suffix = if family.kind == "counter" { "_total" } else { "" };
    let is_reserved =
        ["_total", "_count", "_sum", "_bucket", "_created"].iter().any(|end| family.name.ends_with(end));
    match () {
        () if name != format!("{}{suffix}", family.name) => Some("a sample of another family"),
        () if is_reserved => Some("a family with a reserved suffix"),
        () if !family.has_help || family.kind.is_empty() => Some("a family without HELP or TYPE"),
        () if family.unit.as_ref().is_some_and(|unit| !family.name.ends_with(&format!("_{unit}"))) => {
            Some("a name that does not end with its unit")
        }
        () => None,
    }
}

fn series(line: &str) -> Option<Series> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !name.bytes().all(is_letter) || name.as_bytes().first()?.is_ascii_digit() {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value: f64 = rest.strip_prefix(' ')?.parse().ok()?;
    (value.is_finite() && value >= 0.0).then(|| (name.to_owned(), labels))
}

/// Parses labels, and returns what follows their closing brace.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut found: Vec<(String, String)> = Vec::new();
    loop {
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = after.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    same @ ('\\' | '"') => same,
                    _ => return None,
                }),
                (_, letter) => value.push(letter),
            }
        };
        if key.is_empty() || found.iter().any(|(known, _)| known == key) {
            return None;
        }
        found.push((key.to_owned(), value));
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => return Some((found, rest.strip_prefix('}')?)),
        }
    }
}

#[test]
fn the_parser_is_strict() {
    let head = "# HELP a_bytes Some help.\n# TYPE a_bytes gauge\n# UNIT a_bytes bytes\n";
    let parse = |samples: &str| parse(&format!("{head}{samples}# EOF\n"));
    let right = parse("a_bytes{x=\"1\"} 1\na_bytes{x=\"\\\\ \\\" \\n\"} 2.5\n").unwrap();
    assert_eq!(right[1].1, [("x".to_owned(), "\\ \" \n".to_owned())]);
    for wrong in [
        "a_bytes 1\na_bytes 2\n",
        "b 1\n",
        "a_bytes{} 1\n",
        "a_bytes{x=\"1} 1\n",
        "a_bytes{x=\"\\t\"} 1\n",
        "a_bytes NaN\n",
        "a_bytes  1\n",
        "a_bytes 1\n# HELP a_bytes Again.\n",
        "# TYPE b counter\nb 1\n",
        "# TYPE b_total counter\n# HELP b_total Help it.\nb_total_total 1\n",
        "# TYPE b gauge\n# HELP b Help it.\n# UNIT b bytes\nb 1\n",
        "\n",
    ] {
        assert!(parse(wrong).is_err(), "{wrong}");
    }
}
