//! TOML documents in which each value has its location in the file, and the error type for files.
//!
//! A *section* is a table that is read key by key. Keys that are still unread at the end are unknown and are refused.
//! Related files: `experiment/file.rs` reads experiments through sections, and `experiment/published.rs` uses
//! [`FileError`] for tables of figures.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, ValueDeserializer};
use zonal_machine::Excerpt;

use super::limits::{LIST_MAX, NAME_BYTES_MAX};

/// A one-line description of an error in a file and its correct contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// Name of the file.
    pub file: String,
    /// Line number, from 1; `None` for an error that concerns the whole file.
    pub line: Option<usize>,
    /// Description of the error.
    pub problem: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", Excerpt::name(&self.file))?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        write!(f, " {}", Excerpt::sentence(&self.problem))
    }
}

impl std::error::Error for FileError {}

/// Location in the text, as a range of bytes.
pub(super) type Span = Range<usize>;
/// A table with the location of each key and value.
pub(super) type Table<'t> = DeTable<'t>;
/// A value and its location.
pub(super) type Value<'t> = Spanned<DeValue<'t>>;
/// A key and its location.
pub(super) type Key<'t> = Spanned<Cow<'t, str>>;

/// The text of a file and its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'t> {
    /// Name of the file, as shown to users.
    pub(super) name: &'t str,
    /// Text of the file.
    pub(super) text: &'t str,
}

impl<'t> Document<'t> {
    /// Parses the document and returns its root as a section.
    pub(super) fn parse(self) -> Result<Section<'t>, FileError> {
        let root = DeTable::parse(self.text)
            .map_err(|error| self.error(error.span().unwrap_or(0..0), error.message()))?;
        Ok(Section::new(self, root.span(), root.into_inner()))
    }

    /// Creates an error about the text at a location.
    pub(super) fn error(self, span: Span, problem: impl fmt::Display) -> FileError {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let problem = problem.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        FileError { file: self.name.to_owned(), line: Some(line), problem }
    }

    /// Deserializes the value of `key`.
    pub(super) fn read<T: DeserializeOwned>(self, key: &str, value: Value<'t>) -> Result<T, FileError> {
        let span = value.span();
        T::deserialize(ValueDeserializer::from(value)).map_err(|error| self.refused(&error, span, Some(key)))
    }

    /// Deserializes a whole table.
    pub(super) fn read_table<T: DeserializeOwned>(self, table: Spanned<Table<'t>>) -> Result<T, FileError> {
        let span = table.span();
        T::deserialize(Deserializer::from(table)).map_err(|error| self.refused(&error, span, None))
    }

    /// Converts an error of the TOML reader. The reader names the enclosing keys on a line after its message.
    fn refused(self, error: &toml::de::Error, span: Span, key: Option<&str>) -> FileError {
        let text = error.to_string();
        let within = text.split_once("\nin ").map(|(_, path)| path.trim().trim_matches('`').to_owned());
        let path: Vec<&str> = key.into_iter().chain(within.as_deref()).collect();
        let path = if path.is_empty() { String::new() } else { format!("{}: ", path.join(".")) };
        self.error(error.span().unwrap_or(span), format!("{path}{}", in_words(error.message())))
    }
}

/// Names what a value must be by words instead of types of the language.
fn in_words(message: &str) -> String {
    let Some((before, expected)) = message.rsplit_once("expected ") else { return message.to_owned() };
    let words = match expected {
        "usize" | "u8" | "u16" | "u32" | "u64" => "a whole number",
        "f32" | "f64" => "a number",
        other => other,
    };
    format!("{before}expected {words}")
}

/// A table that is read key by key.
#[derive(Debug)]
pub(super) struct Section<'t> {
    /// Document that contains the section.
    pub(super) document: Document<'t>,
    /// Location of the section's start.
    pub(super) span: Span,
    table: Table<'t>,
    asked: Vec<&'static str>,
}

impl<'t> Section<'t> {
    fn new(document: Document<'t>, span: Span, table: Table<'t>) -> Self {
        Self { document, span, table, asked: Vec::new() }
    }

