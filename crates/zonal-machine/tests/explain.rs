//! Tests the report: fallback orders, balance, possible nodes, and advice, which must appear only when it applies.

use std::path::Path;

use zonal::settings::Setting;
use zonal::units::{NodeId, PageCount, ZoneKind};
use zonal_machine::pageset_limits::HighRule;
use zonal_machine::{
    KernelVersion, MachineModel, Presence, Report, Rules, Settings, explain, predict, preset,
};

const V5_10: KernelVersion = KernelVersion::new(5, 10);
const V6_1: KernelVersion = KernelVersion::new(6, 1);

fn newest() -> Rules {
    Rules::of(KernelVersion::NEWEST)
}

fn remarks(report: &Report) -> String {
    report.advice.iter().map(|advice| format!("{:?}: {}\n", advice.severity, advice.text)).collect()
}

fn oracle(name: &str) -> MachineModel {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle");
    MachineModel::read(&directory.join(name)).unwrap()
}

#[test]
fn balance_counts_substitutes() {
    let model = preset("quad-10-12-32").unwrap();
    let even = explain(&model, &newest());
    assert!(even.balance.iter().all(|node| node.times_nth == [1, 1, 1]), "{:?}", even.balance);
    let uneven = explain(&model, &Rules::of(V5_10));
    assert_eq!(uneven.balance[0].times_nth, [1, 2, 0]);
    assert_eq!(uneven.balance[1].times_nth, [1, 0, 2]);
    // A node without memory that is in its own list does not count as a fallback of itself.
    let bare = explain(&oracle("linux-6.1-quad-node2-cpuonly.json"), &Rules::of(V6_1));
    assert!(bare.balance.iter().all(|node| node.node != 2));
    assert_eq!(bare.balance.iter().map(|node| node.times_nth[0]).sum::<u32>(), 4);
}

#[test]
fn possible_nodes_have_lists_from_6_1_on() {
    let text = r#"{"name": "p", "page_bytes": 4096, "possible_offline": [1, 3],
        "nodes": [{"id": 0, "cpus": [0], "distances": {"0": 10, "2": 20, "3": 30}},
                  {"id": 2, "cpus": [1], "distances": {"0": 20, "2": 10, "3": 15}}],
        "zones": [{"node": 0, "kind": "Normal", "start": 0, "spanned": 9000, "present": 9000, "managed": 9000},
                  {"node": 2, "kind": "Normal", "start": 9000, "spanned": 9000, "present": 9000, "managed": 9000}],
        "observed": {"kernel": "6.12", "fallback_order": {"1": [2, 0], "3": [2, 0]}}}"#;
    let model = MachineModel::from_json(text, "p.json").unwrap();
    assert_eq!(model.nodes[1].presence, Presence::PossibleOffline);
    assert_eq!(model.nodes[1].distances, [20, 10, 20, 20]);
    assert_eq!(model.nodes[3].distances, [30, 20, 15, 10]);
    let ids = |order: &Vec<NodeId>| order.iter().map(|id| id.get()).collect::<Vec<_>>();
    let orders = predict(&model, &newest()).orders;
    // Node 0 has a lower id than node 1, which adds to its distance from node 1. Node 3 has node 2 at distance 15.
    assert_eq!(orders.iter().map(ids).collect::<Vec<_>>(), [vec![0, 2], vec![2, 0], vec![2, 0], vec![2, 0]]);
    let report = explain(&model, &newest());
    assert!(report.checks.iter().all(|check| check.same) && report.checks.len() == 2, "{:?}", report.checks);
    assert_eq!(report.nodes.len(), 2, "offline nodes are not shown as nodes");
    assert!(predict(&model, &Rules::of(V5_10)).orders[1].is_empty());
    assert_eq!(MachineModel::from_json(&model.to_json(), "again").unwrap(), model);
}

#[test]
fn json_has_the_pageset_fields_of_its_rules() {
    let model = preset("desktop").unwrap();
    let fields = |version| {
        let text = serde_json::to_value(explain(&model, &Rules::of(version))).unwrap();
        let zone = text["zones"][0].as_object().unwrap().clone();
        ["pageset_high", "pageset_high_min", "pageset_high_max"].map(|field| zone.contains_key(field))
    };
    assert_eq!(Rules::of(V6_1).high, HighRule::LowWatermark);
    assert_eq!(fields(V6_1), [true, false, false]);
    assert_eq!(fields(KernelVersion::NEWEST), [false, true, true]);
}

