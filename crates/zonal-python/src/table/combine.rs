//! Joins tables: constant columns, and rows of several tables below each other.
//!
//! Related files: `lab/` joins the results of a sweep's cases.

use super::{Column, Table, Values};

impl Values {
    /// Returns `rows` rows without values.
    fn nothing_like(&self, rows: usize) -> Self {
        match self {
            Self::I64(_) => Self::I64(vec![None; rows]),
            Self::U64(_) => Self::U64(vec![None; rows]),
            Self::F64(_) => Self::F64(vec![None; rows]),
            Self::Text(_) => Self::Text(vec![None; rows]),
            Self::Bool(_) => Self::Bool(vec![None; rows]),
        }
    }

    fn is_without_values(&self) -> bool {
        match self {
            Self::I64(values) => values.iter().all(Option::is_none),
            Self::U64(values) => values.iter().all(Option::is_none),
            Self::F64(values) => values.iter().all(Option::is_none),
            Self::Text(values) => values.iter().all(Option::is_none),
            Self::Bool(values) => values.iter().all(Option::is_none),
        }
    }

    /// Converts numbers to floating point; `None` for texts and truth values.
    fn floats(&self) -> Option<Vec<Option<f64>>> {
        match self {
            Self::I64(values) => Some(values.iter().map(|value| value.map(|value| value as f64)).collect()),
            Self::U64(values) => Some(values.iter().map(|value| value.map(|value| value as f64)).collect()),
            Self::F64(values) => Some(values.clone()),
            Self::Text(_) | Self::Bool(_) => None,
        }
    }

    fn texts(&self) -> Vec<Option<String>> {
        fn text<T: ToString>(values: &[Option<T>]) -> Vec<Option<String>> {
            values.iter().map(|value| value.as_ref().map(T::to_string)).collect()
        }
        match self {
            Self::I64(values) => text(values),
            Self::U64(values) => text(values),
            Self::F64(values) => text(values),
            Self::Text(values) => values.clone(),
            Self::Bool(values) => text(values),
        }
    }

    /// Appends rows. Values of different types become floating-point numbers if all are numbers, and otherwise texts.
    fn append(&mut self, other: &Self) {
        match (&mut *self, other) {
            (Self::I64(values), Self::I64(more)) => values.extend(more),
            (Self::U64(values), Self::U64(more)) => values.extend(more),
            (Self::F64(values), Self::F64(more)) => values.extend(more),
            (Self::Text(values), Self::Text(more)) => values.extend(more.iter().cloned()),
            (Self::Bool(values), Self::Bool(more)) => values.extend(more),
            (mine, more) if more.is_without_values() => mine.append(&mine.nothing_like(more.len())),
            (mine, more) if mine.is_without_values() => {
                let mut joined = more.nothing_like(mine.len());
                joined.append(more);
                *self = joined;
            }
            (mine, more) => {
                *self = match (mine.floats(), more.floats()) {
                    (Some(values), Some(more)) => Self::F64([values, more].concat()),
                    _ => Self::Text([mine.texts(), more.texts()].concat()),
                };
            }
        }
    }
}

impl Table {
    /// Returns the rows of all tables, in order. Columns are in the order in which they first occur; rows of tables
    /// without a column have no value in it.
    pub(crate) fn concat<'t>(tables: impl IntoIterator<Item = &'t Self>) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        let mut rows = 0;
        for table in tables {
            for column in &table.columns {
                match columns.iter_mut().find(|known| known.name == column.name) {
                    Some(known) => known.values.append(&column.values),
                    None => {
                        let mut values = column.values.nothing_like(rows);
                        values.append(&column.values);
                        columns.push(Column { name: column.name.clone(), values });
                    }
                }
            }
            rows += table.rows();
            for column in &mut columns {
                let missing = rows - column.values.len();
                column.values.append(&column.values.nothing_like(missing));
            }
        }
        Self::new(columns)
    }

    /// Puts columns that are the same in each row before the others. Names that the table has already are skipped.
    pub(crate) fn with_constants(&self, constants: impl IntoIterator<Item = (String, Constant)>) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        for (name, value) in constants {
            let is_known = self.find(&name).is_some() || columns.iter().any(|column| column.name == name);
            if !is_known {
                columns.push(Column { name, values: value.repeated(self.rows()) });
            }
        }
        columns.extend(self.columns.iter().cloned());
        Self::new(columns)
    }
}

/// The value of a column in which all rows are the same.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Constant {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(String),
}

impl Constant {
    fn repeated(&self, rows: usize) -> Values {
        match self {
            Self::Bool(value) => Values::Bool(vec![Some(*value); rows]),
            Self::I64(value) => Values::I64(vec![Some(*value); rows]),
            Self::U64(value) => Values::U64(vec![Some(*value); rows]),
            Self::F64(value) => Values::F64(vec![Some(*value); rows]),
            Self::Text(value) => Values::Text(vec![Some(value.clone()); rows]),
        }
    }
}
