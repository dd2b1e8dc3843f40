//! Tests of settings that are read and changed by their names.

use std::thread;

use crate::common::{Plan, TestPlatform, World};
use zonal::Config;
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::error::ConfigError;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::settings::{Access, NamedRule, Setting, SettingError, SettingValue};
use zonal::units::{Order, PageCount};

fn world() -> World {
    Plan::even(2, 2, 1 << 16).build(&Config::default())
}

/// Returns all settings that can be read, as text.
fn texts(world: &World) -> Vec<String> {
    let readable = Setting::ALL.into_iter().filter(|setting| setting.info().access != Access::WriteOnly);
    readable.map(|setting| world.allocator.setting(setting.info().name).unwrap().to_string()).collect()
}

#[test]
fn every_setting_is_read_back_as_it_was_set() {
    for (name, values) in [
        ("min_free_kbytes", ["0", "4096", "8192"].as_slice()),
        ("watermark_scale_factor", &["1", "3000", "10"]),
        ("lowmem_reserve_ratio", &["0 0 0 0", "1 2 3 4"]),
        ("movable_min", &["ordinary", "own"]),
        ("zone_reclaim_mode", &["1", "7", "0"]),
        ("reclaim_distance", &["0", "255"]),
        ("min_unmapped_ratio", &["100", "0"]),
        ("percpu_pagelist_high_fraction", &["8", "0"]),
        ("pageset_tuning", &["stepwise", "fixed", "depth"]),
        ("zonelist_cache", &["published", "cache-first", "original", "2006", "off", "on"]),
        ("stat_interval", &["1", "4294967295"]),
    ] {
        let world = world();
        let others = |world: &World| {
            let mut texts = texts(world);
            texts.remove(Setting::named(name).unwrap() as usize);
            texts
        };
        let before = others(&world);
        for value in values {
            world.allocator.set_setting(name, value).unwrap();
            assert_eq!(world.allocator.setting(name).unwrap().to_string(), *value, "{name}");
            assert_eq!(others(&world), before, "{name} changes nothing else");
        }
        let read = texts(&world);
        let value = world.allocator.setting(name).unwrap().to_string();
        world.allocator.set_setting(name, &value).unwrap();
        assert_eq!(texts(&world), read, "setting the value that was read changes nothing");
        world.check();
    }
}

#[test]
fn an_allocator_has_the_defaults_of_the_table() {
    let world = world();
    for setting in Setting::ALL {
        let info = setting.info();
        match world.allocator.setting(info.name) {
            Ok(value) if info.default == "auto" => assert_ne!(value, SettingValue::Number(0)),
            Ok(value) => assert_eq!(value.to_string(), info.default, "{setting}"),
            Err(error) => assert_eq!(error, SettingError::WriteOnly(Setting::StatRefresh)),
        }
    }
}

#[test]
fn a_change_by_name_has_the_effect_of_the_typed_method() {
    let (named, typed) = (world(), world());
    named.allocator.set_setting("zone_reclaim_mode", "5").unwrap();
    typed.allocator.set_node_reclaim(NodeReclaim::from_mode(5).unwrap());
    named.allocator.set_setting("zonelist_cache", "original").unwrap();
    typed.allocator.set_zonelist_cache(ZonelistCache::Original).unwrap();
    named.allocator.set_setting("pageset_tuning", "stepwise").unwrap();
    typed.allocator.set_tuning(PagesetTuning::Stepwise).unwrap();
    assert_eq!(named.allocator.settings(), typed.allocator.settings());

    let mins = |world: &World| world.allocator.zones().map(|zone| zone.watermarks.min.get()).sum::<u64>();
    let computed = mins(&named);
    named.allocator.set_setting("min_free_kbytes", "16387").unwrap();
    assert_eq!(mins(&named), 4096, "4096 frames of 4 KiB, rounded down");
    assert_eq!(named.allocator.setting("min_free_kbytes"), Ok(SettingValue::Number(16384)));
    named.allocator.set_setting("min_free_kbytes", "auto").unwrap();
    assert_eq!(mins(&named), computed);
    named.allocator.set_setting("stat_refresh", "1").unwrap();
}

