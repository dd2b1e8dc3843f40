//! Checks that values that a kernel computed at boot from fewer frames are distinguished from other differences.
//!
//! `tests/boot_memory` contains the values that Debian's kernels 6.1 and 6.12 reported after a boot with an initial
//! file system of 45 MB, and again after settings had been read and written.

use std::fs;
use std::path::Path;

use zonal::units::{PageCount, ZoneKind};
use zonal_machine::{KernelVersion, MachineModel, ObservedZone, Report, Rules, explain, predict};

fn machines(folder: &str) -> Vec<MachineModel> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| MachineModel::read(&file).unwrap()).collect()
}

fn captured(name: &str) -> MachineModel {
    machines("boot_memory").into_iter().find(|model| model.name == name).unwrap()
}

fn rules_of(model: &MachineModel) -> Rules {
    Rules::of(model.observed.as_ref().unwrap().kernel.unwrap())
}

fn report(model: &MachineModel) -> Report {
    explain(model, &rules_of(model))
}

/// Returns the numbers of checks that agree, that are as at boot, and that differ.
fn counts(report: &Report) -> [usize; 3] {
    let count =
        |wanted: fn(&zonal_machine::Check) -> bool| report.checks.iter().filter(|c| wanted(c)).count();
    let counts = [count(|c| c.same), count(|c| c.as_at_boot), count(zonal_machine::Check::differs)];
    assert_eq!(counts.iter().sum::<usize>(), report.checks.len(), "each check has one outcome");
    counts
}

/// Returns `model` with the values that its kernel would report if it had computed them while some zones had `fewer`
/// frames each.
fn booted_with_fewer(model: &MachineModel, fewer: &[(usize, u64)]) -> MachineModel {
    let mut then = model.clone();
    for &(at, frames) in fewer {
        then.zones[at].managed = then.zones[at].managed.saturating_minus(PageCount::new(frames));
    }
    let predicted = predict(&then, &rules_of(model)).zones;
    let mut model = model.clone();
    for seen in &mut model.observed.as_mut().unwrap().zones {
        let at =
            model.zones.iter().position(|zone| (zone.node, zone.kind) == (seen.node, seen.kind)).unwrap();
        let (marks, limits) = (predicted[at].watermarks, predicted[at].limits);
        let replace = |value: &mut Option<PageCount>, by| *value = value.and(Some(by));
        replace(&mut seen.min, marks.min);
        replace(&mut seen.low, marks.low);
        replace(&mut seen.high, marks.high);
        replace(&mut seen.batch, limits.batch);
        replace(&mut seen.pageset_high, limits.high_min);
        replace(&mut seen.pageset_high_min, limits.high_min);
        replace(&mut seen.pageset_high_max, limits.high_max);
        seen.protection = seen.protection.and(Some(predicted[at].protection));
        seen.stat_threshold = seen.stat_threshold.and(Some(predicted[at].stat_threshold));
    }
    model
}

#[test]
fn real_kernels_after_an_initial_file_system_of_45_mb() {
    // The log of each kernel reports the KiB that it freed later: the initial file system on node 3, and initialisation
    // code and gaps on node 0.
    for (name, outcomes, on_node_3, on_node_0) in [
        ("linux-6.1-quad-initrd", [18, 21, 0], 45884, 2036 + 2612 + 2040 + 1892),
        ("linux-6.12-quad-initrd", [18, 16, 0], 45884, 2028 + 4024 + 1376),
        ("linux-6.12-quad-initrd-reserves-read", [19, 15, 0], 45884, 2028 + 4024 + 1376),
    ] {
        let found = report(&captured(name));
        assert_eq!(counts(&found), outcomes, "{name}");
        let at_boot = found.at_boot.unwrap();
        let freed = (on_node_3 + on_node_0) / 4;
        assert!((at_boot.fewer..=at_boot.fewer_at_most).contains(&freed), "{freed} of {at_boot:?}");
        assert_eq!(at_boot.explained, outcomes[1]);
        let zones: Vec<_> = at_boot.zones.iter().map(|zone| (zone.node, zone.kind)).collect();
        assert_eq!(zones, [(0, "DMA32"), (3, "DMA32")], "{name}");
        let near = |found: u64, freed: u64| found.abs_diff(freed / 4) < 256;
        assert!(near(at_boot.zones[0].fewer, on_node_0), "{at_boot:?}");
        assert!(near(at_boot.zones[1].fewer, on_node_3), "{at_boot:?}");
        assert!(at_boot.recomputed_by[0].contains("vm.watermark_scale_factor"), "{at_boot:?}");
    }
}