/// Tests the largest settings that a file may have, with zones of one frame and the maximum size, and with the smallest
/// and the largest pages.
#[test]
fn settings_beyond_all_memory_are_explained_too() {
    let largest: u64 = 1 << 52;
    let kinds = ["DMA", "DMA32", "Normal", "Movable"];
    for (page_bytes, frames) in [(4096_u64, 1_u64), (4096, 1 << 48), (1 << 30, 1), (1 << 30, 1 << 30)] {
        for (scale, ratio) in [(1_u32, 0_u32), (10, 256), (3000, 1), (3000, u32::MAX)] {
            let zones = kinds.iter().enumerate().map(|(at, kind)| {
                let start = at as u64 * frames;
                format!(
                    r#"{{"node": 0, "kind": "{kind}", "start": {start}, "spanned": {frames}, "present": {frames}, "managed": {frames}}}"#
                )
            });
            let zones = zones.collect::<Vec<_>>().join(",");
            let text = format!(
                r#"{{"name": "most", "page_bytes": {page_bytes},
                "nodes": [{{"id": 0, "cpus": [0, 1], "distances": {{"0": 10}}}}], "zones": [{zones}],
                "settings": {{"min_free_kbytes": {largest}, "watermark_scale_factor": {scale},
                    "lowmem_reserve_ratio": [{ratio}, {ratio}, {ratio}, {ratio}]}}}}"#
            );
            let model = MachineModel::from_json(&text, "most.json").unwrap();
            for rules in [Rules::of(V5_10), Rules::of(V6_1), newest()] {
                let report = explain(&model, &rules);
                assert_eq!(report.zones.len(), 4, "{text}");
                assert!(
                    remarks(&report).contains("min_free_kbytes 4503599627370496 keeps 4"),
                    "{}",
                    remarks(&report)
                );
            }
        }
    }
}

#[test]
fn ordinary_machines_get_no_advice() {
    assert_eq!(remarks(&explain(&preset("desktop").unwrap(), &newest())), "");
    let quad = remarks(&explain(&oracle("linux-6.12-quad-low.json"), &newest()));
    assert!(!quad.contains("Warn"), "{quad}");
}

/// Each machine is changed so that one piece of advice applies.
#[test]
fn each_advice_appears_on_a_machine_that_needs_it() {
    let desktop = |change: &dyn Fn(&mut MachineModel)| {
        let mut model = preset("desktop").unwrap();
        change(&mut model);
        remarks(&explain(&model, &newest()))
    };
    let quad = |version, change: &dyn Fn(&mut MachineModel)| {
        let mut model = preset("quad-10-12-32").unwrap();
        change(&mut model);
        remarks(&explain(&model, &Rules::of(version)))
    };
    let new = KernelVersion::NEWEST;
    let unchanged = quad(new, &|_| {});
    let cases = [
        (quad(V5_10, &|_| {}), "node 0 is the 2nd fallback of 2 other nodes (of 1"),
        (quad(new, &|model| model.nodes[0].distances[2] = 40), "1 pairs: 0 to 2 is 40, but 32 back"),
        (quad(new, &|model| model.settings.zone_reclaim_mode = 1), "zone_reclaim_mode is 1: nodes within 30"),
        (quad(new, &near), "no node is farther than 20"),
        (
            quad(new, &|model| model.zones.retain(|zone| zone.node.get() != 3)),
            "node 3 (16 CPUs, served by node 2",
        ),
        (quad(new, &|model| model.nodes[3].cpus.clear()), "node 3 (63 GiB, 12 from the nearest CPU)"),
        (quad(new, &star), "node 0 is the first fallback of 3 of the 3 other nodes"),
        (
            desktop(&|model| model.settings.min_free_kib = Some(2 << 20)),
            "keeps 2 GiB free, which is 12 % of the 15.8 GiB",
        ),
        (desktop(&|model| model.settings.min_free_kib = Some(1024)), "less than a quarter"),
        (desktop(&|model| model.settings.watermark_scale_factor = 1), "node 0 (4.0 MiB for 8 CPUs)"),
        (
            desktop(&|model| model.settings.high_fraction = 1),
            "pagesets may permanently hold a large part of a zone",
        ),
        (desktop(&|model| model.settings.lowmem_reserve_ratio[1] = 1), "movable requests never get a frame"),
        (desktop(&tiny_normal), "very small zones are soon exhausted"),
        (oracle_remarks("linux-6.12-duo-16cpu-pressure.json"), "16 CPUs x 30 = 480 > 99"),
    ];
    for (text, expected) in cases {
        assert!(text.contains(expected), "{expected} is not in:\n{text}");
        assert!(!unchanged.contains(expected), "{expected} appears without reason:\n{unchanged}");
    }
}

