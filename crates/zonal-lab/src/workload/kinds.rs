//! The kinds of workloads and their keys, derived from the types.
//!
//! Related files: `experiment/guide.rs` shows them to people.

use schemars::{JsonSchema, Schema, schema_for};
use serde_json::Value;

use super::{
    Build, Copies, Exchange, FallbackList, FileWriters, FirstTouch, Hog, MappedWriter, Overflow, PageFaults,
    Stream,
};
use crate::sim::Hardware;

/// A table of an experiment file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keys {
    /// Kind of the workload, or `hardware`.
    pub name: &'static str,
    /// Description.
    pub about: String,
    /// Its keys, those that must be present first.
    pub keys: Vec<KeyInfo>,
}

/// A key of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyInfo {
    /// Name in files.
    pub name: String,
    /// Type of the value, such as `number`.
    pub value: String,
    /// Description.
    pub about: String,
    /// Whether the key must be present.
    pub required: bool,
}

/// Returns all kinds of workloads, in the order of [`Workload::KINDS`](super::Workload::KINDS).
#[must_use]
pub fn kinds() -> Vec<Keys> {
    vec![
        keys::<FirstTouch>("first-touch"),
        keys::<Hog>("hog"),
        keys::<PageFaults>("page-faults"),
        keys::<Build>("build"),
        keys::<Exchange>("exchange"),
        keys::<Stream>("stream"),
        keys::<FallbackList>("fallback-list"),
        keys::<FileWriters>("file-writers"),
        keys::<Copies>("copies"),
        keys::<MappedWriter>("mapped-writer"),
        keys::<Overflow>("overflow"),
    ]
}

/// Returns the hardware costs.
#[must_use]
pub fn hardware_keys() -> Keys {
    keys::<Hardware>("hardware")
}

fn keys<T: JsonSchema>(name: &'static str) -> Keys {
    let schema: Schema = schema_for!(T);
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(plain).unwrap_or_default();
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let fields = schema.get("properties").and_then(Value::as_object);
    let mut keys: Vec<KeyInfo> = fields
        .into_iter()
        .flatten()
        .map(|(name, field)| KeyInfo {
            name: name.clone(),
            value: value_of(field),
            about: text(field.get("description")),
            required: required.contains(&&**name),
        })
        .collect();
    // Required keys are listed in the order of the fields.
    keys.sort_by_key(|key| required.iter().position(|name| *name == key.name).unwrap_or(required.len()));
    Keys { name, about: text(schema.get("description")), keys }
}

/// Returns the type of a field's value.
fn value_of(field: &Value) -> String {
    let kind = match field.get("type") {
        Some(Value::Array(types)) => types.first(),
        other => other,
    };
    match kind.and_then(Value::as_str) {
        Some("integer") => "whole number".to_owned(),
        Some("array") => "list".to_owned(),
        Some("string") => "text".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "name".to_owned(),
    }
}

/// Returns the text of a comment on one line, with field names instead of links.
fn plain(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.replace("[`Self::", "`").replace("[`Hardware::", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn every_kind_and_key_is_described() {
        let kinds = kinds();
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
        assert_eq!(names, Workload::KINDS);
        for kind in kinds.into_iter().chain([hardware_keys()]) {
            assert!(kind.about.ends_with('.') && !kind.keys.is_empty(), "{kind:?}");
            for key in kind.keys {
                assert!(key.about.ends_with('.') && !key.about.contains('['), "{key:?}");
            }
        }
        let hog = &self::kinds()[1];
        let first = &hog.keys[0];
        assert_eq!((&*first.name, &*first.value, first.required), ("threads", "whole number", true));
        assert!(first.about.starts_with("Threads, each on its own CPU"), "{first:?}");
        let optional = |kind: &Keys| kind.keys.iter().filter(|key| !key.required).count();
        assert_eq!(
            self::kinds().iter().map(optional).sum::<usize>(),
            4,
            "policy, own_lists, core_gain, seconds"
        );
    }
}
