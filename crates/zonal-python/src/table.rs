//! Tables: named columns of equal length, which Python reads as dictionaries or through the Arrow C stream interface.
//!
//! Related files: `table/arrow.rs` exports a table to Arrow, and `table/combine.rs` joins tables. `machine.rs` and
//! `lab/` make tables.

mod arrow;
pub(crate) mod combine;
mod python;

use pyo3::prelude::*;

/// The values of a column. A row without a value is `None`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Values {
    /// Signed integers.
    I64(Vec<Option<i64>>),
    /// Unsigned integers.
    U64(Vec<Option<u64>>),
    /// Floating-point numbers.
    F64(Vec<Option<f64>>),
    /// Texts.
    Text(Vec<Option<String>>),
    /// Truth values.
    Bool(Vec<Option<bool>>),
}

impl Values {
    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::I64(values) => values.len(),
            Self::U64(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::Text(values) => values.len(),
            Self::Bool(values) => values.len(),
        }
    }
}

macro_rules! collected {
    ($($item:ty => $variant:ident),*) => {
        $(
            impl FromIterator<$item> for Values {
                fn from_iter<I: IntoIterator<Item = $item>>(values: I) -> Self {
                    Self::$variant(values.into_iter().map(Some).collect())
                }
            }

            impl FromIterator<Option<$item>> for Values {
                fn from_iter<I: IntoIterator<Item = Option<$item>>>(values: I) -> Self {
                    Self::$variant(values.into_iter().collect())
                }
            }
        )*
    };
}

collected!(i64 => I64, u64 => U64, f64 => F64, String => Text, bool => Bool);

impl<'t> FromIterator<&'t str> for Values {
    fn from_iter<I: IntoIterator<Item = &'t str>>(values: I) -> Self {
        values.into_iter().map(str::to_owned).collect()
    }
}

/// A named column.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) values: Values,
}

impl Column {
    /// Creates a column; `values` are numbers, texts or truth values, or options of them.
    pub(crate) fn new<T>(name: impl Into<String>, values: impl IntoIterator<Item = T>) -> Self
    where
        Values: FromIterator<T>,
    {
        Self { name: name.into(), values: values.into_iter().collect() }
    }
}

/// Named columns of equal length.
///
/// Any library that reads the Arrow C stream interface can read a table without copying it through Python objects:
/// `pyarrow.table(table)`, `polars.DataFrame(table)`, `pandas.DataFrame.from_arrow(table)`.
///
/// Invariants: all columns have the same length, and their names are unique.
#[pyclass(frozen, module = "zonal.table")]
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
}

impl Table {
    /// Creates a table.
    ///
    /// # Panics
    /// Panics if the columns have different lengths or two columns have the same name.
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        for (place, column) in columns.iter().enumerate() {
            assert_eq!(column.values.len(), columns[0].values.len(), "the length of column {}", column.name);
            let is_new = columns[..place].iter().all(|other| other.name != column.name);
            assert!(is_new, "column {} occurs twice", column.name);
        }
        Self { columns }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.columns.first().map_or(0, |column| column.values.len())
    }

    /// Returns the column called `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}
