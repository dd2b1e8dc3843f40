//! Options of `zonal run` that choose the allocator's rules and settings.
//!
//! Related files: `zonal::settings` has the values, ranges and defaults of the settings, and `values/rules.rs` parses the
//! rules for zoned counters, which the table does not have.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use zonal::Config;
use zonal::settings::{Setting, SettingValues};
use zonal_linux::Pool;

use crate::values::node_reclaim_mode;
use crate::values::rules::Counters;

/// An option for a setting. Both have the same default.
pub(super) struct SettingOption {
    pub(super) setting: Setting,
    pub(super) name: &'static str,
    value_name: &'static str,
    help: &'static str,
}

/// Declares the options, whose help is their documentation.
macro_rules! options {
    ($($(#[doc = $help:literal])* $setting:ident, $name:literal, $value_name:literal;)*) => {
        /// The options, as help and reports list them.
        pub(super) const OPTIONS: [SettingOption; [$($name),*].len()] = [$(SettingOption {
            setting: Setting::$setting,
            name: $name,
            value_name: $value_name,
            help: concat!($($help),*),
        }),*];
    };
}

options! {
    /// How the size of per-CPU pagesets is tuned
    PagesetTuning, "tuning", "HOW";

    /// Fix pageset sizes at 1/F of each zone, divided among the CPUs of its node; 0 tunes it
    PercpuPagelistHighFraction, "high-fraction", "F";

    /// How full zones are remembered
    ZonelistCache, "zonelist-cache", "HOW";

    /// Reclaim nearby nodes before falling back to others: on, off, or a value of Linux's
    /// zone_reclaim_mode (0 to 7)
    ZoneReclaimMode, "node-reclaim", "MODE";

    /// Do not reclaim nodes farther away than D, from 0 to 255; a node's distance to itself is 10. The
    /// zonelist cache modes published, cache-first, original and 2006 ignore it
    ReclaimDistance, "reclaim-distance", "D";

    /// Do not reclaim a node unless more than this percentage of its memory is reclaimable
    MinUnmappedRatio, "min-unmapped", "PERCENT";

    /// How node load grows while fallback orders are built
    NodeLoad, "node-load", "RULE";

    /// How invalid frees are detected: with plain loads and stores, so that an invalid free that races with a
    /// valid one may be detected late (checked), or with one atomic exchange per free (exact)
    InvalidFree, "invalid-free", "HOW";

    /// Whether CPUs own whole blocks of 2 MiB, which they split themselves
    OwnedBlocks, "owned-blocks", "HOW";
}

const COUNTERS: &str = "counters";

impl SettingOption {
    fn arg(&self) -> Arg {
        let (setting, info) = (self.setting, self.setting.info());
        let has_words = setting == Setting::ZoneReclaimMode;
        let parser = match info.values {
            SettingValues::Names(names) => PossibleValuesParser::new(names).into(),
            _ if has_words => ValueParser::new(node_reclaim_mode),
            _ => ValueParser::new(move |text: &str| setting.parse(text).map(|value| value.to_string())),
        };
        Arg::new(self.name)
            .long(self.name)
            .value_name(self.value_name)
            .help(self.help.trim_start())
            .default_value(if has_words { "off" } else { info.default })
            .allow_hyphen_values(info.values.range().is_some() && !has_words)
            .value_parser(parser)
    }
}

/// The allocator's rules and settings; each default is that of [`Pool::default_config`].
#[derive(Clone, Debug)]
pub(crate) struct AllocatorArgs {
    settings: Vec<(Setting, String)>,
    counters: Counters,
}

impl AllocatorArgs {
    /// Returns the configuration that the options describe, for a pool with this many bytes or the default size.
    pub(super) fn config(&self, bytes: Option<u64>) -> Config {
        let mut config = Config { counters: self.counters.0, ..Pool::default_config(bytes) };
        for (setting, value) in &self.settings {
            config.set(setting.info().name, value).expect("the option's parser has checked the value");
        }
        config
    }
}

impl Args for AllocatorArgs {
    fn augment_args(command: Command) -> Command {
        let counters = Arg::new(COUNTERS)
            .long(COUNTERS)
            .value_name("RULE")
            .help(
                "How far the counters of a CPU may differ: scaled with the machine, first-posting (scaled as first \
                 posted in 2006: at most 120, by present memory) or fixed:N; then any of ,to-zero (folds do not \
                 overstep), ,and-machine (with totals of the machine) and ,unchanged (not lowered under pressure)",
            )
            .default_value("scaled")
            .allow_hyphen_values(true)
            .value_parser(clap::value_parser!(Counters));
        let mut args: Vec<Arg> = OPTIONS.iter().map(SettingOption::arg).collect();
        args.insert(args.len() - 1, counters);
        command.next_help_heading("Rules and settings of the allocator").args(args)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AllocatorArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let value = |option: &SettingOption| {
            matches.get_one(option.name).map(|text: &String| (option.setting, text.clone()))
        };
        let counters = matches.get_one(COUNTERS).copied().unwrap_or(Counters(Config::default().counters));
        Ok(Self { settings: OPTIONS.iter().filter_map(value).collect(), counters })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        allocator: AllocatorArgs,
    }

    fn config(option: &SettingOption, value: &str) -> Result<Config, String> {
        let line = Line::try_parse_from(["zonal".to_owned(), format!("--{}={value}", option.name)]);
        line.map(|line| line.allocator.config(None)).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_library() {
        assert_eq!(Line::parse_from(["zonal"]).allocator.config(None), Pool::default_config(None));
    }

    #[test]
    fn every_option_takes_the_values_of_its_setting_and_no_others() {
        for option in &OPTIONS {
            let info = option.setting.info();
            let (right, wrong): (Vec<String>, Vec<String>) = match (info.values.range(), info.values) {
                (Some(range), _) => {
                    let above = u128::from(*range.end()) + 1;
                    (
                        vec![range.start().to_string(), format!(" {} ", range.end())],
                        vec![
                            (i128::from(*range.start()) - 1).to_string(),
                            above.to_string(),
                            "1.5".to_owned(),
                        ],
                    )
                }
                (None, SettingValues::Names(names)) => {
                    (names.iter().map(ToString::to_string).collect(), vec!["no such name".to_owned()])
                }
                (None, values) => panic!("{}: {values}", option.name),
            };
            for value in right {
                let set = config(option, &value).unwrap();
                assert_eq!(set.get(option.setting).to_string(), value.trim(), "{}", option.name);
            }
            for value in wrong.iter().chain(&[String::new()]) {
                let error = config(option, value).unwrap_err();
                assert!(error.contains(option.name) && error.contains(value), "{error}");
                if info.values.range().is_some() {
                    let text = format!("{} cannot be `{value}`; allowed: {}", info.name, info.values);
                    assert!(error.contains(&text), "{error}");
                }
            }
        }
    }

    #[test]
    fn node_reclaim_is_also_set_by_words() {
        let option = OPTIONS.iter().find(|option| option.name == "node-reclaim").unwrap();
        for (text, mode) in [("on", 1), (" off ", 0), ("5", 5)] {
            assert_eq!(config(option, text).unwrap().node_reclaim.mode(), mode, "{text}");
        }
        let error = config(option, "9").unwrap_err();
        assert!(
            error.contains("zone_reclaim_mode cannot be `9`; allowed: a number from 0 to 7, on or off"),
            "{error}"
        );
        for text in ["ON", "yes", "4294967296"] {
            config(option, text).unwrap_err();
        }
    }
}
