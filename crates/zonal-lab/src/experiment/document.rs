//! A TOML document whose every value knows its line, and the one way in which files are refused.
//!
//! A *section* is a table that is read key by key; what is left in it at the end is unknown.
//! Neighbours: `file.rs` reads experiments with it, `published.rs` refuses tables of figures likewise.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer, ValueDeserializer};
use zonal_machine::Excerpt;

use super::limits::{LIST_MAX, NAME_BYTES_MAX};

/// What is wrong with a file, in one line, and what would be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileError {
    /// The file.
    pub file: String,
    /// The line, from 1; `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// What is wrong.
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

/// Where something stands: bytes of the text.
pub(super) type Span = Range<usize>;
/// A table, with the place of each key and value.
pub(super) type Table<'t> = DeTable<'t>;
/// A value and its place.
pub(super) type Value<'t> = Spanned<DeValue<'t>>;
/// A key and its place.
pub(super) type Key<'t> = Spanned<Cow<'t, str>>;

/// The text of a file and its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'t> {
    /// As people call it.
    pub(super) name: &'t str,
    /// All of it.
    pub(super) text: &'t str,
}

impl<'t> Document<'t> {
    /// The whole as a section.
    pub(super) fn parse(self) -> Result<Section<'t>, FileError> {
        let root = DeTable::parse(self.text)
            .map_err(|error| self.error(error.span().unwrap_or(0..0), error.message()))?;
        Ok(Section::new(self, root.span(), root.into_inner()))
    }

    /// An error about what stands at a place.
    pub(super) fn error(self, span: Span, problem: impl fmt::Display) -> FileError {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let problem = problem.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        FileError { file: self.name.to_owned(), line: Some(line), problem }
    }

    /// Reads a value that is known as `key`.
    pub(super) fn read<T: DeserializeOwned>(self, key: &str, value: Value<'t>) -> Result<T, FileError> {
        let span = value.span();
        T::deserialize(ValueDeserializer::from(value)).map_err(|error| self.refused(&error, span, Some(key)))
    }

    /// Reads a whole table.
    pub(super) fn read_table<T: DeserializeOwned>(self, table: Spanned<Table<'t>>) -> Result<T, FileError> {
        let span = table.span();
        T::deserialize(Deserializer::from(table)).map_err(|error| self.refused(&error, span, None))
    }

    /// The reader names what it was in on a line after its message.
    fn refused(self, error: &toml::de::Error, span: Span, key: Option<&str>) -> FileError {
        let text = error.to_string();
        let within = text.split_once("\nin ").map(|(_, path)| path.trim().trim_matches('`').to_owned());
        let path: Vec<&str> = key.into_iter().chain(within.as_deref()).collect();
        let path = if path.is_empty() { String::new() } else { format!("{}: ", path.join(".")) };
        self.error(error.span().unwrap_or(span), format!("{path}{}", error.message()))
    }
}

/// A table that is read key by key.
#[derive(Debug)]
pub(super) struct Section<'t> {
    /// Where it is from.
    pub(super) document: Document<'t>,
    /// Where it begins.
    pub(super) span: Span,
    table: Table<'t>,
    asked: Vec<&'static str>,
}

impl<'t> Section<'t> {
    fn new(document: Document<'t>, span: Span, table: Table<'t>) -> Self {
        Self { document, span, table, asked: Vec::new() }
    }

    /// Takes a value out, unread.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Value<'t>> {
        self.asked.push(key);
        self.table.remove(key)
    }

    /// Takes a value out, if it is there.
    pub(super) fn optional<T: DeserializeOwned>(
        &mut self,
        key: &'static str,
    ) -> Result<Option<T>, FileError> {
        self.take(key).map(|value| self.document.read(key, value)).transpose()
    }

    /// Takes a value out, or what stands for none.
    pub(super) fn or_default<T: DeserializeOwned + Default>(
        &mut self,
        key: &'static str,
    ) -> Result<T, FileError> {
        Ok(self.optional(key)?.unwrap_or_default())
    }

    /// Takes a value out that must be there.
    pub(super) fn required<T: DeserializeOwned>(&mut self, key: &'static str) -> Result<T, FileError> {
        self.optional(key)?.ok_or_else(|| self.missing(key))
    }

    /// The error that a key is not there.
    pub(super) fn missing(&self, key: &str) -> FileError {
        self.document.error(self.span.clone(), format!("`{key}` is missing here"))
    }

    /// Takes a table out, if it is there.
    pub(super) fn table(&mut self, key: &'static str) -> Result<Option<Spanned<Table<'t>>>, FileError> {
        self.take(key).map(|value| table_of(self.document, key, value)).transpose()
    }

    /// [`Self::table`], to be read key by key.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Option<Self>, FileError> {
        let table = self.table(key)?;
        Ok(table.map(|table| Self::new(self.document, table.span(), table.into_inner())))
    }

    /// Takes a list of tables out, `most` of them or fewer: none where the key is not there.
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

    /// Refuses more keys than a table may have; what it is called.
    pub(super) fn check_size(&self, name: &str) -> Result<(), FileError> {
        check_count(self.document, name, self.table.len(), LIST_MAX, self.span.clone())
    }

    /// Takes out all that is left.
    pub(super) fn rest(self) -> Table<'t> {
        self.table
    }

    /// Refuses what nobody asked for.
    pub(super) fn finish(self) -> Result<(), FileError> {
        let Some((key, _)) = self.table.iter().next() else { return Ok(()) };
        let known = self.asked.join(", ");
        let problem = format!("unknown key `{}`; known here: {known}", key.get_ref());
        Err(self.document.error(key.span(), problem))
    }
}

/// A value that must be a table.
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
    let problem = format!("{field} has {} bytes; at most {NAME_BYTES_MAX} can be", name.len());
    Err(document.error(span, problem))
}

/// Refuses too many of what stands in `field`.
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
    Err(document.error(span, format!("`{field}` has {count} entries; at most {most} can be")))
}
