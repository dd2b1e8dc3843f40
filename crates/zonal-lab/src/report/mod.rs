//! The report of an experiment: one HTML page that stands alone, and its charts as SVG files.
//!
//! No scripts, nothing fetched, readable in light, in dark, on paper and by screen readers; the same
//! results give the same bytes. A *figure* is a number with a name and a unit; a *part* is a group of
//! cases (`parts.rs`).
//! `html.rs` is the page, `lead.rs` its first sentences, `table.rs` its tables; `scaling.rs`, `bars.rs`,
//! `causes.rs` and `series.rs` are its charts, drawn with `frame.rs`, `scale.rs`, `canvas.rs` and
//! `style.rs`; [`figures`] writes numbers. Neighbours: `experiment/` has the results.

mod bars;
mod canvas;
mod causes;
mod frame;
mod html;
mod lead;
mod parts;
#[cfg(test)]
mod samples;
mod scale;
mod scaling;
mod series;
mod style;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;

use zonal_machine::output::{self, Kind, Replace, WriteError};

use self::canvas::Chart;
use crate::experiment::RESULT_FILE;
use crate::experiment::results::Results;
pub use crate::figures;

/// Longest name of a file, without its ending.
const NAME_MAX: usize = 80;

/// The page's file.
const PAGE_FILE: &str = "report.html";

/// Writes `DIRECTORY/EXPERIMENT/report.html` and its charts beside it, and says which files these are: the page
/// first. Each is written as a whole or not at all.
///
/// # Errors
/// When something is there that may not be replaced, or the file system refuses.
pub fn write(directory: &Path, results: &Results, replace: Replace) -> Result<Vec<PathBuf>, WriteError> {
    let directory = output::folder(directory, &results.experiment)?;
    let gallery = Gallery::of(results);
    let mut files = vec![(PAGE_FILE.to_owned(), html::page(results, &gallery), Kind::Page)];
    files.extend(gallery.documents().map(|(name, text)| (name, text, Kind::Drawing)));
    let written = files.into_iter().map(|(name, text, kind)| {
        let path = directory.join(name);
        output::write(&path, &text, kind, replace)?;
        Ok(path)
    });
    written.collect()
}

/// Checks, before an experiment is run, that its results and its page may be written, and that a file can be made
/// where they go: names of charts are known only afterwards, and whether the disk has room.
///
/// # Errors
/// When something is there that may not be replaced, or the file system refuses a file.
pub fn check(directory: &Path, experiment: &str, replace: Replace) -> Result<(), WriteError> {
    let directory = directory.join(experiment);
    output::check_folder(&directory)?;
    output::check(&directory.join(RESULT_FILE), Kind::Results, replace)?;
    output::check(&directory.join(PAGE_FILE), Kind::Page, replace)?;
    check_makes_files(&directory).map_err(|source| WriteError { path: directory, source })
}

/// Makes an empty file in the folder, or in the one that it will be made in, and takes it away again.
fn check_makes_files(directory: &Path) -> io::Result<()> {
    let there = directory.ancestors().find(|folder| folder.symlink_metadata().is_ok()); // a link that leads nowhere is in the way
    let there = there.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let path = there.join(format!(".zonal-{}.check", process::id()));
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(_) => fs::remove_file(path),
        // Somebody could make a file here; whether this process can shows at the end then.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The page, with its charts within.
#[must_use]
pub fn html(results: &Results) -> String {
    html::page(results, &Gallery::of(results))
}

/// Names of files, as `scaling-wall.svg`, and the SVG documents that belong in them, in the order of the page.
#[must_use]
pub fn charts(results: &Results) -> Vec<(String, String)> {
    Gallery::of(results).documents().collect()
}

/// All charts of a report.
#[derive(Default)]
struct Gallery {
    scaling: Vec<Chart>,
    bars: Vec<Chart>,
    causes: Vec<Chart>,
    /// By case.
    series: Vec<(String, Vec<Chart>)>,
}

impl Gallery {
    fn of(results: &Results) -> Self {
        let variants = parts::variants(results);
        let mut gallery = Self::default();
        for part in parts::parts(results) {
            gallery.scaling.extend(scaling::charts(&part, &variants));
            gallery.bars.extend(bars::chart(&part, &variants));
            gallery.causes.extend(causes::chart(&part));
            for (case, chart) in series::charts(&part) {
                parts::group(&mut gallery.series, part.title(&case), chart);
            }
        }
        gallery.name();
        gallery
    }

    /// Makes names of charts fit for files, and unique.
    fn name(&mut self) {
        let mut taken = HashSet::new();
        let mut numbers: HashMap<String, usize> = HashMap::new();
        let Self { scaling, bars, causes, series } = self;
        let series = series.iter_mut().flat_map(|(_, charts)| charts);
        for chart in scaling.iter_mut().chain(bars).chain(causes).chain(series) {
            let plain = slug(&chart.name);
            let number = numbers.entry(plain.clone()).or_insert(1);
            chart.name = plain.clone();
            while !taken.insert(chart.name.clone()) {
                *number += 1;
                chart.name = format!("{plain}-{number}");
            }
        }
    }

    fn documents(&self) -> impl Iterator<Item = (String, String)> {
        let series = self.series.iter().flat_map(|(_, charts)| charts);
        let charts = self.scaling.iter().chain(&self.bars).chain(&self.causes).chain(series);
        charts.map(|chart| (format!("{}.svg", chart.name), chart.document()))
    }
}

/// `name` in small letters, digits and hyphens: safe as a file name and as an id.
fn slug(name: &str) -> String {
    let letters = name.chars().map(|letter| match letter {
        'a'..='z' | '0'..='9' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => ' ',
    });
    let letters: String = letters.collect();
    let words: Vec<&str> = letters.split_whitespace().collect();
    words.join("-").chars().take(NAME_MAX).collect::<String>().trim_end_matches('-').to_owned()
}
