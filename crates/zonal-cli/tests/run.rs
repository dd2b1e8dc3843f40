//! Checks `zonal run` as people and scripts call it: bad input, the JSON document, and Ctrl-C.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).output().unwrap()
}

/// Returns the JSON document of a short run with these arguments on a small pool.
fn json(arguments: &[&str]) -> Value {
    let short = ["--pool", "64MiB", "--seconds", "0.05", "--json"];
    let output = zonal(&[arguments, &short].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn bad_input_exits_with_2_and_one_line_that_names_what_is_allowed() {
    let cases: [(&[&str], &str); 32] = [
        (&["run", "paint"], "workloads are touch, pair, batch, batch-random, repeat"),
        (&["paint"], "unrecognized subcommand"),
        (&["run", "--threads", "0"], "allowed are 1 to"),
        (&["run", "--threads", "-2"], "allowed are 1 to"),
        (&["run", "--threads", "1000000"], "allowed are 1 to"),
        (&["run", "--seconds", "0"], "seconds above 0"),
        (&["run", "--seconds", "-1"], "seconds above 0"),
        (&["run", "--seconds", "NaN"], "seconds above 0"),
        (&["run", "--seconds", "1e10"], "more than a year"),
        (&["run", "--pool", "0"], "use 64MiB or more"),
        (&["run", "--pool", "1GB"], "sizes are binary; write 1GiB or 1G"),
        (&["run", "--pool", "-1G"], "as in 64MiB, 1GiB or 2M"),
        (&["run", "--pool", "99999999T"], "more memory than any machine has"),
        (&["run", "--pool", "1000TiB"], "or less"),
        (&["run", "--pool", "4K"], "or more"),
        (&["run", "--node", "77"], "node 77 does not exist; "),
        (&["run", "--node", "x"], "is not a node"),
        (&["run", "--node", "3-1"], "is a descending range; write 1-3"),
        (&["run", "--policy", "random"], "policies look like local, preferred:1"),
        (&["run", "--policy", "preferred:77"], "node 77 does not exist; the machine has"),
        (&["run", "--policy", "bind:0,77"], "node 77 does not exist; the machine has"),
        (
            &["run", "--policy", "interleave:0-9", "--fake-nodes", "4"],
            "node 4 does not exist; the machine has nodes 0-3",
        ),
        (&["run", "--policy", "weighted:0=1,77=1"], "node 77 does not exist; the machine has"),
        (&["run", "--policy", "weighted:0=0"], "all weights are 0"),
        (&["run", "--policy", "weighted:0=300"], "a weight is a number from 0 to 255"),
        (&["run", "--tuning", "deep"], "depth, depth-published, stepwise, fixed"),
        (&["run", "--zonelist-cache", "yes"], "on, published, cache-first, original, 2006, off"),
        (&["run", "--fake-nodes", "0"], "allowed are 1 to 1024"),
        (&["run", "--fake-nodes", "1025"], "allowed are 1 to 1024"),
        (&["run", "--fake-nodes", "2", "--machine", "m.json"], "cannot be used with '--machine"),
        (&["run", "--machine", "/no/such/machine.json"], "/no/such/machine.json"),
        (&["run", "--speed", "5"], "--speed"),
    ];
    for (arguments, right) in cases {
        let output = zonal(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(errors.ends_with('\n') && errors.lines().count() == 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("zonal: ") && errors.contains(right), "{arguments:?}: {errors}");
    }
}

/// Returns the keys of a document. A key of a nested object has the outer key and a dot as prefix.
fn keys(value: &Value) -> Vec<String> {
    let Value::Object(entries) = value else { return Vec::new() };
    let mut all = Vec::new();
    for (key, value) in entries {
        let nested = keys(value);
        if nested.is_empty() {
            all.push(key.clone());
        }
        all.extend(nested.iter().map(|inner| format!("{key}.{inner}")));
    }
    all.sort();
    all
}

#[test]
fn json_document_has_the_documented_keys() {
    let mut promised = [
        "workload",
        "threads",
        "seconds",
        "pairs",
        "ns_per_pair",
        "latency_ns.p50",
        "latency_ns.p99",
        "latency_ns.p999",
        "latency_ns.max",
        "locality.hit",
        "locality.miss",
        "locality.foreign",
        "locality.local",
        "locality.other",
        "zonelist.probes",
        "zonelist.full_bits_set",
        "zonelist.wipes",
        "reclaim.background",
        "reclaim.direct",
        "reclaim.node.no_scan",
        "reclaim.node.full",
        "reclaim.node.some",
        "reclaim.node.success",
        "pageset.refills",
        "pageset.drains",
        "pageset.high_final",
        "metadata_bytes_per_frame",
        "accounting.managed",
        "accounting.free",
        "accounting.in_pagesets",
        "accounting.allocated",
        "accounting.balanced",
        "bound_to_nodes",
        "schema",
        "settings.tuning",
        "settings.percpu_pagelist_high_fraction",
        "settings.zonelist_cache",
        "settings.zone_reclaim_mode",
        "settings.reclaim_distance",
        "settings.min_unmapped_ratio",
        "settings.node_load",
        "settings.counters",
        "settings.stat_interval",
        "settings.invalid_free",
        "settings.owned_blocks",
        "fallback_order.0",
        "fallback_order.1",
        "zones",
    ];
    promised.sort_unstable();
    assert_eq!(keys(&json(&["run", "pair", "--fake-nodes", "2"])), promised);
}

#[test]
fn figures_of_a_report_are_consistent() {
    let result = json(&["run", "batch", "--threads", "3", "--fake-nodes", "2", "--policy", "interleave:0-1"]);
    let number =
        |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(result["workload"], "batch");
    assert_eq!(number("/threads"), 3.0);
    assert_eq!(number("/accounting/managed"), 16384.0);
    assert_eq!(number("/accounting/allocated"), 0.0);
    assert_eq!(number("/accounting/free") + number("/accounting/in_pagesets"), 16384.0);
    assert_eq!(result["accounting"]["balanced"], true);
    assert_eq!(result["bound_to_nodes"], false);
    assert!(number("/pairs") > 0.0 && number("/ns_per_pair") > 0.0);
    assert!(number("/locality/hit") + number("/locality/miss") >= number("/pairs"));
    assert!(number("/latency_ns/p50") <= number("/latency_ns/max"));
}

#[test]
fn every_workload_and_setting_runs() {
    let workloads =
        ["pair", "batch", "batch-random", "repeat", "random", "handoff", "orders", "fill", "touch"];
    for workload in workloads {
        let result = json(&["run", workload, "--threads", "2"]);
        assert_eq!(result["workload"], workload);
        assert_eq!(result["accounting"]["balanced"], true, "{workload}");
    }
    let settings =
        ["--tuning", "stepwise", "--zonelist-cache", "published", "--node-reclaim", "5", "--seed", "9"];
    assert_eq!(
        json(&[&["run", "orders", "--node", "0"], &settings[..]].concat())["accounting"]["balanced"],
        true
    );
}

#[test]
fn without_a_workload_it_runs_the_default() {
    assert_eq!(json(&["run"])["workload"], "touch");
}

#[test]
fn without_a_command_it_is_a_check_up_whose_report_names_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkup.json");
    let output = zonal(&["--report", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(written.as_bytes(), output.stdout, "what is written was shown before");
    let document: Value = serde_json::from_str(&written).unwrap();
    assert_eq!(document["schema"], "zonal.checkup.v1");
    assert_eq!(document["pool"]["balanced"], true);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let is_named =
        |text: &str| text.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == host.trim());
    assert!(!is_named(&written) && !written.contains('/'), "{written}");
}

#[test]
fn ctrl_c_ends_the_check_up_with_the_accounting_of_its_pool() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command handles the signal from the time at which it has more than one thread.
    zonal_testing::eventually("a second thread", || {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() > 1
    });
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("accounting of the pool: ") && printed.contains("(balanced)"), "{printed}");
}

#[test]
fn a_machine_file_is_emulated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pair.json");
    std::fs::write(
        &file,
        r#"{"name": "pair", "page_bytes": 4096,
            "nodes": [{"id": 0, "cpus": [0], "distances": {"0": 10, "3": 20}},
                      {"id": 3, "cpus": [8], "distances": {"0": 20, "3": 10}}],
            "zones": [{"node": 0, "kind": "Normal", "start": 0, "spanned": 65536, "present": 65536, "managed": 65536},
                      {"node": 3, "kind": "Normal", "start": 65536, "spanned": 65536, "present": 65536, "managed": 65536}]}"#,
    )
    .unwrap();
    let file = file.to_str().unwrap();
    for policy in ["preferred:3", "preferred-many:3,0"] {
        let result = json(&["run", "pair", "--machine", file, "--policy", policy, "--threads", "1"]);
        assert_eq!(result["accounting"]["balanced"], true);
    }
    let output = zonal(&["run", "--machine", file, "--policy", "preferred-many:3,1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the machine has nodes 0,3"));
    let output = zonal(&["run", "--machine", file, "--policy", "bind:1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the machine has nodes 0,3"));
}