#[test]
fn values_explained_at_boot_were_recomputed_after_writing_the_setting() {
    // The same guest after a write to vm.watermark_scale_factor has all values as predicted.
    let before = report(&captured("linux-6.12-quad-initrd"));
    let after = captured("linux-6.12-quad-initrd-marks-written");
    assert_eq!(counts(&report(&after)), [34, 0, 0]);
    assert_eq!(report(&after).at_boot, None);
    for (before, after) in before.checks.iter().zip(report(&after).checks) {
        assert_eq!((&before.what, &before.predicted), (&after.what, &after.observed));
    }
}

/// Tests every machine of `oracle` with `fewer` frames less in one zone, zone by zone. Returns the numbers of cases
/// that were explained, that had too few differing values for an explanation, and that had no differing value.
fn one_zone_at_a_time(fewer: u64) -> [usize; 3] {
    let mut outcomes = [0; 3];
    for model in machines("oracle") {
        for at in 0..model.zones.len() {
            if model.zones[at].managed.get() < 2 * fewer {
                continue;
            }
            let found = report(&booted_with_fewer(&model, &[(at, fewer)]));
            let Some(at_boot) = &found.at_boot else {
                outcomes[if counts(&found)[2] > 0 { 1 } else { 2 }] += 1;
                continue;
            };
            assert_eq!(counts(&found)[2], 0, "{} zone {at}: {at_boot:?}", model.name);
            let total = at_boot.fewer..=at_boot.fewer_at_most;
            let movable = model.zones[at].kind == ZoneKind::Movable;
            assert!(movable || total.contains(&fewer), "{} zone {at}: {at_boot:?}", model.name);
            outcomes[0] += 1;
        }
    }
    outcomes
}

#[test]
fn fewer_frames_in_one_zone_are_found() {
    let found = [300, 11_471, 60_000].map(one_zone_at_a_time);
    // On some machines, one MiB changes at most one value, and one value is not enough evidence.
    assert_eq!(found, [[691, 21, 5], [554, 0, 0], [291, 0, 0]]);
}

/// A machine of one zone can be searched exhaustively, which shows that the bounds are neither too wide nor too narrow.
#[test]
fn the_bounds_of_one_zone_are_exact() {
    let text = r#"{"name": "one", "page_bytes": 4096, "nodes": [{"id": 0, "cpus": [0, 1], "distances": {"0": 10}}],
        "zones": [{"node": 0, "kind": "Normal", "start": 0, "spanned": 262144, "present": 262144, "managed": 250000}],
        "settings": {"min_free_kbytes": 4000, "percpu_pagelist_high_fraction": 8, "watermark_scale_factor": 100},
        "observed": {"kernel": "6.12", "zones": [{"node": 0, "kind": "Normal", "min": 0, "low": 0, "high": 0,
            "batch": 0, "pageset_high_min": 0, "pageset_high_max": 0, "stat_threshold": 0}]}}"#;
    let model = MachineModel::from_json(text, "one").unwrap();
    for fewer in [700, 5000, 20_001, 77_777] {
        let booted = booted_with_fewer(&model, &[(0, fewer)]);
        let explains = |&frames: &u64| booted_with_fewer(&model, &[(0, frames)]).observed == booted.observed;
        let [least, most] = [(0..=fewer).find(explains), (fewer..125_000).take_while(explains).last()];
        let at_boot = report(&booted).at_boot.unwrap();
        assert_eq!([Some(at_boot.fewer), Some(at_boot.fewer_at_most)], [least, most], "{fewer} fewer");
    }
}

