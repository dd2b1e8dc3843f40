//! Checks the report as a whole: its required and forbidden contents, and that texts do not overlap.

use roxmltree::{Document, Node};
use zonal_machine::output::Replace;
use zonal_page::{Chart, color};

use super::samples::{self, HOSTILE, VARIANTS, num, row, run, series, text};
use super::{Gallery, charts, figures, html, parts, write};
use crate::experiment::results::{CaseValue, Parameter, Results, Row};
use crate::outcome::Series;

/// Converts the page to XML, by expanding or removing HTML shorthand.
fn as_xml(page: &str) -> String {
    let body = page.strip_prefix("<!DOCTYPE html>").unwrap().replace("<details open>", "<details>");
    let (head, rest) = body.split_once("<title>").unwrap();
    let metas: String = head.split_inclusive('>').filter(|tag| !tag.starts_with("<meta")).collect();
    format!("{metas}<title>{rest}")
}

fn words<'a>(document: &'a Document<'_>) -> Vec<&'a str> {
    document.descendants().filter(Node::is_text).filter_map(|node| node.text()).map(str::trim).collect()
}

fn content(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|node| node.text()).collect()
}

fn named<'a, 'i>(document: &'a Document<'i>, tag: &'static str) -> impl Iterator<Item = Node<'a, 'i>> {
    document.descendants().filter(move |node| node.has_tag_name(tag))
}

fn chart(results: &Results, name: &str) -> String {
    let charts = charts(results);
    let names: Vec<&String> = charts.iter().map(|(name, _)| name).collect();
    charts.iter().find(|(other, _)| other == name).unwrap_or_else(|| panic!("{names:?}")).1.clone()
}

/// Returns results with unusual values in every field.
fn odd() -> Results {
    let mut results = samples::empty();
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.5, 1e300, 1e-300];
    for (at, value) in odd.into_iter().enumerate() {
        for axis in [at as f64, value] {
            let case = vec![text("part", "odd"), num("cpus", axis)];
            results.rows.push(row(&case, VARIANTS[1], ("wall", "s"), (value, Some(odd[(at + 3) % 7]))));
            results.rows.push(row(&case, VARIANTS[0], ("wall", "s"), (1.0, Some(value))));
        }
        let case = vec![text("part", "bars")];
        results.rows.push(row(&case, VARIANTS[at % 3], (&format!("metric {at}"), ""), (value, Some(value))));
        let points = vec![(0.0, 1.0), (value, value), (2.0, 1.0)];
        let lines = vec![Series { plot: "odd", name: "line".into(), unit: "", points }];
        results.runs.push(run(&case, VARIANTS[at % 3], value, lines));
    }
    results.parameters.push(Parameter {
        name: "odd".into(),
        value: f64::NAN,
        calibrated: false,
        why: String::new(),
    });
    results
}

/// Returns results in which every name breaks a page if it is not escaped.
fn hostile() -> Results {
    let mut results = samples::full();
    for field in
        [&mut results.experiment, &mut results.title, &mut results.source, &mut results.calibrated_on]
    {
        *field = HOSTILE.into();
    }
    results.assumptions = vec![HOSTILE.into()];
    results.machines = vec![HOSTILE.into()];
    results.parameters[0].name = HOSTILE.into();
    results.parameters[0].why = HOSTILE.into();
    results.variants[2].name = HOSTILE.into();
    results.variants[2].about = HOSTILE.into();
    let rename = |case: &mut Vec<(String, CaseValue)>| {
        for (name, value) in case {
            *name = if name == "part" { HOSTILE.into() } else { format!("{name}{HOSTILE}") };
            if let CaseValue::Text(text) = value {
                text.push_str(HOSTILE);
            }
        }
    };
    for row in &mut results.rows {
        rename(&mut row.case);
        row.metric.push_str(HOSTILE);
        row.unit.push_str(HOSTILE);
        row.variant = if row.variant == VARIANTS[2] { HOSTILE.into() } else { row.variant.clone() };
    }
    for run in &mut results.runs {
        rename(&mut run.case);
        run.variant = if run.variant == VARIANTS[2] { HOSTILE.into() } else { run.variant.clone() };
        for series in &mut run.outcome.series {
            series.name.push_str(HOSTILE);
        }
    }
    results
}

