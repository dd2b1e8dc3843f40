//! Changes to a machine that a user asks about: other settings, and nodes that leave.
//!
//! Related files: `explain.rs` and `machine.rs` show a machine before and after the changes.

use std::fmt;

use clap::Args;
use zonal::Config;
use zonal::settings::{Access, Setting, SettingValue};
use zonal::units::NodeId;
use zonal_machine::{MachineModel, Rules, Settings};

use crate::outcome::Failure;
use crate::values::one_node;

/// The changes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Show what another value of a setting would change, as in zone_reclaim_mode=1; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    set: Vec<(Setting, String)>,

    /// Show what would change if this node left; can be repeated
    #[arg(long, value_name = "NODE", value_parser = one_node, allow_hyphen_values = true)]
    without: Vec<NodeId>,
}

/// Reads NAME=VALUE, and checks both against the table of settings.
pub(crate) fn assignment(text: &str) -> Result<(Setting, String), String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NAME=VALUE, as in zone_reclaim_mode=1"));
    };
    let setting = Setting::named(name.trim()).map_err(|error| error.to_string())?;
    setting.parse(value).map_err(|error| error.to_string())?;
    if setting.info().access == Access::WriteOnly {
        return Err(format!("{name} is an action; it must be a setting with a value"));
    }
    Ok((setting, value.trim().to_owned()))
}

impl Changes {
    /// Adds a setting.
    pub(crate) fn and(mut self, setting: Setting, value: Option<&String>) -> Self {
        self.set.extend(value.map(|value| (setting, value.clone())));
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.set.is_empty() && self.without.is_empty()
    }

    /// Returns the changed machine.
    pub(crate) fn machine(&self, model: &MachineModel) -> Result<MachineModel, Failure> {
        let mut changed = model.clone();
        for (setting, text) in self.set.iter().filter(|(setting, _)| Settings::ALL.contains(setting)) {
            let value = setting.parse(text).map_err(Failure::bad_input)?;
            set(&mut changed.settings, *setting, value)?;
            changed.forget_values();
        }
        for &node in &self.without {
            let left = changed.without(node);
            changed = left.map_err(|problem| Failure::bad_input(format!("--without: {problem}")))?;
        }
        Ok(changed)
    }

    /// Returns the configuration with the settings that are not those of a machine.
    pub(crate) fn config(&self, mut config: Config) -> Result<Config, Failure> {
        for (setting, value) in self.set.iter().filter(|(setting, _)| !Settings::ALL.contains(setting)) {
            let set = config.set(setting.info().name, value);
            set.map_err(|error| Failure::bad_input(format!("--set: {error}")))?;
        }
        Ok(config)
    }

    /// Checks that a kernel with these rules has all settings and accepts their values.
    pub(crate) fn check_kernel(&self, rules: &Rules) -> Result<(), Failure> {
        let has = |setting: &Setting| Settings::ALL.contains(setting) && rules.has(*setting);
        for (setting, value) in &self.set {
            let name = setting.info().name;
            if !has(setting) {
                let all = Settings::ALL.iter().filter(|setting| has(setting));
                let all: Vec<&str> = all.map(|setting| setting.info().name).collect();
                let (version, all) = (rules.version, all.join(", "));
                let problem = format!("--set: Linux {version} does not have {name}; it has {all}");
                return Err(Failure::bad_input(problem));
            }
            let is_refused = matches!(setting.parse(value), Ok(SettingValue::Number(1..=7)));
            if is_refused && *setting == Setting::PercpuPagelistHighFraction {
                let problem = format!("--set: {name} cannot be {value}; kernels accept 0 and numbers from 8");
                return Err(Failure::bad_input(problem));
            }
        }
        Ok(())
    }
}

fn set(settings: &mut Settings, setting: Setting, value: SettingValue) -> Result<(), Failure> {
    let numbers: Vec<u64> = match value {
        SettingValue::Number(number) => vec![number],
        SettingValue::PerKind(ratios) => ratios.map(u64::from).to_vec(),
        SettingValue::Auto => {
            settings.min_free_kib = None; // the only setting of a machine that can be computed
            return Ok(());
        }
        SettingValue::Name(_) | SettingValue::None => return Ok(()),
    };
    settings.set(setting, &numbers).map_err(|problem| Failure::bad_input(format!("--set: {problem}")))
}

/// Begins a sentence about the changed machine: `With zone_reclaim_mode = 1 and without node 3`.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.set.iter().map(|(setting, value)| format!("{} = {value}", setting.info().name));
        let nodes = self.without.iter().map(|node| format!("node {node}"));
        let [settings, nodes] =
            [settings.collect::<Vec<_>>(), nodes.collect()].map(|words| words.join(" and "));
        match (settings.is_empty(), nodes.is_empty()) {
            (false, false) => write!(f, "With {settings} and without {nodes}"),
            (false, true) => write!(f, "With {settings}"),
            (true, _) => write!(f, "Without {nodes}"),
        }
    }
}
