//! The report of an experiment: one self-contained HTML page, and its charts as SVG files.
//!
//! The page has no scripts and loads no other files. It is readable in light and dark mode, on paper and with screen
//! readers. The same results produce the same bytes. A *figure* is a number with a name and a unit; a *part* is a
//! group of cases (`report/parts.rs`). `report/page.rs` builds the page, `report/lead.rs` its first sentences, and
//! `report/table.rs` its tables. `report/scaling.rs`, `report/bars.rs`, `report/causes.rs` and `report/series.rs`
//! build its charts. Related files: `experiment/` produces the results; [`zonal_page`] defines the style of pages and
//! draws the charts; [`figures`] formats numbers.

mod bars;
mod causes;
mod lead;
mod page;
mod parts;
#[cfg(test)]
mod samples;
mod scaling;
mod series;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;

use zonal_machine::output::{self, DRAWING_MARK, Kind, Replace, WriteError};
use zonal_page::{Chart, slug};

use crate::experiment::RESULT_FILE;
use crate::experiment::results::Results;
pub use crate::figures;

/// Name of the page's file.
const PAGE_FILE: &str = "report.html";

/// Writes `DIRECTORY/EXPERIMENT/report.html`, and its charts into the same directory, each file atomically. Returns
/// the paths of all files, the page first.
///
/// # Errors
/// Returns an error if an existing file must not be replaced, or if the file system reports an error.
pub fn write(directory: &Path, results: &Results, replace: Replace) -> Result<Vec<PathBuf>, WriteError> {
    let directory = output::folder(directory, &results.experiment)?;
    let gallery = Gallery::of(results);
    let mut files = vec![(PAGE_FILE.to_owned(), page::page(results, &gallery), Kind::Page)];
    files.extend(gallery.documents().map(|(name, text)| (name, text, Kind::Drawing)));
    let written = files.into_iter().map(|(name, text, kind)| {
        let path = directory.join(name);
        output::write(&path, &text, kind, replace)?;
        Ok(path)
    });
    written.collect()
}

/// Checks, before an experiment runs, that its results and its page may be written and that a file can be created in
/// their directory. The names of the charts and the space needed on disk are not known at this time and are not
/// checked.
///
/// # Errors
/// Returns an error if an existing file must not be replaced, or if the file system refuses to create a file.
pub fn check(directory: &Path, experiment: &str, replace: Replace) -> Result<(), WriteError> {
    let directory = directory.join(experiment);
    output::check_folder(&directory)?;
    if directory.is_dir() {
        output::check(&directory.join(RESULT_FILE), Kind::Results, replace)?;
        output::check(&directory.join(PAGE_FILE), Kind::Page, replace)?;
    }
    check_makes_files(&directory).map_err(|source| WriteError { path: directory, source })
}

/// Creates and removes an empty file in the directory, or in the nearest existing ancestor of a directory that
/// does not exist yet.
fn check_makes_files(directory: &Path) -> io::Result<()> {
    let there = directory.ancestors().find(|folder| folder.symlink_metadata().is_ok()); // also finds dangling links
    let there = there.filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let path = there.join(format!(".zonal-{}.check", process::id()));
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Ok(_) => fs::remove_file(path),
        // Another process created a file with this name, so the check is inconclusive. Writing the report will show
        // whether this process can create files here.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the page, with its charts inline.
#[must_use]
pub fn html(results: &Results) -> String {
    page::page(results, &Gallery::of(results))
}

/// Returns the file names of the charts, such as `scaling-wall.svg`, with their SVG documents, in the order of the
/// page.
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
    /// Time series, by case.
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
                parts::group(&mut gallery.series, part.title(&case)).push(chart);
            }
        }
        gallery.name();
        gallery
    }

    /// Makes the names of charts unique and usable as file names.
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
        charts.map(|chart| (format!("{}.svg", chart.name), DRAWING_MARK.to_owned() + &chart.document()))
    }
}