/// Returns results with many variants with long names, many causes, and a case with many digits.
fn crowded() -> Results {
    let mut results = samples::empty();
    results.variants.clear();
    for cpus in [1.0, 2.0, 3.0, 1000.0, 1001.0, 123_456.0] {
        for at in 0..17 {
            let case = vec![num("a number with a long name that goes on", 0.1234567), num("cpus", cpus)];
            let variant = format!("variant {at} with a name that is rather longer than others");
            results.rows.push(row(&case, &variant, ("time", "s"), (cpus, Some(cpus * 1.1))));
            let lines = (0..10).map(|line| series("lines of a kind", &format!("line {line}"), "", 9, 1.0));
            results.runs.push(run(&case, &variant, cpus, lines.collect()));
        }
    }
    for at in 0..4 {
        let case = vec![text("part", "many"), text("policy", &format!("policy {at}"))];
        for variant in VARIANTS {
            results.rows.push(row(&case, variant, ("a", "B"), (1.23456789e9, Some(9.87654e9))));
        }
    }
    results
}

#[test]
fn a_link_that_leads_nowhere_takes_no_files() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(directory.path().join("nowhere"), &link).unwrap();
    for folder in [link.clone(), link.join("below")] {
        assert!(super::check(&folder, "small", Replace::Own).is_err(), "{}", folder.display());
    }
    super::check(&directory.path().join("new"), "small", Replace::Own).unwrap();
}

#[test]
fn every_chart_is_a_picture_with_a_title_and_a_description() {
    let results = samples::full();
    let names: Vec<String> = charts(&results).into_iter().map(|(name, _)| name).collect();
    let expected = [
        "scaling-counters-wall.svg",
        "scaling-counters-sys.svg",
        "scaling-hog-real.svg",
        "bars-kbuild.svg",
        "causes-counters.svg",
        "causes-kbuild.svg",
        "series-kbuild-pageset-high.svg",
        "series-kbuild-free-memory-and-watermarks.svg",
        "series-kbuild-pages-by-node.svg",
    ];
    assert_eq!(names, expected);
    for (name, svg) in charts(&results) {
        let document = Document::parse(&svg).unwrap();
        let root = document.root_element();
        assert_eq!(root.attribute("role"), Some("img"));
        let ids: Vec<&str> = root.attribute("aria-labelledby").unwrap().split(' ').collect();
        let labels =
            document.descendants().filter(|node| node.attribute("id").is_some_and(|id| ids.contains(&id)));
        assert!(labels.filter(|node| content(*node).len() > 10).count() == 2, "{name}");
    }
}

#[test]
fn every_variant_is_in_every_chart_and_every_published_value_has_its_mark() {
    let results = samples::full();
    for (name, svg) in charts(&results) {
        let document = Document::parse(&svg).unwrap();
        let words = words(&document);
        for variant in VARIANTS {
            assert!(words.iter().any(|word| word.starts_with(variant)), "{variant} in {name}");
        }
    }
    let svg = chart(&results, "scaling-counters-wall.svg");
    let document = Document::parse(&svg).unwrap();
    let circles = |hollow: bool| {
        named(&document, "circle").filter(|c| (c.attribute("fill") == Some("none")) == hollow).count()
    };
    // There are seven cases with predictions for three variants and published values for one variant that was not used
    // for calibration. The legend adds one entry for each kind of marker.
    assert_eq!((circles(false), circles(true)), (3 * 7 + 1, 7 + 1));
    let color = color::hex(parts::variants(&results)[1].color);
    let rings = named(&document, "circle").filter(|circle| circle.attribute("stroke") == Some(&color));
    assert_eq!(rings.count(), 7);
}

#[test]
fn bars_are_as_long_as_their_values() {
    let svg = chart(&samples::full(), "bars-kbuild.svg");
    let document = Document::parse(&svg).unwrap();
    let [baseline, ours] = [0, 2].map(|at| parts::variants(&samples::full())[at].color);
    let of = |color| -> Vec<f64> {
        let bars = named(&document, "rect").filter(|bar| bar.attribute("fill") == Some(&color::hex(color)));
        bars.map(|bar| bar.attribute("width").unwrap().parse().unwrap()).collect()
    };
    let (long, short) = (of(baseline), of(ours));
    assert_eq!((long.len(), short.len()), (4, 4));
    assert!((long[1] / short[1] - 3.0).abs() < 0.02, "contention is a third: {long:?} {short:?}");
}

