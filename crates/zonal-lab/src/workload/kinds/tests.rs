//! Compares `workload/kinds.json` with the types.

use std::path::Path;

use schemars::{JsonSchema, Schema, schema_for};
use serde_json::Value;
use zonal_testing::assert_generated;

use super::*;
use crate::sim::Hardware;
use crate::workload::{
    Build, Copies, Exchange, FallbackList, FileWriters, FirstTouch, Hog, MappedWriter, Overflow, PageFaults,
    Stream, Workload,
};

fn derived() -> Tables {
    let kinds = vec![
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
    ];
    Tables { kinds, hardware: keys::<Hardware>("hardware") }
}

fn keys<T: JsonSchema>(name: &str) -> Keys {
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
    Keys { name: name.to_owned(), about: text(schema.get("description")), keys }
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

#[test]
fn the_file_describes_the_types() {
    let text = serde_json::to_string_pretty(&derived()).unwrap() + "\n";
    assert_generated(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/workload/kinds.json"), &text);
}

#[test]
fn every_kind_and_key_is_described() {
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|kind| &*kind.name).collect();
    assert_eq!(names, Workload::KINDS);
    for kind in kinds.iter().chain([hardware_keys()]) {
        assert!(kind.about.ends_with('.') && !kind.keys.is_empty(), "{kind:?}");
        for key in &kind.keys {
            assert!(key.about.ends_with('.') && !key.about.contains('['), "{key:?}");
        }
    }
}
