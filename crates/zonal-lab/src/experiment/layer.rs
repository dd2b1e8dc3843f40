//! Layers of settings. A case's settings override those of its part, and the settings of a variant override both.
//!
//! A setting keeps its location in the file so that an error can name the line. Related files: `experiment/cases.rs`
//! and `experiment/file.rs` create layers, `experiment/resolve.rs` reads the combined settings.

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::DeValue;

use super::document::{Document, FileError, Key, Span, Table, Value, table_of};

/// The target of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// A field of `sim::Hardware`.
    Hardware,
    /// A setting of the allocator.
    Config,
    /// A field of the workload.
    Workload,
}

impl Group {
    /// Returns the group's name in files.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Config => "config",
            Self::Workload => "workload",
        }
    }

    /// Returns the group that a key prefix names, such as `config` in `config.tuning`.
    pub(super) fn named(name: &str) -> Option<Self> {
        [Self::Hardware, Self::Config, Self::Workload].into_iter().find(|group| group.name() == name)
    }
}

/// A single setting.
#[derive(Clone, Debug)]
pub(super) struct Setting<'t> {
    pub(super) group: Group,
    pub(super) key: Key<'t>,
    pub(super) value: Value<'t>,
}

impl Setting<'_> {
    /// Returns the column name of the setting. The group is a prefix of the name, except for fields of workloads.
    pub(super) fn name(&self) -> String {
        match self.group {
            Group::Workload => self.key.get_ref().to_string(),
            group => format!("{}.{}", group.name(), self.key.get_ref()),
        }
    }
}

/// Settings of all groups.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer<'t> {
    hardware: Table<'t>,
    config: Table<'t>,
    workload: Table<'t>,
}

impl<'t> Layer<'t> {
    pub(super) fn group(&self, group: Group) -> &Table<'t> {
        match group {
            Group::Hardware => &self.hardware,
            Group::Config => &self.config,
            Group::Workload => &self.workload,
        }
    }

    fn group_mut(&mut self, group: Group) -> &mut Table<'t> {
        match group {
            Group::Hardware => &mut self.hardware,
            Group::Config => &mut self.config,
            Group::Workload => &mut self.workload,
        }
    }

    /// Sets or overrides a setting.
    pub(super) fn set(&mut self, setting: Setting<'t>) {
        let table = self.group_mut(setting.group);
        // The key is removed first, because inserting it alone would keep the location of the overridden key.
        table.remove(&*setting.key.get_ref().clone());
        table.insert(setting.key, setting.value);
    }

    /// Sets or overrides all settings of a table.
    pub(super) fn set_all(&mut self, group: Group, table: Table<'t>) {
        table.into_iter().for_each(|(key, value)| self.set(Setting { group, key, value }));
    }

    /// Returns this layer with the settings of `top` as overrides.
    pub(super) fn under(&self, top: &Self) -> Self {
        let mut both = self.clone();
        for group in [Group::Hardware, Group::Config, Group::Workload] {
            both.set_all(group, top.group(group).clone());
        }
        both
    }

    /// Deserializes a group; `span` is the location reported for missing keys.
    pub(super) fn read<T: DeserializeOwned>(
        &self,
        document: Document<'t>,
        group: Group,
        span: Span,
    ) -> Result<T, FileError> {
        document.read_table(Spanned::new(span, self.group(group).clone()))
    }

    /// Deserializes the settings of a `kind` workload.
    pub(super) fn read_kind<T: DeserializeOwned>(
        &self,
        document: Document<'t>,
        kind: &str,
        span: Span,
    ) -> Result<T, FileError> {
        let mut table = Table::new();
        let fields = DeValue::Table(self.workload.clone());
        table.insert(Spanned::new(span.clone(), kind.to_owned().into()), Spanned::new(span.clone(), fields));
        document.read_table(Spanned::new(span, table))
    }

    /// Returns the layer of a program among several: with its own fields, without its name as prefix.
    pub(super) fn of_program(&self, name: &str) -> Self {
        let mut layer = Self { workload: Table::new(), ..self.clone() };
        for (key, value) in &self.workload {
            if let Some(field) = key.get_ref().strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) {
                let key = Spanned::new(key.span(), field.to_owned().into());
                layer.set(Setting { group: Group::Workload, key, value: value.clone() });
            }
        }
        layer
    }

    /// Returns the location at which a key was set.
    pub(super) fn place(&self, group: Group, key: &str) -> Option<Span> {
        self.group(group).get_key_value(key).map(|(key, _)| key.span())
    }
}

/// Returns the settings of a table. A key may have a group as prefix, as in `config.tuning`, quoted or not.
pub(super) fn settings<'t>(document: Document<'t>, table: Table<'t>) -> Result<Vec<Setting<'t>>, FileError> {
    let mut found = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().clone();
        match (Group::named(&name), name.split_once('.')) {
            (Some(group), _) => {
                let inner = table_of(document, &name, value)?.into_inner();
                found.extend(inner.into_iter().map(|(key, value)| Setting { group, key, value }));
            }
            (None, Some((prefix, field))) if Group::named(prefix).is_some() => {
                let key = Spanned::new(key.span(), field.to_owned().into());
                found.extend(Group::named(prefix).map(|group| Setting { group, key, value }));
            }
            // A program's field, if there are several programs: `web.pairs`.
            (None, None) if matches!(value.get_ref(), DeValue::Table(_)) => {
                for (field, value) in table_of(document, &name, value)?.into_inner() {
                    let key = Spanned::new(field.span(), format!("{name}.{}", field.get_ref()).into());
                    found.push(Setting { group: Group::Workload, key, value });
                }
            }
            (None, _) => found.push(Setting { group: Group::Workload, key, value }),
        }
    }
    Ok(found)
}
