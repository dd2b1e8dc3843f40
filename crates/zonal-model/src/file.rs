//! The structure of machine files: JSON with fixed keys, whose values are not checked here.
//!
//! Numbers are plain integers, as in the file. Lengths are in frames, and ids are those of the machine. Unknown keys
//! are errors.
//!
//! Related files: `resolve.rs` converts these types to a checked machine, and `export.rs` does the reverse. Captures
//! also produce these types.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zonal::settings::{Setting, SettingValues};
use zonal::units::ZoneKind;

use crate::error::MachineError;
use crate::input::{self, Limit};
use crate::model::{MachineModel, Settings};

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileMachine {
    pub(crate) name: String,
    pub(crate) page_bytes: u64,
    pub(crate) nodes: Vec<FileNode>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) possible_offline: Vec<u64>,
    pub(crate) zones: Vec<FileZone>,
    #[serde(default)]
    pub(crate) settings: FileSettings,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) observed: Option<FileObserved>,
    /// The schema. [`Exported`] writes it, as the first key of the file.
    #[serde(default, skip_serializing)]
    pub(crate) schema: FileSchema,
}

/// A machine file for writing, in which the schema is the first key.
#[derive(Serialize)]
pub(crate) struct Exported {
    pub(crate) schema: FileSchema,
    #[serde(flatten)]
    pub(crate) machine: FileMachine,
}

/// The schema of the file, which files written by hand may omit.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default)]
pub(crate) enum FileSchema {
    #[default]
    #[serde(rename = "zonal.machine-file.v1")]
    V1,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileNode {
    pub(crate) id: u64,
    pub(crate) cpus: Vec<u64>,
    pub(crate) distances: FileRow,
}

/// A distance row in the order of the file. A node that the file names twice has two entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileRow(pub(crate) Vec<(u64, i64)>);

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileZone {
    pub(crate) node: u64,
    pub(crate) kind: FileKind,
    pub(crate) start: u64,
    pub(crate) spanned: u64,
    pub(crate) present: u64,
    pub(crate) managed: u64,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(crate) enum FileKind {
    #[serde(rename = "DMA")]
    Dma,
    #[serde(rename = "DMA32")]
    Dma32,
    Normal,
    Movable,
}

/// A kernel's settings, named as in the settings table, and their numbers. Most settings have one.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileSettings(pub(crate) Vec<(Setting, Vec<u64>)>);

impl FileSettings {
    pub(crate) fn has(&self, setting: Setting) -> bool {
        self.0.iter().any(|(other, _)| *other == setting)
    }
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileObserved {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_penalty: Option<bool>,
    #[serde(default)]
    pub(crate) fallback_order: BTreeMap<u64, Vec<u64>>,
    #[serde(default)]
    pub(crate) zones: Vec<FileObservedZone>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileObservedZone {
    pub(crate) node: u64,
    pub(crate) kind: FileKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) low: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) protection: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pageset_high: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pageset_high_min: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pageset_high_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stat_threshold: Option<u8>,
}

impl MachineModel {
    /// Reads a machine file.
    ///
    /// # Errors
    /// Returns a one-line error that names the file, the field and the allowed values.
    pub fn read(path: &Path) -> Result<Self, MachineError> {
        let text = input::read_text(path, Limit::Document)
            .map_err(|source| MachineError::Read { path: path.to_owned(), source })?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Parses the text of a machine file, which errors name as `origin`.
    ///
    /// # Errors
    /// Returns a one-line error that names the file, the field and the allowed values.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, MachineError> {
        let input = &mut serde_json::Deserializer::from_str(text);
        let file: FileMachine = serde_path_to_error::deserialize(&mut *input)
            .map_err(|error| shape(origin, error.path().to_string(), error.inner()))?;
        input.end().map_err(|error| shape(origin, ".".to_owned(), &error))?;
        Self::resolve(file, origin)
    }
}

fn shape(origin: &str, path: String, error: &serde_json::Error) -> MachineError {
    let field = if path == "." { "the file".to_owned() } else { path };
    let place = (error.line(), error.column());
    MachineError::Shape { origin: origin.to_owned(), field, place, problem: error.to_string() }
}

impl From<FileKind> for ZoneKind {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Dma => Self::Dma,
            FileKind::Dma32 => Self::Dma32,
            FileKind::Normal => Self::Normal,
            FileKind::Movable => Self::Movable,
        }
    }
}

impl From<ZoneKind> for FileKind {
    fn from(kind: ZoneKind) -> Self {
        match kind {
            ZoneKind::Dma => Self::Dma,
            ZoneKind::Dma32 => Self::Dma32,
            ZoneKind::Normal => Self::Normal,
            ZoneKind::Movable => Self::Movable,
        }
    }
}

impl Serialize for FileRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (node, distance) in &self.0 {
            map.serialize_entry(node, distance)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for FileRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Row;
        impl<'de> Visitor<'de> for Row {
            type Value = FileRow;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from node ids to distances, as in {\"0\": 10, \"1\": 20}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileRow, A::Error> {
                let mut row = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    row.push(entry);
                }
                Ok(FileRow(row))
            }
        }
        deserializer.deserialize_map(Row)
    }
}

impl<'de> Deserialize<'de> for FileSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = FileSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from names of settings to values, as in {\"min_free_kbytes\": 11263}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FileSettings, A::Error> {
                let mut settings = FileSettings::default();
                while let Some(name) = map.next_key::<String>()? {
                    let setting = Setting::named(&name).map_err(A::Error::custom)?;
                    if let Some(numbers) = numbers(setting, &settings, &mut map)? {
                        settings.0.push((setting, numbers));
                    }
                }
                Ok(settings)
            }
        }
        deserializer.deserialize_map(Names)
    }
}

/// Reads the numbers of a setting.
fn numbers<'de, A: MapAccess<'de>>(
    setting: Setting,
    known: &FileSettings,
    map: &mut A,
) -> Result<Option<Vec<u64>>, A::Error> {
    if !Settings::ALL.contains(&setting) {
        return Err(A::Error::custom(format_args!("{setting} is a setting of pools; a machine has none")));
    }
    if known.has(setting) {
        return Err(A::Error::custom(format_args!("{setting} is listed twice; it must occur once")));
    }
    Ok(match setting.info().values {
        SettingValues::PerKind => {
            let numbers: Option<Vec<u32>> = map.next_value()?;
            numbers.map(|numbers| numbers.into_iter().map(u64::from).collect())
        }
        SettingValues::NumberOrAuto { .. } => map.next_value::<Option<u64>>()?.map(|number| vec![number]),
        _ => map.next_value::<Option<u32>>()?.map(|number| vec![number.into()]),
    })
}

impl Serialize for FileSettings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (setting, numbers) in &self.0 {
            match &numbers[..] {
                [number] => map.serialize_entry(setting.info().name, number)?,
                numbers => map.serialize_entry(setting.info().name, numbers)?,
            }
        }
        map.end()
    }
}
