//! Checks the options of `zonal run` that choose the allocator's rules and settings. Each option must reach the pool
//! and change the output.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).output().unwrap()
}

fn output(arguments: &[&str]) -> String {
    let output = zonal(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

const SHORT: [&str; 8] = ["run", "pair", "--threads", "1", "--pool", "64MiB", "--seconds", "0.02"];

/// Returns the JSON document of a short run with these options.
fn run(arguments: &[&str]) -> Value {
    serde_json::from_str(&output(&[&SHORT[..], arguments, &["--json"]].concat())).unwrap()
}

/// Writes a machine file with two nodes of one CPU each, and returns its path.
fn pair(folder: &Path) -> String {
    let file = folder.join("pair.json");
    let node = |id: u16, distances: Value| json!({"id": id, "cpus": [id], "distances": distances});
    let zone = |node: u16, start: u64| json!({"node": node, "kind": "Normal", "start": start, "spanned": 65536, "present": 65536, "managed": 65536});
    let machine = json!({
        "name": "pair", "page_bytes": 4096,
        "nodes": [node(0, json!({"0": 10, "3": 20})), node(3, json!({"0": 20, "3": 10}))],
        "zones": [zone(0, 0), zone(3, 65536)],
    });
    std::fs::write(&file, machine.to_string()).unwrap();
    file.display().to_string()
}

#[test]
fn values_out_of_range_are_refused_with_the_option_and_the_range() {
    for (option, values, range) in [
        ("--reclaim-distance", ["300", "-1", "near"], "from 0 to 255"),
        ("--min-unmapped", ["101", "-1", "1%"], "from 0 to 100"),
        ("--high-fraction", ["-8", "4294967296", "1/8"], "from 0 to 4294967295"),
        ("--counters", ["fixed:0", "fixed:126", "fixed:x"], "from 1 to 125"),
        ("--counters", ["deep", "", "-"], "scaled, first-posting and fixed:N"),
        ("--counters", ["scaled,fast", "fixed:3,", "scaled,fixed:3"], "to-zero, and-machine and unchanged"),
        ("--node-load", ["more", "Assign", "0"], "accumulate, remaining, assign"),
        ("--invalid-free", ["no", "0", "trusted"], "checked, exact"),
        ("--owned-blocks", ["no", "1", "true"], "off, on"),
    ] {
        for value in values {
            let output = zonal(&["run", option, value]);
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{option} {value}: {errors}");
            assert!(errors.lines().count() == 1 && errors.starts_with("zonal: "), "{errors}");
            // If a value has several parts, the error must name the wrong part.
            for part in [option, value.split([',', ':']).next_back().unwrap(), range] {
                assert!(errors.contains(part), "{option} {value}: {part} in {errors}");
            }
        }
    }
    let output = zonal(&["run", "--verbose", "--json"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn options_set_the_settings_of_the_pool() {
    let settings = &run(&[])["settings"];
    let defaults = json!({
        "tuning": "depth", "percpu_pagelist_high_fraction": 0, "zonelist_cache": "on", "zone_reclaim_mode": 0,
        "reclaim_distance": 30, "min_unmapped_ratio": 1, "node_load": "accumulate", "counters": "scaled",
        "stat_interval": 1, "invalid_free": "exact", "owned_blocks": "off",
    });
    assert_eq!(*settings, defaults);
    let options = [
        "--tuning stepwise --high-fraction 9 --zonelist-cache cache-first --node-reclaim 5 --reclaim-distance 77",
        "--min-unmapped 37 --node-load remaining --counters fixed:9,to-zero,unchanged --invalid-free checked",
        "--owned-blocks on",
    ];
    let options: Vec<&str> = options.iter().flat_map(|line| line.split(' ')).collect();
    let chosen = json!({
        "tuning": "stepwise", "percpu_pagelist_high_fraction": 9, "zonelist_cache": "cache-first",
        "zone_reclaim_mode": 5, "reclaim_distance": 77, "min_unmapped_ratio": 37, "node_load": "remaining",
        "counters": "fixed:9,to-zero,unchanged", "stat_interval": 1, "invalid_free": "checked",
        "owned_blocks": "on",
    });
    let result = run(&options);
    assert_eq!(result["settings"], chosen);
    assert_eq!(
        (&result["schema"], &result["accounting"]["balanced"]),
        (&json!("zonal.run.v1"), &json!(true))
    );
    assert_eq!(run(&["--counters", "first-posting"])["settings"]["counters"], "first-posting");
}

#[test]
fn node_load_option_changes_fallback_orders_as_machine_predicts() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quad.json").display().to_string();
    output(&["machine", "--preset", "quad-10-12-32", "--export", &file]);
    let orders = |load: &str| {
        let found = run(&["--machine", &file, "--node-load", load])["fallback_order"].clone();
        let text = output(&["machine", "--file", &file, "--rules", "6.12", "--node-load", load, "--json"]);
        let machine: Value = serde_json::from_str(&text).unwrap();
        for node in machine["nodes"].as_array().unwrap() {
            assert_eq!(found[node["id"].to_string()], node["fallback_order"], "{load}, node {}", node["id"]);
        }
        assert_eq!(found.as_object().unwrap().len(), 4);
        found
    };
    let [accumulate, assign] = ["accumulate", "assign"].map(orders);
    assert_ne!(accumulate, assign);
    orders("remaining");
}

#[test]
fn counters_option_sets_the_thresholds_of_zones() {
    let thresholds = |rule: &str| -> Vec<u64> {
        let result = run(&["--fake-nodes", "3", "--counters", rule]);
        let zones = result["zones"].as_array().unwrap().iter();
        zones.map(|zone| zone["stat_threshold"].as_u64().unwrap()).collect()
    };
    assert_eq!(thresholds("fixed:7"), [7; 3]);
    assert_eq!(thresholds("fixed:125"), [125; 3]);
    let scaled = thresholds("scaled");
    assert!(scaled.len() == 3 && scaled != [7; 3], "{scaled:?}");
    assert_eq!(
        thresholds("first-posting"),
        scaled,
        "far below either limit, and all that is present is managed"
    );
}

#[test]
fn a_high_fraction_fixes_the_limits_of_pagesets() {
    let folder = tempfile::tempdir().unwrap();
    let file = pair(folder.path());
    let limits = |fraction: &str| {
        let result = run(&["--machine", &file, "--high-fraction", fraction]);
        let zones = result["zones"].as_array().unwrap().clone();
        assert_eq!(zones.len(), 2);
        let of = |key: &str| zones[0][key].as_u64().unwrap();
        (of("managed"), of("pageset_high_min"), of("pageset_high_max"))
    };
    assert_eq!(limits("64"), (8192, 128, 128));
    assert_eq!(limits("32"), (8192, 256, 256));
    let (_, tuned_min, tuned_max) = limits("0");
    assert!(tuned_min < tuned_max, "{tuned_min} to {tuned_max}");
}

#[test]
fn node_reclaim_goes_no_farther_than_the_reclaim_distance() {
    let folder = tempfile::tempdir().unwrap();
    let file = pair(folder.path());
    // The workload uses the whole pool, so requests find a node below its watermarks and try node reclaim. Nothing
    // can be reclaimed.
    let full = |distance: &str| {
        let fill = ["run", "fill", "--threads", "1", "--pool", "64MiB", "--seconds", "0.02", "--json"];
        let options = ["--machine", &file, "--node-reclaim", "on", "--reclaim-distance", distance];
        let result: Value = serde_json::from_str(&output(&[&fill[..], &options].concat())).unwrap();
        result["reclaim"]["node"]["full"].as_u64().unwrap()
    };
    assert_eq!(full("9"), 0, "a node is 10 away from itself");
    assert!(full("10") > 0);
}

#[test]
fn the_unmapped_ratio_is_written_with_the_pools_state() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().display().to_string();
    run(&["--min-unmapped", "42", "--export-tree", &tree]);
    let file = folder.path().join("proc/sys/vm/min_unmapped_ratio");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "42\n");
}

#[test]
fn zones_have_the_keys_of_machine() {
    let result = run(&["--fake-nodes", "2"]);
    let machine: Value = serde_json::from_str(&output(&["machine", "--preset", "cxl4", "--json"])).unwrap();
    assert_eq!(machine["schema"], "zonal.machine.v1");
    let keys = |zone: &Value| zone.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for zone in result["zones"].as_array().unwrap() {
        assert_eq!(keys(zone), keys(&machine["zones"][0]));
        assert_eq!(zone["protection"].as_array().unwrap().len(), 5);
        let mark = |key: &str| zone[key].as_u64().unwrap();
        assert!(mark("min") < mark("low") && mark("low") < mark("high") && mark("managed") == 8192, "{zone}");
    }
}

#[test]
fn verbose_reports_end_with_settings_orders_and_limits() {
    let folder = tempfile::tempdir().unwrap();
    let file = pair(folder.path());
    let options =
        ["--machine", &file, "--counters", "fixed:7", "--high-fraction", "64", "--min-unmapped", "5"];
    let short = output(&[&SHORT[..], &options].concat());
    let text = output(&[&SHORT[..], &options, &["--verbose"]].concat());
    assert!(!short.contains("Fallback orders"), "{short}");
    let (report, details) = text.split_once("\nSettings\n").unwrap();
    assert!(report.contains("16384 managed = "), "{report}");
    for part in
        ["counters fixed:7, folded every 1 s", "min-unmapped 5 %", "high-fraction 64", "invalid-free exact"]
    {
        assert!(details.contains(part), "{part} in {details}");
    }
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lines: Vec<_> = details.lines().map(words).collect();
    for expected in
        ["node 0 0 3", "node 3 3 0", "0 Normal 8192 7 1 128 to 128", "3 Normal 8192 7 1 128 to 128"]
    {
        assert!(lines.contains(&words(expected)), "{expected} in {details}");
    }
}

#[test]
fn help_names_each_option_with_its_values() {
    let text = output(&["run", "--help"]);
    let (general, settings) = text.split_once("Rules and settings of the allocator:\n").unwrap();
    assert!(general.contains("--seed <N>") && settings.contains("--tuning <HOW>"), "{text}");
    for part in [
        "--node-load <RULE>",
        "--counters <RULE>",
        "first-posting",
        "--invalid-free <HOW>",
        "--owned-blocks <HOW>",
        "--reclaim-distance <D>",
        "--min-unmapped <PERCENT>",
        "--high-fraction <F>",
        "--verbose",
        "--counters fixed:32,to-zero",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}
