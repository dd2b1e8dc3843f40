//! Writes an experiment as TOML text in one canonical form, in which each line belongs to a known field.
//!
//! Equal experiments have equal texts, whether they were read from a file or made from dictionaries, so the text is
//! what hashes are computed from. An error with a line number can name the field of that line. Related files:
//! `lab/values.rs` makes experiments from dictionaries.

use std::fmt::Write as _;

use toml::{Table, Value};

/// First line of each text. Errors about the experiment as a whole have this line, which belongs to no field.
const FIRST_LINE: &str = "# An experiment of zonal.";

/// The canonical text of an experiment. Invariant: one entry in `fields` for each line of `text`.
pub(super) struct Document {
    pub(super) text: String,
    fields: Vec<String>,
}

impl Document {
    /// Writes a table.
    pub(super) fn new(table: &Table) -> Self {
        let mut document = Self { text: String::new(), fields: Vec::new() };
        document.line(FIRST_LINE, String::new());
        document.table(table, "", "");
        document
    }

    /// Returns the field that a line, counted from 1, belongs to: `part[0].workload.cpus`.
    pub(super) fn field(&self, line: usize) -> Option<&str> {
        self.fields.get(line.checked_sub(1)?).map(|field| &**field).filter(|field| !field.is_empty())
    }

    /// Writes the contents of a table. `header` is its name in TOML, and `field` its name for people.
    fn table(&mut self, table: &Table, header: &str, field: &str) {
        let is_section = |value: &Value| value.is_table() || tables(value).is_some();
        for (name, value) in table.iter().filter(|(_, value)| !is_section(value)) {
            let line = format!("{} = {}", key(name), written(value));
            self.line(&line, joined(field, name));
        }
        for (name, value) in table {
            let (header, field) = (joined(header, &key(name)), joined(field, name));
            if let Value::Table(inner) = value {
                self.line(&format!("[{header}]"), field.clone());
                self.table(inner, &header, &field);
            } else if let Some(items) = tables(value) {
                for (place, item) in items.enumerate() {
                    let field = format!("{field}[{place}]");
                    self.line(&format!("[[{header}]]"), field.clone());
                    self.table(item, &header, &field);
                }
            }
        }
    }

    fn line(&mut self, text: &str, field: String) {
        self.text.push_str(text);
        self.text.push('\n');
        self.fields.push(field);
    }
}

/// Returns the items of a table list that is not empty.
fn tables(value: &Value) -> Option<impl Iterator<Item = &Table>> {
    let items = value.as_array().filter(|items| !items.is_empty() && items.iter().all(Value::is_table))?;
    Some(items.iter().filter_map(Value::as_table))
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn key(name: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !name.is_empty() && name.bytes().all(is_bare) { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out + "\""
}

/// Writes a value on one line.
fn written(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) if number.is_nan() => "nan".to_owned(),
        Value::Float(number) => format!("{number:?}"),
        Value::Boolean(value) => value.to_string(),
        Value::Datetime(time) => time.to_string(),
        Value::Array(items) => format!("[{}]", items.iter().map(written).collect::<Vec<_>>().join(", ")),
        Value::Table(table) => {
            let entries = table.iter().map(|(name, value)| format!("{} = {}", key(name), written(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}
