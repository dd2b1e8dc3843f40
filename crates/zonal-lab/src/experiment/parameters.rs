//! The documented parameters of an experiment file. Each parameter names a setting and gives a reason why its value
//! is plausible.
//!
//! The name of a parameter is a path: `hardware.FIELD`, `workload.FIELD` or `config.KEY`. If parts have different
//! values, the name of a part is put before the path. Related files: `experiment/resolve.rs` calls this module.

use std::sync::Arc;

use toml::de::DeValue;
use zonal_machine::MachineModel;

use super::document::{Document, FileError};
use super::file::{Written, WrittenPart};
use super::layer::Group;
use super::results::Parameter;
use crate::sim::Hardware;

/// A part with the model of its machine.
pub(super) struct Part<'w, 't> {
    pub(super) written: &'w WrittenPart<'t>,
    pub(super) model: Arc<MachineModel>,
    /// Hardware costs before the changes made by cases and variants.
    pub(super) hardware: Hardware,
}

/// Returns the parameters of an experiment with their values.
pub(super) fn find(
    document: Document<'_>,
    written: &Written<'_>,
    parts: &[Part<'_, '_>],
) -> Result<Vec<Parameter>, FileError> {
    let mut found: Vec<Parameter> = Vec::new();
    for parameter in &written.parameters {
        let name = parameter.name.get_ref();
        if found.iter().any(|other| other.name == *name) {
            let problem = format!("parameter `{name}` is defined twice; parameters must be unique");
            return Err(document.error(parameter.name.span(), problem));
        }
        let value = value(name, parts).map_err(|problem| document.error(parameter.name.span(), problem))?;
        found.push(Parameter {
            name: name.clone(),
            value,
            calibrated: parameter.calibrated,
            why: parameter.why.clone(),
        });
    }
    Ok(found)
}

/// Returns the value of a parameter, which must be the same in all parts that the name refers to.
fn value(name: &str, parts: &[Part<'_, '_>]) -> Result<f64, String> {
    let (part, path) = match name.split_once('.') {
        Some((first, path)) if Group::named(first).is_none() => (Some(first), path),
        _ => (None, name),
    };
    let named = |part: &Part<'_, '_>| part.written.name.as_ref().map(|name| name.get_ref().clone());
    let meant: Vec<&Part<'_, '_>> =
        parts.iter().filter(|there| part.is_none() || named(there).as_deref() == part).collect();
    let group = path.split_once('.').and_then(|(group, field)| Some((Group::named(group)?, field)));
    let (Some((group, field)), false) = (group, meant.is_empty()) else {
        return Err(format!(
            "`{name}` is not a parameter; write hardware.FIELD, workload.FIELD or config.KEY, prefixed with the name of a part if parts differ"
        ));
    };
    let mut values: Vec<f64> = Vec::new();
    let mut problem = String::new();
    for part in meant {
        match value_in(part, group, field) {
            Ok(value) if values.contains(&value) => {}
            Ok(value) => values.push(value),
            Err(error) => problem = error,
        }
    }
    match values[..] {
        [] => Err(format!("`{name}`: {problem}")),
        [value] => Ok(value),
        _ => Err(format!("`{name}` differs between parts; write PART.{name} for each part")),
    }
}

fn value_in(part: &Part<'_, '_>, group: Group, field: &str) -> Result<f64, String> {
    if group == Group::Hardware {
        let all = serde_json::to_value(&part.hardware).unwrap_or_default();
        let Some(value) = all.get(field) else {
            let known = all.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
            return Err(format!("unknown field; hardware has {}", known.unwrap_or_default().join(", ")));
        };
        return value.as_f64().ok_or_else(not_a_number);
    }
    let table = part.written.layer.group(group);
    match table.get(field).map(toml::Spanned::get_ref) {
        Some(DeValue::Integer(number)) => number.as_str().parse().map_err(|_| not_a_number()),
        Some(DeValue::Float(number)) => number.as_str().parse().map_err(|_| not_a_number()),
        Some(_) => Err(not_a_number()),
        None => {
            let known: Vec<&str> = table.keys().map(|key| &**key.get_ref()).collect();
            Err(format!("not set in the part's {}, which has {}", group.name(), known.join(", ")))
        }
    }
}

fn not_a_number() -> String {
    "is not a number; parameters must be numbers".to_owned()
}