#[test]
fn segments_of_causes_add_up_to_the_rest() {
    let svg = chart(&samples::full(), "causes-kbuild.svg");
    let document = Document::parse(&svg).unwrap();
    let width = |color| -> f64 {
        let segments =
            named(&document, "rect").filter(|rect| rect.attribute("fill") == Some(&color::hex(color)));
        // The first rectangle is the legend entry.
        segments.skip(1).map(|rect| rect.attribute("width").unwrap().parse::<f64>().unwrap()).sum()
    };
    let (first, third, rest) = (width(color::FILLS[0]), width(color::FILLS[2]), width(color::REST));
    assert!((first / third - 5.0).abs() < 0.2, "{first} {third}");
    assert!((first / rest - 1.0 / (1.0 / 37.0 + 1.0 / 50.0)).abs() < 1.5, "{first} {rest}");
    assert!(words(&document).contains(&"2 others"));
}

#[test]
fn every_row_is_in_the_table_in_the_column_of_its_variant() {
    let results = samples::full();
    let page = html(&results);
    let xml = as_xml(&page);
    let document = Document::parse(&xml).unwrap();
    let tables: Vec<Node<'_, '_>> =
        named(&document, "table").filter(|table| table.attribute("class") == Some("grouped")).collect();
    assert_eq!(tables.len(), 3);
    let lines = tables.iter().flat_map(Node::descendants).filter(|node| node.has_tag_name("td"));
    let cells: Vec<String> = lines.filter(|td| td.attribute("class") != Some("unit")).map(content).collect();
    let mut expected = Vec::new();
    for (at, row) in results.rows.iter().enumerate() {
        let known_here = |variant: &str| match row.case[0].1.clone() {
            CaseValue::Text(part) if part == "hog" => variant == VARIANTS[0],
            _ => variant != VARIANTS[2],
        };
        let mark = if row.calibrated_on { "†" } else { "" };
        expected.push((at, figures::number(row.predicted)));
        if known_here(&row.variant) {
            let published = row.published.map_or(figures::NO_FIGURE.to_owned(), figures::number);
            expected.push((at, published + mark));
            expected.push((at, row.error_pct().map_or(figures::NO_FIGURE.to_owned(), figures::deviation)));
            expected.push((at, row.status().map_or(figures::NO_FIGURE, |status| status.name()).to_owned()));
        }
    }
    let sorted = |mut cells: Vec<String>| {
        cells.sort();
        cells
    };
    assert_eq!(sorted(cells.clone()), sorted(expected.into_iter().map(|(_, cell)| cell).collect()));
    // The second figure in the second case of part `counters`: `sys` with 4 CPUs.
    let sys: Vec<&Row> = results.rows.iter().filter(|row| row.metric == "sys").skip(3).take(3).collect();
    let columns: Vec<String> = sys.iter().map(|row| figures::number(row.predicted)).collect();
    assert_eq!([&cells[27], &cells[31], &cells[35]], [&columns[0], &columns[1], &columns[2]]);
}

#[test]
fn errors_are_graded_by_their_size() {
    let case = vec![num("cpus", 1.0)];
    let mut results = samples::empty();
    for (at, predicted) in [104.0, 88.0, 140.0, 200.0].into_iter().enumerate() {
        results.rows.push(row(&case, VARIANTS[1], (&format!("m{at}"), "s"), (predicted, Some(100.0))));
    }
    let page = html(&results);
    let places = ["near\">+4.0", "fair\">−12", "off\">+40", "far\">+100"];
    assert!(places.iter().all(|place| page.contains(place)), "{page}");
}

