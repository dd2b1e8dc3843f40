//! Tests every row in the settings table.

use crate::common::Plan;
use zonal::Config;
use zonal::settings::{Access, Setting, SettingError, SettingValue, SettingValues};
use zonal_testing::Edges;

fn edges(setting: Setting) -> Edges {
    let values = setting.info().values;
    Edges::of(values.range(), if let SettingValues::Names(names) = values { names } else { &[] })
}

/// Returns the value that is kept, as text. A size in KiB is rounded down to frames of 4 KiB.
fn kept(setting: Setting, text: &str) -> String {
    match setting.info().values {
        SettingValues::NumberOrAuto { unit: "KiB", .. } => (text.parse::<u64>().unwrap() & !3).to_string(),
        _ => text.to_owned(),
    }
}

fn with_values() -> impl Iterator<Item = Setting> {
    Setting::ALL.into_iter().filter(|setting| setting.info().access != Access::WriteOnly)
}

#[test]
fn values_are_read_back_from_their_texts() {
    for setting in with_values() {
        for text in edges(setting).right {
            let value = setting.parse(&text).unwrap();
            assert_eq!(value.to_string(), text, "{setting}");
            assert_eq!(setting.parse(&format!(" {value} ")), Ok(value), "{setting}");
        }
    }
}

#[test]
fn configurations_take_the_edges_and_nothing_beyond() {
    let linked = Config { past: zonal_history::PAST, ..Config::default() };
    for setting in with_values() {
        let info = setting.info();
        assert_eq!(Config::default().get(setting).to_string(), info.default, "{setting}");
        let Edges { right, wrong } = edges(setting);
        for text in right {
            let mut config = linked;
            config.set(info.name, &text).unwrap();
            assert_eq!(config.get(setting).to_string(), kept(setting, &text), "{setting}");
            config.set(info.name, info.default).unwrap();
            assert_eq!(config, linked, "{setting} = {text} changed another field");
        }
        for text in wrong {
            let mut config = linked;
            let error = config.set(info.name, &text).unwrap_err().to_string();
            assert_eq!(error, format!("{setting} cannot be `{text}`; allowed: {}", info.values));
            assert_eq!(config, linked, "{setting}");
        }
    }
}

#[test]
fn allocators_take_the_edges_and_nothing_beyond() {
    for setting in with_values() {
        let name = setting.info().name;
        let Edges { right, wrong } = edges(setting);
        for text in right {
            let world = Plan::even(2, 2, 1 << 16).build(&Config::default());
            let before = world.allocator.setting(name).unwrap();
            let after = match world.allocator.set_setting(name, &text) {
                Ok(()) => kept(setting, &text),
                Err(SettingError::ReadOnly(_)) if setting.info().access == Access::ReadOnly => {
                    before.to_string()
                }
                Err(error @ SettingError::Refused { .. }) => {
                    let may_be_refused =
                        [Setting::MinFreeKbytes, Setting::PagesetTuning, Setting::OwnedBlocks];
                    assert!(may_be_refused.contains(&setting), "{error}");
                    assert!(error.to_string().starts_with(name), "{error}");
                    before.to_string()
                }
                Err(error) => panic!("{error}"),
            };
            assert_eq!(world.allocator.setting(name).unwrap().to_string(), after, "{setting}");
            let current = world.allocator.settings().get(setting);
            assert!(current == SettingValue::Auto || current.to_string() == after, "{setting}");
            world.check();
        }
        let world = Plan::even(2, 2, 1 << 16).build(&Config::default());
        let before = world.allocator.settings();
        for text in wrong {
            let error = world.allocator.set_setting(name, &text).unwrap_err();
            match setting.info().access {
                Access::ReadOnly => assert_eq!(error, SettingError::ReadOnly(setting)),
                _ => assert_eq!(
                    error.to_string(),
                    format!("{setting} cannot be `{text}`; allowed: {}", setting.info().values)
                ),
            }
        }
        assert_eq!(world.allocator.settings(), before, "{setting}");
    }
}

/// Snapshots have the settings of Linux as files, in Linux's form.
#[test]
fn snapshots_have_the_settings_that_linux_has() {
    let world = Plan::even(2, 2, 1 << 16).build(&Config::default());
    let mut found = Vec::new();
    let write = |path: &dyn std::fmt::Display, text: &dyn std::fmt::Display| {
        found.push((path.to_string(), text.to_string()));
        Ok::<(), ()>(())
    };
    world.allocator.snapshot().files(write).unwrap();
    let mut count = 0;
    for (path, text) in &found {
        let Some(name) = path.strip_prefix("proc/sys/vm/") else { continue };
        let value = world.allocator.setting(name).unwrap().to_string();
        let numbers = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert!(numbers(text).starts_with(&numbers(&value)), "{name}: {text}");
        count += 1;
    }
    assert_eq!(count, 7);
}
