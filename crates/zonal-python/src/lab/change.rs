//! Puts settings into an experiment, by the names that its parameters have.
//!
//! A name is `machine`, `hardware.FIELD`, `workload.FIELD` or `config.KEY`, for all parts; with the name of a part or a
//! variant before it, only for that one. A setting that cases or variants override is refused, because it would have no
//! effect. Related files: `lab/values.rs` converts the values.

use toml::{Table, Value};

/// Key of an experiment's parts.
const PARTS: &str = "part";
/// Key of an experiment's variants.
const VARIANTS: &str = "variant";
/// Key of a part's machine.
const MACHINE: &str = "machine";
/// Groups of settings.
const GROUPS: [&str; 3] = ["hardware", "workload", "config"];

/// What a name refers to: a machine, or a key of a group.
#[derive(Clone, Copy)]
enum Setting<'n> {
    Machine,
    Key { group: &'n str, key: &'n str },
}

impl<'n> Setting<'n> {
    fn named(name: &'n str) -> Option<Self> {
        if name == MACHINE {
            return Some(Self::Machine);
        }
        let (group, key) = name.split_once('.')?;
        (GROUPS.contains(&group) && !key.is_empty()).then_some(Self::Key { group, key })
    }

    fn put(self, section: &mut Table, value: &Value) -> Result<(), String> {
        match self {
            Self::Machine => {
                section.insert(MACHINE.to_owned(), value.clone());
            }
            Self::Key { group, key } => {
                let settings = section.entry(group).or_insert_with(|| Value::Table(Table::new()));
                let settings = settings.as_table_mut().ok_or_else(|| format!("`{group}` must be a table"))?;
                settings.insert(key.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    fn is_set(self, section: &Table) -> bool {
        match self {
            Self::Machine => section.contains_key(MACHINE),
            Self::Key { group, key } => section.get(group).is_some_and(|group| group.get(key).is_some()),
        }
    }

    /// Whether the cases of a part set this key.
    fn is_axis(self, part: &Table) -> bool {
        let Self::Key { group, key } = self else { return false };
        let sets = |case: &Table| {
            let plain = group == "workload" && case.contains_key(key);
            plain || case.contains_key(&format!("{group}.{key}")) || self.is_set(case)
        };
        let list = part.get("case").and_then(Value::as_array).into_iter().flatten();
        let axes = part.get("cases").into_iter();
        list.chain(axes).filter_map(Value::as_table).any(sets)
    }
}

/// Sets `name` to `value`. Returns an error that says what is right.
pub(super) fn set(spec: &mut Table, name: &str, value: &Value) -> Result<(), String> {
    if let Some(setting) = Setting::named(name) {
        let hidden = sections(spec, VARIANTS).all(|variant| setting.is_set(variant));
        if hidden && sections(spec, VARIANTS).next().is_some() {
            return Err(format!(
                "`{name}`: every variant sets it, so it would have no effect; write VARIANT.{name}"
            ));
        }
        return set_parts(spec, name, setting, value, |_| true);
    }
    let named = name.split_once('.').and_then(|(owner, rest)| Some((owner, Setting::named(rest)?)));
    let Some((owner, setting)) = named else { return Err(unknown(spec, name)) };
    let is_owner = |section: &Table| section.get("name").and_then(Value::as_str) == Some(owner);
    let parts = sections(spec, PARTS).filter(|part| is_owner(part)).count();
    let variants = sections(spec, VARIANTS).filter(|variant| is_owner(variant)).count();
    match (parts, variants, setting) {
        (0, 0, _) => Err(unknown(spec, name)),
        (0, _, Setting::Machine | Setting::Key { group: "workload", .. }) => {
            Err(format!("`{name}`: variants have only hardware and config; write a part in place of {owner}"))
        }
        (0, _, _) => sections_mut(spec, VARIANTS)
            .filter(|variant| is_owner(variant))
            .try_for_each(|variant| setting.put(variant, value)),
        (_, 0, _) => set_parts(spec, name, setting, value, is_owner),
        _ => Err(format!("`{name}`: {owner} is both a part and a variant; rename one of them")),
    }
}

fn set_parts(
    spec: &mut Table,
    name: &str,
    setting: Setting<'_>,
    value: &Value,
    is_meant: impl Fn(&Table) -> bool,
) -> Result<(), String> {
    for part in sections_mut(spec, PARTS).filter(|part| is_meant(part)) {
        if setting.is_axis(part) {
            return Err(format!("`{name}`: the cases of the experiment set it; remove it from the cases"));
        }
        setting.put(part, value)?;
    }
    Ok(())
}

fn sections<'s>(spec: &'s Table, key: &str) -> impl Iterator<Item = &'s Table> {
    spec.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

fn sections_mut<'s>(spec: &'s mut Table, key: &str) -> impl Iterator<Item = &'s mut Table> {
    spec.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_table_mut)
}

fn unknown(spec: &Table, name: &str) -> String {
    let names = |key: &str| {
        let names = sections(spec, key).filter_map(|section| section.get("name")?.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let (parts, variants) = (names(PARTS), names(VARIANTS));
    let parts =
        if parts.is_empty() { "its part has no name".to_owned() } else { format!("parts are {parts}") };
    format!(
        "`{name}` is not a setting; write machine, hardware.FIELD, workload.FIELD or config.KEY, or put the name of a part or variant before it ({parts}; variants are {variants})"
    )
}