#[test]
fn the_first_sentences_follow_from_the_rows() {
    let mut results = samples::empty();
    assert!(html(&results).contains("There are no figures"));
    for (cpus, predicted) in [(1.0, 110.0), (2.0, 80.0), (4.0, 101.0)] {
        let case = vec![num("cpus", cpus)];
        results.rows.push(row(&case, VARIANTS[1], ("wall", "s"), (predicted, Some(100.0))));
        results.rows.push(row(&case, VARIANTS[2], ("wall", "s"), (predicted, None)));
    }
    results.rows.push(row(&vec![num("cpus", 1.0)], VARIANTS[0], ("wall", "s"), (99.0, Some(100.0))));
    results.missing = 2;
    let page = html(&results);
    for sentence in [
        "7 figures of 3 variants in 3 cases; published values are known for 4.",
        "Within 15 % of published figures: 1 of 1 that are fitted, 2 of 3 that are predicted. Missed: wall of overstep32, cpus = 2 (80 instead of 100 s).",
        "Stopped early: 2 runs not done",
    ] {
        assert!(page.contains(sentence), "{sentence}\n{page}");
    }
}

#[test]
fn hostile_names_are_text_and_nothing_else() {
    let results = hostile();
    let page = html(&results);
    assert!(!page.contains("<b>") && !page.contains(['\u{1}', '\u{9b}', '\u{202e}']));
    let xml = as_xml(&page);
    let document = Document::parse(&xml).unwrap();
    let shown =
        HOSTILE.replace('\u{1}', r"\u0001").replace('\u{9b}', r"\u009b").replace('\u{202e}', r"\u202e");
    for tag in ["title", "h1", "li", "summary", "caption", "figcaption", "code", "td", "th", "text"] {
        let written = named(&document, tag).any(|node| content(node).contains(&shown));
        assert!(written || tag == "summary", "{tag}");
    }
    for (name, svg) in charts(&results) {
        assert!(name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-.".contains(letter)), "{name}");
        let document = Document::parse(&svg).unwrap();
        assert!(words(&document).iter().any(|word| word.contains(&shown)), "{name}");
    }
}

#[test]
fn what_is_no_number_is_never_printed() {
    let results = odd();
    let texts = charts(&results).into_iter().map(|(_, svg)| svg).chain([html(&results)]);
    for text in texts {
        for word in text.split(|letter: char| !letter.is_alphanumeric()) {
            assert!(!["nan", "inf", "infinity"].contains(&word.to_lowercase().as_str()), "{word}");
        }
    }
}

#[test]
fn no_results_one_point_and_one_case_are_reports_too() {
    let mut results = samples::empty();
    results.variants.clear();
    results.parameters.clear();
    assert!(charts(&results).is_empty());
    Document::parse(&as_xml(&html(&results))).unwrap();
    let point = Series { plot: "free", name: "node 0".into(), unit: "GB", points: vec![(0.5, 3.0)] };
    results.runs.push(run(&Vec::new(), "only", 0.0, vec![point]));
    let svg = chart(&results, "series-free.svg");
    assert_eq!(named(&Document::parse(&svg).unwrap(), "circle").count(), 1);
    assert_eq!(charts(&results).len(), 1);
}

#[test]
fn a_page_stands_alone_and_is_the_same_each_time() {
    let results = samples::full();
    let page = html(&results);
    for outside in ["<script", "src=", "href=", "url(", "@import", "<link", "<iframe", "<image"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("http").count(), 1, "the content security policy");
    assert_eq!(page, html(&results));
    assert_eq!(charts(&results), charts(&results));
}

#[test]
fn files_are_written_where_they_belong_and_none_over_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut results = samples::full();
    for row in &mut results.rows {
        let part = &mut row.case[0].1;
        *part = if *part == CaseValue::Text("hog".into()) {
            part.clone()
        } else {
            CaseValue::Text("../Up".into())
        };
        row.metric = if row.metric == "sys" { "Wall!".into() } else { row.metric.clone() };
    }
    let below = folder.path().join("a/b");
    results.experiment = "small".to_owned();
    let files = write(&below, &results, Replace::Own).unwrap();
    let below = below.join("small");
    assert_eq!(files[0], below.join("report.html"));
    assert_eq!(std::fs::read_to_string(&files[0]).unwrap(), html(&results));
    assert_eq!(files.len(), std::fs::read_dir(&below).unwrap().count());
    assert_eq!(files.len(), charts(&results).len() + 1);
    for name in ["scaling-up-wall.svg", "scaling-up-wall-2.svg"] {
        assert!(files.contains(&below.join(name)), "{files:?}");
    }
}