#[test]
fn refused_changes_change_nothing() {
    let world = world();
    let before = texts(&world);
    let refused = |name: &str, text: &str| world.allocator.set_setting(name, text).unwrap_err();
    for (name, text) in [("zone_reclaim_mode", "8"), ("zonelist_cache", ""), ("lowmem_reserve_ratio", "1")] {
        assert!(matches!(refused(name, text), SettingError::Value { .. }), "{name}");
    }
    assert_eq!(refused("node_load", "assign"), SettingError::ReadOnly(Setting::NodeLoad));
    assert_eq!(refused("invalid_free", "exact"), SettingError::ReadOnly(Setting::InvalidFree));
    assert!(matches!(refused("swappiness", "60"), SettingError::Unknown { .. }));
    let too_much =
        ConfigError::MinFree { min_free: PageCount::new(1 << 18), managed: PageCount::new(1 << 17) };
    let setting = Setting::MinFreeKbytes;
    assert_eq!(refused("min_free_kbytes", "1048576"), SettingError::Refused { setting, why: too_much });
    let most = (u64::MAX >> 10).to_string();
    assert!(matches!(refused("min_free_kbytes", &most), SettingError::Refused { .. }));
    let tuning = refused("pageset_tuning", "depth-published");
    assert!(
        tuning.to_string().starts_with("pageset_tuning was not changed: the pagesets of zone"),
        "{tuning}"
    );
    assert_eq!(texts(&world), before);
}

#[test]
fn past_forms_that_are_not_linked_are_refused_at_creation_and_later() {
    let plan = Plan::even(2, 2, 1 << 16);
    let build = |config: &Config| plan.try_build(config, TestPlatform::default());
    let allocator = build(&Config::default()).unwrap();
    for zonelist_cache in [ZonelistCache::Published, ZonelistCache::CacheFirst, ZonelistCache::Original] {
        let name = zonelist_cache.name();
        let why = ConfigError::NotLinked { setting: "zonelist_cache", name };
        let config = Config { zonelist_cache, ..Config::default() };
        assert_eq!(build(&config).err(), Some(why));
        assert_eq!(allocator.set_zonelist_cache(zonelist_cache), Err(why));
        let refused = SettingError::Refused { setting: Setting::ZonelistCache, why };
        assert_eq!(allocator.set_setting("zonelist_cache", name), Err(refused));
        assert_eq!(Config::default().set("zonelist_cache", name), Err(refused));
        assert!(
            refused.to_string().contains(&format!("zonelist_cache cannot be `{name}`: that is a past form"))
        );
        let linked = Config { past: zonal_history::PAST, ..config };
        assert_eq!(build(&linked).unwrap().settings().zonelist_cache, zonelist_cache);
    }
    allocator.set_zonelist_cache(ZonelistCache::Off).unwrap();
    assert_eq!(allocator.settings().zonelist_cache, ZonelistCache::Off);
}

#[test]
fn settings_that_change_at_the_same_time_are_all_stored() {
    for _ in 0..200 {
        let world = world();
        let allocator = &world.allocator;
        thread::scope(|scope| {
            for (name, value) in [
                ("min_free_kbytes", "8192"),
                ("watermark_scale_factor", "77"),
                ("lowmem_reserve_ratio", "1 2 3 4"),
                ("movable_min", "ordinary"),
            ] {
                scope.spawn(move || allocator.set_setting(name, value).unwrap());
            }
        });
        assert_eq!(texts(&world)[..4], ["8192", "77", "1 2 3 4", "ordinary"]);
    }
}

/// The default configuration names the defaults of its parts, because constants cannot call `default`.
#[test]
fn defaults_of_the_parts_are_those_of_the_configuration() {
    let Config {
        page_bytes: 4096,
        max_order: Order::DEFAULT_MAX,
        free_area_min: _,
        high_fraction: 0,
        reclaim_distance: 30,
        min_unmapped_percent: 1,
        processes: 0,
        past: _,
        watermarks,
        node_load,
        cpu_penalty,
        tuning,
        counters,
        stat_interval,
        zonelist_cache,
        node_reclaim,
        owned_blocks,
        invalid_free,
        hardening,
        faults,
    } = Config::DEFAULT
    else {
        panic!("{:?}", Config::DEFAULT)
    };
    assert_eq!((watermarks, counters, hardening, faults), Default::default());
    assert_eq!((node_load, cpu_penalty, tuning, stat_interval), Default::default());
    assert_eq!((zonelist_cache, node_reclaim, owned_blocks, invalid_free), Default::default());
}