    /// Removes and returns a value, without deserializing it.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Value<'t>> {
        self.asked.push(key);
        self.table.remove(key)
    }

    /// Removes and deserializes a value, if it is present.
    pub(super) fn optional<T: DeserializeOwned>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<T>, FileError> {
        self.take(key).map(|value| self.document.read(key, value)).transpose()
    }

    /// Removes and deserializes a value; returns the default if it is absent.
    pub(super) fn or_default<T: DeserializeOwned + Default>(
        &mut self,
        key: &'static str,
    ) -> Result<T, FileError> {
        Ok(self.optional(key)?.unwrap_or_default())
    }

    /// Removes and deserializes a required value.
    pub(super) fn required<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<T, FileError> {
        self.optional(key)?.ok_or_else(|| self.missing(key))
    }

    /// Creates the error for a missing key.
    pub(super) fn missing(&self, key: &str) -> FileError {
        self.document.error(self.span.clone(), format!("`{key}` is missing"))
    }

    /// Removes and returns a table, if it is present.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Option<Spanned<Table<'t>>>, FileError> {
        self.take(key).map(|value| table_of(self.document, key, value)).transpose()
    }

    /// Removes a table like [`Self::table`], and returns it as a section.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Option<Self>, FileError> {
        let table = self.table(key)?;
        Ok(table.map(|table| Self::new(self.document, table.span(), table.into_inner())))
    }

    /// Removes and returns a list of at most `most` tables. The list is empty if the key is absent.
    pub(super) fn sections(&mut self, key: &'static str, most: usize) -> Result<Vec<Self>, FileError> {
        let document = self.document;
        let Some(value) = self.take(key) else { return Ok(Vec::new()) };
        let span = value.span();
        let DeValue::Array(items) = value.into_inner() else {
            return Err(document.error(span, format!("`{key}` is a list of tables; write [[{key}]]")));
        };
        if let Some(excess) = items.get(most) {
            check_count(document, key, items.len(), most, excess.span())?;
        }
        let section = |item| {
            let table = table_of(document, key, item)?;
            Ok(Self::new(document, table.span(), table.into_inner()))
        };
        items.into_iter().map(section).collect()
    }

    /// Refuses a table with too many keys; the error calls the table `name`.
    pub(super) fn check_size(&self, name: &str) -> Result<(), FileError> {
        check_count(self.document, name, self.table.len(), LIST_MAX, self.span.clone())
    }

    /// Returns all remaining keys and values.
    pub(super) fn rest(self) -> Table<'t> {
        self.table
    }

    /// Refuses the keys that have not been read.
    pub(super) fn finish(self) -> Result<(), FileError> {
        let Some((key, _)) = self.table.iter().next() else { return Ok(()) };
        let known = self.asked.join(", ");
        let problem = format!("unknown key `{}`; keys here are {known}", key.get_ref());
        Err(self.document.error(key.span(), problem))
    }
}

/// Converts a value to a table; any other type is an error.
pub(super) fn table_of<'t>(
    document: Document<'t>,
    key: &str,
    value: Value<'t>,
) -> Result<Spanned<Table<'t>>, FileError> {
    let span = value.span();
    match value.into_inner() {
        DeValue::Table(table) => Ok(Spanned::new(span, table)),
        other => Err(document.error(span, format!("`{key}` is a {}; it must be a table", other.type_str()))),
    }
}

/// Refuses a name that is too long.
pub(super) fn check_name(
    document: Document<'_>,
    field: &str,
    name: &str,
    span: Span,
) -> Result<(), FileError> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let problem = format!("{field} has {} bytes; the maximum is {NAME_BYTES_MAX}", name.len());
    Err(document.error(span, problem))
}

/// Refuses too many entries in `field`.
pub(super) fn check_count(
    document: Document<'_>,
    field: &str,
    count: usize,
    most: usize,
    span: Span,
) -> Result<(), FileError> {
    if count <= most {
        return Ok(());
    }
    Err(document.error(span, format!("`{field}` has {count} entries; the maximum is {most}")))
}