/// Returns the bounding box of a text in pixels, for characters of average width: left, right, top, bottom.
fn extent(node: Node<'_, '_>) -> (f64, f64, f64, f64) {
    let attribute = |name: &str| node.attribute(name).unwrap().parse::<f64>().unwrap() / 10.0;
    let shift = node.parent().and_then(|group| group.attribute("transform")).unwrap_or("translate(0 0)");
    let (dx, dy) = shift.trim_matches(|letter: char| !letter.is_ascii_digit()).split_once(' ').unwrap();
    let [dx, dy] = [dx, dy].map(|pixels| pixels.parse::<f64>().unwrap() / 10.0);
    let (x, y, size) = (attribute("x") + dx, attribute("y") + dy, attribute("font-size"));
    let width = 0.55 * size * node.text().unwrap().trim().chars().count() as f64;
    let left = match node.attribute("text-anchor") {
        Some("end") => x - width,
        Some("middle") => x - width / 2.0,
        _ => x,
    };
    let middle = match node.attribute("dy") {
        Some("0.76em") => y + 0.4 * size,
        Some("-0.5ex") => y - 0.4 * size,
        _ => y,
    };
    (left, left + width, middle - 0.4 * size, middle + 0.4 * size)
}

#[test]
fn no_text_lies_over_another_or_outside_its_chart() {
    let all = [samples::full(), hostile(), crowded(), odd()];
    for (name, svg) in all.iter().flat_map(charts) {
        let document = Document::parse(&svg).unwrap();
        let attribute = |name| document.root_element().attribute(name).unwrap().parse::<f64>().unwrap();
        let (width, height) = (attribute("width"), attribute("height"));
        let texts = named(&document, "text").filter(|node| !content(*node).trim().is_empty());
        let texts: Vec<_> = texts.map(|node| (extent(node), node.text().unwrap())).collect();
        for (at, ((left, right, top, bottom), text)) in texts.iter().enumerate() {
            let inside = *left >= 0.0 && *right <= width && *top >= 0.0 && *bottom <= height;
            assert!(inside, "{name}: {text} {left} {right} {top} {bottom}");
            for (other, over) in &texts[..at] {
                let apart = other.1 <= *left || *right <= other.0 || other.3 <= *top || *bottom <= other.2;
                assert!(apart, "{name}: {text} over {over}");
            }
        }
    }
}

/// Checks that charts with equal names are numbered quickly. The test would take hours if the code tried every number
/// from 1 for each chart.
#[test]
fn many_charts_of_one_name_are_numbered() {
    let chart = |name: &str| {
        let (title, about) = (String::new(), String::new());
        Chart { name: name.to_owned(), title, about, keys: Vec::new(), panels: Vec::new() }
    };
    let mut gallery =
        Gallery { bars: (0..20_000).map(|_| chart("\u{4e00} a")).collect(), ..Gallery::default() };
    gallery.bars.insert(2, chart("a 3"));
    gallery.name();
    let names: Vec<&str> = gallery.bars.iter().map(|chart| &*chart.name).collect();
    assert_eq!(names[..5], ["a", "a-2", "a-3", "a-4", "a-5"]);
    assert_eq!(names[20_000], "a-20001");
}

/// Checks a report with as many runs as an experiment may have, each with figures, causes and a series.
#[test]
fn the_largest_report_is_written() {
    let mut results = samples::empty();
    for at in 0..1024 {
        let case = vec![text("part", "a"), text("name", &format!("case {at}")), num("cpus", f64::from(at))];
        for variant in VARIANTS {
            for metric in 0..12 {
                let metric = format!("metric {metric}");
                results.rows.push(row(&case, variant, (&metric, "s"), (f64::from(at), Some(1.0))));
            }
            let lines = vec![series("pageset.high", "CPU 0", "frames", 10, 1.0)];
            results.runs.push(run(&case, variant, 1.0, lines));
        }
    }
    assert!(html(&results).len() > 1 << 20);
}
