//! Checks `zonal explain` as people and scripts call it: machines, fills, policies, bad input.

use std::process::{Command, Output};

use serde_json::{Value, json};

fn zonal(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.arg("explain").args(arguments).env_remove("COLUMNS").output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = zonal(arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn document(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat())).unwrap()
}

const QUAD: [&str; 2] = ["--preset", "quad-10-12-32"];

#[test]
fn a_full_node_is_passed_over_for_the_nearest() {
    let arguments = [&QUAD[..], &["--node", "2", "--fill", "2=100"]].concat();
    let text = text(&arguments);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .filter(|row: &Vec<&str>| !row.is_empty())
        .collect();
    assert_eq!(rows[1], ["zone", "mark", "outcome"], "{text}");
    assert_eq!((&rows[2][..4], rows[2][5]), (&["node", "2", "Normal", "low"][..], "frames"), "{text}");
    assert_eq!(rows[3], ["node", "3", "Normal", "low", "serves"], "{text}");
    assert_eq!(text.lines().last(), Some("node 3 Normal serves the request."), "{text}");
}

#[test]
fn the_json_document_has_a_row_for_each_zone() {
    let found = document(
        &[&QUAD[..], &["--node", "2", "--fill", "2=100", "--policy", "bind:1-2", "--order", "3"]].concat(),
    );
    assert_eq!(found["schema"], "zonal.explain.v1");
    let request = json!({
        "node": 2, "order": 3, "policy": "bind:1,2", "cpuset": null, "urgency": "normal",
        "fill": [{ "node": 2, "percent": 100 }], "reclaimable": [],
    });
    assert_eq!(found["request"], request);
    let short_by = found["steps"][0]["short_by"].as_u64().unwrap();
    let zone = |node| json!({ "node": node, "kind": "Normal" });
    let expected = json!([
        { "zone": zone(2), "outcome": "below", "mark": "low", "short_by": short_by, "detail": null },
        { "zone": zone(3), "outcome": "not-allowed", "mark": "low", "short_by": null,
          "detail": "excluded by the policy or the allowed nodes" },
        { "zone": { "node": 0, "kind": "Normal" }, "outcome": "not-allowed", "mark": "low", "short_by": null,
          "detail": "excluded by the policy or the allowed nodes" },
    ]);
    assert_eq!(found["steps"].as_array().unwrap()[..3], expected.as_array().unwrap()[..]);
    assert_eq!((&found["served_by"], &found["slow_path"]), (&zone(1), &json!([])));
}