/// Each machine needs advice that names a setting in newer kernels.
#[test]
fn advice_names_only_settings_that_the_kernel_has() {
    let mut close = preset("desktop").unwrap();
    close.settings.watermark_scale_factor = 1;
    close.settings.min_free_kib = Some(1024);
    let mut cached = preset("desktop").unwrap();
    cached.settings.high_fraction = 1;
    let drifting = oracle("linux-6.12-duo-16cpu-pressure.json");
    let mut late = oracle("linux-6.1-quad-uneven.json");
    late.zones[0].managed = late.zones[0].present;
    for (major, minor) in [(3, 0), (4, 5), (4, 6), (5, 13), (5, 14), (7, 2)] {
        let rules = Rules::of(KernelVersion::new(major, minor));
        for model in [&close, &cached, &drifting, &late] {
            let report = explain(model, &rules);
            let text = remarks(&report) + &serde_json::to_string(&report.at_boot).unwrap();
            let lacks = |setting: &Setting| {
                let is_renamed = *setting == Setting::PercpuPagelistHighFraction && (major, minor) < (5, 14);
                !rules.has(*setting) || is_renamed
            };
            for setting in Settings::ALL.iter().filter(|setting| lacks(setting)) {
                assert!(!text.contains(setting.info().name), "{major}.{minor}: {text}");
            }
        }
    }
}

fn oracle_remarks(name: &str) -> String {
    remarks(&explain(&oracle(name), &newest()))
}

/// Sets all distances between nodes to 20, and switches node reclaim on.
fn near(model: &mut MachineModel) {
    model.settings.zone_reclaim_mode = 1;
    for (place, node) in model.nodes.iter_mut().enumerate() {
        node.distances = vec![20; 4];
        node.distances[place] = 10;
    }
}

/// Makes node 0 the nearest node of all others.
fn star(model: &mut MachineModel) {
    for (place, node) in model.nodes.iter_mut().enumerate() {
        node.distances = if place == 0 { vec![15; 4] } else { vec![15, 25, 25, 25] };
        node.distances[place] = 10;
    }
}

fn tiny_normal(model: &mut MachineModel) {
    let normal = model.zones.iter_mut().find(|zone| zone.kind == ZoneKind::Normal).unwrap();
    (normal.present, normal.managed) = (PageCount::new(1000), PageCount::new(1000));
}

#[test]
fn node_reclaim_is_judged_by_the_largest_distance() {
    let judged = |distance: u8, mode: u32| {
        let text = format!(
            r#"{{"name": "d", "page_bytes": 4096, "settings": {{"zone_reclaim_mode": {mode}}},
                "nodes": [{{"id": 0, "cpus": [0], "distances": {{"0": 10, "1": {distance}}}}},
                          {{"id": 1, "cpus": [1], "distances": {{"0": {distance}, "1": 10}}}}],
                "zones": [{{"node": 0, "kind": "Normal", "start": 0, "spanned": 90000, "present": 90000, "managed": 90000}},
                          {{"node": 1, "kind": "Normal", "start": 90000, "spanned": 90000, "present": 90000, "managed": 90000}}]}}"#
        );
        let remarks = remarks(&explain(&MachineModel::from_json(&text, "d.json").unwrap(), &newest()));
        let lines = remarks.lines().filter(|line| line.contains("zone_reclaim_mode"));
        lines.map(|line| line.split(':').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Node reclaim is useful only for distances above 30.
    assert_eq!([judged(30, 0), judged(31, 0)], [vec![], vec!["Info".to_owned()]]);
    assert_eq!([judged(30, 1), judged(31, 1)], [["Warn"], ["Info"]]);
}