#[test]
fn fewer_frames_in_several_zones_are_found() {
    for (name, fewer) in [
        ("quad-10-12-32", vec![(1, 1857), (4, 11_471)]),
        ("sgi28-fattree", vec![(1, 1857), (9, 4000), (20, 20_000)]),
        ("epyc8-nps4", vec![(1, 20_000), (2, 300), (5, 5000), (7, 900)]),
    ] {
        for model in machines("oracle").into_iter().filter(|model| model.name == name) {
            let found = report(&booted_with_fewer(&model, &fewer));
            assert_eq!(counts(&found)[2], 0, "{name}: {:?}", found.at_boot);
            let (at_boot, total) = (found.at_boot.unwrap(), fewer.iter().map(|(_, frames)| frames).sum());
            assert!((at_boot.fewer..=at_boot.fewer_at_most).contains(&total), "{name}: {at_boot:?}");
        }
    }
}

fn changed(model: &MachineModel, change: impl Fn(&mut ObservedZone)) -> MachineModel {
    let mut model = model.clone();
    change(model.observed.as_mut().unwrap().zones.last_mut().unwrap());
    model
}

#[test]
fn values_that_no_smaller_machine_explains_differ() {
    let model = captured("linux-6.12-quad-initrd");
    let up = |value: &mut Option<PageCount>, by| *value = value.map(|pages| PageCount::new(pages.get() + by));
    let down =
        |value: &mut Option<PageCount>, by| *value = value.map(|p| p.saturating_minus(PageCount::new(by)));
    let changes: [(&str, MachineModel); 9] = [
        ("one mark", changed(&model, |zone| up(&mut zone.low, 1))),
        (
            "marks too far apart",
            changed(&model, |zone| [&mut zone.low, &mut zone.high].into_iter().for_each(|m| up(m, 9))),
        ),
        (
            "shares that do not add up",
            changed(&model, |zone| {
                [&mut zone.min, &mut zone.low, &mut zone.high].into_iter().for_each(|m| up(m, 40));
            }),
        ),
        (
            "shares that leave some of the minimum",
            changed(&model, |zone| {
                [&mut zone.min, &mut zone.low, &mut zone.high].into_iter().for_each(|m| down(m, 40));
            }),
        ),
        ("a batch", changed(&model, |zone| up(&mut zone.batch, 32))),
        ("a threshold", changed(&model, |zone| zone.stat_threshold = Some(20))),
        (
            "a reserve of nothing",
            changed(&model, |zone| zone.protection = Some([0, 0, 7, 7, 7].map(PageCount::new))),
        ),
        ("another scale factor", {
            let mut model = model.clone();
            model.settings.watermark_scale_factor = 200;
            model
        }),
        ("another minimum", {
            let mut model = model.clone();
            model.settings.min_free_kib = model.settings.min_free_kib.map(|kib| kib * 19 / 20);
            model
        }),
    ];
    for (what, model) in changes {
        let found = report(&model);
        assert_eq!(found.at_boot, None, "{what}");
        let [_, explained, differ] = counts(&found);
        assert!(explained == 0 && differ > 10, "{what}");
    }
}

#[test]
fn a_single_value_is_not_explained_by_boot() {
    // A single smaller reserve or threshold is no evidence, because some number of frames would explain any such value.
    let model = captured("linux-6.12-quad-initrd-marks-written");
    let threshold = changed(&model, |zone| zone.stat_threshold = Some(12));
    let mut reserve = model;
    reserve.observed.as_mut().unwrap().zones[0].protection =
        Some([0, 443, 443, 443, 443].map(PageCount::new));
    for model in [threshold, reserve] {
        let found = report(&model);
        assert_eq!((counts(&found), found.at_boot), ([33, 0, 1], None));
    }
}

#[test]
fn differences_of_another_version_are_not_attributed_to_boot() {
    let versions = [(5, 10), (6, 1), (6, 12), (7, 2)].map(|(major, minor)| KernelVersion::new(major, minor));
    for model in machines("oracle") {
        for version in versions {
            let found = explain(&model, &Rules::of(version));
            assert_eq!(found.at_boot, None, "{} under the rules of {version}", model.name);
        }
    }
}
