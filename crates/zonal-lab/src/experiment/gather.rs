//! Gathers the text of an experiment and all files that it names.
//!
//! Related files: `experiment/source.rs` reads files, and `experiment/texts.rs` defines the result.

use std::collections::BTreeMap;

use toml::Table;

use super::document::FileError;
use super::figures::TABLE;
use super::source::{MACHINE_FILE, Source};
use super::texts::Texts;

impl Source {
    /// Reads the experiment and all files that it names. The contents are not checked.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, or if the text is not TOML.
    pub fn texts(&self) -> Result<Texts, FileError> {
        if let Self::Texts(texts) = self {
            return Ok(texts.clone());
        }
        let (name, text) = (self.name(), self.text()?.into_owned());
        let table: Table = text.parse().map_err(|error: toml::de::Error| FileError {
            file: name.clone(),
            line: error.span().map(|span| text[..span.start].lines().count().max(1)),
            problem: error.message().to_owned(),
        })?;
        let files = self.files_of(&table)?;
        Ok(Texts { name, text, files })
    }

    /// Reads the files that an experiment in the place of this one would name.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read.
    pub fn files_of(&self, experiment: &Table) -> Result<BTreeMap<String, String>, FileError> {
        let named = named_files(experiment).into_iter();
        named
            .map(|(file, ending)| Ok((file.to_owned(), self.companion(file, ending)?.1.into_owned())))
            .collect()
    }
}

/// Returns the names of the files in an experiment, each with the extension that it must have.
fn named_files(table: &Table) -> Vec<(&str, &'static str)> {
    let parts = table.get("part").and_then(toml::Value::as_array).into_iter().flatten();
    let machines = parts.filter_map(|part| part.get("machine")?.as_str());
    let machines = machines.filter(|machine| machine.ends_with(MACHINE_FILE));
    let figures = table.get("published").and_then(|published| published.get("file")?.as_str());
    machines.map(|file| (file, MACHINE_FILE)).chain(figures.map(|file| (file, TABLE))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{BUILT_IN, load};

    #[test]
    fn texts_make_the_same_plan_as_their_source() {
        for known in BUILT_IN {
            let source = Source::BuiltIn(known);
            let texts = source.texts().unwrap();
            assert_eq!(texts.files.len(), known.files.len());
            let plan = load(&source).unwrap();
            let again = load(&Source::Texts(texts)).unwrap();
            assert_eq!((again.name, again.runs.len()), (plan.name, plan.runs.len()));
        }
    }

    #[test]
    fn a_file_that_is_not_among_the_texts_is_refused() {
        let mut texts = Source::BuiltIn(&BUILT_IN[0]).texts().unwrap();
        let (file, _) = texts.files.pop_first().unwrap();
        let error = load(&Source::Texts(texts)).unwrap_err();
        assert!(error.problem.contains(&file), "{error}");
        assert!(error.problem.contains("is not among the files"), "{error}");
    }
}