#[test]
fn text_report_has_units_and_the_accounting() {
    let output = zonal(&["run", "pair", "--pool", "64MiB", "--seconds", "0.05", "--threads", "1"]);
    let text = String::from_utf8(output.stdout).unwrap();
    // Progress is shown only on terminals. This machine may cause warnings.
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.lines().all(|line| line.starts_with("zonal: warning: ")), "{errors}");
    for part in [
        "pair: 1 thread for",
        "pool of 64 MiB",
        "pairs/s",
        "p99.9",
        "bytes per frame",
        "  accounting  16384 managed = ",
        " (balanced)\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn ctrl_c_ends_the_run_and_prints_the_accounting() {
    let arguments = ["run", "pair", "--pool", "64MiB", "--seconds", "3600", "--threads", "2", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command handles the signal from the time at which it has more than one thread.
    let threads = || std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
    while threads() < 2 {
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["accounting"]["balanced"], true);
    assert!(
        String::from_utf8(output.stderr).unwrap().ends_with("zonal: interrupted; the accounting balances\n")
    );
}

#[test]
fn help_lists_workloads_and_examples() {
    for arguments in [&["--help"][..], &["run", "--help"]] {
        let output = zonal(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(text.contains("Examples:"), "{text}");
        assert!(arguments.len() == 1 || text.contains("batch-random"), "{text}");
    }
}

#[test]
fn exported_pool_state_reads_back_as_a_machine() {
    let directory = tempfile::tempdir().unwrap();
    let tree = directory.path().join("tree").display().to_string();
    json(&["run", "pair", "--fake-nodes", "2", "--threads", "1", "--export-tree", &tree]);
    let output = zonal(&["machine", "--sysfs", &tree, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let machine: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(machine["nodes"].as_array().unwrap().len(), 2);
    let managed: u64 =
        machine["zones"].as_array().unwrap().iter().map(|z| z["managed"].as_u64().unwrap()).sum();
    assert_eq!(managed, 64 << 8);
    // The values that the pool wrote must be those that a kernel would report for such a machine.
    let checks = machine["checks"].as_array().unwrap();
    let differ: Vec<_> =
        checks.iter().filter(|check| check["same"] != true).map(|check| &check["what"]).collect();
    let own = |what: &Value| what.as_str().unwrap().starts_with("pageset_high_");
    assert!(checks.len() > 10 && differ.iter().all(|what| own(what)), "{differ:?}");
    let file = directory.path().join("tree/proc/zoneinfo").display().to_string();
    let output = zonal(&["run", "pair", "--pool", "64MiB", "--seconds", "0.05", "--export-tree", &file]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot write ") && errors.contains("proc/zoneinfo"), "{errors}");
}
