//! Makes experiments and settings from Python values.
//!
//! Related files: `lab/document.rs` writes the result as text, and `lab/change.rs` puts settings into experiments.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyMapping, PySet, PyString};
use toml::{Table, Value};

use crate::failures::SpecError;
use crate::machine::Machine;

/// Ending of machine file names, which distinguishes them from presets.
const MACHINE_FILE: &str = ".json";

/// Converts values of one experiment. A [`Machine`] becomes the name of a machine file that travels with the text.
pub(super) struct Converter<'f> {
    pub(super) files: &'f mut BTreeMap<String, String>,
}

impl Converter<'_> {
    /// Converts a dictionary; `field` names it in errors.
    pub(super) fn table(&mut self, values: &Bound<'_, PyMapping>, field: &str) -> PyResult<Table> {
        let mut table = Table::new();
        for item in values.items()?.iter() {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let Ok(name) = key.cast::<PyString>() else {
                let problem = format!("{}a key is {}; keys must be texts", prefix(field), key.repr()?);
                return Err(SpecError::new_err(problem));
            };
            let name = name.to_string();
            let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
            table.insert(name, self.value(&value, &inner)?);
        }
        Ok(table)
    }

    /// Converts a value; `field` names it in errors.
    pub(super) fn value(&mut self, value: &Bound<'_, PyAny>, field: &str) -> PyResult<Value> {
        if let Ok(machine) = value.cast::<Machine>() {
            return Ok(Value::String(self.machine_file(machine.get())));
        }
        if value.is_instance_of::<PyBool>() {
            return Ok(Value::Boolean(value.extract()?));
        }
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Value::String(text.to_string()));
        }
        if let Ok(mapping) = value.cast::<PyMapping>() {
            return Ok(Value::Table(self.table(mapping, field)?));
        }
        let is_other =
            value.is_none() || is_a::<PySet>(value) || is_a::<PyBytes>(value) || is_a::<PyByteArray>(value);
        if !is_other {
            if let Some(number) = number(value, field)? {
                return Ok(number);
            }
            if let Ok(items) = value.try_iter() {
                let items = items.enumerate().map(|(at, item)| self.value(&item?, &format!("{field}[{at}]")));
                return Ok(Value::Array(items.collect::<PyResult<_>>()?));
            }
        }
        let kind = value.get_type().name()?;
        let problem = format!(
            "{}{} has the type {kind}; values must be texts, numbers, True, False, lists, dictionaries or a zonal.machine.Machine",
            prefix(field),
            value.repr()?
        );
        Err(SpecError::new_err(problem))
    }

    /// Returns the name of the machine's file. Different machines get different names.
    fn machine_file(&mut self, machine: &Machine) -> String {
        let text = machine.model.to_json();
        let mut name = format!("{}{MACHINE_FILE}", machine.model.name);
        let mut number = 1;
        while self.files.get(&name).is_some_and(|known| *known != text) {
            number += 1;
            name = format!("{}-{number}{MACHINE_FILE}", machine.model.name);
        }
        self.files.insert(name.clone(), text);
        name
    }
}

fn is_a<T: pyo3::PyTypeInfo>(value: &Bound<'_, PyAny>) -> bool {
    value.is_instance_of::<T>()
}

fn prefix(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

/// Converts Python's numbers and those of NumPy; `None` for anything else.
fn number(value: &Bound<'_, PyAny>, field: &str) -> PyResult<Option<Value>> {
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Some(Value::Float(number.extract()?)));
    }
    if value.hasattr("__index__")? && !value.hasattr("__len__")? {
        let number: i64 = value.extract().map_err(|_| {
            SpecError::new_err(format!("{}{value} is too large; it must fit into 64 bits", prefix(field)))
        })?;
        return Ok(Some(Value::Integer(number)));
    }
    if value.hasattr("__float__")? && !value.hasattr("__len__")? {
        return Ok(Some(Value::Float(value.extract()?)));
    }
    Ok(None)
}