#[test]
fn a_full_machine_serves_nothing_before_reclaim() {
    let fills = ["--fill", "0=100", "--fill", "1=100", "--fill", "2=100", "--fill", "3=100"];
    let found = document(&[&QUAD[..], &fills].concat());
    assert_eq!(found["served_by"], Value::Null);
    assert_eq!(found["slow_path"], json!(["background-reclaim", "direct-reclaim", "drain-pagesets"]));
    // One row for each zone at each mark.
    let zones: Vec<String> = found["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| format!("{}{}", step["zone"], step["mark"]))
        .collect();
    let distinct: std::collections::BTreeSet<&String> = zones.iter().collect();
    assert_eq!(zones.len(), distinct.len(), "{zones:?}");
    assert!(
        text(&[&QUAD[..], &fills].concat()).ends_with("No zone serves the request before memory is freed.\n")
    );
}

#[test]
fn preferred_nodes_come_in_the_order_given() {
    let found = document(&[&QUAD[..], &["--policy", "preferred-many:3,1", "--fill", "3=100"]].concat());
    let nodes: Vec<u64> = found["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["zone"]["node"].as_u64().unwrap())
        .collect();
    assert_eq!(nodes, [3, 1]);
}

#[test]
fn this_machine_is_explained_as_full_as_it_is() {
    let found = document(&[]);
    assert!(!found["steps"].as_array().unwrap().is_empty());
    let served = &found["steps"].as_array().unwrap().last().unwrap()["outcome"];
    assert!(found["served_by"].is_null() || served == "serves", "{found}");
}

#[test]
fn every_preset_can_be_explained() {
    for preset in zonal_machine::PRESETS {
        let found = document(&["--preset", preset.name, "--fill", "0=50"]);
        assert!(found["served_by"].is_object(), "{}: {found}", preset.name);
    }
}

#[test]
fn bad_input_exits_with_2_and_one_line_that_names_what_is_allowed() {
    for (arguments, right) in [
        (&["--node", "9"][..], "--node: node 9 does not exist; the machine has nodes 0-3"),
        (&["--node", "0,1"], "`0,1` is not a node"),
        (&["--fill", "0"], "NODE=PERCENT"),
        (&["--fill", "0=101"], "percentage from 0 to 100"),
        (&["--fill", "7=10"], "--fill: node 7 does not exist"),
        (&["--order", "11"], "order from 0 to 10"),
        (&["--policy", "bind:8"], "--policy: node 8 does not exist"),
        (&["--policy", "best"], "policies look like"),
        (&["--cpuset", "7"], "--cpuset: node 7 does not exist"),
        (&["--urgency", "huge"], "urgency"),
        (&["--live"], "cannot be used with"),
        (&["--policy", "bind:1", "--cpuset", "2"], "no node in both"),
        (&["--without", "7"], "--without: node 7 is not a node of the machine"),
        (&["--without", "2", "--node", "2"], "--node: node 2 does not exist; the machine has nodes 0-1,3"),
        (&["--set", "zone_reclaim_mode=9"], "zone_reclaim_mode"),
        (&["--set", "swappiness=1"], "no setting is named `swappiness`"),
        (&["--set", "zone_reclaim_mode"], "NAME=VALUE"),
        (&["--reclaimable", "9=10"], "--reclaimable: node 9 does not exist"),
        (&["--fill", "0=high"], "percentage from 0 to 100, min or low"),
        (&["--node-reclaim", "maybe"], "on or off"),
        (&["--zonelist-cache", "maybe"], "possible values"),
    ] {
        let output = zonal(&[&QUAD[..], arguments].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(errors.lines().count() == 1 && errors.contains(right), "{arguments:?}: {errors}");
    }
    let nodes = zonal(&["--preset", "cxl4", "--node", "2"]);
    let errors = String::from_utf8(nodes.stderr).unwrap();
    assert!(errors.contains("node 2 has no CPUs; nodes 0-1 can make requests"), "{errors}");
    for arguments in [&["--preset", "none"][..], &["--machine", "/none.json"]] {
        assert_eq!(zonal(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn node_reclaim_keeps_a_request_on_its_node_if_it_frees_enough() {
    let ask =
        |more: &[&str]| document(&[&QUAD[..], &["--fill", "0=low", "--node-reclaim", "on"], more].concat());
    let found = ask(&["--reclaimable", "0=25"]);
    let zone = |node| json!({ "node": node, "kind": "Normal" });
    assert_eq!((&found["before"]["served_by"], &found["after"]["served_by"]), (&zone(1), &zone(1)));
    let reclaimed = json!({ "reclaimed": zone(0), "frames": 32, "served_by": zone(0) });
    assert_eq!(found["after"]["if_node_reclaim_succeeds"], reclaimed);
    assert_eq!(found["before"]["if_node_reclaim_succeeds"], Value::Null);
    let nothing = ask(&[]);
    assert_eq!(nothing["after"]["if_node_reclaim_succeeds"], Value::Null, "nothing can be reclaimed");
}

#[test]
fn changes_are_shown_beside_the_machine_as_it_is() {
    let shown = text(&[&QUAD[..], &["--node", "2", "--fill", "2=100", "--without", "3"]].concat());
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let answer =
        "As it is, node 3 Normal serves the request. Without node 3, node 0 Normal serves the request.";
    assert!(words.contains(answer), "{shown}");
    assert!(shown.contains("before") && shown.contains("after"), "{shown}");
    let same = text(&[&QUAD[..], &["--set", "min_free_kbytes=65536"]].concat());
    assert!(same.contains("With min_free_kbytes = 65536, the same zone serves this request"), "{same}");
}

#[test]
fn a_capture_is_as_full_as_the_machine_was() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("now.json");
    let file = file.to_str().unwrap();
    let capture = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_zonal")).arg("capture").args(arguments).output().unwrap()
    };
    assert_eq!(capture(&[file]).status.code(), Some(0));
    let found = document(&["--capture", file]);
    assert!(found["served_by"].is_object(), "{found}");
    // A file of others is not replaced; its own is.
    assert_eq!(capture(&[file]).status.code(), Some(0));
    std::fs::write(file, "other").unwrap();
    let refused = capture(&[file]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(std::fs::read_to_string(file).unwrap(), "other");
    let wrong = zonal(&["--capture", file]);
    let errors = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && errors.contains("a file of zonal capture"), "{errors}");
}

#[test]
fn no_large_block_is_found_on_a_fragmented_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (file, mut capture) = (folder.path().join("aged.json"), String::new());
    let (state, _) = zonal_machine::state::CapturedState::live().unwrap();
    let mut aged = state.clone();
    for zone in &mut aged.sample.zones {
        zone.free_blocks = vec![zone.managed / 4];
        zone.free = zone.managed / 4;
    }
    capture.push_str(&aged.to_json());
    std::fs::write(&file, capture).unwrap();
    let file = file.to_str().unwrap();
    assert!(document(&["--capture", file])["served_by"].is_object());
    let found = document(&["--capture", file, "--order", "3"]);
    assert_eq!(found["served_by"], Value::Null, "{found}");
    assert!(found["steps"].as_array().unwrap().iter().any(|step| step["outcome"] == "no-block"), "{found}");
}

fn log(name: &str) -> String {
    format!("{}/../zonal-machine/data/logs/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_log_is_answered_first_and_then_checked_line_by_line() {
    let text = text(&["--log", &log("guest/6.1-bind.txt")]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("line 1: OOM kill, kernel 6.1.0-"), "{text}");
    let answer: String = lines[1..6].join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["ended in an OOM kill: zone Normal of node", "not above `min`", "but the memory policy allows node"]
    {
        assert!(answer.contains(part), "{answer}");
    }
    assert!(text.contains("policy of nodes 0-3") && text.contains("vm.min_free_kbytes = "), "{text}");
    assert!(text.lines().any(|line| line.contains(" mark ") && line.ends_with("predicted")), "{text}");
    assert!(lines.last().unwrap().starts_with("1 report: 1 OOM kill, 0 page"), "{text}");
}

#[test]
fn the_json_document_of_a_log_has_every_check() {
    let found = document(&["--log", &log("guest/6.1-memcg-then-bind.txt")]);
    assert_eq!(found["schema"], "zonal.explain.v1");
    let reports = found["reports"].as_array().unwrap();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[0]["refused_by"], json!({ "zone": null, "rule": "cgroup-limit" }));
    let report = &reports[1];
    assert_eq!((&report["kind"], &report["constraint"]), (&json!("oom"), &json!("CONSTRAINT_MEMORY_POLICY")));
    assert_eq!(report["refused_by"]["zone"]["kind"], "Normal");
    assert_eq!(report["remedies"][0]["policy"], "policy");
    assert!(
        report["remedies"].as_array().unwrap().iter().any(|remedy| remedy["setting"] == "vm.min_free_kbytes")
    );
    for check in report["checks"].as_array().unwrap() {
        assert!(check["rule"].is_string() && check["verdict"] == "predicted", "{check}");
        for input in check["inputs"].as_array().unwrap() {
            assert!(["printed", "computed", "assumed"].contains(&input["from"].as_str().unwrap()), "{input}");
        }
    }
    assert_eq!(found["summary"]["oom"], 2);
}

#[test]
fn a_log_from_standard_input() {
    let file = std::fs::File::open(log("public/6.19-order-5-in-vm.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let output = command.args(["explain", "--log", "-", "--json"]).stdin(file).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        found["reports"][0]["remedies"][0],
        json!({
            "order": 4, "value": 4, "cost": "the caller must use 2 blocks with 64 KiB each instead of one",
        })
    );
}

#[test]
fn logs_without_a_report_say_what_was_sought_and_how_to_get_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let name = path.to_str().unwrap();
    for (bytes, problem) in [
        (&b""[..], "is empty; it must be a kernel log"),
        (b"usb 1-1: new device\n", "its 1 line has no report of a failed request (\"invoked oom-killer\""),
        (b"\x1f\x8b\x00\x00\x00", "is not text (it has 3 zero bytes)"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        let output = zonal(&["--log", name]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains(problem) && error.contains("journalctl -k") && output.stdout.is_empty(),
            "{error}"
        );
    }
    for (path, problem) in
        [("/nonexistent/log", "No such file"), ("/", "is a directory"), ("/dev/zero", "regular file")]
    {
        let output = zonal(&["--log", path]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(path) && error.contains(problem), "{error}");
    }
    for option in [&["--preset", "quad-10-12-32"][..], &["--live"], &["--node", "0"], &["--fill", "0=1"]] {
        let arguments = [&["--log", name][..], option].concat();
        assert_eq!(zonal(&arguments).status.code(), Some(2), "{option:?}");
    }
}
